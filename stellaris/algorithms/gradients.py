"""The gradient of an algorithm's loss with its metrics; and whole batches learned from, one step after the other."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Int

from stellaris._core import eager
from stellaris.algorithms.actor_critic import Metrics
from stellaris.algorithms.algorithm import Algorithm
from stellaris.diagnostics import LagReport, gradient_cosine
from stellaris.types import ApplyFn, Array, Tree


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


def update(
    algorithm: Algorithm,
    apply_fn: ApplyFn,
    params: Tree,
    opt_state: Tree,
    batch: Any,
    indices: Int[Array, "gradients m"],
    *,
    count: Int[Array, ""] | int | None = None,
    **options: Any,
) -> tuple[Tree, Tree, Metrics]:
    """Learns from a batch: one step of `algorithm.optimizer()` for each row of `indices`, in order, as one scan.

    With PPO this is plain PPO. Outside of `jit` it is compiled once for each algorithm and `apply_fn`, as by `jax.jit`:
    what `apply_fn` closes over is a constant, so make it once and let whatever changes be among its parameters. The
    programs of the last 32 are kept.

    Args:
      algorithm: PPO, IMPALA, IMPACT, or another with such methods.
      apply_fn: `(params, observation) -> (distribution parameters, value)`.
      params: of the policy.
      opt_state: of `algorithm.optimizer()`.
      batch: from `algorithm.prepare`.
      indices: from `algorithm.minibatches`.
      count: how many of its rows to learn from, from the first on, at least 1; all of them by default. It may be
        traced: so batches of many sizes, padded to one shape, share one program.
      **options: of the algorithm's loss that are arrays, such as `version`.

    Returns:
      `(params, opt_state, metrics)`, the metrics of all gradients in one: means; of those whose name ends in `_max` the
      greatest; of a `LagReport` the sum; with `loss`, and `finite`, whether all of the parameters are.

    Raises:
      ValueError: whatever the loss raises.

    Source:
      Schulman et al. 2017, Proximal Policy Optimization Algorithms, Algorithm 1.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris import PPO, Batch
      >>> def apply_fn(params, observation):  # any network: here, logits and a value, both linear
      ...     return observation @ params["policy"], observation @ params["value"]
      >>> params = {"policy": jnp.zeros((2, 3)), "value": jnp.zeros(2)}
      >>> one = jnp.ones(4)
      >>> batch = Batch(jnp.ones((4, 2)), jnp.arange(4) % 3, -1.1 * one, one, one, one, jnp.int32(one), one > 0)
      >>> ppo = PPO(epochs=3, minibatch_size=2)
      >>> opt_state, indices = ppo.optimizer().init(params), ppo.minibatches(jax.random.key(0), batch)
      >>> params, opt_state, metrics = update(ppo, apply_fn, params, opt_state, batch, indices)
      >>> print(indices.shape, f"{metrics['value_loss']:.3f}")  # the value, 0 at first, comes near its target of 1
      (6, 2) 0.997
    """
    learned: tuple[Tree, Tree, Metrics] = eager.call(
        _update, (algorithm, apply_fn), params, opt_state, batch, indices, count, options
    )
    return learned


def _update(
    algorithm: Algorithm,
    apply_fn: ApplyFn,
    params: Tree,
    opt_state: Tree,
    batch: Any,
    indices: Array,
    count: Any,
    options: Any,
) -> tuple[Tree, Tree, Metrics]:
    optimizer = algorithm.optimizer()

    def step(carry: tuple[Tree, Tree], row: Any) -> tuple[tuple[Tree, Tree], Metrics]:
        params, opt_state = carry
        minibatch = algorithm.select(batch, row)

        def loss(params: Tree) -> tuple[jax.Array, Metrics]:
            value, metrics = algorithm.loss(apply_fn, params, minibatch, **options)
            return value, {"loss": value} | metrics

        grads, metrics = jax.grad(loss, has_aux=True)(params)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam is not strict about types
            updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), metrics

    state: tuple[Tree, Tree] = (params, opt_state)
    if count is None:
        state, metrics = jax.lax.scan(step, state, indices)
        in_one = {name: _in_one(name, values) for name, values in metrics.items()}
    else:
        state, in_one = _first(step, state, jnp.asarray(indices), count)
    return *state, in_one | {"finite": all_finite(state[0])}


def _first(step: Any, state: tuple[Tree, Tree], indices: jax.Array, count: Any) -> tuple[tuple[Tree, Tree], Metrics]:
    """The first `count` steps, which need not be known when this is compiled, and their metrics in one."""

    def and_all_before(i: Any, carry: Any) -> Any:
        state, before = carry
        state, metrics = step(state, indices[i])
        return state, {name: _two_in_one(name, before[name], value) for name, value in metrics.items()}

    # Of these metrics only the types count: within `shard_map` sums vary as they do.
    like = step(state, indices[0])[1]
    nothing = {name: jax.tree.map(functools.partial(_nothing, name), value) for name, value in like.items()}
    state, sums = jax.lax.fori_loop(0, count, and_all_before, (state, nothing))
    in_one = {
        name: total if _is_sum(name, total) else total / jnp.asarray(count, total.dtype) for name, total in sums.items()
    }
    return state, in_one


def _nothing(name: str, like: Any) -> jax.Array:
    """What a metric of no gradient is: what follows is added to it, or is greater."""
    like = jnp.asarray(like)
    if not name.endswith("_max"):
        return jnp.zeros_like(like, like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else jnp.result_type(float))
    info: Any = jnp.finfo if jnp.issubdtype(like.dtype, jnp.floating) else jnp.iinfo
    return jnp.full_like(like, info(like.dtype).min)


def _two_in_one(name: str, before: Any, value: Any) -> Any:
    if name.endswith("_max"):
        return jnp.maximum(before, value)
    return jax.tree.map(lambda total, x: total + jnp.asarray(x, total.dtype), before, value)


def _is_sum(name: str, value: Any) -> bool:
    """Whether a metric of several gradients is no mean."""
    return isinstance(value, LagReport) or name.endswith("_max")


def _in_one(name: str, values: Any) -> Any:
    """A metric of several gradients, stacked, as one."""
    if isinstance(values, LagReport):
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), values)
    return jnp.max(values, axis=0) if name.endswith("_max") else jnp.mean(values, axis=0)


def all_finite(tree: Tree) -> jax.Array:
    """Whether a tree holds neither a NaN nor an infinity."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
