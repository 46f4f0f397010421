"""Makes batches of actors' fragments, splits them into gradient tasks, and counts the transitions learned from."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.acting.normalisation import Normaliser, Statistics
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.algorithms import Algorithm
from stellaris.memory import Sequences
from stellaris.runtime.references import size
from stellaris.runtime.state.registry import register_value
from stellaris.types import NDArray, Trajectory, Tree, concatenate

#: Two successive policies are compared on at most this many observations of a batch. With many more, a comparison would
#: cost as much as a gradient.
SAMPLE = 256


@register_value
@dataclass(eq=False)
class LearnerBatch:
    """A batch on the device, with a record of the transitions that were learned from.

    The algorithm divides the batch into items, which are steps or trajectories; a minibatch is a set of items.
    """

    number: int  #: number of the batch, from 1.
    batch: Any  #: the data that the algorithm prepared.
    indices: NDArray  #: `[gradients, m]` int32: the items of each minibatch, in the order of `Algorithm.minibatches`.
    statistics: Statistics  #: statistics of the batch's observations and returns.
    unseen: NDArray  #: `[items]` int32: the number of each item's transitions that no applied gradient has seen yet.
    left: int  #: number of gradients that are still to be applied or dropped.
    rows: int | None  #: rows to which the learner's program pads `indices`; None for no padding.
    #: `[n, *obs]`: at most `SAMPLE` observations, on which successive policies are compared; `Sequences` with a memory.
    sample: Tree

    @property
    def nbytes(self) -> int:
        """The bytes that a learner of the whole batch fetches."""
        return size(self.batch)

    @property
    def minibatches(self) -> list["GradientTask"]:
        """The tasks of the batch's gradients, in order."""
        return [GradientTask(self, row, number) for number, row in enumerate(self.indices)]

    @property
    def unlearned(self) -> int:
        """The number of transitions that no applied gradient has seen yet."""
        return int(self.unseen.sum())

    def learn(self, indices: NDArray) -> int:
        """Counts a gradient on these items as applied; returns how many transitions no earlier gradient had seen."""
        left = self.unlearned
        self.unseen[indices[indices < len(self.unseen)]] = 0  # indices past the last item are padding
        self.left -= 1
        return left - self.unlearned

    def drop(self) -> None:
        """Counts one gradient as dropped; its transitions stay unlearned, unless another gradient sees them."""
        self.left -= 1

    def mark_seen(self) -> None:
        """Marks all transitions as seen: an earlier batch of the same fragments was learned from."""
        self.unseen[:] = 0


@register_value
@dataclass(frozen=True, eq=False)
class GradientTask:
    """A gradient to be computed, on one minibatch of a batch."""

    data: LearnerBatch
    indices: NDArray  #: `[m]` int32: the items of the minibatch.
    number: int  #: number of the minibatch in the batch, from 0.

    @property
    def nbytes(self) -> int:
        """The bytes that a learner of this minibatch fetches: its share of the batch."""
        return self.data.nbytes * len(self.indices) // len(self.data.unseen)


def batch_of(
    fragments: Sequence[Fragment],
    *,
    number: int = 1,
    width: int | None = None,
    algorithm: Algorithm,
    policy: Policy,
    target: PolicyVersion,
    key: jax.Array,
) -> LearnerBatch:
    """Makes a batch of fragments.

    Args:
      fragments: fragments of equal length.
      number: number of the batch.
      width: the number of fragments that the arrays have room for. Batches of the same width share compiled programs.
        Unused room is padding, which is marked invalid and is in no minibatch. None for no padding.
      algorithm: the algorithm, which prepares the batch.
      policy: the policy that chose the actions.
      target: a policy version, whose normaliser scales rewards, and for algorithms that need a policy other than the
        behaviour policy.
      key: random key of the shuffles.
    """
    trajectory = concatenate([fragment.trajectory for fragment in fragments])
    statistics = functools.reduce(Statistics.merge, (fragment.statistics for fragment in fragments))
    wide = trajectory if width is None else _widened(trajectory, width)
    batch = _prepared(wide, target, statistics.normaliser(), algorithm=algorithm, policy=policy)
    indices = np.asarray(_shuffled(key, batch, algorithm=algorithm))
    # The array is copied, because the NumPy view of a device array is read-only.
    # The algorithm protocol does not give the number of items, so it is derived from the largest index. If minibatches
    # are padded, the largest index is that of the padding, which then counts as one more item without transitions.
    unseen = np.array(_transitions(batch, algorithm=algorithm, items=int(indices.max()) + 1))
    # The rows of `indices` are counted before items without transitions are removed, so that all batches of one width
    # are padded to the same number of rows.
    rows = None if width is None else len(indices)
    # A minibatch with room for the whole batch keeps an epoch to itself: the batch then has as many gradients as
    # epochs, whatever its number of fragments.
    if width is not None and len(fragments) < width and indices.shape[1] < len(unseen):
        indices = _without_empty(indices, unseen)
    # The sample is of the trajectory without padding, because policies are compared on observed states.
    sample = _sample(trajectory, width or len(fragments))
    return LearnerBatch(number, batch, indices, statistics, unseen, left=len(indices), rows=rows, sample=sample)


