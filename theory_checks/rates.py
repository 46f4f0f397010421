"""Tests the rate of `convergence` without exact expectations, on a non-convex function and on policy gradients.

Descent runs through the library's aggregators, along recorded schedules of the platform, with sampled noise:

* **smooth, not convex**: J(x) = sum_i (1 - cos x_i), whose curvature lies in [-1, 1]: L = 1, J* = 0; Gaussian noise.
* **policy gradient**: J is minus the discounted return of a tabular softmax policy, with rewards in [0, 1]; gradients
  are grad log pi(a|s) A(s, a) / (1 - g) for a sampled state and action, with the exact advantage. L = 8 / (1-g)^3
  (Agarwal et al. 2021, On the Theory of Policy Gradient Methods, Lemma D.4), s^2 = 2 / (1-g)^4 as |grad log pi|^2 <= 2
  and |A| <= 1 / (1-g), and J* is the value of J for the best deterministic policy.

For policy gradients the claim is loose by a factor of fifty, because L and s^2 are theoretical bounds: this is a check
of consistency, which would not notice a wrong constant. The slopes of `findings` are for one problem of each kind, at T
far below 14 k (tau+1)^2: they observe the rate where the theorem does not promise it.

The claim is the slides' constant for T >= 14 k (tau+1)^2. (Any larger s^2 also bounds the variance: if the true s^2 is
too small for T, the check uses the least s^2 that T allows.) The left side is the mean over runs minus four standard
errors.
"""

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

import stellaris
from experiments.toolkit import plots
from stellaris import Aggregator
from stellaris.types import NDArray
from theory_checks import mdp, schedules
from theory_checks.check import Claim, Family, Instance, Sides, Theorem
from theory_checks.convergence import ENOUGH
from theory_checks.schedules import Schedule


class Objective(NamedTuple):
    """The function to minimise."""

    start: jax.Array
    gap: jax.Array  #: C1 = J(start) - J*
    smoothness: Any  #: L
    variance: Any  #: s^2
    gradient: Callable[[jax.Array, jax.Array, Any], jax.Array]  #: an estimate of the gradient from `(x, key, batch)`.
    expected: Callable[[jax.Array], jax.Array]  #: the exact gradient.


#: Maximum number of samples in a batch, and the variance of the Gaussian noise.
_BATCH, _VARIANCE = 16, 8.0


def not_convex(numbers: jax.Array) -> Objective:
    """Returns the objective `sum (1 - cos x)`; the first four numbers define the start."""

    def gradient(x: jax.Array, key: jax.Array, batch: Any) -> jax.Array:
        noise = jnp.sqrt(_VARIANCE / (x.size * batch)) * jax.random.normal(key, x.shape)
        return jnp.sin(x) + noise

    start = 2 * numbers[:4]
    return Objective(start, (1 - jnp.cos(start)).sum(), 1.0, _VARIANCE, gradient, jnp.sin)


#: States, actions and discount of the process in which policies learn.
_STATES, _ACTIONS, _DISCOUNT = 3, 2, 0.5


