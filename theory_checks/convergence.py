"""Convergence with stale gradients: which constants hold, from which T on, and what weights by staleness do to them.

J is L-smooth, gradients are unbiased with a variance of at most s^2 a sample, T updates use b samples each; C1 =
J(x_1) - J*, C2 = L s^2, k = 2 C1 b L / s^2. Bounded is the mean of E|grad J(x_t)|^2 over t = 1 ... T.

* **Fresh**, step a <= 1/L (the descent lemma, summed):  <= 2 C1 / (a T) + a L s^2 / b. With a = sqrt(2 C1 b / (L s^2
  T)), which is at most 1/L if and only if T >= k, this is **the slides' form** 2 sqrt(2 C1 C2 / (T b)). Sharp: at T =
  k a quadratic of curvature L comes within 1 / (2 k) of it.
* **Stale by at most tau** (Lian et al. 2015, Theorem 1 and Corollary 2; their step, for a sum over b, is a = sqrt(C1
  b / (L s^2 T)) for a mean): T >= 4 b L C1 (tau+1)^2 / s^2 gives <= 4 sqrt(C1 L s^2 / (b T)).
* **The slides' constant with stale gradients** (Zhang et al. 2016 is cited for it) fails at small T. It holds for
  every smooth J once T >= 14 k (tau+1)^2, if delays do not depend on the noise. Derivation: write g for E|grad
  J(x_t)|^2 summed over t, B for that of the mean stale gradient, D for the sum of the mean E|x_t - x_{t-lag}|^2, y =
  a L, N = T s^2 / b. As 2<p, q> = |p|^2 + |q|^2 - |p - q|^2, the descent lemma gives

      g + (1 - y) B <= 2 C1 / a + y N + L^2 D.

  Of B the share f is bounded below by |q|^2 >= (1-m) |p|^2 - (1/m - 1) |p - q|^2. The steps between two versions are
  at most tau, their noises are uncorrelated: D <= a^2 ((1+e) tau^2 B + (1+1/e) tau N). If the rest of B pays for
  that, (1 + f (1/m - 1)) (1+e) (y tau)^2 <= 1 - f - y, then with c = 1 + f (1/m - 1)

      (1 + f (1-m)) g <= 2 C1 / a + y N (1 + c (1+1/e) y tau),

  and as 2 C1 / a = y N at the slides' step, g is at most 2 y N, the slides' constant, if c (1+1/e) y tau / 2 <= f
  (1-m). With y = sqrt(k/T) <= 1 / (sqrt(14) (tau+1)), m = 1/2 and f = 0.58 there is such an e for every tau:
  `is_sufficient` does the arithmetic, and the test of it. With 13 instead of 14 there is none as tau grows, by this
  argument. On quadratics with constant delay the constant begins to hold at T/k = 3.7, 16, 71 for tau = 1, 3, 7
  (`thresholds`), about 1.1 (tau+1)^2: between 1.1 and 14 it is open for other functions and delays.
* **Weighted by staleness at that same step, it is wrong in general.** Weights w < 1 make the step smaller. On
  quadratics, once the start is forgotten, the ratio to the slides' constant tends to (1 + E[w^2]) / (4 E[w]): for a
  constant staleness it is at most 1 if and only if staleness^(1/v) <= 2 + sqrt(3): up to 3 versions for v = 1, 13 for
  v = 2, 51 for v = 3. Divided by E[w], the step is whole again, and the ratio tends to (1 + E[w^2]/E[w]^2) / 4: **the
  repaired step**. That is at most 1 if E[w^2] <= 3 E[w]^2, which any weights in [0.102, 1] satisfy. (For weights that
  are not all alike this is what is observed here, in the limit and at T >= 14 k (tau+1)^2; it is not derived.)

Everything here is a quadratic, sum_i h_i x_i^2 / 2 with h_i <= L = 1, whose second moments follow a linear recursion
over the versions that are still read: expectations are exact, nothing is sampled. `rates` has other objectives.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

import stellaris
from experiments import plots
from stellaris.types import NDArray
from theory_checks import schedules
from theory_checks.check import Claim, Family, Instance, Sides, Theorem
from theory_checks.schedules import Mixture

#: What T / k has to be, in units of (tau+1)^2, for the slides' constant to hold with stale gradients.
ENOUGH = 14.0


class Problem(NamedTuple):
    """A quadratic with L = 1: curvatures, and how the first gap C1 and the variance s^2 = 1 are spread over them."""

    curvature: Float[jax.Array, " d"]
    gap: Float[jax.Array, " d"]  #: shares of C1.
    variance: Float[jax.Array, " d"]  #: shares of s^2.


def mean_square(problem: Problem, gap: Any, step: Any, lags: Float[Any, "T H"], noise: Float[Any, " T"]) -> jax.Array:
    """`E|grad J(x_t)|^2 [T]` of stale descent `x - step (sum_k lags[t, k] h x_{t-k} + xi_t)`, exactly.

    Args:
      problem: the quadratic.
      gap: C1.
      step: a.
      lags: the weight of the gradients that are k versions behind, at update t; before the first stands the first.
      noise: the variance of `xi_t`, all directions together.

    Returns:
      The mean of the square of the gradient at the newest version before every update.
    """

    def direction(h: jax.Array, share: jax.Array, variance: jax.Array) -> jax.Array:
        def update(moments: jax.Array, at: Any) -> tuple[jax.Array, jax.Array]:
            weights, noise = at
            factors = -step * h * weights
            factors = factors.at[0].add(1.0)
            cross = moments @ factors
            corner = factors @ cross + step**2 * variance * noise
            top = jnp.concatenate([corner[None], cross[:-1]])
            below = jnp.concatenate([cross[:-1, None], moments[:-1, :-1]], axis=1)
            return jnp.concatenate([top[None], below]), h**2 * moments[0, 0]

        start = jnp.full((lags.shape[1],) * 2, 2 * share * gap / h)
        squares: jax.Array = jax.lax.scan(update, start, (jnp.asarray(lags), jnp.asarray(noise)))[1]
        return squares

    return jax.vmap(direction)(*problem).sum(0)


class Setting(NamedTuple):
    """What a claim says of one run: with which gap and step, along which lags, and the right side."""

    gap: Any
    step: Any
    lags: Any
    noise: Any
    right: Any


def problem(instance: Instance) -> Problem:
    """The quadratic of an instance."""
    free = instance.free
    return Problem(jax.nn.sigmoid(free["curvature"]), jax.nn.softmax(free["gap"]), jax.nn.softmax(free["variance"]))


def slides(updates: Any, gap: Any, batch: Any) -> tuple[Any, Any]:
    """The slides' step and constant, with L = s = 1."""
    return jnp.sqrt(2 * gap * batch / updates), 2 * jnp.sqrt(2 * gap / (updates * batch))


