"""Which trajectories a batch is made of: drawn on the device, from one table or from all shards of one.

Within a `jax.shard_map` over a mesh axis each device has a shard, and `axis` names that axis. All devices then draw
the same trajectories of all shards from the shards' totals, which they exchange, with the chances of one table. Such a
`shard_map` needs `check_vma=False`: JAX cannot prove that what was drawn is the same on all devices.
"""

import functools
from typing import Literal, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.replay import weight_tree
from stellaris.replay.table import EMPTY, TOO_FEW, Table
from stellaris.replay.weight_tree import WeightTree
from stellaris.replay.whole_numbers import below
from stellaris.types import Array, Scalar, at_least_float32, largest

#: How trajectories are chosen: with equal chances, with chances in proportion to their weights, or by largest weight.
By: TypeAlias = Literal["uniform", "weight", "top"]


class Selection(NamedTuple):
    """Trajectories of a batch."""

    row: Int[jax.Array, " k"]  #: of the table; of shards, counted through all of them.
    probability: Float[jax.Array, " k"]  #: the chance of each at every draw; without replacement, at the first.
    faults: Int[jax.Array, ""]  #: what went wrong; see `check`. If it is not 0, collecting gives an empty mask.


def select(
    table: Table, key: jax.Array, count: int, *, by: By = "uniform", replace: bool = True, axis: str | None = None
) -> Selection:
    """Draws the trajectories of a batch.

    With replacement a draw takes O(log capacity) by weight, and O(1) uniformly. Without it, it takes as long, beside
    one copy of the weights for all. The top takes one look at every weight.

    Args:
      table: or, within `shard_map`, this device's shard of it.
      key: of the draws; the same on all devices. The top draws nothing.
      count: trajectories of the batch, of all devices together.
      by: `"uniform"`, `"weight"`, or `"top"`: those of the largest weights, in order, of equal ones the first rows.
      replace: whether a trajectory may come again. The top has none twice.
      axis: of the mesh, within `shard_map`; None for one table.

    Returns:
      The selection. An empty table, or too few trajectories to choose from, set a flag: see `check`.

    Raises:
      ValueError: if `by` is unknown, `count` is below 1, or without replacement above the table's capacity.

    Source:
      GEAR (ICML 2023), trajectory selection; here exactly, in place of over-sampling and resampling. Without
      replacement the draws are an exponential race: the first of `E_i / w_i` wins (Efraimidis & Spirakis 2006).

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
    shards = 1 if axis is None else jax.lax.axis_size(axis)
    check_count(table.capacity * shards, count, by=by, replace=replace)
    selection: Selection = _select(table, key, count, by, replace, axis)
    return selection


def check_count(capacity: int, count: int, *, by: By, replace: bool) -> None:
    """Raises unless `select` can draw so many.

    Args:
      capacity: of the table, or of all shards together.
      count: to draw.
      by: likewise.
      replace: likewise.
    """
    if by not in ("uniform", "weight", "top"):
        raise ValueError(f"by={by!r}: expected 'uniform', 'weight' or 'top'")
    checks.whole(at_least=1, count=count)
    if (by == "top" or not replace) and count > capacity:
        raise ValueError(f"count={count}: without replacement there are at most {capacity}")


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
    """Numbers of trajectories, counted through the shards."""
    sizes = _of_all(table.size, axis)
    ends = jnp.cumsum(sizes, dtype=jnp.int32)
    drawn = below(key, jnp.maximum(ends[-1], 1), (count,))
    # Of an empty table a row is named that is there, though it is not to be used: collecting reads it.
    shard = jnp.minimum(jnp.searchsorted(ends, drawn, side="right"), len(sizes) - 1).astype(jnp.int32)
    row = drawn - (ends - sizes)[shard]
    probability = jnp.broadcast_to(1.0 / jnp.maximum(ends[-1], 1), (count,)).astype(jnp.float32)
    return Selection(shard * table.capacity + row, probability, jnp.where(ends[-1] > 0, 0, EMPTY))


def _weighted(table: Table, tree: WeightTree, key: jax.Array, count: int, axis: str | None) -> Selection:
    """By the shards' totals one of these, and in it a trajectory: as if the totals were a tree's highest level."""
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
    """Without replacement: each trajectory arrives after an exponential time of its weight's rate, and the first win.

    The next arrival of a shard is exponential, too, of the rate of what is left there: so a shard draws its own
    trajectories one after the other, and the shards compare times. A time beyond float32 is the largest number, because
    an infinite time says that nothing is left to draw.
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
    """The largest of each shard's largest."""
    weight, row = _largest(table.weights[0], min(count, table.capacity))
    here = jnp.int32(0) if axis is None else jax.lax.axis_index(axis)
    weights = _of_all(weight, axis).ravel()
    index = _of_all(here * table.capacity + row, axis).ravel()
    weight, first = jax.lax.top_k(weights, count)
    faults = jnp.where(weight[-1] > 0, 0, jnp.where(weight[0] > 0, TOO_FEW, EMPTY))
    return Selection(index[first], jnp.ones(count, jnp.float32), faults)


def _largest(weights: jax.Array, count: int) -> tuple[jax.Array, jax.Array]:
    """The largest weights and their rows: of blocks, those whose maxima are the largest hold them."""
    blocks = weights.reshape(-1, weight_tree.FANOUT)
    if len(blocks) <= count:
        weight, row = jax.lax.top_k(weights, count)
        return weight, row
    _, block = jax.lax.top_k(blocks.max(1), count)
    block = jnp.sort(block)  # so that of equal weights the first rows come first
    weight, place = jax.lax.top_k(blocks[block].ravel(), count)
    return weight, block[place // weight_tree.FANOUT] * weight_tree.FANOUT + place % weight_tree.FANOUT


def importance_weights(
    probability: Float[Array, " k"], size: Int[Array, ""] | int, *, beta: Scalar
) -> Float[jax.Array, " k"]:
    """What corrects a loss for draws that were not uniform: `(size * probability) ** -beta`, over the largest of these.

    Chances and weights below the least normal number of their dtype, 1e-38 for float32, count as this number.

    Args:
      probability: `[k]` of what was drawn.
      size: trajectories to draw from.
      beta: 0 corrects nothing, 1 everything. It is usually annealed up to 1, such as by
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
    """The value of every shard, `[shards, ...]`."""
    return value[None] if axis is None else jax.lax.all_gather(value, axis)


def _sum(value: jax.Array, axis: str | None) -> jax.Array:
    return value if axis is None else jax.lax.psum(value, axis)  # type: ignore[no-untyped-call]
