"""Schedules with an imposed lag."""

import math

import numpy as np
import pytest

from stellaris.lab import Constant, Logged, Maximum, Mixed, Sawtooth, imposed


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


def test_gradients_in_groups_make_a_version_together():
    """The age counts gradients: each is computed on the version that the gradients before the last three had made."""
    schedule = imposed(2, actors=1, gradients=Constant(3), minibatches=4, group=2)
    assert schedule.updates == 4
    assert schedule.gradient_before.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert schedule.gradient_version.tolist() == [0, 0, 0, 0, 0, 1, 1, 2]
    assert schedule.gradient_batch.tolist() == [0] * 4 + [1] * 4
    assert schedule.gradient_row.tolist() == [0, 1, 2, 3] * 2
    assert schedule.piece_version.tolist() == [0, 2]


def test_small_integers_of_numpy():
    schedule = imposed(np.int8(100), actors=np.int8(1), gradients=Constant(1), minibatches=np.int8(100))
    assert len(schedule.gradient_row) == 10_000


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"updates": 1, "actors": 1, "minibatches": 4, "group": 3}, "group=3 does not divide minibatches=4"),
        ({"updates": 0, "actors": 1}, "updates=0"),
        ({"updates": 1, "actors": 1.5}, "actors=1.5"),
        ({"updates": 1, "actors": 1, "data": 3}, r"data=3 is not a Lag: pass Constant\(4\)"),
        ({"updates": 1, "actors": 1, "data": Constant}, r"data=<class .*Constant'> is not a Lag: pass Constant\(4\)"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises((TypeError, ValueError), match=message):
        imposed(**arguments)


@pytest.mark.parametrize(("pattern", "k"), [(Constant, -1), (Sawtooth, 0), (Maximum, 1.5)])
def test_a_pattern_checks_its_number(pattern, k):
    with pytest.raises((TypeError, ValueError), match=f"k={k}"):
        pattern(k)


@pytest.mark.parametrize("actors", [1, 3, 7, 16])
def test_a_fractional_age_is_the_mean_over_the_actors(actors):
    """Rounded down to a multiple of 1/actors; the ages of two actors differ by 1 at most."""
    ages = np.arange(0, 4 * actors) / actors
    schedule = imposed(len(ages) + 4, actors=actors, data=Logged([*[4.0] * 4, *ages]))
    assert schedule.data_lag[4:] == pytest.approx(ages)
    pieces = schedule.piece_version.reshape(-1, actors)
    assert np.ptp(pieces, axis=1).max() == (1 if actors > 1 else 0)
    between = imposed(5, actors=2, data=Logged([0.74]))
    assert between.data_lag.tolist() == [0.0, 0.5, 0.5, 0.5, 0.5]


def test_logged_ages_start_again():
    assert Logged([2, 0, 1]).ages(7).tolist() == [2, 0, 1, 2, 0, 1, 2]
    whole = imposed(3, actors=1, gradients=Logged([1]), minibatches=2)
    assert whole.gradient_lag.tolist() == [0, 1, 1, 1, 1, 1]


@pytest.mark.parametrize(
    ("ages", "message"),
    [([], "values is empty"), ([0, -1], r"values\[1\]=-1 is not an age"), ([np.inf], r"values\[0\]=inf is not an age")],
)
def test_logged_ages_are_checked(ages, message):
    with pytest.raises(ValueError, match=message):
        Logged(ages)


@pytest.mark.parametrize(
    ("ages", "message"),
    [(5, r"values=5 is not a sequence of ages: pass \[5\]"), (["1"], r"values\[0\]='1' is not a number")],
)
def test_logged_ages_are_a_sequence_of_numbers(ages, message):
    with pytest.raises(TypeError, match=message):
        Logged(ages)


def test_the_ages_of_gradients_are_whole():
    with pytest.raises(ValueError, match=r"gradients=.* has the age 0.5: the ages of gradients, and in Mixed, are"):
        imposed(2, actors=1, gradients=Logged([0.5]))


def test_a_batch_mixes_the_ages_of_its_actors():
    """The actors take turns; each follows its own pattern."""
    schedule = imposed(9, actors=5, data=Mixed([Constant(0), Constant(4), Sawtooth(3)]))
    versions = schedule.piece_version.reshape(9, 5)
    assert versions[:, 0].tolist() == versions[:, 3].tolist() == [*range(9)]
    assert versions[:, 1].tolist() == versions[:, 4].tolist() == [0, 0, 0, 0, 0, 1, 2, 3, 4]
    assert versions[:, 2].tolist() == [0, 0, 0, 3, 3, 3, 6, 6, 6]
    assert schedule.data_lag[6:] == pytest.approx([(0 + 4 + age + 0 + 4) / 5 for age in (0, 1, 2)])
    assert schedule.lookback == 4
    assert imposed(4, actors=3, data=Mixed([Constant(2)])) == imposed(4, actors=3, data=Constant(2))
    renewed = imposed(6, actors=2, data=[Mixed([Constant(3), Constant(1)]), Constant(0)])
    assert renewed.piece_version[renewed.batch_pieces][5].tolist() == [[2, 5], [4, 5]]


def test_mixed_ages_are_checked():
    with pytest.raises(ValueError, match="lags is empty"):
        Mixed([])
    with pytest.raises(TypeError, match=r"lags\[1\]=3 is not a Lag: pass Constant"):
        Mixed([Constant(0), 3])
    with pytest.raises(TypeError, match=r"gradients=Mixed\(.* is not a Lag: pass Constant"):
        imposed(2, actors=2, gradients=Mixed([Constant(0)]))
    with pytest.raises(
        ValueError, match=r"lags\[1\]=.* has the age 0.5: the ages of gradients, and in Mixed, are whole"
    ):
        imposed(2, actors=2, data=Mixed([Constant(0), Logged([0.5])]))


def test_a_lag_for_each_piece_renews_the_policy_within_a_fragment():
    schedule = imposed(6, actors=2, data=[Constant(3), Constant(1), Constant(0)])
    assert schedule.batch_pieces.shape == (6, 2, 3)
    versions = schedule.piece_version[schedule.batch_pieces]
    assert versions[5].tolist() == [[2, 4, 5]] * 2
    assert versions[1].tolist() == [[0, 0, 1]] * 2
    assert schedule.data_lag[3:] == pytest.approx([4 / 3] * 3)
    # The pieces of a fragment follow each other in one environment.
    slots = schedule.piece_slot[schedule.batch_pieces]
    assert (slots == np.arange(2)[None, :, None]).all()
    assert (np.diff(schedule.batch_pieces, axis=2) > 0).all()
    assert len(np.unique(schedule.piece_noise)) == 36


def test_one_piece_is_the_whole_fragment():
    assert imposed(4, actors=3, data=[Constant(2)]) == imposed(4, actors=3, data=Constant(2))


def test_a_sequence_of_lags_is_checked():
    with pytest.raises(ValueError, match="data is empty"):
        imposed(2, actors=1, data=[])
    with pytest.raises(TypeError, match="data=3 is not a Lag"):
        imposed(2, actors=1, data=[Constant(1), 3])
    with pytest.raises(TypeError, match="data=None is not a Lag"):
        imposed(2, actors=1, data=None)


@pytest.mark.parametrize(
    ("ages", "message"),
    [
        ([math.nan] * 4, r"ages\[0\]=nan: expected finite ages"),
        ([0, 0, -1, 0], r"ages\[2\]=-1: expected finite ages of at least 0"),
        ([1, 2, 3], r"ages of shape \(3,\): expected 4 ages"),
    ],
)
def test_ages_of_a_lag_of_the_users_are_checked(ages, message):
    class Own:
        def ages(self, n):
            return ages

    with pytest.raises(ValueError, match=f"data=.*Own.* gave {message}"):
        imposed(4, actors=2, data=Own())
    with pytest.raises(ValueError, match=f"gradients=.*Own.* gave {message}"):
        imposed(2, actors=2, gradients=Own(), minibatches=2)


def test_a_lag_of_the_users_may_return_a_list():
    class Own:
        def ages(self, n):
            return [1] * n

    assert imposed(4, actors=2, data=Own()) == imposed(4, actors=2, data=Constant(1))
    assert imposed(4, actors=2, gradients=Own()) == imposed(4, actors=2, gradients=Constant(1))
