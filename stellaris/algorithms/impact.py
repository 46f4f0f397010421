"""IMPACT: a configuration and its loss over any network and its slowly moving target."""

from dataclasses import dataclass
from typing import NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int, Shaped

from stellaris._core import checks
from stellaris.algorithms import actor_critic
from stellaris.algorithms.actor_critic import Metrics
from stellaris.algorithms.batch import (
    Batch,
    before_the_last,
    check_prepared,
    check_trajectory,
    cleaned,
    items,
    observations,
    sampled_minibatches,
    standardized,
    take_items,
)
from stellaris.corrections.caps import check_rho
from stellaris.losses import MIN_LOG_PROB, impact_loss, value_loss
from stellaris.returns import vtrace
from stellaris.types import ApplyFn, Array, JaxArray, Scalar, Trajectory, Tree


class TargetBatch(NamedTuple):
    """`N` flat samples to learn from, evaluated under the target policy; with a memory `[T, B]`, as in `Batch`.

    Example:
      >>> one = jnp.ones(4)
      >>> samples = Batch(jnp.ones((4, 2)), jnp.zeros(4, jnp.int32), -one, one, one, one, jnp.int32(one), one > 0)
      >>> TargetBatch(samples, target_log_ratio=0 * one).samples.target.shape
      (4,)
    """

    samples: Batch  #: values, advantages and value targets are the target policy's.
    target_log_ratio: Float[Array, "N"]  #: log-probability under the target minus that under the behaviour policy.

    @property
    def valid(self) -> Shaped[Array, "*N"]:
        """False for a sample that is not a transition; it is ignored."""
        return self.samples.valid


