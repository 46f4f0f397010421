"""JAX environments: CartPole, and a maze that needs a memory."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np

from stellaris._core import checks
from stellaris.acting.jax_env import Transition
from stellaris.acting.vector import EnvSpec
from stellaris.types import Tree


@dataclass(frozen=True)
class CartPole:
    """A pole on a cart, to be balanced by pushing the cart left (action 0) or right (1); a reward of 1 per step.

    The episode terminates when the cart leaves ±2.4 m or the pole leaves ±12 degrees, and is truncated after
    `time_limit` steps. The dynamics equal Gymnasium's `CartPole-v1`, in float32.

    Args:
      time_limit: steps after which an episode is truncated, at least 1.

    Raises:
      TypeError: if `time_limit` is not whole.
      ValueError: if `time_limit` is below 1.

    Source:
      Barto, Sutton & Anderson 1983, Neuronlike Adaptive Elements; constants and Euler integration as in Gymnasium.

    Example:
      >>> state, observation = CartPole().reset(jax.random.key(0))
      >>> transition = CartPole().step(state, jnp.int32(1), jax.random.key(1))
      >>> observation.shape, float(transition.reward), bool(transition.terminated)
      ((4,), 1.0, False)
    """

    time_limit: int = 500

    def __post_init__(self) -> None:
        checks.whole(at_least=1, time_limit=self.time_limit)

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


@dataclass(frozen=True)
class TMaze:
    """A T-shaped maze: a cue at the start says which way to turn at the end of a corridor.

    Actions: walk on (0), turn left (1), turn right (2). The observation is the cue, -1 for left and 1 for right at the
    start and 0 elsewhere, and whether the agent is at the junction, 0 or 1. A turn at the junction ends the episode,
    with a reward of 1 if it follows the cue. A turn in the corridor, and walking on at the junction, change nothing. At
    the junction, observations do not depend on the cue: the mean return of a policy without memory is at most 0.5, and
    that of a policy with memory can be 1.

    Args:
      length: steps from the start to the junction, at least 1.
      time_limit: steps after which an episode is truncated; by default `8 * (length + 1)`.

    Raises:
      TypeError: if a number is not whole.
      ValueError: if `length` is below 1, or `time_limit` leaves no time to turn.

    Source:
      Bakker 2001, Reinforcement Learning with Long Short-Term Memory; rewards and observations differ here.

    Example:
      >>> maze = TMaze(length=2)
      >>> state, observation = maze.reset(jax.random.key(0))
      >>> turn = jnp.where(observation[0] < 0, 1, 2)
      >>> for action in (0, 0, turn):
      ...     state, observation, reward, terminated, _ = maze.step(state, action, jax.random.key(0))
      >>> observation.tolist(), float(reward), bool(terminated)
      ([0.0, 1.0], 1.0, True)
    """

    length: int = 10
    time_limit: int | None = None

    def __post_init__(self) -> None:
        checks.whole(at_least=1, length=self.length)
        if self.time_limit is not None:
            checks.whole(at_least=self.length + 1, time_limit=self.time_limit)

    @property
    def spec(self) -> EnvSpec:
        """The specification: observations of two numbers, and three discrete actions."""
        return EnvSpec("TMaze", np.zeros(2, np.float32), actions=3, discrete=True)

    def reset(self, key: jax.Array) -> tuple[Tree, Tree]:
        """Draws the cue, either way with probability 1/2."""
        cue = jnp.where(jax.random.bernoulli(key), 1.0, -1.0).astype(jnp.float32)
        state = (cue, jnp.int32(0), jnp.int32(0))  # the cue, the place, and the steps so far
        return state, self._seen(cue, jnp.int32(0))

    def step(self, state: Tree, action: jax.Array, key: jax.Array) -> Transition:
        """Moves one step."""
        del key  # the dynamics are deterministic
        cue, place, steps = state
        turned = (action != 0) & (place == self.length)
        right = jnp.where(cue < 0, 1, 2)
        reward = jnp.where(turned & (action == right), 1.0, 0.0).astype(jnp.float32)
        place = jnp.where(action == 0, jnp.minimum(place + 1, self.length), place)
        steps += 1
        late = steps >= (self.time_limit or 8 * (self.length + 1))
        return Transition((cue, place, steps), self._seen(cue, place), reward, turned, ~turned & late)

    def _seen(self, cue: jax.Array, place: jax.Array) -> jax.Array:
        return jnp.stack([jnp.where(place == 0, cue, 0.0), (place == self.length).astype(jnp.float32)])
