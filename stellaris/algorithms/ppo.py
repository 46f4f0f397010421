"""Proximal policy optimisation: a configuration and its loss over any network."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.algorithms import actor_critic
from stellaris.algorithms.actor_critic import Metrics
from stellaris.algorithms.adaptive_penalty import with_penalty
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
from stellaris.losses import ppo_loss, value_loss
from stellaris.returns import gae
from stellaris.types import ApplyFn, Array, JaxArray, Scalar, Trajectory, Tree


@dataclass(frozen=True)
class PPO:
    """Clipped-surrogate PPO whose ratios may be truncated by the global cap.

    A configuration is hashable, so that its methods can be jitted with `static_argnums=0`.

    Source:
      Schulman et al. 2017, Proximal Policy Optimization Algorithms; Stellaris (SC 2024) for the cap.

    Example:
      >>> import jax, jax.numpy as jnp
      >>> from stellaris.algorithms import update
      >>> from stellaris.distributions import Categorical
      >>> def apply_fn(params, observation):  # any network: here, one logit and one value for each feature
      ...     return Categorical(observation * params["policy"]), observation @ params["value"]
      >>> params = {"policy": jnp.ones(2), "value": jnp.zeros(2)}
      >>> ppo = PPO(minibatch_size=4)
      >>> T, B = 3, 2
      >>> trajectory = Trajectory(
      ...     observation=jnp.ones((T + 1, B, 2)), action=jnp.zeros((T, B), jnp.int32), reward=jnp.ones((T, B)),
      ...     terminated=jnp.zeros((T, B), bool), valid=jnp.ones((T, B), bool), log_prob=jnp.full((T, B), -0.7),
      ...     value=jnp.zeros((T + 1, B)), version=jnp.zeros((T, B), jnp.int32))
      >>> batch = ppo.prepare(trajectory)
      >>> optimizer = ppo.optimizer()
      >>> indices = ppo.minibatches(jax.random.key(0), batch)
      >>> indices.shape  # 10 epochs of 2 minibatches of 3 samples
      (20, 3)
      >>> params, _, metrics = update(ppo, apply_fn, params, optimizer.init(params), batch, indices)
      >>> sorted(metrics)[:4]
      ['clip_fraction', 'entropy', 'finite', 'kl']
    """

    learning_rate: Scalar | optax.Schedule = 3e-4
    discount: Scalar = 0.99
    lambda_: Scalar = 0.95
    clip: Scalar = 0.2
    clip_high: Scalar | None = None  #: half-width above a ratio of 1, `clip` by default; 0.28 is DAPO's clip-higher.
    value_coefficient: Scalar = 0.5
    value_clip: Scalar | None = None  #: bound on a value's distance from the behaviour policy's value.
    value_loss_clip: Scalar | None = None  #: upper bound of a sample's value loss.
    entropy_coefficient: Scalar = 0.0
    kl_coefficient: Scalar = 0.0  #: weight of the penalty on the divergence from the behaviour policy.
    #: The divergence, in nats, towards which `update` adapts the weight after each batch; None for a constant weight.
    kl_target: Scalar | None = None
    epochs: int = 10
    minibatch_size: int = 512  #: the largest size of a minibatch; a batch is split into equal minibatches.
    standardize_advantage: bool = True
    max_gradient_norm: Scalar | None = 0.5

    def __post_init__(self) -> None:
        actor_critic.check_learning_rate(self.learning_rate)
        checks.counts(epochs=self.epochs, minibatch_size=self.minibatch_size)
        checks.positive(clip=self.clip)
        optional = ("clip_high", "value_clip", "value_loss_clip", "max_gradient_norm", "kl_target")
        checks.positive(**checks.given(**{name: getattr(self, name) for name in optional}))
        checks.not_negative(value_coefficient=self.value_coefficient, kl_coefficient=self.kl_coefficient)
        checks.finite(value_coefficient=self.value_coefficient, entropy_coefficient=self.entropy_coefficient)
        checks.between_zero_and_one(discount=self.discount, lambda_=self.lambda_)
        if self.kl_target is not None and dict(checks.known(weight=self.kl_coefficient)).get("weight") == 0:
            raise ValueError(
                f"kl_target={self.kl_target} with kl_coefficient=0: a weight of 0 cannot be adapted, so give the "
                "weight for the first batch, such as 0.2"
            )

    def optimizer(self) -> optax.GradientTransformation:
        """Adam (epsilon 1e-5), after the gradient's global norm is clipped.

        With a `kl_target` the optimizer's state also holds the penalty's weight. `update` adapts the weight after each
        batch; a system whose learners compute single gradients, such as `Stellaris`, keeps it at `kl_coefficient`.
        """
        optimizer = actor_critic.norm_clipped(optax.adam(self.learning_rate, eps=1e-5), self.max_gradient_norm)
        return optimizer if self.kl_target is None else with_penalty(optimizer, self.kl_coefficient, self.kl_target)

    def prepare(self, trajectory: Trajectory, apply_fn: ApplyFn | None = None, target: Tree = None) -> Batch:
        """Computes advantages and value targets under the behaviour policy, and flattens to `N = T * B` samples.

        Args:
          trajectory: `[T, B, ...]` of any behaviour policies; there may be any number of batch axes.
          apply_fn: ignored; other algorithms need it.
          target: ignored; other algorithms need it.

        Returns:
          A `Batch`; sample `t * B + b` is step `t` of environment `b`. If the trajectory has a memory, the batch stays
          `[T, B, ...]`.

        Raises:
          ValueError: if the shapes of the trajectory's arrays do not fit.
        """
        del apply_fn, target
        check_trajectory(trajectory)
        checks.int32(**{"trajectory.version": trajectory.version})
        reward, value = jnp.asarray(trajectory.reward), jnp.asarray(trajectory.value)
        valid = checks.mask(trajectory.valid, reward)
        discount = self.discount * (1.0 - jnp.asarray(trajectory.terminated, reward.dtype))
        advantage = gae(reward, discount, value, lambda_=self.lambda_, valid=valid)
        batch = Batch(
            observation=before_the_last(observations(trajectory)),
            action=trajectory.action,
            log_prob=trajectory.log_prob,
            value=value[:-1],
            advantage=standardized(advantage, valid) if self.standardize_advantage else advantage,
            target=advantage + value[:-1],
            version=trajectory.version,
            valid=valid,
        )
        flat: Batch = items(batch, valid.ndim, batch.observation)
        return flat

    def minibatches(self, key: jax.Array, batch: Batch) -> Int[JaxArray, "gradients minibatch"]:
        """Indices of every minibatch of every epoch, in the order in which plain PPO takes them.

        Args:
          key: key of the shuffles; it is split into one key per epoch.
          batch: a batch of `N` samples from `prepare`; only its shape matters.

        Returns:
          int32 `[epochs * ceil(N / minibatch_size), ...]`: each epoch is one permutation, cut into minibatches of equal
          size. If these have more than `N` places, the epoch's last minibatch is padded with `N`, an index beyond the
          batch. If the batch has sequences, `[T, B]`, they are indices of sequences: a minibatch has
          `minibatch_size // T` of them, at least 1.

        Raises:
          ValueError: if the batch is empty.
        """
        return sampled_minibatches(key, batch, epochs=self.epochs, minibatch_size=self.minibatch_size)

    def select(self, batch: Batch, indices: Int[Array, "m"]) -> Batch:
        """The samples at `indices`; an index beyond the batch gives an invalid sample, which is ignored."""
        chosen: Batch = take_items(batch, indices)
        return chosen

    def loss(
        self,
        apply_fn: ApplyFn,
        params: Tree,
        batch: Batch,
        peers: tuple[Tree, ...] = (),
        *,
        rho: Scalar = 1.0,
        kl_coefficient: Float[Array, ""] | float | None = None,
        version: Int[Array, ""] | int | None = None,
        lags: int = 8,
    ) -> tuple[Float[JaxArray, ""], Metrics]:
        """Mean over valid samples of surrogate + value loss - entropy bonus (+ divergence penalty).

        Args:
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          params: the policy that learns.
          batch: a batch from `select` or `prepare`, of any behaviour policies.
          peers: parameters of the policies that other learners hold now; may include `params`. Ratios are truncated to
            `global_ratio_cap` over `params` and the peers. Without peers this is plain PPO.
          rho: truncation level of the cap, at least 1.
          kl_coefficient: weight of the divergence penalty, from `adapt_kl_coefficient`; replaces the configuration's
            weight.
          version: version of the policy that learns; if given, the metrics include policy lags.
          lags: the number of policy lags that `by_lag` distinguishes.

        Returns:
          The scalar loss, and the metrics `policy_loss`, `value_loss`, `entropy`, `kl` (to the behaviour policy, by
          `approximate_kl`), `clip_fraction`, `truncation_fraction`, and `version_mean` and `version_oldest`, the mean
          and the smallest version that chose an action. With `version` also `data_lag_mean` and `data_lag_max`, which
          are `version` minus `version_mean` and minus `version_oldest`, and `by_lag`, a `LagReport`. Without a valid
          sample both versions are `version`.

        Raises:
          TypeError: if `batch` is a trajectory, or `peers` not a tuple.
          ValueError: if `rho` is below 1.
        """
        check_prepared(batch)
        batch = cleaned(batch, "action", "log_prob", "value", "advantage", "target")
        policy = actor_critic.evaluate(apply_fn, params, batch.observation, batch)
        cap = actor_critic.held_cap(apply_fn, peers, batch.observation, batch, policy.log_prob, rho)
        total, metrics = actor_critic.loss(
            self,
            batch,
            policy,
            cap,
            policy_loss=ppo_loss(
                policy.log_ratio, batch.advantage, clip=self.clip, clip_high=self.clip_high, ratio_cap=cap
            ),
            value_loss=value_loss(
                policy.value, batch.target, old_value=batch.value, clip=self.value_clip, loss_clip=self.value_loss_clip
            ),
            clipped=actor_critic.outside(policy.log_ratio, self.clip, self.clip_high),
            version=version,
            lags=lags,
        )
        weight = self.kl_coefficient if kl_coefficient is None else kl_coefficient
        if not (isinstance(weight, float | int) and weight == 0):  # 0 * inf would be NaN; a traced weight is unknown
            total += weight * metrics["kl"]
        return total, metrics
