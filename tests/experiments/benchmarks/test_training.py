"""What the systems' benchmarks run, made small: both sides do the same work; the figures are not judged here."""

import subprocess
from types import SimpleNamespace

import numpy as np
import pytest

from experiments.benchmarks import training
from experiments.tasks import testbed
from stellaris import PPO
from stellaris.systems import Synchronous

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Two actors on a small environment, two rounds."""
    numbers = {
        "ENVIRONMENT": "Pendulum-v1",
        "ACTORS": 2,
        "FRAGMENT": 8,
        "STEPS": 16,
        "THREADS": 1,
        "ALGORITHM": PPO(epochs=2, minibatch_size=8),
        "ROUNDS": 2,
        "WARM_UP": 1,
        "REPEATS": 1,
    }
    for name, value in numbers.items():
        monkeypatch.setattr(training, name, value)


def test_rounds_are_timed_after_the_warm_up():
    """As many as are said, of all that were run."""
    times, result, memory = training._round_times(Synchronous(training.ALGORITHM), testbed.reserved(actors=2))
    assert len(times) == 2
    assert min(times) > 0
    assert result.history[-1]["steps"] == (1 + 2 + 1) * 16
    assert len(memory) == 2 + 1


def test_the_plain_loop_does_as_much_work(monkeypatch):
    """Five gradients and three updates over two rounds, by counting them."""
    loop = training._PlainLoop()
    counts = {"batch": 0, "gradient": 0, "update": 0}

    def counted(name):
        function = getattr(loop, name)

        def call(*arguments):
            counts[name] += 1
            return function(*arguments)

        monkeypatch.setattr(loop, name, call)

    for name in counts:
        counted(name)
    assert loop.measure(rounds=2, gradients=5, updates=3) > 0
    assert counts == {"batch": 2, "gradient": 5, "update": 3}


def test_the_serial_limit_is_of_one_round(monkeypatch):
    """Every step of every actor, their inference, one value, and the updates of a whole batch."""
    monkeypatch.setattr(training._SerialLimit, "measure", lambda self: 0.0)  # which compiles, for ten rounds
    limit = training._SerialLimit()
    assert limit.actions.shape[:2] == (8, 2) == limit.observations.shape[:2]
    assert limit.data.batch.valid.shape == (16,)
    assert limit.data.indices.shape == (2 * 2, 8)
    steps = []
    monkeypatch.setattr(limit.env, "step", lambda slots, action: steps.append(len(slots)))
    assert limit._once() > 0
    assert steps == [2] * 8


def test_the_import_is_compared_with_what_it_needs(monkeypatch):
    """Each as often as the other; the first of each, which reads the disk, does not count."""
    clock, commands = iter(np.cumsum([0, 9] + [0, 3, 0, 2] * 7)), []
    monkeypatch.setattr(subprocess, "run", lambda command, **options: commands.append(command[-1]))
    monkeypatch.setattr(training, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    row = training._imports()
    assert (row.measured, row.against, row.ratio) == ("3.00 s", "2.00 s", 1.5)
    assert commands == ["import stellaris", "import jax, optax, jaxtyping"] * 8