@dataclass(frozen=True)
class IMPACT:
    """PPO around a target policy with V-trace advantages, for batches that are stale or learned from many times.

    The target is an earlier copy of the parameters. Whenever you renew the target, call `prepare` again for the
    remaining batches; until then V-trace need not be recomputed.

    Source:
      Luo et al. 2019, IMPACT: Importance Weighted Asynchronous Architectures with Clipped Target Networks; Stellaris
      (SC 2024) for the cap.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> def apply_fn(params, observation):  # any network: here, logits and a value, both linear
      ...     return observation @ params["policy"], observation @ params["value"]
      >>> params = {"policy": jnp.ones((2, 3)), "value": jnp.zeros(2)}
      >>> T, B = 3, 2
      >>> trajectory = Trajectory(
      ...     observation=jnp.ones((T + 1, B, 2)), action=jnp.zeros((T, B), jnp.int32), reward=jnp.ones((T, B)),
      ...     terminated=jnp.zeros((T, B), bool), valid=jnp.ones((T, B), bool), log_prob=jnp.full((T, B), -1.1),
      ...     value=jnp.zeros((T + 1, B)), version=jnp.zeros((T, B), jnp.int32))
      >>> impact = IMPACT()
      >>> batch = impact.prepare(trajectory, apply_fn, params)  # the target: a copy of the parameters
      >>> loss, metrics = impact.loss(apply_fn, params, batch)
      >>> batch.target_log_ratio.shape, sorted(metrics)[:3]
      ((6,), ['clip_fraction', 'entropy', 'kl'])
    """

    learning_rate: Scalar | optax.Schedule = 3e-4
    discount: Scalar = 0.99
    lambda_: Scalar = 0.95
    clip: Scalar = 0.2  #: half-width of the trust region around the target policy.
    clip_high: Scalar | None = None  #: half-width above a ratio of 1, `clip` by default.
    target_rho: Scalar = 2.0  #: truncation level of `behaviour / target`.
    rho_clip: Scalar = 1.0  #: bounds `target / behaviour` in V-trace's temporal differences.
    c_clip: Scalar = 1.0  #: bounds V-trace's traces.
    value_coefficient: Scalar = 0.5
    entropy_coefficient: Scalar = 0.0
    epochs: int = 10
    minibatch_size: int = 512  #: the largest size of a minibatch; a batch is split into equal minibatches.
    standardize_advantage: bool = True
    max_gradient_norm: Scalar | None = 0.5

    def __post_init__(self) -> None:
        actor_critic.check_learning_rate(self.learning_rate)
        checks.counts(epochs=self.epochs, minibatch_size=self.minibatch_size)
        checks.positive(clip=self.clip)
        checks.positive(**checks.given(clip_high=self.clip_high, max_gradient_norm=self.max_gradient_norm))
        checks.not_negative(rho_clip=self.rho_clip, c_clip=self.c_clip, value_coefficient=self.value_coefficient)
        checks.finite(value_coefficient=self.value_coefficient, entropy_coefficient=self.entropy_coefficient)
        checks.between_zero_and_one(discount=self.discount, lambda_=self.lambda_)
        check_rho(target_rho=self.target_rho)

    def optimizer(self) -> optax.GradientTransformation:
        """Adam (epsilon 1e-5), after the gradient's global norm is clipped."""
        return actor_critic.norm_clipped(optax.adam(self.learning_rate, eps=1e-5), self.max_gradient_norm)

    def prepare(self, trajectory: Trajectory, apply_fn: ApplyFn, target: Tree) -> TargetBatch:
        """Computes advantages and value targets by V-trace under the target policy, flattened to `N = T * B` samples.

        Args:
          trajectory: `[T, B, ...]` of any behaviour policies, as for `PPO.prepare`; its values are not used.
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          target: parameters of the target policy.

        Returns:
          A `TargetBatch`; sample `t * B + b` is step `t` of environment `b`. If the trajectory has a memory, the batch
          stays `[T, B, ...]`.

        Raises:
          ValueError: if the shapes of the trajectory's arrays do not fit.
        """
        check_trajectory(trajectory)
        checks.int32(**{"trajectory.version": trajectory.version})
        observation = before_the_last(observations(trajectory))
        valid = checks.mask(trajectory.valid, trajectory.reward)
        policy, last = actor_critic.evaluate_all(apply_fn, target, cleaned(trajectory, "action"))
        value = jnp.concatenate([policy.value, last])
        reward = jnp.asarray(trajectory.reward)
        discount = self.discount * (1.0 - jnp.asarray(trajectory.terminated, reward.dtype))
        estimate = vtrace(
            reward,
            discount,
            value,
            policy.log_ratio,
            lambda_=self.lambda_,
            rho_clip=self.rho_clip,
            c_clip=self.c_clip,
            valid=valid,
        )
        # This advantage contains no importance weight, because the loss weights the samples. With V-trace's advantage,
        # which contains one, the samples would be weighted twice.
        target = jnp.concatenate([estimate.target[1:], value[-1:]])
        following = self.lambda_ * target + (1.0 - self.lambda_) * value[1:]
        advantage = jnp.where(valid, reward + discount * following - value[:-1], 0.0)
        batch = TargetBatch(
            Batch(
                observation=observation,
                action=trajectory.action,
                log_prob=trajectory.log_prob,
                value=value[:-1],
                advantage=standardized(advantage, valid) if self.standardize_advantage else advantage,
                target=estimate.target,
                version=trajectory.version,
                valid=valid,
            ),
            policy.log_ratio,
        )
        flat: TargetBatch = items(jax.lax.stop_gradient(batch), valid.ndim, observation)
        return flat

    def minibatches(self, key: jax.Array, batch: TargetBatch) -> Int[JaxArray, "gradients minibatch"]:
        """Indices of every minibatch of every epoch, like `PPO.minibatches`."""
        return sampled_minibatches(key, batch, epochs=self.epochs, minibatch_size=self.minibatch_size)

    def select(self, batch: TargetBatch, indices: Int[Array, "m"]) -> TargetBatch:
        """The samples at `indices`; an index beyond the batch gives an invalid sample, which is ignored."""
        chosen: TargetBatch = take_items(batch, indices)
        return chosen

    def loss(
        self,
        apply_fn: ApplyFn,
        params: Tree,
        batch: TargetBatch,
        peers: tuple[Tree, ...] = (),
        *,
        rho: Scalar = 1.0,
        version: Int[Array, ""] | int | None = None,
        lags: int = 8,
    ) -> tuple[Float[JaxArray, ""], Metrics]:
        """Mean over valid samples of IMPACT's surrogate + value loss - entropy bonus.

        Args:
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          params: the policy that learns.
          batch: a batch from `prepare`.
          peers: parameters of the policies that other learners hold now; may include `params`. Ratios to the behaviour
            policy are truncated to `global_ratio_cap` over `params` and the peers.
          rho: truncation level of the cap, at least 1. The paper's rho is `target_rho`.
          version: version of the policy that learns; if given, the metrics include policy lags.
          lags: the number of policy lags that `by_lag` distinguishes.

        Returns:
          The scalar loss, and the metrics that `PPO.loss` reports. Here `clip_fraction` is the fraction of samples
          outside the trust region around the *target* policy.

        Raises:
          TypeError: if `batch` is a trajectory, or `peers` not a tuple.
          ValueError: if `rho` is below 1.
        """
        check_prepared(batch)
        samples: Batch = cleaned(batch.samples, "action", "log_prob", "advantage", "target")
        policy = actor_critic.evaluate(apply_fn, params, samples.observation, samples)
        cap = actor_critic.held_cap(apply_fn, peers, samples.observation, samples, policy.log_prob, rho)
        return actor_critic.loss(
            self,
            samples,
            policy,
            cap,
            policy_loss=impact_loss(
                policy.log_ratio,
                batch.target_log_ratio,
                samples.advantage,
                clip=self.clip,
                clip_high=self.clip_high,
                target_rho=self.target_rho,
                ratio_cap=cap,
            ),
            value_loss=value_loss(policy.value, samples.target),
            clipped=actor_critic.outside(
                _finite(policy.log_ratio) - _finite(batch.target_log_ratio), self.clip, self.clip_high
            ),
            version=version,
            lags=lags,
        )


def _finite(log_ratio: Array) -> jax.Array:
    """Clips to finite numbers, so that the difference of two infinite log-ratios is not NaN."""
    return jnp.clip(log_ratio, MIN_LOG_PROB, -MIN_LOG_PROB)
