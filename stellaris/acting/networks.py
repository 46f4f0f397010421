"""The papers' networks (flax)."""

import flax.linen as nn
import jax
import jax.numpy as jnp

from stellaris.distributions import Categorical, DiagonalGaussian

#: A standard deviation of 0.6 keeps most first actions within bounds of [-1, 1].
INITIAL_LOG_STD = -0.5


class _Tower(nn.Module):
    """Hidden tanh layers and a linear output, orthogonally initialised."""

    hidden: tuple[int, ...]
    outputs: int
    output_gain: float

    @nn.compact
    def __call__(self, x: jax.Array) -> jax.Array:
        for width in self.hidden:
            x = nn.tanh(nn.Dense(width, kernel_init=nn.initializers.orthogonal(2**0.5))(x))
        return nn.Dense(self.outputs, kernel_init=nn.initializers.orthogonal(self.output_gain))(x)


class ActorCritic(nn.Module):
    """Two separate towers of the same shape, for the policy and for the value.

    Source:
      MinionsRL (AAAI 2024): two hidden layers of 256 tanh units, critic of the same shape.
    """

    actions: int
    discrete: bool
    hidden: tuple[int, ...] = (256, 256)

    @nn.compact
    def __call__(self, x: jax.Array) -> tuple[Categorical | DiagonalGaussian, jax.Array]:
        # A small last layer starts the policy near uniform, whatever the observations' scale.
        output = _Tower(self.hidden, self.actions, 0.01, name="policy")(x)
        value = _Tower(self.hidden, 1, 1.0, name="value")(x)[..., 0]
        if self.discrete:
            return Categorical(output), value
        log_std = self.param("log_std", nn.initializers.constant(INITIAL_LOG_STD), (self.actions,))
        return DiagonalGaussian(output, jnp.broadcast_to(log_std, output.shape)), value
