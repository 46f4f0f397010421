"""Exact expectations of gradient descent with stale gradients, on quadratics.

The second moments of the versions that updates still read follow a linear recursion.
"""

from collections.abc import Mapping
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float

from theory_checks.check import Instance


class Problem(NamedTuple):
    """A quadratic with L = 1: each direction's curvature, and its shares of the gap C1 and of the variance s^2 = 1."""

    curvature: Float[jax.Array, " d"]
    gap: Float[jax.Array, " d"]  #: shares of C1.
    variance: Float[jax.Array, " d"]  #: shares of s^2.


class Run(NamedTuple):
    """Descent `x - step (sum_k lags[t, k] h x_{t-k} + xi_t)` for T updates, and the constant of its bound."""

    gap: Any  #: C1.
    step: Any  #: a.
    #: `[t, k]`: weight, at update t, of the gradient at x_{t-k}, or at x_1 if there are fewer versions.
    lags: Float[Any, "T H"]
    noise: Float[Any, " T"]  #: variance of `xi_t`, summed over directions.
    constant: Any


def problem(instance: Instance) -> Problem:
    """Returns the quadratic of an instance."""
    free = instance.free
    return Problem(jax.nn.sigmoid(free["curvature"]), jax.nn.softmax(free["gap"]), jax.nn.softmax(free["variance"]))


def at_the_slides_step(parts: Any, lags: Float[Any, "T H"], noise: Any = 1.0, batch: Any = 1.0) -> Run:
    """Returns a run with the slides' step `sqrt(2 C1 b / T)` and constant `2 sqrt(2 C1 / (T b))`, where T is `parts` k.

    Args:
      parts: T / k; with L = s = 1, k = 2 C1 b.
      lags: the lags `[T, H]`, as in `Run`.
      noise: the variance of an update, times b; `[T]` or a scalar.
      batch: b, the number of samples per update.
    """
    updates = len(lags)
    gap = updates / (2 * batch * parts)
    step, constant = jnp.sqrt(2 * gap * batch / updates), 2 * jnp.sqrt(2 * gap / (updates * batch))
    return Run(gap, step, lags, jnp.broadcast_to(noise / batch, updates), constant)


def all_late(updates: int, oldest: int, lag: Any) -> Float[jax.Array, "T H"]:
    """Returns lags for gradients that are all `lag` versions behind."""
    return jnp.broadcast_to(jnp.arange(oldest + 1) == lag, (updates, oldest + 1)).astype(float)


def mean_square(problem: Problem, run: Run) -> Float[jax.Array, " T"]:
    """Returns the exact `E|grad J(x_t)|^2` at the newest version before every update."""

    def direction(h: jax.Array, share: jax.Array, variance: jax.Array) -> jax.Array:
        def update(moments: jax.Array, at: Any) -> tuple[jax.Array, jax.Array]:
            weights, noise = at
            factors = (-run.step * h * weights).at[0].add(1.0)
            cross = moments @ factors
            corner = factors @ cross + run.step**2 * variance * noise
            top = jnp.concatenate([corner[None], cross[:-1]])
            below = jnp.concatenate([cross[:-1, None], moments[:-1, :-1]], axis=1)
            return jnp.concatenate([top[None], below]), h**2 * moments[0, 0]

        start = jnp.full((run.lags.shape[1],) * 2, 2 * share * run.gap / h)
        squares: jax.Array = jax.lax.scan(update, start, (jnp.asarray(run.lags), jnp.asarray(run.noise)))[1]
        return squares

    return jax.vmap(direction)(*problem).sum(0)


def mean_squares(problem: Problem, runs: Mapping[str, Run]) -> Mapping[str, tuple[jax.Array, jax.Array]]:
    """Returns the mean of `mean_square` over the updates, and the constant, for runs of equal length, by name."""
    stacked: Run = jax.tree.map(lambda *x: jnp.stack([jnp.asarray(y, float) for y in x]), *runs.values())
    means = jax.vmap(lambda run: mean_square(problem, run).mean())(stacked)
    return {name: (means[i], stacked.constant[i]) for i, name in enumerate(runs)}
