"""Rows that are written in place, and rows that are views."""

import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import replay
from stellaris.replay import check, init, insert, rows, trajectory, update_weights, write
from stellaris.replay.rows import _write

LENGTH = 3
SCALAR = jax.ShapeDtypeStruct((), jnp.float32)

pytestmark = pytest.mark.usefixtures("unchecked")


def filled(memory="device"):
    """Three trajectories in four rows, with lengths 1, 2 and 3; values are ten times the rewards."""
    table = init({"reward": SCALAR, "value": SCALAR}, capacity=4, length=LENGTH, memory=memory)
    reward = np.arange(9, dtype=np.float32).reshape(3, 3)
    return insert(
        table,
        {"reward": reward, "value": 10 * reward},
        length=np.array([1, 2, 3]),
        weight=np.array([1.0, 2.0, 3.0], np.float32),
        version=np.array([5, 6, 7]),
    )


@pytest.mark.slow
@pytest.mark.parametrize("memory", ["device", "pinned_host"])
def test_one_column_of_some_rows(memory):
    """Lengths, weights, versions, numbers and the other column stay, and the steps after an end are zeros."""
    table = write(filled(memory), np.array([1, 0]), {"value": np.full((2, 3), 9.0, np.float32)})
    check(table)
    assert np.asarray(table.columns["value"]).tolist() == [[9, 0, 0], [9, 9, 0], [60, 70, 80], [0, 0, 0]]
    for one, other in zip(jax.tree.leaves(table)[1:], jax.tree.leaves(filled(memory))[1:], strict=True):
        if one.shape != (4, LENGTH):
            np.testing.assert_array_equal(one, other)
    np.testing.assert_array_equal(table.columns["reward"], filled(memory).columns["reward"])


def test_whole_trajectories():
    """Of a row that occurs twice the last counts; a trajectory is as old as before, so it makes room in its turn."""
    ones = np.ones((3, 2), np.float32)
    columns = {"reward": ones * [[1], [2], [3]], "value": -ones * [[1], [2], [3]]}
    columns = {name: column.astype(np.float32) for name, column in columns.items()}
    table = write(filled(), np.array([2, 0, 2]), columns, length=np.array([1, 2, 2]), weight=0.5, version=8)
    check(table)
    assert table.columns["reward"].tolist() == [[2, 2, 0], [3, 4, 0], [3, 3, 0], [0, 0, 0]]
    assert table.columns["value"][2].tolist() == [-3, -3, 0]
    assert table.length.tolist() == [2, 2, 2, 0]
    assert table.weight.tolist() == [0.5, 2, 0.5, 0]
    assert table.version.tolist() == [8, 6, 8, 0]
    assert table.number.tolist() == [0, 1, 2, -1]


@pytest.mark.parametrize(
    ("row", "steps", "length", "weight", "message"),
    [
        (3, 3, None, None, "an index is not a row of a trajectory in the table"),
        (-1, 3, None, None, "an index is not a row of a trajectory in the table"),
        (2, 2, None, None, "a trajectory's length is below 1 or above the number of steps given"),
        (2, 2, 0, None, "a trajectory's length is below 1 or above the number of steps given"),
        (2, 3, None, np.nan, "a weight is negative, not finite or above 1e30"),
    ],
)
def test_faults(row, steps, length, weight, message):
    """All stays as it is; only an invalid weight becomes 0."""
    given = dict.fromkeys(("reward", "value"), np.ones((1, steps), np.float32))
    table = write(filled(), np.array([row]), given, length=length, weight=weight)
    with pytest.raises(ValueError, match=message):
        check(table)
    if weight is None:
        jax.tree.map(np.testing.assert_array_equal, table._replace(faults=0), filled()._replace(faults=0))


def test_a_trajectory_that_does_not_fit_is_not_written():
    """The others are, also an earlier one of the same row: row 2 has three steps, and two are given."""
    two = np.full((3, 2), [[7], [8], [9]], np.float32)
    table = write(filled(), np.array([2, 0, 1]), {"value": two}, weight=np.array([4.0, 5.0, 6.0]), version=8)
    assert table.columns["value"].tolist() == [[8, 0, 0], [9, 9, 0], [60, 70, 80], [0, 0, 0]]
    assert (table.length.tolist(), table.weight.tolist()) == ([1, 2, 3, 0], [5, 6, 3, 0])
    assert table.version.tolist() == [8, 8, 7, 0]
    both = {"reward": two, "value": -two}
    table = write(table, np.array([1, 1, 2]), both, length=np.array([1, 4, 0]), weight=0.5)
    assert table.columns["value"].tolist() == [[8, 0, 0], [-7, 0, 0], [60, 70, 80], [0, 0, 0]]
    assert (table.length.tolist(), table.weight.tolist()) == ([1, 1, 3, 0], [5, 0.5, 3, 0])
    with pytest.raises(ValueError, match=r"`insert` replaced its weight by 0, `write` did not write it$"):
        check(table)


