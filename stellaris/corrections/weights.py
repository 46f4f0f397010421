"""Detached weights that correct for the behaviour policy, per step or per sequence: bounded, masked or soft.

A weight multiplies any loss per sample: `weight * ppo_loss(...)`, or `weight * impala_loss(...)` for the weighted
policy gradient. No gradient flows through it. The caller chooses whether a mean divides by the number of all samples
or of the kept samples, because the sources differ.
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

    def __mul__(self, other: Any) -> Any:
        """Raises a TypeError, because the pair is not an array.

        Raises:
          TypeError: always.
        """
        raise TypeError("BoundedImportanceWeight holds two arrays: multiply by its field, found.weight * x")

    def __rmul__(self, other: Any) -> Any:
        """Raises a TypeError, as `__mul__` does."""
        return self * other

    def __array_ufunc__(self, *_: Any, **__: Any) -> Any:
        """Raises a TypeError, where NumPy would multiply both arrays."""
        return self * None


def bounded_importance_weight(
    log_ratio: Float[Array, "*batch"],
    *,
    low: Float[Array, "*batch"] | Scalar = 0.0,
    high: Float[Array, "*batch"] | Scalar = 2.0,
    outside: str = "clamp",
) -> BoundedImportanceWeight:
    """The importance ratio as a bounded weight without a gradient: `clip(r, low, high)`, or 0 outside of the bounds.

    `r = exp(log_ratio)`. With `outside="clamp"` every sample is kept; with `low=0` this is truncation. With
    `outside="mask"` a sample whose ratio is outside `[low, high]` has weight 0 and is not kept.

    In both cases a NaN log-ratio gives a NaN weight and is kept, so that a diverged policy shows in the loss instead of
    learning from fewer and fewer samples. If padding holds NaN, pass `jnp.where(valid, log_ratio, 0.0)`, or
    `sequence_log_ratio` with `valid`.

    The argument `log_ratio` decides which ratio becomes the weight: the ratio of a step or, from `sequence_log_ratio`,
    the ratio of a whole sequence or its geometric mean. Use `pi / behaviour`, or `proximal / behaviour` for a loss
    whose ratio is `pi / proximal`. Do not weight a loss that already contains the ratio `pi / behaviour`, such as
    `ppo_loss`, by that ratio again.

    The literature names these settings. Each entry but the last ends with the samples that its authors or their code
    average over:

    * truncated importance sampling (TIS; Yao et al. 2025): `high=2.0`; for sequences 2 to 8. All valid steps.
    * masked importance sampling (MIS), IcePop (Ring-1T 2025): `outside="mask", low=0.5, high=5.0`. All valid steps of
      each sequence, then the sequences. verl's `k1` bounds apply to the inverse ratio: for its `"low_high"` pass
      `low=1 / high, high=1 / low`.
    * AReaL (Fu et al. 2025): `outside="mask", high=5.0` of `proximal / behaviour`, in `decoupled_ppo_loss`. All valid
      steps, kept or not; RLinf divides by the kept ones.
    * rejection by the geometric mean: `.kept` of `low=0.999, high=1.001, outside="mask"`. verl divides by the kept
      steps, TRL by all.
    * TOPR (Le Roux et al. 2025), on whole sequences, for `impala_loss`: `low=jnp.where(advantage > 0, 1.0, 0.0),
      high=1.0`; the paper's advantage is a reward of 1 or -1. The steps of each sequence.
    * P3O (2026): `high=effective_sample_fraction(log_ratio, valid=valid)`. All valid steps.
    * Stellaris: `high=global_ratio_cap(...)`.

    Args:
      log_ratio: `[...]` log-probability under the policy in the numerator minus that under the behaviour policy.
      low: smallest ratio, a number or `[...]`, at least 0.
      high: largest ratio, a number or `[...]`, not below `low`; `math.inf` for no bound.
      outside: `"clamp"` or `"mask"`.

    Returns:
      `BoundedImportanceWeight(weight, kept)`, each `[...]`. Ratios saturate as in `importance_ratio`.

    Raises:
      TypeError: if an array holds integers, or a bound is not a number.
      ValueError: if the shapes differ, a bound is out of range, or `outside` is unknown.

    Source:
      Ionides 2008, Truncated Importance Sampling, whose level grows with the number of samples; Espeholt et al. 2018,
      IMPALA, for a constant; and the sources named above.

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
    checks.ordered(low=low, high=high)
    if outside not in ("clamp", "mask"):
        raise ValueError(f"outside={outside!r} is neither 'clamp' nor 'mask'")
    ratio = importance_ratio(jax.lax.stop_gradient(log_ratio))
    least, most = (jax.lax.stop_gradient(jnp.asarray(bound, ratio.dtype)) for bound in (low, high))
    if outside == "clamp":
        return BoundedImportanceWeight(jnp.clip(ratio, least, most), jnp.ones(ratio.shape, bool))
    dropped = (ratio < least) | (ratio > most)
    # Kept ratios are clipped as well, so that a NaN bound gives a NaN weight.
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

    The weight is 1 at `W = 1`, largest at `W = power / decay`, and falls smoothly to 0 on both sides, without a
    cut-off. Use it with `impala_loss`. It needs no global cap, because it is bounded.

    Args:
      log_ratio: `[...]` of whole sequences: `sequence_log_ratio(log_ratio, valid=valid)`, the sum over their steps.
      advantage: `[...]`; its sign chooses between the two pairs of settings.
      power: exponent where the advantage is not negative, at least 0.
      decay: decay where the advantage is not negative, at least 0.
      negative_power: exponent where the advantage is negative, at least 0.
      negative_decay: decay where the advantage is negative, at least 0.

    Returns:
      The weights `[...]`. `W` saturates as in `importance_ratio`; saturated, the default weights are below 2e-25.

    Raises:
      TypeError: if an array holds integers, or a setting is not a number.
      ValueError: if the shapes differ, or a setting is negative or infinite.

    Source:
      Shen et al. 2026, VESPO: Variational Sequence-Level Soft Policy Optimization for Stable Off-Policy LLM Training,
      Eq. 20, with its settings; it averages over all valid steps of the batch.

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
    # One exponential, because the powers alone would overflow.
    return jnp.exp(k * log_ratio + rate * (1.0 - jnp.exp(log_ratio)))
