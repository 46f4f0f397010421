"""Log-ratios of whole sequences, and of a proximal policy that is not at hand: made from those of single steps."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from stellaris._core import checks
from stellaris.types import Array, JaxArray, at_least_float32, largest

#: Log-ratios saturate here: `exp(30) = 1e13` times an advantage of 1e8 is still finite in float32.
MAX_LOG_RATIO = 30.0
#: In a narrower dtype log-ratios saturate at the logarithm of its largest number less this: a ratio times an advantage
#: of `exp(3) = 20` is still finite.
ROOM = 3.0


def importance_ratio(log_ratio: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """`pi(a|s) / mu(a|s) = exp(log_ratio)`, saturating at `exp(±30)` so that no loss overflows.

    In float16, whose largest number is 65504, ratios saturate at `exp(8.1) = 3261`.

    Args:
      log_ratio: `[...]` log-probability under the policy minus that under the behaviour policy.

    Returns:
      The ratios `[...]`. Saturated ratios are constant and have no gradient. An action of probability zero under the
      policy (a log-ratio of minus infinity) has the ratio `exp(-30)`, 1e-13.

    Raises:
      TypeError: if `log_ratio` holds integers.

    Source:
      Sutton & Barto 2018, Reinforcement Learning, Section 5.5.

    Example:
      >>> import jax.numpy as jnp
      >>> importance_ratio(jnp.zeros(2)).tolist()
      [1.0, 1.0]
    """
    checks.floats(log_ratio=log_ratio)
    return jnp.exp(saturated(log_ratio))


def saturated(log_ratio: Array) -> jax.Array:
    """Log-ratios clipped so that the ratio times an advantage is finite."""
    most = min(MAX_LOG_RATIO, math.log(largest(jnp.result_type(log_ratio))) - ROOM)
    # By choices, whose gradient costs less than that of a minimum.
    return jnp.where(log_ratio > most, most, jnp.where(log_ratio < -MAX_LOG_RATIO, -MAX_LOG_RATIO, log_ratio))


def sequence_log_ratio(
    log_ratio: Float[Array, "T *batch"],
    *,
    valid: Shaped[Array, "T *batch"] | None = None,
    segment: Int[Array, "T *batch"] | None = None,
    over: str = "sum",
) -> Float[JaxArray, "..."]:
    """The log-ratio of whole sequences: the sum over their valid steps, or its mean.

    `sum_t log_ratio_t` is the log-probability of the whole sequence under one policy minus that under the other;
    `over="mean"` gives the logarithm of the geometric mean of the steps' ratios. Any function of a log-ratio takes the
    result. GSPO is `ppo_loss(sequence_log_ratio(log_ratio, valid=valid, over="mean"), advantage, clip=3e-4, clip_high=4e-4)`,
    one loss a sequence; GSPO-token, for advantages that differ within a sequence, takes
    `stop_gradient(s - log_ratio) + log_ratio` instead of the result `s`.

    Args:
      log_ratio: `[T, ...]`, time-major; columns are sequences. What stands at steps that are not valid does not matter:
        they have no part in the result, and exactly no gradient.
      valid: `[T, ...]`, False for padding and for prompts; all steps by default.
      segment: `[T, ...]` integers from 0 to T - 1, for several sequences packed into one column: steps of equal numbers
        are a sequence. One by default.
      over: `"sum"` or `"mean"`.

    Returns:
      `[...]`, one number a sequence, in float32 at least; 0 for one without a valid step. Beside `[T, ...]` it
      broadcasts. With `segment` it is `[T, ...]`: at every step, valid or not, the number of the sequence that it
      belongs to, and NaN where `segment` is out of its range.

    Raises:
      TypeError: if `log_ratio` holds integers, or `segment` does not.
      ValueError: if the shapes differ, there is no time axis, a segment is beyond int32, or `over` is neither of its
        values.

    Source:
      Zheng et al. 2025, Group Sequence Policy Optimization, Eq. 7, for the mean, and Eq. 14 for GSPO-token.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio = jnp.array([0.5, -0.25, 1.0, 9.0])
      >>> valid = jnp.array([True, True, True, False])
      >>> print(sequence_log_ratio(log_ratio, valid=valid))
      1.25
      >>> print(sequence_log_ratio(log_ratio, valid=valid, segment=jnp.array([0, 0, 1, 1]), over="mean"))
      [0.125 0.125 1.    1.   ]
    """
    checks.floats(log_ratio=log_ratio)
    checks.same_shape(log_ratio, "log_ratio", valid=valid, segment=segment)
    if jnp.ndim(log_ratio) < 1:
        raise ValueError("log_ratio has shape (): expected [T, ...]")
    if over not in ("sum", "mean"):
        raise ValueError(f"over={over!r} is neither 'sum' nor 'mean'")
    if segment is not None:
        checks.integers(segment=segment)
        checks.int32(segment=segment)
    # In float32 at least: a long sum of narrower numbers loses its digits, and a mean close to 0 has none to lose.
    steps = jnp.asarray(log_ratio, at_least_float32(jnp.result_type(log_ratio)))
    there = checks.mask(valid, steps)
    add_up = functools.partial(_totals, segment=segment)
    total = add_up(jnp.where(there, steps, 0.0))
    return total if over == "sum" else total / jnp.maximum(add_up(there.astype(jnp.int32)), 1).astype(total.dtype)


def _totals(x: jax.Array, segment: Any) -> jax.Array:
    """The sum over each column, or at every step over its segment."""
    if segment is None:
        return jnp.sum(x, axis=0)
    steps = x.shape[0]
    segment = jnp.asarray(segment, jnp.int32)
    known = (segment >= 0) & (segment < steps)  # any other number would be another column's
    within = jnp.clip(segment, 0, steps - 1).reshape(steps, math.prod(x.shape[1:]))
    # Columns are next to each other, as they are in the arrays: sums far apart would take turns in the cache.
    number = (within * within.shape[1] + jnp.arange(within.shape[1], dtype=jnp.int32)[None]).ravel()
    sums = jax.ops.segment_sum(jnp.where(known, x, 0).ravel(), number, num_segments=x.size)
    return jnp.where(known, sums[number].reshape(x.shape), jnp.nan if x.dtype.kind == "f" else 0)


def approximate_proximal_log_ratio(
    log_ratio: Float[Array, "*batch"], staleness: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """The log-ratio of a proximal policy between behaviour and learning policy: `(1 - 1/d) log_ratio` at a lag of `d`.

    Decoupled PPO asks for the log-probabilities of a recent policy, which cost a forward pass. This takes the policy
    one version before the one that learns, on the line between the two in log-probability, instead. For an action `d`
    versions old the factor is `(d - 1) / d`; it is 0 for `d <= 1`, where the behaviour policy is the proximal one.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy.
      staleness: `[...]` versions between the two, of each step.

    Returns:
      `[...]` for the `proximal_log_ratio` of `decoupled_ppo_loss`; a constant of the loss.

    Raises:
      TypeError: if `log_ratio` holds integers, or `staleness` does not.
      ValueError: if the shapes differ.

    Source:
      Li et al. 2025, A-3PO: Accelerating Asynchronous LLM Training with Staleness-aware Proximal Policy Approximation.

    Example:
      >>> import jax.numpy as jnp
      >>> print(approximate_proximal_log_ratio(jnp.array([0.5, 0.5, 0.5]), jnp.array([0, 1, 4])))
      [0.    0.    0.375]
    """
    checks.floats(log_ratio=log_ratio)
    checks.integers(staleness=staleness)
    checks.same_shape(log_ratio, "log_ratio", staleness=staleness)
    log_ratio = jax.lax.stop_gradient(jnp.asarray(log_ratio))
    versions = jnp.maximum(jnp.asarray(staleness, log_ratio.dtype), 1.0)
    share = 1.0 - 1.0 / versions
    # An action that has become impossible has the log-ratio minus infinity, of which 0 times is not a number.
    return share * jnp.where(share > 0, log_ratio, 0.0)


def constant(x: Array) -> jax.Array:
    """Without a gradient, in float32 at least: squares and differences of narrower numbers lose their digits."""
    return jax.lax.stop_gradient(jnp.asarray(x, at_least_float32(jnp.result_type(x))))
