"""Models that learn from trajectories: a return-conditioned causal transformer, and behaviour cloning.

GEAR's own large model, a multi-agent transformer, is out of scope here.
"""

from typing import NamedTuple, TypeAlias

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris.distributions import DiagonalGaussian
from stellaris.types import Array

#: The value added to masked attention scores: finite, so that a row with every score masked is not NaN.
_NOWHERE = -1e9
#: The smallest and the largest log standard deviation.
_LOG_STD = (-5.0, 2.0)
#: Tokens per step: return to go, observation, action.
_TOKENS = 3


class Context(NamedTuple):
    """The last `n` steps of `k` trajectories, the newest last."""

    return_to_go: Array  #: `[k, n]` the return to go from each step, scaled to about 1.
    observation: Array  #: `[k, n, obs]` normalised.
    action: Array  #: `[k, n, actions]` as sampled; the prediction of the newest action does not use it.
    step: Array  #: `[k, n]` the step's number in its episode, from 0.
    mask: Array  #: `[k, n]` true for steps that exist, false for padding.


def _distribution(outputs: jax.Array) -> DiagonalGaussian:
    mean, log_std = jnp.split(outputs, 2, axis=-1)
    return DiagonalGaussian(mean, jnp.clip(log_std, *_LOG_STD))


class DecisionTransformer(nn.Module):
    """Predicts the action of every step from the returns to go and observations up to it, and the actions before it.

    Actions are Gaussian, like the actions in the data.

    Each step has three tokens, with an embedding of the step's number added to each. The output at an observation's
    token is the action's distribution. Blocks use pre-normalisation, as in GPT-2.

    Args:
      actions: the number of dimensions of an action.
      longest: the most steps of an episode.
      width: the width of embeddings.
      layers: the number of blocks.
      heads: the number of attention heads.

    Source:
      Decision Transformer (Chen et al. 2021), without its dropout. The model predicts a distribution in place of one
      action, as in Online Decision Transformer (Zheng et al. 2022).
    """

    actions: int
    longest: int
    width: int = 64
    layers: int = 3
    heads: int = 1

    @nn.compact
    def __call__(self, context: Context) -> DiagonalGaussian:
        """Returns the distribution of actions `[k, n, actions]`."""
        k, n = context.mask.shape
        time = nn.Embed(self.longest, self.width)(context.step)
        tokens = [
            nn.Dense(self.width)(jnp.asarray(context.return_to_go)[..., None]),
            nn.Dense(self.width)(context.observation),
            nn.Dense(self.width)(jnp.clip(context.action, -1.0, 1.0)),  # the environment clipped them too
        ]
        x = jnp.stack([token + time for token in tokens], axis=2).reshape(k, n * _TOKENS, self.width)
        x = nn.LayerNorm()(x)
        there = jnp.repeat(jnp.asarray(context.mask), _TOKENS, axis=1)
        attends = jnp.tril(jnp.ones((n * _TOKENS, n * _TOKENS), bool)) & there[:, None]
        for _ in range(self.layers):
            x = x + self._attention(nn.LayerNorm()(x), attends)
            hidden = nn.gelu(nn.Dense(4 * self.width)(nn.LayerNorm()(x)))
            x = x + nn.Dense(self.width)(hidden)
        of_observations = nn.LayerNorm()(x).reshape(k, n, _TOKENS, self.width)[:, :, 1]
        return _distribution(nn.Dense(2 * self.actions)(of_observations))

    def _attention(self, x: jax.Array, attends: jax.Array) -> jax.Array:
        """Returns self-attention; `attends[k, i, j]` is true if, in trajectory `k`, token `i` attends to token `j`."""
        k, tokens, _ = x.shape
        size = self.width // self.heads
        query, key, value = jnp.moveaxis(nn.Dense(3 * self.width)(x).reshape(k, tokens, 3, self.heads, size), 2, 0)
        scores = jnp.einsum("kqhd,kthd->khqt", query, key) / jnp.sqrt(size)
        weights = jax.nn.softmax(scores + jnp.where(attends[:, None], 0.0, _NOWHERE), axis=-1)
        found = jnp.einsum("khqt,kthd->kqhd", weights, value).reshape(k, tokens, self.width)
        return nn.Dense(self.width)(found)


class BehaviourCloning(nn.Module):
    """Predicts the action of every step from its observation alone; actions are Gaussian.

    Args:
      actions: the number of dimensions of an action.
      width: the width of hidden layers.
      layers: the number of hidden layers.
    """

    actions: int
    width: int = 64
    layers: int = 3

    @nn.compact
    def __call__(self, context: Context) -> DiagonalGaussian:
        """Returns the distribution of actions `[k, n, actions]`."""
        x = jnp.asarray(context.observation)
        for _ in range(self.layers):
            x = nn.relu(nn.Dense(self.width)(x))
        return _distribution(nn.Dense(2 * self.actions)(x))


Model: TypeAlias = DecisionTransformer | BehaviourCloning
