"""The effective sample fraction of importance weights, and steps that shorten as it falls."""

from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Shaped

from stellaris._core import checks
from stellaris.types import Array, JaxArray, Scalar, Tree, at_least_float32, largest


def effective_sample_fraction(
    log_ratio: Float[Array, "*batch"], *, valid: Shaped[Array, "*batch"] | None = None
) -> Float[JaxArray, ""]:
    """The effective sample size divided by the number of samples: `(sum w)^2 / (n sum w^2)`, `w = exp(log_ratio)`.

    The fraction is 1 for equal weights and `1 / n` if one weight dominates. The weights are unbounded and never
    overflow, because each weight is divided by the largest.

    P3O uses the fraction as a cap on the importance weight. Its loss is
    `bounded_importance_weight(log_ratio, high=fraction).weight * impala_loss(...)` plus a penalty,
    `(1 - fraction) * KL(pi || mu)`. An unbiased estimate of that divergence, for actions sampled from `mu`, is
    `importance_ratio(log_ratio) * approximate_kl(-log_ratio)`. The authors' code omits the ratio, which is correct only
    for actions sampled from `pi`.

    Args:
      log_ratio: `[...]` log-probability under the policy that learns minus that under the behaviour policy: one number
        for each step or, from `sequence_log_ratio`, for each sequence.
      valid: `[...]`, False for samples to ignore; all count by default.

    Returns:
      A scalar in (0, 1], without a gradient; 0 if no sample is valid or every weight is 0.

    Raises:
      TypeError: if `log_ratio` holds integers.
      ValueError: if the shapes differ.

    Source:
      Kong 1992, A Note on Importance Sampling using Standardized Weights; P3O (arXiv 2605.12380, 2026), which computes
      the fraction over the steps of a minibatch.

    Example:
      >>> import jax.numpy as jnp
      >>> print(effective_sample_fraction(jnp.log(jnp.array([1.0, 1.0, 2.0]))).round(4))
      0.8889
    """
    checks.floats(log_ratio=log_ratio)
    checks.same_shape(log_ratio, "log_ratio", valid=valid)
    wide = jnp.asarray(log_ratio, at_least_float32(jnp.result_type(log_ratio)))
    there = checks.mask(valid, wide)
    # Infinite log-weights become the largest float: they count as equal, and outweigh all others.
    wide = jnp.minimum(wide, largest(wide.dtype))
    log_weight = jax.lax.stop_gradient(jnp.where(there, wide, -jnp.inf))
    samples = jnp.sum(there).astype(wide.dtype)
    # Weights are taken relative to the largest, so that neither a weight nor its square overflows.
    top = jnp.max(log_weight, initial=-jnp.inf)
    weight = jnp.exp(log_weight - jnp.where(jnp.isfinite(top), top, 0.0))
    squares = samples * jnp.sum(jnp.square(weight))
    fraction = jnp.square(jnp.sum(weight)) / jnp.where(squares > 0, squares, 1.0)
    return jnp.minimum(fraction, 1.0)  # rounding may exceed 1


def scale_by_effective_samples(base: Scalar = 1.0) -> optax.GradientTransformationExtraArgs:
    """Scales an optimizer's step by `sqrt(min(fraction / base, 1))`: fewer effective samples give a shorter step.

    In a chain, place it *after* `optax.scale_by_adam`: like `scale_by_staleness`, it scales the learning rate.

    Args:
      base: the effective sample fraction below which steps shorten, in (0, 1]. Use 1, or the fraction measured on
        fresh data.

    Returns:
      A transformation with `update(updates, state, params, effective_sample_fraction=...)`.

    Raises:
      ValueError: if `base` lies outside (0, 1].

    Source:
      Huang et al. 2026, Stable Asynchrony: Variance-Controlled Off-Policy RL for LLMs (VCPO), with the fraction of
      unbounded sequence ratios, and a base of 1, or 0.55 for multi-turn tasks.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = optax.chain(optax.scale_by_adam(), scale_by_effective_samples(), optax.scale(-0.1))
      >>> params = jnp.zeros(1)
      >>> step, _ = optimizer.update(jnp.ones(1), optimizer.init(params), params, effective_sample_fraction=0.25)
      >>> print(step.round(4))
      [-0.05]
    """
    checks.positive(base=base)
    checks.between_zero_and_one(base=base)

    def update(
        updates: Tree, state: optax.EmptyState, params: Tree = None, *, effective_sample_fraction: Any, **extra: Any
    ) -> tuple[Tree, optax.EmptyState]:
        del params, extra
        factor = jnp.sqrt(jnp.clip(jnp.asarray(effective_sample_fraction, float) / base, 0.0, 1.0))
        return jax.tree.map(lambda u: u * factor.astype(u.dtype), updates), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
