"""A table whose shards are on the devices of a mesh: the verbs of one table, without a `shard_map` of one's own.

Each device keeps `capacity / devices` trajectories. All draw the same rows of all shards from the shards' totals, with
the chances of one table; the owners fill a batch, and a reduce-scatter gives each device its part. Rows are counted
through all shards. No more than a batch is ever exchanged.
"""

import functools
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.replay import selection as selecting
from stellaris.replay import table as tables
from stellaris.replay import windows as collecting
from stellaris.replay.memory import Memory
from stellaris.replay.selection import By, Selection
from stellaris.replay.table import Removal, Spec, Table
from stellaris.replay.windows import Collected, Window
from stellaris.types import Array, Scalar

_SAME = PartitionSpec()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Shards:
    """Where the shards of a table are: one on each device along an axis of a mesh, and copies along other axes.

    Args:
      mesh: of devices, perhaps of several processes.
      axis: of it.

    Raises:
      ValueError: if the mesh has no such axis.

    Example:
      >>> import jax
      >>> Shards(jax.make_mesh((1,), ("data",))).number
      1
    """

    mesh: Mesh
    axis: str = "data"

    def __post_init__(self) -> None:
        if self.axis not in self.mesh.axis_names:
            raise ValueError(f"axis={self.axis!r}: the mesh has {', '.join(map(repr, self.mesh.axis_names))}")

    @property
    def number(self) -> int:
        """Of the shards."""
        return int(self.mesh.shape[self.axis])

    @property
    def sharding(self) -> NamedSharding:
        """Of every array of the table, and of a batch: along its first axis."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))  # type: ignore[no-untyped-call]

    def of_columns(self, memory: Memory) -> NamedSharding:
        """Of columns in a memory.

        Args:
          memory: where they are.
        """
        return self.sharding if memory == "device" else self.sharding.with_memory_kind(memory)


def init(spec: Spec, *, capacity: int, length: int, over: Shards, memory: Memory = "device") -> Table:
    """An empty table, made on the devices.

    Args:
      spec: what a step holds, by column.
      capacity: the most trajectories of all shards together.
      length: the most steps of a trajectory.
      over: the devices.
      memory: `"device"`; or `"pinned_host"` for columns that stay with each device's host: see `replay.init`.

    Returns:
      The table: each of its arrays has an axis more, `[shards, ...]`.

    Raises:
      ValueError: if the devices do not divide `capacity`, or as `replay.init` does.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table.columns["reward"].shape
      (1, 4, 3)
    """
    checks.whole(at_least=1, capacity=capacity)
    tables.check_memory(memory)
    if capacity % over.number:
        raise ValueError(f"capacity={capacity}: {over.number} devices do not divide it")

    def local() -> Table:
        return _expanded(tables.init(spec, capacity=capacity // over.number, length=length))

    shapes: Table = jax.eval_shape(local)
    shardings = jax.tree.map(lambda _: over.sharding, shapes)
    columns = {name: over.of_columns(memory) for name in spec}
    program = jax.jit(_map(local, over, (), over.sharding.spec), out_shardings=shardings._replace(columns=columns))
    table: Table = program()
    return table


def insert(
    table: Table,
    columns: Mapping[str, Array],
    *,
    over: Shards,
    length: Int[Array, " batch"] | None = None,
    weight: Float[Array, " batch"] | Scalar = 1.0,
    version: Int[Array, " batch"] | Int[Array, ""] | int = 0,
    removal: Removal = "oldest",
) -> Table:
    """The table with a batch of trajectories more, of which each device gets its part, in order. The table is donated.

    Args:
      table: to add to.
      columns: `[batch, steps, ...]` of each of the table's columns. With several processes they are global arrays, such
        as by `jax.make_array_from_process_local_data(over.sharding, rows)`, or the same everywhere.
      over: the devices.
      length: `[batch]` of each trajectory, in steps; all of them by default.
      weight: `[batch]` or one for all, by which it is selected.
      version: `[batch]` or one for all, of the policy that has sampled it.
      removal: which trajectory of its own each shard removes once it is full.

    Returns:
      The table. A weight or a length that is no valid one sets a flag: see `check`.

    Raises:
      TypeError: if a column has another dtype.
      ValueError: if the devices do not divide the batch, or as `replay.insert` does.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> insert(table, {"reward": jnp.ones((2, 3))}, over=over).weight.tolist()
      [[1.0, 1.0, 0.0, 0.0]]
    """
    length = tables.check_batch(_whole(table), columns, length=length, weight=weight, version=version, removal=removal)
    batch = len(next(iter(columns.values())))
    if batch % over.number:
        raise ValueError(f"columns have {batch} trajectories: {over.number} devices do not divide them")
    changed: Table = _insert(table, dict(columns), length, weight, version, over, removal)
    return changed


@functools.partial(jax.jit, donate_argnums=0, static_argnums=(5, 6))
def _insert(
    table: Table, columns: dict[str, Any], length: Any, weight: Any, version: Any, over: Shards, removal: Removal
) -> Table:
    batch = len(next(iter(columns.values())))
    each = [jnp.broadcast_to(value, batch) for value in (length, weight, version)]

    def local(table: Table, columns: dict[str, Any], length: Any, weight: Any, version: Any) -> Table:
        one = _squeezed(table)
        return _expanded(tables.insert(one, columns, length=length, weight=weight, version=version, removal=removal))

    split = over.sharding.spec
    changed: Table = _map(local, over, (split,) * 5, split)(table, columns, *each)
    return changed


def select(
    table: Table, key: jax.Array, count: int, *, over: Shards, by: By = "uniform", replace: bool = True
) -> Selection:
    """Draws the trajectories of a batch, with the chances of one table.

    Args:
      table: to draw from.
      key: of the draws. The top draws nothing.
      count: trajectories of the batch, of all devices together.
      over: the devices.
      by: `"uniform"`, `"weight"`, or `"top"`: those of the largest weights, in order, of equal ones the first rows.
      replace: whether a trajectory may come again. The top has none twice.

    Returns:
      The selection, the same on all devices; its rows are counted through all shards.

    Raises:
      ValueError: as `replay.select` does.

    Source:
      GEAR (ICML 2023): selection by all devices alike, from exchanged totals.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.ones((2, 3))}, weight=jnp.array([0.0, 1.0]), over=over)
      >>> select(table, jax.random.key(0), 3, by="weight", over=over).row.tolist()
      [1, 1, 1]
    """
    selecting.check_count(_whole(table).capacity, count, by=by, replace=replace)
    drawn: Selection = _select(table, key, count, over, by, replace)
    return drawn


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _select(table: Table, key: jax.Array, count: int, over: Shards, by: By, replace: bool) -> Selection:
    def local(table: Table, key: jax.Array) -> Selection:
        return selecting.select(_squeezed(table), key, count, by=by, replace=replace, axis=over.axis)

    drawn: Selection = _map(local, over, (over.sharding.spec, _SAME), _SAME)(table, key)
    return drawn


def random_steps(table: Table, selection: Selection, key: jax.Array, *, over: Shards) -> Int[jax.Array, " k"]:
    """A step of each selected trajectory, all of its steps alike.

    Args:
      table: that was selected from.
      selection: of it.
      key: of the draws.
      over: the devices.

    Returns:
      Steps `[k]`, from 0, the same on all devices.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.ones((1, 3))}, length=jnp.array([2]), over=over)
      >>> drawn = select(table, jax.random.key(0), 100, over=over)
      >>> sorted({*random_steps(table, drawn, jax.random.key(1), over=over).tolist()})
      [0, 1]
    """
    steps: jax.Array = _random_steps(table, selection, key, over)
    return steps


@functools.partial(jax.jit, static_argnums=3)
def _random_steps(table: Table, selection: Selection, key: jax.Array, over: Shards) -> jax.Array:
    def local(table: Table, selection: Selection, key: jax.Array) -> jax.Array:
        return collecting.random_steps(_squeezed(table), selection, key, axis=over.axis)

    steps: jax.Array = _map(local, over, (over.sharding.spec, _SAME, _SAME), _SAME)(table, selection, key)
    return steps


def gather(
    table: Table, selection: Selection, windows: Mapping[str, Window], *, over: Shards, step: Int[Array, " k"] | int = 0
) -> Collected:
    """Windows of the selected trajectories, of which each device gets its part of the rows, in order.

    Args:
      table: that was selected from.
      selection: of it.
      windows: by the name that each has in the batch.
      over: the devices.
      step: `[k]` or one for all: the step of its trajectory that a sample is about. See `random_steps`.

    Returns:
      The batch, `[k, ...]`, split over the devices. If the selection has a fault, its mask is empty.

    Raises:
      ValueError: if the devices do not divide the batch, or as `replay.gather` does.

    Source:
      GEAR (ICML 2023): owners fill the slots of the batch, and a reduce-scatter gives each device its own.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.array([[1.0, 2.0, 3.0]])}, over=over)
      >>> drawn = select(table, jax.random.key(0), 1, over=over)
      >>> gather(table, drawn, {"next": Window("reward", 2, offset=1)}, over=over).values["next"].tolist()
      [[2.0, 3.0]]
    """
    collecting.check_windows(_whole(table), selection, windows, step)
    count = selection.row.shape[0]
    if count % over.number:
        raise ValueError(f"selection has {count} trajectories: {over.number} devices do not divide them")
    batch: Collected = _collect(table, selection, step, tuple(windows.items()), over)
    return batch


@functools.partial(jax.jit, static_argnums=(3, 4))
def _collect(
    table: Table, selection: Selection, step: Any, windows: tuple[tuple[str, Window], ...], over: Shards
) -> Collected:
    def local(table: Table, selection: Selection, step: Any) -> Collected:
        return collecting.gather(_squeezed(table), selection, dict(windows), step=step, axis=over.axis)

    split = over.sharding.spec
    steps = jnp.broadcast_to(step, selection.row.shape)
    batch: Collected = _map(local, over, (split, _SAME, _SAME), split)(table, selection, steps)
    return batch


def update_weights(table: Table, index: Int[Array, " k"], weight: Float[Array, " k"], *, over: Shards) -> Table:
    """The table with other weights of some trajectories: each shard changes its own. The table is donated.

    Args:
      table: to change.
      index: `[k]` rows, as a selection names them. Of the same row twice the last counts.
      weight: `[k]`, not negative.
      over: the devices.

    Returns:
      The table. A weight or an index that is no valid one sets a flag: see `check`.

    Raises:
      TypeError: if `index` is not whole, or `weight` not floating point.
      ValueError: if their shapes differ, or an index exceeds int32.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.ones((2, 3))}, over=over)
      >>> update_weights(table, jnp.array([1]), jnp.array([4.0]), over=over).weight.tolist()
      [[1.0, 4.0, 0.0, 0.0]]
    """
    checks.integers(index=index)
    checks.floats(weight=weight)
    checks.same_shape(index, "index", weight=weight)
    tables.check_int32(index=index)
    changed: Table = _update_weights(table, jnp.asarray(index), jnp.asarray(weight), over)
    return changed


@functools.partial(jax.jit, donate_argnums=0, static_argnums=3)
def _update_weights(table: Table, index: jax.Array, weight: jax.Array, over: Shards) -> Table:
    def local(table: Table, index: jax.Array, weight: jax.Array) -> Table:
        return _expanded(tables.update_weights(_squeezed(table), index, weight, axis=over.axis))

    split = over.sharding.spec
    changed: Table = _map(local, over, (split, _SAME, _SAME), split)(table, index, weight)
    return changed


def reweigh(table: Table, weight: Float[Array, "shards capacity"], *, over: Shards) -> Table:
    """The table with other weights of all trajectories; those of empty rows stay 0. The table is donated.

    Args:
      table: to change.
      weight: `[shards, capacity]`, as `table.version` is; not negative.
      over: the devices.

    Returns:
      The table. A weight that is no valid one sets a flag: see `check`.

    Raises:
      TypeError: if `weight` is not floating point.
      ValueError: if its shape is another.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris import exponential_weight
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.zeros((2, 3))}, version=jnp.array([4, 6]), over=over)
      >>> reweigh(table, exponential_weight(6 - table.version, rate=jnp.log(2.0)), over=over).weight.tolist()
      [[0.25, 1.0]]
    """
    checks.floats(weight=weight)
    checks.same_shape(table.length, "length", weight=weight)
    changed: Table = _reweigh(table, weight, over)
    return changed


@functools.partial(jax.jit, donate_argnums=0, static_argnums=2)
def _reweigh(table: Table, weight: jax.Array, over: Shards) -> Table:
    def local(table: Table, weight: jax.Array) -> Table:
        return _expanded(tables.reweigh(_squeezed(table), weight[0]))

    split = over.sharding.spec
    changed: Table = _map(local, over, (split, split), split)(table, weight)
    return changed


def _map(
    local: Callable[..., Any], over: Shards, given: tuple[PartitionSpec, ...], made: PartitionSpec
) -> Callable[..., Any]:
    """What each device does with its part. What is `_SAME` is computed alike by all, which JAX need not prove."""
    mapped = jax.shard_map(local, mesh=over.mesh, in_specs=given, out_specs=made, check_vma=False)

    def call(*arguments: Any) -> Any:
        return mapped(*(_placed(argument, over, spec) for argument, spec in zip(arguments, given, strict=True)))

    return call


def _placed(tree: Any, over: Shards, spec: PartitionSpec) -> Any:
    """What a `shard_map` can be given: of a mesh with explicit axes, arrays that are split as it expects."""
    if AxisType.Explicit not in over.mesh.axis_types:
        return tree
    return jax.reshard(tree, NamedSharding(over.mesh, spec))  # type: ignore[no-untyped-call]


def _squeezed(table: Table) -> Table:
    """This device's shard, as a table."""
    one: Table = jax.tree.map(lambda leaf: leaf[0], table)
    return one


def _expanded(table: Table) -> Table:
    """A table as one shard of many."""
    shard: Table = jax.tree.map(lambda leaf: leaf[None], table)
    return shard


def _whole(table: Table) -> Table:
    """The shapes of all shards as one table, for the checks of one."""

    def joined(leaf: jax.Array) -> Any:
        return jax.ShapeDtypeStruct((leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), leaf.dtype)  # type: ignore[no-untyped-call]

    if table.length.ndim != 2:
        raise ValueError(f"table has arrays of shape {table.length.shape}: expected [shards, capacity], see `init`")
    columns = {name: joined(column) for name, column in table.columns.items()}
    return table._replace(columns=columns, length=joined(table.length))
