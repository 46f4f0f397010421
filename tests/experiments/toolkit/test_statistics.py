"""Statistics of seeds, against resamples drawn by hand."""

import numpy as np
import pytest

from experiments.toolkit.statistics import FEWEST, estimate, interquartile_mean


def test_the_middle_half():
    assert interquartile_mean([0.0, 2.0, 4.0, 1e9]) == 3.0
    assert interquartile_mean([5.0, -1e9, 7.0, 1e9, 6.0, 8.0, 1e9, -1e9]) == 6.5


def test_few_seeds_support_no_claim():
    assert estimate([4.0, 1.0, 2.0, 8.0]) == (3.0, 1.0, 8.0, False)
    assert not estimate([1.0] * 9 + [np.inf]).claim
    assert not estimate(range(9), [1.0]).claim


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


@pytest.mark.parametrize("tasks", [(), ([1.0], [])])
def test_no_runs(tasks):
    with pytest.raises(ValueError, match="every task needs at least one run"):
        estimate(*tasks)
