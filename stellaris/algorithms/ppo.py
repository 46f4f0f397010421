"""Proximal policy optimisation: a configuration, and its loss over any network."""

from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int

from stellaris.losses import ppo_loss, value_loss
from stellaris.returns import gae
from stellaris.truncation import check_rho, global_ratio_cap, importance_ratio
from stellaris.types import ApplyFn, Array, Trajectory, Tree


class Batch(NamedTuple):
    """`N` samples to learn from, flat, with what the behaviour policy made of them."""

    observation: Array  #: `[N, *obs]` raw.
    action: Array  #: `[N, *action]`.
    log_prob: Float[Array, "N"]  #: of the action under the behaviour policy.
    value: Float[Array, "N"]  #: the behaviour policy's.
    advantage: Float[Array, "N"]  #: standardised over the batch if the configuration says so.
    target: Float[Array, "N"]  #: of the value: advantage before standardisation plus value.
    version: Int[Array, "N"]  #: of the behaviour policy.
    valid: Bool[Array, "N"]  #: False for a sample that is no transition, and weighs nothing.


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
      >>> sorted(metrics)
      ['clip_fraction', 'entropy', 'kl', 'policy_loss', 'truncation_fraction', 'value_loss']
    """

    learning_rate: float = 3e-4
    discount: float = 0.99
    lambda_: float = 0.95
    clip: float = 0.2
    value_coefficient: float = 0.5
    value_clip: float | None = None  #: how far a value may move from the behaviour policy's.
    value_loss_clip: float | None = None  #: upper bound of a sample's value loss.
    entropy_coefficient: float = 0.0
    epochs: int = 10
    minibatch_size: int = 512  #: at most; a batch is split into minibatches of equal size.
    standardize_advantage: bool = True
    max_gradient_norm: float | None = 0.5

    def __post_init__(self) -> None:
        positive = ("learning_rate", "clip", "value_clip", "value_loss_clip", "max_gradient_norm")
        for name in (*positive, "epochs", "minibatch_size"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise ValueError(f"{name}={value} is not positive")
        for name in ("discount", "lambda_"):
            if not 0.0 <= getattr(self, name) <= 1.0:
                raise ValueError(f"{name}={getattr(self, name)} lies outside [0, 1]")

    def optimizer(self) -> optax.GradientTransformation:
        """Adam (epsilon 1e-5) behind a bound on the gradient's global norm."""
        adam = optax.adam(self.learning_rate, eps=1e-5)
        if self.max_gradient_norm is None:
            return adam
        return optax.chain(optax.clip_by_global_norm(self.max_gradient_norm), adam)

    def prepare(self, trajectory: Trajectory) -> Batch:
        """Advantages and value targets from the behaviour policy, once; then flattened to `N = T * B` samples.

        Args:
          trajectory: `[T, B, ...]` of any behaviour policies.

        Returns:
          A `Batch`; sample `t * B + b` is step `t` of environment `b`.
        """
        reward, value, valid = (jnp.asarray(x) for x in (trajectory.reward, trajectory.value, trajectory.valid))
        discount = self.discount * (1.0 - jnp.asarray(trajectory.terminated, reward.dtype))
        advantage = gae(reward, discount, value, lambda_=self.lambda_, valid=valid)
        target = advantage + value[:-1]
        if self.standardize_advantage:
            mean = _mean(advantage, valid)
            deviation = jnp.sqrt(_mean(jnp.square(advantage - mean), valid))
            advantage = jnp.where(valid, (advantage - mean) / (deviation + 1e-8), 0.0)
        batch = Batch(
            observation=trajectory.observation[:-1],
            action=trajectory.action,
            log_prob=trajectory.log_prob,
            value=value[:-1],
            advantage=advantage,
            target=target,
            version=trajectory.version,
            valid=valid,
        )
        return Batch(*(jnp.reshape(x, (-1, *x.shape[2:])) for x in batch))

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
        if size < 1:
            raise ValueError(f"size={size} is below 1: there is nothing to learn from")
        count = -(-size // self.minibatch_size)
        length = -(-size // count)

        def epoch(key: jax.Array) -> jax.Array:
            order = jax.random.permutation(key, size).astype(jnp.int32)
            return jnp.pad(order, (0, count * length - size), constant_values=size)

        orders = jax.vmap(epoch)(jax.random.split(key, self.epochs))
        return orders.reshape(self.epochs * count, length)

    def loss(
        self,
        apply_fn: ApplyFn,
        params: Tree,
        batch: Batch,
        peers: tuple[Tree, ...] = (),
        *,
        rho: float = 1.0,
    ) -> tuple[Float[jax.Array, ""], dict[str, Float[jax.Array, ""]]]:
        """Mean over valid samples of surrogate + value loss - entropy bonus.

        Args:
          apply_fn: `(params, observation) -> (distribution, value)`.
          params: the policy that learns.
          batch: of any behaviour policies.
          peers: parameters of the policies that other learners hold now (one's own among them changes nothing). With
            any, ratios are truncated to `global_ratio_cap` over them and one's own; with none this is plain PPO.
          rho: truncation level of the cap, at least 1.

        Returns:
          The scalar loss, and the metrics `policy_loss`, `value_loss`, `entropy`, `kl` (to the behaviour policy,
          the estimator `r - 1 - log r`), `clip_fraction` and `truncation_fraction`.

        Raises:
          ValueError: if `rho` is below 1.
        """
        check_rho(rho)
        distribution, value = apply_fn(params, batch.observation)
        log_prob = distribution.log_prob(batch.action)
        log_ratio = log_prob - batch.log_prob
        ratio, cap = importance_ratio(log_ratio), None
        if peers:
            held = jnp.stack([apply_fn(peer, batch.observation)[0].log_prob(batch.action) for peer in peers])
            cap = global_ratio_cap(held - batch.log_prob, rho=rho)
            # One's own ratio is below or at the cap unless another's is truly below it. One's own policy may be among
            # the held, compiled differently: rounding alone must not truncate it.
            rounding = 100 * jnp.finfo(log_prob.dtype).eps * (1.0 + jnp.abs(log_prob))  # type: ignore[no-untyped-call]
            cap = jnp.where(jnp.any(held < log_prob - rounding, axis=0), cap, jnp.inf)
        policy = _mean(ppo_loss(log_ratio, batch.advantage, clip=self.clip, ratio_cap=cap), batch.valid)
        errors = value_loss(
            value, batch.target, old_value=batch.value, clip=self.value_clip, loss_clip=self.value_loss_clip
        )
        critic = _mean(errors, batch.valid)
        entropy = _mean(distribution.entropy(), batch.valid)
        truncated = jnp.zeros_like(ratio) if cap is None else ratio > cap
        metrics = {
            "policy_loss": policy,
            "value_loss": critic,
            "entropy": entropy,
            "kl": _mean(ratio - 1.0 - log_ratio, batch.valid),
            "clip_fraction": _mean(jnp.abs(ratio - 1.0) > self.clip, batch.valid),
            "truncation_fraction": _mean(truncated, batch.valid),
        }
        return policy + self.value_coefficient * critic - self.entropy_coefficient * entropy, metrics

    def update(
        self,
        apply_fn: ApplyFn,
        params: Tree,
        opt_state: Tree,
        batch: Batch,
        indices: Int[Array, "gradients minibatch"],
    ) -> tuple[Tree, Tree, dict[str, Float[jax.Array, ""]]]:
        """Plain PPO: one optimizer step for each row of `indices`, in order, as one scan.

        Args:
          apply_fn: `(params, observation) -> (distribution, value)`.
          params: of the policy.
          opt_state: of `optimizer()`.
          batch: from `prepare`.
          indices: from `minibatches`.

        Returns:
          `(params, opt_state, metrics)`, the metrics averaged over the gradients.
        """
        optimizer = self.optimizer()

        def step(carry: tuple[Tree, Tree], row: Any) -> tuple[tuple[Tree, Tree], dict[str, jax.Array]]:
            params, opt_state = carry
            gradient, metrics = jax.grad(
                lambda p: self.loss(apply_fn, p, take(batch, row)),
                has_aux=True,
            )(params)
            updates, opt_state = optimizer.update(gradient, opt_state, params)
            return (optax.apply_updates(params, updates), opt_state), metrics

        (params, opt_state), metrics = jax.lax.scan(step, (params, opt_state), indices)
        return params, opt_state, jax.tree.map(jnp.mean, metrics)


def take(batch: Batch, indices: Int[Array, "n"]) -> Batch:
    """The samples at `indices`; an index beyond the batch gives zeros, which are not valid and weigh nothing."""
    return Batch(*(jnp.take(jnp.asarray(x), indices, axis=0, mode="fill", fill_value=0) for x in batch))


def _mean(x: Any, valid: Array) -> jax.Array:
    """Mean over valid samples; 0 if there are none. What an invalid sample holds is never looked at."""
    x = jnp.asarray(x, jnp.float32) if x.dtype == bool else x
    total = jnp.sum(jnp.where(valid, x, 0.0))
    return total / jnp.maximum(jnp.sum(valid), 1).astype(x.dtype)
