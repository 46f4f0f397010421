"""Single rows of a table: trajectories written over others in place, and read as views."""

import functools
from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.replay import table as tables
from stellaris.replay import weight_tree
from stellaris.replay.table import BAD_INDEX, BAD_LENGTH, Table
from stellaris.types import Array, NDArray, Scalar


class Trajectory(NamedTuple):
    """One trajectory of a table."""

    columns: dict[str, NDArray]  #: `[length, ...]` of each column.
    weight: float
    version: int  #: version of the policy that sampled the trajectory.
    number: int  #: insertion number.


def trajectory(table: Table, row: int) -> Trajectory:
    """Returns one trajectory of a table.

    In host memory (a table on the CPU, or one of `memory="pinned_host"`) its columns are read-only views of the table,
    which stay as they are: while a view is held, the next change of the table copies the columns. From a device only
    the row is copied.

    Args:
      table: a table that is not sharded.
      row: the trajectory's row, such as one of `Selection.row`.

    Raises:
      ValueError: if the table is sharded.
      IndexError: if the table holds no trajectory in this row.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris.replay import init, insert
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=3)
      >>> table = insert(table, {"reward": jnp.ones((1, 3))}, length=jnp.array([2]), version=7)
      >>> one = trajectory(table, 0)
      >>> one.columns["reward"].tolist(), one.version
      ([1.0, 1.0], 7)
    """
    if table.length.ndim != 1:
        raise ValueError(f"table has arrays of shape {table.length.shape}: a sharded table has no rows of its own")
    if not 0 <= row < int(table.size):
        raise IndexError(f"row={row}: the table holds {int(table.size)} trajectories, in rows from 0")
    length = int(table.length[row])
    return Trajectory(
        {name: _row(column, row)[:length] for name, column in table.columns.items()},
        float(table.weight[row]),
        int(table.version[row]),
        int(table.number[row]),
    )


def _row(column: jax.Array, row: int) -> NDArray:
    """Returns a row, as a view if the column is in host memory."""
    in_host = column.sharding.memory_kind == "pinned_host" or {one.platform for one in column.devices()} == {"cpu"}
    found = np.asarray(column)[row] if in_host else np.asarray(column[row])
    found.flags.writeable = False
    return found


def write(
    table: Table,
    row: Int[Array, " k"],
    columns: Mapping[str, Array],
    *,
    length: Int[Array, " k"] | Int[Array, ""] | int | None = None,
    weight: Float[Array, " k"] | Scalar | None = None,
    version: Int[Array, " k"] | Int[Array, ""] | int | None = None,
    axis: str | None = None,
) -> Table:
    """Writes over trajectories in place, whole or some of their columns; donates the table, so use the one returned.

    Use it to correct a dataset, or to store new values or targets of old trajectories. Insertion numbers stay, so a
    trajectory is as old as before.

    Args:
      table: the table to change; within `shard_map`, this device's shard of it.
      row: `[k]` rows, such as `Selection.row`. If a row occurs twice, the last trajectory whose length fits counts.
      columns: `[k, steps, ...]` of the columns to write; `steps` is at most the table's length. The others stay.
      length: `[k]` or one for all, the new lengths in steps, which need all columns; by default lengths stay, and
        `steps` must reach each of them. Steps after a trajectory's end become zeros.
      weight: `[k]` or one for all, from 0 to 1e30; by default weights stay.
      version: `[k]` or one for all; by default versions stay.
      axis: the mesh axis of the shards, within `shard_map`, where all devices get the same arguments; None for one
        table.

    Returns:
      The table. An invalid row, length or weight sets a flag: see `check`. A trajectory whose row or length is invalid
      is not written.

    Raises:
      TypeError: if a column's dtype differs from the table's, or a row, length or version is not whole.
      ValueError: if `columns` is empty, a column is unknown or its shape does not fit, the table's dtype cannot hold a
        number of a NumPy array, `length` is given without all columns, or the table is sharded.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris.replay import init, insert
      >>> scalar = jax.ShapeDtypeStruct((), jnp.float32)
      >>> table = init({"reward": scalar, "value": scalar}, capacity=2, length=3)
      >>> table = insert(table, {"reward": jnp.ones((2, 3)), "value": jnp.zeros((2, 3))})
      >>> table = write(table, jnp.array([1]), {"value": jnp.array([[3.0, 2.0, 1.0]])})
      >>> table.columns["value"].tolist()
      [[0.0, 0.0, 0.0], [3.0, 2.0, 1.0]]
    """
    tables.check_one(table)
    check_write(table, row, columns, length=length, weight=weight, version=version)
    changed: Table = _write(table, *tables.owned((row, dict(columns), length, tables.real(weight), version)), axis)
    return changed


