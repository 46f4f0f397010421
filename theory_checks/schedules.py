"""Reads schedules of gradients' arrivals from traces of the platform, and descends along them without the platform.

Learner functions run on the simulated platform, as fast as their delays allow, and the library's aggregator decides
when to apply which gradients. For a theorem only the schedule matters: the version of every gradient, in order of
arrival. It is read from the trace. `replay` descends along a schedule, through the same aggregator, in a scan that
JAX can vectorise over problems, steps and noise; it reproduces the platform's run up to rounding.
"""

import functools
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Float, Int

import stellaris
from stellaris import Aggregator
from stellaris.runtime import FunctionSpec, SimulatedPlatform, Trace, Versioned
from stellaris.runtime.delays import Constant, Delay, Exponential, Gamma, LogNormal
from stellaris.types import Array, Tree

#: Distributions, with mean 1, of the seconds that a gradient takes.
DELAYS: Mapping[str, Delay] = {
    "constant": Constant(1.0),
    "gamma, cv 0.5": Gamma(1.0, 0.5),
    "exponential": Exponential(1.0),
    "log-normal, cv 2": LogNormal(1.0, 2.0),
}

#: `(params, number) -> gradient`: the number selects the noise.
Gradient = Callable[[Tree, Any], Tree]


class Schedule(NamedTuple):
    """The gradients in order of arrival `[n]`."""

    number: Int[Array, " n"]  #: number of the invocation, in order of submission.
    version: Int[Array, " n"]  #: the version that the gradient was computed on.
    clock: Int[Array, " n"]  #: the newest version just before the arrival.

    @property
    def lag(self) -> Int[Array, " n"]:
        """The staleness of the gradients on arrival."""
        return self.clock - self.version


class Descent(NamedTuple):
    """The result of a descent."""

    params: Tree  #: the last version.
    clock: Int[jax.Array, " n"]  #: the newest version just before every arrival.
    measured: Tree  #: the measure of the params before every arrival `[n, ...]`.


def descend(
    aggregator: Aggregator,
    gradient: Gradient,
    params: Tree,
    step: float,
    arrivals: int,
    *,
    delay: Delay,
    learners: int = 4,
    seed: int = 0,
) -> tuple[Tree, Trace]:
    """Descends asynchronously on the platform.

    Args:
      aggregator: the aggregator, which decides when to apply which gradients.
      gradient: the function that returns the gradient at given params, for an invocation's number.
      params: the first version.
      step: the learning rate.
      arrivals: the number of gradients after which the run ends.
      delay: the seconds that a gradient takes.
      learners: the number of learner functions that run at the same time.
      seed: the seed of the delays.

    Returns:
      The last params, and the trace.
    """
    state = aggregator.init(params)
    wide = jnp.zeros(()).dtype == jnp.float64

    def learn(context: Any, params: Versioned, number: int) -> tuple[Tree, int]:
        del context
        with jax.enable_x64(wide):  # the setting is per thread, and bodies run in other threads
            return gradient(params.value, number), params.version

    with SimulatedPlatform({"learner": FunctionSpec(delay)}, seed=seed, threads=1) as platform:
        clock = platform.store.publish("params", params)
        newest = platform.store.latest("params")
        for number in range(learners):
            platform.invoke("learner", learn, newest, number, tag=number)
        for number in range(learners, learners + arrivals):
            done = platform.next_completion()
            assert done is not None
            state = _push(aggregator, state, *done.result(), done.tag)
            if _ready(aggregator, state, clock):
                params, state = _take_jitted(aggregator, state, clock, params, step)
                clock = platform.store.publish("params", params)
            platform.invoke("learner", learn, newest, number, tag=done.tag)
        return params, platform.trace


@functools.partial(jax.jit, static_argnums=0)
def _push(aggregator: Aggregator, state: Any, gradient: Tree, version: Any, learner: Any) -> Any:
    return aggregator.push(state, gradient, version, learner=learner)


@functools.partial(jax.jit, static_argnums=0)
def _ready(aggregator: Aggregator, state: Any, clock: Any) -> Any:
    return aggregator.ready(state, clock, 0)


def _take(aggregator: Aggregator, state: Any, clock: Any, params: Tree, step: Any) -> tuple[Tree, Any]:
    """Applies the queue's update by plain gradient descent, and returns the params and the queue."""
    update, state = aggregator.pop(state, clock, 0)
    optimizer = optax.sgd(1.0)
    params, _ = stellaris.apply_update(
        optimizer, update._replace(scale=step * update.scale), params, optimizer.init(params)
    )
    return params, state


