"""Runs the scenario of one seed and checks its invariants."""

from collections import Counter

from experiments.simtest.invariants import Checker
from experiments.simtest.scenarios import PRICES, scenario
from stellaris.systems import train
from stellaris.systems.record import AGE, LAG, METRIC


def run(seed: int) -> Counter[str]:
    """Runs a seed's scenario and checks the invariants after every event.

    Args:
      seed: the seed, which decides everything: the scenario, its delays and faults, and the training.

    Returns:
      The number of times that each event of the platform happened.

    Raises:
      ViolationError: if an invariant broke.
    """
    plan = scenario(seed)
    checker = Checker(plan)
    platform = plan.platform(on_event=checker)
    result = train(plan.system, plan.workload, platform=platform, budget=plan.budget, prices=PRICES, seed=seed)
    checker(platform)
    checker.finish(result.trace, dict(result.bill), result.history)
    events = (event for _, event, *_ in result.trace.rows())
    return Counter(event for event in events if event not in _LEARNING and not event.startswith((METRIC, LAG, AGE)))


#: Events that systems write into the trace; the rest are the platform's.
_LEARNING = {"episode_length", "learned", "reset", "round", "sampled", "stored", "waiting", "queued"}
