"""The map: steps to a return, and products of speed and learning, by hand."""

import math

import numpy as np
import pytest
from matplotlib.axes import Axes

from experiments.figures.map import learning, outcomes, pictures
from experiments.figures.map.deployments import (
    ACTORS,
    DATA_PARALLEL,
    FRAGMENT,
    IN_ROUNDS,
    ONE_LEARNER,
    SAMPLING_ON,
    SYNCHRONOUS,
    Point,
)
from experiments.figures.map.learning import Learning
from experiments.figures.map.outcomes import MACHINES, TIME, Curves, Efficiency, Speeds, advantages
from experiments.figures.map.speed import Grid, measure
from stellaris.lab import CartPole

RISING = np.arange(40.0)


def test_batches_to_a_return():
    """Of the mean over seeds, averaged over eight batches: batches b-7 to b average b-3.5, and b+1 batches are over."""
    assert outcomes.batches_to(RISING[None], 10.0) == pytest.approx(14.5)
    assert outcomes.batches_to(np.stack([RISING, RISING + 2.0]), 10.0) == pytest.approx(13.5)
    assert outcomes.batches_to(RISING[None], -1.0) == 8.0
    assert math.isinf(outcomes.batches_to(RISING[None], 37.5))
    gaps = RISING.copy()
    gaps[::2] = np.nan  # no episode ended
    assert outcomes.batches_to(gaps[None], 10.0) == pytest.approx(14.5, abs=1.0)


def test_the_best_rate_is_not_chosen_on_the_seeds_that_are_reported():
    """A rate that is fast with even seeds alone is chosen by them, and reported with the odd ones."""
    slow, fast, never = RISING / 2, RISING, 0 * RISING
    returns = np.array([[slow, slow, slow, slow], [fast, never, fast, never]])
    chosen_by_even, chosen_by_odd = 40.0, 2 * 8.0 + 4.5
    assert outcomes.needed(Curves([1e-3, 1e-2], returns), 8.0) == pytest.approx((chosen_by_even + chosen_by_odd) / 2)
    everywhere = np.array([[never] * 4, [fast] * 4])
    assert outcomes.needed(Curves([1e-12, 1e-2], everywhere), 8.0) == pytest.approx(12.5)
    assert outcomes.needed(Curves([1e-2], everywhere[:1]), 8.0) == 40.0
    # The curve ends a batch before the run, from whose last batch no version was learned.
    unseen = np.where(np.arange(40) < 39, everywhere[:1], np.nan)
    assert outcomes.needed(Curves([1e-2], unseen), 8.0) == 39.0


def test_a_half_that_misses_the_target_makes_eta_an_upper_bound():
    """Both halves, one half and neither stay below the target: η counts all 40 batches for a half that does."""
    untrained, never = np.zeros(40), np.zeros(40)

    def table(system, *rates):
        return [
            {"system": system, "kappa": 1.0, "variation": 0.1, "learners": 1, "learning_rate": rate, "seed": seed}
            | {"returns": " ".join(f"{x:g}" for x in curve)}
            for rate, curves in rates
            for seed, curve in enumerate(curves)
        ]

    rising = [RISING, RISING]
    rows = [
        *table(SYNCHRONOUS, (1e-12, [untrained] * 2), (1e-2, rising)),
        *table(ONE_LEARNER, (1e-2, rising)),
        *table(IN_ROUNDS, (1e-2, [RISING, never])),
        *table(SAMPLING_ON, (1e-2, [never, never])),
    ]
    *_, found = outcomes.efficiency([{name: str(value) for name, value in row.items()} for row in rows])
    assert {row["system"]: row["missed"] for row in found} == {
        SYNCHRONOUS: False,
        ONE_LEARNER: False,
        IN_ROUNDS: True,
        SAMPLING_ON: True,
    }
    needed = {row["system"]: row["batches"] for row in found}
    assert needed[IN_ROUNDS] == pytest.approx((needed[ONE_LEARNER] + 40.0) / 2, abs=0.01)


