"""Importance ratios and Stellaris' global truncation: pure, per sample."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float

from stellaris import checks
from stellaris.types import Array, Scalar

#: Log-ratios saturate here: `exp(30) = 1e13` times an advantage of 1e8 is still finite in float32.
MAX_LOG_RATIO = 30.0


def importance_ratio(log_ratio: Float[Array, "*batch"]) -> Float[Array, "*batch"]:
    """`pi(a|s) / mu(a|s) = exp(log_ratio)`, saturating at `exp(±30)` so that no loss overflows.

    Args:
      log_ratio: `[...]` log-probability under the policy minus that under the behaviour policy.

    Returns:
      The ratios `[...]`; beyond saturation they are constant and carry no gradient. An action of probability zero under
      the policy (a log-ratio of minus infinity) thus has the ratio `exp(-30)`, 1e-13.

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
    return jnp.exp(jnp.clip(log_ratio, -MAX_LOG_RATIO, MAX_LOG_RATIO))


def global_ratio_cap(log_ratios: Float[Array, "V *batch"], *, rho: Scalar = 1.0) -> Float[Array, "*batch"]:
    """The truncation level that all concurrently held policies agree on, sample by sample.

    `cap = max(min_j r_j, rho)` with `r_j = pi_j(a|s) / mu(a|s)` over the `V` policies that learners hold now.

    Args:
      log_ratios: `[V, ...]` of `log(pi_j / mu)`; the learner's own policy is one of them.
      rho: truncation level, at least 1; `math.inf` truncates nothing. With one policy held (`V = 1`) nothing is
        truncated either.

    Returns:
      The caps `[...]`, at least `rho`. No gradient flows through them.

    Raises:
      TypeError: if `log_ratios` holds integers.
      ValueError: if `log_ratios` has no policy axis or no policy, or `rho` is below 1 or not a number.

    Source:
      Stellaris (SC 2024), global importance-sampling truncation.

    Example:
      Three policies, two samples. All three moved towards the first sample's action, so it is allowed up to the
      least of their ratios; they disagree on the second, so it is truncated to rho:

      >>> import jax.numpy as jnp
      >>> log_ratios = jnp.log(jnp.array([[1.5, 0.5], [2.0, 3.0], [4.0, 2.0]]))
      >>> global_ratio_cap(log_ratios).round(4).tolist()
      [1.5, 1.0]
    """
    check_rho(rho)
    checks.floats(log_ratios=log_ratios)
    if log_ratios.ndim < 1 or log_ratios.shape[0] < 1:
        raise ValueError(f"log_ratios has shape {log_ratios.shape}: expected [V, ...] with V >= 1 held policies")
    # Policy by policy, not as a reduction over their axis: so it fuses with the loss, and passes over them once.
    least = importance_ratio(functools.reduce(jnp.minimum, list(jnp.asarray(log_ratios))))
    return jax.lax.stop_gradient(jnp.maximum(least, jnp.asarray(rho, least.dtype)))


def truncate_ratio(ratio: Float[Array, "*batch"], cap: Float[Array, "*batch"] | float) -> Float[Array, "*batch"]:
    """`min(ratio, cap)`: a sample above the cap is truncated, not rescaled, and has no gradient.

    Args:
      ratio: `[...]` importance ratios, with their gradient.
      cap: `[...]` from `global_ratio_cap`; or one number for all samples, the truncation of single policies that the
        papers ablate the global view against.

    Returns:
      The truncated ratios `[...]`. Where `ratio == cap` the gradient is whole, so that a policy which sets the cap
      itself learns as if there were none.

    Raises:
      TypeError: if either holds integers.
      ValueError: if the shapes differ, or a cap that is one number is not positive.

    Source:
      Stellaris (SC 2024) for the global cap; Ionides 2008, Truncated Importance Sampling, for a constant.

    Example:
      >>> import jax.numpy as jnp
      >>> truncate_ratio(jnp.array([0.5, 3.0]), jnp.array([1.0, 2.0])).tolist()
      [0.5, 2.0]
      >>> truncate_ratio(jnp.array([0.5, 3.0]), 1.0).tolist()
      [0.5, 1.0]
    """
    checks.floats(ratio=ratio)
    if isinstance(cap, int | float | np.number):
        checks.positive(cap=cap)
    else:
        checks.floats(cap=cap)
        checks.same_shape(ratio, "ratio", cap=cap)
    return _truncate(jnp.asarray(ratio), jnp.asarray(cap, ratio.dtype))


@jax.custom_jvp
def _truncate(ratio: jax.Array, cap: jax.Array) -> jax.Array:
    return jnp.minimum(ratio, cap)


@_truncate.defjvp
def _truncate_tangent(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # A minimum would share the gradient between the two where they are equal.
    (ratio, cap), (tangent, _) = primals, tangents
    return _truncate(ratio, cap), jnp.where(ratio > cap, 0.0, tangent)


def check_rho(rho: Any) -> None:
    """Raises a ValueError unless `rho` is a truncation level of at least 1."""
    for _, number in checks.known(rho=rho):
        if not number >= 1.0:
            raise ValueError(f"rho={rho} is below 1: use rho >= 1, or math.inf for no truncation")
