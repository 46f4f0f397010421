"""The best setting, intervals and the lag at which half is lost, against loops over settings and seeds."""

import math

import numpy as np
import pytest
import xarray as xr

from stellaris.lab import at_best, half_lag, interval
from stellaris.lab.comparison import halved_at


def outcomes(seeds=6):
    """Of two methods, three lags and four rates."""
    random = np.random.default_rng(0)
    return xr.DataArray(
        random.normal(10.0, 3.0, size=(4, 2, 3, seeds)),
        {"rate": [1e-4, 1e-3, 1e-2, 1e-1], "loss": ["PPO", "IMPACT"], "lag": [0, 2, 8]},
        dims=("rate", "loss", "lag", "seed"),
    )


def test_the_best_setting_is_chosen_on_the_other_half():
    found, known = at_best(outcomes(), "rate"), outcomes()
    assert found.dims == ("loss", "lag", "seed")
    for loss in known.loss.values:
        for lag in known.lag.values:
            own = known.sel(loss=loss, lag=lag)
            for seed in range(6):
                others = [i for i in range(6) if i % 2 != seed % 2]
                best = max(known.rate.values, key=lambda rate, own=own, others=others: own.sel(rate=rate)[others].sum())
                got = found.sel(loss=loss, lag=lag)[seed]
                assert got.item() == own.sel(rate=best)[seed].item()
                assert got.rate.item() == best


def test_chance_is_not_rewarded():
    """Where settings differ by chance only, the mean at the best one is that of any."""
    noise = xr.DataArray(np.random.default_rng(1).normal(size=(20, 500, 4)), dims=("rate", "task", "seed"))
    assert abs(at_best(noise, "rate").mean()) < 0.05
    assert noise.mean("seed").max("rate").mean() > 0.5


def test_a_run_without_an_outcome_is_the_worst():
    runs = xr.DataArray([[math.nan, 9.0, math.nan, 9.0], [1.0, 2.0, 3.0, 4.0]], dims=("rate", "seed"))
    found = at_best(runs, "rate")
    assert found.values.tolist()[1::2] == [2.0, 4.0]  # the even seeds have no outcome at the first rate
    assert np.isnan(found.values[0::2]).all()  # the odd seeds choose it