@pytest.mark.parametrize("dtype", [np.int8, np.uint8, np.uint16])
def test_rows_in_a_narrow_dtype(dtype):
    """Rows 7 and 9 are written although the dtype cannot hold the capacity, and row 120 is a fault."""
    table = insert(init({"reward": SCALAR}, capacity=65536, length=1), {"reward": np.ones((100, 1), np.float32)})
    table = write(table, np.array([7, 9], dtype), {"reward": np.full((2, 1), 9, np.float32)}, version=5)
    table = update_weights(table, np.array([7], dtype), np.array([3.0]))
    check(table)
    selection = replay.Selection(jnp.array([9, 8, 7], dtype), jnp.ones(3), jnp.int32(0))
    batch = replay.gather(table, selection, {"x": replay.Window("reward", 1)})
    assert batch.values["x"].tolist() == [[9], [1], [9]]
    assert table.version[jnp.array([0, 7, 8, 9])].tolist() == [0, 5, 0, 5]
    assert table.weight[jnp.array([0, 7, 8, 120])].tolist() == [1, 3, 1, 0]
    for change in (
        lambda table: write(table, np.array([120], dtype), {"reward": np.zeros((1, 1), np.float32)}),
        lambda table: update_weights(table, np.array([120], dtype), np.array([0.0])),
    ):
        changed = change(jax.tree.map(jnp.copy, table))
        with pytest.raises(ValueError, match="an index is not a row of a trajectory in the table"):
            check(changed)
        jax.tree.map(np.testing.assert_array_equal, changed._replace(faults=0), table._replace(faults=0))


@pytest.mark.parametrize("row", [2**32 + 1, -(2**32) + 1])
def test_a_row_outside_of_int32(row):
    """It is a fault, not row 1, also in a JAX array, whose values are not read."""
    with jax.enable_x64(True):
        table = write(filled(), jnp.array([row]), {"value": np.full((1, 3), 9, np.float32)})
        table = update_weights(table, jnp.array([row]), jnp.array([9.0]))
    with pytest.raises(ValueError, match="an index is not a row of a trajectory in the table"):
        check(table)
    jax.tree.map(np.testing.assert_array_equal, table._replace(faults=0), filled()._replace(faults=0))


@pytest.mark.parametrize(
    ("row", "columns", "settings", "message"),
    [
        ([0.0], {"value": np.ones((1, 3))}, {}, "row has dtype float32: expected integers"),
        ([0, 1], {"value": np.ones((1, 3))}, {}, "row has shape (2,): expected (1,), one for each trajectory"),
        ([0], {}, {}, "columns is empty: name at least one"),
        ([0], {"velue": np.ones((1, 3))}, {}, "column 'velue' is unknown: the table has reward, value"),
        ([0], {"value": np.ones((1, 3))}, {"length": 2}, "length is given, but column 'reward' is not"),
        ([0], {"value": np.ones((1, 4))}, {}, "columns have 4 steps: a trajectory of the table has 1 to 3"),
        ([0], {"value": np.ones((1, 3), int)}, {}, "column 'value' has dtype int32: the table has float32"),
        ([0], {"value": np.ones((1, 3))}, {"weight": np.ones(2)}, "weight has shape (2,): expected (1,)"),
        ([2**32], {"value": np.ones((1, 3))}, {}, "row has 4294967296: expected a whole number that int32 can hold"),
    ],
)
def test_errors(row, columns, settings, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        write(filled(), np.array(row), columns, **settings)


def test_rows_are_written_in_place():
    """A column of 4 MB stays where it is, and takes 4 kB with less than 100 kB beside it."""
    table = filled()
    place = table.columns["value"].unsafe_buffer_pointer()
    changed = write(table, jnp.array([0]), {"value": jnp.ones((1, 3))})
    assert table.columns["value"].is_deleted()
    assert changed.columns["value"].unsafe_buffer_pointer() == place
    large = jax.eval_shape(lambda: init({"x": jax.ShapeDtypeStruct((16,), jnp.float32)}, capacity=1024, length=64))
    row, new = jax.ShapeDtypeStruct((1,), jnp.int32), {"x": jax.ShapeDtypeStruct((1, 64, 16), jnp.float32)}
    memory = _write.lower(large, row, new, None, None, None, None).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= 1024 * 64 * 16 * 4
    assert memory.temp_size_in_bytes < 100_000


@pytest.mark.parametrize("memory", ["device", "pinned_host"])
def test_a_trajectory_is_a_view(memory):
    """It has the steps of its length, cannot be written to, and is what it was after the table has changed."""
    table = filled(memory)
    one = trajectory(table, 1)
    assert one.columns["reward"].tolist() == [3, 4]
    assert (one.weight, one.version, one.number) == (2.0, 6, 1)
    base = np.asarray(table.columns["reward"]).ctypes.data
    assert one.columns["reward"].ctypes.data == base + LENGTH * 4
    with pytest.raises(ValueError, match="read-only"):
        one.columns["reward"][0] = 7
    table = write(table, np.array([1]), {"reward": np.zeros((1, 3), np.float32)})
    assert one.columns["reward"].tolist() == [3, 4]
    assert trajectory(table, 1).columns["reward"].tolist() == [0, 0]


def test_a_row_without_a_trajectory():
    for row in (-1, 3):
        with pytest.raises(IndexError, match=f"row={row}: the table holds 3 trajectories, in rows from 0"):
            trajectory(filled(), row)
    table = jax.tree.map(lambda leaf: leaf[None], filled())
    with pytest.raises(ValueError, match="a sharded table has no rows of its own"):
        rows.trajectory(table, 0)
