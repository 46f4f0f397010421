"""Aggregators by how much learners wait for each other: buffered, stale synchronous, fully asynchronous, synchronous.

Stellaris is compared with them. Of these, only `buffered`, and with it `softsync`, weighs gradients by their staleness.
"""

from dataclasses import dataclass, field
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from stellaris._core import checks
from stellaris.aggregation import gradient_queue
from stellaris.aggregation.gradient_queue import AggregatorState, Update
from stellaris.aggregation.staleness import Weight, freeze_weight, inverse_root, polynomial_weight
from stellaris.types import Array, Tree


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class Buffered:
    """The aggregator that `buffered` and `softsync` make."""

    group: int = field(metadata={"static": True})
    capacity: int = field(metadata={"static": True})
    weight: Weight

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(gradient_like, self.capacity, memory=())

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        return gradient_queue.push(state, gradient, version, learner=learner)

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        return state.count >= self.group

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        return gradient_queue.take(state, self.group, clock, self.weight, "mean")

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> np.bool:
        return np.True_


def buffered(k: int, weight: Weight = polynomial_weight, *, capacity: int | None = None) -> Buffered:
    """Applies groups of `k` gradients, weighted by their staleness: `sum_i w(delta_i) g_i / k` (FedBuff).

    Args:
      k: the size of a group, at least 1.
      weight: `(staleness) -> factor`; by default FedBuff's, `(staleness + 1) ** -0.5`. Give its settings by
        `functools.partial`.
      capacity: gradients that the queue can store, at least `k`; `2 * k` by default.

    Returns:
      An `Aggregator`; it pops the oldest gradients and admits every learner. The mean of the weights scales the
      optimizer's step: with plain descent the step is the sum above, and with Adam the weights do not cancel.

    Raises:
      TypeError: if `weight` is not a function.
      ValueError: if `k` is not positive, or `capacity` is below `k`.

    Source:
      Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation, Algorithm 1, without its several
      local steps; the weight is that of its experiments.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = buffered(2)
      >>> aggregator
      Buffered(group=2, capacity=4, weight=polynomial_weight())
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for gradient, version in ((4.0, 0), (1.0, 3)):
      ...     state = aggregator.push(state, jnp.array([gradient]), version)
      >>> update, state = aggregator.pop(state, 3, 0)
      >>> print(update.gradient * update.scale)  # (4 / 2 + 1) / 2
      [1.5]
    """
    capacity = gradient_queue.capacity_for("k", k, capacity)
    return Buffered(k, capacity, freeze_weight(weight))


def softsync(n: int, *, learners: int | None = None, capacity: int | None = None) -> Buffered:
    """Applies groups of `c` gradients, each divided by its staleness: `sum_i g_i / max(delta_i, 1) / c`.

    Args:
      n: the size of a group, `c = n`. With `learners`, the n of Zhang et al. instead: `c = floor(learners / n)`, so
        that the policy is updated n times while each learner computes one gradient.
      learners: at least n. With `n = 1` a group has as many gradients as there are learners; with `n = learners` each
        gradient is applied as it comes.
      capacity: gradients that the queue can store, at least a group; two groups by default.

    Returns:
      An `Aggregator`; it pops the oldest gradients and admits every learner.

    Raises:
      ValueError: if `n` is not positive, or `learners` or `capacity` is too small.

    Source:
      Zhang et al. 2016, Staleness-aware Async-SGD for Distributed Deep Learning, Eq. 5 and 6.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = softsync(4, learners=8)
      >>> aggregator
      Buffered(group=2, capacity=4, weight=staleness_weight(smoothness=1.0))
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for gradient, version in ((1.0, 0), (4.0, 8)):
      ...     state = aggregator.push(state, jnp.array([gradient]), version)
      >>> update, state = aggregator.pop(state, 8, 0)
      >>> print(update.gradient * update.scale)  # (1 / 8 + 4 / 1) / 2
      [2.0625]
    """
    checks.counts(n=n)
    name, group = "n", n
    if learners is not None:
        checks.counts(learners=learners)
        if learners < n:
            raise ValueError(f"learners={learners} is below n={n}: there is no group of less than one gradient")
        name, group = "learners // n", learners // n
    return Buffered(group, gradient_queue.capacity_for(name, group, capacity), freeze_weight(inverse_root(1.0)))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StaleSynchronous:
    """The aggregator that `stale_synchronous` makes. Its memory holds how often each learner pushed `[learners]`."""

    bound: Any
    learners: int = field(metadata={"static": True})
    capacity: int = field(metadata={"static": True})

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(gradient_like, self.capacity, memory=jnp.zeros(self.learners, jnp.int32))

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        _check_learner(learner, self.learners)
        accepted = state.count < state.capacity
        pushes = state.memory.at[learner].add(accepted.astype(jnp.int32))
        return gradient_queue.push(state, gradient, version)._replace(memory=pushes)

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        return state.count > 0

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        return gradient_queue.take(state, 1, clock, _unweighted, "mean")

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> jax.Array:
        _check_learner(learner, self.learners)
        return jnp.asarray(state.memory[learner] - jnp.min(state.memory) <= self.bound)


