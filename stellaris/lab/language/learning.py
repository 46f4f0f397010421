"""Learning from groups of answers: GRPO, and other corrections for stale tokens and stale sequences."""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import optax
from jaxtyping import Bool, Float, Int, Shaped

from stellaris._core import checks
from stellaris.advantages import group_relative_advantage, leave_one_out_advantage
from stellaris.algorithms import actor_critic
from stellaris.algorithms.actor_critic import Evaluated, Metrics
from stellaris.algorithms.batch import cleaned, masked_mean, minibatches, take
from stellaris.corrections import effective_sample_fraction, sequence_log_ratio
from stellaris.lab.language.environment import Answering
from stellaris.lab.language.transformer import Observation
from stellaris.losses import ppo_loss
from stellaris.reductions import reduce_loss
from stellaris.types import ApplyFn, Array, JaxArray, Scalar, Trajectory, Tree

_ADVANTAGES = ("group-relative", "group-mean", "leave-one-out")


class Answers(NamedTuple):
    """`N` answers to learn from, one per column; row `t` is the answer's token `t`, of at most `T`."""

    text: Int[Array, "L N"]  #: the prompt and the whole answer.
    position: Int[Array, "T N"]  #: the token's place in the text.
    action: Int[Array, "T N"]  #: the token.
    log_prob: Float[Array, "T N"]  #: its log-probability under the version that wrote it.
    proximal_log_prob: Float[
        Array, "T N"
    ]  #: under the newest version when the batch was prepared, if the loss needs it.
    reward: Float[Array, "N"]  #: the answer's reward.
    exact: Bool[Array, "N"]  #: whether the answer is right in all its tokens.
    advantage: Float[Array, "T N"]  #: the answer's advantage, at every token.
    version: Int[Array, "T N"]  #: the version that wrote the token.
    valid: Shaped[Array, "T N"]  #: False after the answer's end.

    @property
    def observation(self) -> Observation:
        """The texts, and the places of all tokens: one forward pass per text serves all of them."""
        return Observation(self.position, jnp.asarray(self.text).T[None])


class Tokens(NamedTuple):
    """The numbers from which a policy loss is computed, `[T, N]`; 0 where `valid` is False."""

    log_prob: Float[JaxArray, "T N"]  #: under the policy that learns.
    log_ratio: Float[JaxArray, "T N"]  #: of the policy that learns to the version that wrote the token.
    proximal_log_ratio: Float[JaxArray, "T N"]  #: of the newest version at the batch's preparation to that version.
    advantage: Float[JaxArray, "T N"]
    valid: Bool[JaxArray, "T N"]
    cap: Float[JaxArray, "T N"] | None  #: the global cap, if the loss is capped and other learners hold policies.


