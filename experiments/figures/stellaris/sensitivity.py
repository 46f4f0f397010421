"""Measures the sensitivity to the decay d of the threshold, the truncation level rho and the smoothness v."""

import math
from collections.abc import Sequence
from typing import Any

from experiments.study import variants
from experiments.study.study import Variant
from experiments.tasks.presets import LEARNERS
from stellaris import staleness_aware

DESCRIPTION = "the decay of the threshold, the truncation level and the smoothness of the weights, one at a time"

DECAYS, RHOS, SMOOTHNESSES = (0.8, 0.9, 0.99), (1.0, 1.2, 4.0), (1.0, 2.0, math.inf)


def _variants(environment: str) -> Sequence[Variant]:
    """Returns variants that change one parameter each, around d = 1, rho = 2 and v = 3."""
    changes: dict[str, dict[str, Any]] = {"d = 1, rho = 2, v = 3": {}}
    changes |= {f"d = {d:g}": {"aggregator": _aggregator(decay=d)} for d in DECAYS}
    changes |= {f"rho = {rho:g}": {"rho": rho} for rho in RHOS}
    changes |= {f"v = {v:g}": {"aggregator": _aggregator(smoothness=v)} for v in SMOOTHNESSES}
    return variants.of_stellaris(environment, changes)


def _aggregator(*, decay: float = 1.0, smoothness: float = 3.0) -> Any:
    return staleness_aware(LEARNERS, decay=decay, smoothness=smoothness, combine="sequential")


STUDY = variants.compared("stellaris-sensitivity", _variants)
add_arguments, main = STUDY.add_arguments, STUDY.main
