"""Proximal policy optimisation: a configuration, and its loss over any network."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Float, Int

from stellaris import checks, eager
from stellaris.algorithms import common
from stellaris.algorithms.batch import Batch, cleaned, flatten, minibatches, standardized, take
from stellaris.algorithms.common import Metrics
from stellaris.losses import ppo_loss, value_loss
from stellaris.returns import gae
from stellaris.truncation import check_rho
from stellaris.types import ApplyFn, Array, Trajectory, Tree


@dataclass(frozen=True)
class PPO:
    """Clipped-surrogate PPO whose ratios may be truncated by the global cap.

    Hashable, so that its methods can be jitted with `static_argnums=0`.

    Source:
      Schulman et al. 2017, Proximal Policy Optimization Algorithms; Stellaris (SC 2024) for the cap.

    Example:
      >>> import jax, jax.numpy as jnp
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
      >>> indices = ppo.minibatches(jax.random.key(0), size=T * B)
      >>> indices.shape  # 10 epochs of 2 minibatches of 3 samples
      (20, 3)
      >>> params, _, metrics = ppo.update(apply_fn, params, optimizer.init(params), batch, indices)
      >>> sorted(metrics)[:6]
      ['clip_fraction', 'entropy', 'kl', 'policy_loss', 'truncation_fraction', 'value_loss']
    """

    learning_rate: float | optax.Schedule = 3e-4
    discount: float = 0.99
    lambda_: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 0.5
    value_clip: float | None = None  #: how far a value may move from the behaviour policy's.
    value_loss_clip: float | None = None  #: upper bound of a sample's value loss.
    entropy_coefficient: float = 0.0
    kl_coefficient: float = 0.0  #: of the penalty on the divergence from the behaviour policy.
    epochs: int = 10
    minibatch_size: int = 512  #: at most; a batch is split into minibatches of equal size.
    standardize_advantage: bool = True
    max_gradient_norm: float | None = 0.5

    def __post_init__(self) -> None:
        common.check_learning_rate(self.learning_rate)
        checks.positive(clip=self.clip, epochs=self.epochs, minibatch_size=self.minibatch_size)
        optional = ("value_clip", "value_loss_clip", "max_gradient_norm")
        checks.positive(**checks.given(**{name: getattr(self, name) for name in optional}))
        checks.not_negative(value_coefficient=self.value_coefficient, kl_coefficient=self.kl_coefficient)
        checks.finite(value_coefficient=self.value_coefficient, entropy_coefficient=self.entropy_coefficient)
        checks.between_zero_and_one(discount=self.discount, lambda_=self.lambda_)

    def optimizer(self) -> optax.GradientTransformation:
        """Adam (epsilon 1e-5) behind a bound on the gradient's global norm."""
        return common.norm_clipped(optax.adam(self.learning_rate, eps=1e-5), self.max_gradient_norm)

    def prepare(self, trajectory: Trajectory) -> Batch:
        """Advantages and value targets from the behaviour policy, once; then flattened to `N = T * B` samples.

        Args:
          trajectory: `[T, B, ...]` of any behaviour policies; `[T, ...]` and several batch axes do as well.

        Returns:
          A `Batch`; sample `t * B + b` is step `t` of environment `b`.
        """
        reward, value, valid = (jnp.asarray(x) for x in (trajectory.reward, trajectory.value, trajectory.valid))
        discount = self.discount * (1.0 - jnp.asarray(trajectory.terminated, reward.dtype))
        advantage = gae(reward, discount, value, lambda_=self.lambda_, valid=valid)
        batch = Batch(
            observation=trajectory.observation[:-1],
            action=trajectory.action,
            log_prob=trajectory.log_prob,
            value=value[:-1],
            advantage=standardized(advantage, valid) if self.standardize_advantage else advantage,
            target=advantage + value[:-1],
            version=trajectory.version,
            valid=valid,
        )
        flat: Batch = flatten(batch, valid.ndim)
        return flat

    def minibatches(self, key: jax.Array, size: int) -> Int[jax.Array, "gradients minibatch"]:
        """Indices of every minibatch of every epoch, in the order in which plain PPO takes them.

        Args:
          key: of the shuffles; each epoch has its own.
          size: samples in the batch, at least 1.

        Returns:
          int32 `[epochs * ceil(size / minibatch_size), ...]`: each epoch is one permutation, cut into minibatches of
          equal size. If they do not come out even, the last is filled up with `size`, an index beyond the batch, which
          `loss` sees as a sample that weighs nothing.

        Raises:
          ValueError: if `size` is below 1.
        """
        return minibatches(key, size, epochs=self.epochs, minibatch_size=self.minibatch_size)

    def loss(
        self,
        apply_fn: ApplyFn,
        params: Tree,
        batch: Batch,
        peers: tuple[Tree, ...] = (),
        *,
        rho: float = 1.0,
        kl_coefficient: Float[Array, ""] | float | None = None,
        version: Int[Array, ""] | int | None = None,
        lags: int = 8,
    ) -> tuple[Float[jax.Array, ""], Metrics]:
        """Mean over valid samples of surrogate + value loss - entropy bonus (+ divergence penalty).

        Args:
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          params: the policy that learns.
          batch: of any behaviour policies.
          peers: parameters of the policies that other learners hold now (one's own among them changes nothing). With
            any, ratios are truncated to `global_ratio_cap` over them and one's own; with none this is plain PPO.
          rho: truncation level of the cap, at least 1.
          kl_coefficient: of the divergence penalty, in place of the configuration's: from `adapt_kl_coefficient`.
          version: of the policy that learns; with it, the metrics have `by_lag`.
          lags: how many policy lags `by_lag` tells apart.

        Returns:
          The scalar loss, and the metrics `policy_loss`, `value_loss`, `entropy`, `kl` (to the behaviour policy, by
          `approximate_kl`), `clip_fraction`, `truncation_fraction`, and the `version_mean` and `version_oldest` that
          chose the actions; `by_lag` is a `LagReport`.

        Raises:
          ValueError: if `rho` is below 1.
        """
        check_rho(rho)
        batch = cleaned(batch, "action", "log_prob", "value", "advantage", "target")
        policy = common.evaluate(apply_fn, params, batch.observation, batch.action)
        log_ratio = common.log_ratio(policy.log_prob, batch.log_prob, batch.valid)
        cap = common.held_cap(apply_fn, peers, batch.observation, batch, policy.log_prob, rho)
        metrics = common.report(
            batch,
            log_ratio,
            policy_loss=ppo_loss(log_ratio, batch.advantage, clip=self.clip, ratio_cap=cap),
            value_loss=value_loss(
                policy.value, batch.target, old_value=batch.value, clip=self.value_clip, loss_clip=self.value_loss_clip
            ),
            entropy=policy.entropy,
            clipped=common.outside(log_ratio, self.clip),
            cap=cap,
            version=version,
            lags=lags,
        )
        total = common.total(
            metrics, value_coefficient=self.value_coefficient, entropy_coefficient=self.entropy_coefficient
        )
        if kl_coefficient is not None or self.kl_coefficient:
            total += (self.kl_coefficient if kl_coefficient is None else kl_coefficient) * metrics["kl"]
        return total, metrics

    def update(
        self,
        apply_fn: ApplyFn,
        params: Tree,
        opt_state: Tree,
        batch: Batch,
        indices: Int[Array, "gradients minibatch"],
    ) -> tuple[Tree, Tree, Metrics]:
        """Plain PPO: one optimizer step for each row of `indices`, in order, as one scan.

        Outside of `jit` it is compiled once for each configuration and `apply_fn`, as by `jax.jit`: what `apply_fn`
        closes over is a constant, so make it once and let whatever changes be among its parameters. The programs used
        last are kept, 32 of them.

        Args:
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          params: of the policy.
          opt_state: of `optimizer()`.
          batch: from `prepare`.
          indices: from `minibatches`.

        Returns:
          `(params, opt_state, metrics)`, the metrics averaged over the gradients.
        """
        updated: tuple[Tree, Tree, Metrics] = eager.call(_update, (self, apply_fn), params, opt_state, batch, indices)
        return updated


def _update(
    ppo: PPO, apply_fn: ApplyFn, params: Tree, opt_state: Tree, batch: Batch, indices: Array
) -> tuple[Tree, Tree, Metrics]:
    optimizer = ppo.optimizer()

    def step(carry: tuple[Tree, Tree], row: Any) -> tuple[tuple[Tree, Tree], Metrics]:
        params, opt_state = carry
        gradient, metrics = jax.grad(lambda p: ppo.loss(apply_fn, p, take(batch, row)), has_aux=True)(params)
        with jax.numpy_dtype_promotion("standard"):  # optax's Adam is not strict about types
            updates, opt_state = optimizer.update(gradient, opt_state, params)
        return (optax.apply_updates(params, updates), opt_state), metrics

    (params, opt_state), metrics = jax.lax.scan(step, (params, opt_state), indices)
    return params, opt_state, jax.tree.map(jnp.mean, metrics)
