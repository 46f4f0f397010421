"""Our side: that it trains as it is told, and reports what it has learned from."""

import pytest

from experiments.benchmarks.sides import ours, protocol
from experiments.benchmarks.sides.protocol import Task

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("algorithm", ["ppo", "impala"])
def test_it_reports_batches_that_were_learned_from(capsys, algorithm):
    task = Task(algorithm, "Pendulum-v1", actors=2, fragment=8, hidden=4, minibatch=8, epochs=1, warm_up=2, seconds=0.1)
    ours.main(task, threads=1)
    rounds = protocol.rounds_in(capsys.readouterr().out)
    assert len(rounds) >= 2
    assert [one.steps for one in rounds] == [16 * (i + 1) for i in range(len(rounds))]
    assert rounds[-1].seconds > rounds[1].seconds


def test_a_return_is_of_the_episodes_in_the_steps_that_were_learned_from(monkeypatch, capsys):
    """Batches of 16 steps: a row comes when the next batch has been sampled, and its return contains that batch."""
    rows = [
        {
            "steps": 16.0 * (version + 1),
            "version": float(version),
            "episodes": 99.0 + version,
            "episode_return": version,
        }
        for version in range(4)
    ]
    monkeypatch.setattr(ours, "train", lambda *_, on_progress, **__: [*map(on_progress, rows)])
    ours.main(Task(actors=2, fragment=8, steps=48), threads=1)
    rounds = protocol.rounds_in(capsys.readouterr().out)
    assert [one[1:] for one in rounds] == [(16, None), (32, 1.0), (48, 2.0)]
