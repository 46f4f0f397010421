"""Trust regions whose width depends on how far the policy has moved."""

import math
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Float, Shaped

from stellaris._core import checks, order_statistics
from stellaris.corrections.ratios import constant, importance_ratio, outward
from stellaris.types import Array, JaxArray, Scalar


class ClipWidths(NamedTuple):
    """Half-widths of a trust region for each sample, for `clip` and `clip_high` of a loss; see `adaptive_clip`,
    `second_moment_clip` and `balanced_clip`.

    Example:
      >>> ClipWidths(low=jnp.array([0.2]), high=jnp.array([0.1])).high.tolist()
      [0.10000000149011612]
    """

    low: Float[JaxArray, "*batch"]
    high: Float[JaxArray, "*batch"]


def adaptive_clip(
    log_ratio: Float[Array, "*batch"],
    *,
    valid: Shaped[Array, "*batch"] | None = None,
    clip: Scalar = 0.2,
    clip_high: Scalar | None = None,
    quantile: Scalar = 0.9,
) -> ClipWidths:
    """A staleness-adaptive trust region (SAT): narrower for the samples that moved most, on the side they moved to.

    With `x = |log_ratio|` and `q` its quantile over the batch, `c = min(2 / (1 + (x / q)^2), 1)`, which is 1 up to the
    quantile. A sample with a ratio above 1 has the widths `(clip, c * clip_high)`; any other sample has the widths
    `(c * clip, clip_high)`. The side towards the behaviour policy keeps its width. If nearly all samples are fresh, `q`
    is 0. Every sample whose ratio is not 1 then has width 0 on the side it moved to, the limit as `q` goes to 0.

    Args:
      log_ratio: `[...]`, a whole batch: log-probability under the policy that learns minus that under the behaviour
        policy, one number for each step or sequence.
      valid: `[...]`, False for samples to ignore; all count by default.
      clip: half-width below a ratio of 1, positive.
      clip_high: half-width above a ratio of 1; `clip` by default.
      quantile: the quantile of `|log_ratio|` up to which widths do not shrink, in [0, 1].

    Returns:
      `ClipWidths(low, high)`, each `[...]`, without a gradient. Pass `clip=low` and `clip_high=high` to a loss.

    Raises:
      TypeError: if `log_ratio` holds integers, or a setting is not a number.
      ValueError: if the shapes differ, or a setting is out of range.

    Source:
      Stale but Stable: Staleness-Adaptive Trust Regions for Stabilizing Asynchronous Reinforcement Learning, arXiv
      2607.18722 (2026): the quantile, the side and a Hill function of exponent 2. We could not verify how the paper
      normalises that function; here it is continuous, and 1 at the quantile.

    Example:
      >>> import jax.numpy as jnp
      >>> widths = adaptive_clip(jnp.array([0.1, -0.1, 0.3, -0.1]), quantile=0.5)
      >>> print(widths.low.round(3), widths.high.round(3))
      [0.2 0.2 0.2 0.2] [0.2  0.2  0.04 0.2 ]
    """
    checks.floats(log_ratio=log_ratio)
    checks.same_shape(log_ratio, "log_ratio", valid=valid)
    checks.positive(**checks.given(clip=clip, clip_high=clip_high))
    checks.between_zero_and_one(quantile=quantile)
    moved = constant(log_ratio)
    distance = jnp.abs(moved)
    (threshold,) = order_statistics.quantiles(distance, checks.mask(valid, distance), jnp.asarray(quantile)[None])
    # The quotient is `q / x`, because `x / q` may overflow: beyond the quantile `q / x` is at most 1, and 0 if `x` is
    # infinite.
    beyond = distance > threshold
    inverse = jnp.where(beyond, threshold, 1.0) / jnp.where(beyond, distance, 1.0)
    share = 2.0 * jnp.square(inverse) / (1.0 + jnp.square(inverse))
    # An infinite width stays infinite, because its product with a share of 0 would be NaN.
    low, high = (
        jnp.where(narrowed & jnp.isfinite(width), width * share, width)
        for width, narrowed in ((clip, moved <= 0), (clip if clip_high is None else clip_high, moved > 0))
    )
    dtype = jnp.result_type(log_ratio)
    return ClipWidths(low.astype(dtype), high.astype(dtype))


