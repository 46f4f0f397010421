"""Corrections for stale tokens and stale sequences, each as a policy loss in place of GRPO's.

All have the groups, advantages, optimizer, minibatches and metrics of `GRPO`. Their formulas are the library's pure
functions; their settings are floats where possible, so that a sweep traces them.
"""

import math
from dataclasses import dataclass
from typing import ClassVar

import jax
import jax.numpy as jnp
from jaxtyping import Float

from stellaris._core import checks
from stellaris.corrections import (
    bounded_importance_weight,
    probability_mask,
    second_moment_mask,
    sequence_log_ratio,
    vespo_weight,
)
from stellaris.lab.language.learning import GRPO, Tokens
from stellaris.losses import decoupled_ppo_loss, impala_loss, ppo_loss, sapo_loss, truncated_policy_gradient_loss
from stellaris.types import JaxArray, Scalar


@dataclass(frozen=True)
class _Uncapped(GRPO):
    """A correction whose loss ignores the global cap."""

    capped: ClassVar[bool] = False


@dataclass(frozen=True)
class Uncorrected(_Uncapped):
    """No correction: `-A log pi` for tokens of any age."""

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`impala_loss` of every token."""
        return jnp.asarray(impala_loss(tokens.log_prob, tokens.advantage))


@dataclass(frozen=True)
class Truncated(_Uncapped):
    """The policy gradient with truncated weights of tokens, `-min(r, ratio_cap) A log pi` with a constant weight.

    Args:
      ratio_cap: 2 for AIPO and PipelineRL; 1.28 for CISPO.
    """

    ratio_cap: Scalar = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(ratio_cap=self.ratio_cap)

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`truncated_policy_gradient_loss` of every token."""
        loss = truncated_policy_gradient_loss(
            tokens.log_prob, tokens.log_ratio, tokens.advantage, ratio_cap=self.ratio_cap
        )
        return jnp.asarray(loss)


@dataclass(frozen=True)
class Decoupled(GRPO):
    """Decoupled PPO: a clip around the newest policy, and a weight of that policy's ratio to the behaviour policy.

    Args:
      most: tokens whose weight exceeds it are masked, as in AReaL; infinite to mask none.
    """

    most: Scalar = 5.0

    proximal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(most=self.most)

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`decoupled_ppo_loss` of every token."""
        weight = bounded_importance_weight(tokens.proximal_log_ratio, high=self.most, outside="mask").weight
        loss = decoupled_ppo_loss(
            tokens.log_ratio,
            tokens.proximal_log_ratio,
            tokens.advantage,
            clip=self.clip,
            clip_high=self.clip_high,
            weight=weight,
            ratio_cap=tokens.cap,
        )
        return jnp.asarray(loss)


@dataclass(frozen=True)
class Bounded(_Uncapped):
    """A clip around the newest policy, weighted by a bounded ratio of that policy to the behaviour policy.

    Args:
      low: the smallest ratio.
      high: the largest ratio.
      outside: `"clamp"` truncates ratios to the bounds (TIS); `"mask"` drops tokens outside of them (MIS, IcePop).
      ratio: `"token"`; `"sequence"`, the product over an answer's tokens; or `"mean"`, its geometric mean. A whole
        answer then has one weight.
    """

    low: Scalar = 0.0
    high: Scalar = 2.0
    outside: str = "clamp"
    ratio: str = "token"

    proximal: ClassVar[bool] = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.outside not in ("clamp", "mask"):
            raise ValueError(f"outside={self.outside!r} is neither 'clamp' nor 'mask'")
        if self.ratio not in ("token", "sequence", "mean"):
            raise ValueError(f"ratio={self.ratio!r} is not 'token', 'sequence' or 'mean'")
        checks.not_negative(low=self.low)
        checks.positive(high=self.high)

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`ppo_loss` around the newest policy, times `bounded_importance_weight`."""
        ratio = tokens.proximal_log_ratio
        if self.ratio != "token":
            over = "sum" if self.ratio == "sequence" else "mean"
            ratio = jnp.broadcast_to(sequence_log_ratio(ratio, valid=tokens.valid, over=over), ratio.shape)
        weight = bounded_importance_weight(ratio, low=self.low, high=self.high, outside=self.outside).weight
        moved = tokens.log_ratio - tokens.proximal_log_ratio
        return weight * ppo_loss(moved, tokens.advantage, clip=self.clip, clip_high=self.clip_high)


