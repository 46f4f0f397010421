"""Convergence with stale gradients: the constants that hold, the T from which they hold, and weights by staleness.

J is L-smooth, gradients are unbiased with a variance of at most s^2 per sample, and T updates use b samples each; C1 =
J(x_1) - J*, C2 = L s^2, k = 2 C1 b L / s^2. The bounds are on the mean of E|grad J(x_t)|^2 over t = 1 ... T. "The
slides" are the slides of Stellaris (SC 2024).

* **Fresh**, step a <= 1/L (the descent lemma, summed):  <= 2 C1 / (a T) + a L s^2 / b. With a = sqrt(2 C1 b / (L s^2
  T)), which is at most 1/L if and only if T >= k, this is **the slides' form** 2 sqrt(2 C1 C2 / (T b)). It is sharp:
  at T = k, a quadratic of curvature L reaches the fraction 1 - 1 / (2 k) of the bound.
* **Stale by at most tau** (Lian et al. 2015, Theorem 1 and Corollary 2; their step is for the sum of b gradients, and
  for the mean it is a = sqrt(C1 b / (L s^2 T))): T >= 4 b L C1 (tau+1)^2 / s^2 gives <= 4 sqrt(C1 L s^2 / (b T)).
* **The slides' constant with stale gradients** (cited from Zhang et al. 2016) fails at small T. It holds for every
  smooth J if T >= 14 k (tau+1)^2 and delays do not depend on the noise. Derivation: let g be the sum of E|grad
  J(x_t)|^2 over t, B the same sum for the mean stale gradient, D the sum of the mean E|x_t - x_{t-lag}|^2, y =
  a L, N = T s^2 / b. As 2<p, q> = |p|^2 + |q|^2 - |p - q|^2, the descent lemma gives

      g + (1 - y) B <= 2 C1 / a + y N + L^2 D.

  Bound a fraction f of B from below by |q|^2 >= (1-m) |p|^2 - (1/m - 1) |p - q|^2, with p = grad J(x_t), and q the mean
  stale gradient. There are at most tau steps between x_{t-lag} and x_t, with uncorrelated noise: D <= a^2 ((1+e)
  tau^2 B + (1+1/e) tau N). If the rest of B covers the first term, (1 + f (1/m - 1)) (1+e) (y tau)^2 <= 1 - f - y,
  then with c = 1 + f (1/m - 1)

      (1 + f (1-m)) g <= 2 C1 / a + y N (1 + c (1+1/e) y tau),

  and as 2 C1 / a = y N at the slides' step, g is at most 2 y N, the slides' constant, if c (1+1/e) y tau / 2 <= f
  (1-m). With y = sqrt(k/T) <= 1 / (sqrt(14) (tau+1)), m = 1/2 and f = 0.58 such an e exists for every tau:
  `is_sufficient` does the arithmetic, and its test covers every tau. With 13 instead of 14 the argument fails for
  large tau. On quadratics with constant delay the constant begins to hold at T/k = 3.7, 16, 71 for tau = 1, 3, 7
  (`thresholds`), about 1.1 (tau+1)^2: between 1.1 and 14 the question is open for other functions and delays.
* **With weights by staleness at the same step, the slides' constant is wrong in general.** Weights w < 1 make the step
  smaller. On quadratics, the ratio of the left side to the slides' constant tends for large T to (1 + E[w^2]) / (4
  E[w]). For a constant staleness this limit is at most 1 if and only if staleness^(1/v) <= 2 + sqrt(3): up to 3
  versions for v = 1, 13 for v = 2, 51 for v = 3. With **the repaired step**, weights are divided by E[w], so that their
  mean is 1, and the ratio tends to (1 + E[w^2]/E[w]^2) / 4. This limit is at most 1 if E[w^2] <= 3 E[w]^2, which any
  weights in [0.102, 1] satisfy. (For unequal weights this is observed here, in the limit and at T >= 14 k (tau+1)^2,
  but not derived.)

All objectives here are quadratics, sum_i h_i x_i^2 / 2 with h_i <= L = 1, whose expectations are exact (`quadratics`):
nothing is sampled. `rates` has other objectives.
"""

