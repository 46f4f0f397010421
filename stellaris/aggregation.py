"""When queued gradients are applied, how they are weighted, and how they become one optimizer step.

An aggregator is five pure functions over a state that holds the queue: `init`, `push`, `ready`, `pop`, `admit`. All are
jit-able, and their sizes are static: the queue is a ring of `capacity` gradients.
"""

from collections.abc import Callable
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int

from stellaris.staleness import check_decay, check_smoothness, staleness_threshold, staleness_weight
from stellaris.types import Tree


class AggregatorState(NamedTuple):
    """The queue of gradients, oldest first from `head`, and what an aggregator remembers besides."""

    gradient: Tree  #: every leaf `[capacity, ...]`, a ring.
    version: Int[jax.Array, "capacity"]  #: the version each gradient was computed on.
    head: Int[jax.Array, ""]  #: the slot of the oldest gradient.
    count: Int[jax.Array, ""]  # type: ignore[assignment]  #: how many are queued.
    overflow: Bool[jax.Array, ""]  #: whether a gradient was ever pushed into a full queue, and so lost.
    memory: Tree  #: the aggregator's own.

    @property
    def capacity(self) -> int:
        """How many gradients the queue can hold."""
        return self.version.shape[0]


class Update(NamedTuple):
    """A group of gradients, ready for `apply_update`.

    `combine="mean"`: `gradient = sum(w g) / sum(w)` and `scale = sum(w) / n`, a scalar: one optimizer step.
    `combine="sequential"`: both stacked `[capacity, ...]`, oldest first and zero beyond `count`: one step each.
    """

    gradient: Tree
    scale: Float[jax.Array, "*n"]  #: factor on the optimizer's update: never on the gradient.
    count: Int[jax.Array, ""]  # type: ignore[assignment]  #: gradients in the group.
    staleness: Int[jax.Array, "capacity"]  #: of each, oldest first; -1 beyond `count`.


