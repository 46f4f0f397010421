"""Ablates Stellaris: one learner, no ratio cap, no staleness-aware aggregation, or neither cap nor aggregation."""

import math
from collections.abc import Sequence
from typing import Any

from experiments.study import variants
from experiments.study.study import Variant
from experiments.tasks.presets import LEARNERS
from stellaris import fully_asynchronous, staleness_aware

DESCRIPTION = "Stellaris without asynchronous learners, without the cap, and without staleness-aware aggregation"


def _variants(environment: str) -> Sequence[Variant]:
    """Returns Stellaris and its ablations.

    Without aggregation, gradients are applied on arrival. A single learner does not share its GPU.
    """
    as_they_come = {"aggregator": fully_asynchronous(capacity=2 * LEARNERS)}
    without: dict[str, dict[str, Any]] = {
        "Stellaris": {},
        "one learner": {"learners": 1, "aggregator": staleness_aware(1, decay=1.0, combine="sequential")},
        "no cap": {"rho": math.inf},
        "no aggregation": as_they_come,
        "neither": {"rho": math.inf, **as_they_come},
    }
    return variants.of_stellaris(environment, without)


STUDY = variants.compared("stellaris-ablation", _variants)
add_arguments, main = STUDY.add_arguments, STUDY.main
