"""What a system costs beside its work: the calls that are made again, at tiny size; the figures are not judged here."""

import pytest

from experiments.benchmarks import overhead
from experiments.tasks import presets
from stellaris import IMPACT, IMPALA, PPO, systems

pytestmark = pytest.mark.slow

PPO_ = PPO(epochs=2, minibatch_size=8)
SYSTEMS = {
    "synchronous": systems.Synchronous(PPO_),
    "central inference": systems.CentralInference(PPO_),
    "data-parallel": systems.DataParallel(PPO_, learners=2),
    "asynchronous actors": systems.AsynchronousActors(IMPALA(minibatch_size=2)),
    "IMPACT": systems.CircularReplay(IMPACT(minibatch_size=8)),
    "stellaris": systems.Stellaris(PPO_, learners=2),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Two actors on a small environment, two rounds."""
    for name, value in {"ENVIRONMENT": "Pendulum-v1", "ROUNDS": 2, "WARM_UP": 1, "REPEATS": 1, "THREADS": 1}.items():
        monkeypatch.setattr(overhead, name, value)
    monkeypatch.setattr(presets, "ACTORS", 2)


def contender(name):
    return presets.contender(name, SYSTEMS[name], colour="")


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_work_of_every_system_is_known(name):
    """All three kinds of it: were a system to call another function, one would be missing."""
    found = overhead.cost(contender(name), systems.Workload("Pendulum-v1", actors=2, fragment=8))
    assert set(found.work) == {"environment", "inference", "gradients"}
    assert min(found.work.values()) > 0
    assert found.run > 0
