"""Stellaris' threshold: bounds on the wait of a gradient, and on the staleness of applied groups.

Stellaris (SC 2024) queues gradients and, at each arrival, applies the whole queue if its mean staleness is at most
beta_k in round k, or if it holds N gradients. The paper does not bound the wait. The rule alone implies:

* **A group's mean staleness exceeds beta_k only if the group is full.** Otherwise the group would not be applied.
* **A queue never holds more than N gradients, and a gradient is applied at most N - 1 arrivals after its own.** Until
  then the queue, which is only emptied as a whole, holds it and all later gradients: the N-th of them fills it.

The check runs the library's `staleness_aware` for every order in which the gradients of a few learners can arrive, and
for random orders of learners with very different speeds. A learner that delivers takes the newest version at once. The
check keeps its own account of the queue, its staleness and beta_k, in integers: the number of gradients, the sum and
the least of their versions, and the first arrival.

**The meaning of N.** The rule "apply once one gradient of *each* learner is there", which is sometimes read into the
design, implies no such bound: the queue waits for the slowest learner, and for ever for a dead learner. With any N
gradients the queue does not wait, because a fast learner's second gradient counts. If learners wait for an update
before they continue, each has at most one gradient in the queue, and N must not exceed the number of live learners.

**beta -> 0 does not make the system synchronous.** A gradient that is computed on the newest version and finds the
queue empty has a mean staleness of 0 <= beta, and is applied alone. With beta below 1/N a group that is not full
contains nothing stale, since one stale gradient among fewer than N has a mean above 1/N; and the first fresh gradient
does not wait for a second. So every group is full, or a single fresh gradient: a fast learner updates the policy alone,
and a slow learner's staleness grows with the ratio of their speeds, without bound. A small beta requires fresh
gradients, not one from every learner. Synchrony requires waiting for all: `stellaris.synchronous`.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Bool, Float, Int

from stellaris import staleness_aware
from stellaris.types import NDArray
from theory_checks.check import Claim, Family, Instance, Sides, Theorem


class Setting(NamedTuple):
    """The settings of the threshold."""

    max_staleness: float | None  #: None for the largest staleness in the first round that applies a stale gradient.
    decay: float
    period: int  #: arrivals in a round.


class Queue(NamedTuple):
    """The check's own account of the queue."""

    length: Any
    versions: Any  #: the sum of the versions in the queue.
    oldest: Any  #: the lowest version in the queue.
    first: Any  #: number of the arrival of the gradient that waits longest.
    whose: Bool[jax.Array, " L"]


class Arrivals(NamedTuple):
    """The state of the queue just after each arrival, and whether the queue was then applied."""

    applied: Bool[jax.Array, " T"]
    length: Int[jax.Array, " T"]
    total: Int[jax.Array, " T"]  #: the sum of the stalenesses.
    stalest: Int[jax.Array, " T"]
    wait: Int[jax.Array, " T"]  #: arrivals since the first gradient in the queue.
    threshold: Float[jax.Array, " T"]
    reported: Int[jax.Array, "T 2"]  #: length and total staleness of the group that the library applied, or 0.


