"""Where a factor comes from: from the demo's baseline to its Stellaris, one change at a time."""

import argparse
import math
from collections.abc import Mapping

from experiments import variants
from experiments.presets import ACTORS, FRAGMENT, LEARNERS, Contender, contender, demo_ppo, paper
from stellaris import fully_asynchronous
from stellaris.systems import StalenessControl, Stellaris, Synchronous, System

DESCRIPTION = "from the demo's baseline to its Stellaris: minibatches, gradients, asynchrony, cap and weights in turn"

add_arguments = variants.add_arguments


def main(arguments: argparse.Namespace) -> int:
    """Runs every step of the way."""
    return variants.main("stellaris-why", _variants, arguments)


def _variants(environment: str) -> Mapping[str, Contender]:
    """Each but the second is the one before it with one change; the second has the third's number of gradients."""
    stellaris, baseline = paper(environment).contenders
    batch = ACTORS * FRAGMENT
    quarter = demo_ppo(batch // LEARNERS)
    as_they_come = fully_asynchronous(capacity=2 * LEARNERS)
    in_rounds = StalenessControl(pace=0)
    plain = Stellaris(quarter, learners=LEARNERS, aggregator=as_they_come, rho=math.inf, control=in_rounds)
    capped = Stellaris(quarter, learners=LEARNERS, aggregator=as_they_come, rho=1.0, control=in_rounds)
    return {
        "baseline": baseline,
        "four times the passes": _reserved(Synchronous(demo_ppo(batch, epochs=40))),
        "quarter minibatches": _reserved(Synchronous(quarter)),
        "asynchronous learners": _serverless(plain),
        "the cap": _serverless(capped),
        "weights, threshold": stellaris,
    }


def _reserved(system: System) -> Contender:
    return contender("synchronous", system, colour="#D55E00", line="--")


def _serverless(system: System) -> Contender:
    return contender("stellaris", system, colour="#0072B2")
