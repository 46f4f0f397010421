"""When queued gradients are applied, and how they are weighted: the `Aggregator` protocol, and Stellaris' aggregator.

The aggregators that Stellaris is compared with are in `synchronisation`; `updates` applies a group of gradients.
"""

from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from stellaris._core import checks
from stellaris.aggregation import gradient_queue
from stellaris.aggregation.gradient_queue import AggregatorState, Update
from stellaris.aggregation.staleness import Weight, freeze_weight, inverse_root
from stellaris.aggregation.thresholds import check_decay, demo_threshold, staleness_threshold
from stellaris.types import JaxArray, Scalar, Tree


@runtime_checkable
class Aggregator(Protocol):
    """Decides when queued gradients are applied, which of them, and with which weights.

    Five pure functions over a state that holds the queue. All can be jitted; the capacity of the queue is static.

    The library's makers, such as `staleness_aware`, return frozen dataclasses. They print their settings, and two of
    equal settings are equal and have equal hashes, so an aggregator can be a static argument of `jax.jit`. They are
    trees, too: the leaves are the numbers that `vmap` can sweep. With traced numbers they can be neither compared nor
    hashed.

    Any other object with these methods is an aggregator as well. Build it on
    `stellaris.aggregation.gradient_queue`, and make it a frozen dataclass, so that it has an equality and a hash.

    Example:
      >>> from dataclasses import dataclass
      >>> from stellaris import staleness_weight
      >>> @dataclass(frozen=True)
      ... class Pairs:
      ...     capacity: int
      ...
      ...     def init(self, gradient_like):
      ...         return gradient_queue.empty(gradient_like, self.capacity, memory=())
      ...
      ...     def push(self, state, gradient, version, *, learner=0):
      ...         return gradient_queue.push(state, gradient, version)
      ...
      ...     def ready(self, state, clock, round):
      ...         return state.count >= 2
      ...
      ...     def pop(self, state, clock, round):
      ...         return gradient_queue.take(state, 2, clock, staleness_weight, "mean")
      ...
      ...     def admit(self, state, learner, clock):
      ...         return True
      >>> aggregator = Pairs(capacity=4)
      >>> isinstance(aggregator, Aggregator)
      True
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for gradient in (1.0, 4.0):
      ...     state = aggregator.push(state, jnp.array([gradient]), version=3)
      >>> update, state = aggregator.pop(state, clock=3, round=0)
      >>> print(update.gradient)
      [2.5]
    """

    def init(self, gradient_like: Tree) -> AggregatorState:
        """An empty queue for gradients of this structure."""

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        """Appends the gradient that a learner computed on this version of the parameters.

        A push beyond capacity loses the gradient and sets `state.overflow`; nothing else changes.
        """

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> Any:
        """Whether to apply gradients now, a bool scalar; False on an empty queue. The clock is the newest version."""

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        """Takes the gradients to apply out of the queue."""

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> Any:
        """Whether this learner may start another gradient, a bool scalar."""


class _Measured(NamedTuple):
    """The staleness measured for the threshold, and when."""

    round: Int[JaxArray, ""]  #: in which it was measured; -1 until a stale gradient is applied.
    staleness: Int[JaxArray, ""]


def _stalest_of_a_round(memory: _Measured, update: Update, round: Any) -> _Measured:
    """The largest staleness applied during the first round with any above zero."""
    stalest = jnp.max(update.staleness)
    first = jnp.where((memory.round < 0) & (stalest > 0), round, memory.round)
    during = (first >= 0) & (first == round)
    longest = jnp.where(during, jnp.maximum(memory.staleness, stalest), memory.staleness)
    return _Measured(first.astype(jnp.int32), longest.astype(jnp.int32))


def _mean_of_a_group(memory: _Measured, update: Update, round: Any) -> _Measured:
    """The mean staleness of the first group with a stale gradient, rounded up as in the authors' demo."""
    total = jnp.sum(jnp.maximum(update.staleness, 0))
    first = (memory.round < 0) & (total > 0)
    mean = total // jnp.maximum(update.count, 1) + 1
    staleness = jnp.where(first, mean, memory.staleness).astype(jnp.int32)
    return _Measured(jnp.where(first, round, memory.round).astype(jnp.int32), staleness)


#: By name: how `max_staleness` becomes the threshold of a round, and how it is measured if it is not given.
_THRESHOLDS = {
    "decay": (staleness_threshold, _stalest_of_a_round),
    "demo": (demo_threshold, _mean_of_a_group),
}


