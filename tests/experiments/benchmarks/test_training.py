"""What the systems' benchmarks run, made small: both sides do the same work; the figures are not judged here."""

from unittest import mock

import pytest

from experiments.benchmarks import training
from experiments.tasks import testbed
from stellaris import PPO
from stellaris.systems import Synchronous

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Two actors on a small environment, two rounds."""
    numbers = {"ACTORS": 2, "FRAGMENT": 8, "STEPS": 16, "THREADS": 1, "ROUNDS": 2, "WARM_UP": 1, "REPEATS": 1}
    algorithm = PPO(epochs=2, minibatch_size=8)
    for name, value in {**numbers, "ENVIRONMENT": "Pendulum-v1", "ALGORITHM": algorithm}.items():
        monkeypatch.setattr(training, name, value)


def test_rounds_are_timed_after_the_warm_up():
    times, result, memory = training._round_times(Synchronous(training.ALGORITHM), testbed.reserved(actors=2))
    assert len(times) == 2
    assert min(times) > 0
    assert result.history[-1]["steps"] == (1 + 2 + 1) * 16
    assert len(memory) == 2 + 1


def test_the_plain_loop_does_as_much_work(monkeypatch):
    loop = training._PlainLoop()
    counted = {name: mock.Mock(wraps=getattr(loop, name)) for name in ("batch", "gradient", "update")}
    for name, function in counted.items():
        monkeypatch.setattr(loop, name, function)
    assert loop.measure(rounds=2, gradients=5, updates=3) > 0
    assert {name: one.call_count for name, one in counted.items()} == {"batch": 2, "gradient": 5, "update": 3}
