"""Schedules as values: compared, saved, cut, and refused if they contradict themselves."""

import dataclasses

import numpy as np
import pytest

from stellaris.lab import Constant, Schedule, imposed

SCHEDULE = imposed(5, actors=2, data=Constant(1), gradients=Constant(2), minibatches=2)
#: The same, where another learner holds version 0.
HELD = dataclasses.replace(SCHEDULE, gradient_held=np.zeros((len(SCHEDULE.gradient_before), 1), np.int32))


def test_it_comes_back_from_a_file(tmp_path):
    SCHEDULE.save(tmp_path / "schedule.npz")
    again = Schedule.load(tmp_path / "schedule.npz")
    assert again == SCHEDULE
    assert again.digest == SCHEDULE.digest
    assert hash(again) == hash(SCHEDULE)


def test_costs_are_saved_compared_and_cut(tmp_path):
    costs = np.arange(11) * 0.5
    billed = dataclasses.replace(SCHEDULE, costs={"use": costs})
    billed.save(tmp_path / "schedule.npz")
    again = Schedule.load(tmp_path / "schedule.npz")
    assert again == billed
    assert billed != SCHEDULE
    assert billed.digest != SCHEDULE.digest
    assert again.first(4).costs["use"].tolist() == [0.0, 0.5, 1.0, 1.5, 2.0]
    with pytest.raises(ValueError, match="cost_use has 10 rows: expected 11, one per version"):
        dataclasses.replace(SCHEDULE, costs={"use": costs[:10]})


def test_the_order_of_price_sheets_does_not_matter():
    costs = {"use": np.arange(11.0), "hour": np.zeros(11)}
    one, other = (dataclasses.replace(SCHEDULE, costs=dict(order)) for order in (costs.items(), [*costs.items()][::-1]))
    assert one == other
    assert one.digest == other.digest
    assert len({one, other}) == 1


def test_another_is_not_equal():
    other = dataclasses.replace(SCHEDULE, piece_version=np.zeros_like(SCHEDULE.piece_version))
    assert other != SCHEDULE
    assert other.digest != SCHEDULE.digest
    assert imposed(5, actors=2) != SCHEDULE


@pytest.mark.parametrize(
    ("updates", "message"), [(0, "updates=0 is below 1"), (5, "updates=5: the schedule has only 4 updates")]
)
def test_the_first_updates_are_there(updates, message):
    whole = SCHEDULE.first(4)
    assert whole.first(4) == whole
    with pytest.raises(ValueError, match=message):
        whole.first(updates)


def test_the_first_updates_are_a_schedule_of_their_own():
    assert SCHEDULE.first(4) == imposed(2, actors=2, data=Constant(1), gradients=Constant(2), minibatches=2)


def test_it_prints_its_size():
    assert repr(SCHEDULE) == (f"Schedule(10 updates, 10 gradients, 5 batches, 10 pieces, digest={SCHEDULE.digest!r})")


@pytest.mark.parametrize(
    ("column", "value", "message"),
    [
        ("piece_version", 1, "piece_version refers to a row or a version that does not exist yet"),
        ("piece_slot", 2, r"piece_slot has values from 2 to 2: expected \[0, 2\)"),
        ("batch_pieces", 10, r"batch_pieces has values from 10 to 10: expected \[0, 10\)"),
        ("batch_pieces", 9, "batch_pieces refers to a row or a version that does not exist yet"),
        ("gradient_batch", 4, "gradient_batch refers to a row"),
        ("gradient_version", -1, "gradient_version refers to a row"),
        ("gradient_row", -5, "gradient_row has values from -5 to -5"),
        ("gradient_held", 99, "gradient_held refers to a row or a version"),
        ("update_batch", 4, "update_batch refers to a batch that does not exist yet"),
        ("update_batch", 2, "update_batch refers to a batch that does not exist yet"),
        ("update_batch", -3, "update_batch refers to a batch that does not exist yet"),
    ],
)
def test_what_cannot_have_happened_is_refused(column, value, message):
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(HELD, **{column: np.full_like(getattr(HELD, column), value)})


def test_columns_must_agree():
    with pytest.raises(ValueError, match="columns of one table differ in length"):
        dataclasses.replace(SCHEDULE, piece_slot=SCHEDULE.piece_slot[1:])
    with pytest.raises(TypeError, match="piece_slot has dtype int64: expected int32"):
        dataclasses.replace(SCHEDULE, piece_slot=SCHEDULE.piece_slot.astype(np.int64))
    with pytest.raises(ValueError, match="piece_before decreases"):
        dataclasses.replace(SCHEDULE, piece_before=SCHEDULE.piece_before[::-1].copy())


@pytest.mark.parametrize("content", [b"", b"no archive"])
def test_a_file_of_another_kind_is_refused(tmp_path, content):
    (tmp_path / "schedule.npz").write_bytes(content)
    with pytest.raises(ValueError, match="is not a schedule"):
        Schedule.load(tmp_path / "schedule.npz")


def test_a_damaged_file_is_refused(tmp_path):
    """Whichever byte is wrong. A byte that changes nothing, such as one of a date, does no harm."""
    path = tmp_path / "schedule.npz"
    SCHEDULE.save(path)
    whole = path.read_bytes()
    refused = 0
    for at in range(0, len(whole), 20):
        path.write_bytes(whole[:at] + bytes([whole[at] ^ 0x16]) + whole[at + 1 :])
        read = _read(path)
        assert read == SCHEDULE or f"{path} is not a schedule" in read
        refused += read != SCHEDULE
    assert refused > 0.6 * len(whole) / 20


def _read(path):
    """The schedule in a file, or the error's message."""
    try:
        return Schedule.load(path)
    except ValueError as error:
        return str(error)


def test_a_file_of_other_arrays_is_refused(tmp_path):
    """One array, and a schedule whose columns have another type."""
    one, wrong = tmp_path / "one.npy", tmp_path / "wrong.npz"
    np.save(one, np.zeros(3))
    np.savez(wrong, slots=np.int32(2), **{**SCHEDULE.columns, "piece_slot": np.zeros(10)})
    for path, message in ((one, "is not a schedule"), (wrong, "is not a schedule: piece_slot has dtype float64")):
        with pytest.raises(ValueError, match=message):
            Schedule.load(path)