def second_moment_clip(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    valid: Shaped[Array, "*batch"] | None = None,
    max_second_moment: Scalar = 0.04,
    min_clip: Scalar = 0.0,
    min_clip_high: Scalar = 0.0,
) -> ClipWidths:
    """M2PO as its authors' code has it: one trust region for the batch, as wide as the second moment allows.

    Only samples that move outward count, as in `second_moment_mask`. If the mean of their squared log-ratios is at most
    `max_second_moment`, nothing is clipped. Otherwise `tau` is the largest of their distances `|log_ratio|` for which
    the *capped* mean, `mean_i min(log_ratio_i^2, tau^2)`, is below that bound, and the trust region of ratios is
    `[exp(-tau), exp(tau)]`, but at least `[1 - min_clip, 1 + min_clip_high]`.

    Args:
      log_ratio: `[...]`, a whole batch: log-probability under the policy that learns minus that under the behaviour
        policy.
      advantage: `[...]`.
      valid: `[...]`, False for samples to ignore; all count by default.
      max_second_moment: bound of the capped mean, at least 0.
      min_clip: smallest half-width below a ratio of 1, at least 0.
      min_clip_high: smallest half-width above a ratio of 1, at least 0.

    Returns:
      `ClipWidths(low, high)`, each `[...]` and the same for all samples, without a gradient; `(1, inf)` if nothing is
      clipped. Pass `clip=low` and `clip_high=high` to `ppo_loss`.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, or a setting is negative.

    Source:
      Zheng et al. 2025, Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?, in the
      authors' code (Infini-AI-Lab/M2PO, `compute_m2po_policy_loss`). The paper's Algorithm 1 masks samples instead:
      `second_moment_mask`. The code applies the bound to each micro-batch. Its function has the smallest widths 0.3 and
      0.5, with which ratios in [0.7, 1.5] are never clipped, but its trainer and its scripts pass none, as here.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio, advantage = jnp.array([0.1, 0.2, 0.9, -0.9]), jnp.ones(4)
      >>> widths = second_moment_clip(log_ratio, advantage)  # (0.01 + 0.04 + 0.04) / 3 is below 0.04
      >>> print(f"{widths.low[0]:.4f} {widths.high[0]:.4f}")  # 1 - exp(-0.2), exp(0.2) - 1
      0.1813 0.2214
    """
    checks.floats(log_ratio=log_ratio, advantage=advantage)
    checks.same_shape(log_ratio, "log_ratio", advantage=advantage, valid=valid)
    checks.not_negative(max_second_moment=max_second_moment, min_clip=min_clip, min_clip_high=min_clip_high)
    moved = constant(log_ratio)
    there = outward(moved, advantage) & checks.mask(valid, moved)
    low, high = _of_capped_squares(moved, there, max_second_moment)
    dtype = jnp.result_type(log_ratio)
    return ClipWidths(
        *(
            jnp.full(moved.shape, jnp.maximum(width, least), dtype)
            for width, least in ((low, min_clip), (high, min_clip_high))
        )
    )


@jax.jit
def _of_capped_squares(log_ratio: jax.Array, there: jax.Array, most: Any) -> tuple[jax.Array, jax.Array]:
    """The widths that bound the mean of the squares, each at most the trust region's square."""
    square = jnp.where(there, jnp.square(log_ratio), 0.0)
    allowed = jnp.asarray(most, square.dtype) * jnp.sum(there).astype(square.dtype)
    level = order_statistics.largest(lambda cap: jnp.sum(jnp.minimum(square, cap)) < allowed, (), square.dtype)
    tau = jnp.sqrt(jnp.max(square, where=square <= level, initial=0.0))
    free = ~(jnp.sum(square) > allowed)
    return jnp.where(free, 1.0, -jnp.expm1(-tau)), jnp.where(free, jnp.inf, jnp.expm1(tau))


