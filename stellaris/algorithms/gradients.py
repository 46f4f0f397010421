"""The gradient of an algorithm's loss, with what it reports; and how it compares with a fresh one."""

from typing import Any

import jax
import jax.numpy as jnp

from stellaris.algorithms.common import Metrics
from stellaris.diagnostics import gradient_cosine
from stellaris.types import ApplyFn, Tree


def gradient(
    algorithm: Any,
    apply_fn: ApplyFn,
    params: Tree,
    batch: Any,
    peers: tuple[Tree, ...] = (),
    *,
    fresh: Tree | None = None,
    **options: Any,
) -> tuple[Tree, Metrics]:
    """The gradient of `algorithm.loss`, and its metrics.

    Args:
      algorithm: PPO, IMPALA, IMPACT, or anything with such a loss.
      apply_fn: `(params, observation) -> (distribution parameters, value)`.
      params: the policy that learns.
      batch: what the algorithm learns from.
      peers: parameters of the policies that other learners hold now.
      fresh: on request, newer parameters: the metrics then have `fresh_cosine`, of the angle between this gradient and
        the one that they would give on the same batch. It costs a second gradient.
      **options: of the algorithm's loss, such as `rho` and `version`.

    Returns:
      The gradient, and the loss's metrics with `loss`, and with `finite`, whether all of the gradient is.

    Raises:
      ValueError: whatever the loss raises.

    Source:
      Stellaris (SC 2024): the work of a learner function.

    Example:
      >>> import jax.numpy as jnp
      >>> from stellaris import PPO, Batch
      >>> def apply_fn(params, observation):  # any network: here, logits and a value, both linear
      ...     return observation @ params["policy"], observation @ params["value"]
      >>> params = {"policy": jnp.zeros((2, 3)), "value": jnp.zeros(2)}
      >>> one = jnp.ones(4)
      >>> batch = Batch(jnp.ones((4, 2)), jnp.arange(4) % 3, -1.1 * one, one, one, one, jnp.int32(one), one > 0)
      >>> grads, metrics = gradient(PPO(), apply_fn, params, batch, version=3, fresh=params)
      >>> print(metrics["fresh_cosine"].round(4), metrics["by_lag"].count[:3])  # two versions behind
      1.0 [0. 0. 4.]
    """

    def loss(params: Tree) -> tuple[jax.Array, Metrics]:
        value, metrics = algorithm.loss(apply_fn, params, batch, peers, **options)
        return value, metrics | {"loss": value}

    grads, metrics = jax.grad(loss, has_aux=True)(params)
    metrics["finite"] = all_finite(grads)
    if fresh is not None:
        metrics["fresh_cosine"] = gradient_cosine(grads, jax.grad(loss, has_aux=True)(fresh)[0])
    return grads, metrics


def all_finite(tree: Tree) -> jax.Array:
    """Whether a tree holds neither a NaN nor an infinity."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