@dataclass(frozen=True)
class GSPO(_Uncapped):
    """A clip of whole answers: the geometric mean of an answer's ratios in place of the ratio of each token.

    The paper's widths, 3e-4 and 4e-4, are for answers of thousands of tokens; short answers need wider ones.

    Source:
      Zheng et al. 2025, Group Sequence Policy Optimization.
    """

    over: str = "sequences"

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`ppo_loss` of every answer, at each of its tokens."""
        answer = sequence_log_ratio(tokens.log_ratio, valid=tokens.valid, over="mean")
        ratio = jnp.broadcast_to(answer, tokens.log_ratio.shape)
        return jnp.asarray(ppo_loss(ratio, tokens.advantage, clip=self.clip, clip_high=self.clip_high))


@dataclass(frozen=True)
class TOPR(_Uncapped):
    """The policy gradient with a weight per answer: 1 if its advantage is positive, else its ratio, truncated to 1.

    Source:
      Le Roux et al. 2025, Tapered Off-Policy REINFORCE, whose advantage is a reward of 1 or -1.
    """

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`bounded_importance_weight` of every answer, times `impala_loss`."""
        answer = sequence_log_ratio(tokens.log_ratio, valid=tokens.valid)
        ratio = jnp.broadcast_to(answer, tokens.log_ratio.shape)
        low = jnp.where(tokens.advantage > 0, 1.0, 0.0)
        weight = bounded_importance_weight(ratio, low=low, high=1.0).weight
        return weight * impala_loss(tokens.log_prob, tokens.advantage)


@dataclass(frozen=True)
class VESPO(_Uncapped):
    """The policy gradient with a soft weight per answer, which falls to 0 on both sides of a ratio near 1.

    Source:
      Shen et al. 2026, VESPO, with its settings.
    """

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`vespo_weight` of every answer, times `impala_loss`."""
        answer = sequence_log_ratio(tokens.log_ratio, valid=tokens.valid)
        ratio = jnp.broadcast_to(answer, tokens.log_ratio.shape)
        return vespo_weight(ratio, tokens.advantage) * impala_loss(tokens.log_prob, tokens.advantage)


@dataclass(frozen=True)
class DPPO(_Uncapped):
    """The truncated policy gradient, without the tokens that moved outward by more than a distance in probability.

    Args:
      max_distance: the largest distance kept.
      ratio_cap: the truncation level.

    Source:
      Qi et al. 2026, Rethinking the Trust Region in LLM Reinforcement Learning.
    """

    max_distance: Scalar = 0.15
    ratio_cap: Scalar = 5.0

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.positive(max_distance=self.max_distance, ratio_cap=self.ratio_cap)

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`truncated_policy_gradient_loss` where `probability_mask` keeps the token."""
        behaviour = jax.lax.stop_gradient(tokens.log_prob - tokens.log_ratio)
        kept = probability_mask(tokens.log_prob, behaviour, tokens.advantage, max_distance=self.max_distance)
        loss = truncated_policy_gradient_loss(
            tokens.log_prob, tokens.log_ratio, tokens.advantage, ratio_cap=self.ratio_cap
        )
        return jnp.where(kept, loss, 0.0)


@dataclass(frozen=True)
class M2PO(GRPO):
    """The weighted policy gradient, without the largest log-ratios, so that the mean square of the rest is bounded.

    Args:
      max_second_moment: the largest mean square.

    Source:
      Zheng et al. 2025, Prosperity before Collapse, Algorithm 1.
    """

    max_second_moment: Scalar = 0.04

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.not_negative(max_second_moment=self.max_second_moment)

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`ppo_loss` without a clip, where `second_moment_mask` keeps the token."""
        kept = second_moment_mask(
            tokens.log_ratio, tokens.advantage, valid=tokens.valid, max_second_moment=self.max_second_moment
        )
        loss = ppo_loss(tokens.log_ratio, tokens.advantage, clip=math.inf, ratio_cap=tokens.cap)
        return jnp.where(kept, loss, 0.0)


@dataclass(frozen=True)
class SAPO(GRPO):
    """A soft trust region of tokens, whose slope falls smoothly on both sides.

    Source:
      Gao et al. 2025, Soft Adaptive Policy Optimization, with its temperatures.
    """

    over: str = "sequences"

    def policy_loss(self, tokens: Tokens) -> Float[JaxArray, "T N"]:
        """`sapo_loss` of every token."""
        return jnp.asarray(sapo_loss(tokens.log_ratio, tokens.advantage, ratio_cap=tokens.cap))
