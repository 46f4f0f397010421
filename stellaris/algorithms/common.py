"""What the algorithms share: batches, masked means, the cap over held policies, and what a loss reports."""

import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax
from jaxtyping import Bool, Float, Int

from stellaris.diagnostics import lag_report, version_span
from stellaris.distributions import as_distribution
from stellaris.losses import approximate_kl
from stellaris.truncation import global_ratio_cap, importance_ratio
from stellaris.types import ApplyFn, Array, Tree

#: What a loss reports, by name: scalars; and `by_lag`, a `LagReport`, if it is told which version learns.
Metrics: TypeAlias = dict[str, Any]


class Batch(NamedTuple):
    """`N` samples to learn from, flat, with what the behaviour policy made of them.

    Example:
      >>> one = jnp.ones(4)
      >>> batch = Batch(jnp.ones((4, 2)), jnp.zeros(4, jnp.int32), -one, one, one, one, jnp.int32(one), one > 0)
      >>> batch.observation.shape, batch.advantage.shape
      ((4, 2), (4,))
    """

    observation: Array  #: `[N, *obs]` raw.
    action: Array  #: `[N, *action]`.
    log_prob: Float[Array, "N"]  #: of the action under the behaviour policy.
    value: Float[Array, "N"]  #: the behaviour policy's.
    advantage: Float[Array, "N"]  #: standardised over the batch if the configuration says so.
    target: Float[Array, "N"]  #: of the value: advantage before standardisation plus value.
    version: Int[Array, "N"]  #: of the behaviour policy.
    valid: Bool[Array, "N"]  #: False for a sample that is no transition, and weighs nothing.


def take(batch: Any, indices: Int[Array, "n"]) -> Any:
    """The samples at `indices`; an index beyond the batch gives zeros, which are not valid and weigh nothing."""
    return jax.tree.map(lambda x: jnp.take(jnp.asarray(x), indices, axis=0, mode="fill", fill_value=0), batch)


def flatten(batch: Any) -> Any:
    """`[T, B, ...]` to `[T * B, ...]`: sample `t * B + b` is step `t` of environment `b`."""
    return jax.tree.map(lambda x: jnp.reshape(x, (x.shape[0] * x.shape[1], *x.shape[2:])), batch)


