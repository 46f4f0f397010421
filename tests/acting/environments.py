"""Environments that the tests step: real ones from both libraries, and a user's own."""

import gymnasium
import jax
import numpy as np
import pytest
from gymnasium import spaces

from stellaris.acting import envs
from stellaris.acting.envs import EnvSpec, GymnasiumEnv, VectorEnv


class Sensors(gymnasium.Env):
    """A walk on a line that is seen by several sensors; falls off beyond three steps from the middle."""

    observation_space = spaces.Dict(
        {
            "position": spaces.Box(-4.0, 4.0, (1,)),
            "picture": spaces.Box(0, 255, (2, 9), np.uint8),
            "last": spaces.Tuple([spaces.Discrete(2), spaces.Box(-1.0, 1.0, (), np.float64)]),
        }
    )
    action_space = spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        self.position = int(self.np_random.integers(-2, 3))
        self.noise = float(self.np_random.uniform())
        return self._seen(0), {}

    def step(self, action):
        self.position += 2 * int(action) - 1
        return self._seen(action), 1.0, abs(self.position) > 3, False, {}

    def _seen(self, action):
        picture = np.zeros((2, 9), np.uint8)
        picture[:, self.position + 4] = 255
        # Not in the order of the space, and not of its types: users do so.
        return {
            "picture": picture,
            "last": (int(action), self.noise),
            "position": np.array([self.position], np.float64),
        }


#: CartPole and Hopper by EnvPool, CartPole and Pendulum by Gymnasium, and Taxi, which Gymnasium alone has; then trees
#: of observations, by EnvPool and of a user's own.
NAMES = {
    "pool cartpole": "CartPole-v1",
    "pool hopper": "Hopper-v4",
    "gym cartpole": lambda: gymnasium.make("CartPole-v1"),
    "gym pendulum": lambda: gymnasium.make("Pendulum-v1"),
    "gym taxi": "Taxi-v4",
    "pool parking": "Parking-v0",
    "own sensors": Sensors,
    "own vectorised": envs.Vectorised(lambda slots, seed: GymnasiumEnv("Sensors", Sensors, slots=slots, seed=seed)),
}


def new(name: str, slots: int, seed: int = 0, threads: int = 1) -> VectorEnv:
    return envs.make(NAMES[name], slots=slots, seed=seed, threads=threads)


every_environment = pytest.mark.parametrize("name", NAMES)
every_cartpole = pytest.mark.parametrize("name", ["pool cartpole", "gym cartpole"])


def array(*shape: int, dtype=np.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def rows(*trees):
    return jax.tree.map(lambda *parts: np.concatenate(parts), *trees)


def same(one, other) -> None:
    jax.tree.map(np.testing.assert_array_equal, one, other)


def random_actions(spec: EnvSpec, n: int, rng) -> np.ndarray:
    """Any `n` actions, some of them out of bounds."""
    return rng.integers(spec.actions, size=n) if spec.discrete else rng.normal(0.0, 2.0, (n, spec.actions))


class Own(gymnasium.Env):
    """An environment with any spaces, that notes what it is given."""

    def __init__(self, actions=spaces.Discrete(2), observations=spaces.Box(-1.0, 1.0, (2,)), made=None):  # noqa: B008
        self.action_space, self.observation_space = actions, observations
        self.given, self.closed = [], 0
        if made is not None:
            made.append(self)

    def reset(self, *, seed=None, options=None):
        super().reset(seed=seed)
        return np.zeros(2, np.float32), {}

    def step(self, action):
        self.given.append(action)
        return np.zeros(2, np.float32), 1.0, False, False, {}

    def close(self):
        self.closed += 1
