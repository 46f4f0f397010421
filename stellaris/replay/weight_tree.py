"""Sums of non-negative weights in a tree of wide nodes: a weighted draw, or a change of weights, in O(log n).

Level 0 holds the weights; each node of the next level is the sum of `FANOUT` neighbours. Sums are always computed from
what is below and never by differences, so that they do not drift, and a branch of zeros has a sum of exactly zero.
"""

import functools
import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

#: The levels, from the weights `[n]` padded with zeros to a multiple of `FANOUT`, up to at most `FANOUT` sums.
WeightTree: TypeAlias = tuple[Float[jax.Array, "..."], ...]

#: Children of a node. A draw reads so many numbers per level: fewer make more levels, more are more to read.
FANOUT = 16


def build(weights: Float[jax.Array, " n"]) -> WeightTree:
    """The tree of `n` weights, in O(n).

    Args:
      weights: `[n]`, not negative.

    Returns:
      Its levels.
    """
    levels = [_padded(weights)]
    while len(levels[-1]) > FANOUT:
        levels.append(_padded(levels[-1].reshape(-1, FANOUT).sum(1)))
    return tuple(levels)


def total(tree: WeightTree) -> Float[jax.Array, ""]:
    """The sum of all weights."""
    return tree[-1].sum()


def draw(tree: WeightTree, random: Float[jax.Array, "levels k"]) -> Int[jax.Array, " k"]:
    """Draws weights, each with a chance in proportion to it, in O(log n).

    Every level has a random number of its own. One number for all would have as many values as a float has digits:
    too few for a million weights, some of which would come a tenth too often and others never.

    Args:
      tree: of `n` weights.
      random: `[levels, k]`, uniform in `[0, 1)`.

    Returns:
      Indices `[k]`. A weight of zero is never drawn, however sums round, unless all are zero: then it is the first.
    """
    node = jnp.zeros(random.shape[1], jnp.int32)
    for level, point in zip(reversed(tree), random, strict=True):
        node = node * FANOUT + choose(level.reshape(-1, FANOUT)[node], point)
    return node


def choose(weights: Float[jax.Array, "k n"], random: Float[jax.Array, " k"]) -> Int[jax.Array, " k"]:
    """In each row the last weight, of those above zero, before which the running sum is at most a random part of all.

    Args:
      weights: `[k, n]`, not negative.
      random: `[k]`, uniform in `[0, 1)`.

    Returns:
      Indices `[k]`; of a row of zeros the first.
    """
    # Column by column, which compiles to one pass; a cumulative sum takes three times as long.
    columns = [weights[:, i] for i in range(weights.shape[1])]
    point = random * functools.reduce(jnp.add, columns)
    start = jnp.zeros_like(point)
    chosen = jnp.zeros(point.shape, jnp.int32)
    for i, weight in enumerate(columns):
        chosen = jnp.where((weight > 0) & (start <= point), i, chosen)
        start += weight
    return chosen


def update(tree: WeightTree, index: Int[jax.Array, " k"], weights: Float[jax.Array, " k"]) -> WeightTree:
    """The tree with other weights at `k` places, in O(k log n).

    Args:
      tree: of `n` weights.
      index: `[k]`; what is `n` or above changes nothing; of the same index twice the last counts.
      weights: `[k]`, not negative.

    Returns:
      Its levels.
    """
    # Where an index comes again all have the weight of the last: the order of a scatter is not defined.
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
    """With zeros, up to a multiple of `FANOUT`."""
    return jnp.pad(weights, (0, math.ceil(len(weights) / FANOUT) * FANOUT - len(weights)))
