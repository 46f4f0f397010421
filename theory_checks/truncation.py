"""Truncated importance sampling: bias and variance of truncation, by enumeration.

Outcomes are drawn from mu to estimate the mean of f under pi, |f| <= M; w = pi / mu, pi << mu. Ionides 2008 (Truncated
Importance Sampling) replaces w by min(w, rho):

    E_mu[min(w, rho)^2 f^2] <= min(rho, rho^2) M^2          for min(w, rho)^2 <= rho min(w, rho), and E_mu[w] = 1
    |E_pi f - E_mu[min(w, rho) f]| <= M E_mu[(w - rho)^+]

and without truncation E_mu[w^2 f^2] <= M^2 (1 + chi^2(pi, mu)), with equality if and only if |f| = M wherever pi > 0:
no bound depends on M alone.

**Stellaris' global cap**, max(m, rho) with m = min_j pi_j / mu over the policies that the learners hold, **does not
satisfy rho M^2.** If the learners hold one policy, it truncates nothing. Where m > rho the cap is m,
elsewhere it is rho:

    E_mu[min(w, max(m, rho))^2 f^2] <= M^2 (rho + E_mu[m^2 1{m > rho}])
    |E_pi f - E_mu[min(w, max(m, rho)) f]| <= M E_mu[(w - max(m, rho))^+]

The first bound is derived here: where m <= rho the square is at most rho w, whose mean is at most rho; where m > rho
the ratio is truncated at m. The second term vanishes if one of the held policies is near mu; it is the cost of policies
that moved away *together*. The cap bounds the disagreement between learners, not their common distance from mu.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import stellaris
from experiments.toolkit import plots
from stellaris.types import Array
from theory_checks.check import Claim, Family, Instance, Sides, Theorem, draws

_OUTCOMES, _HELD = 6, 4


def sides(instance: Instance) -> Mapping[str, Sides]:
    """Returns both sides of every claim, with M = 1, for the first of the held policies."""
    free, rho = instance.free, instance.fixed["rho"]
    log_mu = jax.nn.log_softmax(free["behaviour"])
    log_ratios = jax.nn.log_softmax(free["behaviour"] + free["together"] + free["apart"]) - log_mu
    mu, ratios, f = jnp.exp(log_mu), jnp.exp(log_ratios), jnp.tanh(free["f"])
    ratio = ratios[0]
    wanted = mean(mu * ratio, f)
    constant = stellaris.truncate_ratio(ratio, jnp.full_like(ratio, rho))
    level = jnp.maximum(rho, 1.0)  # the global cap requires rho >= 1
    cap = stellaris.global_ratio_cap(log_ratios, rho=level)
    capped, least = stellaris.truncate_ratio(ratio, cap), ratios.min(0)
    alone = stellaris.truncate_ratio(ratio, stellaris.global_ratio_cap(log_ratios[:1], rho=level))
    # `blind` is a behaviour policy that never takes pi's most likely action.
    blind = jnp.where(jnp.arange(_OUTCOMES) == jnp.argmax(ratio * mu), 0.0, mu)
    blind /= blind.sum()
    seen = jnp.where(blind > 0, ratio * mu / jnp.where(blind > 0, blind, 1.0), 0.0)
    both = {
        "second moment": (mean(mu, (constant * f) ** 2), jnp.minimum(rho, rho**2)),
        "bias": (abs(wanted - mean(mu, constant * f)), mean(mu, jnp.maximum(ratio - rho, 0.0))),
        "untruncated second moment": (mean(mu, (ratio * f) ** 2), 1 + chi_squared(mu * ratio, mu)),
        "untruncated, |f| = M": (mean(mu, ratio**2), 1 + chi_squared(mu * ratio, mu)),
        "global cap, second moment": (
            mean(mu, (capped * f) ** 2),
            level + mean(mu, jnp.where(least > level, least**2, 0.0)),
        ),
        "global cap, bias": (abs(wanted - mean(mu, capped * f)), mean(mu, jnp.maximum(ratio - cap, 0.0))),
        "no truncation": (mean(mu, (ratio * f) ** 2), jnp.minimum(rho, rho**2)),
        "the constant's bound for the global cap": (mean(mu, (capped * f) ** 2), level),
        "the constant's bound, one policy held": (mean(mu, (alone * f) ** 2), level),
        "an action that mu never takes": (
            abs(wanted - mean(blind, jnp.minimum(seen, rho) * f)),
            mean(blind, jnp.maximum(seen - rho, 0.0)),
        ),
    }
    return {name: Sides(left, right, 1e-13) for name, (left, right) in both.items()}


def mean(distribution: Array, value: Array) -> jax.Array:
    """Returns the mean of a function under a distribution over finitely many outcomes."""
    return jnp.sum(distribution * value, axis=-1)


def chi_squared(pi: jax.Array, mu: jax.Array) -> jax.Array:
    """Returns `sum (pi - mu)^2 / mu`."""
    return ((pi - mu) ** 2 / mu).sum(-1)


def draw(key: jax.Array, index: jax.Array, together: Any, apart: Any) -> Instance:
    """Draws policies that moved away from mu by `together` in common, and by `apart` from each other."""
    del index
    for_logits, for_level = jax.random.split(key)
    rows = jax.random.normal(for_logits, (3 + _HELD, _OUTCOMES))
    free = {"behaviour": rows[0], "f": 2 * rows[1], "together": together * rows[2], "apart": apart * rows[3:]}
    return Instance(free, {"rho": 0.3 * (10 / 0.3) ** jax.random.uniform(for_level)})


THEOREMS = (
    Theorem(
        "truncation",
        claims=(
            Claim("second moment", "E[min(w,rho)^2 f^2] <= min(rho, rho^2) M^2"),
            Claim("bias", "|E_pi f - E[min(w,rho) f]| <= M E[(w-rho)+]"),
            Claim("untruncated second moment", "E[w^2 f^2] <= M^2 (1 + chi^2)"),
            Claim("untruncated, |f| = M", "E[w^2 f^2] = M^2 (1 + chi^2)", equality=True),
            Claim("global cap, second moment", "E[min(w,cap)^2 f^2] <= M^2 (rho + E[m^2 1{m>rho}])"),
            Claim("global cap, bias", "|E_pi f - E[min(w,cap) f]| <= M E[(w-cap)+]"),
            Claim("no truncation", "E[w^2 f^2] <= min(rho, rho^2) M^2", control=True),
            Claim("the constant's bound for the global cap", "E[min(w,cap)^2 f^2] <= rho M^2", control=True),
            Claim("the constant's bound, one policy held", "E[min(w,cap)^2 f^2] <= rho M^2", control=True),
            Claim("an action that mu never takes", "|E_pi f - E[min(w,rho) f]| <= M E[(w-rho)+]", control=True),
        ),
        families={
            "apart": Family(draw, settings={"together": 0.3, "apart": 1.5}),
            "together": Family(draw, settings={"together": 2.0, "apart": 0.3}),
            "far": Family(draw, settings={"together": 3.0, "apart": 3.0}),
        },
        sides=sides,
    ),
)


def picture(path: Path, seed: int) -> None:
    """Draws second moment and bias over rho, for a constant cap and the global cap with 1, 2 and 4 held policies."""
    levels = jnp.geomspace(1.0, 20.0, 30)
    held = {"a constant": 0, "global cap, 1 held": 1, "global cap, 2 held": 2, "global cap, 4 held": 4}

    def estimate(free: Any, policies: int, rho: Any) -> tuple[jax.Array, jax.Array]:
        log_mu = jax.nn.log_softmax(free["behaviour"])
        log_ratios = jax.nn.log_softmax(free["behaviour"] + free["together"] + free["apart"]) - log_mu
        mu, ratio = jnp.exp(log_mu), jnp.exp(log_ratios[0])
        cap = stellaris.global_ratio_cap(log_ratios[:policies], rho=rho) if policies else jnp.full_like(ratio, rho)
        kept = stellaris.truncate_ratio(ratio, cap)
        return mean(mu, kept**2), 1 - mean(mu, kept)

    with plots.figure(path, "f = 1, the mean of 2,000 pairs", columns=2) as (moment, bias):
        free = draws(THEOREMS[0].families["far"], seed, 2_000).free
        for (name, policies), style in zip(held.items(), plots.LINES, strict=True):
            over = jax.jit(
                jax.vmap(jax.vmap(estimate, in_axes=(0, None, None)), in_axes=(None, None, 0)), static_argnums=1
            )
            moments, biases = (np.asarray(x).mean(1) for x in over(free, policies, levels))
            moment.plot(levels, moments, label=name, **style)
            bias.plot(levels, biases, label=name, **style)
        moment.plot(levels, levels, color="black", linewidth=0.8, label="rho")
        moment.set(xscale="log", yscale="log", xlabel="rho", ylabel="second moment")
        bias.set(xscale="log", xlabel="rho", ylabel="bias")
        moment.legend(fontsize=7)
