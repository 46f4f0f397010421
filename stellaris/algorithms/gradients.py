"""The gradient of an algorithm's loss with its metrics, and updates from whole batches."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Int

from stellaris._core import eager
from stellaris.algorithms import adaptive_penalty
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
    """The gradient of `algorithm.loss`, and the metrics of the loss.

    Args:
      algorithm: PPO, IMPALA, IMPACT, or any object with a method `loss`.
      apply_fn: `(params, observation) -> (distribution parameters, value)`.
      params: the policy that learns.
      batch: a batch from `algorithm.select` or `algorithm.prepare`.
      peers: parameters of the policies that other learners hold now.
      fresh: newer parameters. If given, the metrics include `fresh_cosine`, the cosine between this gradient and the
        gradient at `fresh` on the same batch, at the cost of a second gradient.
      **options: options of the algorithm's loss, such as `rho` and `version`.

    Returns:
      The gradient, and the loss's metrics, including `loss` and `finite`: whether the whole gradient is finite.

    Raises:
      TypeError: if the loss does not return a pair of a scalar and a dictionary.
      ValueError: if the loss raises it.

    Source:
      Stellaris (SC 2024): the computation of a learner function.

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
        value, metrics = _loss(algorithm, apply_fn, params, batch, peers, **options)
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

    With PPO this is plain PPO. Outside of `jit` the scan is compiled once for each algorithm and `apply_fn`, as by
    `jax.jit`. Arrays that `apply_fn` captures are constants of the program, so make `apply_fn` once and pass values
    that change in `params`. The 32 most recently used programs are kept.

    Args:
      algorithm: PPO, IMPALA, IMPACT, or another `Algorithm`.
      apply_fn: `(params, observation) -> (distribution parameters, value)`.
      params: the policy's parameters.
      opt_state: the state of `algorithm.optimizer()`.
      batch: a batch from `algorithm.prepare`.
      indices: the indices of the minibatches, from `algorithm.minibatches`.
      count: number of rows to learn from, counted from the first, at least 1; all by default. It may be traced, so that
        batches of many sizes, padded to one shape, share one program.
      **options: options of the algorithm's loss that are arrays, such as `version`.

    Returns:
      `(params, opt_state, metrics)`. Metrics are averaged over all gradients, but names that end in `_max` keep the
      maximum and `LagReport`s are summed. They include `loss` and `finite`: whether all parameters are finite.

    Raises:
      TypeError: if the loss does not return a pair of a scalar and a dictionary.
      ValueError: if the loss raises it.

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
      >>> print(indices.shape, f"{metrics['value_loss']:.3f}")  # the value, 0 at first, approaches its target of 1
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
    options = adaptive_penalty.options(opt_state) | options

    def step(carry: tuple[Tree, Tree], row: Any) -> tuple[tuple[Tree, Tree], Metrics]:
        params, opt_state = carry
        minibatch = algorithm.select(batch, row)

        def loss(params: Tree) -> tuple[jax.Array, Metrics]:
            value, metrics = _loss(algorithm, apply_fn, params, minibatch, **options)
            return value, {"loss": value} | metrics

        grads, metrics = jax.grad(loss, has_aux=True)(params)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam needs standard promotion
            updates, opt_state = optimizer.update(grads, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), metrics

    state: tuple[Tree, Tree] = (params, opt_state)
    if count is None:
        state, metrics = jax.lax.scan(step, state, indices)
        combined = {name: _combine(name, values) for name, values in metrics.items()}
    else:
        state, combined = _first(step, state, jnp.asarray(indices), count)
    params, opt_state = state
    return params, adaptive_penalty.adapted(opt_state, combined), combined | {"finite": all_finite(params)}


def _loss(algorithm: Any, *arguments: Any, **options: Any) -> tuple[Any, Metrics]:
    """The loss and its metrics; a TypeError names the class of an algorithm whose loss returns anything else."""
    made = algorithm.loss(*arguments, **options)
    name = f"{type(algorithm).__name__}.loss"
    if not (isinstance(made, tuple) and len(made) == 2 and isinstance(made[1], dict)):
        kinds = [type(part).__name__ for part in made] if isinstance(made, tuple) else type(made).__name__
        raise TypeError(f"{name} returned {kinds}: expected a pair, the scalar loss and a dictionary of metrics")
    if jnp.shape(made[0]) != ():
        raise TypeError(f"{name} returned losses of shape {jnp.shape(made[0])}: reduce them to a scalar, as by a mean")
    return made


def _first(step: Any, state: tuple[Tree, Tree], indices: jax.Array, count: Any) -> tuple[tuple[Tree, Tree], Metrics]:
    """Takes the first `count` steps, where `count` may be traced, and combines their metrics."""

    def body(i: Any, carry: Any) -> Any:
        state, before = carry
        state, metrics = step(state, indices[i])
        return state, {name: _combine_two(name, before[name], value) for name, value in metrics.items()}

    # Only the types of these metrics are used: within `shard_map` the sums must vary over the metrics' mesh axes.
    like = step(state, indices[0])[1]
    neutral = {name: jax.tree.map(functools.partial(_neutral, name), value) for name, value in like.items()}
    state, sums = jax.lax.fori_loop(0, count, body, (state, neutral))
    combined = {
        name: total if _is_sum(name, total) else total / jnp.asarray(count, total.dtype) for name, total in sums.items()
    }
    return state, combined


def _neutral(name: str, like: Any) -> jax.Array:
    """The neutral element of a metric: 0 for a sum, the smallest number for a maximum."""
    like = jnp.asarray(like)
    if not name.endswith("_max"):
        return jnp.zeros_like(like, like.dtype if jnp.issubdtype(like.dtype, jnp.floating) else jnp.result_type(float))
    info: Any = jnp.finfo if jnp.issubdtype(like.dtype, jnp.floating) else jnp.iinfo
    return jnp.full_like(like, info(like.dtype).min)


def _combine_two(name: str, before: Any, value: Any) -> Any:
    if name.endswith("_max"):
        return jnp.maximum(before, value)
    return jax.tree.map(lambda total, x: total + jnp.asarray(x, total.dtype), before, value)


def _is_sum(name: str, value: Any) -> bool:
    """Whether several gradients' values of a metric are summed or maximised instead of averaged."""
    return isinstance(value, LagReport) or name.endswith("_max")


def _combine(name: str, values: Any) -> Any:
    """Combines the stacked values of a metric over several gradients."""
    if isinstance(values, LagReport):
        return jax.tree.map(lambda x: jnp.sum(x, axis=0), values)
    return jnp.max(values, axis=0) if name.endswith("_max") else jnp.mean(values, axis=0)


def all_finite(tree: Tree) -> jax.Array:
    """Whether every element of a tree is finite."""
    return jnp.all(jnp.stack([jnp.all(jnp.isfinite(leaf)) for leaf in jax.tree.leaves(tree)]))
