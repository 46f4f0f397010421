"""The map's confirmation on Hopper: its deployments are those that were registered, its ratios are right by hand."""

import itertools
import math
from statistics import fmean
from types import SimpleNamespace

import pytest

from experiments.figures.map import hopper, rates
from experiments.figures.map.deployments import DATA_PARALLEL, IN_ROUNDS, ONE_LEARNER, SAMPLING_ON, SYNCHRONOUS, Point
from experiments.figures.map.rates import POINTS, label
from experiments.report.tables.results import rows
from tests.experiments import committed, csv_rows


def test_the_deployments_are_the_ends_of_the_map():
    """By the geometric mean of both tasks, over the numbers of learners whose learning was measured."""
    found: dict[Point, list[float]] = {}
    for row in rows("stellaris-map/foretold.csv"):  # the map before Acrobot's runs were repeated
        point = Point(row["system"], float(row["kappa"]), float(row["variation"]), int(row["learners"]))
        found.setdefault(point, []).append(float(row["best"]))
    advantage = {point: math.sqrt(math.prod(both)) for point, both in found.items()}
    table = [
        [Point(*way, learners) for learners in (1, 4, 16, 64)]
        for way in itertools.product((IN_ROUNDS, SAMPLING_ON), (0.25, 1.0, 4.0, 16.0), (0.1, 1.0))
    ]
    best = sorted((max(points, key=advantage.__getitem__) for points in table), key=advantage.__getitem__)
    four = sorted((points[1] for points in table), key=advantage.__getitem__)
    assert (best[-1], four[-1], four[-2], best[2], best[1], best[0]) == POINTS


def test_the_chosen_rates_are_the_fastest_of_the_committed_runs():
    """By the mean virtual time to the target over the seeds of tuning; of equal ones, the smallest rate."""
    times: dict[str, dict[float, list[float]]] = {}
    for row in csv_rows.rows(committed.SMALL / "stellaris-map-rates" / "runs.csv"):
        point, rate = row["setting"].rsplit(": ", 1)
        times.setdefault(point, {}).setdefault(float(rate), []).append(float(row["virtual_seconds"]))
        assert row["seed"] in {"100", "101"}
    for of in times.values():
        assert sorted(of) == [*rates.RATES]
        assert {len(several) for several in of.values()} == {2}
    assert {point: min(sorted(of), key=lambda rate: fmean(of[rate])) for point, of in times.items()} == rates.CHOSEN
    assert {label(point) for point in rates.RUN} == rates.CHOSEN.keys()


def finished(point, seed, seconds, batches, last=rates.TARGET):
    """A run of a point."""
    workload = SimpleNamespace(actors=16, fragment=256)
    summary = {"virtual_seconds": seconds, "steps": batches * 4096, "final_return": last}
    return SimpleNamespace(cell=SimpleNamespace(seed=seed, workload=workload), summary=summary)


@pytest.mark.slow
def test_ratios_by_hand():
    """Without variation and at κ = 1, a synchronous batch takes 2 s, and so does a data-parallel one."""
    point, one = Point(SAMPLING_ON, 1.0, 0.0, 2), Point(ONE_LEARNER, 1.0, 0.0)
    of = {
        SYNCHRONOUS: [finished(None, seed, 99.0, 10) for seed in (0, 1)],
        label(point): [finished(point, seed, 10.0, 20, last=rates.TARGET - 1.0) for seed in (0, 1)],
        label(one): [finished(one, 0, 5.0, 20), finished(one, 1, 15.0, 20)],
    }
    assert hopper.seconds(Point(SYNCHRONOUS, 1.0, 0.0), of) == pytest.approx({0: 20.0, 1: 20.0}, rel=0.05)
    row = hopper.compared(point, of)
    assert row[:5] == ("1.0", "0.0", "2", "0 of 2", "2 of 2")
    assert row[5:8] == ("20", "0.5", "10")
    synchronous, parallel, one_learner = (float(text.split(" ")[0]) for text in row[8:11])
    assert synchronous == pytest.approx(2.0, rel=0.05)
    assert parallel == pytest.approx(2.0, rel=0.05)
    assert one_learner == 1.0
    assert row[11] == ONE_LEARNER


def test_the_rivals_are_on_the_same_deployment():
    others = hopper.rivals(Point(IN_ROUNDS, 4.0, 1.0, 4))
    assert [other.system for other in others] == [SYNCHRONOUS, DATA_PARALLEL, ONE_LEARNER]
    assert {(other.kappa, other.variation) for other in others} == {(4.0, 1.0)}
    assert [other.learners for other in others] == [1, 4, 1]
