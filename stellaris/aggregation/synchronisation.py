"""Baseline aggregators, ordered by how much learners wait for each other: from fully asynchronous to synchronous.

Only `buffered` and `softsync` weight gradients by staleness.
"""

from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Int

from stellaris._core import checks
from stellaris.aggregation import gradient_queue
from stellaris.aggregation.gradient_queue import AggregatorState, Update
from stellaris.aggregation.protocol import Aggregator, Queueing, checked_tree, unweighted
from stellaris.aggregation.staleness import Weight, freeze_weight, inverse_root, polynomial_weight
from stellaris.types import Array, Tree


@checked_tree
@dataclass(frozen=True, repr=False)
class _Buffered(Queueing):
    maker: ClassVar[str] = "buffered"
    group_size: int = field(metadata={"static": True})
    weight: Weight
    capacity: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        gradient_queue.capacity_for(self.group_size, self.capacity)

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        return jnp.asarray(state.count >= self.group_size)

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        return gradient_queue.take(state, self.group_size, clock, self.weight, "mean")


def buffered(group_size: int, weight: Weight = polynomial_weight, *, capacity: int | None = None) -> Aggregator:
    """Applies groups of gradients weighted by their staleness: `sum_i w(delta_i) g_i / group_size` (FedBuff).

    Args:
      group_size: gradients in a group, at least 1.
      weight: `(staleness) -> factor`; by default FedBuff's, `(staleness + 1) ** -0.5`. Give its settings by
        `functools.partial`.
      capacity: gradients that the queue can store, at least `group_size`; two groups by default.

    Returns:
      An `Aggregator`; it pops the oldest gradients and admits every learner. The mean of the weights scales the
      optimizer's step: with plain SGD the step is the sum above, and with Adam the weights do not cancel.

    Raises:
      TypeError: if `weight` is not a function.
      ValueError: if `group_size` is not positive, or `capacity` is below `group_size`.

    Source:
      Nguyen et al. 2022, Federated Learning with Buffered Asynchronous Aggregation, Algorithm 1, with one local step
      instead of several; the weight is from its experiments.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = buffered(2)
      >>> aggregator
      buffered(group_size=2, weight=polynomial_weight(), capacity=4)
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for gradient, version in ((4.0, 0), (1.0, 3)):
      ...     state = aggregator.push(state, jnp.array([gradient]), version)
      >>> update, state = aggregator.pop(state, 3, 0)
      >>> print(update.gradient * update.scale)  # (4 / 2 + 1) / 2
      [1.5]
    """
    capacity = gradient_queue.capacity_for(group_size, capacity)
    return _Buffered(group_size, freeze_weight(weight), capacity)


def softsync(group_size: int, *, capacity: int | None = None) -> Aggregator:
    """Applies groups of gradients, each divided by its staleness: `sum_i g_i / max(delta_i, 1) / group_size`.

    Args:
      group_size: gradients in a group, at least 1. The n-softsync of Zhang et al. with `learners` learners, which
        updates the policy n times while each learner computes one gradient, is `softsync(learners // n)`.
      capacity: gradients that the queue can store, at least `group_size`; two groups by default.

    Returns:
      An `Aggregator`; it pops the oldest gradients and admits every learner.

    Raises:
      ValueError: if `group_size` is not positive, or `capacity` is below `group_size`.

    Source:
      Zhang et al. 2016, Staleness-aware Async-SGD for Distributed Deep Learning, Eq. 5 and 6.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = softsync(2)
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for gradient, version in ((1.0, 0), (4.0, 8)):
      ...     state = aggregator.push(state, jnp.array([gradient]), version)
      >>> update, state = aggregator.pop(state, 8, 0)
      >>> print(update.gradient * update.scale)  # (1 / 8 + 4 / 1) / 2
      [2.0625]
    """
    return buffered(group_size, inverse_root(1.0), capacity=capacity)


@checked_tree
@dataclass(frozen=True, repr=False)
class _StaleSynchronous(Queueing):
    # The state's memory holds each learner's number of pushes, `[learners]`.
    maker: ClassVar[str] = "stale_synchronous"
    max_lead: Any
    learners: int = field(metadata={"static": True})
    capacity: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        checks.not_negative(max_lead=self.max_lead)
        checks.counts(learners=self.learners)
        if not jnp.issubdtype(jnp.result_type(self.max_lead), jnp.integer):
            raise ValueError(f"max_lead={self.max_lead!r} is not a whole number of gradients")
        checks.counts(capacity=self.capacity)
        self._plain("max_lead")

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(gradient_like, self.capacity, memory=jnp.zeros(self.learners, jnp.int32))

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = None) -> AggregatorState:
        learner = _numbered(learner, self.learners)
        after = gradient_queue.push(state, gradient, version)
        accepted = state.count < state.capacity
        # A restored state may hold NumPy's arrays.
        pushes = jnp.asarray(state.memory).at[learner].add(accepted.astype(jnp.int32))
        return after._replace(memory=pushes)

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        return jnp.asarray(state.count > 0)

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        return gradient_queue.take(state, 1, clock, unweighted, "mean")

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> jax.Array:
        _check_learner(learner, self.learners)
        memory = jnp.asarray(state.memory)  # a restored state may hold NumPy's arrays
        return jnp.asarray(memory[learner] - jnp.min(memory) <= self.max_lead)


