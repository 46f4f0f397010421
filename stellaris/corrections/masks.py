"""Masks that drop the samples on which the policy has moved too far.

Apply a mask to any loss by `jnp.where(kept, loss, 0.0)`: a dropped sample then has exactly zero gradient, if its
log-ratio is not NaN. No gradient flows through the masks. The papers divide the loss by the number of all samples,
dropped or not.
"""

from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float, Int, Shaped

from stellaris._core import checks, order_statistics
from stellaris.corrections.ratios import check_sequences, constant, outward, saturated, step_totals
from stellaris.types import Array, JaxArray, Scalar

#: Default `max_distance` of `probability_mask` for each divergence, from the paper's stability tests.
_MAX_DISTANCE = {"tv": 0.15, "kl": 0.05}


def second_moment_mask(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    valid: Shaped[Array, "*batch"] | None = None,
    max_second_moment: Scalar = 0.04,
) -> Bool[JaxArray, "*batch"]:
    """M2PO's mask: drops the largest log-ratios until the mean square of the rest is at most a bound.

    Only samples that move outward count and can be dropped: samples with `advantage > 0` and a ratio above 1, or with
    `advantage < 0` and a ratio below 1. The paper sums `ppo_loss(..., clip=math.inf)` over the kept samples and divides
    by the number of all valid samples.

    Args:
      log_ratio: `[...]`, a whole batch: log-probability under the policy that learns minus that under the behaviour
        policy.
      advantage: `[...]`.
      valid: `[...]`, False for samples to ignore; all count by default.
      max_second_moment: bound of the mean square, at least 0.

    Returns:
      `[...]`, False for dropped and for invalid samples. Samples whose log-ratios have the same magnitude are kept or
      dropped together.

    Raises:
      TypeError: if an array holds integers, or `max_second_moment` is not a number.
      ValueError: if the shapes differ, or `max_second_moment` is negative.

    Source:
      Zheng et al. 2025, Prosperity before Collapse: How Far Can Off-Policy RL Reach with Stale Data on LLMs?,
      Algorithm 1 and Eq. 5. The authors' code does not mask: it clips all ratios to a region that depends on the batch,
      see `second_moment_clip`. AReaL's version of the mask compares the proximal policy with the behaviour policy,
      ignores the advantage, and always keeps one sample.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio, advantage = jnp.array([0.1, 0.9, -0.9, 0.2]), jnp.ones(4)
      >>> second_moment_mask(log_ratio, advantage).tolist()  # the third moves back, so its distance does not matter
      [True, False, True, True]
    """
    checks.floats(log_ratio=log_ratio, advantage=advantage)
    checks.same_shape(log_ratio, "log_ratio", advantage=advantage, valid=valid)
    checks.not_negative(max_second_moment=max_second_moment)
    there = checks.mask(valid, log_ratio)
    kept: jax.Array = _of_small_squares(constant(log_ratio), jnp.asarray(advantage), there, max_second_moment)
    return kept


@jax.jit
def _of_small_squares(log_ratio: jax.Array, advantage: jax.Array, there: jax.Array, most: Any) -> jax.Array:
    moved = there & outward(log_ratio, advantage)
    square = jnp.square(log_ratio)

    def small_enough(largest: jax.Array) -> jax.Array:
        """Whether the mean of all squares that are at most `largest` is within the bound."""
        kept = moved & (square <= largest)
        many = jnp.sum(kept).astype(square.dtype)
        return jnp.sum(jnp.where(kept, square, 0.0)) <= jnp.where(many > 0, most * jnp.maximum(many, 1.0), 0.0)

    return there & (~moved | (square <= order_statistics.largest(small_enough, (), square.dtype)))