def check_write(
    table: Table, row: Array, columns: Mapping[str, Array], *, length: Any, weight: Any, version: Any
) -> None:
    """Raises the errors of `write` for its arguments.

    Args:
      table: only its shapes and dtypes are read.
      row: the rows to write to.
      columns: the columns to write, as for `write`.
      length: new length of each trajectory, or None.
      weight: new weight of each trajectory, or None.
      version: new version of each trajectory, or None.
    """
    checks.integers(row=row)
    tables.check_int32(row=row)
    if not columns:
        raise ValueError("columns is empty: name at least one")
    if unknown := sorted({*columns} - {*table.columns}):
        raise ValueError(f"column {unknown[0]!r} is unknown: the table has {', '.join(table.columns)}")
    if length is not None and (missing := sorted({*table.columns} - {*columns})):
        raise ValueError(f"length is given, but column {missing[0]!r} is not: a new length needs all columns")
    given = {
        "length": length,
        "weight": 0.0 if weight is None else weight,
        "version": 0 if version is None else version,
    }
    written = table._replace(columns={name: table.columns[name] for name in columns})
    tables.check_batch(written, columns, **given, removal="oldest")
    batch = len(next(iter(columns.values())))
    if np.shape(row) != (batch,):
        raise ValueError(f"row has shape {np.shape(row)}: expected ({batch},), one for each trajectory")


@functools.partial(jax.jit, donate_argnums=0, static_argnums=6)
def _write(
    table: Table, row: Any, columns: dict[str, Any], length: Any, weight: Any, version: Any, axis: str | None
) -> Table:
    row = tables.int32_rows(row)
    length, weight, version = (
        None if given is None else jnp.broadcast_to(jnp.asarray(given), row.shape)
        for given in (length, weight, version)
    )
    if axis is not None:
        row = row - jax.lax.axis_index(axis) * table.capacity
    there = (row >= 0) & (row < table.size)
    found = there if axis is None else jax.lax.psum(there.astype(jnp.int32), axis) > 0  # type: ignore[no-untyped-call]
    steps = next(iter(columns.values())).shape[1]
    whole = table.length[jnp.where(there, row, 0)] if length is None else length.astype(jnp.int32)
    fits = (whole >= (0 if length is None else 1)) & (whole <= steps)
    take, place, count = _last_of_each(jnp.where(there & fits, row, table.capacity), table.capacity)
    kept = jnp.arange(steps) < whole[:, None]
    new = {
        name: tables.set_rows(table.columns[name], place, jnp.asarray(values)[take], kept[take], count)
        for name, values in columns.items()
    }
    given = table.weights[0].at[row].get(mode="clip") if weight is None else weight
    given, bad_weight = tables.sound(given, fits & there)
    leaf = jnp.where(place < table.capacity, place, len(table.weights[0]))
    versions = table.version
    if version is not None:
        versions = versions.at[place].set(version[take].astype(jnp.int32), mode="drop")
    bad_length = jnp.where((fits | ~there).all(), 0, BAD_LENGTH)
    return table._replace(
        columns={**table.columns, **new},
        length=table.length.at[place].set(whole[take], mode="drop"),
        weights=weight_tree.update(table.weights, leaf, given[take]),
        version=versions,
        faults=table.faults | jnp.where(found.all(), 0, BAD_INDEX) | bad_length | bad_weight,
    )


def _last_of_each(row: jax.Array, capacity: int) -> tuple[jax.Array, jax.Array, jax.Array]:
    """Returns which trajectories to write, to which rows, and how many: the last one of each row below `capacity`.

    The ones to write come first; the rows of the others are `capacity`.
    """
    order = jnp.argsort(row, stable=True)
    ordered = row[order]
    last = jnp.concatenate([ordered[1:] != ordered[:-1], jnp.ones(1, bool)])
    place = jnp.where(last, ordered, capacity)
    first = jnp.argsort(place, stable=True)
    return order[first], place[first], (place < capacity).sum()