import functools
import itertools
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stellaris
from experiments.toolkit import plots
from stellaris.types import NDArray
from theory_checks import schedules
from theory_checks.check import Claim, Family, Instance, Sides, Theorem
from theory_checks.quadratics import Problem, Run, all_late, at_the_slides_step, mean_square, mean_squares, problem
from theory_checks.schedules import Mixture

#: The T / k, in units of (tau+1)^2, from which the slides' constant holds with stale gradients.
ENOUGH = 14.0


def bounds(instance: Instance) -> Mapping[str, Run]:
    """Returns the runs whose claims hold."""
    free, fixed = instance
    batch, margin, tau = fixed["batch"], fixed["margin"], fixed["tau"]
    stale = jax.nn.softmax(jnp.where(tau >= _LATE, 5 * free["lags"], -jnp.inf))
    stale = jnp.tile(stale, (_UPDATES // _PERIOD, 1))
    weight = stellaris.staleness_weight(_LATE, smoothness=fixed["smoothness"])
    mean = (stale * weight).sum(1).mean()
    weighted, noise = stale * weight / mean, (stale * weight**2).sum(1) / mean**2
    lian = at_the_slides_step(2 * (tau + 1) ** 2 * margin, stale, batch=batch)
    lian_step, lian_constant = jnp.sqrt(lian.gap * batch / _UPDATES), 4 * jnp.sqrt(lian.gap / (batch * _UPDATES))
    enough = ENOUGH * (tau + 1) ** 2 * margin
    return {
        "fresh, any step <= 1/L": _descent_lemma(jnp.exp(free["any gap"]), jax.nn.sigmoid(free["any step"]), batch),
        "fresh, the slides' step": at_the_slides_step(margin, _FRESH, batch=batch),
        "stale, Lian": lian._replace(step=lian_step, constant=lian_constant),
        "stale, the slides' step": at_the_slides_step(enough, stale, batch=batch),
        "weighted, the repaired step": at_the_slides_step(enough, weighted, noise, batch),
    }


def controls(instance: Instance) -> Mapping[str, Run]:
    """Returns the runs whose claims are false."""
    fixed, gap = instance.fixed, jnp.exp(instance.free["any gap"])
    late = all_late(_UPDATES, _OLDEST, fixed["tau"])
    return {
        "stale, T >= k": at_the_slides_step(fixed["margin"], late, batch=fixed["batch"]),
        "a step beyond 2/L": _descent_lemma(gap, 2.2, fixed["batch"]),
    }


def _descent_lemma(gap: Any, step: Any, batch: Any) -> Run:
    """Returns the run with fresh gradients at any step."""
    constant = 2 * gap / (step * _UPDATES) + step / batch
    return Run(gap, step, _FRESH, jnp.full(_UPDATES, 1 / batch), constant)


def _sides(runs: Callable[[Instance], Mapping[str, Run]]) -> Callable[[Instance], Mapping[str, Sides]]:
    """Returns a theorem's `sides`: the mean over the updates against the constant, for every run of an instance."""

    def sides(instance: Instance) -> Mapping[str, Sides]:
        both = mean_squares(problem(instance), runs(instance))
        return {name: Sides(mean, constant, 1e-14) for name, (mean, constant) in both.items()}

    return sides


#: Updates of a run, the oldest lag, and the period of random lags.
_UPDATES, _OLDEST, _PERIOD = 96, 7, 8
_LATE = np.arange(_OLDEST + 1)
_FRESH = np.tile(_LATE == 0, (_UPDATES, 1)).astype(float)


def draw(key: jax.Array, index: jax.Array) -> Instance:
    """Draws a quadratic, lags up to tau, and a T between the least that a claim requires and ten times that."""
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


#: Aggregators whose runs on the platform are recorded; each gradient there is of one sample.
AGGREGATORS: Mapping[str, stellaris.Aggregator] = {
    "fully asynchronous": stellaris.fully_asynchronous(capacity=8),
    "softsync(2)": stellaris.softsync(2),
    "staleness-aware": stellaris.staleness_aware(group_size=4, decay=1.0, max_staleness=1),
    "unweighted": stellaris.staleness_aware(group_size=4, decay=1.0, max_staleness=1, smoothness=math.inf),
}
#: Number of gradients that arrive in a recorded run, enough for its updates; and the largest staleness of a run.
_ARRIVALS, _LATEST = 240, 48


@functools.cache
def recorded() -> Mixture:
    """Returns the mixtures of the platform's runs with four learners: `[runs, updates, ...]`.

    There is one run per aggregator and distribution of delays. Weights are divided by their mean.
    """
    runs = []
    for aggregator, delay in itertools.product(AGGREGATORS.values(), schedules.DELAYS.values()):
        run = schedules.record(aggregator, _ARRIVALS, delay=delay)
        whole = schedules.mixture(aggregator, run, oldest=max(_LATEST, int(run.lag.max())))
        lags, noise = whole.lags[:_UPDATES], whole.noise[:_UPDATES]
        if lags[:, _LATEST + 1 :].any():
            raise ValueError(f"_LATEST={_LATEST} is below the staleness with delay {delay}: increase _LATEST")
        total = lags.sum(1).mean()
        runs.append((lags[:, : _LATEST + 1] / total, noise / total**2))
    return Mixture(*(np.stack(column) for column in zip(*runs, strict=True)))


def on_the_platform(instance: Instance) -> Mapping[str, Run]:
    """Returns the run along a recorded schedule, where b is 1 over the largest noise of an update."""
    lags, noise = instance.fixed["mixture"]
    tau = jnp.max(jnp.where(lags > 0, jnp.arange(lags.shape[1]), 0))
    enough = ENOUGH * (tau + 1) ** 2 * instance.fixed["margin"]
    return {"the platform's schedules": at_the_slides_step(enough, lags, noise / jnp.max(noise), 1 / jnp.max(noise))}


def _draw_on_the_platform(key: jax.Array, index: jax.Array, runs: Mixture) -> Instance:
    for_logits, for_margin = jax.random.split(key)
    free = dict(zip(("curvature", "gap", "variance"), 2 * jax.random.normal(for_logits, (3, 2)), strict=True))
    margin = 10.0 ** jax.random.uniform(for_margin)
    mixture = jax.tree.map(lambda x: x[index % len(x)], runs)
    return Instance(free, {"mixture": mixture, "margin": margin})


def long_runs(instance: Instance) -> Mapping[str, Run]:
    """Returns long runs: with 1/w below and above the edge, 2 + sqrt(3), and with staleness that grows with T."""
    share, edge, oldest = instance.fixed["edge"], 2 + math.sqrt(3), _LONG // 16

    def weighted(weight: Any, *, tau: int = 7) -> Run:
        """Returns a run with constant lag and weight."""
        return at_the_slides_step(ENOUGH * (tau + 1) ** 2, weight * all_late(_LONG, oldest, tau), weight**2)

    def repaired(fresh: Any, *, tau: int = 32) -> Run:
        """Returns a run with some fresh gradients among late ones; weights are 1/staleness divided by their mean."""
        lags = fresh * all_late(_LONG, oldest, 0) + (1 - fresh) * all_late(_LONG, oldest, tau)
        mean, square = fresh + (1 - fresh) / tau, fresh + (1 - fresh) / tau**2
        weight = 1 / jnp.maximum(jnp.arange(oldest + 1), 1)
        return at_the_slides_step(ENOUGH * (tau + 1) ** 2, lags * weight / mean, square / mean**2)

    return {
        "weighted, within the edge": weighted(1 / (edge * (0.3 + 0.6 * share))),
        "weighted, beyond the edge": weighted(1 / (edge * (1.3 + 2 * share))),
        "repaired, E[w^2] > 3 E[w]^2": repaired(0.02 + 0.03 * share),
        "staleness of T / 16": at_the_slides_step(100.0, all_late(_LONG, oldest, oldest)),
    }


def _draw_long(key: jax.Array, index: jax.Array) -> Instance:
    free, _ = draw(key, index)
    return Instance(free, {"edge": jax.random.uniform(jax.random.fold_in(key, 1))})


#: Updates of a long run.
_LONG = 768


def late_ratio(updates: int, parts: Any, tau: Any, curvature: Any, weight: Any = 1.0, *, oldest: int) -> jax.Array:
    """Returns the ratio of the mean square to the slides' constant on `h x^2 / 2`, for constant lag and weight.

    T is `parts` times k.
    """
    one = Problem(*(jnp.asarray(x, float)[None] for x in (curvature, 1.0, 1.0)))
    run = at_the_slides_step(parts, weight * all_late(updates, oldest, tau), weight**2)
    return jnp.mean(mean_square(one, run) / run.constant)


#: Values of T / k, and curvatures of the quadratics. At each T / k, the largest ratio over all curvatures is taken.
_PARTS, _CURVATURES = np.geomspace(1.0, 200.0, 160), np.linspace(0.05, 1.0, 20)


@functools.cache
def ratios() -> Mapping[int, NDArray]:
    """Returns the largest ratio to the slides' constant at each of `_PARTS`, by staleness, for constant delay."""
    worst = {}
    for tau in (0, 1, 3, 7):
        ratio = functools.partial(late_ratio, 512, oldest=tau)
        over = jax.vmap(jax.vmap(ratio, in_axes=(None, None, 0)), in_axes=(0, None, None))
        worst[tau] = np.asarray(jax.jit(over)(_PARTS, tau, _CURVATURES)).max(1)
    return worst


def thresholds() -> Mapping[str, float]:
    """Returns the T / k from which the slides' constant holds on quadratics with constant delay, by staleness."""
    found = {}
    for tau, ratio in ratios().items():
        broken = np.flatnonzero(ratio > 1 + 1e-9)
        found[f"tau {tau}"] = float(_PARTS[min(broken[-1] + 1, len(_PARTS) - 1)]) if len(broken) else 1.0
    return found


def limit(weight: Any) -> Any:
    """Returns `(1 + w^2) / (4 w)`, the limit of the ratio to the slides' constant for large T, at a constant weight."""
    return (1 + weight**2) / (4 * weight)


def last_staleness(smoothness: float) -> int:
    """Returns the largest constant staleness at which the slides' constant holds with weights, for T large enough."""
    late = np.arange(1, 10_000)
    with jax.enable_x64(True):
        weight = np.asarray(stellaris.staleness_weight(late, smoothness=smoothness))
    return int(late[limit(weight) <= 1][-1])


def is_sufficient(parts: float, tau: int, *, f: float = 0.58, m: float = 0.5) -> bool:
    """Returns whether the derivation shows the slides' constant for T >= `parts` k (tau+1)^2 at this staleness.

    Example:
      >>> is_sufficient(14.0, 7), is_sufficient(10.0, 7)
      (True, False)
    """
    y = 1 / (math.sqrt(parts) * (tau + 1))
    c, paid = 1 + f * (1 / m - 1), 1 - f - y
    if tau == 0:
        return y <= 1
    e = paid / (c * (y * tau) ** 2) - 1  # the largest e that the rest of B covers
    return e > 0 and c * (1 + 1 / e) * y * tau / 2 <= f * (1 - m)


def findings(seed: int) -> Mapping[str, Any]:
    """Returns the thresholds in T and in staleness, which the claims do not show."""
    del seed
    return {
        "T/k from which the slides' constant holds on quadratics, constant delay": thresholds(),
        "largest constant staleness at which it holds with weights": {
            f"v {v}": last_staleness(float(v)) for v in (1, 2, 3)
        },
    }


def picture(path: Path, seed: int) -> None:
    """Draws the ratio to the slides' constant: over T with stale gradients, and over staleness with weights."""
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
        sides=_sides(bounds),
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
        sides=_sides(controls),
        at_most=2_000,
        steps=0,
    ),
    Theorem(
        "convergence, the platform's",
        claims=(
            Claim("the platform's schedules", "T >= 14 k (tau+1)^2  =>  mean E|grad J|^2 <= 2 sqrt(2 C1 C2/(T b))"),
        ),
        families={"recorded": Family(_draw_on_the_platform, settings=lambda: {"runs": recorded()})},
        sides=_sides(on_the_platform),
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
        sides=_sides(long_runs),
        at_most=200,
        steps=0,
    ),
)
