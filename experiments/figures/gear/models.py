"""What learns from trajectories: a return-conditioned causal transformer, and behaviour cloning.

GEAR's own large model, a multi-agent transformer, is out of scope here.
"""

from typing import NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris.distributions import DiagonalGaussian
from stellaris.types import Array

#: What is added where attention must not look: finite, so that a row that may look nowhere is no NaN.
_NOWHERE = -1e9
#: The least and the largest logarithm of a standard deviation.
_LOG_STD = (-5.0, 2.0)
#: Tokens of a step: return to go, observation, action.
_TOKENS = 3


class Context(NamedTuple):
    """The last `n` steps of `k` trajectories, the newest last."""

    return_to_go: Array  #: `[k, n]` the return that is to come, of each step; scaled to about 1.
    observation: Array  #: `[k, n, obs]` normalised.
    action: Array  #: `[k, n, actions]` as sampled then; that of a step to be decided is not looked at.
    step: Array  #: `[k, n]` of the episode, from 0.
    mask: Array  #: `[k, n]` which of the steps there are; the others count for nothing.


def _distribution(outputs: jax.Array) -> DiagonalGaussian:
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return DiagonalGaussian(mean, jnp.clip(log_std, *_LOG_STD))


class DecisionTransformer(nn.Module):
    """Predicts the action of every step from the returns to go and observations up to it, and the actions before it.

    Actions are distributed normally, as those of the policies that it learns from.

    Three tokens a step, an embedding of the episode's step added to each; what follows an observation's token is its
    action. Blocks normalise first, as GPT-2's.

    Args:
      actions: dimensions of an action.
      longest: steps of an episode at most.
      width: of embeddings.
      layers: blocks.
      heads: of attention.

    Source:
      Decision Transformer (Chen et al. 2021), without its dropout. A distribution in place of one action, as in Online
      Decision Transformer (Zheng et al. 2022).
    """

    actions: int
    longest: int
    width: int = 64
    layers: int = 3
    heads: int = 1

    @nn.compact
    def __call__(self, context: Context) -> DiagonalGaussian:
        """Of actions `[k, n, actions]`."""
        k, n = context.mask.shape
        time = nn.Embed(self.longest, self.width)(context.step)
        tokens = [
            nn.Dense(self.width)(jnp.asarray(context.return_to_go)[..., None]),
            nn.Dense(self.width)(context.observation),
            nn.Dense(self.width)(jnp.clip(context.action, -1.0, 1.0)),  # what the environment did of it
        ]
        x = jnp.stack([token + time for token in tokens], axis=2).reshape(k, n * _TOKENS, self.width)
        x = nn.LayerNorm()(x)
        there = jnp.repeat(jnp.asarray(context.mask), _TOKENS, axis=1)
        looks_at = jnp.tril(jnp.ones((n * _TOKENS, n * _TOKENS), bool)) & there[:, None]
        for _ in range(self.layers):
            x = x + self._attention(nn.LayerNorm()(x), looks_at)
            hidden = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(hidden)
        of_observations = nn.LayerNorm()(x).reshape(k, n, _TOKENS, self.width)[:, :, 1]
        return _distribution(nn.Dense(2 * self.actions)(of_observations))

    def _attention(self, x: jax.Array, looks_at: jax.Array) -> jax.Array:
        """Of each token to those that it looks at, `[k, tokens, tokens]`."""
        k, tokens, _ = x.shape
        size = self.width // self.heads
        query, key, value = jnp.moveaxis(nn.Dense(3 * self.width)(x).reshape(k, tokens, 3, self.heads, size), 2, 0)
        scores = jnp.einsum("kqhd,kthd->khqt", query, key) / jnp.sqrt(size)
        weights = jax.nn.softmax(scores + jnp.where(looks_at[:, None], 0.0, _NOWHERE), axis=-1)
        found = jnp.einsum("khqt,kthd->kqhd", weights, value).reshape(k, tokens, self.width)
        return nn.Dense(self.width)(found)


class BehaviourCloning(nn.Module):
    """Predicts the action of every step from its observation alone; actions are distributed normally, too.

    Args:
      actions: dimensions of an action.
      width: of hidden layers.
      layers: hidden ones.
    """

    actions: int
    width: int = 64
    layers: int = 3

    @nn.compact
    def __call__(self, context: Context) -> DiagonalGaussian:
        """Of actions `[k, n, actions]`."""
        x = jnp.asarray(context.observation)
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(self.width)(x))
        return _distribution(nn.Dense(2 * self.actions)(x))


Model: TypeAlias = DecisionTransformer | BehaviourCloning
