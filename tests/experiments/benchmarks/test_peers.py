"""The peers' table, from made-up sides: nothing is installed, and no peer is run."""

import math

import pytest

from experiments.benchmarks import peers
from experiments.benchmarks.sides.protocol import Round

pytestmark = pytest.mark.slow


def test_speed_is_taken_after_the_warm_up():
    """By hand: from 200 steps at 5 s to 600 at 7 s are 200 a second; the first round, which compiles, is left out."""
    rounds = [Round(4.0, 100, None), Round(5.0, 200, None), Round(6.0, 450, None), Round(7.0, 600, None)]
    assert peers.speed(rounds, warm_up=2) == 200.0
    assert peers.speed(rounds, warm_up=4) == 0.0
    assert peers.speed([], warm_up=2) == 0.0


def test_the_return_is_reached_at_its_first_round():
    rounds = [Round(1.0, 10, None), Round(2.0, 20, 499.0), Round(3.0, 30, 501.0), Round(4.0, 40, 600.0)]
    assert peers.seconds_to(500.0, rounds) == 3.0
    assert peers.seconds_to(601.0, rounds) == math.inf


def test_speeds_are_compared_with_every_peer():
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
