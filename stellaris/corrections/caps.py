"""Truncation of each sample's importance ratio, to Stellaris' global cap or to a constant."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
from jaxtyping import Float

from stellaris._core import checks
from stellaris.corrections.ratios import importance_ratio
from stellaris.types import Array, Scalar


def global_ratio_cap(log_ratios: Float[Array, "V *batch"], *, rho: Scalar = 1.0) -> Float[Array, "*batch"]:
    """The truncation level of each sample, computed from the policies that all learners hold at the same time.

    The cap is `max(min_j r_j, rho)`. Here `r_j = pi_j(a|s) / mu(a|s)` is the importance ratio of the `j`-th of the `V`
    held policies, and `mu` is the behaviour policy.

    Args:
      log_ratios: `[V, ...]` log-ratios `log(pi_j / mu)` of the held policies, including the learner's own policy.
      rho: lower bound of the cap, at least 1. `math.inf` truncates nothing. With one held policy (`V = 1`) nothing is
        truncated either, because the cap is at least that policy's ratio. A held policy that equals the behaviour
        policy makes the cap `rho`: with 1, and several epochs on a batch, samples whose actions have become more
        likely then have no gradient.

    Returns:
      The caps `[...]`, at least `rho`. No gradient flows through them.

    Raises:
      TypeError: if `log_ratios` holds integers, or `rho` is not a number.
      ValueError: if `log_ratios` lacks the policy axis or holds zero policies, or `rho` is below 1 or NaN.

    Source:
      Stellaris (SC 2024), global importance-sampling truncation.

    Example:
      Three policies, two samples. All three made the first sample's action more likely, so the cap is the smallest of
      their ratios. They disagree on the second, so the cap is rho:

      >>> import jax.numpy as jnp
      >>> log_ratios = jnp.log(jnp.array([[1.5, 0.5], [2.0, 3.0], [4.0, 2.0]]))
      >>> global_ratio_cap(log_ratios).round(4).tolist()
      [1.5, 1.0]
    """
    least = _least_ratio(log_ratios, rho)
    return jax.lax.stop_gradient(jnp.maximum(least, jnp.asarray(rho, least.dtype)))


def least_ratio_cap(log_ratios: Float[Array, "V *batch"], *, rho: Scalar = 1.0) -> Float[Array, "*batch"]:
    """The truncation level with which every ratio is at most rho, as the bound on a policy's improvement needs.

    The cap is `min(min_j r_j, rho)`, the smallest ratio of the held policies or rho. Truncated to it, the ratios of all
    learners are equal. `global_ratio_cap` has the maximum of the two instead: it truncates less, and where all held
    policies have made an action more likely, its ratios exceed rho.

    Args:
      log_ratios: `[V, ...]` log-ratios `log(pi_j / mu)` of the held policies, including the learner's own policy.
      rho: upper bound of the cap, at least 1; `math.inf` for the smallest ratio alone. With one held policy this is
        plain truncation to rho.

    Returns:
      The caps `[...]`, at most `rho`. No gradient flows through them. As in `truncate_ratio`, the gradient of a ratio
      above its cap is zero, so only the policy with the smallest ratio learns from a sample.

    Raises:
      TypeError: if `log_ratios` holds integers, or `rho` is not a number.
      ValueError: if `log_ratios` lacks the policy axis or holds zero policies, or `rho` is below 1 or NaN.

    Source:
      Stellaris (SC 2024): the theorem on truncation assumes ratios of at most rho. The authors' demo computes
      `global_ratio_cap`, which does not bound them.

    Example:
      >>> import jax.numpy as jnp
      >>> log_ratios = jnp.log(jnp.array([[1.5, 0.5], [2.0, 3.0], [4.0, 2.0]]))
      >>> least_ratio_cap(log_ratios).round(4).tolist(), global_ratio_cap(log_ratios).round(4).tolist()
      ([1.0, 0.5], [1.5, 1.0])
    """
    least = _least_ratio(log_ratios, rho)
    return jax.lax.stop_gradient(jnp.minimum(least, jnp.asarray(rho, least.dtype)))


def truncate_ratio(ratio: Float[Array, "*batch"], ratio_cap: Float[Array, "*batch"] | Scalar) -> Float[Array, "*batch"]:
    """`min(ratio, ratio_cap)`, with a gradient of zero above the cap.

    Args:
      ratio: `[...]` importance ratios, with their gradient.
      ratio_cap: `[...]` from `global_ratio_cap`, or one number for all samples, as in the per-policy
        truncation of the papers' ablations. `vmap` can sweep the number.

    Returns:
      The truncated ratios `[...]`. Where `ratio == ratio_cap` the full gradient flows, so that a policy whose
      own ratio is the cap learns as without truncation.

    Raises:
      TypeError: if an array holds integers.
      ValueError: if the shapes differ, or a constant cap is not positive.

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
    checks.per_sample(ratio, "ratio", checks.positive, ratio_cap=ratio_cap)
    return _truncate(jnp.asarray(ratio), jnp.asarray(ratio_cap, jnp.result_type(ratio)))


@jax.custom_jvp
def _truncate(ratio: jax.Array, cap: jax.Array) -> jax.Array:
    return jnp.minimum(ratio, cap)


@_truncate.defjvp
def _truncate_tangent(primals: Any, tangents: Any) -> tuple[jax.Array, jax.Array]:
    # At equality the derivative of `jnp.minimum` is one half; this derivative is one.
    (ratio, cap), (tangent, _) = primals, tangents
    return _truncate(ratio, cap), jnp.where(ratio > cap, 0.0, tangent)


def _least_ratio(log_ratios: Array, rho: Any) -> jax.Array:
    """Checks the arguments of a cap; returns the smallest of the held policies' ratios."""
    check_rho(rho=rho)
    checks.floats(log_ratios=log_ratios)
    if log_ratios.ndim < 1 or log_ratios.shape[0] < 1:
        raise ValueError(f"log_ratios has shape {log_ratios.shape}: expected [V, ...] with V >= 1 held policies")
    # A chain of minima replaces a reduction over the policy axis, because XLA fuses the chain with the loss and reads
    # each array once.
    least: jax.Array = functools.reduce(jnp.minimum, list(jnp.asarray(log_ratios)))
    return jnp.asarray(importance_ratio(least))


def check_rho(**levels: Any) -> None:
    """Raises a ValueError unless every truncation level is at least 1."""
    for name, rho in checks.known(**levels):
        if not rho >= 1.0:
            raise ValueError(f"{name}={rho} is below 1: use {name} >= 1, or math.inf for no truncation")
