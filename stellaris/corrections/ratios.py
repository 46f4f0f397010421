"""Importance ratios, log-ratios of whole sequences, and an approximate log-ratio of the proximal policy."""

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float, Int, Shaped

from stellaris._core import checks
from stellaris.types import Array, JaxArray, at_least_float32, largest

#: Log-ratios saturate here: `exp(30) = 1e13` times an advantage of 1e8 is finite in float32.
MAX_LOG_RATIO = 30.0
#: In a narrower dtype log-ratios saturate this far below the logarithm of its largest number, so that a ratio times
#: an advantage of `exp(3) = 20` is finite.
ROOM = 3.0


def importance_ratio(log_ratio: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """`pi(a|s) / mu(a|s) = exp(log_ratio)`, saturating at `exp(±30)` so that no loss overflows.

    In float16, whose largest number is 65504, ratios saturate at `exp(8.1) = 3261`.

    Args:
      log_ratio: `[...]` log-probability under the policy minus that under the behaviour policy.

    Returns:
      The ratios `[...]`. Saturated ratios are constants with a gradient of zero. An action of probability zero under
      the policy (a log-ratio of minus infinity) has the ratio `exp(-30)`, 1e-13.

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
    """Clips log-ratios so that a ratio times an advantage is finite."""
    most = min(MAX_LOG_RATIO, math.log(largest(jnp.result_type(log_ratio))) - ROOM)
    # `where` replaces `minimum` and `maximum`, because the gradient of `where` is cheaper.
    return jnp.where(log_ratio > most, most, jnp.where(log_ratio < -MAX_LOG_RATIO, -MAX_LOG_RATIO, log_ratio))


def sequence_log_ratio(
    log_ratio: Float[Array, "T *batch"],
    *,
    valid: Shaped[Array, "T *batch"] | None = None,
    segment: Int[Array, "T *batch"] | None = None,
    over: str = "sum",
) -> Float[JaxArray, "..."]:
    """The log-ratio of whole sequences: the sum or the mean over their valid steps.

    `sum_t log_ratio_t` is the log-probability of the whole sequence under one policy minus that under the other;
    `over="mean"` gives the logarithm of the geometric mean of the steps' ratios. Any function of this library with an
    argument `log_ratio` accepts the result. For GSPO, which has one loss per sequence, compute `s` with `over="mean"`,
    then `ppo_loss(s, advantage, clip=3e-4, clip_high=4e-4)`. For GSPO-token, where advantages differ within a sequence,
    pass `stop_gradient(s - log_ratio) + log_ratio` instead of `s`.

    Args:
      log_ratio: `[T, ...]`, time-major; columns are sequences. Values at invalid steps do not matter; their gradient
        is exactly zero.
      valid: `[T, ...]`, False for padding and for prompts; by default all steps are valid.
      segment: `[T, ...]` integers from 0 to T - 1, for several sequences packed into one column: steps with the same
        number form a sequence. By default a column is one sequence.
      over: `"sum"` or `"mean"`.

    Returns:
      `[...]`, one log-ratio per sequence, in float32 at least; 0 for a sequence without a valid step. It broadcasts to
      `[T, ...]`. With `segment`, `[T, ...]`: at every step, valid or not, the log-ratio of the step's sequence, and NaN
      where the `segment` of a valid step is out of range.

    Raises:
      TypeError: if `log_ratio` holds integers, or `segment` does not.
      ValueError: if the shapes differ, the time axis is missing, a segment is beyond int32, or `over` is unknown.

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
    segment = check_sequences("log_ratio", log_ratio, valid, segment)
    if over not in ("sum", "mean"):
        raise ValueError(f"over={over!r} is neither 'sum' nor 'mean'")
    # Sums are in float32 at least, because a long sum loses digits in narrower types, and a mean close to 0 needs every
    # digit.
    steps = jnp.asarray(log_ratio, at_least_float32(jnp.result_type(log_ratio)))
    there = checks.mask(valid, steps)
    add_up = functools.partial(totals, segment=segment)
    total = add_up(jnp.where(there, steps, 0.0))
    return total if over == "sum" else total / jnp.maximum(add_up(there.astype(jnp.int32)), 1).astype(total.dtype)


def check_sequences(name: str, steps: Array, valid: Array | None, segment: Array | None) -> jax.Array | None:
    """Raises unless the argument named `name` holds floats on a time axis, and the others fit it.

    Returns the segments. An invalid step whose segment is out of range, such as -1, is counted to segment 0: nothing is
    summed over it, and a NaN there would become a NaN in the gradients of valid steps.
    """
    checks.floats(**{name: steps})
    checks.same_shape(steps, name, valid=valid, segment=segment)
    if jnp.ndim(steps) < 1:
        raise ValueError(f"{name} has shape (): expected [T, ...]")
    if segment is None:
        return None
    checks.integers(segment=segment)
    checks.int32(segment=segment)
    numbers = jnp.asarray(segment, jnp.int32)
    outside = (numbers < 0) | (numbers >= len(numbers))
    return numbers if valid is None else jnp.where(outside & ~checks.mask(valid, numbers), 0, numbers)


def step_totals(x: jax.Array, segment: Any) -> jax.Array:
    """Sums over each column or segment, at every step."""
    return jnp.broadcast_to(totals(x, segment), x.shape)


def totals(x: jax.Array, segment: Any) -> jax.Array:
    """Sums over each column or, at every step, over the step's segment."""
    if segment is None:
        return jnp.sum(x, axis=0)
    steps = x.shape[0]
    known = (segment >= 0) & (segment < steps)  # any other number would address another column
    within = jnp.clip(segment, 0, steps - 1).reshape(steps, math.prod(x.shape[1:]))
    # Sums of adjacent columns are adjacent, as in the arrays: sums far apart would evict each other from the cache.
    number = (within * within.shape[1] + jnp.arange(within.shape[1], dtype=jnp.int32)[None]).ravel()
    sums = jax.ops.segment_sum(jnp.where(known, x, 0).ravel(), number, num_segments=x.size)
    return jnp.where(known, sums[number].reshape(x.shape), jnp.nan if x.dtype.kind == "f" else 0)


def approximate_proximal_log_ratio(
    log_ratio: Float[Array, "*batch"], staleness: Int[Array, "*batch"]
) -> Float[Array, "*batch"]:
    """Approximates the log-ratio of a proximal policy: `(1 - 1/d) log_ratio` for an action chosen `d` versions ago.

    Decoupled PPO needs the log-probabilities of a recent policy, which cost a forward pass. This function interpolates
    linearly between the behaviour policy and the policy that learns, to one version before the policy that learns.
    The factor is 0 for `d <= 1`, where the behaviour policy is the proximal policy.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy.
      staleness: `[...]` versions between the two policies at each step.

    Returns:
      The log-ratios `[...]` for the `proximal_log_ratio` of `decoupled_ppo_loss`; a constant of the loss.

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
    # The inner `where` avoids 0 * -inf = NaN for actions of probability zero.
    return share * jnp.where(share > 0, log_ratio, 0.0)


def constant(x: Array) -> jax.Array:
    """Stops the gradient and widens to float32 at least: squares and differences lose digits in narrower types."""
    return jax.lax.stop_gradient(jnp.asarray(x, at_least_float32(jnp.result_type(x))))


def outward(log_ratio: Array, advantage: Array) -> jax.Array:
    """Whether each sample has moved outward: its probability has risen at `A > 0`, or fallen at `A < 0`."""
    log_ratio, advantage = jnp.asarray(log_ratio), jnp.asarray(advantage)
    return ((advantage > 0) & (log_ratio > 0)) | ((advantage < 0) & (log_ratio < 0))