class Push(Protocol):
    """The type of `Aggregator.push`."""

    def __call__(self, state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        """Appends one gradient."""


class Aggregator(NamedTuple):
    """Pure functions over a state tree.

    * `init(gradient_like) -> state`: an empty queue for gradients of this structure.
    * `push(state, gradient, version, *, learner=0) -> state`: appends a gradient computed on `version`. A push beyond
      capacity sets `state.overflow`, and changes nothing else.
    * `ready(state, clock, round) -> bool`: apply now? False on an empty queue.
    * `pop(state, clock, round) -> (Update, state)`: takes the group to apply out of the queue.
    * `admit(state, learner, clock) -> bool`: may this learner start another gradient?
    """

    init: Callable[[Tree], AggregatorState]
    push: Push
    ready: Callable[[AggregatorState, Any, Any], jax.Array]
    pop: Callable[[AggregatorState, Any, Any], tuple[Update, AggregatorState]]
    admit: Callable[[AggregatorState, Any, Any], jax.Array]


class _Measured(NamedTuple):
    """The largest staleness applied during the first round that saw any."""

    round: Int[jax.Array, ""]  # -1 until a stale gradient is applied
    staleness: Int[jax.Array, ""]


def staleness_aware(
    full: int,
    *,
    capacity: int | None = None,
    decay: float,
    smoothness: float = 3.0,
    max_staleness: float | None = None,
    combine: str = "mean",
) -> Aggregator:
    """Stellaris' aggregation: the whole queue, once it is fresh enough or full, weighted by staleness.

    Ready when the queue's mean staleness is at most `max_staleness * decay ** round`, or when it holds `full`
    gradients. Each gradient weighs `max(staleness, 1) ** (-1 / smoothness)`.

    Args:
      full: gradients that force readiness; the number of learners.
      capacity: gradients that the queue can store, at least `full`; `2 * full` by default, because gradients still
        arrive while an update is under way.
      decay: of the threshold per round, in (0, 1].
      smoothness: of the weights, positive; `math.inf` weighs all alike.
      max_staleness: the threshold of round 0, in versions. None measures it: the largest staleness applied in the first
        round that has any above zero; until that round ends there is no threshold. `math.inf` for no threshold at all.
      combine: `"mean"`, one optimizer step for the group, or `"sequential"`, one for each gradient.

    Returns:
      An `Aggregator`; it admits every learner.

    Raises:
      ValueError: names the argument that is out of its range.

    Source:
      Stellaris (SC 2024), staleness-aware gradient aggregation.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = staleness_aware(full=2, decay=0.9, max_staleness=0)
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
    """
    capacity = _check_sizes("full", full, capacity)
    check_decay(decay)
    check_smoothness(smoothness)
    if max_staleness is not None and not max_staleness >= 0:
        raise ValueError(
            f"max_staleness={max_staleness} is negative: use None to measure it, math.inf for no threshold"
        )

    def threshold(memory: _Measured, round: Any) -> jax.Array:
        if max_staleness is not None:
            return staleness_threshold(round, max_staleness=max_staleness, decay=decay)
        beta = staleness_threshold(round, max_staleness=memory.staleness, decay=decay)
        return jnp.where((memory.round >= 0) & (round > memory.round), beta, jnp.inf)

    def ready(state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        queued = _queued(state)
        total = jnp.sum(jnp.where(queued, clock - state.version, 0))
        fresh = total <= threshold(state.memory, round) * state.count
        return (state.count > 0) & (fresh | (state.count >= full))

    def pop(state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        update, state = _take(state, state.count, clock, lambda s: staleness_weight(s, smoothness=smoothness), combine)
        memory, stalest = state.memory, jnp.max(update.staleness)
        measured = jnp.where((memory.round < 0) & (stalest > 0), round, memory.round)
        during = (measured >= 0) & (measured == round)
        longest = jnp.where(during, jnp.maximum(memory.staleness, stalest), memory.staleness)
        return update, state._replace(memory=_Measured(jnp.int32(measured), jnp.int32(longest)))

    _check_combine(combine)
    return Aggregator(
        init=lambda like: _empty(like, capacity, _Measured(jnp.int32(-1), jnp.int32(0))),
        push=_push,
        ready=ready,
        pop=pop,
        admit=_admit_all,
    )


def fully_asynchronous(*, capacity: int) -> Aggregator:
    """Applies every gradient as it comes, one at a time, oldest first, all with weight 1.

    Args:
      capacity: gradients that may wait while an update is under way, at least 1.

    Returns:
      An `Aggregator`; it admits every learner.

    Raises:
      ValueError: if `capacity` is below 1.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = fully_asynchronous(capacity=4)
      >>> state = aggregator.push(aggregator.init(jnp.zeros(1)), jnp.array([2.0]), version=0)
      >>> update, state = aggregator.pop(state, 5, 0)
      >>> print(update.gradient, update.scale, state.count)
      [2.] 1.0 0
    """
    capacity = _check_sizes("capacity", capacity, capacity)
    return Aggregator(
        init=lambda like: _empty(like, capacity, ()),
        push=_push,
        ready=lambda state, clock, round: state.count > 0,
        pop=lambda state, clock, round: _take(state, jnp.minimum(state.count, 1), clock, _unweighted, "mean"),
        admit=_admit_all,
    )


def synchronous(n: int) -> Aggregator:
    """Waits for one gradient of each of `n` learners and averages them: data-parallel synchronous descent.

    Args:
      n: learners, numbered from 0. A learner is admitted once the clock has passed the version of its last gradient.

    Returns:
      An `Aggregator`.

    Raises:
      ValueError: if `n` is below 1.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = synchronous(2)
      >>> state = aggregator.push(aggregator.init(jnp.zeros(1)), jnp.array([2.0]), version=0, learner=1)
      >>> [bool(aggregator.admit(state, learner, 0)) for learner in (0, 1)]
      [True, False]
      >>> bool(aggregator.ready(state, 0, 0))
      False
    """
    _check_sizes("n", n, n)

    def push(state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        accepted = state.count < n
        last = jnp.where(accepted, version, state.memory[learner]).astype(jnp.int32)
        memory = state.memory.at[learner].set(last)
        return _push(state, gradient, version)._replace(memory=memory)

    return Aggregator(
        init=lambda like: _empty(like, n, jnp.full(n, -1, jnp.int32)),
        push=push,
        ready=lambda state, clock, round: state.count >= n,
        pop=lambda state, clock, round: _take(state, jnp.minimum(state.count, n), clock, _unweighted, "mean"),
        admit=lambda state, learner, clock: clock > state.memory[learner],
    )


def apply_update(
    optimizer: optax.GradientTransformation, update: Update, params: Tree, opt_state: Tree
) -> tuple[Tree, Tree]:
    """Applies a group of gradients: the optimizer sees the gradient, and its *step* is scaled by staleness.

    `params + scale * optimizer(gradient)`, once for `combine="mean"`, once for each gradient, oldest first, for
    `combine="sequential"`.

    Args:
      optimizer: any optax transformation.
      update: from `Aggregator.pop`.
      params: the newest parameters.
      opt_state: the optimizer's state.

    Returns:
      `(params, opt_state)`, the next version.

    Source:
      Stellaris (SC 2024) modulates the learning rate; Zhang et al. 2016, Staleness-aware Async-SGD, averages first.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> update = Update(jnp.array([2.0]), scale=jnp.array(0.5), count=jnp.int32(1), staleness=jnp.array([8]))
      >>> optimizer, params = optax.sgd(0.1), jnp.array([1.0])
      >>> params, _ = apply_update(optimizer, update, params, optimizer.init(params))
      >>> print(params)
      [0.9]
    """

    def step(gradient: Tree, scale: jax.Array, params: Tree, opt_state: Tree) -> tuple[Tree, Tree]:
        updates, opt_state = optimizer.update(gradient, opt_state, params)
        updates = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
        return optax.apply_updates(params, updates), opt_state

    if update.scale.ndim == 0:
        return step(update.gradient, update.scale, params, opt_state)

    def one(i: jax.Array, carry: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        return step(jax.tree.map(lambda g: g[i], update.gradient), update.scale[i], *carry)

    params, opt_state = jax.lax.fori_loop(0, update.count, one, (params, opt_state))
    return params, opt_state


# ---- the queue --------------------------------------------------------------------------------------------------


def _empty(like: Tree, capacity: int, memory: Tree) -> AggregatorState:
    return AggregatorState(
        gradient=jax.tree.map(lambda g: jnp.zeros((capacity, *jnp.shape(g)), jnp.result_type(g)), like),
        version=jnp.zeros(capacity, jnp.int32),
        head=jnp.int32(0),
        count=jnp.int32(0),
        overflow=jnp.bool_(False),
        memory=memory,
    )


def _push(state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
    del learner
    free = state.count < state.capacity
    slot = (state.head + state.count) % state.capacity

    def put(ring: jax.Array, new: Any) -> jax.Array:
        # Only one slot is read and written, so that a donated state is updated in place.
        return ring.at[slot].set(jnp.where(free, new, ring[slot]))

    return state._replace(
        gradient=jax.tree.map(put, state.gradient, gradient),
        version=put(state.version, jnp.int32(version)),
        count=state.count + free,
        overflow=state.overflow | ~free,
    )


def _queued(state: AggregatorState) -> Bool[jax.Array, "capacity"]:
    """Which slots of the ring are in use."""
    return (jnp.arange(state.capacity) - state.head) % state.capacity < state.count


def _take(
    state: AggregatorState, n: Any, clock: Any, weigh: Callable[[jax.Array], jax.Array], combine: str
) -> tuple[Update, AggregatorState]:
    """Takes the oldest `n` gradients; the rest stay in order."""
    order = (state.head + jnp.arange(state.capacity)) % state.capacity
    taken = jnp.arange(state.capacity) < n
    staleness = jnp.where(taken, clock - state.version[order], -1).astype(jnp.int32)
    weight = jnp.where(taken, weigh(staleness), 0.0)

    # Loops over what is taken: the other slots may hold anything, and cost nothing.
    if combine == "mean":
        share = weight / jnp.maximum(jnp.sum(weight), 1e-30)

        def add(i: jax.Array, total: Tree) -> Tree:
            return jax.tree.map(lambda t, g: t + share[i].astype(g.dtype) * g[order[i]], total, state.gradient)

        zeros = jax.tree.map(lambda g: jnp.zeros_like(g, shape=g.shape[1:]), state.gradient)
        gradient = jax.lax.fori_loop(0, n, add, zeros)
        scale = jnp.sum(weight) / jnp.maximum(n, 1)
    else:

        def copy(i: jax.Array, stacked: Tree) -> Tree:
            return jax.tree.map(lambda s, g: s.at[i].set(g[order[i]]), stacked, state.gradient)

        gradient = jax.lax.fori_loop(0, n, copy, jax.tree.map(jnp.zeros_like, state.gradient))
        scale = weight
    update = Update(gradient, scale, jnp.int32(n), staleness)
    return update, state._replace(head=(state.head + n) % state.capacity, count=jnp.int32(state.count - n))


def _unweighted(staleness: jax.Array) -> jax.Array:
    return jnp.ones_like(staleness, jnp.float32)


def _admit_all(state: AggregatorState, learner: Any, clock: Any) -> Any:
    del state, learner, clock
    return np.True_


def _check_sizes(name: str, full: int, capacity: int | None) -> int:
    if not isinstance(full, int) or full < 1:
        raise ValueError(f"{name}={full} is not a positive whole number")
    capacity = 2 * full if capacity is None else capacity
    if capacity < full:
        raise ValueError(f"capacity={capacity} is below {name}={full}: the queue could never fill")
    return capacity


def _check_combine(combine: str) -> None:
    if combine not in ("mean", "sequential"):
        raise ValueError(f"combine={combine!r} is neither 'mean' nor 'sequential'")