def stale_synchronous(bound: Int[Array, ""] | int, learners: int, *, capacity: int | None = None) -> StaleSynchronous:
    """Applies every gradient as it comes, but lets no learner run ahead of the slowest by more than a bound.

    A learner is admitted while `its pushes - the fewest pushes of any learner <= bound`.

    Args:
      bound: gradients, at least 0. With 0, learners wait for each other after every gradient.
      learners: how many there are, numbered from 0. `push` and `admit` need the learner's number.
      capacity: gradients that the queue can store, at least 1; `2 * learners` by default.

    Returns:
      An `Aggregator` that pops the oldest gradient, with weight 1.

    Raises:
      IndexError: at a push from, or the admission of, a learner that does not exist, if its number is not traced.
      TypeError: if `bound` is not a number.
      ValueError: if `bound` is negative, or `learners` or `capacity` is below 1.

    Source:
      Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = stale_synchronous(1, learners=2)
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for _ in range(2):
      ...     state = aggregator.push(state, jnp.ones(1), version=0, learner=0)
      >>> [bool(aggregator.admit(state, learner, 0)) for learner in (0, 1)]  # two ahead, and the slowest
      [False, True]
    """
    checks.not_negative(bound=bound)
    checks.counts(learners=learners)
    if not jnp.issubdtype(jnp.result_type(bound), jnp.integer):
        raise ValueError(f"bound={bound!r} is not a whole number of gradients")
    capacity = 2 * learners if capacity is None else capacity
    checks.counts(capacity=capacity)
    return StaleSynchronous(checks.plain(bound), learners, capacity)


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class FullyAsynchronous:
    """The aggregator that `fully_asynchronous` makes."""

    capacity: int = field(metadata={"static": True})
    drop_from: Any  #: None to drop nothing.

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(gradient_like, self.capacity, memory=())

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        return gradient_queue.push(state, gradient, version, learner=learner)

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        """Whether there is a gradient that is fresh enough."""
        return self._too_stale(state, clock) < state.count

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        """The oldest gradient that is fresh enough; those before it are dropped."""
        dropped = self._too_stale(state, clock)
        state = gradient_queue.without(state, dropped)
        update, state = gradient_queue.take(state, 1, clock, _unweighted, "mean")
        return update._replace(dropped=dropped), state

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> np.bool:
        return np.True_

    def _too_stale(self, state: AggregatorState, clock: Any) -> jax.Array:
        """How many gradients are too stale, of those before the oldest that is not."""
        if self.drop_from is None:
            return jnp.zeros((), jnp.int32)
        staleness = gradient_queue.staleness(state, clock)
        fresh: jax.Array = (staleness < self.drop_from) & (jnp.arange(state.capacity) < state.count)
        return jnp.where(jnp.any(fresh), jnp.argmax(fresh), state.count).astype(jnp.int32)