def arrive(
    order: Int[jax.Array, " T"], learners: int, full: int, setting: Setting, *, one_of_each: bool = False
) -> Arrivals:
    """Runs the library's aggregator over gradients that arrive in an order of learners.

    Args:
      order: the learner of each arrival.
      learners: the number of learners.
      full: N, the number of gradients that are applied at any staleness.
      setting: the settings of the threshold.
      one_of_each: whether to also apply a queue that has a gradient of every learner.
    """
    aggregator = staleness_aware(
        full, capacity=full, decay=setting.decay, max_staleness=setting.max_staleness, smoothness=1.0
    )
    zero = jnp.array(0)
    nothing = Queue(zero, zero, jnp.array(np.iinfo(np.int32).max), zero, jnp.zeros(learners, bool))

    def arrival(carry: Any, now: Any) -> tuple[Any, Arrivals]:
        state, queue, taken_up, clock, measured = carry
        i, learner = now
        version, round = taken_up[learner], i // setting.period
        queue = Queue(
            queue.length + 1,
            queue.versions + version,
            jnp.minimum(queue.oldest, version),
            jnp.where(queue.length == 0, i, queue.first),
            queue.whose.at[learner].set(True),
        )
        total, stalest = queue.length * clock - queue.versions, clock - queue.oldest
        threshold = _threshold(setting, measured, round)

        state = aggregator.push(state, jnp.zeros(1), version, learner=learner)
        applied = aggregator.ready(state, clock, round) | (one_of_each & queue.whose.all())
        update, after = aggregator.pop(state, clock, round)
        state = jax.tree.map(lambda new, old: jnp.where(applied, new, old), after, state)
        reported = jnp.where(applied, jnp.array([update.count, jnp.maximum(update.staleness, 0).sum()]), 0)

        found = Arrivals(applied, queue.length, total, stalest, i - queue.first, threshold, reported)
        measured = _measure(measured, jnp.where(applied, stalest, 0), round)
        queue = jax.tree.map(lambda new, old: jnp.where(applied, new, old), nothing, queue)
        clock = clock + applied
        return (state, queue, taken_up.at[learner].set(clock), clock, measured), found

    start = (aggregator.init(jnp.zeros(1)), nothing, jnp.zeros(learners, int), zero, (zero - 1, zero))
    _, arrivals = jax.lax.scan(arrival, start, (jnp.arange(len(order)), order))
    return arrivals


def _threshold(setting: Setting, measured: tuple[Any, Any], round: Any) -> jax.Array:
    """Returns beta_k; a measured beta_k is infinite until the end of the round that measures it."""
    when, stalest = measured
    if setting.max_staleness is not None:
        return jnp.asarray(setting.max_staleness * setting.decay**round)
    return jnp.where((when >= 0) & (round > when), stalest * setting.decay**round, jnp.inf)


def _measure(measured: tuple[Any, Any], stalest: Any, round: Any) -> tuple[Any, Any]:
    """Updates the first round in which a stale gradient was applied, and its largest staleness."""
    when, most = measured
    when = jnp.where((when < 0) & (stalest > 0), round, when)
    return when, jnp.where(when == round, jnp.maximum(most, stalest), most)


def bounds(instance: Instance) -> Mapping[str, Sides]:
    """Returns both sides of the bounds on waits, means and lengths of one sequence of arrivals."""
    seen, full = Arrivals(*instance.fixed["arrivals"]), instance.fixed["full"]
    fresh_enough = seen.applied & (seen.length < full)
    reported, own = seen.reported, jnp.stack([seen.length, seen.total], axis=1) * seen.applied[:, None]
    return {
        "wait": Sides(seen.wait.max(), full - 1),
        "length": Sides(seen.length.max(), full),
        "mean of a group that is not full": Sides(
            jnp.where(fresh_enough, seen.total / seen.length, 0.0), seen.threshold
        ),
        "the library's account": Sides(reported, own),
    }


def synchrony(instance: Instance) -> Mapping[str, Sides]:
    """Returns both sides of the claims about groups under a threshold below 1/N."""
    seen, full = Arrivals(*instance.fixed["arrivals"]), instance.fixed["full"]
    short = seen.applied & (seen.length < full)
    return {
        "short groups": Sides(jnp.where(short, seen.length + seen.total, 0), 1),
        "every group is full": Sides(jnp.where(seen.applied, full, 0), seen.length),
        "nobody falls behind": Sides(seen.stalest.max(), full),
    }


def patience(instance: Instance) -> Mapping[str, Sides]:
    """Returns both sides of the bound on the wait if the queue waits for one gradient of each learner."""
    return {"wait for one of each": bounds(instance)["wait"]._replace(right=instance.fixed["learners"] - 1)}


