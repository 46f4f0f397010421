"""The shared part of the losses of PPO, IMPALA and IMPACT: ratios, the global cap, the sum of terms, metrics."""

import math
from typing import Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stellaris._core import checks
from stellaris._core.sharding import replicated
from stellaris.algorithms.batch import before_the_last, masked_mean, observations, the_last
from stellaris.corrections.caps import check_rho, global_ratio_cap
from stellaris.corrections.ratios import importance_ratio
from stellaris.diagnostics import lag_report, version_span
from stellaris.distributions import as_distribution
from stellaris.losses import approximate_kl
from stellaris.types import ApplyFn, Array, Scalar, Trajectory, Tree

#: The metrics of a loss by name: scalars, and a `LagReport` called `by_lag` if the loss knows the learning version.
Metrics: TypeAlias = dict[str, Any]


class Evaluated(NamedTuple):
    """The results of evaluating a policy on samples."""

    log_prob: jax.Array  #: of the actions.
    log_ratio: jax.Array  #: to the behaviour policy; 0 for an invalid sample.
    entropy: jax.Array
    value: jax.Array


def evaluate(apply_fn: ApplyFn, params: Tree, observation: Any, batch: Any) -> Evaluated:
    """Runs a network on the observations of a batch, which has `action`, `log_prob` and `valid`."""
    parameters, value = _two(apply_fn(params, observation))
    return _evaluated(parameters, value, batch)


def evaluate_all(apply_fn: ApplyFn, params: Tree, trajectory: Trajectory) -> tuple[Evaluated, jax.Array]:
    """Runs a network on a trajectory; returns the results for its `T` steps, and the last value `[1, B]`.

    With a memory, the last value needs the memory after all steps, so one pass over `T + 1` observations gives both.
    """
    observation = observations(trajectory)
    if trajectory.memory is None:
        steps = evaluate(apply_fn, params, before_the_last(observation), trajectory)
        return steps, jnp.asarray(_two(apply_fn(params, the_last(observation)))[1])
    parameters, value = _two(apply_fn(params, observation))
    steps = _evaluated(jax.tree.map(lambda x: x[:-1], parameters), value[:-1], trajectory)
    return steps, jnp.asarray(value[-1:])


def _two(result: Any) -> tuple[Any, Any]:
    """Checks what a network returned: an array, the parameters alone, would be taken apart along its first axis."""
    if not isinstance(result, tuple | list) or len(result) != 2:
        what = f"{len(result)} values" if isinstance(result, tuple | list) else f"a {type(result).__name__}"
        raise TypeError(f"apply_fn returned {what}: expected (distribution parameters, value)")
    parameters, value = result
    return parameters, value


def _evaluated(parameters: Any, value: Any, batch: Any) -> Evaluated:
    distribution = as_distribution(parameters)
    log_prob = distribution.log_prob(batch.action)
    # Both log-probabilities are masked before the subtraction, so that a NaN or infinity at an invalid sample cannot
    # reach the gradient.
    log_ratio = jnp.where(batch.valid, log_prob, 0.0) - jnp.where(batch.valid, batch.log_prob, 0.0)
    return Evaluated(log_prob, log_ratio, distribution.entropy(), value)


def held_cap(
    apply_fn: ApplyFn, peers: tuple[Tree, ...], observation: Any, batch: Any, own: jax.Array, rho: Any
) -> jax.Array | None:
    """The global cap over the policy that learns and its peers; None without peers or if `rho` is infinite.

    A sample is truncated only if its ratio exceeds the cap by more than rounding errors; the cap of other samples is
    infinite. Rounding matters in two cases. The policy that learns may also be among the peers; its two
    log-probabilities then differ slightly, because they are compiled separately. On fresh data every ratio is 1 up to
    rounding; with `rho = 1` the last bits would decide which samples have a gradient.

    Args:
      apply_fn: `(params, observation) -> (distribution parameters, value)`.
      peers: parameters of the policies that other learners hold.
      observation: the batch's observations.
      batch: has `action` and `log_prob`.
      own: log-probabilities under the policy that learns.
      rho: truncation level of the cap, at least 1.

    Raises:
      TypeError: if `peers` is not a tuple.
      ValueError: if `rho` is below 1.
    """
    check_rho(rho=rho)
    if not isinstance(peers, tuple | list):
        raise TypeError(f"peers is a {type(peers).__name__}: expected a tuple of policies' parameters, such as (peer,)")
    if not peers or is_infinite(rho):
        return None
    held = [as_distribution(apply_fn(peer, observation)[0]).log_prob(batch.action) for peer in peers]
    log_probs = jax.lax.stop_gradient(jnp.stack([own, *held]))
    log_ratios = log_probs - jnp.asarray(batch.log_prob)[None]
    cap = global_ratio_cap(log_ratios, rho=rho)
    eps = jnp.finfo(own.dtype).eps  # type: ignore[no-untyped-call]
    # In bfloat16 100 roundings would be most of the ratio, so that nothing would be truncated.
    rounding = (100 if eps < 1e-5 else 4) * eps * (1.0 + jnp.abs(log_probs[0]))
    return jnp.where(importance_ratio(log_ratios[0]) > cap * (1.0 + rounding), cap, jnp.inf)


