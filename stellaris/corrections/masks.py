"""Which samples learn at all, and how far: masks and clip widths from how far the policy has moved.

A mask `kept` goes around any loss: `jnp.where(kept, loss, 0.0)`, under which a dropped sample has exactly no gradient,
provided that its log-ratio is a number.
None of these functions has a gradient of its own. Their sources divide by all samples, kept or not.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Shaped

from stellaris._core import checks, order_statistics
from stellaris.types import Array, JaxArray, Scalar, at_least_float32

#: Of `probability_mask`, by divergence: those of the paper's tests of stability.
_BOUNDS = {"tv": 0.15, "kl": 0.05}


def second_moment_mask(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    valid: Shaped[Array, "*batch"] | None = None,
    *,
    bound: Scalar = 0.04,
) -> Bool[JaxArray, "*batch"]:
    """M2PO's mask: drops the largest log-ratios until the mean square of those that remain is at most `bound`.

    Only samples that move outward are looked at, and dropped: those with `advantage > 0` and a ratio above 1, or
    `advantage < 0` and a ratio below 1. The others are kept. The paper's loss is `ppo_loss(..., clip=math.inf)` of what
    is kept, divided by the number of all valid samples.

    Args:
      log_ratio: `[...]`, a whole batch: log-probability under the policy that learns minus that under the behaviour
        policy.
      advantage: `[...]`.
      valid: `[...]`, False for samples that do not count; all by default.
      bound: of the second moment, at least 0.

    Returns:
      `[...]`, False for what is dropped, and for samples that are not valid. Samples of equal log-ratios (but for the
      sign) are kept or dropped together.

    Raises:
      TypeError: if an array holds integers, or `bound` is not a number.
      ValueError: if the shapes differ, or `bound` is negative.

    Source:
      Zheng et al. 2025, Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?,
      Algorithm 1 and Eq. 5.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio, advantage = jnp.array([0.1, 0.9, -0.9, 0.2]), jnp.ones(4)
      >>> second_moment_mask(log_ratio, advantage).tolist()  # the third moves back, whatever its distance
      [True, False, True, True]
    """
    checks.floats(log_ratio=log_ratio, advantage=advantage)
    checks.same_shape(log_ratio, "log_ratio", advantage=advantage, valid=valid)
    checks.not_negative(bound=bound)
    there = checks.mask(valid, log_ratio)
    kept: jax.Array = _of_small_squares(_constant(log_ratio), jnp.asarray(advantage), there, bound)
    return kept


@jax.jit
def _of_small_squares(log_ratio: jax.Array, advantage: jax.Array, there: jax.Array, bound: Any) -> jax.Array:
    outward = there & (jnp.sign(log_ratio) * jnp.sign(advantage).astype(log_ratio.dtype) > 0)
    square = jnp.square(log_ratio)

    def small_enough(largest: jax.Array) -> jax.Array:
        """Whether the squares up to this one have a mean within the bound. It grows with the largest."""
        kept = outward & (square <= largest)
        many = jnp.sum(kept).astype(square.dtype)
        return jnp.sum(jnp.where(kept, square, 0.0)) <= jnp.where(many > 0, bound * jnp.maximum(many, 1.0), 0.0)

    return there & (~outward | (square <= order_statistics.largest(small_enough, (), square.dtype)))


def probability_mask(
    log_prob: Float[Array, "*batch"],
    behaviour_log_prob: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    bound: Scalar | None = None,
    divergence: str = "tv",
) -> Bool[JaxArray, "*batch"]:
    """DPPO's mask of discrete actions: drops what has moved outward by more than a distance of *probabilities*.

    With `p = exp(log_prob)` and `q = exp(behaviour_log_prob)` a sample is dropped if `D > bound` and either `A > 0` and
    `p > q`, or `A < 0` and `p < q`. The distance `D` is that of the two Bernoulli distributions of the action
    taken: `|p - q|` (`"tv"`), or `q log(q / p) + (1 - q) log((1 - q) / (1 - p))` (`"kl"`). A trust region of ratios is
    too narrow for rare actions, and too wide for frequent ones.

    Args:
      log_prob: `[...]` log-probability under the policy that learns.
      behaviour_log_prob: `[...]` the same under the policy that chose the actions. A policy recomputed at the start of
        the batch is not to be taken for it: with that, the paper's runs collapse.
      advantage: `[...]`.
      bound: largest distance, positive. By default that of the paper's tests of stability, 0.15 for `"tv"` and 0.05 for
        `"kl"`; its large runs take 0.2 for the former.
      divergence: `"tv"` or `"kl"`.

    Returns:
      `[...]`, False for what is dropped. The paper's loss of what is kept is `truncated_policy_gradient_loss`, with a
      cap of 5 or none.

    Raises:
      TypeError: if an array holds integers, or `bound` is not a number.
      ValueError: if the shapes differ, `bound` is not positive, or `divergence` is neither of its values.

    Source:
      Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning (DPPO), Eq. 12 to 16; its mean is over
      all samples, dropped or not.

    Example:
      >>> import jax.numpy as jnp
      >>> now, before = jnp.log(jnp.array([0.02, 0.9, 0.9])), jnp.log(jnp.array([0.01, 0.5, 0.5]))
      >>> probability_mask(now, before, jnp.array([1.0, 1.0, -1.0])).tolist()  # twice as likely, and still rare
      [True, False, True]
    """
    checks.floats(log_prob=log_prob, behaviour_log_prob=behaviour_log_prob, advantage=advantage)
    checks.same_shape(log_prob, "log_prob", behaviour_log_prob=behaviour_log_prob, advantage=advantage)
    checks.positive(**checks.given(bound=bound))
    if divergence not in _BOUNDS:
        raise ValueError(f"divergence={divergence!r} is neither 'tv' nor 'kl'")
    bound = _BOUNDS[divergence] if bound is None else bound
    now, before = _constant(log_prob), _constant(behaviour_log_prob)
    distance = jnp.abs(jnp.exp(now) - jnp.exp(before)) if divergence == "tv" else _bernoulli_kl(before, now)
    sign = jnp.asarray(advantage)
    outward = ((sign > 0) & (now > before)) | ((sign < 0) & (now < before))
    return ~(outward & (distance > bound))


def off_policy_sequence_mask(
    log_ratio: Float[Array, "*batch"], advantage: Float[Array, "*batch"], *, bound: Scalar
) -> Bool[JaxArray, "*batch"]:
    """Off-policy sequence masking (OPSM): drops bad sequences that the policy that learns has moved away from.

    A sequence is dropped if its advantage is negative and `mean_t(-log_ratio_t) > bound`: an estimate, from its own
    actions, of the divergence from the behaviour policy.

    Args:
      log_ratio: `[...]` of whole sequences: `sequence_log_ratio(log_ratio, valid, over="mean")`.
      advantage: `[...]` of each sequence.
      bound: of the mean, in nats a step, at least 0. In use are 1e-4 (slime) and 0.5 (TRL): it depends on what
        `log_ratio` contains, an older policy alone, or the difference between two inference engines as well.

    Returns:
      `[...]`, False for sequences that are dropped.

    Raises:
      TypeError: if an array holds integers, or `bound` is not a number.
      ValueError: if the shapes differ, or `bound` is negative.

    Source:
      DeepSeek-AI 2025, DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models, Eq. 9. Its mean is over the
      steps of each sequence, then over all sequences, dropped or not; its penalty on the divergence is not masked.

    Example:
      >>> import jax.numpy as jnp
      >>> off_policy_sequence_mask(jnp.array([-0.4, -0.4, 0.4]), jnp.array([1.0, -1.0, -1.0]), bound=0.3).tolist()
      [True, False, True]
    """
    checks.floats(log_ratio=log_ratio, advantage=advantage)
    checks.same_shape(log_ratio, "log_ratio", advantage=advantage)
    checks.not_negative(bound=bound)
    return ~((jnp.asarray(advantage) < 0) & (-_constant(log_ratio) > bound))


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
    valid: Shaped[Array, "*batch"] | None = None,
    *,
    clip: Scalar = 0.2,
    clip_high: Scalar | None = None,
    quantile: Scalar = 0.9,
) -> ClipWidths:
    """A staleness-adaptive trust region (SAT): narrower for the samples that have moved the most, on their side alone.

    With `x = |log_ratio|` and `q` its quantile over the batch, `c = min(2 / (1 + (x / q)^2), 1)`: 1 for all but the
    largest. A sample with a ratio above 1 has the widths `(clip, c * clip_high)`, any other `(c * clip, clip_high)`.
    So the way back to the behaviour policy is never narrowed. Where `q` is 0, as in a batch that is nearly all fresh,
    whatever has moved has the width 0 on its side: the limit of ever smaller quantiles.

    Args:
      log_ratio: `[...]`, a whole batch: log-probability under the policy that learns minus that under the behaviour
        policy; of steps, or of sequences.
      valid: `[...]`, False for samples that do not count; all by default.
      clip: half-width below 1, positive.
      clip_high: half-width above 1; `clip` by default.
      quantile: in [0, 1].

    Returns:
      `ClipWidths(low, high)`, each `[...]`, without a gradient: `ppo_loss(..., clip=found.low, clip_high=found.high)`.

    Raises:
      TypeError: if `log_ratio` holds integers, or a setting is not a number.
      ValueError: if the shapes differ, or a setting is out of its range.

    Source:
      Stale but Stable: Staleness-Adaptive Trust Regions for Stabilizing Asynchronous Reinforcement Learning, arXiv
      2607.18722 (2026): the quantile, the side and a Hill function of exponent 2. How the paper normalises that
      function could not be verified; here it is continuous, and 1 at the quantile.

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
    moved = _constant(log_ratio)
    distance = jnp.abs(moved)
    (threshold,) = order_statistics.quantiles(distance, checks.mask(valid, distance), jnp.asarray(quantile)[None])
    # The inverse of the quotient, at most 1, which does not overflow: infinitely far it is 0.
    beyond = distance > threshold
    inverse = jnp.where(beyond, threshold, 1.0) / jnp.where(beyond, distance, 1.0)
    share = 2.0 * jnp.square(inverse) / (1.0 + jnp.square(inverse))
    # An infinite width stays so: times a share of 0 it would not be a number.
    low, high = (
        jnp.where(narrowed & jnp.isfinite(width), width * share, width)
        for width, narrowed in ((clip, moved <= 0), (clip if clip_high is None else clip_high, moved > 0))
    )
    dtype = jnp.result_type(log_ratio)
    return ClipWidths(low.astype(dtype), high.astype(dtype))


def _constant(x: Array) -> jax.Array:
    """Without a gradient, in float32 at least: squares and differences of narrower numbers lose their digits."""
    return jax.lax.stop_gradient(jnp.asarray(x, at_least_float32(jnp.result_type(x))))


def _bernoulli_kl(log_q: jax.Array, log_p: jax.Array) -> jax.Array:
    """`KL(q || p)` of two distributions over an action and all others, from the action's log-probabilities."""
    # No probability is 0 or 1, by less than a distance can tell: logarithms and their differences stay finite.
    log_q, log_p = jnp.maximum(log_q, -80.0), jnp.maximum(log_p, -80.0)
    least = jnp.finfo(log_q.dtype).epsneg  # type: ignore[no-untyped-call]
    other_q, other_p = (jnp.maximum(1.0 - jnp.exp(x), least) for x in (log_q, log_p))
    return jnp.exp(log_q) * (log_q - log_p) + other_q * jnp.log(other_q / other_p)