def picture(path: Path, seed: int) -> None:
    """Draws the waits of gradients by rule, and the staleness of a slow learner's gradients over its slowness."""
    from experiments.toolkit.plots import figure

    full = 16
    orders = _races(seed, np.random.default_rng(seed).normal(scale=1.5, size=(40, full)), arrivals=400)
    rules = {
        "beta = 1": (Setting(1.0, 1.0, 1), full, False, "#0072B2", "-"),
        "beta = 0": (_FRESH_ONLY, full, False, "#009E73", "--"),
        "one of each": (_FRESH_ONLY, orders.shape[1], True, "#D55E00", ":"),
    }
    with figure(path, f"{full} learners, N = {full}", columns=2) as (waiting, falling):
        for name, (setting, limit, one_of_each, color, line) in rules.items():
            waits = np.sort(_waits(_applied(orders, full, limit, setting, one_of_each)).reshape(-1)) / (full - 1)
            share = 100 * (1 - np.arange(len(waits)) / len(waits))
            waiting.step(waits, share, color=color, linestyle=line, linewidth=1.6, label=name)
        waiting.axvline(1.0, color="black", linewidth=0.8)
        waiting.set(yscale="log", xlim=(0, 30), xlabel="arrivals until it is applied / (N - 1)")
        waiting.set_xscale("symlog", linthresh=1.0)
        waiting.set_xticks([0, 0.5, 1, 3, 10, 30], ["0", "1/2", "1", "3", "10", "30"])
        waiting.set(ylabel="gradients that wait at least as long (%)")
        waiting.legend(loc="lower left", bbox_to_anchor=(0.45, 0.1))
        slowness = 2 ** np.arange(6)
        speeds = np.zeros((len(slowness), full))
        speeds[:, 0] = -np.log(slowness)
        orders = _races(seed, speeds, arrivals=20_000)
        shown = {"inf": ("#CC79A7", "-", "v"), "1": ("#0072B2", "--", "o"), "0": ("#009E73", ":", "s")}
        for beta, (color, line, marker) in shown.items():
            applied = _applied(orders, full, full, Setting(float(beta), 1.0, 1), False)
            stale = [_staleness(order == 0, times) for order, times in zip(orders, applied, strict=True)]
            falling.plot(slowness, stale, color=color, linestyle=line, marker=marker, label=f"beta = {beta}")
        falling.axhline(0, color="black", linewidth=0.8)
        falling.annotate("synchronous", (1, 0), (0, 3), textcoords="offset points")
        falling.set(xlabel="slowness of one learner (factor)", ylabel="staleness of its gradients (versions)")
        falling.set(xscale="log", yscale="symlog", ylim=(-0.3, 1_000))
        falling.set_xticks(slowness, [str(n) for n in slowness], minor=False)
        falling.minorticks_off()
        falling.legend()


def _races(seed: int, speeds: NDArray, arrivals: int) -> NDArray:
    """Draws orders of arrival `[..., T]` of memoryless learners with logarithmic speeds `[..., L]`."""
    race = np.random.default_rng(seed).gumbel(size=(arrivals, *speeds.shape))
    return np.moveaxis(np.argmax(speeds + race, axis=-1), 0, -1)


def _applied(orders: NDArray, learners: int, full: int, setting: Setting, one_of_each: bool) -> NDArray:
    """Returns whether the queue was applied at each arrival, for orders `[n, T]`."""

    def run(order: jax.Array) -> jax.Array:
        return arrive(order, learners, full, setting, one_of_each=one_of_each).applied

    return np.asarray(jax.jit(jax.vmap(run))(orders))


def _waits(applied: NDArray) -> NDArray:
    """Returns the arrivals until each gradient is applied `[..., T]`, or until the end if it is never applied."""
    time = np.arange(applied.shape[-1])
    when = np.where(applied, time, time[-1])[..., ::-1]
    return np.minimum.accumulate(when, axis=-1)[..., ::-1] - time


def _staleness(mine: NDArray, applied: NDArray) -> float:
    """Returns the mean staleness of one learner's gradients when they are applied."""
    arrived = np.flatnonzero(mine)
    clock = np.cumsum(applied)  # after each arrival
    taken_up = np.concatenate([[0], clock[arrived[:-1]]])
    return float(np.mean(clock[arrived + _waits(applied)[arrived]] - 1 - taken_up))


