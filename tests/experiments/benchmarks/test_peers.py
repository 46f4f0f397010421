"""The peers' table, from made-up sides: nothing is installed, and no peer is run."""

import math
import subprocess
import sys
from pathlib import Path

import pytest

from experiments.benchmarks import peers
from experiments.benchmarks.sides.protocol import Round, Task

pytestmark = pytest.mark.slow


def side(name, *ways):
    """A side whose ways have names and nothing else."""
    return peers.Side(name, Task(warm_up=1), "none", tuple(peers.Way(way, (), 1) for way in ways))


def test_speed_is_taken_after_the_warm_up():
    """By hand: from 200 steps at 5 s to 600 at 7 s are 200 a second; the first round, which compiles, is left out."""
    rounds = [Round(4.0, 100, None), Round(5.0, 200, None), Round(6.0, 450, None), Round(7.0, 600, None)]
    assert peers.speed(rounds, warm_up=2) == 200.0
    assert peers.speed(rounds, warm_up=4) == 0.0
    assert peers.speed([], warm_up=2) == 0.0


def test_the_return_is_reached_at_its_first_round():
    """And never, if it is not."""
    rounds = [Round(1.0, 10, None), Round(2.0, 20, 499.0), Round(3.0, 30, 501.0), Round(4.0, 40, 600.0)]
    assert peers.seconds_to(500.0, rounds) == 3.0
    assert peers.seconds_to(601.0, rounds) == math.inf


def test_the_fastest_way_is_kept(monkeypatch):
    """All ways are tried in the first turn, and then the fastest alone."""
    speeds, tried = {"slow": 10, "fast": 30, "only": 20}, []

    def run(one, way):
        tried.append((one.name, way.name))
        return [Round(0.0, 0, None), Round(1.0, speeds[way.name] + len(tried), None)]

    monkeypatch.setattr(peers, "_run", run)
    measured, ways = peers.speeds_of([side("a", "slow", "fast"), side("b", "only")], 2, lambda line: None)
    assert tried == [("a", "slow"), ("a", "fast"), ("b", "only"), ("a", "fast"), ("b", "only")]
    assert {name: way.name for name, way in ways.items()} == {"a": "fast", "b": "only"}
    assert measured == {"a": [32.0, 34.0], "b": [23.0, 25.0]}


def test_speeds_are_compared_with_every_peer():
    """Medians of the turns; what is wanted is wanted of the fastest peer."""
    speeds = {"synchronous system": [90.0, 100.0, 900.0], "Stable-Baselines3": [20.0, 25.0, 30.0], "SBX": [50.0] * 3}
    speeds |= {"RLlib": [10.0] * 3, "asynchronous actors": [60.0] * 3, "RLlib's IMPALA": [0.0] * 3}
    ways = {name: peers.Way("so", (), 1) for name in speeds}
    rows = list(peers.speed_rows(speeds, ways))
    assert [row.ratio for row in rows] == [4.0, 2.0, 10.0, math.inf]
    assert [row.wanted for row in rows] == ["", ">= 2.70", "", ">= 2.00"]
    assert rows[1].what == "synchronous system, steps/s, against SBX (so)"


def test_times_to_the_return_are_shown_with_their_range():
    """By hand: the median of ours is 20, of theirs 40; one run of theirs did not get there."""
    times = {"synchronous system": [10.0, 20.0, 30.0], "Stable-Baselines3": [40.0, 30.0, math.inf]}
    times |= {"SBX": [10.0] * 3, "RLlib": [math.inf] * 3}
    rows = list(peers.return_rows(times))
    assert rows[0].measured == "20 (10 to 30)"
    assert rows[0].against == "40 (30 to inf, 1 not in 240)"
    assert [row.ratio for row in rows] == [0.5, 2.0, 0.0]


def test_a_side_that_fails_says_why(monkeypatch):
    """With the last that it wrote."""
    monkeypatch.setattr(peers, "_ROOT", Path(__file__).parents[3])
    broken = peers.Side("ours", Task(), "nothing", (peers.Way("so", (), 1),))
    with pytest.raises(RuntimeError, match=r"ours, so: exit status 1: .*No module named"):
        peers._run(broken, broken.ways[0])


def test_a_side_that_does_not_end_is_ended():
    """With what it started."""
    process = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    peers._end(process)
    assert process.poll() is not None


def test_seeds_are_run_to_the_return(monkeypatch):
    """Each PPO side once a seed, with the clock from the start, after the speeds."""
    tasks = []

    def run(one, way):
        tasks.append(one.task)
        return [Round(i + 1.0, 10 * (i + 1), 600.0) for i in range(3)]

    monkeypatch.setattr(peers, "_run", run)
    monkeypatch.setattr(peers, "python_of", lambda requirements, say: Path(sys.executable))
    rows = list(peers.measure(lambda line: None, seeds=2, turns=1))
    assert len(rows) == 4 + 3
    to_return = [task for task in tasks if task.target is not None]
    assert [task.seed for task in to_return] == [0] * 4 + [1] * 4
    assert {(task.warm_up, task.seconds, task.target) for task in to_return} == {(0, 240.0, 500.0)}