@pytest.mark.parametrize("level", [0.5, 0.95])
def test_the_interval_is_a_bootstrap_of_the_mean(level):
    known = outcomes()
    found = interval(known, level=level)
    assert found["mean"].dims == ("rate", "loss", "lag")
    np.testing.assert_allclose(found["mean"], known.mean("seed"))
    draws = np.random.default_rng(7).integers(0, 6, size=(20_000, 6))
    place = {"rate": 1e-2, "loss": "PPO", "lag": 2}
    low, high = np.quantile(known.sel(place).values[draws].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    spread = known.sel(place).std().item()
    assert found.sel(place)["low"].item() == pytest.approx(low, abs=0.1 * spread)
    assert found.sel(place)["high"].item() == pytest.approx(high, abs=0.1 * spread)
    known[..., 3] = np.nan
    assert all(np.isnan(ends).all() for ends in interval(known).values())


def by_loop(lags, score):
    """The first crossing of one half, between neighbours."""
    if score[0] <= 0:
        return math.nan
    place = [math.log2(lag + 1) for lag in lags]
    for i in range(1, len(lags)):
        if score[i] <= score[0] / 2:
            part = (score[i - 1] - score[0] / 2) / (score[i - 1] - score[i])
            return 2 ** (place[i - 1] + part * (place[i] - place[i - 1])) - 1
    return math.inf


def test_where_half_is_lost():
    """By hand, and against a loop: falling, rising again, never falling, and without an outcome at the first lag."""
    assert halved_at([0, 1, 3], np.array([8.0, 6.0, 2.0])) == pytest.approx(2**1.5 - 1)
    lags = [0, 1, 2, 4, 8, 16]
    several = np.random.default_rng(2).normal(1.0, 0.6, size=(300, 6))
    found = halved_at(lags, several)
    expected = [by_loop(lags, score) for score in several]
    np.testing.assert_allclose(found, expected)
    assert np.isinf(expected).any()
    assert np.isnan(expected).any()
    assert halved_at(lags, np.array([4.0, -1.0, 3.0, 3.0, 3.0, 3.0])) < 1


def test_the_interval_of_the_lag():
    """Of each method; the interval has the lags of resampled seeds."""
    random = np.random.default_rng(3)
    fall = np.array([10.0, 9.0, 7.0, 3.0, 1.0])[:, None]
    runs = np.stack([fall + random.normal(size=(5, 8)), 10.0 + random.normal(size=(5, 8))])
    known = xr.DataArray(runs, {"lag": [0, 1, 4, 16, 64]}, dims=("loss", "lag", "seed"))
    found = half_lag(known.transpose("seed", "loss", "lag"))
    assert found["lag"].dims == ("loss",)
    assert found["lag"].values[1] == found["high"].values[1] == math.inf
    assert found["low"].values[0] < found["lag"].values[0] < found["high"].values[0]
    assert found["lag"].values[0] == pytest.approx(by_loop([0, 1, 4, 16, 64], runs[0].mean(axis=-1)))
    draws = random.integers(0, 8, size=(4000, 8))
    expected = [by_loop([0, 1, 4, 16, 64], runs[0][:, draw].mean(axis=-1)) for draw in draws]
    assert found["low"].values[0] == pytest.approx(np.quantile(expected, 0.025), rel=0.05)
    assert found["high"].values[0] == pytest.approx(np.quantile(expected, 0.975), rel=0.05)


def test_a_draw_without_an_outcome_at_the_first_lag_counts_as_zero():
    """Half of the seeds learn nothing there; where none does, there is no lag."""
    runs = np.array([[[-1.0, 9.0, -1.0, 9.0], [8.0, 8.0, 8.0, 8.0]], [[-1.0] * 4, [1.0] * 4]])
    found = half_lag(xr.DataArray(runs, {"lag": [0, 4]}, dims=("task", "lag", "seed")))
    assert (found["lag"].values[0], found["low"].values[0], found["high"].values[0]) == (math.inf, 0.0, math.inf)
    assert np.isnan(found["lag"].values[1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda x: at_best(x, "clip"), r"outcome has the dimensions \('rate', .* and not 'clip'"),
        (lambda x: at_best(x.isel(seed=[0]), "rate"), "outcome has 1 seeds: a setting is chosen on half of them"),
        (lambda x: interval(x, seed="run"), "and not 'run'"),
        (lambda x: interval(x, level=1.5), r"level=1\.5 lies outside \[0, 1\]"),
        (lambda x: interval(x, resamples=0), "resamples=0 is below 1"),
        (lambda x: half_lag(x.isel(lag=[0])), "two or more ascending lags"),
        (lambda x: half_lag(x.isel(lag=[2, 0])), "two or more ascending lags"),
        (lambda x: half_lag(x.assign_coords(lag=[-1, 2, 8])), "two or more ascending lags"),
        (lambda x: half_lag(x.assign_coords(lag=[0, np.nan, 8])), "two or more ascending lags"),
        (lambda x: interval(x.isel(seed=[])), "outcome is empty along 'seed': give at least one value"),
        (lambda x: half_lag(x.isel(seed=[])), "outcome is empty along 'seed'"),
        (lambda x: half_lag(x.drop_vars("lag")), r"outcome\['lag'\] is None: expected a coordinate"),
    ],
)
def test_errors(call, message):
    with pytest.raises(ValueError, match=message):
        call(outcomes())


@pytest.mark.parametrize(
    ("at", "first", "known"),
    [(1, 9.0, False), (2, 9.0, False), (3, 4.0, True), (0, 9.0, False)],
)
def test_a_run_that_is_not_a_number_hides_the_fall(at, first, known):
    """At a lag before the fall, its score may lie below half; after the fall it does not matter."""
    score = np.array([[10.0] * 4, [first] * 4, [3.0] * 4, [2.0] * 4])
    clean = half_lag(xr.DataArray(score.copy(), {"lag": [0, 2, 4, 8]}, dims=("lag", "seed")))
    score[at, 0] = math.nan
    found = half_lag(xr.DataArray(score, {"lag": [0, 2, 4, 8]}, dims=("lag", "seed")))
    for name in ("lag", "low", "high"):
        assert found[name] == clean[name] if known else math.isnan(found[name])
