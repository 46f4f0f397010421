"""Statistics of seeds, against resamples drawn by hand."""

import itertools
import math

import numpy as np
import pytest
from scipy import stats

from experiments.toolkit import statistics
from experiments.toolkit.statistics import (
    FEWEST,
    detectable,
    estimate,
    interquartile_mean,
    pooled_variation,
    seeds_needed,
)


def test_the_middle_half():
    assert interquartile_mean([0.0, 2.0, 4.0, 1e9]) == 3.0
    assert interquartile_mean([5.0, -1e9, 7.0, 1e9, 6.0, 8.0, 1e9, -1e9]) == 6.5


def test_few_seeds_support_no_claim():
    assert estimate([4.0, 1.0, 2.0, 8.0]) == (3.0, 1.0, 8.0, False)
    assert not estimate([1.0] * 9 + [np.inf]).claim
    assert not estimate(range(9), [1.0]).claim


@pytest.mark.slow
@pytest.mark.parametrize("sizes", [(5,), (6,), (5, 2)])
def test_intervals_are_exact(sizes, monkeypatch):
    """The percentiles of all n^n resamples, drawn by brute force."""
    monkeypatch.setattr(statistics, "FEWEST", 2)
    rng = np.random.default_rng(3)
    tasks = [rng.normal(i, 1, size) for i, size in enumerate(sizes)]
    every = itertools.product(*(itertools.product(task, repeat=len(task)) for task in tasks))
    means = stats.trim_mean([np.concatenate(resample) for resample in every], 0.25, axis=1)
    assert len(means) == math.prod(size**size for size in sizes)
    got = estimate(*tasks)
    expected = np.percentile(means, [2.5, 97.5], method="inverted_cdf")
    np.testing.assert_allclose((got.low, got.high), expected, rtol=1e-12)


@pytest.mark.parametrize(("variation", "effect"), [(0.3, 0.2), (0.5, 0.4)])
def test_with_the_seeds_needed_an_effect_is_found_four_times_in_five(variation, effect):
    """By simulation: of 4,000 intervals of the difference of mean logarithms, 80 % exclude 0."""
    rng, n = np.random.default_rng(0), seeds_needed(variation, effect)
    deviation = np.sqrt(np.log1p(variation**2))
    one, other = np.log1p(effect) + deviation * rng.normal(size=(4_000, n)), deviation * rng.normal(size=(4_000, n))
    apart = (one.mean(axis=1) - other.mean(axis=1)) / (deviation * np.sqrt(2 / n))
    assert np.mean(np.abs(apart) > 1.96) == pytest.approx(0.8, abs=0.03)
    assert seeds_needed(variation, effect / 2) > 3 * n


def test_eleven_runs_are_resampled_at_random():
    """Within the noise of 10,000 resamples, of an interval of ten of these runs and their mean."""
    values = np.linspace(0.0, 1.0, 11)
    random, exact = estimate(values), estimate([*values[:5], *values[6:]])
    assert random.claim
    assert (random.high - random.low) == pytest.approx(exact.high - exact.low, rel=0.15)
    assert estimate(values) == random


@pytest.mark.slow
def test_intervals_against_resampling_by_hand():
    """Each task keeps its number of runs; the bounds agree to the noise of resampling."""
    rng = np.random.default_rng(1)
    tasks = [rng.normal(0, 1, FEWEST), rng.normal(10, 3, 8)]
    got = estimate(*tasks)
    draws = [
        interquartile_mean(np.concatenate([rng.choice(task, len(task)) for task in tasks]).tolist())
        for _ in range(4000)
    ]
    low, high = np.percentile(draws, [2.5, 97.5])
    assert got.claim
    assert got.middle == interquartile_mean(np.concatenate(tasks).tolist())
    np.testing.assert_allclose([got.low, got.high], [low, high], atol=0.06 * (high - low))
    assert estimate(*tasks) == got


@pytest.mark.slow
def test_what_an_interval_of_five_seeds_covers():
    """Less than its nominal 95 %, as the results' page says: 91 % of normal samples, to three standard errors."""
    samples = np.random.default_rng(1).standard_normal((4000, 5)).tolist()
    covered = [interval.low <= 0 <= interval.high for interval in map(estimate, samples)]
    assert abs(np.mean(covered) - 0.91) < 0.014


@pytest.mark.parametrize("tasks", [(), ([1.0], [])])
def test_no_runs(tasks):
    with pytest.raises(ValueError, match="every task needs at least one run"):
        estimate(*tasks)


@pytest.mark.parametrize("variation", [0.05, 0.3])
def test_what_is_detectable_with_the_seeds_needed(variation):
    """As many seeds as are needed show the effect, and one fewer does not."""
    n = seeds_needed(variation, 0.1)
    assert detectable(variation, n) <= 0.1 < detectable(variation, n - 1)


@pytest.mark.parametrize(("one", "other"), [(0.4, 0.2), (0.05, 0.6)])
def test_a_pair_with_different_variations(one, other):
    """By hand: n is the sum of both variances of logarithms, times (1.96 + 0.84)^2, over the squared effect."""
    variances = math.log(1 + one**2) + math.log(1 + other**2)
    expected = (1.959964 + 0.841621) ** 2 * variances / math.log(1.2) ** 2
    assert seeds_needed(pooled_variation(one, other), 0.2) == math.ceil(expected)
    assert pooled_variation(one, one) == pytest.approx(one)
