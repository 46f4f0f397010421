"""Quantiles and thresholds by bisection: a few dozen passes over the samples, much faster than sorting them."""

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from stellaris._core.sharding import replicated
from stellaris.types import Array


def largest(holds: Callable[[jax.Array], jax.Array], shape: tuple[int, ...], dtype: Any) -> jax.Array:
    """The largest float for which a condition holds, exact: bisection over the bits takes 32 steps in float32.

    Args:
      holds: elementwise predicate on an array of this shape, monotone: if true at x, it is true below x.
      shape: shape of the result.
      dtype: dtype of the result.

    Returns:
      Infinity where the condition always holds; minus infinity where it holds for no finite number.

    Example:
      >>> print(largest(lambda x: x * x * x <= 8.0, (), jnp.float32))
      2.0
    """
    whole, bits = (jnp.uint64, 64) if jnp.dtype(dtype).itemsize == 8 else (jnp.uint32, 32)
    top = jnp.asarray(1, whole) << (bits - 1)

    # Positive floats, read as unsigned integers, are in ascending order, and negative floats in descending order.
    # Flipping the sign bit of positive floats and all bits of negative floats puts all floats in ascending order.
    def number(ordered: jax.Array) -> jax.Array:
        plain = jnp.where(ordered >= top, ordered ^ top, ~ordered)
        return jax.lax.bitcast_convert_type(plain, dtype)

    infinity = jax.lax.bitcast_convert_type(jnp.asarray(jnp.inf, dtype), whole) ^ top
    least = ~jax.lax.bitcast_convert_type(jnp.asarray(-jnp.inf, dtype), whole)

    def halve(i: jax.Array, found: jax.Array) -> jax.Array:
        tried = found | (top >> i.astype(whole))
        # Bit patterns beyond the infinities are NaN, which the search must not try.
        there = (tried <= infinity) & ((tried < least) | holds(number(jnp.maximum(tried, least))))
        return jnp.where(there, tried, found)

    # The condition is computed only for its type: within `shard_map` the start of the search must
    # vary over the same mesh axes as the condition.
    start = jnp.zeros_like(holds(jnp.zeros(shape, dtype)), whole)
    found = number(jnp.maximum(jax.lax.fori_loop(0, bits, halve, start), least))
    # XLA may flush subnormals to zero in the condition, so the search could return the largest subnormal
    # instead of 0.
    return jnp.where(jnp.abs(found) < jnp.finfo(dtype).tiny, 0.0, found)  # type: ignore[no-untyped-call]


@jax.jit
def quantiles(x: Array, there: Array, quantile: Array) -> jax.Array:
    """Quantiles of the valid elements, interpolated linearly between the nearest two.

    Args:
      x: `[...]` floats.
      there: `[...]`, False for elements to ignore.
      quantile: `[n]` in [0, 1].

    Returns:
      The quantiles `[n]`; 0 if no element is valid.

    Example:
      >>> x = jnp.array([1.0, 2.0, 4.0, 99.0])
      >>> quantiles(x, x < 9.0, jnp.array([0.0, 0.75])).tolist()
      [1.0, 3.0]
    """
    x, there = replicated(x).ravel(), replicated(there).ravel()
    last = jnp.maximum(jnp.sum(there, dtype=jnp.int32), 1) - 1
    place = jnp.asarray(quantile, x.dtype) * last.astype(x.dtype)
    # In float32 a count above 2**24 may be rounded up, and the last place with it.
    below = jnp.minimum(jnp.floor(place).astype(jnp.int32), last)
    ranks = jnp.concatenate([below, jnp.minimum(below + 1, last)])

    def not_above(number: jax.Array) -> jax.Array:
        """Whether at most `rank` elements are below a number: true up to the element of that rank, false above it."""
        return jnp.sum(there[None] & (x[None] < number[:, None]), axis=1, dtype=jnp.int32) <= ranks

    low, high = jnp.split(largest(not_above, ranks.shape, x.dtype), 2)
    share = place - below.astype(x.dtype)
    # `low + share * (high - low)` could give inf - inf = NaN, and a share of 0 could give 0 * inf = NaN.
    between = (1.0 - share) * low + share * jnp.where(share > 0, high, 0.0)
    return jnp.where(jnp.any(there), between, 0.0)
