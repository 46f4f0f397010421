"""A table of whole trajectories: a ring of rows with typed columns, and the metadata of each row."""

import functools
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.replay import weight_tree
from stellaris.replay.memory import Memory, run_where_stored, zeros
from stellaris.replay.weight_tree import WeightTree
from stellaris.types import Array, NDArray, Scalar

#: The columns of one step by name: `jax.ShapeDtypeStruct(shape, dtype)`, without the axes of trajectories and steps.
Spec: TypeAlias = Mapping[str, jax.ShapeDtypeStruct]
#: Which trajectories a full table removes to make room for new ones.
Removal: TypeAlias = Literal["oldest", "lowest"]

#: The meaning of each bit of `Table.faults` and `Selection.faults`, from the lowest bit.
FAULTS = (
    "a weight is negative, not finite or above 1e30: it was replaced by 0",
    "a trajectory's length is below 1 or above the number of steps given: `insert` replaced its weight by 0, "
    "`write` did not write it",
    "a selection was made from a table that is empty or whose weights are all 0 (below 1.2e-38 they count as 0): do "
    "not use the rows that it returned",
    "a selection without replacement, or of the top, asked for more trajectories than have a weight above 0, or "
    "than the table holds",
    "an index is not a row of a trajectory in the table: its weight was ignored",
)
BAD_WEIGHT, BAD_LENGTH, EMPTY, TOO_FEW, BAD_INDEX = (np.int32(1 << i) for i in range(len(FAULTS)))

#: Small enough that the float32 sum of a hundred million weights is finite.
LARGEST_WEIGHT = 1e30
#: The smallest normal float32. Smaller weights count as 0 everywhere, because some devices flush subnormals to 0.
LEAST_WEIGHT = float(np.finfo(np.float32).tiny)

#: Half the range of int32, so that insertion counts can be lowered by about this number before they overflow.
LARGEST_CAPACITY = 2**30


class Table(NamedTuple):
    """`capacity` trajectories of up to `length` steps; zeros after a trajectory's last step and in empty rows.

    In a sharded table each array has a leading axis, `[shards, ...]`: see `sharded`.
    """

    columns: dict[str, jax.Array]  #: `[capacity, length, ...]` each.
    length: Int[jax.Array, " capacity"]  #: steps of each trajectory; 0 in empty rows.
    weights: WeightTree  #: weights of the trajectories; 0 in empty rows.
    version: Int[jax.Array, " capacity"]  #: version of the policy that sampled the trajectory.
    number: Int[jax.Array, " capacity"]  #: insertion number, from 0; -1 in empty rows.
    inserted: Int[jax.Array, ""]  #: insertions so far; lowered by about 2^30, as is `number`, before 2^31 is reached.
    faults: Int[jax.Array, ""]  #: bits of `FAULTS`, set where compiled code cannot raise; see `check`.

    @property
    def capacity(self) -> int:
        """The most trajectories that the table can hold; for a sharded table, that each shard can hold."""
        return self.length.shape[-1]

    @property
    def size(self) -> Int[jax.Array, "..."]:
        """The number of trajectories held, by shard in a sharded table. Trajectories fill the first `size` rows."""
        return jnp.minimum(self.inserted, self.capacity)

    @property
    def weight(self) -> Float[Array, "*shards capacity"]:
        """The weight of each trajectory; 0 in empty rows."""
        return self.weights[0][..., : self.capacity]


def init(spec: Spec, *, capacity: int, length: int, memory: Memory = "device") -> Table:
    """Makes an empty table.

    Args:
      spec: the columns of a step, by name.
      capacity: the most trajectories.
      length: the most steps of a trajectory.
      memory: `"device"`; or `"pinned_host"` for columns that exceed the device's memory: they stay in host memory, the
        host gathers the rows of a batch, and only the batch is copied to the device.

    Returns:
      The table, on the default device.

    Raises:
      ValueError: if `spec` is empty, `capacity` is not between 1 and 2^30, `length` is below 1, `memory` is unknown, or
        a dtype is not enabled in JAX.

    Source:
      GEAR (ICML 2023), trajectory tables.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> table = init({"observation": jax.ShapeDtypeStruct((3,), jnp.float32)}, capacity=10, length=5)
      >>> table.columns["observation"].shape
      (10, 5, 3)
    """
    checks.whole(at_least=1, capacity=capacity, length=length)
    if capacity > LARGEST_CAPACITY:
        raise ValueError(f"capacity={capacity}: a table holds at most {LARGEST_CAPACITY} trajectories")
    check_memory(memory)
    check_spec(spec)
    return Table(
        columns={name: zeros((capacity, length, *one.shape), one.dtype, memory) for name, one in spec.items()},
        length=jnp.zeros(capacity, jnp.int32),
        weights=weight_tree.build(jnp.zeros(capacity, jnp.float32)),
        version=jnp.zeros(capacity, jnp.int32),
        number=jnp.full(capacity, -1, jnp.int32),
        inserted=jnp.zeros((), jnp.int32),
        faults=jnp.zeros((), jnp.int32),
    )


