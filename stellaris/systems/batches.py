"""Batches that fragments become, the gradients to be computed on them, and which transitions were learned from."""

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

#: Observations of a batch by which successive policies are compared: more would cost as much as a gradient.
SAMPLE = 256


@register_value
@dataclass(eq=False)
class LearnerBatch:
    """A batch on the device, and what has been learned from it."""

    batch: Any  #: what the algorithm made of the fragments.
    indices: NDArray  #: `[gradients, m]` int32: the items of its minibatches, in the order of plain training.
    statistics: Statistics  #: of its observations.
    unseen: NDArray  #: `[items]` int32: how many transitions of each item no applied gradient has seen yet.
    left: int  #: gradients that are still to be applied.
    rows: int | None  #: that programs for batches of this shape take; `indices` may be fewer. None for as many.
    sample: Tree  #: `[n, *obs]` of its observations, at most `SAMPLE`, by which successive policies are compared.

    @property
    def nbytes(self) -> int:
        """What a learner of the whole batch fetches."""
        return size(self.batch)

    @property
    def minibatches(self) -> list["GradientTask"]:
        """The gradients to be computed, in order."""
        return [GradientTask(self, row) for row in self.indices]

    def learn(self, indices: NDArray) -> int:
        """Notes that a gradient of these items was applied; returns how many transitions it was the first to see."""
        items = np.unique(indices[indices < len(self.unseen)])  # twice in a minibatch that has parts of two epochs
        first_seen = int(self.unseen[items].sum())
        self.unseen[items] = 0
        self.left -= 1
        return first_seen


@register_value
@dataclass(frozen=True, eq=False)
class GradientTask:
    """One gradient to be computed: a minibatch of a batch."""

    data: LearnerBatch
    indices: NDArray  #: `[m]` int32.

    @property
    def nbytes(self) -> int:
        """What a learner of this minibatch fetches: its share of the batch."""
        return self.data.nbytes * len(self.indices) // len(self.data.unseen)


def batch_of(
    fragments: Sequence[Fragment],
    *,
    width: int | None = None,
    algorithm: Algorithm,
    policy: Policy,
    target: PolicyVersion,
    key: jax.Array,
) -> LearnerBatch:
    """The batch that fragments become.

    Args:
      fragments: of equal length.
      width: of how many fragments its arrays have the shape, where batches of different numbers of fragments share
        their programs. What is beyond them is not valid, and no minibatch has it. By default there is nothing beyond.
      algorithm: which prepares them.
      policy: whose versions chose the actions.
      target: the newest version, for algorithms that need a policy beside the behaviour policy.
      key: of the shuffles.
    """
    trajectory = concatenate([fragment.trajectory for fragment in fragments])
    statistics = functools.reduce(Statistics.merge, (fragment.statistics for fragment in fragments))
    batch = _prepared(
        trajectory if width is None else _widened(trajectory, width), target, algorithm=algorithm, policy=policy
    )
    indices = np.asarray(_shuffled(key, batch, algorithm=algorithm))
    # A copy of what is unseen: what a device array shows as NumPy is not to be written to.
    unseen = np.array(_transitions(batch, algorithm=algorithm, items=int(indices.max()) + 1))
    rows = None if width is None else len(indices)
    if width is not None and len(fragments) < width:
        indices = _without_empty(indices, unseen)
    sample = _sample(trajectory.observation, width or len(fragments))
    return LearnerBatch(batch, indices, statistics, unseen, left=len(indices), rows=rows, sample=sample)


def _widened(trajectory: Trajectory, width: int) -> Trajectory:
    """With columns up to so many, that are not valid."""
    missing = width - trajectory.valid.shape[1]

    def widened(x: NDArray) -> NDArray:
        return np.pad(x, [(0, 0), (0, missing), *[(0, 0)] * (x.ndim - 2)])

    wider: Trajectory = jax.tree.map(widened, trajectory)
    return wider


def _without_empty(indices: NDArray, transitions: NDArray) -> NDArray:
    """The minibatches without items that have no transition, in the same order, as few as there are then.

    A minibatch may so have the end of one epoch and the beginning of the next.
    """
    items = indices[indices < len(transitions)]
    items = items[transitions[items] > 0]
    length = indices.shape[1]
    beyond = np.full(-len(items) % length, len(transitions), indices.dtype)
    return np.concatenate([items, beyond]).reshape(-1, length)


def _sample(observation: Tree, width: int) -> Tree:
    """Some of the observations `[T + 1, B, *obs]`, evenly spaced over steps and actors.

    As many as of `width` actors, so that what compares policies by them is compiled once: of fewer, some come again.
    """

    def spaced(leaf: NDArray) -> NDArray:
        flat = leaf.reshape(-1, *leaf.shape[2:])
        return np.asarray(flat[np.linspace(0, len(flat) - 1, min(SAMPLE, len(leaf) * width)).astype(int)])

    return jax.tree.map(spaced, observation)


def unlearned(batches: Iterable[LearnerBatch]) -> int:
    """Transitions of batches, each counted once, that no applied gradient has seen."""
    return sum({id(data): int(data.unseen.sum()) for data in batches}.values())


@functools.partial(jax.jit, static_argnames=("algorithm", "policy"))
def _prepared(trajectory: Any, target: PolicyVersion, *, algorithm: Algorithm, policy: Policy) -> Any:
    return algorithm.prepare(trajectory, policy.apply, target)


@functools.partial(jax.jit, static_argnames="algorithm")
def _shuffled(key: jax.Array, batch: Any, *, algorithm: Algorithm) -> Any:
    return algorithm.minibatches(key, batch)


@functools.partial(jax.jit, static_argnames=("algorithm", "items"))
def _transitions(batch: Any, *, algorithm: Algorithm, items: int) -> jax.Array:
    """How many transitions each item of a batch has: the algorithm alone knows what its items are."""
    return jax.vmap(lambda item: jnp.sum(algorithm.select(batch, item[None]).valid))(jnp.arange(items))