def test_seeds_are_resampled_within_each_half():
    """Seeds that are alike give one number; where half of each half never arrives, samples lie between the extremes."""
    random, never = np.random.default_rng(0), 0 * RISING
    alike = outcomes.resampled(Curves([1e-2], np.stack([[RISING] * 4])), 8.0, random)
    np.testing.assert_allclose(alike, 12.5)
    mixed = outcomes.resampled(Curves([1e-2], np.array([[RISING, RISING, never, never]])), 8.0, random)
    assert (mixed.min(), mixed.max()) == (pytest.approx(12.5), 40.0)
    assert len({*mixed.tolist()}) > 2


def test_the_target_lies_between_the_untrained_and_the_best():
    returns = np.stack([np.full((2, 40), 10.0), np.full((2, 40), 50.0), np.full((2, 40), 110.0)])
    assert outcomes.target_of(Curves([1e-12, 1e-3, 1e-2], returns)) == pytest.approx(10.0 + 0.8 * 100.0)


def test_episodes_count_in_the_batch_in_which_they_end():
    """The first version of a system in rounds is made of the first batch, and its episodes ended in it."""
    of_a_batch = ACTORS * FRAGMENT
    sampled = np.array([0, 1, of_a_batch, of_a_batch, of_a_batch + 64, 2 * of_a_batch, 3 * of_a_batch, 5 * of_a_batch])
    assert learning.batch_of(sampled, 4).tolist() == [0, 0, 0, 0, 1, 1, 2, 3]


@pytest.mark.slow
def test_every_batch_has_its_episodes():
    """Episodes of an untrained policy on CartPole take some 20 steps: some end in each batch, also in the first."""
    few = Learning((1.0,), (0.1,), (2,), (1e-3,), seeds=1, batches=3)
    found = learning.curves(few, Point(SYNCHRONOUS, 1.0, 0.0), CartPole(), None, None)
    assert found.shape == (2, 1, 3)
    assert np.isfinite(found[..., :2]).all()
    assert np.isnan(found[..., 2]).all()  # the run ends with the third batch, from which no version is learned


def test_learning_is_interpolated():
    """In the logarithms of κ and of the learners, and in the variation; beyond, the nearest."""
    eta = Efficiency(
        {
            IN_ROUNDS: {
                (kappa, variation, learners): math.log2(kappa) + 10 * variation + 100 * math.log2(learners)
                for kappa in (1.0, 4.0)
                for variation in (0.0, 1.0)
                for learners in (1, 4)
            }
        }
    )
    assert eta(IN_ROUNDS, 2.0, 0.5, 2) == pytest.approx(1.0 + 5.0 + 100.0)
    assert eta(IN_ROUNDS, 99.0, 0.0, 64) == pytest.approx(2.0 + 200.0)
    drawn = {place: np.array([one, 2 * one]) for place, one in eta.measured[IN_ROUNDS].items()}
    np.testing.assert_allclose(Efficiency({IN_ROUNDS: drawn})(IN_ROUNDS, 2.0, 0.5, 2), [106.0, 212.0])
    one_number = {place: several for place, several in drawn.items() if place[2] == 4}
    np.testing.assert_allclose(Efficiency({IN_ROUNDS: one_number})(IN_ROUNDS, 2.0, 0.5, 9), [206.0, 412.0])
    assert eta(SYNCHRONOUS, 2.0, 0.5, 1) == eta(DATA_PARALLEL, 2.0, 0.5, 8) == 1.0


