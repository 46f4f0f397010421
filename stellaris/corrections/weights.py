"""Detached weights that correct for the behaviour policy: over a step or a sequence, bounded, masked or soft.

A weight multiplies any loss per sample: `weight * ppo_loss(...)`, or `weight * impala_loss(...)` for the weighted
policy gradient. No gradient flows through it. What a mean divides by, all samples or those that are kept, is left to
the caller, because sources differ in it.
"""

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jaxtyping import Bool, Float

from stellaris._core import checks
from stellaris.corrections.ratios import importance_ratio, saturated
from stellaris.types import Array, JaxArray, Scalar


class BoundedImportanceWeight(NamedTuple):
    """A weight for each sample, and whether the sample counts; see `bounded_importance_weight`.

    Example:
      >>> import jax.numpy as jnp
      >>> found = BoundedImportanceWeight(jnp.array([0.5, 0.0]), jnp.array([True, False]))
      >>> loss = found.weight * jnp.array([2.0, 4.0])
      >>> float(jnp.mean(loss)), float(jnp.sum(loss) / jnp.sum(found.kept))  # the two means in use
      (0.5, 1.0)
    """

    weight: Float[JaxArray, "*batch"]  #: 0 where the sample is not kept.
    kept: Bool[JaxArray, "*batch"]


def bounded_importance_weight(
    log_ratio: Float[Array, "*batch"],
    *,
    low: Float[Array, "*batch"] | Scalar = 0.0,
    high: Float[Array, "*batch"] | Scalar = 2.0,
    outside: str = "clamp",
) -> BoundedImportanceWeight:
    """The importance ratio as a bounded weight without a gradient: `clip(r, low, high)`, or 0 outside of the bounds.

    `r = exp(log_ratio)`. With `outside="clamp"` every sample is kept; with `low=0` that is truncation. With
    `outside="mask"` a sample whose ratio is outside `[low, high]` has the weight 0 and is not kept.

    With either, a log-ratio that is NaN gives the weight NaN and is kept: a policy that has failed shows in the loss,
    instead of learning from fewer and fewer samples. Where padding holds NaN, pass `jnp.where(valid, log_ratio, 0.0)`,
    or `sequence_log_ratio` with `valid`.

    Which ratio is meant is decided by `log_ratio`: that of a step as it is, that of a whole sequence or its geometric
    mean from `sequence_log_ratio`. Numerator and denominator are the caller's as well: `pi / behaviour`, or
    `proximal / behaviour` beside a loss whose own ratio is `pi / proximal`. A loss whose ratio is already
    `pi / behaviour`, such as `ppo_loss` of it, must not be weighted by that ratio again.

    Known by these names, with the bounds and the denominators that their authors or their code take:

    * truncated importance sampling (TIS; Yao et al. 2025): `high=2.0`; of sequences 2 to 8. All valid steps.
    * masked importance sampling (MIS), IcePop (Ring-1T 2025): `outside="mask", low=0.5, high=5.0`. All valid steps, of
      each sequence and then of the sequences.
    * AReaL (Fu et al. 2025): `outside="mask", high=5.0` of `proximal / behaviour`, in `decoupled_ppo_loss`. All valid
      steps, counted before the mask; RLinf divides by those that are kept.
    * rejection by the geometric mean: `.kept` of `low=0.999, high=1.001, outside="mask"`. verl divides by what is kept,
      TRL by all.
    * TOPR (Le Roux et al. 2025), of whole sequences, for `impala_loss`: `low=jnp.where(advantage > 0, 1.0, 0.0),
      high=1.0`; the paper's advantage is a reward of 1 or -1. The steps of each sequence.
    * P3O (2026): `high=effective_sample_fraction(log_ratio, valid=valid)`. All valid steps.
    * Stellaris: `high=global_ratio_cap(...)`.

    Args:
      log_ratio: `[...]` log-probability under the policy in question minus that under the behaviour policy.
      low: least ratio, a number or `[...]`, at least 0.
      high: largest ratio, a number or `[...]`, not below `low`; `math.inf` for no bound.
      outside: `"clamp"` or `"mask"`.

    Returns:
      `BoundedImportanceWeight(weight, kept)`, each `[...]`. Ratios saturate as in `importance_ratio`.

    Raises:
      TypeError: if an array holds integers, or a bound is not a number.
      ValueError: if the shapes differ, a bound is out of its range, or `outside` is neither of its values.

    Source:
      Ionides 2008, Truncated Importance Sampling, whose level grows with the number of samples; a constant is that of
      Espeholt et al. 2018, IMPALA. The names above.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratio = jnp.log(jnp.array([0.25, 1.0, 8.0]))
      >>> print(bounded_importance_weight(log_ratio).weight)
      [0.25 1.   2.  ]
      >>> found = bounded_importance_weight(log_ratio, low=0.5, high=5.0, outside="mask")
      >>> found.weight.tolist(), found.kept.tolist()
      ([0.0, 1.0, 0.0], [False, True, False])
    """
    checks.floats(log_ratio=log_ratio)
    checks.per_sample(log_ratio, "log_ratio", checks.not_negative, low=low, high=high)
    _check_order(low, high)
    if outside not in ("clamp", "mask"):
        raise ValueError(f"outside={outside!r} is neither 'clamp' nor 'mask'")
    ratio = importance_ratio(jax.lax.stop_gradient(log_ratio))
    least, most = (jax.lax.stop_gradient(jnp.asarray(bound, ratio.dtype)) for bound in (low, high))
    if outside == "clamp":
        return BoundedImportanceWeight(jnp.clip(ratio, least, most), jnp.ones(ratio.shape, bool))
    dropped = (ratio < least) | (ratio > most)
    # Clipped all the same, so that a bound that is NaN gives NaN.
    return BoundedImportanceWeight(jnp.where(dropped, 0.0, jnp.clip(ratio, least, most)), jnp.logical_not(dropped))


