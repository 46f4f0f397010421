"""A trust region whose width depends on how far the policy has moved."""

from typing import NamedTuple

import jax.numpy as jnp
from jaxtyping import Float, Shaped

from stellaris._core import checks, order_statistics
from stellaris.corrections.ratios import constant
from stellaris.types import Array, JaxArray, Scalar


class ClipWidths(NamedTuple):
    """Half-widths of a trust region for each sample, for `clip` and `clip_high` of a loss; see `adaptive_clip`.

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
