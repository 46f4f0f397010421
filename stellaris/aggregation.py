"""When queued gradients are applied, how they are weighted, and how they become one optimizer step.

An aggregator is five pure functions over a state that holds the queue: `init`, `push`, `ready`, `pop`, `admit`. All are
jit-able, and their sizes are static: the queue is a ring of `capacity` gradients.
"""

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, Protocol

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Int

from stellaris import checks, eager, gradient_queue
from stellaris.gradient_queue import AggregatorState, Update
from stellaris.staleness import Weight, check_decay, integer_threshold, inverse_root, staleness_threshold, weight_of
from stellaris.types import Scalar, Tree

#: How `max_staleness` becomes the threshold of a round, by name.
THRESHOLDS = {"decay": staleness_threshold, "integer": integer_threshold}


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

    Example:
      >>> init, push, ready, pop, admit = synchronous(2)
      >>> state = push(init(jnp.zeros(1)), jnp.ones(1), version=0, learner=1)
      >>> bool(ready(state, 0, 0)), bool(admit(state, 0, 0)), bool(admit(state, 1, 0))
      (False, True, False)
    """

    init: Callable[[Tree], AggregatorState]
    push: Push
    ready: Callable[[AggregatorState, Any, Any], jax.Array]
    pop: Callable[[AggregatorState, Any, Any], tuple[Update, AggregatorState]]
    admit: Callable[[AggregatorState, Any, Any], jax.Array]


class _Measured(NamedTuple):
    """The staleness measured for the threshold, and the round in which it was."""

    round: Int[jax.Array, ""]  # -1 until a stale gradient is applied
    staleness: Int[jax.Array, ""]


def staleness_aware(
    full: int,
    *,
    capacity: int | None = None,
    decay: Scalar,
    smoothness: Scalar = 3.0,
    max_staleness: Scalar | None = None,
    combine: str = "mean",
    weight: Weight | None = None,
    threshold: str = "decay",
) -> Aggregator:
    """Stellaris' aggregation: the whole queue, once it is fresh enough or full, weighted by staleness.

    Ready when the queue's mean staleness is at most `max_staleness * decay ** round`, or when it holds `full`
    gradients. Each gradient weighs `max(staleness, 1) ** (-1 / smoothness)`.

    Args:
      full: gradients that force readiness; the number of learners.
      capacity: gradients that the queue can store, at least `full`; `2 * full` by default, because gradients still
        arrive while an update is under way.
      decay: of the threshold per round, in (0, 1]; 1 for a constant one.
      smoothness: of the weights, positive; `math.inf` weighs all alike.
      max_staleness: the threshold of round 0, in versions. None measures it: the largest staleness applied in the first
        round that has any above zero; until that round ends there is no threshold. `math.inf` for no threshold at all.
      combine: `"mean"`, one optimizer step for the group, or `"sequential"`, one for each gradient.
      weight: another weight, `(staleness) -> factor`, such as `polynomial_weight`, in the place of `smoothness`.
      threshold: `"decay"`, as above; or `"integer"`, the authors' demo's, `integer_threshold`: it is measured on the
        first group that is stale at all, `int(mean) + 1`, and holds from then on.

    Returns:
      An `Aggregator`; it admits every learner. A gradient whose version is ahead of the clock counts as fresh.

    Raises:
      TypeError: if a setting is not a number, or `weight` not a function.
      ValueError: if an argument is out of its range, which it names.

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
    weigh = weight_of(weight, smoothness)
    for _, start in checks.known(**checks.given(max_staleness=max_staleness)):
        if not start >= 0:
            raise ValueError(f"max_staleness={start} is negative: use None to measure it, math.inf for no threshold")
    for name, value, known in (("combine", combine, ("mean", "sequential")), ("threshold", threshold, THRESHOLDS)):
        if value not in tuple(known):
            raise ValueError(f"{name}={value!r} is neither {' nor '.join(map(repr, known))}")
    at = THRESHOLDS[threshold]
    measure = _stalest_of_a_round if threshold == "decay" else _mean_of_a_group

    def beta(memory: _Measured, round: Any) -> jax.Array:
        if max_staleness is not None:
            return at(round, max_staleness=max_staleness, decay=decay)
        ended = (memory.round >= 0) & ((round > memory.round) | (threshold == "integer"))
        return jnp.where(ended, at(round, max_staleness=memory.staleness, decay=decay), jnp.inf)

    def ready(state: AggregatorState, clock: Any, round: Any) -> jax.Array:
        total = jnp.sum(jnp.where(gradient_queue.queued(state), clock - state.version, 0))
        limit = beta(state.memory, round)
        unlimited = jnp.isinf(limit)  # and times no gradients it would be no number
        most = jnp.where(unlimited, 0.0, limit) * state.count.astype(limit.dtype)
        fresh = unlimited | (total.astype(limit.dtype) <= most)
        return (state.count > 0) & (fresh | (state.count >= full))

    def pop(state: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
        update, state = gradient_queue.take(state, state.count, clock, weigh, combine)
        return update, state._replace(memory=measure(state.memory, update, round))

    return Aggregator(
        init=lambda like: gradient_queue.empty(like, capacity, _Measured(jnp.int32(-1), jnp.int32(0))),
        push=gradient_queue.push,
        ready=ready,
        pop=pop,
        admit=_admit_all,
    )


def _stalest_of_a_round(memory: _Measured, update: Update, round: Any) -> _Measured:
    """The largest staleness applied during the first round that saw any."""
    stalest = jnp.max(update.staleness)
    first = jnp.where((memory.round < 0) & (stalest > 0), round, memory.round)
    during = (first >= 0) & (first == round)
    longest = jnp.where(during, jnp.maximum(memory.staleness, stalest), memory.staleness)
    return _Measured(first.astype(jnp.int32), longest.astype(jnp.int32))


def _mean_of_a_group(memory: _Measured, update: Update, round: Any) -> _Measured:
    """The mean staleness of the first group that was stale at all, rounded up as the authors' demo does."""
    total = jnp.sum(jnp.maximum(update.staleness, 0))
    first = (memory.round < 0) & (total > 0)
    mean = total // jnp.maximum(update.count, 1) + 1
    staleness = jnp.where(first, mean, memory.staleness).astype(jnp.int32)
    return _Measured(jnp.where(first, round, memory.round).astype(jnp.int32), staleness)


def softsync(n: int, *, learners: int | None = None, capacity: int | None = None) -> Aggregator:
    """Applies groups of `c` gradients, each divided by its staleness: `sum_i g_i / max(delta_i, 1) / c`.

    Args:
      n: gradients in a group, the oldest, `c = n`; with `learners`, Zhang et al.'s n: groups of
        `c = floor(learners / n)`, so that the policy is updated n times while each learner computes one gradient.
      learners: in Zhang et al.'s form, at least n: 1-softsync waits for as many gradients as there are learners,
        learners-softsync applies each as it comes.
      capacity: gradients that the queue can store, at least a group; two groups by default.

    Returns:
      An `Aggregator`; it admits every learner.

    Raises:
      ValueError: if `n` is not positive, or `learners` or `capacity` is too small.

    Source:
      Zhang et al. 2016, Staleness-aware Async-SGD for Distributed Deep Learning, Eq. 5 and 6.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = softsync(2)  # as softsync(4, learners=8)
      >>> state = aggregator.init(jnp.zeros(1))
      >>> for gradient, version in ((1.0, 0), (4.0, 8)):
      ...     state = aggregator.push(state, jnp.array([gradient]), version)
      >>> update, state = aggregator.pop(state, 8, 0)
      >>> print(update.gradient * update.scale)  # (1 / 8 + 4 / 1) / 2
      [2.0625]
    """
    _check_whole(n=n)
    if learners is not None:
        _check_whole(learners=learners)
        if learners < n:
            raise ValueError(f"learners={learners} is below n={n}: there is no group of less than one gradient")
    group = n if learners is None else learners // n
    capacity = _check_sizes("n" if learners is None else "learners // n", group, capacity)
    return Aggregator(
        init=lambda like: gradient_queue.empty(like, capacity, ()),
        push=gradient_queue.push,
        ready=lambda state, clock, round: state.count >= group,
        pop=lambda state, clock, round: gradient_queue.take(state, group, clock, inverse_root(1.0), "mean"),
        admit=_admit_all,
    )


def stale_synchronous(bound: int, learners: int, *, capacity: int | None = None) -> Aggregator:
    """Applies every gradient as it comes, but lets no learner run ahead of the slowest by more than a bound.

    A learner is admitted while `its pushes - the fewest pushes of any learner <= bound`.

    Args:
      bound: gradients, at least 0. With 0, learners wait for each other after every gradient.
      learners: numbered from 0; `push` and `admit` need to be told which one.
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
    _check_whole(learners=learners)
    if not isinstance(bound, int | np.integer):
        raise ValueError(f"bound={bound!r} is not a whole number of gradients")
    capacity = 2 * learners if capacity is None else capacity
    _check_whole(capacity=capacity)

    def push(state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        _check_learner(learner, learners)
        accepted = state.count < state.capacity
        pushes = state.memory.at[learner].add(accepted.astype(jnp.int32))
        return gradient_queue.push(state, gradient, version)._replace(memory=pushes)

    def admit(state: AggregatorState, learner: Any, clock: Any) -> jax.Array:
        del clock
        _check_learner(learner, learners)
        return jnp.asarray(state.memory[learner] - jnp.min(state.memory) <= bound)

    return Aggregator(
        init=lambda like: gradient_queue.empty(like, capacity, jnp.zeros(learners, jnp.int32)),
        push=push,
        ready=lambda state, clock, round: state.count > 0,
        pop=lambda state, clock, round: gradient_queue.take(state, 1, clock, _unweighted, "mean"),
        admit=admit,
    )


def fully_asynchronous(*, capacity: int) -> Aggregator:
    """Applies every gradient as it comes, one at a time, oldest first, all with weight 1.

    Args:
      capacity: gradients that may wait while an update is under way, at least 1.

    Returns:
      An `Aggregator`; it admits every learner.

    Raises:
      ValueError: if `capacity` is below 1.

    Source:
      Dean et al. 2012, Large Scale Distributed Deep Networks (Downpour SGD); as the baseline of Stellaris (SC 2024) and
      of Zhang et al. 2016.

    Example:
      >>> import jax.numpy as jnp
      >>> aggregator = fully_asynchronous(capacity=4)
      >>> state = aggregator.push(aggregator.init(jnp.zeros(1)), jnp.array([2.0]), version=0)
      >>> update, state = aggregator.pop(state, 5, 0)
      >>> print(update.gradient, update.scale, state.count)
      [2.] 1.0 0
    """
    _check_whole(capacity=capacity)
    return Aggregator(
        init=lambda like: gradient_queue.empty(like, capacity, ()),
        push=gradient_queue.push,
        ready=lambda state, clock, round: state.count > 0,
        pop=lambda state, clock, round: gradient_queue.take(state, 1, clock, _unweighted, "mean"),
        admit=_admit_all,
    )


def synchronous(n: int) -> Aggregator:
    """Waits for one gradient of each of `n` learners and averages them: data-parallel synchronous descent.

    Args:
      n: learners, numbered from 0. A learner is admitted once the clock has passed the version of its last gradient.

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
    _check_whole(n=n)

    def push(state: AggregatorState, gradient: Tree, version: Any, *, learner: Any = 0) -> AggregatorState:
        _check_learner(learner, n)
        accepted = state.count < n
        last = jnp.where(accepted, version, state.memory[learner]).astype(jnp.int32)
        memory = state.memory.at[learner].set(last)
        return gradient_queue.push(state, gradient, version)._replace(memory=memory)

    def admit(state: AggregatorState, learner: Any, clock: Any) -> jax.Array:
        _check_learner(learner, n)
        return jnp.asarray(clock > state.memory[learner])

    return Aggregator(
        init=lambda like: gradient_queue.empty(like, n, jnp.full(n, -1, jnp.int32)),
        push=push,
        ready=lambda state, clock, round: state.count >= n,
        pop=lambda state, clock, round: gradient_queue.take(state, n, clock, _unweighted, "mean"),
        admit=admit,
    )


def apply_update(
    optimizer: optax.GradientTransformation, update: Update, params: Tree, opt_state: Tree, **extra: Any
) -> tuple[Tree, Tree]:
    """Applies a group of gradients: the optimizer sees the gradient, and its *step* is scaled by staleness.

    `params + scale * optimizer(gradient)`, once for `combine="mean"`, once for each gradient, oldest first, for
    `combine="sequential"`. A group of no gradients changes nothing, neither the parameters nor the optimizer's state.

    Outside of `jit` it is compiled once for each optimizer: make the optimizer once, not anew for every update. The
    programs of the 32 optimizers used last are kept.

    Args:
      optimizer: any optax transformation.
      update: from `Aggregator.pop`.
      params: the newest parameters.
      opt_state: the optimizer's state.
      **extra: arguments that the optimizer's update takes besides, such as `params_then` of `add_delay_compensation`.
        For `combine="sequential"` they are stacked as the gradients are, `[capacity, ...]`, a row for each.
        `staleness`, which `scale_by_staleness` takes, is the update's own if it is left out: that of the one gradient
        in the sequential form, those of the whole group `[capacity]` in the mean, where -1 stands for none.

    Returns:
      `(params, opt_state)`, the next version.

    Raises:
      ValueError: if the update is sequential and an extra argument has no row for each gradient; and whatever the
        optimizer raises, for instance where the gradient's structure is not the parameters'.

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
    extra = {"staleness": update.staleness} | extra
    apply = _step_once if jnp.ndim(update.scale) == 0 else _step_for_each
    if apply is _step_for_each:
        _check_rows(extra, len(update.scale))
    after: tuple[Tree, Tree] = eager.call(apply, (optimizer,), update, params, opt_state, extra)
    return after


def _step_once(
    optimizer: optax.GradientTransformation, update: Update, params: Tree, opt_state: Tree, extra: Mapping[str, Any]
) -> tuple[Tree, Tree]:
    after = _step(optimizer, update.gradient, update.scale, (params, opt_state), extra)
    some = update.count > 0
    kept: tuple[Tree, Tree] = jax.tree.map(lambda new, old: jnp.where(some, new, old), after, (params, opt_state))
    return kept


def _step_for_each(
    optimizer: optax.GradientTransformation, update: Update, params: Tree, opt_state: Tree, extra: Mapping[str, Any]
) -> tuple[Tree, Tree]:
    def one(i: jax.Array, before: tuple[Tree, Tree]) -> tuple[Tree, Tree]:
        gradient, scale, row = jax.tree.map(lambda x: x[i], (update.gradient, update.scale, dict(extra)))
        return _step(optimizer, gradient, scale, before, row)

    after: tuple[Tree, Tree] = jax.lax.fori_loop(0, update.count, one, (params, opt_state))
    return after


def _step(
    optimizer: optax.GradientTransformation,
    gradient: Tree,
    scale: jax.Array,
    before: tuple[Tree, Tree],
    extra: Mapping[str, Any],
) -> tuple[Tree, Tree]:
    params, opt_state = before
    # Not even optax's Adam is strict about types: it raises its decay to an integer's power.
    with jax.numpy_dtype_promotion("standard"):
        updates, opt_state = optax.with_extra_args_support(optimizer).update(gradient, opt_state, params, **extra)
    updates = jax.tree.map(lambda u: u * scale.astype(u.dtype), updates)
    return optax.apply_updates(params, updates), opt_state


def _check_rows(extra: Mapping[str, Any], capacity: int) -> None:
    for name, tree in extra.items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(tree):
            if jnp.shape(leaf)[:1] != (capacity,):
                where = f"{name}{jax.tree_util.keystr(path)}"
                raise ValueError(
                    f"{where} has shape {jnp.shape(leaf)}: expected [{capacity}, ...], a row for each gradient of a "
                    "sequential update"
                )


def _unweighted(staleness: jax.Array) -> jax.Array:
    return jnp.ones_like(staleness, float)


def _admit_all(state: AggregatorState, learner: Any, clock: Any) -> Any:
    del state, learner, clock
    return np.True_


def _check_sizes(name: str, full: int, capacity: int | None) -> int:
    """The queue's capacity, twice what fills it by default."""
    _check_whole(**{name: full})
    capacity = 2 * full if capacity is None else capacity
    _check_whole(capacity=capacity)
    if capacity < full:
        raise ValueError(f"capacity={capacity} is below {name}={full}: the queue could never fill")
    return capacity


def _check_whole(**numbers: Any) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int | np.integer) or number < 1:
            raise ValueError(f"{name}={number!r} is not a positive whole number")


def _check_learner(learner: Any, learners: int) -> None:
    for _, number in checks.known(learner=learner):
        if number not in range(learners):
            raise IndexError(f"learner={learner} is none of the {learners} learners, which are numbered from 0")
