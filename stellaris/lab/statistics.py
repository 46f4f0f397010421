"""Running statistics of observations in a compiled program: in float64, like the systems' statistics on the host."""

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from stellaris.acting.normalisation import Normaliser, Statistics
from stellaris.types import Tree

T = TypeVar("T")


def _wide(function: Callable[..., T]) -> Callable[..., T]:
    """Makes a function compute in float64, even if the rest of the program computes in float32."""

    def within(*arguments: Any) -> T:
        with jax.enable_x64(True):
            return function(*arguments)

    return within


@_wide
def empty(statistics: Statistics) -> Statistics:
    """The empty statistics that `Policy.statistics()` gives, as arrays on the device."""
    zeros: Statistics = jax.tree.map(lambda x: jnp.zeros(x.shape, jnp.float64), statistics)
    return zeros


@_wide
def observed(observation: Tree, like: Statistics) -> Statistics:
    """The statistics of observations `[n, *obs]`; arrays without a mean in `like` are left out."""
    leaves = jax.tree.leaves(observation)
    count = jnp.float64(leaves[0].shape[0])
    if not jax.tree.leaves(like.mean):
        return Statistics(count, like.mean, like.m2)
    wide = jax.tree.map(
        lambda mean, x: None if mean is None else x.astype(jnp.float64),
        like.mean,
        observation,
        is_leaf=lambda mean: mean is None,
    )
    mean = jax.tree.map(lambda x: jnp.mean(x, axis=0), wide)
    m2 = jax.tree.map(lambda x, mean: jnp.sum(jnp.square(x - mean), axis=0), wide, mean)
    return Statistics(count, mean, m2)


@_wide
def merged(one: Statistics, other: Statistics) -> Statistics:
    """The statistics of the observations of both; `other` must not be empty."""
    count = one.count + other.count
    share = other.count / count
    delta = jax.tree.map(lambda a, b: b - a, one.mean, other.mean)
    mean = jax.tree.map(lambda a, d: a + d * share, one.mean, delta)
    m2 = jax.tree.map(lambda a, b, d: a + b + jnp.square(d) * (one.count * share), one.m2, other.m2, delta)
    return Statistics(count, mean, m2)


@_wide
def normaliser(statistics: Statistics) -> Normaliser:
    """The affine map of `Statistics.normaliser`: the identity with fewer than two observations."""
    few = statistics.count < 2
    mean = jax.tree.map(lambda x: jnp.where(few, 0.0, x).astype(jnp.float32), statistics.mean)
    count = jnp.maximum(statistics.count, 1.0)
    scale = jax.tree.map(
        lambda m2: jnp.where(few, 1.0, 1.0 / jnp.sqrt(m2 / count + 1e-8)).astype(jnp.float32), statistics.m2
    )
    return Normaliser(mean, scale)
