"""The minibatches of a batch whose number of fragments is known only in the compiled program.

`systems.batches` pads a batch of few fragments to one of a few widths, shuffles the items of that width, and removes
the padding. The program pads every batch to the same width. It shuffles for each of the widths, and takes the indices
of the one that the event loop would use. If every minibatch is the whole batch, the program does not shuffle, because
the order of the samples then changes the gradient by rounding only.
"""

import functools
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.algorithms import PPO
from stellaris.scheduling.rules import Maximum
from stellaris.systems.batches import SAMPLE
from stellaris.systems.rounds import Scheduled
from stellaris.types import NDArray


class Widths(NamedTuple):
    """The widths of batches, by number of fragments."""

    distinct: tuple[int, ...]  #: ascending.
    which: tuple[int, ...]  #: `[most]`: for 1, 2, ... fragments, the index of their width.

    @staticmethod
    def of(actors: int, most: int) -> "Widths":
        """Returns the widths of batches of up to `most` fragments, in a workload with so many actors."""
        width = Scheduled(Maximum()).width
        widths = [width(fragments, actors) for fragments in range(1, most + 1)]
        distinct = sorted(set(widths))
        return Widths(tuple(distinct), tuple(distinct.index(one) for one in widths))


def whole(ppo: PPO, length: int, widths: Widths) -> bool:
    """Returns whether every minibatch is the whole batch, so that `minibatches` does not shuffle."""
    return ppo.minibatch_size >= length * widths.distinct[-1]


def minibatches(
    ppo: PPO, key: jax.Array, batch: Any, length: int, fragments: jax.Array, widths: Widths
) -> tuple[jax.Array, jax.Array]:
    """Returns the indices of a batch's minibatches, and their number.

    Args:
      ppo: the algorithm.
      key: key of the shuffles.
      batch: the batch, padded to the largest number of fragments; item `t * most + b` is step `t` of fragment `b`.
      length: steps of a fragment.
      fragments: the number of fragments.
      widths: the widths of batches.

    Returns:
      int32 `[G, m]`, padded with an index beyond the batch, and the number of rows to learn from.
    """
    most = len(widths.which)
    beyond = length * most
    if whole(ppo, length, widths):
        every = jnp.broadcast_to(jnp.arange(beyond, dtype=jnp.int32), (ppo.epochs, beyond))
        return every, jnp.int32(ppo.epochs)
    chosen = [_of_width(ppo, key, batch, length, most, width, fragments) for width in widths.distinct]
    rows, columns = (max(indices.shape[axis] for indices, _ in chosen) for axis in (0, 1))

    def padded(indices: jax.Array) -> jax.Array:
        room = [(0, rows - indices.shape[0]), (0, columns - indices.shape[1])]
        return jnp.pad(indices, room, constant_values=beyond)

    which = jnp.asarray(widths.which)[fragments - 1]
    indices = jnp.stack([padded(indices) for indices, _ in chosen])
    return indices[which], jnp.stack([count for _, count in chosen])[which]


def _of_width(
    ppo: PPO, key: jax.Array, batch: Any, length: int, most: int, width: int, fragments: jax.Array
) -> tuple[jax.Array, jax.Array]:
    """Returns the minibatches that a batch of this width has, as indices of the batch of width `most`."""
    items, beyond = length * width, length * most
    # Only the shape of the batch matters to `minibatches`.
    like = jax.tree.map(lambda x: jnp.zeros((items, *x.shape[1:]), x.dtype), batch)
    indices = jnp.asarray(ppo.minibatches(key, like), jnp.int32)
    step, fragment = indices // width, indices % width
    there = (indices < items) & (fragment < most)
    wide = jnp.where(there, step * most + fragment, beyond)
    rows = jnp.int32(len(indices))
    if indices.shape[1] >= items:  # each minibatch is the whole batch
        return wide, rows
    flat = wide.ravel()
    kept = jnp.take(batch.valid, flat, mode="fill", fill_value=False)
    place = jnp.where(kept, jnp.cumsum(kept, dtype=jnp.int32) - 1, flat.size)
    joined = jnp.full(flat.size, beyond, jnp.int32).at[place].set(flat, mode="drop").reshape(indices.shape)
    # A batch without any transition has one minibatch of padding, as in `systems.batches`.
    used = jnp.maximum(-(-jnp.sum(kept, dtype=jnp.int32) // indices.shape[1]), 1)
    full = fragments == width
    return jnp.where(full, wide, joined), jnp.where(full, rows, used)


class Samples(NamedTuple):
    """The observations on which successive policies are compared, by number of fragments."""

    place: NDArray  #: int32 `[most, s]`: indices of observations `[(T + 1) * most]`.
    weight: NDArray  #: float32 `[most, s]`: their weights, which sum to 1.


@functools.cache
def samples(length: int, widths: Widths) -> Samples:
    """Returns where the observations of a batch are that `systems.batches` samples, for each number of fragments."""
    most = len(widths.which)
    place = np.zeros((most, min(SAMPLE, (length + 1) * widths.distinct[-1])), np.int32)
    weight = np.zeros(place.shape, np.float32)
    for i, which in enumerate(widths.which):
        fragments, count = i + 1, min(SAMPLE, (length + 1) * widths.distinct[which])
        own = np.linspace(0, (length + 1) * fragments - 1, count).astype(int)
        place[i, :count] = own // fragments * most + own % fragments
        weight[i, :count] = 1 / count
    return Samples(place, weight)
