"""Windows of a trajectory's columns, padded to one length: the contents of a training batch."""

import functools
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from stellaris._core import checks
from stellaris.replay.memory import run_where_stored
from stellaris.replay.selection import Selection
from stellaris.replay.table import Table, check_int32, check_one, int32_rows, owned, unfit
from stellaris.replay.whole_numbers import below
from stellaris.types import Array, at_least_float32

_INT32 = np.iinfo(np.int32)


@dataclass(frozen=True)
class Window:
    """`length` steps of a column, starting `offset` steps after the sample's step (`step` of `gather`).

    Args:
      column: name of a column of the table.
      length: number of steps.
      offset: steps from the sample's step to the window's first step; negative for earlier steps. A history of ten
        steps that ends with the sample's step has -9.
      pad: where padding goes if the trajectory lacks some of these steps: before the steps that exist (`"head"`) or
        after them (`"tail"`).
      value: the value of the padding.
      return_to_go: None for the column itself. A discount replaces each step's value by the discounted sum from that
        step to the trajectory's end: the return to go, if the column is the reward.
    """

    column: str
    length: int
    offset: int = 0
    pad: Literal["head", "tail"] = "tail"
    value: float | int = 0.0
    return_to_go: float | None = None

    def __post_init__(self) -> None:
        # Windows are compared by value, and one NaN is not equal to another unless both are the same object.
        if isinstance(self.value, float) and math.isnan(self.value):
            object.__setattr__(self, "value", math.nan)


class Gathered(NamedTuple):
    """A training batch."""

    values: dict[str, jax.Array]  #: `[k, length, ...]` of each window.
    mask: dict[str, Bool[jax.Array, "k length"]]  #: true where a step is not padding.
    length: Int[jax.Array, " k"]  #: steps of each trajectory.
    version: Int[jax.Array, " k"]  #: version of the policy that sampled each trajectory.


def random_steps(
    table: Table, selection: Selection, key: jax.Array, *, axis: str | None = None
) -> Int[jax.Array, " k"]:
    """Draws one step of each selected trajectory, uniformly.

    Args:
      table: the table of the selection; within `shard_map`, this device's shard of it.
      selection: the selected trajectories.
      key: the key of the draws; the same on all devices.
      axis: the mesh axis of the shards, within `shard_map`.

    Returns:
      Steps `[k]`; a trajectory's first step is 0.

    Raises:
      TypeError: if `key` is not one key.
      ValueError: if the table is sharded.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris.replay import init, insert, select
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=9)
      >>> table = insert(table, {"reward": jnp.zeros((1, 9))}, length=jnp.array([3]))
      >>> drawn = select(table, jax.random.key(0), 100)
      >>> sorted({*random_steps(table, drawn, jax.random.key(1)).tolist()})
      [0, 1, 2]
    """
    check_one(table)
    checks.key(key=key)
    shard, row = _place(table, selection.row, axis)
    length = table.length[row]
    if axis is not None:
        length = jax.lax.psum(jnp.where(shard, length, 0), axis)  # type: ignore[no-untyped-call]
    return below(key, jnp.maximum(length, 1), length.shape)


def gather(
    table: Table,
    selection: Selection,
    windows: Mapping[str, Window],
    *,
    step: Int[Array, " k"] | int = 0,
    axis: str | None = None,
) -> Gathered:
    """Gathers windows of the selected trajectories, each padded to the window's length.

    Args:
      table: the table of the selection; within `shard_map`, this device's shard of it.
      selection: the selected trajectories.
      windows: the windows, by their names in the batch.
      step: `[k]` or one for all: the step of each sample in its trajectory. See `random_steps`.
      axis: the mesh axis of the shards, within `shard_map`. Each device then gets its part of the batch, `k / devices`
        rows in order.

    Returns:
      The batch. If the selection has a fault, every mask is false.

    Raises:
      TypeError: if a window's length or offset, or a step, is not whole.
      ValueError: if `windows` is empty, a column is unknown, a window is longer than the table's trajectories, its
        padding does not fit into the column's dtype, a step or an offset exceeds int32, the batch cannot be split
        evenly over the devices, or the table is sharded.

    Source:
      GEAR (ICML 2023), subscription patterns: offset, length, padding at head or tail.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris.replay import init, insert, select
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=1, length=4)
      >>> table = insert(table, {"reward": jnp.array([[1.0, 2.0, 3.0]])})
      >>> windows = {
      ...     "history": Window("reward", 3, offset=-2, pad="head", value=-1.0),
      ...     "return": Window("reward", 2, return_to_go=0.5),
      ... }
      >>> batch = gather(table, select(table, jax.random.key(0), 1), windows, step=1)
      >>> batch.values["history"].tolist(), batch.mask["history"].tolist(), batch.values["return"].tolist()
      ([[-1.0, 1.0, 2.0]], [[False, True, True]], [[3.5, 3.0]])
    """
    check_one(table)
    check_windows(table, selection, windows, step)
    count = selection.row.shape[0]
    if axis is not None and count % jax.lax.axis_size(axis):
        devices = jax.lax.axis_size(axis)
        raise ValueError(
            f"selection has {count} trajectories, which cannot be split evenly over {devices} devices; select a "
            f"multiple of {devices}"
        )
    batch: Gathered = _gather(table, selection, tuple(windows.items()), owned(step), axis)
    return batch