def bounds(instance: Instance) -> Mapping[str, Setting]:
    """The runs of what holds."""
    free, fixed = instance
    batch, margin, tau = fixed["batch"], fixed["margin"], fixed["tau"]
    stale = jax.nn.softmax(jnp.where(tau >= _LATE, 5 * free["lags"], -jnp.inf))
    stale = jnp.tile(stale, (_UPDATES // _PERIOD, 1))
    weight = stellaris.staleness_weight(_LATE, smoothness=fixed["smoothness"])
    mean = (stale * weight).sum(1).mean()
    weighted, noise = stale * weight / mean, (stale * weight**2).sum(1) / mean**2
    lian = _run(batch, 2 * (tau + 1) ** 2 * margin, stale)
    lian_step, lian_constant = jnp.sqrt(lian.gap * batch / _UPDATES), 4 * jnp.sqrt(lian.gap / (batch * _UPDATES))
    enough = ENOUGH * (tau + 1) ** 2 * margin
    return {
        "fresh, any step <= 1/L": _descent_lemma(jnp.exp(free["any gap"]), jax.nn.sigmoid(free["any step"]), batch),
        "fresh, the slides' step": _run(batch, margin, _late(0)),
        "stale, Lian": lian._replace(step=lian_step, right=lian_constant),
        "stale, the slides' step": _run(batch, enough, stale),
        "weighted, the repaired step": _run(batch, enough, weighted, noise),
    }


def controls(instance: Instance) -> Mapping[str, Setting]:
    """The runs of what breaks."""
    fixed, gap = instance.fixed, jnp.exp(instance.free["any gap"])
    return {
        "stale, T >= k": _run(fixed["batch"], fixed["margin"], _late(fixed["tau"])),
        "a step beyond 2/L": _descent_lemma(gap, 2.2, fixed["batch"]),
    }


def _run(batch: Any, parts: Any, lags: Any, noise: Any = 1.0) -> Setting:
    """At the slides' step and constant, T being `parts` times k; `noise` is the variance of an update times b."""
    gap = _UPDATES / (2 * batch * parts)
    step, right = slides(_UPDATES, gap, batch)
    return Setting(gap, step, lags, jnp.broadcast_to(noise / batch, _UPDATES), right)


def _descent_lemma(gap: Any, step: Any, batch: Any) -> Setting:
    """Fresh gradients at any step."""
    right = 2 * gap / (step * _UPDATES) + step / batch
    return Setting(gap, step, _late(0), jnp.full(_UPDATES, 1 / batch), right)


def _late(tau: Any) -> jax.Array:
    """All gradients as late as that."""
    return jnp.broadcast_to(tau == _LATE, (_UPDATES, _OLDEST + 1)).astype(float)


def sides(settings: Callable[[Instance], Mapping[str, Setting]], instance: Instance) -> Mapping[str, Sides]:
    """The mean over the updates, and the constant, of every run."""
    runs = settings(instance)
    stacked = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y, float) for y in x]), *runs.values())
    left = jax.vmap(lambda s: mean_square(problem(instance), s.gap, s.step, s.lags, s.noise).mean())(stacked)
    return {name: Sides(left[i], stacked.right[i], 1e-14) for i, name in enumerate(runs)}


