"""Sums of non-negative weights in a tree of wide nodes: a weighted draw, or a change of weights, in O(log n).

Level 0 holds the weights; each node of the next level is the sum of `FANOUT` neighbours. Sums are always computed from
what is below and never by differences, so that they do not drift, and a branch of zeros has a sum of exactly zero.
"""

import math
from typing import TypeAlias

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int

#: The levels, from the weights `[n]` padded with zeros to a multiple of `FANOUT`, up to at most `FANOUT` sums.
WeightTree: TypeAlias = tuple[Float[jax.Array, "..."], ...]

#: Children of a node. A draw reads so many numbers per level: wide nodes make few levels, whose reads are vectorised.
FANOUT = 32


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
    """The sum of all weights, as `find` has it."""
    return jnp.cumsum(tree[-1])[-1]


def find(tree: WeightTree, targets: Float[jax.Array, " k"]) -> Int[jax.Array, " k"]:
    """For each target the first weight at which the running sum of the weights exceeds it.

    With targets that are uniform in `[0, total)` each weight is found with a chance in proportion to it. A weight of
    zero is never found, however sums round, unless all are zero.

    Args:
      tree: of `n` weights.
      targets: `[k]`.

    Returns:
      Indices `[k]`.
    """
    node = jnp.zeros(targets.shape, jnp.int32)
    for level in reversed(tree):
        children = level.reshape(-1, FANOUT)[node]
        sums = jnp.cumsum(children, axis=1)
        # Rounding may have made a target larger than the last sum: then it is the last child that has any weight.
        last = FANOUT - 1 - jnp.argmax(children[:, ::-1] > 0, axis=1)
        child = jnp.minimum((sums <= targets[:, None]).sum(1), last)
        before = jnp.where(child > 0, jnp.take_along_axis(sums, (child - 1)[:, None], 1, mode="clip")[:, 0], 0.0)
        targets = targets - before
        node = node * FANOUT + child.astype(jnp.int32)
    return node


def update(tree: WeightTree, index: Int[jax.Array, " k"], weights: Float[jax.Array, " k"]) -> WeightTree:
    """The tree with other weights at `k` places, in O(k log n).

    Args:
      tree: of `n` weights.
      index: `[k]`; what is outside of the tree changes nothing; of the same index twice the last counts.
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
        sums = levels[-1].reshape(-1, FANOUT).at[node].get(mode="clip").sum(1)
        levels.append(level.at[node].set(sums, mode="drop"))
    return tuple(levels)


def _padded(weights: Float[jax.Array, " n"]) -> Float[jax.Array, " padded"]:
    """With zeros, up to a multiple of `FANOUT`."""
    return jnp.pad(weights, (0, math.ceil(len(weights) / FANOUT) * FANOUT - len(weights)))
