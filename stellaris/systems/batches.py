"""Batches of fragments, their gradient tasks, and which of their transitions were learned from."""

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.algorithms import Algorithm
from stellaris.runtime.references import size
from stellaris.runtime.state.registry import register_value
from stellaris.types import NDArray, Trajectory, Tree, concatenate

#: Successive policies are compared on this many observations of a batch: more would cost as much as a gradient.
SAMPLE = 256


@register_value
@dataclass(eq=False)
class LearnerBatch:
    """A batch on the device, and a count of the transitions that were learned from."""

    number: int  #: from 1.
    batch: Any  #: the algorithm's batch.
    indices: NDArray  #: `[gradients, m]` int32: the items of the minibatches, in the order of plain training.
    statistics: Statistics  #: of its observations.
    unseen: NDArray  #: `[items]` int32: the transitions of each item that no applied gradient has seen yet.
    left: int  #: gradients that were neither applied nor dropped yet.
    rows: int | None  #: rows to which the learner's program pads `indices`; None for no padding.
    sample: Tree  #: `[n, *obs]`: at most `SAMPLE` of its observations, on which successive policies are compared.

    @property
    def nbytes(self) -> int:
        """The bytes that a learner of the whole batch fetches."""
        return size(self.batch)

    @property
    def minibatches(self) -> list["GradientTask"]:
        """One task per gradient, in order."""
        return [GradientTask(self, row, number) for number, row in enumerate(self.indices)]

    @property
    def unlearned(self) -> int:
        """The number of transitions that no applied gradient has seen yet."""
        return int(self.unseen.sum())

    def learn(self, indices: NDArray) -> int:
        """Counts a gradient on these items as applied; returns how many transitions it was the first to see."""
        # Unique, because a minibatch with parts of two epochs may hold an item twice; indices beyond are padding.
        items = np.unique(indices[indices < len(self.unseen)])
        first_seen = int(self.unseen[items].sum())
        self.unseen[items] = 0
        self.left -= 1
        return first_seen

    def drop(self) -> None:
        """Counts one gradient as dropped; its transitions stay unlearned, unless another gradient sees them."""
        self.left -= 1

    def mark_seen(self) -> None:
        """Counts all transitions as learned from, because an earlier batch of the same fragments was."""
        self.unseen[:] = 0


@register_value
@dataclass(frozen=True, eq=False)
class GradientTask:
    """A gradient to be computed, on one minibatch of a batch."""

    data: LearnerBatch
    indices: NDArray  #: `[m]` int32.
    number: int  #: of the minibatch in the batch, from 0.

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
      fragments: of equal length.
      number: of the batch.
      width: the number of fragments that the arrays have room for. Batches of the same width share compiled programs.
        The surplus is invalid and in no minibatch. None for no surplus.
      algorithm: prepares the batch.
      policy: chose the actions.
      target: a version, for algorithms that need a policy other than the behaviour policy.
      key: of the shuffles.
    """
    trajectory = concatenate([fragment.trajectory for fragment in fragments])
    statistics = functools.reduce(Statistics.merge, (fragment.statistics for fragment in fragments))
    batch = _prepared(
        trajectory if width is None else _widened(trajectory, width), target, algorithm=algorithm, policy=policy
    )
    indices = np.asarray(_shuffled(key, batch, algorithm=algorithm))
    # A copy, because the NumPy view of a device array is read-only.
    # The protocol does not say how many items there are. The largest index is the last item, or padding beyond it:
    # that counts as one more item, without transitions.
    unseen = np.array(_transitions(batch, algorithm=algorithm, items=int(indices.max()) + 1))
    # Taken before empty minibatches are removed below: it is equal for all batches of one width.
    rows = None if width is None else len(indices)
    if width is not None and len(fragments) < width:
        indices = _without_empty(indices, unseen)
    # Of the trajectory without padding: policies are compared on observed states.
    sample = _sample(trajectory.observation, width or len(fragments))
    return LearnerBatch(number, batch, indices, statistics, unseen, left=len(indices), rows=rows, sample=sample)


def _widened(trajectory: Trajectory, width: int) -> Trajectory:
    """Pads a trajectory with invalid columns up to `width`."""
    missing = width - trajectory.valid.shape[1]

    def widened(x: NDArray) -> NDArray:
        return np.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)])

    wider: Trajectory = jax.tree.map(widened, trajectory)
    return wider


def _without_empty(indices: NDArray, transitions: NDArray) -> NDArray:
    """Removes the items without transitions from the minibatches; the others stay in order, in fewer minibatches.

    A minibatch may then hold the end of one epoch and the start of the next.
    """
    items = indices[indices < len(transitions)]
    items = items[transitions[items] > 0]
    length = indices.shape[1]
    beyond = np.full(-len(items) % length, len(transitions), indices.dtype)
    return np.concatenate([items, beyond]).reshape(-1, length)


def _sample(observation: Tree, width: int) -> Tree:
    """Returns some of the observations `[T + 1, B, *obs]`, evenly spaced over steps and actors.

    Their number depends on `width` and not on B, so that policies are compared by one compiled program. If there are
    fewer observations, some are repeated.
    """

    def spaced(leaf: NDArray) -> NDArray:
        flat = leaf.reshape(-1, *leaf.shape[2:])
        return np.asarray(flat[np.linspace(0, len(flat) - 1, min(SAMPLE, len(leaf) * width)).astype(int)])

    return jax.tree.map(spaced, observation)


def unlearned(batches: Iterable[LearnerBatch]) -> int:
    """Returns the number of transitions that no applied gradient has seen; a batch may be listed more than once."""
    return sum({id(data): data.unlearned for data in batches}.values())


@functools.partial(jax.jit, static_argnames=("algorithm", "policy"))
def _prepared(trajectory: Any, target: PolicyVersion, *, algorithm: Algorithm, policy: Policy) -> Any:
    return algorithm.prepare(trajectory, policy.apply, target)


@functools.partial(jax.jit, static_argnames="algorithm")
def _shuffled(key: jax.Array, batch: Any, *, algorithm: Algorithm) -> Any:
    return algorithm.minibatches(key, batch)


@functools.partial(jax.jit, static_argnames=("algorithm", "items"))
def _transitions(batch: Any, *, algorithm: Algorithm, items: int) -> jax.Array:
    """Returns the transitions of each item; items may be steps or trajectories, as the algorithm decides."""
    return jax.vmap(lambda item: jnp.sum(algorithm.select(batch, item[None]).valid))(jnp.arange(items))