def fully_asynchronous(*, capacity: int, drop_from: Int[Array, ""] | int | None = None) -> FullyAsynchronous:
    """Applies every gradient as it comes, one at a time, oldest first, all with weight 1.

    Args:
      capacity: gradients that the queue can store while an update is under way, at least 1.
      drop_from: the staleness from which on gradients are dropped instead, at least 1: Ringmaster's `R`, which its
        analysis sets to `max(1, ceil(variance / eps))` for a squared gradient norm of `eps`. None drops nothing. What
        is dropped makes no new version.

    Returns:
      An `Aggregator`; it admits every learner. `Update.dropped` says how many were dropped.

    Raises:
      TypeError: if `drop_from` is not a whole number.
      ValueError: if `capacity` or `drop_from` is below 1.

    Source:
      Dean et al. 2012, Large Scale Distributed Deep Networks (Downpour SGD); as the baseline of Stellaris (SC 2024) and
      of Zhang et al. 2016. Maranjyan et al. 2025, Ringmaster ASGD, Algorithm 4, for `drop_from`.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = fully_asynchronous(capacity=4)
      >>> state = aggregator.push(aggregator.init(jnp.zeros(1)), jnp.array([2.0]), version=0)
      >>> update, state = aggregator.pop(state, 5, 0)
      >>> print(update.gradient, update.scale, state.count)
      [2.] 1.0 0
      >>> aggregator = fully_asynchronous(capacity=4, drop_from=3)
      >>> state = aggregator.push(aggregator.init(jnp.zeros(1)), jnp.array([2.0]), version=0)
      >>> bool(aggregator.ready(state, 5, 0)), bool(aggregator.ready(state, 2, 0))
      (False, True)
    """
    checks.counts(capacity=capacity)
    if drop_from is not None:
        checks.positive(drop_from=drop_from)
        checks.integers(drop_from=jnp.asarray(drop_from))
    return FullyAsynchronous(capacity, checks.plain(drop_from))


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class SynchronousAverage:
    """The aggregator that `synchronous` makes. Its memory holds the version of each learner's last gradient `[n]`."""

    n: int = field(metadata={"static": True})

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(gradient_like, self.n, memory=jnp.full(self.n, -1, jnp.int32))

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        _check_learner(learner, self.n)
        checks.int32(version=version)
        accepted = state.count < self.n
        last = jnp.where(accepted, version, state.memory[learner]).astype(jnp.int32)
        memory = state.memory.at[learner].set(last)
        return gradient_queue.push(state, gradient, version)._replace(memory=memory)

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        return state.count >= self.n

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        return gradient_queue.take(state, self.n, clock, _unweighted, "mean")

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> jax.Array:
        _check_learner(learner, self.n)
        checks.int32(clock=clock)
        return jnp.asarray(clock > state.memory[learner])


def synchronous(n: int) -> SynchronousAverage:
    """Waits for one gradient of each of `n` learners and averages them: data-parallel synchronous descent.

    Args:
      n: the number of learners, numbered from 0. A learner is admitted once the clock has passed the version of its
        last gradient.

    Returns:
      An `Aggregator`.

    Raises:
      IndexError: at a push from, or the admission of, a learner that does not exist, if its number is not traced.
      ValueError: if `n` is below 1.

    Source:
      Chen et al. 2016, Revisiting Distributed Synchronous SGD, without its backup workers; a baseline of Stellaris (SC
      2024).

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = synchronous(2)
      >>> state = aggregator.push(aggregator.init(jnp.zeros(1)), jnp.array([2.0]), version=0, learner=1)
      >>> [bool(aggregator.admit(state, learner, 0)) for learner in (0, 1)]
      [True, False]
      >>> bool(aggregator.ready(state, 0, 0))
      False
    """
    checks.counts(n=n)
    return SynchronousAverage(n)


def _unweighted(staleness: jax.Array) -> jax.Array:
    return jnp.ones_like(staleness, float)


def _check_learner(learner: Any, learners: int) -> None:
    for _, number in checks.known(learner=learner):
        if number not in range(learners):
            raise IndexError(f"learner={learner} is none of the {learners} learners, which are numbered from 0")
