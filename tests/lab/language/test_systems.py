"""The language task on the platform: systems train it as an environment, and the lab learns the same parameters."""

import math

import pytest

from stellaris.lab.language import GRPO, Answering, Sorting, Transformer, WarmStart, workload
from stellaris.systems import AsynchronousActors, Budget, StalenessControl, Stellaris, Synchronous
from tests.lab.equality import compare, configure

TASK = Sorting(most=2, base=4)
ENV = Answering(TASK, group=4)
MODEL = Transformer.of(TASK, width=16, layers=1, heads=2)
LEARNER = GRPO(ENV, minibatch_size=12)
SYSTEMS = {
    "synchronous": (Synchronous(LEARNER), None),
    "in mid-sequence": (AsynchronousActors(GRPO(ENV, discard=3)), 2),
    "paced": (AsynchronousActors(LEARNER, control=StalenessControl(pace=1)), None),
    "with a cap": (Stellaris(LEARNER, learners=3, rho=1.2), None),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", SYSTEMS)
def test_the_lab_learns_what_train_learns(name):
    """`train` computes each token from the whole text, the lab from a cache."""
    system, refresh = SYSTEMS[name]
    network = WarmStart(MODEL, TASK, steps=20) if name == "synchronous" else MODEL
    configuration = configure(system, seed=1)._replace(workload=workload(ENV, network, actors=3, refresh=refresh))
    compared = compare(configuration, updates=12, budget=Budget(seconds=6.0))
    assert compared.schedule.updates >= 3
    assert compared.distance < 1e-4
    assert compared.moved > 1e-3
    assert compared.same
    if name == "paced":
        assert 0 < compared.schedule.data_lag.max() <= 2
    if name == "in mid-sequence":
        versions = compared.schedule.piece_version[compared.schedule.batch_pieces]
        assert (versions.max(axis=2) > versions.min(axis=2)).any()
    assert math.isfinite(compared.distance)