def balanced_clip(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    valid: Shaped[Array, "*batch"] | None = None,
    low: Scalar = 0.6,
    max_low: Scalar = 0.8,
    high: Scalar = 1.2,
    max_high: Scalar = 2.0,
    step: Scalar = 0.05,
    balance: Scalar = 1.0,
) -> ClipWidths:
    """BAPO as its authors' code has it: widens the trust region upwards until good samples weigh as much as bad ones.

    With the ratios `r = exp(log_ratio)` and a trust region `[l, h]`, `P(h) = sum min(r, h) A` over `A > 0` and
    `N(l) = sum max(r, l) |A|` over `A < 0` are what the clipped objective adds and subtracts. If
    `P(high) >= balance N(low)`, the region is `[low, high]`. Otherwise its lower bound is `max_low`, and its upper
    bound the first of `high`, `high + step`, ..., `max_high` with `P(h) >= balance N(max_low)`, or else `max_high`.

    Samples with `A < 0` dominate old data where a policy fails more often than it succeeds; PPO's fixed clip holds
    back the rare samples with `A > 0`, whose ratios are large.

    Args:
      log_ratio: `[...]`, a whole batch: log-probability under the policy that learns minus that under the behaviour
        policy, one number for each step or sequence.
      advantage: `[...]`.
      valid: `[...]`, False for samples to ignore; all count by default.
      low: lower bound of the ratios, in [0, `max_low`].
      max_low: largest lower bound, at most 1.
      high: upper bound of the ratios, in [1, `max_high`].
      max_high: largest upper bound, finite.
      step: step of the upper bound, positive.
      balance: the ratio of `P` to `N` that is wanted, at least 0; with 1, half of the sum of both is of `A > 0`.

    Returns:
      `ClipWidths(low, high)`, each `[...]` and the same for all samples, without a gradient. Pass `clip=low` and
      `clip_high=high` to `ppo_loss`; the authors' code also has `ratio_cap=3.0`.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, or a setting is out of range: a `step` that is too small to change the bound
        would never end.

    Source:
      Xi et al. 2025, BAPO: Stabilizing Off-Policy Reinforcement Learning for LLMs via Balanced Policy Optimization with
      Adaptive Clipping, arXiv 2510.18927, in the authors' code (WooooDyy/BAPO, `recipe/bapo/policy_loss.py`, with the
      settings of its `bapo_trainer.yaml`; its README has 0.9 and 3.0 as the largest bounds). We read the code, not the
      paper's algorithm. The code raises the lower bound in steps until `P >= balance N`. As `N` grows with that bound,
      it always ends at `max_low`, which may cost more than the wider upper bound gains. The code limits log-ratios to
      ±20, where here they saturate at ±30.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio, advantage = jnp.log(jnp.array([1.9, 0.5, 0.7])), jnp.array([1.0, -1.0, -0.9])
      >>> widths = balanced_clip(log_ratio, advantage)  # N(0.8) = 0.8 + 0.72 = 1.52, so that P(1.55) is enough
      >>> print(f"{widths.low[0]:.2f} {widths.high[0]:.2f}")
      0.20 0.55
    """
    checks.floats(log_ratio=log_ratio, advantage=advantage)
    checks.same_shape(log_ratio, "log_ratio", advantage=advantage, valid=valid)
    checks.between_zero_and_one(low=low, max_low=max_low)
    checks.ordered(low=low, max_low=max_low)
    checks.ordered(high=high, max_high=max_high)
    checks.positive(high=high, step=step)
    checks.not_negative(balance=balance)
    checks.finite(max_high=max_high, balance=balance)
    if any(number < 1.0 for _, number in checks.known(high=high)):
        raise ValueError(f"high={high} is below 1: a trust region contains the ratio 1")
    moved = constant(log_ratio)
    there = checks.mask(valid, moved)
    ratio = importance_ratio(jnp.where(there, moved, 0.0))
    for _, number in checks.known(max_high=max_high):
        spacing = float(jnp.finfo(ratio.dtype).eps) * 2.0 ** math.floor(math.log2(number))  # type: ignore[no-untyped-call]
        if any(one < spacing / 2 for _, one in checks.known(step=step)):
            raise ValueError(f"step={step} does not change {ratio.dtype} numbers near max_high={number}: raise it")
    gain = jnp.where(there, constant(advantage), 0.0)
    bounds = (jnp.asarray(x, ratio.dtype) for x in (low, max_low, high, max_high, step, balance))
    least, most = _balanced(ratio, gain.astype(ratio.dtype), *bounds)
    dtype = jnp.result_type(log_ratio)
    return ClipWidths(*(jnp.full(moved.shape, width, dtype) for width in (1.0 - least, most - 1.0)))


@jax.jit
def _balanced(
    ratio: jax.Array,
    gain: jax.Array,
    low: jax.Array,
    max_low: jax.Array,
    high: jax.Array,
    max_high: jax.Array,
    step: jax.Array,
    balance: jax.Array,
) -> tuple[jax.Array, jax.Array]:
    """The bounds of the trust region."""

    def lacks(lowest: jax.Array, highest: jax.Array) -> jax.Array:
        lost = jnp.sum(jnp.maximum(ratio, lowest) * jnp.maximum(-gain, 0.0))
        return jnp.sum(jnp.minimum(ratio, highest) * jnp.maximum(gain, 0.0)) < balance * lost

    unmet = lacks(low, high)
    # Without the `where` the loop would start with a constant, which `shard_map` does not let it replace.
    found = jax.lax.while_loop(
        # A traced step may be too small to change the bound.
        lambda highest: unmet & (highest < max_high) & (highest + step > highest) & lacks(max_low, highest),
        lambda highest: jnp.minimum(highest + step, max_high),
        jnp.where(unmet, high, high),
    )
    return jnp.where(unmet, max_low, low), found