def policy_gradient(numbers: jax.Array) -> Objective:
    """Returns the objective "minus the discounted return" of a tabular softmax policy, which starts uniform.

    The numbers `[27]` define the process.
    """
    transition, reward, start = jnp.split(numbers[:27], (18, 24))
    process = mdp.MDP(
        jax.nn.softmax(2 * transition.reshape(_STATES, _ACTIONS, _STATES)),
        jax.nn.sigmoid(2 * reward.reshape(_STATES, _ACTIONS)),
        jax.nn.softmax(start),
        _DISCOUNT,
    )
    choices = np.indices((_ACTIONS,) * _STATES).reshape(_STATES, -1).T
    best = jax.vmap(lambda choice: mdp.evaluate(process, jax.nn.one_hot(choice, _ACTIONS)).performance)(choices).max()

    def shares(logits: jax.Array) -> tuple[jax.Array, jax.Array, jax.Array]:
        """Returns the policy, the visits of each state and action, and its advantage."""
        pi = jax.nn.softmax(logits)
        here = mdp.evaluate(process, pi)
        return pi, here.occupancy[:, None] * pi, here.advantage

    def exact(logits: jax.Array) -> jax.Array:
        # The advantage has mean zero under pi, so only the action's own logit contributes to grad log pi.
        _, visits, advantage = shares(logits)
        return -visits * advantage / (1 - _DISCOUNT)

    def gradient(logits: jax.Array, key: jax.Array, batch: Any) -> jax.Array:
        pi, visits, advantage = shares(logits)
        drawn = jax.random.categorical(key, jnp.log(visits).reshape(-1), shape=(_BATCH,))
        count = (jnp.arange(_BATCH) < batch) @ jax.nn.one_hot(drawn, visits.size) / batch
        worth: jax.Array = (count * advantage.reshape(-1)).reshape(visits.shape)
        return -(worth - worth.sum(1, keepdims=True) * pi) / (1 - _DISCOUNT)

    uniform = jnp.zeros((_STATES, _ACTIONS))
    gap = best - mdp.evaluate(process, jax.nn.softmax(uniform)).performance
    far = 1 / (1 - _DISCOUNT)
    return Objective(uniform, gap, 8 * far**3, 2 * far**4, gradient, exact)


OBJECTIVES = {"smooth, not convex": not_convex, "policy gradient": policy_gradient}


def mean_squares(
    objective: Objective, aggregator: Aggregator, recorded: Schedule, key: Any, *, step: Any, batch: Any, updates: Any
) -> jax.Array:
    """Returns the mean of |grad J|^2 over the first `updates` versions of one run."""

    def gradient(x: jax.Array, number: Any) -> jax.Array:
        return objective.gradient(x, jax.random.fold_in(key, number), batch)

    def measure(x: jax.Array) -> jax.Array:
        return jnp.sum(objective.expected(x) ** 2)

    run = schedules.replay(aggregator, gradient, objective.start, step, recorded, oldest=_OLDEST, measure=measure)
    # A version counts once, for any number of gradients that arrive while it is the newest.
    first = jnp.concatenate([jnp.ones(1, bool), run.clock[1:] > run.clock[:-1]])
    squares = jnp.where(first & (run.clock < updates), run.measured, 0.0)
    return jnp.sum(squares / updates)


#: Gradients of a recorded run, the largest staleness that the run may have, and runs per expectation.
_ARRIVALS, _OLDEST, _RUNS = 512, 64, 16
#: The aggregator that applies each gradient on arrival, so there are as many updates as gradients, of b samples each.
_AGGREGATOR = stellaris.fully_asynchronous(capacity=2)


@functools.cache
def recorded() -> Mapping[str, Schedule]:
    """Returns one recorded schedule per distribution of delays, with four learners."""
    runs = {name: schedules.record(_AGGREGATOR, _ARRIVALS, delay=delay) for name, delay in schedules.DELAYS.items()}
    for name, run in runs.items():
        if run.lag.max() > _OLDEST:
            raise ValueError(
                f"_OLDEST={_OLDEST} is below {run.lag.max()}, the staleness with delay {name}: increase _OLDEST"
            )
    return runs


