"""A table whose shards are on the devices of a mesh. Call these functions outside of a `shard_map`.

Each device holds `capacity / devices` trajectories. All devices draw the same rows from the exchanged totals of the
shards, with the probabilities of an unsharded table. The devices that hold the rows fill the batch, and a
reduce-scatter gives each device its part. No exchange is larger than a batch. Row numbers run through all shards.

Arguments that are not described here mean the same as for the function of the same name in `stellaris.replay`.
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
from stellaris.replay import rows
from stellaris.replay import selection as selecting
from stellaris.replay import table as tables
from stellaris.replay import windows as gathering
from stellaris.replay.memory import Memory
from stellaris.replay.selection import By, Selection
from stellaris.replay.table import Removal, Spec, Table
from stellaris.replay.windows import Gathered, Window
from stellaris.types import Array, Scalar

_SAME = PartitionSpec()  # type: ignore[no-untyped-call]


@dataclass(frozen=True)
class Shards:
    """The placement of a table's shards: one per device along one axis of a mesh, replicated along the others.

    Args:
      mesh: a mesh of devices, possibly of several processes.
      axis: name of the mesh axis along which the shards lie.

    Raises:
      ValueError: if `axis` is not an axis of the mesh.

    Example:
      >>> import jax
      >>> Shards(jax.make_mesh((1,), ("data",))).number
      1
    """

    mesh: Mesh
    axis: str = "data"

    def __post_init__(self) -> None:
        if self.axis not in self.mesh.axis_names:
            raise ValueError(
                f"axis={self.axis!r} is not an axis of the mesh: use {', '.join(map(repr, self.mesh.axis_names))}"
            )

    @property
    def number(self) -> int:
        """The number of shards."""
        return int(self.mesh.shape[self.axis])

    @property
    def sharding(self) -> NamedSharding:
        """The sharding of the table's arrays and of a batch: along their first axis."""
        return NamedSharding(self.mesh, PartitionSpec(self.axis))  # type: ignore[no-untyped-call]

    def of_columns(self, memory: Memory) -> NamedSharding:
        """The sharding of the table's columns.

        Args:
          memory: where the columns are kept, as for `init`.
        """
        return self.sharding if memory == "device" else self.sharding.with_memory_kind(memory)