@jax.tree_util.register_dataclass
@dataclass(frozen=True)
class StalenessAware:
    """The aggregator that `staleness_aware` makes, which checks the settings and explains them."""

    group_size: int = field(metadata={"static": True})
    capacity: int = field(metadata={"static": True})
    decay: Any
    smoothness: Any  #: None if `weight` replaces it.
    max_staleness: Any  #: None to measure it.
    combine: str = field(metadata={"static": True})
    weight: Weight | None
    threshold: str = field(metadata={"static": True})

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(gradient_like, self.capacity, _Measured(jnp.int32(-1), jnp.int32(0)))

    def push(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        return gradient_queue.push(state, gradient, version, learner=learner)

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        """Fresh enough, or full."""
        checks.int32(clock=clock)
        total = jnp.sum(jnp.where(gradient_queue.queued(state), clock - state.version, 0))
        limit = self._limit(state.memory, round)
        unlimited = jnp.isinf(limit)  # infinity times a count of 0 would be NaN
        most = jnp.where(unlimited, 0.0, limit) * state.count.astype(limit.dtype)
        fresh = unlimited | (total.astype(limit.dtype) <= most)
        return (state.count > 0) & (fresh | (state.count >= self.group_size))

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        """The whole queue."""
        weigh = self.weight or inverse_root(self.smoothness)
        update, state = gradient_queue.take(state, state.count, clock, weigh, self.combine)
        _, measure = _THRESHOLDS[self.threshold]
        return update, state._replace(memory=measure(state.memory, update, round))

    def admit(self, state: AggregatorState, learner: Any, clock: Any) -> np.bool:
        """Always."""
        return np.True_

    def _limit(self, memory: _Measured, round: Any) -> jax.Array:
        """The threshold of this round; infinite until it has been measured."""
        threshold, _ = _THRESHOLDS[self.threshold]
        if self.max_staleness is not None:
            return threshold(round, max_staleness=self.max_staleness, decay=self.decay)
        measured = (memory.round >= 0) & ((round > memory.round) | (self.threshold == "demo"))
        return jnp.where(measured, threshold(round, max_staleness=memory.staleness, decay=self.decay), jnp.inf)


def staleness_aware(
    group_size: int,
    *,
    capacity: int | None = None,
    decay: Scalar,
    smoothness: Scalar = 3.0,
    max_staleness: Scalar | None = None,
    combine: str = "mean",
    weight: Weight | None = None,
    threshold: str = "decay",
) -> StalenessAware:
    """Stellaris' aggregation: the whole queue, once it is fresh enough or full, weighted by staleness.

    Ready when the queue's mean staleness is at most `max_staleness * decay ** round`, or when it holds `group_size`
    gradients. Each gradient weighs `max(staleness, 1) ** (-1 / smoothness)`.

    Args:
      group_size: the number of queued gradients that are applied whatever their staleness; usually the number of
        learners.
      capacity: gradients that the queue can store, at least `group_size`; `2 * group_size` by default, because
        gradients still arrive while an update is under way.
      decay: of the threshold per round, in (0, 1]; 1 for a constant threshold.
      smoothness: of the weights, positive; `math.inf` weighs all gradients alike.
      max_staleness: the threshold of round 0, in versions; `math.inf` for no threshold at all. None measures it: it is
        the largest staleness applied in the first round with any above zero, and there is no threshold until that
        round ends.
      combine: `"mean"` for one optimizer step per group, `"sequential"` for one per gradient.
      weight: `(staleness) -> factor`, such as `polynomial_weight`, instead of the weight above. Give its settings by
        `functools.partial`: those are compared by value, and `vmap` can sweep them.
      threshold: `"decay"`, as above; or `"demo"`, `demo_threshold` of the authors' demo. That is measured on the
        first group with a stale gradient, as `int(mean) + 1`, and holds from then on.

    Returns:
      An `Aggregator`; it admits every learner. A gradient whose version is ahead of the clock counts as fresh.

    Raises:
      TypeError: if a setting is not a number, or `weight` not a function.
      ValueError: if an argument is out of its range; the message names it.

    Source:
      Stellaris (SC 2024), staleness-aware gradient aggregation.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = staleness_aware(group_size=2, decay=0.9, max_staleness=0)
      >>> state = aggregator.init(jnp.zeros(1))
      >>> state = aggregator.push(state, jnp.array([1.0]), version=0)
      >>> bool(aggregator.ready(state, clock=8, round=0))  # stale, and alone
      False
      >>> state = aggregator.push(state, jnp.array([4.0]), version=8)
      >>> bool(aggregator.ready(state, clock=8, round=0))  # full
      True
      >>> update, state = aggregator.pop(state, 8, 0)
      >>> print(update.staleness[:2], update.gradient, update.scale)  # weights 1/2 and 1
      [8 0] [3.] 0.75
      >>> aggregator == staleness_aware(group_size=2, decay=0.9, max_staleness=0)
      True
    """
    capacity = gradient_queue.capacity_for("group_size", group_size, capacity)
    check_decay(decay)
    if weight is None:
        checks.positive(smoothness=smoothness)
    for _, start in checks.known(**checks.given(max_staleness=max_staleness)):
        if not start >= 0:
            raise ValueError(f"max_staleness={start} is negative: use None to measure it, math.inf for no threshold")
    for name, value, known in (("combine", combine, ("mean", "sequential")), ("threshold", threshold, _THRESHOLDS)):
        if value not in tuple(known):
            raise ValueError(f"{name}={value!r} is neither {' nor '.join(map(repr, known))}")
    return StalenessAware(
        group_size=group_size,
        capacity=capacity,
        decay=checks.plain(decay),
        smoothness=checks.plain(smoothness) if weight is None else None,
        max_staleness=checks.plain(max_staleness),
        combine=combine,
        weight=None if weight is None else freeze_weight(weight),
        threshold=threshold,
    )
