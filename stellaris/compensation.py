"""Delay compensation: a first-order correction of a stale gradient."""

from typing import Any

import jax
import jax.numpy as jnp
import optax

from stellaris import checks
from stellaris.types import Tree


def delay_compensate(gradient: Tree, params_now: Tree, params_then: Tree, strength: float) -> Tree:
    """Estimates the gradient at the newest parameters: `g + strength * g * g * (now - then)`, elementwise.

    `g * g` approximates the diagonal of the Hessian; for a log-likelihood the two are equal in expectation.

    Args:
      gradient: computed at `params_then`, a tree of arrays.
      params_now: the newest parameters, a tree of the same structure and shapes.
      params_then: the parameters at which the gradient was computed.
      strength: lambda, at least 0; 0 gives the gradient back.

    Returns:
      The compensated gradient, of the gradient's structure, shapes and types.

    Raises:
      TypeError: if a leaf of the gradient holds integers.
      ValueError: if the trees differ in structure or shape, or `strength` is negative.

    Source:
      Zheng et al. 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation, Eq. 10.

    Example:
      >>> import jax.numpy as jnp
      >>> print(delay_compensate(jnp.array([2.0]), jnp.array([1.5]), jnp.array([1.0]), strength=0.5))
      [3.]
    """
    checks.not_negative(strength=strength)
    checks.same_structure(gradient, "gradient", params_now=params_now, params_then=params_then)

    def compensate(path: Any, g: Any, now: Any, then: Any) -> Any:
        name = jax.tree_util.keystr(path)
        checks.floats(**{f"gradient{name}": g})
        checks.same_shape(g, f"gradient{name}", **{f"params_now{name}": now, f"params_then{name}": then})
        # In this order parameters that have not moved add zero, even if g * g overflows.
        return g + (strength * (now - then) * g * g).astype(jnp.result_type(g))

    return jax.tree_util.tree_map_with_path(compensate, gradient, params_now, params_then)


def add_delay_compensation(strength: float) -> optax.GradientTransformationExtraArgs:
    """`delay_compensate` as the first link of an optimizer's chain.

    Args:
      strength: lambda, at least 0.

    Returns:
      A transformation with `update(updates, state, params, params_then=...)`: the newest parameters, and those at which
      the gradient was computed.

    Raises:
      ValueError: if `strength` is negative; at an update, if `params` is missing or a tree does not fit the gradient's.

    Source:
      Zheng et al. 2017, Asynchronous Stochastic Gradient Descent with Delay Compensation, Algorithm 2.

    Example:
      >>> import jax.numpy as jnp, optax
      >>> optimizer = optax.chain(add_delay_compensation(0.5), optax.sgd(0.5))
      >>> params = jnp.array([1.5])
      >>> state = optimizer.init(params)
      >>> step, _ = optimizer.update(jnp.array([2.0]), state, params, params_then=jnp.array([1.0]))
      >>> print(step)
      [-1.5]
    """
    checks.not_negative(strength=strength)

    def update(
        updates: Tree, state: optax.EmptyState, params: Tree = None, *, params_then: Tree, **extra: Any
    ) -> tuple[Tree, optax.EmptyState]:
        del extra
        if params is None:
            raise ValueError("params is None: delay compensation needs the newest parameters")
        return delay_compensate(updates, params, params_then, strength), state

    return optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), update)