def test_advantages_by_hand():
    """Twice the steps per second at 0.75 of the learning, against the best of three; costs are the other way round."""
    rows = []
    for system, learners, steps, cost in (
        (SYNCHRONOUS, 1, 100.0, 1.0),
        (ONE_LEARNER, 1, 150.0, 1.0),
        (DATA_PARALLEL, 4, 120.0, 2.0),
        (SAMPLING_ON, 4, 200.0, 4.0),
    ):
        point = {"system": system, "kappa": 1.0, "variation": 0.1, "learners": learners, "sharers": 1}
        point |= {"growth": 0.0, "update": 0.1, "steps_per_second": steps, "cost_machines": cost, "cost_use": cost}
        rows.append({name: str(value) for name, value in point.items()})
    place = {(1.0, 0.1, 4): 0.75}
    eta = Efficiency({SAMPLING_ON: place, ONE_LEARNER: {(1.0, 0.1, 1): 0.5}})
    (row,) = advantages(Speeds.of(rows), eta, what=TIME)
    assert (row["speed"], row["eta"]) == (2.0, 0.75)
    assert row[SYNCHRONOUS] == pytest.approx(1.5)
    assert row[ONE_LEARNER] == pytest.approx(2.0)
    assert row[DATA_PARALLEL] == row["best"] == pytest.approx(1.25)
    # Of learners that share a GPU η is that of a larger κ: four take twice as long as one alone.
    shared = [row | {"sharers": "4"} if row["system"] == SAMPLING_ON else row for row in rows]
    slower = Efficiency({**eta.measured, SAMPLING_ON: {(1.0, 0.1, 4): 0.75, (2.0, 0.1, 4): 0.5}})
    (row,) = advantages(Speeds.of(shared), slower, what=TIME, sharers=4)
    assert row["eta"] == 0.5
    (row,) = advantages(Speeds.of(rows), eta, what=MACHINES)
    assert row[SYNCHRONOUS] == row["best"] == pytest.approx(0.25 * 0.75)
    # With resampled η, the best of the others is chosen for each sample: the second has η of 1.5 for one learner.
    drawn = {SAMPLING_ON: {(1.0, 0.1, 4): np.array([0.75, 0.75])}, ONE_LEARNER: {(1.0, 0.1, 1): np.array([0.5, 1.5])}}
    (row,) = advantages(Speeds.of(rows), Efficiency(drawn), what=TIME)
    np.testing.assert_allclose(row["best"], [1.25, 200 * 0.75 / (150 * 1.5)])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("system", "expected"), [(SYNCHRONOUS, 1024 / 3), (ONE_LEARNER, 1024 / 2), (IN_ROUNDS, 1024 / 1.5)]
)
def test_speeds_without_variation(system, expected):
    """A fragment of 1 s and gradients of 2 s: 3 s a round; 2 s if sampling is hidden; 1.5 s with four learners."""
    point = Point(system, 2.0, 0.0, 4 if system == IN_ROUNDS else 1, update=0.0)
    assert measure((point, 40)).steps == pytest.approx(expected, rel=0.05)


def test_every_deployment_is_measured_once():
    grid = Grid((1.0, 2.0), (0.1,), (1, 4), (1, 4), (0.0, 1.0), (0.1, 1.4), 4)
    points = [*grid.points()]
    assert len({*points}) == len(points) == 2 * (2 + 2 + 2 * (2 + 4))


def test_upper_bounds_are_hatched(tmp_path, monkeypatch):
    """η is an upper bound between a deployment that missed the target and its neighbours, and the map hatches it."""
    measured = {(kappa, v, n): 1.0 for kappa in (1.0, 8.0) for v in (0.1, 1.0) for n in (1, 4, 16)}
    eta = Efficiency({IN_ROUNDS: measured, SAMPLING_ON: measured}, {IN_ROUNDS: {(8.0, 1.0, 16)}})
    at = [(16.0, 1.0, 16), (2.0, 0.5, 8), (1.0, 1.0, 16), (8.0, 0.1, 16), (8.0, 1.0, 4), (8.0, 1.0, 64)]
    assert [eta.at_most(IN_ROUNDS, *place) for place in at] == [True, True, False, False, False, True]
    assert not any(eta.at_most(SAMPLING_ON, *place) for place in at)
    drawn = []
    whole = Axes.contourf
    monkeypatch.setattr(Axes, "contourf", lambda *args, **named: drawn.append((args, named)) or whole(*args, **named))
    rows = [
        {"system": system, "kappa": kappa, "variation": 0.1, "learners": n, "best": kappa * n}
        | {"at_most": (system, n) == (IN_ROUNDS, 4)}
        for system in (IN_ROUNDS, SAMPLING_ON)
        for kappa in (1.0, 8.0)
        for n in (1, 4)
    ]
    pictures.draw(rows, "best", tmp_path / "map", "title", (), "ratio")
    (((_, kappas, learners, hatched), _),) = [one for one in drawn if "hatches" in one[1]]
    assert (kappas, learners, hatched.tolist()) == ([1.0, 8.0], [1, 4], [[0.0, 0.0], [1.0, 1.0]])
