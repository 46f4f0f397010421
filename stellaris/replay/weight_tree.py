"""A sum tree of non-negative weights with wide nodes: draws and changes of weights in O(log n).

Level 0 holds the weights; each node of the next level is the sum of `FANOUT` neighbours. An update sums a node's
children again rather than adding a difference, so sums do not drift and a branch of zeros has a sum of exactly zero.
"""

import functools
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

#: The levels, from the weights `[n]` padded with zeros to a multiple of `FANOUT`, up to at most `FANOUT` sums.
WeightTree: TypeAlias = tuple[Float[jax.Array, "..."], ...]

#: Children of a node. A draw reads all children of one node per level: with fewer children there are more levels, with
#: more children each read is longer.
FANOUT = 16


def build(weights: Float[jax.Array, " n"]) -> WeightTree:
    """Builds the tree of `n` weights, in O(n).

    Args:
      weights: `[n]`, not negative.

    Returns:
      The tree's levels, from the weights up.
    """
    levels = [_padded(weights)]
    while len(levels[-1]) > FANOUT:
        levels.append(_padded(levels[-1].reshape(-1, FANOUT).sum(1)))
    return tuple(levels)


def total(tree: WeightTree) -> Float[jax.Array, ""]:
    """The sum of all weights."""
    return tree[-1].sum()


def draw(tree: WeightTree, random: Float[jax.Array, "levels k"]) -> Int[jax.Array, " k"]:
    """Draws indices with probabilities proportional to their weights, in O(log n).

    Each level uses a separate random number. A single float32 has 24 bits, too few for a million weights: some would be
    drawn a tenth too often and others never.

    Args:
      tree: the tree of `n` weights.
      random: `[levels, k]`, uniform in `[0, 1)`.

    Returns:
      Indices `[k]`. A weight of zero is never drawn, even if sums are rounded. If all weights are zero, the index is 0.
    """
    node = jnp.zeros(random.shape[1], jnp.int32)
    for level, point in zip(reversed(tree), random, strict=True):
        node = node * FANOUT + choose(level.reshape(-1, FANOUT)[node], point)
    return node


def choose(weights: Float[jax.Array, "k n"], random: Float[jax.Array, " k"]) -> Int[jax.Array, " k"]:
    """Chooses per row the last positive weight whose preceding running sum is at most `random` times the row's sum.

    Args:
      weights: `[k, n]`, not negative.
      random: `[k]`, uniform in `[0, 1)`.

    Returns:
      Indices `[k]`; 0 for a row of zeros.
    """
    # The sum runs column by column, which compiles to one pass; a cumulative sum takes three times as long.
    columns = [weights[:, i] for i in range(weights.shape[1])]
    point = random * functools.reduce(jnp.add, columns)
    start = jnp.zeros_like(point)
    chosen = jnp.zeros(point.shape, jnp.int32)
    for i, weight in enumerate(columns):
        chosen = jnp.where((weight > 0) & (start <= point), i, chosen)
        start += weight
    return chosen


def update(tree: WeightTree, index: Int[jax.Array, " k"], weights: Float[jax.Array, " k"]) -> WeightTree:
    """Replaces the weights at `k` indices, in O(k log n).

    Args:
      tree: the tree of `n` weights.
      index: `[k]`; an index of `n` or above is ignored. If an index occurs twice, its last weight counts.
      weights: `[k]`, not negative.

    Returns:
      The tree's levels.
    """
    # Every occurrence of an index writes the weight of its last one, because the order of a scatter is undefined.
    order = jnp.argsort(index, stable=True)
    ordered = index[order]
    ends = jnp.searchsorted(ordered, ordered, side="right") - 1
    levels = [tree[0].at[ordered].set(weights[order][ends], mode="drop")]
    node = ordered
    for level in tree[1:]:
        node = node // FANOUT
        sums = levels[-1].reshape(-1, FANOUT).at[node].get(mode="fill", fill_value=0).sum(1)
        levels.append(level.at[node].set(sums, mode="drop"))
    return tuple(levels)


def _padded(weights: Float[jax.Array, " n"]) -> Float[jax.Array, " padded"]:
    """Weights padded with zeros to a multiple of `FANOUT`."""
    return jnp.pad(weights, (0, math.ceil(len(weights) / FANOUT) * FANOUT - len(weights)))
