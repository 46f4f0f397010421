"""More corrections for stale data, each a policy loss that takes the place of PPO's.

Samples that a rule drops count in the denominator, so a rule that drops many learns more slowly.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax.numpy as jnp

from experiments.figures.lab.methods import Corrected
from stellaris.algorithms.actor_critic import Evaluated
from stellaris.corrections import (
    bidirectional_kl_mask,
    bounded_importance_weight,
    probability_mask,
    second_moment_clip,
    second_moment_mask,
)
from stellaris.losses import decoupled_ppo_loss, impala_loss, ppo_loss, sapo_loss, truncated_policy_gradient_loss
from stellaris.types import Array

#: A policy loss of each sample: from the policy that learns, the log-ratios of the newest policy when the batch was
#: prepared to the behaviour policy, the advantages (0 where a sample is invalid), and the half-width of PPO's clip.
Rule: TypeAlias = Callable[[Evaluated, Array, Array, Any], Array]


def _masked_weights(policy: Evaluated, newest: Array, advantage: Array, clip: Any) -> Array:
    weight = bounded_importance_weight(policy.log_ratio, low=0.5, high=5.0, outside="mask").weight
    return weight * impala_loss(policy.log_prob, advantage)


def _m2po_mask(policy: Evaluated, newest: Array, advantage: Array, clip: Any) -> Array:
    kept = second_moment_mask(policy.log_ratio, advantage)
    return jnp.where(kept, ppo_loss(policy.log_ratio, advantage, clip=jnp.inf), 0.0)


def _m2po_clip(policy: Evaluated, newest: Array, advantage: Array, clip: Any) -> Array:
    widths = second_moment_clip(policy.log_ratio, advantage)
    return ppo_loss(policy.log_ratio, advantage, clip=widths.low, clip_high=widths.high)


def _probability_mask(policy: Evaluated, newest: Array, advantage: Array, clip: Any) -> Array:
    kept = probability_mask(policy.log_prob, policy.log_prob - policy.log_ratio, advantage)
    loss = truncated_policy_gradient_loss(policy.log_prob, policy.log_ratio, advantage, ratio_cap=5.0)
    return jnp.where(kept, loss, 0.0)


def _kpop(policy: Evaluated, newest: Array, advantage: Array, clip: Any) -> Array:
    before = policy.log_prob - policy.log_ratio
    kept = bidirectional_kl_mask(before + newest, before, max_divergence=0.1)
    return jnp.where(kept, decoupled_ppo_loss(policy.log_ratio, newest, advantage, clip=clip), 0.0)


def _areal(policy: Evaluated, newest: Array, advantage: Array, clip: Any) -> Array:
    weight = bounded_importance_weight(newest, high=5.0, outside="mask").weight
    return decoupled_ppo_loss(policy.log_ratio, newest, advantage, clip=clip, weight=weight)


RULES: Mapping[str, Rule] = {
    "PPO": lambda policy, _, advantage, clip: ppo_loss(policy.log_ratio, advantage, clip=clip),
    # REINFORCE with truncated importance sampling, LlamaRL's AIPO.
    "truncated weights": lambda policy, _, advantage, clip: truncated_policy_gradient_loss(
        policy.log_prob, policy.log_ratio, advantage, ratio_cap=2.0
    ),
    "masked weights": _masked_weights,  # IcePop's bounds
    "CISPO": lambda policy, _, advantage, clip: truncated_policy_gradient_loss(
        policy.log_prob, policy.log_ratio, advantage, ratio_cap=1.0 + clip
    ),
    "wide clip": lambda policy, _, advantage, clip: ppo_loss(policy.log_ratio, advantage, clip=clip, clip_high=0.28),
    "SAPO": lambda policy, _, advantage, clip: sapo_loss(policy.log_ratio, advantage),
    "M2PO, mask": _m2po_mask,
    "M2PO, clip": _m2po_clip,
    "probability mask": _probability_mask,  # DPPO's, by total variation
    "KPop": _kpop,
    "AReaL": _areal,
}


@dataclass(frozen=True)
class Ruled(Corrected):
    """PPO with the policy loss of a rule."""

    rule: str = "truncated weights"  #: a name in `RULES`.

    def policy_loss(self, policy: Evaluated, proximal_log_ratio: Array, advantage: Array) -> Array:
        """Returns the rule's policy loss of each sample."""
        return RULES[self.rule](policy, proximal_log_ratio, advantage, self.clip)