def init(spec: Spec, *, capacity: int, length: int, over: Shards, memory: Memory = "device") -> Table:
    """Makes an empty table on the devices; see `replay.init`.

    Args:
      spec: the columns of a step, by name.
      capacity: the most trajectories, summed over shards.
      length: the most steps of a trajectory.
      over: the placement of the shards.
      memory: `"device"`, or `"pinned_host"` for columns in the memory of each device's host.

    Returns:
      The table, whose arrays have a leading axis, `[shards, ...]`.

    Raises:
      ValueError: if `capacity` cannot be split evenly over the devices, and as `replay.init`.

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
        raise ValueError(
            f"capacity={capacity} cannot be split evenly over {over.number} devices; choose a multiple of {over.number}"
        )

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
    """Inserts a batch of trajectories, split over the devices in order; donates the table. See `replay.insert`.

    Args:
      table: the table to add to.
      columns: `[batch, steps, ...]` of each of the table's columns. With several processes they are global arrays, for
        example from `jax.make_array_from_process_local_data(over.sharding, rows)`, or equal in all processes.
      over: the placement of the shards.
      length: `[batch]`, the steps of each trajectory.
      weight: `[batch]` or one for all.
      version: `[batch]` or one for all.
      removal: which of its trajectories each shard removes once it is full.

    Raises:
      TypeError, ValueError: as `replay.insert`, and if the batch cannot be split evenly over the devices.

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
        raise ValueError(
            f"columns have {batch} trajectories, which cannot be split evenly over {over.number} devices; insert a "
            f"multiple of {over.number}"
        )
    changed: Table = _insert(table, *tables.owned((dict(columns), length, tables.real(weight), version)), over, removal)
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
    """Selects a batch from all shards, with the probabilities of an unsharded table; see `replay.select`.

    Args:
      table: the table to select from.
      key: the key of the draws.
      count: number of trajectories in the batch, summed over devices.
      over: the placement of the shards.
      by: `"uniform"`, `"weight"` or `"top"`.
      replace: whether a trajectory may be drawn again.

    Returns:
      The selection, equal on all devices; its rows are counted through all shards.

    Raises:
      ValueError: as `replay.select`.

    Source:
      GEAR (ICML 2023): every device makes the same selection from exchanged totals.

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
    """Draws one step of each selected trajectory, uniformly; see `replay.random_steps`.

    Args:
      table: the table of the selection.
      selection: the selected trajectories.
      key: the key of the draws.
      over: the placement of the shards.

    Returns:
      Steps `[k]`, equal on all devices; a trajectory's first step is 0.

    Raises:
      ValueError: if the table is not sharded.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.ones((1, 3))}, length=jnp.array([2]), over=over)
      >>> drawn = select(table, jax.random.key(0), 100, over=over)
      >>> sorted({*random_steps(table, drawn, jax.random.key(1), over=over).tolist()})
      [0, 1]
    """
    _check_shards(table)
    steps: jax.Array = _random_steps(table, selection, key, over)
    return steps


@functools.partial(jax.jit, static_argnums=3)
def _random_steps(table: Table, selection: Selection, key: jax.Array, over: Shards) -> jax.Array:
    def local(table: Table, selection: Selection, key: jax.Array) -> jax.Array:
        return gathering.random_steps(_squeezed(table), selection, key, axis=over.axis)

    steps: jax.Array = _map(local, over, (over.sharding.spec, _SAME, _SAME), _SAME)(table, selection, key)
    return steps


def gather(
    table: Table, selection: Selection, windows: Mapping[str, Window], *, over: Shards, step: Int[Array, " k"] | int = 0
) -> Gathered:
    """Gathers windows of the selected trajectories, split over the devices in order; see `replay.gather`.

    Args:
      table: the table of the selection.
      selection: the selected trajectories.
      windows: the windows, by their names in the batch.
      over: the placement of the shards.
      step: `[k]` or one for all: the step of each sample in its trajectory.

    Returns:
      The batch, `[k, ...]`, split over the devices.

    Raises:
      TypeError, ValueError: as `replay.gather`, and if the batch cannot be split evenly over the devices.

    Source:
      GEAR (ICML 2023): the owners of rows fill the batch, and a reduce-scatter gives each device its part.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.array([[1.0, 2.0, 3.0]])}, over=over)
      >>> drawn = select(table, jax.random.key(0), 1, over=over)
      >>> gather(table, drawn, {"next": Window("reward", 2, offset=1)}, over=over).values["next"].tolist()
      [[2.0, 3.0]]
    """
    gathering.check_windows(_whole(table), selection, windows, step)
    count = selection.row.shape[0]
    if count % over.number:
        raise ValueError(
            f"selection has {count} trajectories, which cannot be split evenly over {over.number} devices; select a "
            f"multiple of {over.number}"
        )
    batch: Gathered = _gather(table, selection, tables.owned(step), tuple(windows.items()), over)
    return batch


@functools.partial(jax.jit, static_argnums=(3, 4))
def _gather(
    table: Table, selection: Selection, step: Any, windows: tuple[tuple[str, Window], ...], over: Shards
) -> Gathered:
    def local(table: Table, selection: Selection, step: Any) -> Gathered:
        return gathering.gather(_squeezed(table), selection, dict(windows), step=step, axis=over.axis)

    split = over.sharding.spec
    steps = jnp.broadcast_to(step, selection.row.shape)
    batch: Gathered = _map(local, over, (split, _SAME, _SAME), split)(table, selection, steps)
    return batch


def write(
    table: Table,
    row: Int[Array, " k"],
    columns: Mapping[str, Array],
    *,
    over: Shards,
    length: Int[Array, " k"] | Int[Array, ""] | int | None = None,
    weight: Float[Array, " k"] | Scalar | None = None,
    version: Int[Array, " k"] | Int[Array, ""] | int | None = None,
) -> Table:
    """Writes over trajectories in place; donates the table. See `replay.write`.

    Args:
      table: the table to change.
      row: `[k]` rows counted through all shards, such as `Selection.row`.
      columns: `[k, steps, ...]` of the columns to write, equal on all devices.
      over: the placement of the shards.
      length: `[k]` or one for all; None for the lengths that are there.
      weight: `[k]` or one for all; None for the weights that are there.
      version: `[k]` or one for all; None for the versions that are there.

    Raises:
      TypeError, ValueError: as `replay.write`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.ones((2, 3))}, over=over)
      >>> write(table, jnp.array([1]), {"reward": jnp.zeros((1, 3))}, over=over).columns["reward"].sum().item()
      3.0
    """
    rows.check_write(_whole(table), row, columns, length=length, weight=weight, version=version)
    row, new, given = tables.owned((row, dict(columns), (length, tables.real(weight), version)))
    changed: Table = _write(table, jnp.asarray(row), new, given, over)
    return changed


@functools.partial(jax.jit, donate_argnums=0, static_argnums=4)
def _write(table: Table, row: jax.Array, columns: dict[str, Any], given: tuple[Any, Any, Any], over: Shards) -> Table:
    def local(table: Table, row: jax.Array, columns: dict[str, Any], given: tuple[Any, Any, Any]) -> Table:
        length, weight, version = given
        one = _squeezed(table)
        changed = rows.write(one, row, columns, length=length, weight=weight, version=version, axis=over.axis)
        return _expanded(changed)

    split = over.sharding.spec
    changed: Table = _map(local, over, (split, _SAME, _SAME, _SAME), split)(table, row, columns, given)
    return changed


def update_weights(table: Table, index: Int[Array, " k"], weight: Float[Array, " k"], *, over: Shards) -> Table:
    """Replaces the weights of some trajectories; donates the table. See `replay.update_weights`.

    Args:
      table: the table to change.
      index: `[k]` rows counted through all shards, such as `Selection.row`.
      weight: `[k]`.
      over: the placement of the shards.

    Raises:
      TypeError, ValueError: as `replay.update_weights`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.ones((2, 3))}, over=over)
      >>> update_weights(table, jnp.array([1]), jnp.array([4.0]), over=over).weight.tolist()
      [[1.0, 4.0, 0.0, 0.0]]
    """
    _check_shards(table)
    checks.integers(index=index)
    checks.floats(weight=weight)
    checks.same_shape(index, "index", weight=weight)
    tables.check_int32(index=index)
    index, weight = tables.owned((index, weight))
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
    """Replaces the weights of all trajectories; donates the table. See `replay.reweigh`.

    Args:
      table: the table to change.
      weight: `[shards, capacity]`, the shape of `table.version`.
      over: the placement of the shards.

    Raises:
      TypeError, ValueError: as `replay.reweigh`.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris import exponential_weight
      >>> over = Shards(jax.make_mesh((1,), ("data",)))
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=3, over=over)
      >>> table = insert(table, {"reward": jnp.zeros((2, 3))}, version=jnp.array([4, 6]), over=over)
      >>> reweigh(table, exponential_weight(6 - table.version, rate=jnp.log(2.0)), over=over).weight.tolist()
      [[0.25, 1.0]]
    """
    _check_shards(table)
    checks.floats(weight=weight)
    checks.same_shape(table.length, "length", weight=weight)
    changed: Table = _reweigh(table, tables.owned(weight), over)
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
    """Maps `local` over the devices.

    Arguments and results of spec `_SAME` are equal on all devices. `check_vma` is off, because JAX cannot prove this.
    """
    mapped = jax.shard_map(local, mesh=over.mesh, in_specs=given, out_specs=made, check_vma=False)

    def call(*arguments: Any) -> Any:
        return mapped(*(_placed(argument, over, spec) for argument, spec in zip(arguments, given, strict=True)))

    return call


def _placed(tree: Any, over: Shards, spec: PartitionSpec) -> Any:
    """Reshards arrays as `shard_map` expects them if the mesh has explicit axes; else `shard_map` does it."""
    if AxisType.Explicit not in over.mesh.axis_types:
        return tree
    return jax.reshard(tree, NamedSharding(over.mesh, spec))  # type: ignore[no-untyped-call]


def _squeezed(table: Table) -> Table:
    """This device's shard, as a table."""
    one: Table = jax.tree.map(lambda leaf: leaf[0], table)
    return one


def _expanded(table: Table) -> Table:
    """A table as one shard, with a leading axis of 1."""
    shard: Table = jax.tree.map(lambda leaf: leaf[None], table)
    return shard


def _check_shards(table: Table) -> None:
    """Raises a ValueError unless a table is sharded."""
    if table.length.ndim != 2:
        raise ValueError(
            f"table has arrays of shape {table.length.shape}: expected [shards, capacity]; make it with sharded.init"
        )


def _whole(table: Table) -> Table:
    """The shapes of all shards joined into one table, so that the checks of one table apply."""

    def joined(leaf: jax.Array) -> Any:
        return jax.ShapeDtypeStruct((leaf.shape[0] * leaf.shape[1], *leaf.shape[2:]), leaf.dtype)  # type: ignore[no-untyped-call]

    _check_shards(table)
    columns = {name: joined(column) for name, column in table.columns.items()}
    return table._replace(columns=columns, length=joined(table.length))