#: Updates of a run, the oldest lag, and the period of random lags.
_UPDATES, _OLDEST, _PERIOD = 96, 7, 8
_LATE = np.arange(_OLDEST + 1)


def draw(key: jax.Array, index: jax.Array) -> Instance:
    """A quadratic, lags up to tau, and a T that is the least a claim asks for, or up to ten times that."""
    for_logits, for_levels = jax.random.split(key)
    rows = jax.random.normal(for_logits, (4 + _PERIOD, _OLDEST + 1))
    free = {name: 2 * rows[i, :2] for i, name in enumerate(("curvature", "gap", "variance"))}
    free |= {"any gap": 3 * rows[3, 0], "any step": 3 * rows[3, 1], "lags": rows[4:]}
    batch, above, smoothness = jax.random.uniform(for_levels, (3,))
    return Instance(
        free,
        {
            "batch": 32.0**batch,
            "margin": jnp.where(index % 2 == 0, 1.0, 10.0**above),
            "tau": jnp.array([1, 3, 7])[index // 2 % 3],
            "smoothness": 4.0**smoothness,
        },
    )


#: Which make updates of what the platform delivers; gradients of one sample each.
AGGREGATORS: Mapping[str, stellaris.Aggregator] = {
    "fully asynchronous": stellaris.fully_asynchronous(capacity=8),
    "softsync(2)": stellaris.softsync(2),
    "staleness-aware": stellaris.staleness_aware(full=4, decay=1.0, max_staleness=1),
    "unweighted": stellaris.staleness_aware(full=4, decay=1.0, max_staleness=1, smoothness=math.inf),
}
#: Arrivals of a recorded run, more than its updates, and how old its oldest gradient may be.
_ARRIVALS, _LATEST = 240, 48


@functools.cache
def recorded() -> Mixture:
    """What the aggregators make of the platform's schedules with four learners: `[runs, updates, ...]`.

    A run for every aggregator and distribution of delays. Weights are divided by their mean.
    """
    runs = []
    for aggregator, delay in itertools.product(AGGREGATORS.values(), schedules.DELAYS.values()):
        run = schedules.record(aggregator, _ARRIVALS, delay=delay)
        whole = schedules.mixture(aggregator, run, oldest=max(_LATEST, int(run.lag.max())))
        lags, noise = whole.lags[:_UPDATES], whole.noise[:_UPDATES]
        if lags[:, _LATEST + 1 :].any():
            raise ValueError(f"a gradient is older than {_LATEST} versions, delay {delay}: raise _LATEST")
        total = lags.sum(1).mean()
        runs.append((lags[:, : _LATEST + 1] / total, noise / total**2))
    return Mixture(*(np.stack(column) for column in zip(*runs, strict=True)))


def platform_sides(instance: Instance) -> Mapping[str, Sides]:
    """The slides' constant along a schedule that the platform ran, b being what its noisiest update amounts to."""
    lags, noise = instance.fixed["mixture"]
    tau = jnp.max(jnp.where(lags > 0, jnp.arange(lags.shape[1]), 0))
    batch = 1 / jnp.max(noise)
    gap = _UPDATES / (2 * batch * ENOUGH * (tau + 1) ** 2 * instance.fixed["margin"])
    step, right = slides(_UPDATES, gap, batch)
    left = mean_square(problem(instance), gap, step, lags, noise).mean()
    return {"the platform's schedules": Sides(left, right, 1e-14)}


def _on_the_platform(key: jax.Array, index: jax.Array, runs: Mixture) -> Instance:
    for_logits, for_margin = jax.random.split(key)
    free = dict(zip(("curvature", "gap", "variance"), 2 * jax.random.normal(for_logits, (3, 2)), strict=True))
    margin = 10.0 ** jax.random.uniform(for_margin)
    mixture = jax.tree.map(lambda x: x[index % len(x)], runs)
    return Instance(free, {"mixture": mixture, "margin": margin})


def long_sides(instance: Instance) -> Mapping[str, Sides]:
    """Runs that have forgotten their start, with weights on both sides of the edge; and staleness that grows with T."""
    quadratic, share, edge = problem(instance), instance.fixed["edge"], 2 + math.sqrt(3)
    late, tau = jnp.arange(_LONG // 16 + 1), 7

    def constant(lag: int, weight: Any) -> tuple[Any, Any, int]:
        return weight * (late == lag), jnp.asarray(weight) ** 2, lag

    def mixed(share_fresh: Any, lag: int) -> tuple[Any, Any, int]:
        """Some fresh gradients among late ones, weighted by 1/staleness, at the repaired step."""
        parts = share_fresh * (late == 0) + (1 - share_fresh) * (late == lag)
        weight = 1 / jnp.maximum(late, 1)
        mean = (parts * weight).sum()
        return parts * weight / mean, (parts * weight**2).sum() / mean**2, lag

    def compare(weights: jax.Array, noise: jax.Array, parts: jax.Array) -> tuple[jax.Array, jax.Array]:
        gap = _LONG / (2 * parts)
        step, right = slides(_LONG, gap, 1.0)
        lags = jnp.broadcast_to(weights, (_LONG, len(late)))
        return mean_square(quadratic, gap, step, lags, jnp.broadcast_to(noise, _LONG)).mean(), right

    runs = {
        "weighted, within the edge": constant(tau, 1 / (edge * (0.3 + 0.6 * share))),
        "weighted, beyond the edge": constant(tau, 1 / (edge * (1.3 + 2 * share))),
        "repaired, E[w^2] > 3 E[w]^2": mixed(0.02 + 0.03 * share, 32),
        "staleness of T / 16": constant(_LONG // 16, 1.0),
    }
    enough = {name: ENOUGH * (lag + 1.0) ** 2 for name, (_, _, lag) in runs.items()} | {"staleness of T / 16": 100.0}
    columns = zip(*((weights, noise, enough[name]) for name, (weights, noise, _) in runs.items()), strict=True)
    left, right = jax.vmap(compare)(*(jnp.stack([jnp.asarray(x, float) for x in column]) for column in columns))
    return {name: Sides(left[i], right[i], 1e-14) for i, name in enumerate(runs)}


def _draw_long(key: jax.Array, index: jax.Array) -> Instance:
    free, _ = draw(key, index)
    return Instance(free, {"edge": jax.random.uniform(jax.random.fold_in(key, 1))})


#: Updates of a long run.
_LONG = 768


def late_ratio(updates: int, parts: Any, tau: Any, curvature: Any, weight: Any = 1.0, *, oldest: int) -> jax.Array:
    """The ratio of the left to the slides' constant, on `h x^2 / 2`, with constant lag and weight, T = `parts` k."""
    one = Problem(*(jnp.asarray(x, float)[None] for x in (curvature, 1.0, 1.0)))
    gap = updates / (2 * parts)
    step, right = slides(updates, gap, 1.0)
    lags = jnp.broadcast_to(weight * (jnp.arange(oldest + 1) == tau), (updates, oldest + 1)).astype(float)
    ratio: jax.Array = mean_square(one, gap, step, lags, jnp.full(updates, weight**2)).mean() / right
    return ratio


#: T / k at which the ratio is looked at, and curvatures of which the worst counts.
_PARTS, _CURVATURES = np.geomspace(1.0, 200.0, 160), np.linspace(0.05, 1.0, 20)


@functools.cache
def ratios() -> Mapping[int, NDArray]:
    """By staleness: the worst ratio to the slides' constant on quadratics with constant delay, over `_PARTS`."""
    worst = {}
    for tau in (0, 1, 3, 7):
        ratio = functools.partial(late_ratio, 512, oldest=tau)
        over = jax.vmap(jax.vmap(ratio, in_axes=(None, None, 0)), in_axes=(0, None, None))
        worst[tau] = np.asarray(jax.jit(over)(_PARTS, tau, _CURVATURES)).max(1)
    return worst


def thresholds() -> Mapping[str, float]:
    """By staleness, the T / k from which on the slides' constant holds on quadratics with constant delay."""
    found = {}
    for tau, ratio in ratios().items():
        broken = np.flatnonzero(ratio > 1 + 1e-9)
        found[f"tau {tau}"] = float(_PARTS[min(broken[-1] + 1, len(_PARTS) - 1)]) if len(broken) else 1.0
    return found


def limit(weight: Any) -> Any:
    """`(1 + w^2) / (4 w)`: the ratio to the slides' constant once the start is forgotten, at a constant weight."""
    return (1 + weight**2) / (4 * weight)


def last_staleness(smoothness: float) -> int:
    """The largest constant staleness at which the slides' constant holds with weights, for T large enough."""
    late = np.arange(1, 10_000)
    with jax.enable_x64(True):
        weight = np.asarray(stellaris.staleness_weight(late, smoothness=smoothness))
    return int(late[limit(weight) <= 1][-1])


def is_sufficient(parts: float, tau: int, *, f: float = 0.58, m: float = 0.5) -> bool:
    """Whether the derivation shows the slides' constant for T >= `parts` k (tau+1)^2 at this staleness.

    Example:
      >>> is_sufficient(14.0, 7), is_sufficient(10.0, 7)
      (True, False)
    """
    y = 1 / (math.sqrt(parts) * (tau + 1))
    c, paid = 1 + f * (1 / m - 1), 1 - f - y
    if tau == 0:
        return y <= 1
    e = paid / (c * (y * tau) ** 2) - 1  # the largest that the rest of B pays for
    return e > 0 and c * (1 + 1 / e) * y * tau / 2 <= f * (1 - m)


def findings(seed: int) -> Mapping[str, Any]:
    """What the claims do not say."""
    del seed
    return {
        "T/k from which the slides' constant holds on quadratics, constant delay": thresholds(),
        "largest constant staleness at which it holds with weights": {
            f"v {v}": last_staleness(float(v)) for v in (1, 2, 3)
        },
    }


def picture(path: Path, seed: int) -> None:
    """The slides' constant: from which T on it holds with stale gradients, and what weights do to it."""
    del seed
    with plots.figure(path, "the slides' constant on quadratics", columns=2) as (start, weights):
        for (tau, ratio), style in zip(ratios().items(), plots.LINES, strict=False):
            start.plot(_PARTS, np.minimum(ratio, 1e3), label=f"{tau} versions stale", **style)
        start.axhline(1.0, color="black", linewidth=0.8)
        start.set(xscale="log", yscale="log", ylim=(0.4, 20), xlabel="T / k", ylabel="worst ratio to the constant")
        start.legend()
        late, long = np.array([1, 2, 3, 4, 6, 8, 10, 12]), 6_000
        measured = jax.jit(
            jax.vmap(
                lambda tau, weight: late_ratio(long, ENOUGH * (tau + 1.0) ** 2, tau, 1.0, weight, oldest=12),
            )
        )
        for smoothness, style in zip((1.0, 2.0, 3.0), plots.LINES, strict=False):
            weight = np.asarray(stellaris.staleness_weight(late, smoothness=smoothness))
            fine = np.linspace(1, 64, 200)
            weights.plot(fine, limit(fine ** (-1 / smoothness)), label=f"v = {smoothness:g}", **style)
            weights.plot(late, measured(late, weight), "o", color=style["color"], markersize=3)
        weights.axhline(1.0, color="black", linewidth=0.8)
        weights.set(xscale="log", ylim=(0.4, 3), xlabel="constant staleness (versions)", ylabel="ratio for large T")
        weights.legend(title="weighted by staleness")


THEOREMS = (
    Theorem(
        "convergence",
        claims=(
            Claim("fresh, any step <= 1/L", "mean E|grad J|^2 <= 2 C1/(a T) + a L s^2/b"),
            Claim("fresh, the slides' step", "T >= k  =>  mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))"),
            Claim("stale, Lian", "T >= 2 k (tau+1)^2  =>  mean E|grad J|^2 <= 4 sqrt(C1 L s^2/(b T))"),
            Claim("stale, the slides' step", "T >= 14 k (tau+1)^2  =>  mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))"),
            Claim(
                "weighted, the repaired step",
                "the same, E[w^2] <= 3 E[w]^2  =>  mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))",
            ),
        ),
        families={"quadratics": Family(draw)},
        sides=functools.partial(sides, bounds),
        at_most=2_000,
        steps=150,
    ),
    Theorem(
        "convergence, controls",
        claims=(
            Claim("stale, T >= k", "mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))", control=True),
            Claim("a step beyond 2/L", "mean E|grad J|^2 <= 2 C1/(a T) + a L s^2/b", control=True),
        ),
        families={"quadratics": Family(draw)},
        sides=functools.partial(sides, controls),
        at_most=2_000,
        steps=0,
    ),
    Theorem(
        "convergence, the platform's",
        claims=(
            Claim("the platform's schedules", "T >= 14 k (tau+1)^2  =>  mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))"),
        ),
        families={"recorded": Family(_on_the_platform, settings=lambda: {"runs": recorded()})},
        sides=platform_sides,
        at_most=400,
        steps=30,
    ),
    Theorem(
        "convergence, long runs",
        claims=(
            Claim("weighted, within the edge", "mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b)), tau^(1/v) <= 2 + sqrt 3"),
            Claim("weighted, beyond the edge", "mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))", control=True),
            Claim(
                "repaired, E[w^2] > 3 E[w]^2",
                "T >= 14 k (tau+1)^2  =>  mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))",
                control=True,
            ),
            Claim("staleness of T / 16", "T = 100 k  =>  mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))", control=True),
        ),
        families={"quadratics": Family(_draw_long)},
        sides=long_sides,
        at_most=200,
        steps=0,
    ),
)