def minibatches(
    key: jax.Array, size: int, *, epochs: int, minibatch_size: int
) -> Int[jax.Array, "gradients minibatch"]:
    """Indices of every minibatch of every epoch: each epoch is one permutation, cut into pieces of equal length.

    If they do not come out even, the last is filled up with `size`, an index beyond the batch.

    Raises:
      ValueError: if `size` is below 1.
    """
    if size < 1:
        raise ValueError(f"size={size} is below 1: there is nothing to learn from")
    count = -(-size // minibatch_size)
    length = -(-size // count)

    def epoch(key: jax.Array) -> jax.Array:
        order = jax.random.permutation(key, size).astype(jnp.int32)
        return jnp.pad(order, (0, count * length - size), constant_values=size)

    return jax.vmap(epoch)(jax.random.split(key, epochs)).reshape(epochs * count, length)


def standardized(x: Array, valid: Array) -> jax.Array:
    """To zero mean and unit variance over valid samples; the others are zero."""
    mean = masked_mean(x, valid)
    deviation = jnp.sqrt(masked_mean(jnp.square(x - mean), valid))
    return jnp.where(valid, (x - mean) / (deviation + 1e-8), 0.0)


def masked_mean(x: Any, valid: Array) -> jax.Array:
    """Mean over valid samples; 0 if there are none. What an invalid sample holds is never looked at."""
    x = x.astype(float) if x.dtype == bool else x
    total = jnp.sum(jnp.where(valid, x, 0.0))
    return total / jnp.maximum(jnp.sum(valid), 1).astype(x.dtype)


class Evaluated(NamedTuple):
    """A policy on samples: log-probabilities of their actions, entropies and values."""

    log_prob: jax.Array
    entropy: jax.Array
    value: jax.Array


def evaluate(apply_fn: ApplyFn, params: Tree, observation: Any, action: Any) -> Evaluated:
    """Runs a network."""
    parameters, value = apply_fn(params, observation)
    distribution = as_distribution(parameters)
    return Evaluated(distribution.log_prob(action), distribution.entropy(), value)


def cleaned(batch: Any) -> Any:
    """Zeros where a sample is not valid: what multiplies a gradient of zero must be a number.

    Observations stay as they are, because a network may need more of them than zeros.
    """
    valid = jnp.asarray(batch.valid)

    def clean(x: Array) -> jax.Array:
        mask = valid.reshape(*valid.shape, *[1] * (jnp.ndim(x) - valid.ndim))
        return jnp.where(mask, x, jnp.zeros((), jnp.result_type(x)))

    names = [name for name in ("action", "log_prob", "advantage", "target") if hasattr(batch, name)]
    clean_fields = {name: clean(getattr(batch, name)) for name in names}
    if isinstance(batch, Batch):
        clean_fields["value"] = clean(batch.value)
    return batch._replace(**clean_fields)


def log_ratio(log_prob: jax.Array, behaviour: Array, valid: Array) -> jax.Array:
    """To the behaviour policy; 0 where a sample is not valid, so that nothing it holds reaches the gradient."""
    return jnp.where(valid, jnp.where(valid, log_prob, 0.0) - jnp.where(valid, behaviour, 0.0), 0.0)


def held_cap(
    apply_fn: ApplyFn,
    peers: tuple[Tree, ...],
    observation: Any,
    action: Any,
    behaviour: Array,
    own: jax.Array,
    rho: Any,
) -> jax.Array:
    """The global cap over one's own policy and its peers.

    One's own ratio is below or at the cap unless another's is truly below it. One's own policy may be among the held,
    compiled differently: rounding alone must not truncate it.
    """
    held = [as_distribution(apply_fn(peer, observation)[0]).log_prob(action) for peer in peers]
    log_probs = jax.lax.stop_gradient(jnp.stack([own, *held]))
    cap = global_ratio_cap(log_probs - behaviour, rho=rho)
    rounding = 100 * jnp.finfo(own.dtype).eps * (1.0 + jnp.abs(log_probs[0]))  # type: ignore[no-untyped-call]
    return jnp.where(jnp.any(log_probs[1:] < log_probs[0] - rounding, axis=0), cap, jnp.inf)


def report(
    log_ratio: jax.Array,
    valid: Array,
    behaviour_version: Array,
    *,
    clipped: Array,
    cap: jax.Array | None,
    version: Any,
    lags: int,
) -> Metrics:
    """How far the policy that learns is from those that sampled; with its version, by policy lag."""
    truncated = jnp.zeros_like(clipped) if cap is None else importance_ratio(log_ratio) > cap
    valid = jnp.asarray(valid)
    span = version_span(jnp.ravel(behaviour_version), valid.ravel())
    metrics: Metrics = {
        "kl": masked_mean(approximate_kl(log_ratio), valid),
        "clip_fraction": masked_mean(clipped, valid),
        "truncation_fraction": masked_mean(truncated, valid),
        "version_mean": span.mean,
        "version_oldest": span.oldest,
    }
    if version is not None:
        lag = version - jnp.asarray(behaviour_version)
        metrics["by_lag"] = lag_report(
            log_ratio=log_ratio, lag=lag, valid=valid, clipped=clipped, truncated=truncated, lags=lags
        )
    return metrics


def outside(log_ratio: jax.Array, clip: float) -> jax.Array:
    """Whether a sample is outside PPO's trust region: its ratio differs from 1 by more than `clip`."""
    return jnp.abs(importance_ratio(log_ratio) - 1.0) > clip


def is_infinite(rho: Any) -> bool:
    """Whether a truncation level is a number, and infinite."""
    return isinstance(rho, float | np.floating) and math.isinf(rho)


def norm_clipped(optimizer: optax.GradientTransformation, max_norm: float | None) -> optax.GradientTransformation:
    """An optimizer behind a bound on the gradient's global norm."""
    return optimizer if max_norm is None else optax.chain(optax.clip_by_global_norm(max_norm), optimizer)
