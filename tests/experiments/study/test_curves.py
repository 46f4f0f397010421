"""Runs compared seed by seed, by hand."""

import math
from pathlib import Path

import pytest

from experiments.study import curves
from experiments.study.cells import Finished
from tests.experiments.study.test_cells import tiny


def run(seed, end, final, **columns):
    """A return that rises evenly from 0 until the end."""
    last = {"seconds": end, "episode_return": final, **columns}
    return Finished(tiny(seed), Path(), ({"seconds": 0.0, "episode_return": 0.0}, last), {})


def test_a_column_after_a_time():
    one = run(0, 10.0, 100.0, cost=3.0)
    assert curves.at(one, "episode_return", 4.0) == pytest.approx(40.0)
    assert curves.at(one, "episode_return") == 100.0
    assert curves.at(one, "cost", 1.0) == 3.0
    assert curves.last([one, run(1, 1.0, 50.0, cost=5.0)], "cost").middle == 4.0


def test_ratios_are_of_the_same_seed():
    of = [run(0, 10.0, 100.0), run(1, 10.0, 300.0), run(7, 10.0, 1.0)]
    baseline = [run(1, 10.0, 100.0), run(0, 10.0, 200.0)]
    assert curves.ratios(of, baseline, "episode_return") == [0.5, 3.0]
    assert curves.ratios(of, baseline, "episode_return", 5.0) == [0.5, 3.0]


def test_ratios_of_means_over_time():
    """Up to 10 s: a return that rises to 100 by then has a mean of 50; that rises to 100 by 5 s and stays, of 75."""
    (ratio,) = curves.means([run(0, 5.0, 100.0)], [run(1, 5.0, 1.0), run(0, 10.0, 100.0)], "episode_return", 10.0)
    assert ratio == pytest.approx(1.5, rel=1e-3)


def test_a_mean_before_the_first_episode_has_ended():
    """Until then the first return counts: 40 for 5 s and then 40 to 80 have a mean of 50, against 25."""
    unknown = {"seconds": 1.0, "episode_return": math.nan}
    rows = (unknown, {"seconds": 5.0, "episode_return": 40.0}, {"seconds": 10.0, "episode_return": 80.0})
    late = Finished(tiny(0), Path(), rows, {})
    (ratio,) = curves.means([late], [run(0, 10.0, 50.0)], "episode_return", 10.0)
    assert ratio == pytest.approx(2.0, rel=1e-3)


def test_a_run_without_a_finished_episode_has_no_mean():
    nothing = Finished(tiny(0), Path(), ({"seconds": 1.0, "episode_return": math.nan},), {})
    (ratio,) = curves.means([nothing], [run(0, 10.0, 50.0)], "episode_return", 10.0)
    assert math.isnan(ratio)


def test_systems_without_a_seed_in_common_are_not_compared():
    """An interrupted study may have run one seed of each."""
    assert curves.paired([run(0, 1.0, 1.0), run(1, 1.0, 1.0)], [run(1, 1.0, 1.0)])
    assert not curves.paired([run(0, 1.0, 1.0)], [run(1, 1.0, 1.0)])
    assert not curves.paired([run(0, 1.0, 1.0)], [])


def test_no_ratio_to_nothing():
    """Where the baseline's return is not positive, the ratio is not a number, and no error."""
    (ratio,) = curves.ratios([run(0, 10.0, 100.0)], [run(0, 10.0, 0.0)], "episode_return")
    assert math.isnan(ratio)
    assert math.isnan(curves.at_equal_time([run(0, 1.0, 1.0)], [run(0, 1.0, -5.0)])[0])


def test_returns_at_equal_time():
    """At the end of the shorter one: 100 after 5 s, where the other, half-way, has 40."""
    assert curves.at_equal_time([run(0, 5.0, 100.0)], [run(0, 10.0, 80.0)]) == [2.5]
    assert curves.at_equal_time([run(0, 10.0, 80.0)], [run(0, 5.0, 100.0)]) == [0.4]


def test_runs_by_what_is_varied():
    """By the value in a variant's name; another system's and another thing's are not among them."""
    names = [("it", "actors", 4), ("it", "actors", 0.25), ("other", "actors", 4), ("it", "learners", 4)]
    groups = {curves.setting(*name): [name] for name in names}
    assert [*groups][:2] == ["it, actors 4", "it, actors 0.25"]
    assert curves.swept(groups, "it", "actors") == {4.0: [names[0]], 0.25: [names[1]]}


def test_a_line():
    line = curves.line({1.0: [run(0, 1.0, 5.0), run(1, 1.0, 7.0)]}, lambda one: curves.at(one, "episode_return"))
    assert line.points == {1.0: [5.0, 7.0]}
    assert line.contender.name == "synchronous"


def test_what_an_interval_is():
    assert curves.interval(curves.last([run(0, 1.0, 5.0)], "episode_return")) == "median, range"
    several = [run(seed, 1.0, 5.0 + seed) for seed in range(5)]
    assert curves.interval(curves.last(several, "episode_return")) == "IQM, 95 %"