_take_jitted = jax.jit(_take, static_argnums=0)


def schedule(trace: Trace, arrivals: int) -> Schedule:
    """Reads the schedule of a trace; a gradient's version is the newest when its function started."""
    newest, started, rows = -1, {}, []
    for _, event, _, invocation, _, value in trace.rows():
        if event == "published":
            newest = int(value)
        elif event == "started":
            started[invocation] = newest
        elif event == "completed":
            rows.append((invocation, started.pop(invocation), newest))
    return Schedule(*np.array(rows[:arrivals], np.int32).T)


def record(aggregator: Aggregator, arrivals: int, *, delay: Delay, learners: int = 4, seed: int = 0) -> Schedule:
    """Records the schedule of a run on the platform, which depends on the aggregator and delays, not on gradients."""
    nothing = jnp.zeros(1)
    _, trace = descend(
        aggregator, lambda params, number: nothing, nothing, 0.0, arrivals, delay=delay, learners=learners, seed=seed
    )
    return schedule(trace, arrivals)


def replay(
    aggregator: Aggregator,
    gradient: Gradient,
    params: Tree,
    step: Any,
    recorded: Schedule,
    *,
    oldest: int,
    measure: Callable[[Tree], Tree] = lambda params: (),
) -> Descent:
    """Repeats a descent along a recorded schedule, in a scan.

    Args:
      aggregator: the recorded run's aggregator, or another that applies gradients at the same arrivals.
      gradient: the function as in `descend`, and traceable by JAX.
      params: the first version.
      step: the learning rate.
      recorded: the schedule.
      oldest: at least the largest lag in the schedule; the scan keeps one version more.
      measure: the function that measures the params before every arrival.

    Returns:
      The descent. `clock` equals the schedule's if the aggregator applied gradients at the same arrivals.
    """
    keep = oldest + 1

    def arrive(carry: Any, arrival: Any) -> Any:
        params, versions, clock, state = carry
        number, version, _ = arrival
        measured = measure(params)
        old = jax.tree.map(lambda x: x[version % keep], versions)
        state = aggregator.push(state, gradient(old, number), version)
        now = clock
        # The step computes both outcomes, because `vmap` would turn a branch into a select anyway.
        go = aggregator.ready(state, clock, 0)
        taken = _take(aggregator, state, clock, params, step)
        params, state = jax.tree.map(lambda new, old: jnp.where(go, new, old), taken, (params, state))
        clock = clock + go
        versions = jax.tree.map(lambda all, one: all.at[clock % keep].set(one), versions, params)
        return (params, versions, clock, state), (now, measured)

    versions = jax.tree.map(lambda x: jnp.broadcast_to(x, (keep, *jnp.shape(x))), params)
    carry = params, versions, jnp.int32(0), aggregator.init(params)
    (params, _, _, _), (clock, measured) = jax.lax.scan(arrive, carry, recorded)
    return Descent(params, clock, measured)


class Mixture(NamedTuple):
    """The weights of gradients in every update."""

    lags: Float[np.ndarray, "updates oldest+1"]  #: total weight of gradients, by staleness.
    noise: Float[np.ndarray, " updates"]  #: the sum of the squared weights.


def mixture(aggregator: Aggregator, recorded: Schedule, *, oldest: int) -> Mixture:
    """Returns the weights that the aggregator gives gradients, by lag, at every update.

    An update is linear in its gradients, so the updates for unit vectors show the weights.
    """
    arrivals = len(recorded.version)
    with jax.enable_x64(True):
        members = jnp.eye(arrivals)
        state, lags, noise = aggregator.init(members[0]), list[Any](), list[Any]()
        for number, version in enumerate(np.asarray(recorded.version).tolist()):
            clock = len(lags)
            state = _push(aggregator, state, members[number], version, 0)
            if _ready(aggregator, state, clock):
                taken, state = _take_jitted(aggregator, state, clock, jnp.zeros(arrivals), -1.0)
                weights = np.asarray(taken)
                lag = clock - np.asarray(recorded.version)
                lags.append(np.bincount(lag[weights > 0], weights[weights > 0], minlength=oldest + 1))
                noise.append((weights**2).sum())
    return Mixture(np.array(lags), np.array(noise))
