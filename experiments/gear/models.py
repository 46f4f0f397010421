"""What learns from trajectories: a return-conditioned causal transformer, and behaviour cloning.

GEAR's own large model, a multi-agent transformer, is out of scope here.
"""

from typing import NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris.types import Array

#: What is added where attention must not look: finite, so that a row that may look nowhere is no NaN.
_NOWHERE = -1e9
#: Tokens of a step: return to go, observation, action.
_TOKENS = 3


class Context(NamedTuple):
    """The last `n` steps of `k` trajectories, the newest last."""

    to_go: Array  #: `[k, n]` the return that is to come, of each step; scaled to about 1.
    observation: Array  #: `[k, n, obs]` normalised.
    action: Array  #: `[k, n, actions]` that was chosen then; that of a step to be decided is not looked at.
    step: Array  #: `[k, n]` of the episode, from 0.
    mask: Array  #: `[k, n]` which of the steps there are; the others count for nothing.


class DecisionTransformer(nn.Module):
    """Predicts the action of every step from the returns to go and observations up to it, and the actions before it.

    Three tokens a step, an embedding of the episode's step added to each; what follows an observation's token is its
    action. Blocks normalise first, as GPT-2's.

    Args:
      actions: dimensions of an action, each in [-1, 1].
      longest: steps of an episode at most.
      width: of embeddings.
      layers: blocks.
      heads: of attention.

    Source:
      Decision Transformer (Chen et al. 2021). Without its dropout.
    """

    actions: int
    longest: int
    width: int = 64
    layers: int = 3
    heads: int = 1

    @nn.compact
    def __call__(self, context: Context) -> jax.Array:
        """Actions `[k, n, actions]`."""
        k, n = context.mask.shape
        time = nn.Embed(self.longest, self.width)(context.step)
        tokens = [
            nn.Dense(self.width)(jnp.asarray(context.to_go)[..., None]),
            nn.Dense(self.width)(context.observation),
            nn.Dense(self.width)(context.action),
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
        return jnp.tanh(nn.Dense(self.actions)(of_observations))

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
    """Predicts the action of every step from its observation alone.

    Args:
      actions: dimensions of an action, each in [-1, 1].
      width: of hidden layers.
      layers: hidden ones.
    """

    actions: int
    width: int = 64
    layers: int = 3

    @nn.compact
    def __call__(self, context: Context) -> jax.Array:
        """Actions `[k, n, actions]`."""
        x = jnp.asarray(context.observation)
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(self.width)(x))
        return jnp.tanh(nn.Dense(self.actions)(x))


Model: TypeAlias = DecisionTransformer | BehaviourCloning