def sides(make: Callable[[jax.Array], Objective], instance: Instance) -> Mapping[str, Sides]:
    """Returns the mean over runs and the slides' constant, for the true and for an understated variance."""
    fixed = instance.fixed
    objective, schedule = make(instance.free), fixed["schedule"]
    batch, tau = fixed["batch"], jnp.max(schedule.clock - schedule.version)
    steepness = 2 * objective.gap * batch * objective.smoothness  # k s^2

    enough = ENOUGH * (tau + 1.0) ** 2 * steepness / _ARRIVALS  # the variance for which T is large enough

    def compare(variance: jax.Array) -> tuple[jax.Array, jax.Array]:
        step = jnp.sqrt(2 * objective.gap * batch / (objective.smoothness * variance * _ARRIVALS))
        run = functools.partial(mean_squares, objective, _AGGREGATOR, schedule)
        keys = jax.random.split(jax.random.wrap_key_data(fixed["noise"]), _RUNS)
        means = jax.vmap(lambda key: run(key, step=step, batch=batch, updates=_ARRIVALS))(keys)
        right = 2 * jnp.sqrt(2 * objective.gap * objective.smoothness * variance / (_ARRIVALS * batch))
        return means.mean() - 4 * means.std(ddof=1) / np.sqrt(_RUNS), right

    variances = jnp.stack([jnp.maximum(objective.variance, enough), jnp.asarray(objective.variance / 100)])
    left, right = jax.vmap(compare)(variances)
    names = ("T >= 14 k (tau+1)^2", "an understated variance")
    return {name: Sides(left[i], right[i]) for i, name in enumerate(names)}


def _settings(delay: str) -> Mapping[str, Schedule]:
    return {"schedule": recorded()[delay]}


def draw(key: jax.Array, index: jax.Array, schedule: Schedule) -> Instance:
    """Draws numbers that define the objective or its start, a batch size, and the noise of the gradients."""
    del index
    for_numbers, for_batch, for_noise = jax.random.split(key, 3)
    batch = 2 ** jax.random.randint(for_batch, (), 0, 5)
    fixed = {"batch": batch, "schedule": schedule, "noise": jax.random.key_data(for_noise)}
    return Instance(jax.random.normal(for_numbers, (27,)), fixed)


class Slope(NamedTuple):
    """The slope of a line through logarithms, with the 95 % interval of a bootstrap over runs."""

    low: float
    middle: float
    high: float


#: The T and the b over which slopes are fitted, and the number of runs of each setting.
_UPDATES, _BATCHES, _FITTED = (64, 128, 256, 512), (1, 2, 4, 8, 16), 32


@functools.cache
def measured(name: str, delay: str, seed: int) -> NDArray:
    """Returns the mean of |grad J|^2 over T updates of b samples, at the slides' step `[settings, runs]`.

    Settings: T of `_UPDATES` with b = 4, then b of `_BATCHES` with T = 512. L and s^2 are the values at the start: with
    the theoretical bounds of the policy gradient the step is so small that nothing is learned in 512 updates.
    """
    updates = jnp.array([*_UPDATES, *[_UPDATES[-1]] * len(_BATCHES)], float)
    batch = jnp.array([*[4] * len(_UPDATES), *_BATCHES])
    schedule = Schedule(*map(jnp.asarray, recorded()[delay]))
    return np.asarray(_measurer(name)(jax.random.key(seed), schedule, updates, batch))


@functools.cache
def _measurer(name: str) -> Callable[..., jax.Array]:
    @jax.jit
    def measure(key: jax.Array, schedule: Schedule, updates: jax.Array, batch: jax.Array) -> jax.Array:
        for_numbers, for_noise, for_variance = jax.random.split(key, 3)
        objective = OBJECTIVES[name](jax.random.normal(for_numbers, (27,)))
        smoothness, variance = _at_the_start(objective, for_variance)

        def one(key: jax.Array, updates: jax.Array, batch: jax.Array) -> jax.Array:
            step = jnp.sqrt(2 * objective.gap * batch / (smoothness * variance * updates))
            return mean_squares(objective, _AGGREGATOR, schedule, key, step=step, batch=batch, updates=updates)

        runs = jax.vmap(jax.vmap(one, in_axes=(0, None, None)), in_axes=(None, 0, 0))
        return runs(jax.random.split(for_noise, _FITTED), updates, batch)

    return measure