def probability_mask(
    log_prob: Float[Array, "*batch"],
    behaviour_log_prob: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    max_distance: Scalar | None = None,
    divergence: str = "tv",
) -> Bool[JaxArray, "*batch"]:
    """DPPO's mask for discrete actions: drops samples that moved outward by more than a distance in *probability*.

    With `p = exp(log_prob)` and `q = exp(behaviour_log_prob)` a sample is dropped if `D > max_distance` and either
    `A > 0` and `p > q`, or `A < 0` and `p < q`. The distance `D` is between the Bernoulli distributions of the action
    taken: `|p - q|` (`"tv"`), or `q log(q / p) + (1 - q) log((1 - q) / (1 - p))` (`"kl"`). A trust region of ratios is
    too narrow for rare actions, and too wide for frequent ones.

    Args:
      log_prob: `[...]` log-probability under the policy that learns.
      behaviour_log_prob: `[...]` log-probability under the policy that chose the actions. Do not recompute it at the
        start of the batch: with recomputed values the paper's runs collapse.
      advantage: `[...]`.
      max_distance: the largest distance kept, positive. By default 0.15 for `"tv"` and 0.05 for `"kl"`, as in
        the paper's stability tests; its large runs take 0.2 for `"tv"`.
      divergence: `"tv"` or `"kl"`.

    Returns:
      `[...]`, False for dropped samples. The paper's loss is `truncated_policy_gradient_loss`, with a cap of 5 or
      without one.

    Raises:
      TypeError: if an array holds integers, or `max_distance` is not a number.
      ValueError: if the shapes differ, `max_distance` is not positive, or `divergence` is unknown.

    Source:
      Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning (DPPO), Eq. 12 to 16; it averages over
      all samples, dropped or not.

    Example:
      >>> import jax.numpy as jnp
      >>> now, before = jnp.log(jnp.array([0.02, 0.9, 0.9])), jnp.log(jnp.array([0.01, 0.5, 0.5]))
      >>> probability_mask(now, before, jnp.array([1.0, 1.0, -1.0])).tolist()  # the first is still rare
      [True, False, True]
    """
    checks.floats(log_prob=log_prob, behaviour_log_prob=behaviour_log_prob, advantage=advantage)
    checks.same_shape(log_prob, "log_prob", behaviour_log_prob=behaviour_log_prob, advantage=advantage)
    checks.positive(**checks.given(max_distance=max_distance))
    if divergence not in _MAX_DISTANCE:
        raise ValueError(f"divergence={divergence!r} is neither 'tv' nor 'kl'")
    most = _MAX_DISTANCE[divergence] if max_distance is None else max_distance
    now, before = constant(log_prob), constant(behaviour_log_prob)
    distance = jnp.abs(jnp.exp(now) - jnp.exp(before)) if divergence == "tv" else _bernoulli_kl(before, now)
    # Not by `outward(now - before, ...)`: the difference is NaN if both are minus infinity.
    sign = jnp.asarray(advantage)
    moved = ((sign > 0) & (now > before)) | ((sign < 0) & (now < before))
    return ~(moved & (distance > most))


def off_policy_sequence_mask(
    log_ratio: Float[Array, "*batch"], advantage: Float[Array, "*batch"], *, max_divergence: Scalar
) -> Bool[JaxArray, "*batch"]:
    """Off-policy sequence masking (OPSM): drops sequences of negative advantage that have become unlikely.

    A sequence is dropped if its advantage is negative and `mean_t(-log_ratio_t) > max_divergence`. The mean estimates
    `KL(mu || pi)` from the sequence's actions, where `mu` is the behaviour policy and `pi` the policy that learns.

    Args:
      log_ratio: `[...]` of whole sequences: `sequence_log_ratio(log_ratio, valid=valid, over="mean")`.
      advantage: `[...]` of each sequence.
      max_divergence: bound of that mean, in nats per step, at least 0: 1e-4 in slime, 0.5 in TRL. The right bound
        depends on whether `log_ratio` compares with an older policy only, or also with another inference engine.

    Returns:
      `[...]`, False for sequences that are dropped.

    Raises:
      TypeError: if an array holds integers, or `max_divergence` is not a number.
      ValueError: if the shapes differ, or `max_divergence` is negative.

    Source:
      DeepSeek-AI 2025, DeepSeek-V3.2: Pushing the Frontier of Open Large Language Models, Eq. 9. It averages over
      the steps of each sequence, then over all sequences, dropped or not; its divergence penalty is not masked.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio, advantage = jnp.array([-0.4, -0.4, 0.4]), jnp.array([1.0, -1.0, -1.0])
      >>> off_policy_sequence_mask(log_ratio, advantage, max_divergence=0.3).tolist()
      [True, False, True]
    """
    checks.floats(log_ratio=log_ratio, advantage=advantage)
    checks.same_shape(log_ratio, "log_ratio", advantage=advantage)
    checks.not_negative(max_divergence=max_divergence)
    return ~((jnp.asarray(advantage) < 0) & (-constant(log_ratio) > max_divergence))