def vespo_weight(
    log_ratio: Float[Array, "*batch"],
    advantage: Float[Array, "*batch"],
    *,
    power: Scalar = 2.0,
    decay: Scalar = 3.0,
    negative_power: Scalar = 3.0,
    negative_decay: Scalar = 2.0,
) -> Float[JaxArray, "*batch"]:
    """VESPO's soft weight of a sequence, without a gradient: `exp(decay (1 - W)) W^power` with `W = exp(log_ratio)`.

    It is 1 at `W = 1`, largest at `W = power / decay`, and falls smoothly to 0 on both sides, so that nothing is cut
    off. For `impala_loss`. Inert under a global cap: the weight is bounded by itself.

    Args:
      log_ratio: `[...]` of whole sequences: `sequence_log_ratio(log_ratio, valid=valid)`, the sum over their steps.
      advantage: `[...]`; its sign chooses between the two pairs of settings.
      power: where the advantage is not negative, at least 0.
      decay: likewise.
      negative_power: where the advantage is negative, at least 0.
      negative_decay: likewise.

    Returns:
      The weights `[...]`; `W` saturates as in `importance_ratio`, where they are 1e-25 and less by default.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, or a setting is negative or infinite.

    Source:
      Shen et al. 2026, VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training,
      Eq. 20, with its settings; its mean is over all valid steps of the batch.

    Example:
      >>> import jax.numpy as jnp
      >>> weight = vespo_weight(jnp.log(jnp.array([1.0, 3.0, 3.0])), jnp.array([1.0, 1.0, -1.0]))
      >>> [f"{w:.4f}" for w in weight]
      ['1.0000', '0.0223', '0.4945']
    """
    checks.floats(log_ratio=log_ratio, advantage=advantage)
    checks.same_shape(log_ratio, "log_ratio", advantage=advantage)
    settings = {"power": power, "decay": decay, "negative_power": negative_power, "negative_decay": negative_decay}
    checks.not_negative(**settings)
    checks.finite(**settings)
    log_ratio = jax.lax.stop_gradient(saturated(log_ratio))
    negative = jnp.asarray(advantage) < 0
    k = jnp.where(negative, negative_power, power).astype(log_ratio.dtype)
    rate = jnp.where(negative, negative_decay, decay).astype(log_ratio.dtype)
    # As one exponential: the powers alone would overflow.
    return jnp.exp(k * log_ratio + rate * (1.0 - jnp.exp(log_ratio)))


def _check_order(low: Any, high: Any) -> None:
    """Raises a ValueError if the bounds are two known numbers in the wrong order."""
    if jnp.shape(low) == jnp.shape(high) == ():
        numbers = dict(checks.known(low=low, high=high))
        if len(numbers) == 2 and numbers["low"] > numbers["high"]:
            raise ValueError(f"low={low} is above high={high}")