@dataclass(frozen=True)
class GRPO:
    """Group-relative policy optimisation: PPO's clipped surrogate per token, and advantages of groups without a critic.

    A fragment is a group: the answers to one prompt. For another correction override `policy_loss` in a subclass; the
    module `corrections` has several.

    Args:
      environment: the environment, whose fragments are groups.
      learning_rate: of Adam.
      clip: half-width of the trust region below a ratio of 1.
      clip_high: half-width above a ratio of 1; `clip` by default.
      advantage: `"group-relative"` (GRPO), `"group-mean"` (Dr. GRPO), or `"leave-one-out"` (RLOO).
      over: how the loss of tokens is reduced; see `reduce_loss`; the fixed length is the longest answer's.
      entropy_coefficient: weight of the entropy bonus.
      discard: answers are left out if their oldest token was written more than so many versions ago; None to learn from
        all. The other answers of a group keep their advantages.
      epochs: how often each answer is learned from.
      minibatch_size: the most answers in a minibatch.
      max_gradient_norm: the gradient's largest global norm; None to clip nothing.

    Raises:
      TypeError: if `environment` is not an `Answering`, or a number has the wrong type.
      ValueError: if a setting is out of range or unknown.

    Source:
      Shao et al. 2024, DeepSeekMath, Section 4.1, without the penalty on the divergence from a reference policy; Yu et
      al. 2025, DAPO, for the mean over all tokens of a batch, the default here.

    Example:
      >>> from stellaris.lab import imposed, sweep
      >>> from stellaris.lab.language import Answering, Sorting, Transformer, workload
      >>> env = Answering(Sorting(most=2), group=4)
      >>> small = workload(env, Transformer.of(env.task, width=8, layers=1, heads=1), actors=2)
      >>> result = sweep(small, GRPO(env, learning_rate=1e-2), imposed(3, actors=2))
      >>> dict(result.sizes), bool((result.answers == 8).all())
      ({'seed': 1, 'update': 3}, True)
    """

    environment: Answering
    learning_rate: Scalar | optax.Schedule = 2e-3
    clip: Scalar = 0.2
    clip_high: Scalar | None = None
    advantage: str = "group-relative"
    over: str = "steps"
    entropy_coefficient: Scalar = 0.2
    discard: int | None = None
    epochs: int = 1
    minibatch_size: int = 256
    max_gradient_norm: Scalar | None = 1.0

    #: Whether the loss needs the proximal policy, which costs a forward pass per batch.
    proximal: ClassVar[bool] = False
    #: Whether the loss truncates ratios of tokens to the global cap, which costs a forward pass per peer. If not, it
    #: ignores peers and `rho`.
    capped: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if not isinstance(self.environment, Answering):
            raise TypeError(f"environment={self.environment!r} is not an Answering: pass Answering(Sorting(), group=8)")
        if self.environment.group < 2:
            raise ValueError("environment.group=1: an answer is compared with the others of its group; pass 2 or more")
        actor_critic.check_learning_rate(self.learning_rate)
        checks.counts(epochs=self.epochs, minibatch_size=self.minibatch_size)
        checks.positive(clip=self.clip)
        checks.positive(**checks.given(clip_high=self.clip_high, max_gradient_norm=self.max_gradient_norm))
        checks.finite(entropy_coefficient=self.entropy_coefficient)
        checks.whole(at_least=0, **checks.given(discard=self.discard))
        if self.advantage not in _ADVANTAGES:
            raise ValueError(f"advantage={self.advantage!r}: expected one of {', '.join(map(repr, _ADVANTAGES))}")
        if self.over not in ("steps", "sequences", "length"):
            raise ValueError(f"over={self.over!r} is not 'steps', 'sequences' or 'length'")

    def optimizer(self) -> optax.GradientTransformation:
        """Adam (epsilon 1e-5), after the gradient's global norm is clipped."""
        return actor_critic.norm_clipped(optax.adam(self.learning_rate, eps=1e-5), self.max_gradient_norm)

    def prepare(self, trajectory: Trajectory, apply_fn: ApplyFn | None = None, target: Tree = None) -> Answers:
        """Cuts fragments into answers, and computes their advantages.

        Args:
          trajectory: `[T, B, ...]` with a group per column.
          apply_fn: `(params, observation) -> (distribution parameters, value)`; used if the loss is `proximal`.
          target: the newest parameters; used if the loss is `proximal`.

        Returns:
          `N = group * B` answers. A column that is not a whole group, because a part of it was lost, is invalid.

        Raises:
          TypeError: if the observations are not texts.
          ValueError: if a fragment is not a group, or its texts have another length than the task's.
        """
        env, task = self.environment, self.environment.task
        if not hasattr(trajectory.observation, "text"):
            raise TypeError(f"{type(self).__name__} learns from texts: make the workload by language.workload")
        steps, columns = trajectory.reward.shape
        if steps != env.steps:
            raise ValueError(
                f"fragment={steps}: a group of {env.group} answers has {env.steps} steps; set fragment={env.steps}, as "
                "language.workload does"
            )
        texts = jnp.asarray(trajectory.observation.text)
        if texts.shape[-1] != task.length:
            raise ValueError(f"texts have {texts.shape[-1]} places: expected {task.length}, as {task!r} has")

        def windows(x: Any) -> jax.Array:  # [window, answers, ...]
            x = jnp.asarray(x)[:steps].reshape(env.group, -1, columns, *x.shape[2:])
            return jnp.moveaxis(x, 1, 0).reshape(-1, env.group * columns, *x.shape[3:])

        # The step that poses the next prompt ends a fragment that is a group.
        stepped = checks.mask(trajectory.valid, trajectory.reward)
        whole = jnp.all(stepped[:-1], axis=0) & ~stepped[-1]
        position = windows(trajectory.observation.position)
        valid = (position < position[-1]) & jnp.tile(whole, env.group)
        reward = env.group * jnp.sum(windows(trajectory.reward), axis=0)
        text = windows(texts)[-1]  # with the whole answer
        advantage = self._advantage(reward, valid[0], jnp.tile(jnp.arange(columns), env.group))
        answers = Answers(
            text=text.T,
            position=position[:-1],
            action=windows(trajectory.action)[:-1],
            log_prob=windows(trajectory.log_prob)[:-1],
            proximal_log_prob=windows(trajectory.log_prob)[:-1],
            reward=reward,
            exact=valid[0] & jax.vmap(task.exact)(*jnp.split(text, [task.prompt_length], axis=1)),
            advantage=jnp.broadcast_to(advantage, valid[:-1].shape),
            version=windows(trajectory.version)[:-1],
            valid=valid[:-1],
        )
        if not self.proximal:
            return answers
        assert apply_fn is not None
        newest = actor_critic.evaluate(apply_fn, target, answers.observation, cleaned(answers, "action"))
        return answers._replace(proximal_log_prob=jax.lax.stop_gradient(newest.log_prob))

    def minibatches(self, key: jax.Array, batch: Answers) -> Int[JaxArray, "gradients minibatch"]:
        """Indices of the answers in every minibatch of every epoch, like `PPO.minibatches` for samples."""
        return minibatches(key, batch.valid.shape[1], epochs=self.epochs, minibatch_size=self.minibatch_size)

    def select(self, batch: Answers, indices: Int[Array, "m"]) -> Answers:
        """The answers at `indices`; an index beyond the batch gives an invalid answer, which is ignored."""
        chosen: Answers = take(batch, indices, axis=-1)
        return chosen

    def policy_loss(self, tokens: Tokens) -> Float[Array, "T N"]:
        """The policy loss of every token: here `ppo_loss`."""
        return ppo_loss(
            tokens.log_ratio, tokens.advantage, clip=self.clip, clip_high=self.clip_high, ratio_cap=tokens.cap
        )

    def loss(
        self,
        apply_fn: ApplyFn,
        params: Tree,
        batch: Answers,
        peers: tuple[Tree, ...] = (),
        *,
        rho: Scalar = 1.0,
        version: Int[Array, ""] | int | None = None,
        lags: int = 8,
    ) -> tuple[Float[JaxArray, ""], Metrics]:
        """The policy loss, reduced over the answers, minus the entropy bonus.

        Args:
          apply_fn: `(params, observation) -> (distribution parameters, value)`.
          params: the policy that learns.
          batch: answers from `select` or `prepare`.
          peers: parameters of the policies that other learners hold now. A loss that is `capped` truncates ratios of
            tokens to `global_ratio_cap` over `params` and the peers.
          rho: truncation level of the cap, at least 1.
          version: version of the policy that learns; `discard` needs it.
          lags: the number of policy lags that `by_lag` distinguishes.

        Returns:
          The scalar loss, and metrics: `PPO.loss`'s without `value_loss`, over tokens; `reward`, `exact` (the share
          of exact answers) and `answer_length`, means over the answers; `answers`, the number of answers learned from;
          and `effective_answers`, the effective sample fraction of the ratios of whole answers.

        Raises:
          ValueError: if `rho` is below 1, or `discard` is set and `version` is missing.
        """
        if self.discard is not None:
            batch = batch._replace(valid=self._fresh(batch, version))
        batch = cleaned(batch, "action", "log_prob", "proximal_log_prob", "advantage")
        valid, observation = jnp.asarray(batch.valid), batch.observation
        policy = actor_critic.evaluate(apply_fn, params, observation, batch)
        held = peers if self.capped else ()
        cap = actor_critic.held_cap(apply_fn, held, observation, batch, policy.log_prob, rho)
        tokens = Tokens(
            log_prob=jnp.where(valid, policy.log_prob, 0.0),
            log_ratio=policy.log_ratio,
            proximal_log_ratio=jnp.asarray(batch.proximal_log_prob - batch.log_prob),
            advantage=jnp.asarray(batch.advantage),
            valid=valid,
            cap=cap,
        )
        length = float(self.environment.task.answer_length) if self.over == "length" else None
        loss = reduce_loss(self.policy_loss(tokens), valid=valid, over=self.over, length=length)
        moved = policy.log_ratio - tokens.proximal_log_ratio if self.proximal else policy.log_ratio
        clipped = actor_critic.outside(moved, self.clip, self.clip_high)
        metrics = {"policy_loss": loss} | self._of_answers(batch, policy)
        metrics |= actor_critic.report(batch, policy, cap, clipped=clipped, version=version, lags=lags)
        return loss - self.entropy_coefficient * metrics["entropy"], metrics

    def _advantage(self, reward: jax.Array, valid: jax.Array, group: jax.Array) -> jax.Array:
        """The advantages of answers, from their rewards and the numbers of their groups, `[N]`."""
        if self.advantage == "leave-one-out":
            return leave_one_out_advantage(reward, group, valid=valid)
        divide = self.advantage == "group-relative"
        return group_relative_advantage(reward, group, valid=valid, divide_by_std=divide)

    def _fresh(self, batch: Answers, version: Any) -> jax.Array:
        """Which tokens are valid, and in an answer that is not discarded."""
        if version is None:
            raise ValueError(f"version=None with discard={self.discard}: pass the version that learns")
        valid = checks.mask(batch.valid, batch.log_prob)
        ages = jnp.asarray(version, jnp.int32) - jnp.asarray(batch.version, jnp.int32)  # unsigned, they would wrap
        age = jnp.max(jnp.where(valid, ages, 0), axis=0)
        fresh: jax.Array = valid & (age <= jnp.int32(self.discard))
        return fresh

    def _of_answers(self, batch: Answers, policy: Evaluated) -> Metrics:
        valid = jnp.asarray(batch.valid)
        there = jnp.any(valid, axis=0)
        whole = sequence_log_ratio(policy.log_ratio, valid=valid)
        return {
            "reward": masked_mean(jnp.asarray(batch.reward), there),
            "exact": masked_mean(jnp.asarray(batch.exact), there),
            "answer_length": masked_mean(jnp.sum(valid, axis=0).astype(whole.dtype), there),
            "answers": jnp.sum(there).astype(whole.dtype),
            "effective_answers": effective_sample_fraction(whole, valid=there),
        }
