"""What the lab stands on: under a run's schedule it makes the parameters that `train` makes."""

import math

import pytest

from stellaris import IMPACT, IMPALA, PPO
from stellaris.aggregation.staleness_aware import staleness_aware
from stellaris.aggregation.synchronisation import buffered, fully_asynchronous, softsync, stale_synchronous, synchronous
from stellaris.runtime import Faults
from stellaris.runtime.delays import Constant
from stellaris.systems import (
    AsynchronousActors,
    CircularReplay,
    DataParallel,
    StalenessControl,
    Stellaris,
    Synchronous,
)
from tests.lab.equality import compare, configure, draw, scaled

PPO_CONFIG = PPO(epochs=2, minibatch_size=24, learning_rate=1e-3)
IMPALA_CONFIG = IMPALA(minibatch_size=2)
IMPACT_CONFIG = IMPACT(epochs=1, minibatch_size=24)
FAULTS = {
    "actor": Faults(crash_during=0.05, lose=0.1, lifetime=Constant(2.0)),
    "learner": Faults(crash_before=0.1, duplicate=0.2, straggle=0.2),
}
AGGREGATORS = {
    "measured": None,
    "sequential": staleness_aware(3, decay=0.95, combine="sequential"),
    "demo": staleness_aware(3, decay=0.9, threshold="demo"),
    "softsync": softsync(2, capacity=6),
    "buffered": buffered(2, capacity=6),
    "asynchronous": fully_asynchronous(capacity=8),
    "dropping": fully_asynchronous(capacity=8, drop_from=2),
    "stale synchronous": stale_synchronous(1, 3),
    "synchronous": synchronous(3),
}
CONFIGURATIONS = {
    "synchronous": (Synchronous(PPO_CONFIG), {}),
    "data-parallel": (DataParallel(PPO_CONFIG, learners=2), {}),
    "asynchronous actors": (AsynchronousActors(IMPALA_CONFIG), {}),
    "asynchronous actors, PPO": (AsynchronousActors(PPO_CONFIG, control=StalenessControl(pace=2, window=8)), {}),
    "IMPACT": (CircularReplay(IMPACT_CONFIG, buffer=2, passes=3), {}),
    "IMPALA": (Stellaris(IMPALA_CONFIG, learners=3), {}),
    "no cap": (Stellaris(PPO_CONFIG, learners=3, rho=math.inf), {}),
    "IMPACT's loss": (Stellaris(IMPACT_CONFIG, learners=2, rho=1.5), {}),
    "refresh": (Stellaris(PPO_CONFIG, learners=3), {"refresh": 4}),
    "faults": (Stellaris(PPO_CONFIG, learners=3), {"faults": FAULTS}),
    "faults and refresh": (AsynchronousActors(PPO_CONFIG), {"faults": FAULTS, "refresh": 8}),
    "scaled rewards": (Stellaris(PPO_CONFIG, learners=3), {"policy": scaled}),
    "scaled rewards, IMPACT and faults": (
        CircularReplay(IMPACT_CONFIG, buffer=2, passes=3),
        {"policy": scaled, "refresh": 4, "faults": FAULTS},
    ),
    "in step": (Stellaris(PPO_CONFIG, learners=3, control=StalenessControl(pace=0)), {}),
    "discard": (Stellaris(PPO_CONFIG, learners=3, control=StalenessControl(discard=2)), {}),
} | {
    f"Stellaris, {name}": (Stellaris(PPO_CONFIG, learners=3, aggregator=aggregator, rho=1.2), {})
    for name, aggregator in AGGREGATORS.items()
}


#: Configurations that `make test` checks as well.
QUICK = ("Stellaris, measured",)


@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in CONFIGURATIONS]
)
def test_the_lab_learns_what_a_run_has_learned(name):
    """And the dry run has the schedule of the run."""
    system, options = CONFIGURATIONS[name]
    compared = compare(configure(system, seed=len(name), **options))
    assert compared.schedule.updates >= 9
    assert compared.moved > 1e-3
    assert compared.distance < 1e-5
    assert compared.same


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_random_configurations(seed):
    """`python -m tests.lab.equality` runs hundreds."""
    compared = compare(draw(seed))
    assert compared.distance < 1e-5
    assert compared.same
