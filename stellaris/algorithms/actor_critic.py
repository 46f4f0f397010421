"""What the losses of PPO, IMPALA and IMPACT share: ratios, the global cap, the sum of the terms, and the metrics."""

import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stellaris._core import checks
from stellaris.algorithms.batch import masked_mean
from stellaris.corrections.caps import global_ratio_cap
from stellaris.corrections.ratios import importance_ratio
from stellaris.diagnostics import lag_report, version_span
from stellaris.distributions import as_distribution
from stellaris.losses import approximate_kl
from stellaris.types import ApplyFn, Array, Tree

#: What a loss reports, by name: scalars; and `by_lag`, a `LagReport`, if it is told which version learns.
Metrics: TypeAlias = dict[str, Any]


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


def log_ratio(log_prob: jax.Array, behaviour: Array, valid: Array) -> jax.Array:
    """To the behaviour policy; 0 where a sample is not valid, so that nothing it holds reaches the gradient."""
    return jnp.where(valid, log_prob, 0.0) - jnp.where(valid, behaviour, 0.0)


def held_cap(
    apply_fn: ApplyFn, peers: tuple[Tree, ...], observation: Any, batch: Any, own: jax.Array, rho: Any
) -> jax.Array | None:
    """The global cap over the policy that learns, whose log-probabilities are `own`, and its peers; none without peers.

    A learner is truncated only if a peer's ratio is lower than its own by more than rounding: the policy that learns
    may be among the peers, compiled separately, with slightly different log-probabilities.
    """
    if not peers:
        return None
    held = [as_distribution(apply_fn(peer, observation)[0]).log_prob(batch.action) for peer in peers]
    log_probs = jax.lax.stop_gradient(jnp.stack([own, *held]))
    cap = global_ratio_cap(log_probs - jnp.asarray(batch.log_prob)[None], rho=rho)
    rounding = 100 * jnp.finfo(own.dtype).eps * (1.0 + jnp.abs(log_probs[0]))  # type: ignore[no-untyped-call]
    return jnp.where(jnp.any(log_probs[1:] < log_probs[:1] - rounding[None], axis=0), cap, jnp.inf)


def loss(
    configuration: Any,
    batch: Any,
    log_ratio: jax.Array,
    *,
    policy_loss: Array,
    value_loss: Array,
    entropy: Array,
    clipped: Array,
    cap: jax.Array | None,
    version: Any,
    lags: int,
) -> tuple[jax.Array, Metrics]:
    """`policy loss + value loss - entropy bonus`, means over valid samples; and how far the policies are apart.

    Args:
      configuration: has the `value_coefficient` and the `entropy_coefficient`.
      batch: has `valid`, and the `version` that chose each action.
      log_ratio: of the policy that learns to the behaviour policy.
      policy_loss: per sample, as the following.
      value_loss: not weighted yet.
      entropy: of the policy that learns.
      clipped: whether a sample is outside the trust region.
      cap: the global cap, if there is one.
      version: of the policy that learns, if it is known.
      lags: how many policy lags are told apart.
    """
    valid = jnp.asarray(batch.valid)
    checks.int32(**checks.given(version=version), **{"batch.version": batch.version})
    truncated = jnp.zeros_like(clipped) if cap is None else importance_ratio(log_ratio) > cap
    span = version_span(jnp.ravel(batch.version), valid=valid.ravel())
    metrics: Metrics = {
        "policy_loss": masked_mean(policy_loss, valid),
        "value_loss": masked_mean(value_loss, valid),
        "entropy": masked_mean(entropy, valid),
        "kl": masked_mean(approximate_kl(log_ratio), valid),
        "clip_fraction": masked_mean(clipped, valid),
        "truncation_fraction": masked_mean(truncated, valid),
        "version_mean": span.mean,
        "version_oldest": span.oldest,
    }
    if version is not None:
        metrics["data_lag_mean"] = jnp.asarray(version).astype(span.mean.dtype) - span.mean
        metrics["data_lag_max"] = version - span.oldest
        lag = version - jnp.asarray(batch.version)
        metrics["by_lag"] = lag_report(lag, log_ratio, valid=valid, clipped=clipped, truncated=truncated, lags=lags)
    total = metrics["policy_loss"] + configuration.value_coefficient * metrics["value_loss"]
    return total - configuration.entropy_coefficient * metrics["entropy"], metrics


def outside(log_ratio: jax.Array, clip: float) -> jax.Array:
    """Whether a sample is outside PPO's trust region: its ratio differs from 1 by more than `clip`."""
    return jnp.abs(importance_ratio(log_ratio) - 1.0) > clip


def is_infinite(rho: Any) -> bool:
    """Whether a truncation level is a number, and infinite."""
    return isinstance(rho, float | np.floating) and math.isinf(rho)


def check_learning_rate(learning_rate: Any) -> None:
    """Raises an error unless this is a positive number, or a schedule of optax's."""
    if not callable(learning_rate):
        checks.positive(learning_rate=learning_rate)


def norm_clipped(optimizer: optax.GradientTransformation, max_norm: float | None) -> optax.GradientTransformation:
    """An optimizer behind a bound on the gradient's global norm."""
    return optimizer if max_norm is None else optax.chain(optax.clip_by_global_norm(max_norm), optimizer)
