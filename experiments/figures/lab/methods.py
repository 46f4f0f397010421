"""Corrections for stale data, as algorithms that differ from PPO only in the policy loss, except V-trace and IMPACT."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax

from stellaris import IMPACT, IMPALA, PPO
from stellaris.algorithms import Algorithm, Batch, actor_critic
from stellaris.algorithms.actor_critic import Evaluated, Metrics
from stellaris.algorithms.batch import before_the_last, cleaned, flatten, minibatches, take
from stellaris.corrections.effective_samples import effective_sample_fraction
from stellaris.corrections.ratios import importance_ratio
from stellaris.losses import decoupled_ppo_loss, impala_loss, ppo_loss, value_loss
from stellaris.types import ApplyFn, Array, Trajectory, Tree

#: Ratios this close to a cap count as equal to it: they differ by rounding.
_ROUNDING = 1e-5


class ProximalBatch(NamedTuple):
    """A batch of PPO, with the log-ratios of a more recent policy to the behaviour policy."""

    samples: Batch
    proximal_log_ratio: Array  #: `[N]`, of the version that was the newest when the batch was prepared.

    @property
    def valid(self) -> Array:
        """False for a sample that is not a transition."""
        return self.samples.valid


@dataclass(frozen=True)
class Corrected(PPO):
    """PPO with another policy loss, which may also use the policy that was the newest when the batch was prepared.

    Subclasses share PPO's advantages, value loss, optimizer, minibatches and epochs, and differ only in the correction.
    """

    def prepare(self, trajectory: Trajectory, apply_fn: ApplyFn | None = None, target: Tree = None) -> Any:
        """Returns PPO's batch, with the log-ratios of the newest policy, `target`."""
        assert apply_fn is not None
        observation = before_the_last(trajectory.observation)
        newest = actor_critic.evaluate(apply_fn, target, observation, cleaned(trajectory, "action"))
        log_ratio = flatten(newest.log_ratio, newest.log_ratio.ndim)
        return ProximalBatch(super().prepare(trajectory), jax.lax.stop_gradient(log_ratio))

    def minibatches(self, key: jax.Array, batch: Any) -> jax.Array:
        """Returns the indices of every minibatch of every epoch, as `PPO.minibatches`."""
        return minibatches(key, len(batch.valid), epochs=self.epochs, minibatch_size=self.minibatch_size)

    def select(self, batch: Any, indices: Any) -> Any:
        """Returns the samples at `indices`."""
        return take(batch, indices)

    def policy_loss(self, policy: Evaluated, proximal_log_ratio: Array, advantage: Array) -> Array:
        """Returns the policy loss of each sample: here `-A log pi`, without correction or trust region."""
        return impala_loss(policy.log_prob, advantage)

    def loss(
        self, apply_fn: ApplyFn, params: Tree, batch: Any, peers: tuple[Tree, ...] = (), **options: Any
    ) -> tuple[Any, Metrics]:
        """Returns the loss, policy loss + value loss - entropy bonus averaged over valid samples, and metrics.

        These are PPO's, and the effective sample fraction of the ratios to the behaviour policy.
        """
        samples: Batch = cleaned(batch.samples, "action", "log_prob", "value", "advantage", "target")
        policy = actor_critic.evaluate(apply_fn, params, samples.observation, samples)
        policy = policy._replace(log_prob=jnp.where(samples.valid, policy.log_prob, 0.0))
        advantage = jnp.where(samples.valid, samples.advantage, 0.0)
        loss, metrics = actor_critic.loss(
            self,
            samples,
            policy,
            None,
            policy_loss=self.policy_loss(policy, batch.proximal_log_ratio, advantage),
            value_loss=value_loss(policy.value, samples.target),
            clipped=actor_critic.outside(policy.log_ratio, self.clip),
            version=options.get("version"),
            lags=options.get("lags", 8),
        )
        fraction = effective_sample_fraction(policy.log_ratio, valid=samples.valid)
        return loss, {**metrics, "effective_sample_fraction": fraction}


@dataclass(frozen=True)
class Decoupled(Corrected):
    """Decoupled PPO (Hilton et al. 2021): a trust region around the newest policy when the batch was prepared."""

    def policy_loss(self, policy: Evaluated, proximal_log_ratio: Array, advantage: Array) -> Array:
        """Returns `decoupled_ppo_loss`."""
        return decoupled_ppo_loss(policy.log_ratio, proximal_log_ratio, advantage, clip=self.clip)


@dataclass(frozen=True)
class Capped(Corrected):
    """PPO whose ratios are truncated by Stellaris' global cap over two held policies.

    One is the policy that learns. The other is the policy that was the newest when the batch was prepared: a second
    learner that started on this batch would hold it. The cap has two forms, of the paper's theorem and of the authors'
    demo. With a single held policy the demo's cap is never below the ratio, so it would truncate nothing.
    """

    rho: float = 1.0
    bounded: bool = False  #: False for the demo's cap, `max(min r, rho)`; True for the theorem's, `min(min r, rho)`.

    def policy_loss(self, policy: Evaluated, proximal_log_ratio: Array, advantage: Array) -> Array:
        """Returns `ppo_loss` with the cap."""
        own = jax.lax.stop_gradient(importance_ratio(policy.log_ratio))
        least = jnp.minimum(own, importance_ratio(proximal_log_ratio))
        cap = jnp.minimum(least, self.rho) if self.bounded else jnp.maximum(least, self.rho)
        cap = jnp.where(own > cap * (1.0 + _ROUNDING), cap, jnp.inf)
        return ppo_loss(policy.log_ratio, advantage, clip=self.clip, ratio_cap=cap)


@dataclass(frozen=True)
class VTrace(IMPALA):
    """IMPALA's loss with PPO's optimizer. Settings that PPO also has get the values of the other methods."""

    lambda_: float = 0.95
    value_coefficient: float = 0.5
    entropy_coefficient: float = 0.0
    max_gradient_norm: float | None = 0.5

    def optimizer(self) -> optax.GradientTransformation:
        """Returns PPO's optimizer: Adam after clipping the gradient's global norm."""
        return PPO(learning_rate=self.learning_rate, max_gradient_norm=self.max_gradient_norm).optimizer()


def methods(*, epochs: int, minibatch_size: int, fragment: int) -> Mapping[str, Algorithm]:
    """Returns the methods by name. All compute equally many gradients per batch, of equally many samples.

    Args:
      epochs: number of passes over a batch.
      minibatch_size: number of samples of a gradient.
      fragment: number of steps of a trajectory: a minibatch of V-trace has `minibatch_size // fragment` trajectories.
    """
    same: dict[str, Any] = {"epochs": epochs, "minibatch_size": minibatch_size}
    return {
        "no correction": Corrected(**same),
        "PPO": PPO(**same),
        "decoupled PPO": Decoupled(**same),
        "V-trace": VTrace(epochs=epochs, minibatch_size=minibatch_size // fragment),
        "IMPACT": IMPACT(**same),
        "cap, demo": Capped(**same),
        "cap, theorem": Capped(**same, bounded=True),
    }