def _widened(trajectory: Trajectory, width: int) -> Trajectory:
    """Returns a trajectory padded with invalid columns up to `width`."""
    missing = width - trajectory.valid.shape[1]

    def widened(x: NDArray) -> NDArray:
        return np.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)])

    wider: Trajectory = jax.tree.map(widened, trajectory)
    return wider


def _without_empty(indices: NDArray, transitions: NDArray) -> NDArray:
    """Removes items without transitions from the minibatches; other items stay in order, in fewer minibatches.

    A minibatch may then hold the end of one epoch and the start of the next.
    """
    items = indices[indices < len(transitions)]
    items = items[transitions[items] > 0]
    length = indices.shape[1]
    # Without any transition one minibatch of padding remains, because a learner takes at least one gradient.
    beyond = np.full(-len(items) % length if len(items) else length, len(transitions), indices.dtype)
    return np.concatenate([items, beyond]).reshape(-1, length)


def _sample(trajectory: Trajectory, width: int) -> Tree:
    """Returns some of the observations `[T + 1, B, *obs]`, evenly spaced over steps and actors.

    Their number depends on `width` and not on B, so that one compiled program serves all batches of this width. If the
    trajectory has fewer observations, some are repeated. With a memory, the sample is of whole sequences, evenly spaced
    over actors.
    """
    if trajectory.memory is not None:
        steps, actors = trajectory.valid.shape
        several = min(max(SAMPLE // (steps + 1), 1), width)
        chosen = np.linspace(0, actors - 1, several).astype(int)
        some: Trajectory = jax.tree.map(lambda leaf: np.asarray(leaf)[:, chosen], trajectory)
        return jax.tree.map(np.asarray, Sequences.of(some))

    def spaced(leaf: NDArray) -> NDArray:
        flat = leaf.reshape(-1, *leaf.shape[2:])
        return np.asarray(flat[np.linspace(0, len(flat) - 1, min(SAMPLE, len(leaf) * width)).astype(int)])

    return jax.tree.map(spaced, trajectory.observation)


def unlearned(batches: Iterable[LearnerBatch]) -> int:
    """Returns the number of transitions that no applied gradient has seen; a batch listed twice counts once."""
    return sum({id(data): data.unlearned for data in batches}.values())


@functools.partial(jax.jit, static_argnames=("algorithm", "policy"))
def _prepared(
    trajectory: Trajectory, target: PolicyVersion, own: Normaliser, *, algorithm: Algorithm, policy: Policy
) -> Any:
    scaled = trajectory._replace(reward=target.normaliser.rewards(trajectory.reward, own))
    return algorithm.prepare(scaled, policy.apply, target)


@functools.partial(jax.jit, static_argnames="algorithm")
def _shuffled(key: jax.Array, batch: Any, *, algorithm: Algorithm) -> Any:
    return algorithm.minibatches(key, batch)


@functools.partial(jax.jit, static_argnames=("algorithm", "items"))
def _transitions(batch: Any, *, algorithm: Algorithm, items: int) -> jax.Array:
    """Returns the number of transitions in each item; the algorithm decides whether items are steps or trajectories."""
    return jax.vmap(lambda item: jnp.sum(algorithm.select(batch, item[None]).valid))(jnp.arange(items))
