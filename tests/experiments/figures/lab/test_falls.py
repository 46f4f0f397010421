"""The falls of a run by hand: of a return, of the effective sample fraction, and of the parameters to NaN."""

import numpy as np
import pytest

from experiments.figures.lab.falls import fallen, falls, windowed

UPDATES = np.arange(100)


def test_a_fall_is_one_that_lasts():
    """The mean of 16 updates stays below half of its best; a return that recovers or never falls does not count."""
    lost = np.where(UPDATES < 50, 10.0, 1.0)
    recovers = np.where(abs(UPDATES - 50) < 20, 1.0, 10.0)
    # With n of the 16 updates after the 50th the mean is 10 - 9 n / 16: below 5 from n = 9 on, so after update 59.
    assert fallen(np.stack([lost, recovers, 10.0 + UPDATES])).tolist() == [59, 0, 0]


def test_a_negative_return_falls_above_the_floor():
    """From -100 to -480 of at least -500 is a fall to a twentieth; from -100 to -250 it is none."""
    returns = np.stack([np.where(UPDATES < 50, -100.0, low) for low in (-480.0, -250.0)])
    fractions, loss = np.ones_like(returns), np.zeros_like(returns)
    found = falls(returns, fractions, loss, floor=-500.0)
    # 400 - 380 n / 16 is below 200 from n = 9 on.
    assert found.fell.tolist() == [59, 0]
    assert found.best.tolist() == pytest.approx([-100.0, -100.0])
    assert falls(returns, fractions, loss, floor=0.0).fell.tolist() == [0, 0]


def test_windows_without_an_episode_neither_fall_nor_recover():
    """A collapsed policy whose episodes end every 31 updates stays collapsed; a good one with a gap does not fall."""
    failing = np.where(UPDATES < 40, 10.0, np.where(UPDATES % 31 == 0, 0.0, np.nan))
    gap = np.where(abs(UPDATES - 50) < 20, np.nan, 10.0)
    late = np.where(UPDATES < 30, np.nan, 10.0)
    never = np.full(100, np.nan)
    # Update 63 is the first to end episodes again: the window's older ones have left it after update 56.
    assert fallen(np.stack([failing, gap, late, never])).tolist() == [63, 0, 0, 0]
    assert np.isnan(windowed(late)).tolist() == [True] * 15 + [False] * 70
    found = falls(np.stack([late, never]), np.ones((2, 100)), np.zeros((2, 100)), floor=0.0)
    assert found.best[0] == 10.0
    assert np.isnan(found.best[1])


def test_low_fractions_are_counted_before_the_fall():
    returns = np.stack([np.where(UPDATES < 50, 10.0, 0.0), np.full(100, 10.0)])
    fractions = np.where((UPDATES >= 48) & (UPDATES < 90), 0.4, 1.0)
    found = falls(returns, np.stack([fractions] * 2), np.zeros((2, 100)), floor=0.0)
    # The return falls after update 59; updates 49 to 58 are 10, of all 42 with few effective samples.
    assert found.fell.tolist() == [59, 0]
    assert found.effective_low.tolist() == [10, 42]
    assert found.effective_fell.tolist() == [0, 0]  # 0.4 is no half of 1, and it recovers


def test_parameters_that_become_nan_have_an_update():
    loss = np.stack([np.where(UPDATES < 70, 1.0, np.nan), np.where(UPDATES == 70, np.inf, 1.0), np.ones(100)])
    assert falls(np.ones((3, 100)), np.ones((3, 100)), loss, floor=0.0).diverged.tolist() == [71, 0, 0]
