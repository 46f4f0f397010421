"""Selection of a batch's trajectories, on the device, from one table or from all shards of a sharded one.

Within a `jax.shard_map` each device has a shard, and `axis` names the mesh axis of the shards. The devices exchange
their shards' totals and all draw the same trajectories from all shards, with the probabilities of an unsharded table.
Such a `shard_map` needs `check_vma=False`, because JAX cannot prove that all devices draw the same.
"""

import functools
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.replay import weight_tree
from stellaris.replay.table import EMPTY, TOO_FEW, Table, check_one
from stellaris.replay.weight_tree import WeightTree
from stellaris.replay.whole_numbers import below
from stellaris.types import Array, Scalar, at_least_float32, largest

#: How trajectories are selected: uniformly, with probability proportional to weight, or the largest weights.
By: TypeAlias = Literal["uniform", "weight", "top"]


class Selection(NamedTuple):
    """The selected trajectories of a batch."""

    row: Int[jax.Array, " k"]  #: rows of the table; in a sharded table, counted through all shards.
    #: probability of each row at every draw; without replacement, at the first draw; 1 for `"top"`.
    probability: Float[jax.Array, " k"]
    faults: Int[jax.Array, ""]  #: bits of `FAULTS`, see `check`. If it is not 0, `gather` returns masks that are false.


def select(
    table: Table, key: jax.Array, count: int, *, by: By = "uniform", replace: bool = True, axis: str | None = None
) -> Selection:
    """Selects the trajectories of a batch.

    With replacement a draw takes O(log capacity) by weight and O(1) uniformly. Without replacement every draw takes
    O(log capacity), after one copy of the weights. `"top"` reads every weight once.

    Args:
      table: the table to select from; within `shard_map`, this device's shard of it.
      key: the key of the draws; the same on all devices. `"top"` ignores it.
      count: number of trajectories in the batch, summed over devices.
      by: `"uniform"`; `"weight"`, with probability proportional to weight; or `"top"`, the largest weights in
        descending order, equal weights in the order of their rows.
      replace: whether a trajectory may be drawn again. `"top"` never repeats a trajectory.
      axis: the mesh axis of the shards, within `shard_map`; None for one table.

    Returns:
      The selection. A flag is set if no trajectory can be drawn, or without replacement fewer than `count`: see
      `check`. A trajectory of weight 0 is drawn only by `"uniform"`.

    Raises:
      TypeError: if `replace` is neither True nor False, or `key` is not one key.
      ValueError: if `by` is unknown, `count` is below 1 or exceeds the capacity without replacement, or the table is
        sharded.

    Source:
      GEAR (ICML 2023), trajectory selection; exact here, where GEAR over-samples and resamples. Draws without
      replacement are an exponential race: the smallest `E_i / w_i` win (Efraimidis & Spirakis 2006).

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris.replay import init, insert
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=4, length=3)
      >>> table = insert(table, {"reward": jnp.zeros((3, 3))}, weight=jnp.array([1.0, 0.0, 3.0]))
      >>> select(table, jax.random.key(0), 2, by="top").row.tolist()
      [2, 0]
      >>> drawn = select(table, jax.random.key(0), 1000, by="weight")
      >>> bool(abs((drawn.row == 2).mean() - 0.75) < 0.05), sorted({*drawn.probability.tolist()})
      (True, [0.25, 0.75])
    """
    check_one(table)
    shards = 1 if axis is None else jax.lax.axis_size(axis)
    check_count(table.capacity * shards, count, by=by, replace=replace)
    checks.key(key=key)
    selection: Selection = _select(table, key, count, by, replace, axis)
    return selection


def check_count(capacity: int, count: int, *, by: By, replace: bool) -> None:
    """Raises the errors of `select` for its arguments.

    Args:
      capacity: the table's capacity, summed over shards.
      count: number of trajectories in the batch.
      by: the rule of `select`.
      replace: whether a trajectory may be drawn again.
    """
    if by not in ("uniform", "weight", "top"):
        raise ValueError(f"by={by!r}: expected 'uniform', 'weight' or 'top'")
    checks.whole(at_least=1, count=count)
    if not isinstance(replace, bool | np.bool_):
        raise TypeError(f"replace={replace!r}: expected True or False")
    if (by == "top" or not replace) and count > capacity:
        raise ValueError(f"count={count}: without replacement at most {capacity} can be drawn, the table's capacity")


