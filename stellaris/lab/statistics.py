"""Running statistics of observations and returns in a compiled program: in float64, like those on the host."""

import functools
from collections.abc import Callable
from typing import ParamSpec, TypeVar

import jax
import jax.numpy as jnp

from stellaris.acting.normalisation import Normaliser, Statistics
from stellaris.types import Tree

P = ParamSpec("P")
T = TypeVar("T")


def wide(function: Callable[P, T]) -> Callable[P, T]:
    """Makes a function compute in float64, even if the rest of the program computes in float32."""

    @functools.wraps(function)
    def within(*args: P.args, **kwargs: P.kwargs) -> T:
        with jax.enable_x64(True):
            return function(*args, **kwargs)

    return within


@wide
def empty(statistics: Statistics) -> Statistics:
    """The empty statistics that `Policy.statistics()` gives, as arrays on the device."""
    zeros: Statistics = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float64), statistics)
    return zeros


@wide
def discounted(before: jax.Array, reward: jax.Array, valid: jax.Array, discount: float) -> jax.Array:
    """The discounted returns `[T, n]` of episodes up to each step, float64; 0 where a step only resets.

    Args:
      before: the discounted returns before the first step, float64 `[n]`.
      reward: `[T, n]`.
      valid: False for a step that only reset its environment, bool `[T, n]`.
      discount: the policy's `scaling_discount`.
    """

    def step(sums: jax.Array, now: tuple[jax.Array, jax.Array]) -> tuple[jax.Array, jax.Array]:
        reward, valid = now
        sums = jnp.where(valid, discount * sums + reward, 0.0)
        return sums, sums

    returns: jax.Array = jax.lax.scan(step, before, (reward.astype(jnp.float64), valid))[1]
    return returns


@wide
def of_returns(returns: jax.Array, valid: jax.Array) -> Statistics:
    """The statistics of the discounted returns `[T, n]` of valid steps, as `Statistics.of_returns`."""
    count = jnp.sum(valid, dtype=jnp.float64)
    mean = jnp.sum(jnp.where(valid, returns, 0.0)) / jnp.maximum(count, 1.0)
    return Statistics(count, mean, jnp.sum(jnp.where(valid, jnp.square(returns - mean), 0.0)))


@wide
def observed(
    observation: Tree, like: Statistics, returns: Statistics | None = None, *, present: jax.Array | None = None
) -> Statistics:
    """The statistics of observations `[n, *obs]`; arrays without a mean in `like` are left out.

    Args:
      observation: the observations.
      like: statistics of the same structure.
      returns: statistics of returns, which the result gets.
      present: False for an observation that is padding, bool `[n]`; None without padding.
    """
    leaves = jax.tree.leaves(observation)
    count = jnp.float64(leaves[0].shape[0]) if present is None else jnp.sum(present, dtype=jnp.float64)
    if not jax.tree.leaves(like.mean):
        return Statistics(count, like.mean, like.m2, returns)

    def total(x: jax.Array) -> jax.Array:
        return jnp.sum(x, axis=0, where=None if present is None else present.reshape(-1, *[1] * (x.ndim - 1)))

    wide = jax.tree.map(
        lambda mean, x: None if mean is None else x.astype(jnp.float64),
        like.mean,
        observation,
        is_leaf=lambda mean: mean is None,
    )
    mean = jax.tree.map(lambda x: total(x) / count, wide)
    m2 = jax.tree.map(lambda x, mean: total(jnp.square(x - mean)), wide, mean)
    return Statistics(count, mean, m2, returns)


@wide
def merged(one: Statistics, other: Statistics) -> Statistics:
    """The statistics of the observations, and of the returns, of both."""
    count = one.count + other.count
    share = other.count / jnp.maximum(count, 1.0)
    returns = None if one.returns is None or other.returns is None else merged(one.returns, other.returns)
    delta = jax.tree.map(lambda a, b: b - a, one.mean, other.mean)
    mean = jax.tree.map(lambda a, d: a + d * share, one.mean, delta)
    m2 = jax.tree.map(lambda a, b, d: a + b + jnp.square(d) * (one.count * share), one.m2, other.m2, delta)
    return Statistics(count, mean, m2, returns)


@wide
def normaliser(statistics: Statistics) -> Normaliser:
    """The affine map of `Statistics.normaliser`: the identity with fewer than two observations."""
    few = statistics.count < 2
    mean = jax.tree.map(lambda x: jnp.where(few, 0.0, x).astype(jnp.float32), statistics.mean)
    count = jnp.maximum(statistics.count, 1.0)
    scale = jax.tree.map(
        lambda m2: jnp.where(few, 1.0, 1.0 / jnp.sqrt(m2 / count + 1e-8)).astype(jnp.float32), statistics.m2
    )
    return Normaliser(mean, scale, None if statistics.returns is None else _factor(statistics.returns))


def _factor(returns: Statistics) -> jax.Array:
    """The factor of rewards: 0 with fewer than two returns."""
    deviation = jnp.sqrt(returns.m2 / jnp.maximum(returns.count, 1.0) + 1e-8)
    return jnp.where(returns.count < 2, 0.0, 1.0 / deviation).astype(jnp.float32)
