"""How much the decay d of the threshold, the truncation level rho and the smoothness v matter."""

import argparse
import math
from collections.abc import Mapping
from typing import Any

from experiments import variants
from experiments.presets import LEARNERS, Contender
from stellaris import staleness_aware

DESCRIPTION = "the decay of the threshold, the truncation level and the smoothness of the weights, one at a time"

add_arguments = variants.add_arguments

DECAYS, RHOS, SMOOTHNESSES = (0.8, 0.9, 0.99), (1.0, 1.2, 4.0), (1.0, 2.0, math.inf)


def main(arguments: argparse.Namespace) -> int:
    """Runs every variant."""
    return variants.main("stellaris-sensitivity", _variants, arguments)


def _variants(environment: str) -> Mapping[str, Contender]:
    """One at a time, around d = 1, rho = 2 and v = 3."""
    changes: dict[str, dict[str, Any]] = {"d = 1, rho = 2, v = 3": {}}
    changes |= {f"d = {d:g}": {"aggregator": _aggregator(decay=d)} for d in DECAYS}
    changes |= {f"rho = {rho:g}": {"rho": rho} for rho in RHOS}
    changes |= {f"v = {v:g}": {"aggregator": _aggregator(smoothness=v)} for v in SMOOTHNESSES}
    return variants.of_stellaris(environment, changes)


def _aggregator(*, decay: float = 1.0, smoothness: float = 3.0) -> Any:
    return staleness_aware(LEARNERS, decay=decay, smoothness=smoothness, combine="sequential")