@functools.partial(jax.jit, static_argnums=(2, 3, 4, 5))
def _select(table: Table, key: jax.Array, count: int, by: By, replace: bool, axis: str | None) -> Selection:
    if by == "top":
        return _top(table, count, axis)
    if by == "uniform" and replace:
        return _uniform(table, key, count, axis)
    tree = table.weights
    if by == "uniform":
        tree = weight_tree.build((table.number >= 0).astype(jnp.float32))
    if replace:
        return _weighted(table, tree, key, count, axis)
    return _race(table, tree, key, count, axis)


def _uniform(table: Table, key: jax.Array, count: int, axis: str | None) -> Selection:
    """Draws trajectories uniformly with replacement, by numbers that count through all shards."""
    sizes = _of_all(table.size, axis)
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    drawn = below(key, jnp.maximum(ends[-1], 1), (count,))
    # For an empty table the row is clipped into range, because `gather` reads it in spite of the fault.
    shard = jnp.minimum(jnp.searchsorted(ends, drawn, side="right"), len(sizes) - 1).astype(jnp.int32)
    row = drawn - (ends - sizes)[shard]
    probability = jnp.broadcast_to(1.0 / jnp.maximum(ends[-1], 1), (count,)).astype(jnp.float32)
    return Selection(shard * table.capacity + row, probability, jnp.where(ends[-1] > 0, 0, EMPTY))


def _weighted(table: Table, tree: WeightTree, key: jax.Array, count: int, axis: str | None) -> Selection:
    """Draws by weight with replacement: first a shard by the shards' totals, then a trajectory by that shard's tree.

    The totals act as one more level on top of the trees, so the probabilities equal an unsharded table's.
    """
    totals = _of_all(weight_tree.total(tree), axis)
    random = jax.random.uniform(key, (len(tree) + (axis is not None), count), jnp.float32)
    row = weight_tree.draw(tree, random[: len(tree)])
    shard = jnp.zeros_like(row)
    if axis is not None:
        shard = weight_tree.choose(jnp.broadcast_to(totals, (count, len(totals))), random[-1])
    here = jnp.int32(0) if axis is None else jax.lax.axis_index(axis)
    index = _sum(jnp.where(shard == here, here * table.capacity + row, 0), axis)
    weight = _sum(jnp.where(shard == here, tree[0][row], 0.0), axis)
    total = totals.sum()
    return Selection(index, weight / jnp.where(total > 0, total, 1.0), jnp.where(total > 0, 0, EMPTY))


def _race(table: Table, tree: WeightTree, key: jax.Array, count: int, axis: str | None) -> Selection:
    """Draws without replacement: arrival times are exponential with the weights as rates, and the first `count` win.

    The time to a shard's next arrival is exponential with the total of its remaining weights as its rate, so each shard
    draws its trajectories one after the other and the shards then compare times. A time that overflows float32 is set
    to the largest number, because an infinite time means that nothing is left to draw.
    """
    here = jnp.int32(0) if axis is None else jax.lax.axis_index(axis)
    many = min(count, table.capacity)
    of_times, of_rows = jax.random.split(jax.random.fold_in(key, here))
    waits = jax.random.exponential(of_times, (many,), jnp.float32)
    points = jax.random.uniform(of_rows, (many, len(tree), 1), jnp.float32)

    def draw(carry: tuple[WeightTree, jax.Array], random: tuple[jax.Array, jax.Array]):  # type: ignore[no-untyped-def]
        tree, time = carry
        wait, point = random
        left = weight_tree.total(tree)
        row = weight_tree.draw(tree, point)
        arrival = jnp.minimum(time + wait / jnp.where(left > 0, left, 1.0), largest(jnp.float32))
        time = jnp.where(left > 0, arrival, jnp.inf)
        return (weight_tree.update(tree, row, jnp.zeros(1, jnp.float32)), time), (row[0], time)

    _, (row, time) = jax.lax.scan(draw, (tree, jnp.float32(0.0)), (waits, points))
    total = _of_all(weight_tree.total(tree), axis).sum()
    times = _of_all(time, axis).ravel()
    index = _of_all(here * table.capacity + row, axis).ravel()
    weight = _of_all(tree[0][row], axis).ravel()
    _, first = jax.lax.top_k(-times, count)
    faults = jnp.where(jnp.isfinite(times[first]).all(), 0, jnp.where(total > 0, TOO_FEW, EMPTY))
    return Selection(index[first], weight[first] / jnp.where(total > 0, total, 1.0), faults)