@functools.partial(jax.jit, static_argnums=(2, 4))
def _gather(
    table: Table, selection: Selection, windows: tuple[tuple[str, Window], ...], step: Any, axis: str | None
) -> Gathered:
    here, row = _place(table, selection.row, axis)
    here &= selection.faults == 0
    step = jnp.broadcast_to(jnp.asarray(step, jnp.int32), row.shape)
    length = jnp.where(here, table.length[row], 0)
    values = {}
    mask = {}
    for name, window in windows:
        source, there = span(window, step, length)
        column = table.columns[window.column]
        rows = row
        if window.return_to_go is not None:
            whole = jnp.ones((len(row), column.shape[1]), bool)
            column = _slices(column, row, jnp.zeros_like(row), whole, Window(window.column, column.shape[1]))
            column = return_to_go(column, table.length[row], discount=window.return_to_go)
            rows = jnp.arange(len(row))
        values[name] = _slices(column, rows, source, there, window)
        mask[name] = there
    batch = Gathered(values, mask, length, jnp.where(here, table.version[row], 0))
    if axis is None:
        return batch
    return _scattered(batch, {name: window.value for name, window in windows}, axis)


def span(window: Window, step: Any, length: Any) -> tuple[Any, Any]:
    """Returns the step `[k]` at which each window begins, and whether each of its steps exists, `[k, window.length]`.

    Args:
      window: the window.
      step: `[k]`, the step of each sample, of NumPy or JAX.
      length: `[k]`, the steps of each trajectory.
    """
    offset, whole = int(window.offset), int(window.length)  # sums of NumPy's small integers would wrap
    # Steps so far outside of every trajectory that these sums would not fit into int32 are moved nearer.
    begin = step.clip(_INT32.min - min(offset, 0), _INT32.max - max(offset + whole, 0)) + offset
    first = begin.clip(0)
    many = ((begin + whole).clip(None, length) - first).clip(0, whole)
    place = np.arange(whole)
    if window.pad == "tail":
        return first, place < many[:, None]
    gap = whole - many
    return first - gap, place >= gap[:, None]


def _slices(column: jax.Array, row: jax.Array, source: jax.Array, there: jax.Array, window: Window) -> jax.Array:
    """`window.length` steps of some rows from step `source`, with padding where `there` is false; on the device."""
    step = jnp.clip(source[:, None] + jnp.arange(window.length), 0, column.shape[1] - 1)
    found = jax.device_put(run_where_stored(_steps, column, row, step), jax.memory.Space.Device)
    return _where(there, found, window.value)


def _steps(column: jax.Array, row: jax.Array, step: jax.Array) -> jax.Array:
    """Steps `[k, length]` of rows `[k]`."""
    # Steps are flattened, so that each step is one contiguous copy instead of one copy per number.
    flat = column.reshape(*column.shape[:2], -1)
    found = flat.at[row[:, None], step].get(mode="promise_in_bounds")
    return found.reshape(*step.shape, *column.shape[2:])


def _where(there: jax.Array, values: jax.Array, padding: float | int) -> jax.Array:
    """Values where `there` is true, padding elsewhere."""
    kept = there.reshape(*there.shape, *[1] * (values.ndim - there.ndim))
    return jnp.where(kept, values, jnp.asarray(padding, values.dtype))