def loss(
    configuration: Any,
    batch: Any,
    policy: Evaluated,
    cap: jax.Array | None,
    *,
    policy_loss: Array,
    value_loss: Array,
    clipped: Array,
    version: Any,
    lags: int,
) -> tuple[jax.Array, Metrics]:
    """`policy loss + value loss - entropy bonus` as means over valid samples, and the metrics.

    Args:
      configuration: has `value_coefficient` and `entropy_coefficient`.
      batch: has `valid`, and the `version` that chose each action.
      policy: the policy that learns, evaluated on the batch.
      cap: the global cap, if there is one.
      policy_loss: per sample.
      value_loss: per sample, before the coefficient.
      clipped: per sample, whether the sample is outside the trust region.
      version: version of the policy that learns, if known.
      lags: the number of policy lags to distinguish.
    """
    valid = jnp.asarray(batch.valid)
    metrics: Metrics = {
        "policy_loss": masked_mean(policy_loss, valid),
        "value_loss": masked_mean(value_loss, valid),
    } | report(batch, policy, cap, clipped=clipped, version=version, lags=lags)
    total = metrics["policy_loss"] + configuration.value_coefficient * metrics["value_loss"]
    return total - configuration.entropy_coefficient * metrics["entropy"], metrics


def report(batch: Any, policy: Evaluated, cap: jax.Array | None, *, clipped: Array, version: Any, lags: int) -> Metrics:
    """Returns the metrics of a policy on a batch, apart from losses; the arguments are as in `loss`."""
    log_ratio = policy.log_ratio
    valid = jnp.asarray(batch.valid)
    checks.whole_int32(**checks.given(version=version))
    checks.int32(**{"batch.version": batch.version})
    truncated = jnp.zeros_like(clipped) if cap is None else importance_ratio(log_ratio) > cap
    span = version_span(replicated(batch.version).ravel(), valid=replicated(valid).ravel())
    if version is not None:
        # A minibatch without transitions, such as one of padding alone, has no oldest version: `version_span` gives the
        # largest int32, which would dominate a mean over minibatches. Its versions are those of the policy that learns.
        now = jnp.asarray(version)
        span = jax.tree.map(lambda of: jnp.where(jnp.any(valid), of, now.astype(of.dtype)), span)
    metrics: Metrics = {
        "entropy": masked_mean(policy.entropy, valid),
        "kl": masked_mean(approximate_kl(log_ratio), valid),
        "clip_fraction": masked_mean(clipped, valid),
        "truncation_fraction": masked_mean(truncated, valid),
        "version_mean": span.mean,
        "version_oldest": span.oldest,
    }
    if version is not None:
        metrics["data_lag_mean"] = jnp.asarray(version).astype(span.mean.dtype) - span.mean
        metrics["data_lag_max"] = version - span.oldest
        lag = jnp.asarray(version, jnp.int32) - jnp.asarray(batch.version, jnp.int32)  # unsigned, it would wrap
        metrics["by_lag"] = lag_report(lag, log_ratio, valid=valid, clipped=clipped, truncated=truncated, lags=lags)
    return metrics


def outside(log_ratio: jax.Array, clip: Scalar, clip_high: Scalar | None = None) -> jax.Array:
    """Whether each sample is outside PPO's trust region, `1 - clip` to `1 + clip_high` (`clip` by default)."""
    beyond = jnp.asarray(importance_ratio(log_ratio)) - 1.0
    return (beyond < -clip) | (beyond > (clip if clip_high is None else clip_high))


def is_infinite(rho: Any) -> bool:
    """Whether a truncation level is a known number, and infinite."""
    return isinstance(rho, float | np.floating) and math.isinf(rho)


def check_learning_rate(learning_rate: Any) -> None:
    """Raises unless the learning rate is a positive number or an optax schedule."""
    if not callable(learning_rate):
        checks.positive(learning_rate=learning_rate)


def norm_clipped(optimizer: optax.GradientTransformation, max_norm: Scalar | None) -> optax.GradientTransformation:
    """Clips the gradient's global norm before the optimizer; None clips nothing."""
    return optimizer if max_norm is None else optax.chain(optax.clip_by_global_norm(max_norm), optimizer)