def _top(table: Table, count: int, axis: str | None) -> Selection:
    """Selects the largest weights: each shard finds its largest, and the largest of all shards are kept."""
    weight, row = _largest(table.weights[0], min(count, table.capacity))
    here = jnp.int32(0) if axis is None else jax.lax.axis_index(axis)
    weights = _of_all(weight, axis).ravel()
    index = _of_all(here * table.capacity + row, axis).ravel()
    weight, first = jax.lax.top_k(weights, count)
    faults = jnp.where(weight[-1] > 0, 0, jnp.where(weight[0] > 0, TOO_FEW, EMPTY))
    return Selection(index[first], jnp.ones(count, jnp.float32), faults)


def _largest(weights: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The largest weights and their rows; only the `count` blocks with the largest maxima can contain them."""
    blocks = weights.reshape(-1, weight_tree.FANOUT)
    if len(blocks) <= count:
        weight, row = jax.lax.top_k(weights, count)
        return weight, row
    _, block = jax.lax.top_k(blocks.max(1), count)
    block = jnp.sort(block)  # so that equal weights keep the order of their rows
    weight, place = jax.lax.top_k(blocks[block].ravel(), count)
    return weight, block[place // weight_tree.FANOUT] * weight_tree.FANOUT + place % weight_tree.FANOUT


def importance_weights(
    probability: Float[Array, " k"], size: Int[Array, ""] | int, *, beta: Scalar
) -> Float[jax.Array, " k"]:
    """Computes weights that correct a loss for non-uniform draws: `(size * probability) ** -beta`, scaled to maximum 1.

    Probabilities and weights below the smallest normal number of their dtype (1e-38 for float32) are set to it.

    Args:
      probability: `[k]` probabilities of the drawn trajectories.
      size: the number of trajectories to draw from.
      beta: 0 for no correction, 1 for the full one. It is usually annealed up to 1, for example by
        `optax.linear_schedule(0.4, 1.0, steps)(step)`.

    Returns:
      The weights `[k]` in (0, 1].

    Raises:
      TypeError: if `probability` is not floating point.
      ValueError: if `beta` is not between 0 and 1.

    Source:
      Prioritized Experience Replay (Schaul et al. 2016), section 3.4; priorities are weights `|error| ** alpha`.

    Example:
      >>> import jax.numpy as jnp
      >>> importance_weights(jnp.array([0.5, 0.125]), 4, beta=1.0).tolist()
      [0.25, 1.0]
    """
    checks.floats(probability=probability)
    checks.between_zero_and_one(beta=beta)
    chance = jnp.asarray(probability)
    wide = at_least_float32(chance.dtype)
    weights = jnp.maximum(size * chance.astype(wide), np.finfo(wide).tiny) ** -beta
    least = jnp.finfo(chance.dtype).tiny  # type: ignore[no-untyped-call]
    return jnp.maximum((weights / weights.max()).astype(chance.dtype), least)


def _of_all(value: jax.Array, axis: str | None) -> jax.Array:
    """Gathers the value of every shard, `[shards, ...]`."""
    return value[None] if axis is None else jax.lax.all_gather(value, axis)


def _sum(value: jax.Array, axis: str | None) -> jax.Array:
    return value if axis is None else jax.lax.psum(value, axis)  # type: ignore[no-untyped-call]
