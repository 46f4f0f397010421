"""What a system costs beside its work: the calls that are made again, at tiny size; the figures are not judged here."""

from types import SimpleNamespace

import pytest

from experiments.benchmarks import overhead
from experiments.tasks import presets
from stellaris import IMPACT, IMPALA, PPO
from stellaris.systems import (
    AsynchronousActors,
    CentralInference,
    CircularReplay,
    DataParallel,
    Stellaris,
    Synchronous,
    Workload,
)

pytestmark = pytest.mark.slow

PPO_ = PPO(epochs=2, minibatch_size=8)
SYSTEMS = {
    "synchronous": Synchronous(PPO_),
    "central inference": CentralInference(PPO_),
    "data-parallel": DataParallel(PPO_, learners=2),
    "asynchronous actors": AsynchronousActors(IMPALA(minibatch_size=2)),
    "IMPACT": CircularReplay(IMPACT(minibatch_size=8)),
    "stellaris": Stellaris(PPO_, learners=2),
}


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Two actors on a small environment, two rounds."""
    for name, value in {"ENVIRONMENT": "Pendulum-v1", "ROUNDS": 2, "WARM_UP": 1, "REPEATS": 1, "THREADS": 1}.items():
        monkeypatch.setattr(overhead, name, value)
    monkeypatch.setattr(presets, "ACTORS", 2)


def contender(name):
    """A system on the testbed."""
    return presets.contender(name, SYSTEMS[name], colour="")


@pytest.mark.parametrize("name", SYSTEMS)
def test_the_work_of_every_system_is_known(name):
    """All three kinds of it: were a system to call another function, one would be missing."""
    found = overhead.cost(contender(name), Workload("Pendulum-v1", actors=2, fragment=8))
    assert set(found.work) == {"environment", "inference", "gradients"}
    assert min(found.work.values()) > 0
    assert found.run > 0


def test_calls_are_made_again_as_they_were(monkeypatch):
    """Each once, with its arguments, between the two numbers; the environment's on an environment of their own."""
    made = []
    calls = overhead.Calls()
    calls.made = [
        ("environment", lambda env, slots, action: made.append((type(env).__name__, slots)), ("old", [0, 3], None), {}),
        ("inference", lambda x, *, y: made.append(x + y), (1,), {"y": 2}),
        ("gradients", lambda x: made.append(x), (5,), {}),
    ]
    opened = SimpleNamespace(reset=lambda slots: made.append(list(slots)), close=lambda: made.append("closed"))
    monkeypatch.setattr(overhead.envs, "make", lambda name, slots, threads: opened)
    seconds = calls.again(0, 2)
    assert made == [[0, 1, 2, 3], ("SimpleNamespace", [0, 3]), 3, "closed"]
    assert seconds["gradients"] == 0.0 < seconds["inference"]


def test_the_ratio_is_of_the_run_to_the_plain_loop():
    """By hand: 3 s for a work of 2 s."""
    found = overhead.Cost(3.0, {"environment": 1.0, "inference": 0.25, "gradients": 0.75})
    assert (found.plain, found.ratio) == (2.0, 1.5)


def test_a_row_shows_the_median(monkeypatch):
    """Of three runs; and where the time of that one went is said."""
    monkeypatch.setattr(overhead, "REPEATS", 3)
    costs = iter([overhead.Cost(run, dict.fromkeys(overhead.KINDS, 1.0)) for run in (6.0, 3.3, 3.0)])
    monkeypatch.setattr(overhead, "cost", lambda contender, workload: next(costs))
    lone = SimpleNamespace(contenders=[contender("synchronous")], workload=None)
    monkeypatch.setattr(presets, "architectures", lambda environment: lone)
    said = []
    (row,) = overhead.measure(said.append)
    assert row.ratio == pytest.approx(1.1)
    assert (row.measured, row.against) == ("3.30 s", "3.00 s")
    assert said[-1].endswith("gradients 1.00 s, the rest 0.30 s")
