"""Environments of a stranger's own, learned in seconds: what is seen tells which of two actions pays."""

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium import spaces

from stellaris import PPO
from stellaris.runtime.delays import Constant
from stellaris.systems import Budget, Stellaris, Synchronous, Workload
from tests.systems import tiny

#: Steps of an episode: a policy that guesses is paid half of them.
STEPS = 4
both = pytest.mark.parametrize("system", ["stellaris", "synchronous"])


class Bandit(gymnasium.Env[Any, Any]):
    """Two arms, one of which pays; the observation is the arm's one-hot vector, among noise."""

    action_space: Any = spaces.Discrete(2)
    observation_space: Any = spaces.Box(-np.inf, np.inf, (4,), np.float64)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.left = STEPS
        return self._next(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        reward = float(action == self.pays)
        self.left -= 1
        return self._next(), reward, self.left == 0, False, {}

    def see(self) -> Any:
        """What tells that `self.pays`."""
        return np.array([*(10.0 * np.eye(2)[self.pays]), *self.np_random.normal(size=2)])

    def _next(self) -> Any:
        self.pays = int(self.np_random.integers(2))
        return self.see()


class Picture(Bandit):
    """The arm that pays is the brighter half of an image."""

    def __init__(self, size: int) -> None:
        self.observation_space = spaces.Box(0, 255, (size, size, 1), np.uint8)

    def see(self) -> Any:
        image = self.np_random.integers(0, 100, self.observation_space.shape, np.uint8)
        half = image.shape[1] // 2
        image[:, slice(half, None) if self.pays else slice(half)] += 150
        return image


class Aim(Bandit):
    """The arms are two places on a line; who aims near the one that pays is paid in part."""

    action_space: Any = spaces.Box(-1.0, 1.0, (1,))

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        near = max(0.0, 1.0 - abs(float(action[0]) - (self.pays - 0.5)))
        observation, _, *ended = super().step(self.pays)
        return observation, near, *ended


class Sensors(Bandit):
    """Two sensors, of which one is to be trusted: its sign is the arm that pays; and a picture that says nothing."""

    observation_space = spaces.Dict(
        {
            "sensors": spaces.Box(-np.inf, np.inf, (2,)),
            "trusted": spaces.Discrete(2),
            "decoration": spaces.Tuple([spaces.Box(0, 255, (2, 2), np.uint8)]),
        }
    )

    def see(self) -> Any:
        trusted = int(self.np_random.integers(2))
        sensors = self.np_random.normal(size=2).astype(np.float32)
        sensors[trusted] = np.copysign(1.0, self.pays - 0.5)
        return {"sensors": sensors, "trusted": trusted, "decoration": (np.zeros((2, 2), np.uint8),)}


def learned(
    system: str, environment: Any, policy: Any, *, learning_rate: float = 1e-2, rounds: int = 25, **options: Any
) -> tuple[float, float]:
    """Trains in virtual time; returns which share of the steps was paid, in the first round and at the end."""
    ppo = PPO(learning_rate=learning_rate, epochs=2, minibatch_size=32)
    result = tiny.run(
        Stellaris(ppo, learners=2) if system == "stellaris" else Synchronous(ppo),
        tiny.deployment(Constant(0.01), Constant(0.02), Constant(0.01)),
        workload=Workload(environment, policy, actors=4, fragment=16),
        budget=Budget(steps=rounds * 64),
        prices=(),
        **options,
    )
    return result.history[0]["episode_return"] / STEPS, result.history[-1]["episode_return"] / STEPS
