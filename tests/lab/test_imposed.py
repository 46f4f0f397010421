"""Schedules with an imposed lag."""

import numpy as np
import pytest

from stellaris.lab import Constant, Maximum, Sawtooth, imposed


@pytest.mark.parametrize("lag", [0, 1, 3])
def test_a_constant_lag_has_no_spread(lag):
    schedule = imposed(10, actors=2, data=Constant(lag))
    assert schedule.data_lag.tolist() == [min(batch, lag) for batch in range(10)]
    assert schedule.lookback == lag
    assert schedule.gradient_lag.size == 0


def test_a_sawtooth_renews_the_policy_every_k_batches():
    schedule = imposed(7, actors=1, data=Sawtooth(3))
    assert schedule.piece_version.tolist() == [0, 0, 0, 3, 3, 3, 6]


def test_a_maximum_is_drawn_up_to_it():
    schedule = imposed(2000, actors=1, data=Maximum(4, seed=1))
    assert np.bincount(schedule.data_lag.astype(int)[4:], minlength=5) == pytest.approx([400] * 5, rel=0.2)


def test_gradients_have_an_age_of_their_own():
    schedule = imposed(3, actors=2, data=Constant(1), gradients=Constant(2), minibatches=4)
    assert schedule.updates == 12
    assert schedule.gradient_lag.tolist() == [0, 1, *[2] * 10]
    # The batch before, counted in versions: four per batch.
    assert schedule.piece_version.tolist() == [0, 0, 0, 0, 4, 4]
    assert schedule.gradient_row.tolist() == [0, 1, 2, 3] * 3


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"updates": 0, "actors": 1}, "updates=0"),
        ({"updates": 1, "actors": 1.5}, "actors=1.5"),
        ({"updates": 1, "actors": 1, "data": 3}, r"data=3 is not a Lag: pass Constant\(4\)"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        imposed(**arguments)


@pytest.mark.parametrize(("pattern", "k"), [(Constant, -1), (Sawtooth, 0), (Maximum, 1.5)])
def test_a_pattern_checks_its_number(pattern, k):
    with pytest.raises((TypeError, ValueError), match=f"k={k}"):
        pattern(k)
