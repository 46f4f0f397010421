"""Evaluation, against episodes that are played by hand."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.acting import ActorCritic, Policy, evaluation
from stellaris.acting.envs import make
from stellaris.acting.evaluation import evaluate
from stellaris.acting.policies import PolicyVersion


class Countdown(gymnasium.Env):  # type: ignore[misc]
    """Episodes of a random length from 1 to 200, which the first observation tells; a reward of 2 a step."""

    observation_space = gymnasium.spaces.Box(0, 200, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.left = int(self.np_random.integers(1, 201))
        return np.float32([self.left]), {}

    def step(self, action: Any) -> Any:
        self.left -= 1
        return np.float32([self.left]), 2.0, self.left == 0, False, {}


class Endless(Countdown):
    """It never ends."""

    def step(self, action: Any) -> Any:
        return np.float32([1.0]), 1.0, False, False, {}


@dataclass(frozen=True)
class Nothing:
    """A network that knows nothing."""

    def init(self, key: jax.Array, observation: Any) -> Any:
        return {}

    def apply(self, params: Any, observation: Any) -> Any:
        return jnp.zeros((*observation.shape[:-1], 2)), observation[..., 0]


def on(environment: Any) -> tuple[Policy, PolicyVersion]:
    env = make(environment, slots=1)
    policy = Policy(env.spec, Nothing(), normalise=False)
    env.close()
    return policy, PolicyVersion({}, policy.statistics().normaliser())


@pytest.mark.slow
def test_each_environments_first_episode_counts() -> None:
    """Whatever its length: the mean is that of all lengths, 100, and not of those that end soon."""
    played = evaluate(*on(Countdown), Countdown, episodes=100, seed=3)
    lengths = np.array([episode.length for episode in played])
    np.testing.assert_array_equal([episode.episode_return for episode in played], 2.0 * lengths)
    assert lengths.max() > 128  # some took three rollouts of 64 steps
    env = make(Countdown, slots=100, seed=3)
    np.testing.assert_array_equal(lengths, env.reset(np.arange(100))[:, 0])


@pytest.mark.slow
def test_the_seed_decides() -> None:
    env = make("CartPole-v1", slots=1)
    policy = ActorCritic(hidden=(8,))(env.spec)
    version = PolicyVersion(policy.init(jax.random.key(0)), policy.statistics().normaliser())
    with pytest.raises(ValueError, match="episodes=0 is below 1"):
        evaluate(policy, version, "CartPole-v1", episodes=0, seed=0)
    one, same, other = (evaluate(policy, version, "CartPole-v1", episodes=4, seed=seed) for seed in (0, 0, 1))
    assert one == same != other


def test_an_episode_that_does_not_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation, "MOST_STEPS", 100)
    (episode,) = evaluate(*on(Endless), Endless, episodes=1, seed=0)
    assert episode == (128.0, 128)
