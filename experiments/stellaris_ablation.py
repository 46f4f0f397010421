"""Stellaris without each of its parts, and without all of them."""

import argparse
import math
from collections.abc import Mapping
from typing import Any

from experiments import variants
from experiments.presets import LEARNERS, Contender
from stellaris import fully_asynchronous

DESCRIPTION = "Stellaris without asynchronous learners, without the cap, and without staleness-aware aggregation"

add_arguments = variants.add_arguments


def main(arguments: argparse.Namespace) -> int:
    """Runs every variant."""
    return variants.main("stellaris-ablation", _variants, arguments)


def _variants(environment: str) -> Mapping[str, Contender]:
    """Gradients that are not aggregated are applied as they come."""
    as_they_come = {"aggregator": fully_asynchronous(capacity=2 * LEARNERS)}
    without: dict[str, dict[str, Any]] = {
        "Stellaris": {},
        "one learner": {"learners": 1},
        "no cap": {"rho": math.inf},
        "no aggregation": as_they_come,
        "neither": {"rho": math.inf, **as_they_come},
    }
    return variants.of_stellaris(environment, without)