def _at_the_start(objective: Objective, key: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the largest curvature at the start, and the variance of one sample."""
    x = objective.start

    def square(key: jax.Array) -> jax.Array:
        return jnp.sum((objective.gradient(x, key, 1) - objective.expected(x)) ** 2)

    hessian = jax.jacfwd(objective.expected)(x).reshape(x.size, x.size)
    curvature = jnp.max(abs(jnp.linalg.eigvalsh((hessian + hessian.T) / 2)))
    return curvature, jax.vmap(square)(jax.random.split(key, 4_096)).mean()


def slope(at: Sequence[float], squares: NDArray, seed: int) -> Slope:
    """Fits a line to log(mean of `squares` over runs) as a function of log(`at`); `squares` is `[settings, runs]`."""

    def fit(runs: NDArray) -> float:
        return float(np.polyfit(np.log(at), np.log(squares[:, runs].mean(1)), 1)[0])

    random, runs = np.random.default_rng(seed), squares.shape[1]
    again = [fit(random.integers(runs, size=runs)) for _ in range(400)]
    low, high = np.quantile(again, (0.025, 0.975))
    return Slope(float(low), fit(np.arange(runs)), float(high))


def slopes(seed: int) -> Mapping[str, Mapping[str, Slope]]:
    """Returns the exponents of T and of b, by objective and distribution of delays; the theorem's are -1/2."""
    found: dict[str, dict[str, Slope]] = {}
    for name in OBJECTIVES:
        for delay in schedules.DELAYS:
            squares = measured(name, delay, seed)
            found[f"{name}, {delay}"] = {
                "T": slope(_UPDATES, squares[: len(_UPDATES)], seed),
                "b": slope(_BATCHES, squares[len(_UPDATES) :], seed),
            }
    return found


def findings(seed: int) -> Mapping[str, Any]:
    """Returns the slopes."""
    return {f"slopes in T and b (low, fitted, high), {name}": value for name, value in slopes(seed).items()}


def picture(path: Path, seed: int) -> None:
    """Draws the mean square of the gradient over T and over b, by distribution of delays."""
    with plots.figure(path, "staleness from the platform", columns=2) as (over_updates, over_batch):
        for delay, style in zip(schedules.DELAYS, plots.LINES, strict=False):
            for name, marker in zip(OBJECTIVES, "os", strict=True):
                squares = measured(name, delay, seed).mean(1)
                squares = squares / squares[len(_UPDATES) - 1]
                label = delay if marker == "o" else None
                over_updates.plot(_UPDATES, squares[: len(_UPDATES)], marker=marker, ms=4, label=label, **style)
                over_batch.plot(_BATCHES, squares[len(_UPDATES) :], marker=marker, ms=4, **style)
        for axes, at in ((over_updates, 512.0), (over_batch, 4.0)):
            span = np.array(axes.get_xlim())
            axes.plot(span, (span / at) ** -0.5, color="black", linewidth=0.8, label="slope -1/2")
            axes.set(xscale="log", yscale="log", xlim=span)
        for axes, ticks in ((over_updates, _UPDATES), (over_batch, _BATCHES)):
            axes.set_xticks(ticks, [str(tick) for tick in ticks])
            axes.set_yticks([0.5, 1, 2, 4], ["0.5", "1", "2", "4"])
            axes.minorticks_off()
        over_updates.set(xlabel="T (b = 4)", ylabel="mean of |grad J|^2, relative")
        over_batch.set(xlabel="b (T = 512)")
        over_batch.set_title("circles: not convex; squares: policy gradient", fontsize=9)
        over_updates.legend()


_UNDERSTATED = Claim("an understated variance", "mean E|grad J|^2 <= 2 sqrt(2 C1 L (s^2/100)/(T b))", control=True)

THEOREMS = tuple(
    Theorem(
        f"rates, {name}",
        claims=(Claim("T >= 14 k (tau+1)^2", "mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))"), *controls),
        families={delay: Family(draw, settings=functools.partial(_settings, delay)) for delay in schedules.DELAYS},
        sides=functools.partial(sides, make),
        at_most=80,
        steps=0,
    )
    for (name, make), controls in zip(OBJECTIVES.items(), ((_UNDERSTATED,), ()), strict=True)
)