def stale_synchronous(max_lead: Int[Array, ""] | int, learners: int, *, capacity: int | None = None) -> Aggregator:
    """Applies every gradient as it arrives, but makes a learner wait while it is too far ahead of the slowest.

    A learner is admitted while `its pushes - the fewest pushes of any learner <= max_lead`.

    Args:
      max_lead: the most gradients by which a learner may lead the slowest when it starts another gradient, at least 0;
        the new gradient may add 1 to its lead. With 0, learners wait for each other after every gradient.
      learners: the number of learners, which are numbered from 0. `push` and `admit` need the learner's number.
      capacity: gradients that the queue can store, at least 1; `2 * learners` by default.

    Returns:
      An `Aggregator` that pops the oldest gradient, with weight 1.

    Raises:
      IndexError: by `push` and `admit`, if the learner's number is out of range; a traced number is not checked.
      TypeError: if `max_lead` is not a number.
      ValueError: if `max_lead` is negative or not whole, or `learners` or `capacity` is below 1.

    Source:
      Ho et al. 2013, More Effective Distributed ML via a Stale Synchronous Parallel Parameter Server.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = stale_synchronous(1, learners=2)
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for _ in range(2):
      ...     state = aggregator.push(state, jnp.ones(1), version=0, learner=0)
      >>> [bool(aggregator.admit(state, learner, 0)) for learner in (0, 1)]  # learner 0 leads by 2
      [False, True]
    """
    capacity = 2 * learners if capacity is None else capacity
    return _StaleSynchronous(max_lead, learners, capacity)


@checked_tree
@dataclass(frozen=True, repr=False)
class _FullyAsynchronous(Queueing):
    maker: ClassVar[str] = "fully_asynchronous"
    capacity: int = field(metadata={"static": True})
    drop_from: Any  #: None to drop nothing.

    def __post_init__(self) -> None:
        checks.counts(capacity=self.capacity)
        if self.drop_from is not None:
            checks.positive(drop_from=self.drop_from)
            checks.integers(drop_from=jnp.asarray(self.drop_from))
        self._plain("drop_from")

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        # A full queue of stale gradients takes no further one: the next pop drops them.
        return (self._too_stale(state, clock) < state.count) | (state.count == state.capacity)

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        dropped = self._too_stale(state, clock)
        state = gradient_queue.without(state, dropped)
        update, state = gradient_queue.take(state, 1, clock, unweighted, "mean")
        return update._replace(dropped=dropped), state

    def _too_stale(self, state: AggregatorState, clock: Any) -> jax.Array:
        """The number of gradients in the queue before the oldest gradient that is fresh enough."""
        if self.drop_from is None:
            return jnp.zeros((), jnp.int32)
        staleness = gradient_queue.staleness(state, clock)
        fresh: jax.Array = (staleness < self.drop_from) & (jnp.arange(state.capacity) < state.count)
        return jnp.where(jnp.any(fresh), jnp.argmax(fresh), state.count).astype(jnp.int32)


def fully_asynchronous(*, capacity: int, drop_from: Int[Array, ""] | int | None = None) -> Aggregator:
    """Applies gradients one at a time, oldest first, with weight 1.

    Args:
      capacity: gradients that the queue can store during an update, at least 1.
      drop_from: the smallest staleness at which gradients are dropped, at least 1. This is `R` of Ringmaster,
        whose analysis sets it to `max(1, ceil(variance / eps))` to reach a squared gradient norm of `eps`. None drops
        nothing. A dropped gradient does not make a new version.

    Returns:
      An `Aggregator`; it admits every learner. `Update.dropped` counts the dropped gradients. A full queue is ready
      even if all of its gradients are too stale; the pop then drops them, and applies none (`Update.count` is 0).

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
    return _FullyAsynchronous(capacity, drop_from)


@checked_tree
@dataclass(frozen=True, repr=False)
class _Synchronous(Queueing):
    # The state's memory holds the version of each learner's last gradient, `[group_size]`.
    maker: ClassVar[str] = "synchronous"
    group_size: int = field(metadata={"static": True})

    def __post_init__(self) -> None:
        checks.counts(group_size=self.group_size)

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(gradient_like, self.group_size, memory=jnp.full(self.group_size, -1, jnp.int32))

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = None) -> AggregatorState:
        learner = _numbered(learner, self.group_size)
        after = gradient_queue.push(state, gradient, version)
        accepted = state.count < self.group_size
        memory = jnp.asarray(state.memory)  # a restored state may hold NumPy's arrays
        last = jnp.where(accepted, version, memory[learner]).astype(jnp.int32)
        return after._replace(memory=memory.at[learner].set(last))

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        return jnp.asarray(state.count >= self.group_size)

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        return gradient_queue.take(state, self.group_size, clock, unweighted, "mean")

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> jax.Array:
        _check_learner(learner, self.group_size)
        checks.whole_int32(clock=clock)
        return jnp.asarray(clock > jnp.asarray(state.memory)[learner])


def synchronous(group_size: int) -> Aggregator:
    """Waits for one gradient from each learner and averages them: synchronous data-parallel SGD.

    Args:
      group_size: the number of learners, which are numbered from 0. A learner is admitted once a newer
        version exists than the one on which it computed its last gradient.

    Returns:
      An `Aggregator`.

    Raises:
      IndexError: by `push` and `admit`, if the learner's number is out of range; a traced number is not checked.
      ValueError: if `group_size` is below 1.

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
    return _Synchronous(group_size)


def _numbered(learner: Any, learners: int) -> Any:
    """Returns the number of the learner that pushes a gradient; it may be left out if there is only one learner."""
    if learner is None and learners > 1:
        raise TypeError(f"learner=None: pass the number of the learner that computed the gradient, 0 to {learners - 1}")
    learner = 0 if learner is None else learner
    _check_learner(learner, learners)
    return learner


def _check_learner(learner: Any, learners: int) -> None:
    for _, number in checks.known(learner=learner):
        if number not in range(learners):
            raise IndexError(f"learner={learner} does not exist: the {learners} learners are numbered from 0")
