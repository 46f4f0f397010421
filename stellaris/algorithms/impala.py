"""IMPALA: a configuration and its loss over any network."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.algorithms import actor_critic
from stellaris.algorithms.actor_critic import Metrics
from stellaris.algorithms.batch import before_the_last, check_trajectory, cleaned, minibatches, observations, take
from stellaris.corrections.ratios import importance_ratio
from stellaris.losses import impala_loss, value_loss
from stellaris.returns import vtrace
from stellaris.types import ApplyFn, Array, JaxArray, Scalar, Trajectory, Tree


@dataclass(frozen=True)
class IMPALA:
    """Actor-critic with V-trace; with peers, Stellaris' cap replaces two of V-trace's clips.

    The defaults are the paper's for Atari, with losses averaged instead of summed.

    Source:
      Espeholt et al. 2018, IMPALA, Table G.1; Stellaris (SC 2024) for the cap.

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
      >>> loss, metrics = IMPALA().loss(apply_fn, params, trajectory)
      >>> print(f"{metrics['value_loss']:.3f} {metrics['entropy']:.3f}")  # targets near 3, 2 and 1
      4.594 1.099
    """

    learning_rate: Scalar | optax.Schedule = 6e-4
    discount: Scalar = 0.99
    lambda_: Scalar = 1.0
    rho_clip: Scalar = 1.0  #: bounds V-trace's temporal differences; with peers, the cap replaces it.
    c_clip: Scalar = 1.0  #: bounds V-trace's traces.
    pg_rho_clip: Scalar = 1.0  #: bounds the policy gradient; with peers, the cap replaces it.
    value_coefficient: Scalar = 0.25  #: the same as the paper's 0.5 times half the squared error.
    entropy_coefficient: Scalar = 0.01
    decay: Scalar = 0.99  #: RMSProp's decay.
    epsilon: Scalar = 0.01  #: RMSProp's epsilon.
    max_gradient_norm: Scalar | None = 40.0
    epochs: int = 1
    minibatch_size: int = 32  #: the most trajectories in a minibatch; a batch is split into equal minibatches.

    def __post_init__(self) -> None:
        actor_critic.check_learning_rate(self.learning_rate)
        checks.counts(epochs=self.epochs, minibatch_size=self.minibatch_size)
        checks.positive(epsilon=self.epsilon, **checks.given(max_gradient_norm=self.max_gradient_norm))
        checks.not_negative(rho_clip=self.rho_clip, c_clip=self.c_clip, pg_rho_clip=self.pg_rho_clip)
        checks.not_negative(value_coefficient=self.value_coefficient)
        checks.finite(value_coefficient=self.value_coefficient, entropy_coefficient=self.entropy_coefficient)
        checks.between_zero_and_one(discount=self.discount, lambda_=self.lambda_, decay=self.decay)

    def optimizer(self) -> optax.GradientTransformation:
        """RMSProp without momentum, after the gradient's global norm is clipped."""
        return actor_critic.norm_clipped(
            optax.rmsprop(self.learning_rate, self.decay, self.epsilon), self.max_gradient_norm
        )

    def prepare(self, trajectory: Trajectory, apply_fn: ApplyFn | None = None, target: Tree = None) -> Trajectory:
        """Returns the trajectory: V-trace needs the policy that learns, so the loss computes it.

        Args:
          trajectory: `[T, B, ...]` of any behaviour policies.
          apply_fn: ignored; other algorithms need it.
          target: ignored; other algorithms need it.

        Raises:
          ValueError: if the shapes of the trajectory's arrays do not fit.
        """
        del apply_fn, target
        check_trajectory(trajectory)
        return trajectory

    def minibatches(self, key: jax.Array, batch: Trajectory) -> Int[JaxArray, "gradients minibatch"]:
        """Indices of the trajectories in every minibatch of every epoch, like `PPO.minibatches` for samples.

        Args:
          key: key of the shuffles; it is split into one key per epoch.
          batch: `[T, B, ...]`; only its shape matters.

        Returns:
          int32 `[epochs * ceil(B / minibatch_size), ...]`.

        Raises:
          ValueError: if the batch is empty.
        """
        return minibatches(key, batch.valid.shape[1], epochs=self.epochs, minibatch_size=self.minibatch_size)

    def select(self, batch: Trajectory, indices: Int[Array, "m"]) -> Trajectory:
        """The trajectories at `indices`; an index beyond the batch gives an invalid trajectory, which is ignored."""
        chosen: Trajectory = take(batch, indices, axis=1)
        return chosen

    def loss(
        self,
        apply_fn: ApplyFn,
        params: Tree,
        batch: Trajectory,
        peers: tuple[Tree, ...] = (),
        *,
        rho: Scalar = 1.0,
        version: Int[Array, ""] | int | None = None,
        lags: int = 8,
    ) -> tuple[Float[JaxArray, ""], Metrics]:
        """Mean over valid steps of policy gradient + value loss - entropy bonus.

        Args:
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          params: the policy that learns.
          batch: a trajectory `[T, B, ...]` of any behaviour policies; its values are not used.
          peers: parameters of the policies that other learners hold now; may include `params`. With peers and a finite
            `rho`, `global_ratio_cap` over `params` and the peers *replaces* `rho_clip` and `pg_rho_clip` in V-trace;
            next to clips of 1 the cap would have no effect, because it is at least `rho >= 1`. Without peers or with
            infinite `rho` this is plain IMPALA. If all peers equal `params`, the cap truncates nothing.
          rho: truncation level of the cap, at least 1.
          version: version of the policy that learns; if given, the metrics include policy lags.
          lags: the number of policy lags that `by_lag` distinguishes.

        Returns:
          The scalar loss, and the metrics that `PPO.loss` reports. Here `clip_fraction` is the fraction of ratios
          above `pg_rho_clip`; it is 0 if the cap replaces `pg_rho_clip`.

        Raises:
          ValueError: if `rho` is below 1, or the shapes of the trajectory's arrays do not fit.
        """
        check_trajectory(batch)
        batch = cleaned(batch, "action", "log_prob")
        observation = before_the_last(observations(batch))
        policy, last = actor_critic.evaluate_all(apply_fn, params, batch)
        cap = actor_critic.held_cap(apply_fn, peers, observation, batch, policy.log_prob, rho)
        rho_clip, pg_rho_clip = self.rho_clip, self.pg_rho_clip
        if cap is not None:
            # A traced level may also be infinite; it then caps nothing.
            rho_clip, pg_rho_clip = (jnp.where(jnp.isinf(rho), clip, jnp.inf) for clip in (rho_clip, pg_rho_clip))
        reward = jnp.asarray(batch.reward)
        target, advantage, _ = vtrace(
            reward,
            self.discount * (1.0 - jnp.asarray(batch.terminated, reward.dtype)),
            jnp.concatenate([policy.value, last]),
            policy.log_ratio,
            lambda_=self.lambda_,
            rho_clip=rho_clip,
            c_clip=self.c_clip,
            pg_rho_clip=pg_rho_clip,
            ratio_cap=cap,
            valid=batch.valid,
        )
        return actor_critic.loss(
            self,
            batch,
            policy,
            cap,
            policy_loss=impala_loss(jnp.where(batch.valid, policy.log_prob, 0.0), advantage),
            value_loss=value_loss(policy.value, target),
            clipped=importance_ratio(policy.log_ratio) > pg_rho_clip,
            version=version,
            lags=lags,
        )