def check_memory(memory: str) -> None:
    """Raises a ValueError unless `memory` names a place for columns.

    Args:
      memory: `"device"` or `"pinned_host"`.
    """
    if memory not in ("device", "pinned_host"):
        raise ValueError(f"memory={memory!r}: expected 'device' or 'pinned_host'")


def check_spec(spec: Spec) -> None:
    """Raises a ValueError unless a table can have these columns.

    Args:
      spec: the columns of a step, by name.
    """
    if not spec:
        raise ValueError("spec is empty: name at least one column")
    for name, column in spec.items():
        if jax.dtypes.canonicalize_dtype(column.dtype) != column.dtype:
            raise ValueError(
                f"column {name!r} has dtype {column.dtype}: enable jax_enable_x64, or use a dtype of half the size"
            )


def insert(
    table: Table,
    columns: Mapping[str, Array],
    *,
    length: Int[Array, " batch"] | None = None,
    weight: Float[Array, " batch"] | Scalar = 1.0,
    version: Int[Array, " batch"] | Int[Array, ""] | int = 0,
    removal: Removal = "oldest",
) -> Table:
    """Inserts a batch of trajectories; donates the table, so use the one returned.

    Args:
      table: the table to add to.
      columns: `[batch, steps, ...]` of each of the table's columns; `steps` is at most the table's length.
      length: `[batch]`, the length of each trajectory in steps; all `steps` by default. Later steps are dropped.
      weight: `[batch]` or one for all: the selection weight, from 0 to 1e30. A weight below 1.2e-38 counts as 0.
      version: `[batch]` or one for all: the version of the policy that sampled the trajectory.
      removal: which trajectories a full table removes: the `"oldest"`, or the `"lowest"` by weight, equal weights in
        the order of their rows. Use one rule for the life of a table: `"oldest"` overwrites rows in ring order and does
        not search for the oldest.

    Returns:
      The table. An invalid weight or length sets a flag: see `check`.

    Raises:
      TypeError: if `columns` is not a mapping, a column's dtype differs from the table's, a length or version is not
        whole, or a weight is complex.
      ValueError: if columns are missing or unknown, a shape does not fit, the table's dtype cannot hold a number of a
        NumPy array, there are no trajectories or more than the table can hold, or the table is sharded.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=3)
      >>> for i in range(3):
      ...     table = insert(table, {"reward": jnp.full((1, 3), float(i))}, version=i)
      >>> table.version.tolist(), table.columns["reward"][:, 0].tolist()
      ([2, 1], [2.0, 1.0])
    """
    check_one(table)
    length = check_batch(table, columns, length=length, weight=weight, version=version, removal=removal)
    changed: Table = _insert(table, *owned((dict(columns), length, real(weight), version)), removal)
    return changed


@functools.partial(jax.jit, donate_argnums=0, static_argnums=5)
def _insert(table: Table, columns: dict[str, Any], length: Any, weight: Any, version: Any, removal: Removal) -> Table:
    batch, steps = next(iter(columns.values())).shape[:2]
    length = jnp.broadcast_to(jnp.asarray(length, jnp.int32), batch)
    table = _recounted(table, batch)
    number = table.inserted + jnp.arange(batch, dtype=jnp.int32)
    row = _rows(table, number, removal)
    fits = (length >= 1) & (length <= steps)
    weight, bad_weight = sound(jnp.broadcast_to(jnp.asarray(weight), batch), fits)
    length = jnp.clip(length, 0, steps)
    kept = jnp.arange(steps) < length[:, None]
    return Table(
        columns={name: set_rows(table.columns[name], row, new, kept) for name, new in columns.items()},
        length=table.length.at[row].set(length),
        weights=weight_tree.update(table.weights, row, weight),
        version=table.version.at[row].set(jnp.broadcast_to(jnp.asarray(version, jnp.int32), batch)),
        number=table.number.at[row].set(number),
        inserted=table.inserted + batch,
        faults=table.faults | jnp.where(fits.all(), 0, BAD_LENGTH) | bad_weight,
    )


