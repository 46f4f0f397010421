"""Stellaris' aggregator: applies all queued gradients once they are fresh enough or form a group."""

from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Int

from stellaris._core import checks
from stellaris.aggregation import gradient_queue
from stellaris.aggregation.gradient_queue import AggregatorState, Update
from stellaris.aggregation.protocol import Aggregator, Queueing, checked_tree
from stellaris.aggregation.staleness import Weight, freeze_weight, inverse_root
from stellaris.aggregation.thresholds import check_decay, demo_threshold, staleness_threshold
from stellaris.types import JaxArray, Scalar, Tree


class _Measured(NamedTuple):
    """The staleness of the gradients applied in the first round that applies a stale gradient."""

    round: Int[JaxArray, ""]  #: the latest round that was measured.
    largest: Int[JaxArray, ""]
    total: Int[JaxArray, ""]
    gradients: Int[JaxArray, ""]


def _measure(memory: _Measured, update: Update, round: Any) -> _Measured:
    """Measures an update, unless an earlier round has applied a stale gradient."""
    staleness = jnp.maximum(update.staleness, 0)
    same = memory.round == round
    # A round without a stale gradient is forgotten when the next begins.
    largest, total, gradients = (jnp.where(same, x, 0) for x in memory[1:])
    after = _Measured(
        jnp.asarray(round, jnp.int32),
        jnp.maximum(largest, jnp.max(staleness)),
        total + jnp.sum(staleness),
        gradients + update.count,
    )
    over = (memory.largest > 0) & ~same
    measured: _Measured = jax.tree.map(lambda old, new: jnp.where(over, old, new).astype(jnp.int32), memory, after)
    return measured


def _largest(memory: _Measured) -> jax.Array:
    """Returns the largest staleness of the measured round."""
    return memory.largest


def _above_mean(memory: _Measured) -> jax.Array:
    """Returns `int(mean staleness) + 1` of the measured round, as the authors' demo does."""
    return memory.total // jnp.maximum(memory.gradients, 1) + 1


#: For each kind of threshold: the function that gives the threshold of a round, and the function that gives
#: `max_staleness` from the measured round.
_THRESHOLDS = {"decay": (staleness_threshold, _largest), "demo": (demo_threshold, _above_mean)}


@checked_tree
@dataclass(frozen=True, repr=False)
class _StalenessAware(Queueing):
    maker: ClassVar[str] = "staleness_aware"
    group_size: int = field(metadata={"static": True})
    capacity: int = field(metadata={"static": True})
    decay: Any
    smoothness: Any  #: None if `weight` replaces it.
    max_staleness: Any  #: None to measure it.
    combine: str = field(metadata={"static": True})
    weight: Weight | None
    threshold: str = field(metadata={"static": True})

    def __post_init__(self) -> None:
        gradient_queue.capacity_for(self.group_size, self.capacity)
        check_decay(self.decay)
        if self.weight is None:
            checks.positive(smoothness=self.smoothness)
        for _, start in checks.known(**checks.given(max_staleness=self.max_staleness)):
            if not start >= 0:
                raise ValueError(
                    f"max_staleness={start} is negative: use None to measure it, math.inf for no threshold"
                )
        choices = {"combine": ("mean", "sequential"), "threshold": tuple(_THRESHOLDS)}
        for name, known in choices.items():
            if getattr(self, name) not in known:
                raise ValueError(f"{name}={getattr(self, name)!r} is neither {' nor '.join(map(repr, known))}")
        self._plain("decay", "smoothness", "max_staleness")

    def init(self, gradient_like: Tree) -> AggregatorState:
        return gradient_queue.empty(
            gradient_like, self.capacity, _Measured(jnp.int32(-1), jnp.int32(0), jnp.int32(0), jnp.int32(0))
        )

    def ready(self, state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        checks.whole_int32(clock=clock, round=round)
        # A version from the future counts as fresh; its negative staleness would offset that of others.
        ages = jnp.where(gradient_queue.queued(state), jnp.maximum(clock - state.version, 0), 0)
        limit = self._limit(state.memory, round)
        unlimited = jnp.isinf(limit)  # inf * 0 would be NaN
        most = jnp.where(unlimited, 0.0, limit) * state.count.astype(limit.dtype)
        fresh = unlimited | (jnp.sum(ages.astype(limit.dtype)) <= most)  # a sum of int32 could overflow
        return (state.count > 0) & (fresh | (state.count >= self.group_size))

    def pop(self, state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        checks.whole_int32(round=round)
        weigh = self.weight or inverse_root(self.smoothness)
        update, state = gradient_queue.take(state, state.count, clock, weigh, self.combine)
        return update, state._replace(memory=_measure(state.memory, update, round))

    def _limit(self, memory: _Measured, round: Any) -> jax.Array:
        """The threshold of this round; infinite until `max_staleness` is measured."""
        threshold, measured = _THRESHOLDS[self.threshold]
        if self.max_staleness is not None:
            return threshold(round, max_staleness=self.max_staleness, decay=self.decay)
        over = (memory.largest > 0) & (round > memory.round)
        return jnp.where(over, threshold(round, max_staleness=measured(memory), decay=self.decay), jnp.inf)


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
) -> Aggregator:
    """Applies all queued gradients, weighted by staleness, once they are fresh enough or form a group (Stellaris).

    The aggregator is ready when the queue's mean staleness is at most `max_staleness * decay ** round`, or when the
    queue holds `group_size` gradients. (`staleness_threshold` defines `round`.) Each gradient weighs
    `max(staleness, 1) ** (-1 / smoothness)`.

    Args:
      group_size: a queue with this many gradients is applied at any staleness; usually the number of learners.
      capacity: gradients that the queue can store, at least `group_size`; `2 * group_size` by default, because
        gradients still arrive during an update. A push into a full queue loses its gradient, and sets the state's
        `overflow`.
      decay: decay of the threshold per round, in (0, 1]; 1 for a constant threshold.
      smoothness: smoothness of the weights, positive; `math.inf` gives all gradients the same weight.
      max_staleness: the threshold of round 0, in versions; `math.inf` for no threshold. None measures it: the
        largest staleness applied in the first round that applies a stale gradient. Until that round ends, the threshold
        is infinite.
      combine: `"mean"` for one optimizer step per group, `"sequential"` for one per gradient.
      weight: `(staleness) -> factor`, such as `polynomial_weight`, instead of the weight above. Give its settings by
        `functools.partial`: they are compared by value, and `vmap` can sweep them.
      threshold: `"decay"`, as above; or `"demo"` for `demo_threshold`. With `"demo"` and `max_staleness=None` the
        measurement gives `int(mean) + 1` of the applied staleness instead of the largest.

    Returns:
      An `Aggregator`; it admits every learner. A gradient whose version is above the newest counts as fresh.

    Raises:
      TypeError: if a setting is not a number, or `weight` not a function.
      ValueError: if an argument is out of range; the message names it.

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
    return _StalenessAware(
        group_size=group_size,
        capacity=gradient_queue.capacity_for(group_size, capacity),
        decay=decay,
        smoothness=smoothness if weight is None else None,
        max_staleness=max_staleness,
        combine=combine,
        weight=None if weight is None else freeze_weight(weight),
        threshold=threshold,
    )