def _every_order(learners: int, arrivals: int, full: int, setting: Setting, **rule: Any) -> Family:
    """Returns the family of all orders in which `arrivals` gradients can arrive."""

    def draw(key: jax.Array, index: jax.Array) -> Instance:
        digits = index // learners ** jnp.arange(arrivals)
        return _instance(digits % learners, learners, full, setting, rule)

    return Family(draw, count=learners**arrivals)


def _random_orders(learners: int, arrivals: int, full: int, setting: Setting, **rule: Any) -> Family:
    """Returns the family of random orders of learners whose speeds differ by orders of magnitude."""

    def draw(key: jax.Array, index: jax.Array) -> Instance:
        race = jax.random.gumbel(key, (arrivals + 1, learners))
        order = jnp.argmax(1.5 * race[-1] + race[:-1], axis=1)
        return _instance(order, learners, full, setting, rule)

    return Family(draw)


def _instance(order: jax.Array, learners: int, full: int, setting: Setting, rule: Mapping[str, Any]) -> Instance:
    seen = arrive(order, learners, full, setting, **rule)
    return Instance((), {"order": order, "full": full, "learners": learners, "arrivals": tuple(seen)})


_FRESH_ONLY = Setting(0.0, 1.0, 1)
#: A threshold below 1/N for up to 16 learners.
_STRICT = Setting(0.06, 1.0, 1)

_CLAIMS = (
    Claim("wait", "arrivals until a gradient is applied <= N - 1"),
    Claim("length", "gradients in the queue <= N"),
    Claim("mean of a group that is not full", "mean staleness <= beta_k"),
    Claim("the library's account", "size and total staleness of the applied group", equality=True),
)
THEOREMS = (
    Theorem(
        "threshold, every order",
        claims=_CLAIMS,
        families={
            "L = 3, T = 8, N = 3, constant": _every_order(3, 8, 3, Setting(1.0, 1.0, 1)),
            "L = 3, T = 8, N = 3": _every_order(3, 8, 3, Setting(2.0, 0.7, 2)),
            "L = 3, T = 8, N = 4, measured": _every_order(3, 8, 4, Setting(None, 0.8, 2)),
            "L = 2, T = 12, N = 4": _every_order(2, 12, 4, Setting(1.0, 0.5, 3)),
            "L = 4, T = 6, N = 4, strict": _every_order(4, 6, 4, Setting(0.2, 0.9, 2)),
        },
        sides=bounds,
        steps=0,
    ),
    Theorem(
        "threshold, large systems",
        claims=_CLAIMS,
        families={
            "L = 16, N = 16": _random_orders(16, 256, 16, Setting(4.0, 0.9, 16)),
            "L = 64, N = 48, measured": _random_orders(64, 384, 48, Setting(None, 0.9, 64)),
        },
        sides=bounds,
        at_most=600,
        steps=0,
    ),
    Theorem(
        "threshold, strict",
        claims=(
            Claim("short groups", "gradients + their staleness <= 1, if fewer than N"),
            Claim("every group is full", "N <= gradients of a group", control=True),
            Claim("nobody falls behind", "staleness <= N", control=True),
        ),
        families={
            "L = 2, T = 12, N = 2": _every_order(2, 12, 2, _FRESH_ONLY),
            "L = 16, N = 16": _random_orders(16, 256, 16, _STRICT),
        },
        sides=synchrony,
        at_most=1_000,
        steps=0,
    ),
    Theorem(
        "one gradient of each learner",
        claims=(Claim("wait for one of each", "arrivals until a gradient is applied <= L - 1", control=True),),
        families={
            "L = 3, T = 8": _every_order(3, 8, 8, _FRESH_ONLY, one_of_each=True),
            "L = 16, T = 256": _random_orders(16, 256, 256, _STRICT, one_of_each=True),
        },
        sides=patience,
        at_most=1_000,
        steps=0,
    ),
)
