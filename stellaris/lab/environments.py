"""JAX environments for the lab: CartPole."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.acting.jax_env import Transition
from stellaris.acting.vector import EnvSpec
from stellaris.types import Tree


@dataclass(frozen=True)
class CartPole:
    """A pole on a cart, to be balanced by pushing the cart left (action 0) or right (1); a reward of 1 per step.

    The episode terminates when the cart leaves ±2.4 m or the pole leaves ±12 degrees, and is truncated after
    `time_limit` steps. The dynamics are those of Gymnasium's `CartPole-v1`, in float32.

    Args:
      time_limit: steps after which an episode is truncated.

    Source:
      Barto, Sutton & Anderson 1983, Neuronlike Adaptive Elements; constants and Euler integration as in Gymnasium.

    Example:
      >>> state, observation = CartPole().reset(jax.random.key(0))
      >>> transition = CartPole().step(state, jnp.int32(1), jax.random.key(1))
      >>> observation.shape, float(transition.reward), bool(transition.terminated)
      ((4,), 1.0, False)
    """

    time_limit: int = 500

    @property
    def spec(self) -> EnvSpec:
        """The specification: observations of four numbers, and two discrete actions."""
        return EnvSpec("CartPole", np.zeros(4, np.float32), actions=2, discrete=True)

    def reset(self, key: jax.Array) -> tuple[Tree, Tree]:
        """Draws position, velocity, angle and angular velocity uniformly from ±0.05."""
        observation = jax.random.uniform(key, (4,), jnp.float32, -0.05, 0.05)
        return (observation, jnp.int32(0)), observation

    def step(self, state: Tree, action: jax.Array, key: jax.Array) -> Transition:
        """Moves the cart for 0.02 s."""
        del key  # the dynamics are deterministic
        (position, velocity, angle, spin), steps = state
        force = jnp.where(action == 1, 10.0, -10.0).astype(jnp.float32)
        cosine, sine = jnp.cos(angle), jnp.sin(angle)
        # A cart of 1 kg and a pole of 0.1 kg and 1 m; 0.05 is the pole's mass times half of its length.
        push = (force + 0.05 * spin**2 * sine) / 1.1
        torque = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        acceleration = push - 0.05 * torque * cosine / 1.1
        moved = jnp.stack(
            [
                position + 0.02 * velocity,
                velocity + 0.02 * acceleration,
                angle + 0.02 * spin,
                spin + 0.02 * torque,
            ]
        ).astype(jnp.float32)
        fallen = (jnp.abs(moved[0]) > 2.4) | (jnp.abs(moved[2]) > 12 * 2 * np.pi / 360)
        steps += 1
        return Transition((moved, steps), moved, jnp.float32(1), fallen, ~fallen & (steps >= self.time_limit))