def _recounted(table: Table, batch: int) -> Table:
    """Lowers the insertion counts if a batch would overflow int32.

    They are lowered by a multiple of the capacity, so that `number % capacity` still names the next row of the ring.
    """
    rounds = np.int32(LARGEST_CAPACITY // table.capacity * table.capacity)

    def lower(counts: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        number, inserted = counts
        return jnp.where(number < 0, number, jnp.maximum(number - rounds, 0)), inserted - rounds

    # A loop of at most one iteration changes the numbers in place; `lax.cond` would copy them at every insertion.
    counts = table.number, table.inserted
    number, inserted = jax.lax.while_loop(lambda counts: counts[1] > np.iinfo(np.int32).max - batch, lower, counts)
    return table._replace(number=number, inserted=inserted)


def _rows(table: Table, number: Int[jax.Array, " batch"], removal: Removal) -> Int[jax.Array, " batch"]:
    """The rows that a batch is written to: empty ones first, in order."""
    if removal == "oldest":
        return number % table.capacity
    ranks = jnp.where(table.number < 0, -1.0, table.weight)
    _, lowest = jax.lax.top_k(-ranks, len(number))
    return lowest


def sound(weight: jax.Array, counted: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Sets weights to 0 if invalid or not `counted`; also returns a fault bit, set if an invalid one is counted.

    Args:
      weight: the weights.
      counted: whether each of them counts.
    """
    weight = weight.astype(jnp.float32)
    sound = (weight >= 0) & (weight <= LARGEST_WEIGHT)
    kept = sound & counted & (weight >= LEAST_WEIGHT)
    return jnp.where(kept, weight, 0.0), jnp.where((sound | ~counted).all(), 0, BAD_WEIGHT)


def set_rows(
    column: jax.Array, row: Int[jax.Array, " batch"], new: Any, kept: jax.Array, count: Any = None
) -> jax.Array:
    """Writes rows of a column one after the other, so that XLA copies each in place.

    Args:
      column: `[capacity, length, ...]`.
      row: the rows to write.
      new: `[batch, steps, ...]`, their contents.
      kept: `[batch, steps]`, false for steps that become zeros.
      count: the number of rows to write, the first of the batch; by default all.
    """
    batch, steps = kept.shape
    there = kept.reshape(batch, steps, *[1] * (new.ndim - 2))
    new = jnp.where(there, jnp.asarray(new), jnp.zeros((), column.dtype))
    new = jnp.pad(new, [(0, 0), (0, column.shape[1] - steps), *[(0, 0)] * (new.ndim - 2)])

    def copy(column: jax.Array, row: jax.Array, new: jax.Array, *last: jax.Array) -> jax.Array:
        def one(i: Any, column: jax.Array) -> jax.Array:
            changed: jax.Array = jax.lax.dynamic_update_index_in_dim(column, new[i], row[i], 0)
            return changed

        copied: jax.Array = jax.lax.fori_loop(0, last[0] if last else batch, one, column.reshape(len(column), -1))
        return copied.reshape(column.shape)

    # Rows are flattened, so that each row is one contiguous copy instead of one copy per number.
    return run_where_stored(copy, column, row, new.reshape(batch, -1), *[] if count is None else [count])


def update_weights(
    table: Table, index: Int[Array, " k"], weight: Float[Array, " k"], *, axis: str | None = None
) -> Table:
    """Replaces the weights of some trajectories, in O(k log capacity); donates the table.

    Args:
      table: the table to change; within `shard_map`, this device's shard of it.
      index: `[k]` rows, such as `Selection.row`. If a row occurs twice, its last weight counts.
      weight: `[k]`, from 0 to 1e30. A weight below 1.2e-38 counts as 0.
      axis: the mesh axis of the shards, within `shard_map`, where all devices get the same rows and weights; None for
        one table.

    Returns:
      The table. An invalid weight or index sets a flag: see `check`.

    Raises:
      TypeError: if `index` is not whole, or `weight` not floating point.
      ValueError: if their shapes differ, an index exceeds int32, or the table is sharded.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=3)
      >>> table = insert(table, {"reward": jnp.zeros((2, 3))})
      >>> update_weights(table, jnp.array([1]), jnp.array([4.0])).weight.tolist()
      [1.0, 4.0]
    """
    check_one(table)
    checks.integers(index=index)
    checks.floats(weight=weight)
    checks.same_shape(index, "index", weight=weight)
    check_int32(index=index)
    index, weight = owned((index, weight))
    changed: Table = _update_weights(table, jnp.ravel(index), jnp.ravel(weight), axis)
    return changed


@functools.partial(jax.jit, donate_argnums=0, static_argnums=3)
def _update_weights(table: Table, index: Any, weight: Any, axis: str | None) -> Table:
    index = int32_rows(index)
    if axis is not None:
        index = index - jax.lax.axis_index(axis) * table.capacity
    there = (index >= 0) & (index < table.size)
    # A row lies in one shard, so an index is bad only if no device has it.
    found = there if axis is None else jax.lax.psum(there.astype(jnp.int32), axis) > 0  # type: ignore[no-untyped-call]
    weight, bad_weight = sound(weight, there)
    row = jnp.where(there, index, len(table.weights[0]))
    weights = weight_tree.update(table.weights, row, weight)
    return table._replace(weights=weights, faults=table.faults | jnp.where(found.all(), 0, BAD_INDEX) | bad_weight)


def reweigh(table: Table, weight: Float[Array, " capacity"]) -> Table:
    """Replaces the weights of all trajectories, in O(capacity); empty rows keep weight 0.

    For weights by staleness, call it once per published version; draws stay O(log capacity).

    Args:
      table: the table to change; it is donated.
      weight: `[capacity]`, from 0 to 1e30. A weight below 1.2e-38 counts as 0.

    Returns:
      The table. An invalid weight sets a flag: see `check`.

    Raises:
      TypeError: if `weight` is not floating point.
      ValueError: if its shape is not `[capacity]`, or the table is sharded.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris import exponential_weight
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=3)
      >>> table = insert(table, {"reward": jnp.zeros((2, 3))}, version=jnp.array([4, 6]))
      >>> newest = 6
      >>> reweigh(table, exponential_weight(newest - table.version, rate=jnp.log(2.0))).weight.tolist()
      [0.25, 1.0]
    """
    check_one(table)
    checks.floats(weight=weight)
    checks.same_shape(table.length, "length", weight=weight)
    changed: Table = _reweigh(table, owned(weight))
    return changed


@functools.partial(jax.jit, donate_argnums=0)
def _reweigh(table: Table, weight: Any) -> Table:
    weight, bad_weight = sound(weight, table.number >= 0)
    return table._replace(weights=weight_tree.build(weight), faults=table.faults | bad_weight)


def check(checked: Any) -> None:
    """Raises the errors that compiled code could only flag.

    Args:
      checked: a table or a selection; the call waits until it is computed.

    Raises:
      ValueError: if a fault bit is set; lists the meaning of every set bit.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=3)
      >>> check(insert(table, {"reward": jnp.zeros((1, 3))}, weight=-1.0))
      Traceback (most recent call last):
      ValueError: a weight is negative, not finite or above 1e30: it was replaced by 0
    """
    # The bits of all shards are combined on the devices: with several processes, no host has every shard.
    found = (jnp.ravel(checked.faults)[:, None] >> jnp.arange(len(FAULTS)) & 1).max(0)
    if faults := [text for text, here in zip(FAULTS, found.tolist(), strict=True) if here]:
        raise ValueError("; ".join(faults))


def check_one(table: Table) -> None:
    """Raises a ValueError if a table is sharded: the programs of one table would mistake shards for rows.

    Args:
      table: only its shapes are read.
    """
    if table.length.ndim != 1:
        raise ValueError(
            f"table has arrays of shape {table.length.shape}: for a sharded table call the function of this name in "
            "stellaris.replay.sharded"
        )


def owned(arguments: Any) -> Any:
    """Copies the NumPy arrays among arguments: a program may read them after its call, when the caller writes to them.

    Args:
      arguments: a tree of arrays and numbers, for a jitted function.
    """
    return jax.tree.map(lambda x: np.array(x) if isinstance(x, np.ndarray) else x, arguments)


def real(weight: Any) -> Any:
    """Makes whole weights real: one beyond int32 is valid, but a compiled function would wrap it or refuse it."""
    return np.asarray(weight, float) if isinstance(weight, int | np.integer | np.ndarray) else weight


def check_batch(
    table: Table, columns: Mapping[str, Array], *, length: Any, weight: Any, version: Any, removal: Removal
) -> Any:
    """Raises the errors of `insert` for its arguments, and returns the trajectories' lengths.

    Args:
      table: only its shapes and dtypes are read.
      columns: the batch's columns, as for `insert`.
      length: of each trajectory, as for `insert`; None for all steps.
      weight: weight of each trajectory.
      version: version of each trajectory.
      removal: the rule by which a full table removes trajectories.
    """
    if removal not in ("oldest", "lowest"):
        raise ValueError(f"removal={removal!r}: expected 'oldest' or 'lowest'")
    steps = _check_columns(table, columns)
    batch = len(next(iter(columns.values())))
    length = steps if length is None else length
    for name, value in {"length": length, "weight": weight, "version": version}.items():
        if np.shape(value) not in ((), (batch,)):
            raise ValueError(f"{name} has shape {np.shape(value)}: expected ({batch},), one for each trajectory")
    checks.integers(length=length, version=version)
    check_int32(length=length, version=version)
    if np.iscomplexobj(weight):
        raise TypeError(f"weight={weight} is complex: pass a real number from 0 to {LARGEST_WEIGHT:g}")
    return length


def check_int32(**numbers: Any) -> None:
    """Raises a ValueError if a whole number of NumPy or Python exceeds int32, because JAX would wrap it silently.

    Args:
      **numbers: arrays or scalars, by the argument's name.
    """
    for name, array in numbers.items():
        if not isinstance(array, jax.Array) and (lost := unfit(np.asarray(array), np.int32)).size:
            raise ValueError(f"{name} has {lost[0]}: expected a whole number that int32 can hold")


def int32_rows(index: Any) -> Int[jax.Array, " k"]:
    """Converts rows to int32, which can hold every row and the capacity. A row outside of int32 stays an invalid one.

    Args:
      index: `[k]` rows, of any dtype of whole numbers.
    """
    index = jnp.asarray(index)
    given, most = jnp.iinfo(index.dtype), np.iinfo(np.int32).max  # type: ignore[no-untyped-call]
    return jnp.clip(index, max(given.min, -1), min(given.max, most)).astype(jnp.int32)


def unfit(values: NDArray, dtype: Any) -> NDArray:
    """The values that `dtype` cannot hold: whole numbers out of its exact range, others that would become infinite.

    Args:
      values: whole numbers; or floats, if `dtype` is floating point; or complex numbers, if it is complex.
      dtype: the dtype to convert to.

    Returns:
      The values that do not fit, `[n]`.
    """
    if jnp.issubdtype(values.dtype, jnp.inexact):
        with np.errstate(over="ignore"):
            return np.asarray(values[np.isfinite(values) & ~np.isfinite(values.astype(dtype))])
    if jnp.issubdtype(dtype, jnp.floating):  # it represents every whole number up to 2 ** (mantissa bits + 1)
        most = 2 ** (jnp.finfo(dtype).nmant + 1)  # type: ignore[no-untyped-call]
        least = -most
    else:
        info = jnp.iinfo(dtype)  # type: ignore[no-untyped-call]
        least, most = int(info.min), int(info.max)
    return np.asarray(values[(values < least) | (values > most)])


def _check_columns(table: Table, columns: Mapping[str, Array]) -> int:
    """Raises unless a batch has exactly the table's columns; returns its number of steps."""
    if not isinstance(columns, Mapping):
        raise TypeError(f"columns is a {type(columns).__name__}: pass a mapping with {', '.join(table.columns)}")
    missing = sorted({*table.columns} - {*columns})
    unknown = sorted({*columns} - {*table.columns})
    if missing or unknown:
        fault = f"column {missing[0]!r} is missing" if missing else f"column {unknown[0]!r} is unknown"
        raise ValueError(f"{fault}: the table has {', '.join(table.columns)}")
    first = next(iter(columns))
    if np.ndim(columns[first]) < 2:
        raise ValueError(f"column {first!r} has shape {np.shape(columns[first])}: expected [batch, steps, ...]")
    batch, steps = np.shape(columns[first])[:2]
    for name, column in table.columns.items():
        new = columns[name]
        if np.shape(new) != (batch, steps, *column.shape[2:]):
            expected = ", ".join(map(str, ("batch", "steps", *column.shape[2:])))
            raise ValueError(
                f"column {name!r} has shape {np.shape(new)}: expected [{expected}] with {batch=} and {steps=}"
            )
        if jnp.result_type(new) != column.dtype:
            raise TypeError(
                f"column {name!r} has dtype {jnp.result_type(new)}: the table has {column.dtype}; convert it, "
                f"such as by x.astype({str(column.dtype)!r})"
            )
        if isinstance(new, np.ndarray) and new.dtype != column.dtype and (lost := unfit(new, column.dtype)).size:
            raise ValueError(f"column {name!r} has {lost[0]}: the table's {column.dtype} cannot hold it")
    length = next(iter(table.columns.values())).shape[1]
    if not 1 <= steps <= length:
        raise ValueError(f"columns have {steps} steps: a trajectory of the table has 1 to {length}")
    if not 1 <= batch <= table.capacity:
        raise ValueError(
            f"columns have {batch} trajectories: the table holds {table.capacity}, so insert from 1 to {table.capacity}"
        )
    return int(steps)
