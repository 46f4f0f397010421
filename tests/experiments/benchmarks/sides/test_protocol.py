"""What a side is told, and what it prints: read back by the other end, with a clock that is made up."""

import json
import sys
from types import SimpleNamespace

import pytest

from experiments.benchmarks.sides import protocol
from experiments.benchmarks.sides.protocol import Reporter, Round, Task

pytestmark = pytest.mark.slow


@pytest.fixture
def now(monkeypatch):
    seconds = [100.0]
    monkeypatch.setattr(protocol, "time", SimpleNamespace(perf_counter=lambda: seconds[0]))
    return seconds


def test_a_task_travels_by_the_command_line(monkeypatch):
    task = Task(algorithm="impala", seed=3, target=500.0)
    monkeypatch.setattr(sys, "argv", ["side", task.encoded()])
    assert protocol.task_given() == task
    monkeypatch.setattr(sys, "argv", ["side", json.dumps({"actors": 2, "fragment": 8})])
    assert protocol.task_given() == Task(actors=2, fragment=8)
    assert protocol.task_given().batch == 16


def test_rounds_are_read_among_other_lines(now, capsys):
    reporter = Reporter(Task())
    print("a library's remark")
    now[0] = 101.5
    assert reporter.report(16, None)
    now[0] = 103.0
    assert reporter.report(32, 7.5)
    assert protocol.rounds_in(capsys.readouterr().out) == [Round(1.5, 16, None), Round(3.0, 32, 7.5)]


def test_time_is_counted_from_the_end_of_the_warm_up(now):
    """Two rounds and then ten seconds: the second round is over at 5, so training ends at 15."""
    reporter = Reporter(Task(warm_up=2, seconds=10.0))
    going_on = []
    for steps, seconds in enumerate((4.0, 5.0, 14.9, 15.0), start=1):
        now[0] = 100.0 + seconds
        going_on.append(reporter.report(steps, None))
    assert going_on == [True, True, True, False]


@pytest.mark.parametrize(("episode_return", "going_on"), [(None, True), (499.0, True), (500.0, False)])
def test_the_target_ends_it(now, episode_return, going_on):
    assert Reporter(Task(target=500.0)).report(16, episode_return) == going_on
