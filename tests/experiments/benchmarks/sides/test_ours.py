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