def return_to_go(
    values: Float[Array, "k steps *rest"], length: Int[Array, " k"], *, discount: float = 1.0
) -> Float[jax.Array, "k steps *rest"]:
    """Computes the discounted sum from each step to the trajectory's end: `g[t] = x[t] + discount * g[t + 1]`.

    Args:
      values: `[k, steps, ...]` such as rewards.
      length: `[k]`, the steps of each trajectory; later steps are ignored, and their sums are 0.
      discount: between 0 and 1.

    Returns:
      The sums, in the dtype of `values`; they accumulate in float32 at least.

    Raises:
      TypeError: if `values` is not floating point.
      ValueError: if `discount` is not between 0 and 1.

    Source:
      Decision Transformer (Chen et al. 2021): returns to go, there with a discount of 1.

    Example:
      >>> import jax.numpy as jnp
      >>> return_to_go(jnp.array([[1.0, 2.0, 4.0, 100.0]]), jnp.array([3]), discount=0.5).tolist()
      [[3.0, 4.0, 4.0, 0.0]]
    """
    checks.floats(values=values)
    checks.between_zero_and_one(discount=discount)
    steps = jnp.arange(values.shape[1])
    kept = steps < jnp.asarray(length)[:, None]

    values = jnp.asarray(values)
    wide = at_least_float32(values.dtype)

    def back(after: jax.Array, now: jax.Array) -> tuple[jax.Array, jax.Array]:
        total = now.astype(wide) + jnp.asarray(discount, wide) * after
        return total, total.astype(values.dtype)

    ordered = jnp.moveaxis(_where(kept, values, 0), 1, 0)
    _, sums = jax.lax.scan(back, jnp.zeros_like(ordered[0], wide), ordered, reverse=True)
    return jnp.moveaxis(sums, 0, 1)


def _place(table: Table, index: jax.Array, axis: str | None) -> tuple[jax.Array, jax.Array]:
    """Whether each trajectory is in this shard, and its row there."""
    index = int32_rows(index)
    if axis is None:
        return (index >= 0) & (index < table.capacity), index
    return index // table.capacity == jax.lax.axis_index(axis), index % table.capacity


def _scattered(batch: Gathered, padding: Mapping[str, float], axis: str) -> Gathered:
    """Each device's part of the batch, summed over devices: a row's owner has its values, the others have zeros."""

    def part(x: jax.Array) -> jax.Array:
        whole = x.astype(jnp.uint8) if x.dtype == bool else x
        summed: jax.Array = jax.lax.psum_scatter(whole, axis, tiled=True)  # type: ignore[no-untyped-call]
        return summed.astype(x.dtype)

    mask = jax.tree.map(part, batch.mask)
    values = {}
    for name, value in batch.values.items():
        values[name] = _where(mask[name], part(_where(batch.mask[name], value, 0)), padding[name])
    return Gathered(values, mask, part(batch.length), part(batch.version))


def check_windows(table: Table, selection: Selection, windows: Mapping[str, Window], step: Any) -> None:
    """Raises the errors of `gather` for its arguments.

    Args:
      table: only its shapes and dtypes are read.
      selection: the selected trajectories; only their number is read.
      windows: the windows to gather.
      step: the step of each sample; its values are read unless it is a JAX array.
    """
    if not windows:
        raise ValueError("windows is empty: name at least one")
    longest = next(iter(table.columns.values())).shape[1]
    for name, window in windows.items():
        _check(name, window, table, longest)
    step = step if isinstance(step, jax.Array) else np.asarray(step)
    checks.integers(step=step)
    check_int32(step=step)
    count = selection.row.shape[0]
    if np.shape(step) not in ((), (count,)):
        raise ValueError(f"step has shape {np.shape(step)}: expected ({count},), one for each trajectory")


def _check(name: str, window: Window, table: Table, longest: int) -> None:
    """Raises a ValueError unless a window fits the table."""
    if window.column not in table.columns:
        raise ValueError(
            f"window {name!r}: column {window.column!r} is unknown; the table has {', '.join(table.columns)}"
        )
    for setting in ("length", "offset"):
        number = {f"window {name!r}: {setting}": getattr(window, setting)}
        checks.integers(**number)
        check_int32(**number)
    if not 1 <= window.length <= longest:
        raise ValueError(f"window {name!r}: length={window.length} is not between 1 and the table's {longest}")
    if window.pad not in ("head", "tail"):
        raise ValueError(f"window {name!r}: pad={window.pad!r}, expected 'head' or 'tail'")
    dtype = table.columns[window.column].dtype
    if jnp.issubdtype(dtype, jnp.floating):
        fits = not unfit(np.array([window.value], float), dtype).size
    elif window.return_to_go is not None:
        raise ValueError(f"window {name!r}: return_to_go needs a floating-point column, and this one has dtype {dtype}")
    else:
        with np.errstate(invalid="ignore"):  # NaN and values out of range: the comparison below refuses them
            fits = np.asarray(window.value).astype(dtype) == window.value
    if not fits:
        raise ValueError(f"window {name!r}: value={window.value} does not fit into {dtype}")
    if window.return_to_go is not None:
        checks.between_zero_and_one(return_to_go=window.return_to_go)