def bidirectional_kl_mask(
    log_prob: Float[Array, "*batch"], behaviour_log_prob: Float[Array, "*batch"], *, max_divergence: Scalar = 2.0
) -> Bool[JaxArray, "*batch"]:
    """KPop's mask for discrete actions: drops samples whose probability has changed much, in either direction.

    With `p = exp(log_prob)` and `q = exp(behaviour_log_prob)` a sample is dropped if
    `max(KL(p || q), KL(q || p)) > max_divergence`, where `KL` is between the Bernoulli distributions of the action
    taken against all others, `KL(p || q) = p log(p / q) + (1 - p) log((1 - p) / (1 - q))`. Unlike `probability_mask`,
    the mask does not depend on the advantage.

    Args:
      log_prob: `[...]` log-probability under the proximal policy, recomputed by the trainer, or under the policy that
        learns.
      behaviour_log_prob: `[...]` log-probability under the policy that chose the actions, from the inference engine.
      max_divergence: the largest divergence kept, in nats, at least 0; 2.0 in AReaL's example.

    Returns:
      `[...]`, False for dropped samples.

    Raises:
      TypeError: if an array holds integers, or `max_divergence` is not a number.
      ValueError: if the shapes differ, or `max_divergence` is negative.

    Source:
      Guo et al. 2026, KPop, a blog post of the Ring team, which we read as AReaL has it (`binary_kl`). AReaL limits
      probabilities to [1e-8, 1 - 1e-8]. Here `1 - p` is at least the spacing of floats below 1, because 1 - 1e-8 is 1
      in float32.

    Example:
      >>> import jax.numpy as jnp
      >>> now, before = jnp.log(jnp.array([0.5, 0.99, 0.01])), jnp.log(jnp.array([0.4, 0.01, 0.99]))
      >>> bidirectional_kl_mask(now, before).tolist()
      [True, False, False]
    """
    checks.floats(log_prob=log_prob, behaviour_log_prob=behaviour_log_prob)
    checks.same_shape(log_prob, "log_prob", behaviour_log_prob=behaviour_log_prob)
    checks.not_negative(max_divergence=max_divergence)
    now, before = constant(log_prob), constant(behaviour_log_prob)
    return ~(jnp.maximum(_bernoulli_kl(now, before), _bernoulli_kl(before, now)) > max_divergence)


def total_variation_mask(
    log_ratio: Float[Array, "T *batch"],
    advantage: Float[Array, "T *batch"],
    *,
    max_distance: Scalar,
    valid: Shaped[Array, "T *batch"] | None = None,
    segment: Int[Array, "T *batch"] | None = None,
) -> Bool[JaxArray, "T *batch"]:
    """VACO's mask: in sequences too far from the behaviour policy, drops the steps that would move them further.

    A step is dropped if it moves outward, as in `second_moment_mask`, and `mean_t |r_t - 1| > max_distance` over the
    valid steps of its sequence, `r = exp(log_ratio)`. For actions of the behaviour policy that mean estimates twice the
    total variation distance between the policies.

    Args:
      log_ratio: `[T, ...]`, time-major; columns are sequences. Log-probability under the policy that learns, or under a
        recent one, minus that under the behaviour policy.
      advantage: `[T, ...]`.
      max_distance: bound of the mean, at least 0.
      valid: `[T, ...]`, False for padding and for prompts; by default all steps are valid.
      segment: `[T, ...]` integers from 0 to T - 1, for packed sequences, as in `sequence_log_ratio`.

    Returns:
      `[T, ...]`, False for dropped and for invalid steps.

    Raises:
      TypeError: if an array of floats holds integers, `segment` does not, or `max_distance` is not a number.
      ValueError: if the shapes differ, the time axis is missing, or `max_distance` is negative.

    Source:
      Honari et al. 2026, Align and Filter: Improving Performance in Asynchronous On-Policy RL (VACO), in the form that
      one of its authors gave it for language models in open-instruct (`rho_mask_tv_divergence`), which compares the
      recomputed proximal policy with the inference engine and clips log-ratios to ±10. We read that code, not the
      paper; the paper's realignment of advantages is `vtrace`.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio = jnp.log(jnp.array([[1.5, 1.0], [0.5, 1.1]]))  # mean distances: 0.5 and 0.05
      >>> total_variation_mask(log_ratio, jnp.ones((2, 2)), max_distance=0.2).tolist()
      [[False, True], [True, True]]
    """
    segment = check_sequences("log_ratio", log_ratio, valid, segment)
    checks.floats(advantage=advantage)
    checks.same_shape(log_ratio, "log_ratio", advantage=advantage)
    checks.not_negative(max_distance=max_distance)
    moved = constant(log_ratio)
    there = checks.mask(valid, moved)
    distance = jnp.where(there, jnp.abs(jnp.expm1(saturated(moved))), 0.0)
    steps = jnp.maximum(step_totals(there.astype(distance.dtype), segment), 1.0)
    return there & ~(outward(moved, advantage) & (step_totals(distance, segment) / steps > max_distance))


def _bernoulli_kl(log_q: jax.Array, log_p: jax.Array) -> jax.Array:
    """`KL(q || p)` of the Bernoulli distributions of one action against all others, from their log-probabilities."""
    # Clips both probabilities away from 0 and 1, so that the logarithms are finite. The clipping moves a probability by
    # at most the spacing of floats just below 1.
    log_q, log_p = jnp.maximum(log_q, -80.0), jnp.maximum(log_p, -80.0)
    least = jnp.finfo(log_q.dtype).epsneg  # type: ignore[no-untyped-call]
    other_q, other_p = (jnp.maximum(1.0 - jnp.exp(x), least) for x in (log_q, log_p))
    return jnp.exp(log_q) * (log_q - log_p) + other_q * jnp.log(other_q / other_p)
