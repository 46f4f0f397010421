"""EnvPool's environments as a vector environment."""

import os

import envpool
import jax
import numpy as np
import pytest
from gymnasium import spaces

from stellaris._core.describe import describe
from stellaris.acting.envs import EnvPoolEnv, configure, make
from stellaris.systems import Workload
from tests.acting.environments import array, random_actions


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_trees_of_observations():
    """A dictionary, by name."""
    env = make("Parking-v0", slots=3)
    assert type(env) is EnvPoolEnv
    assert env.spec.observation == {name: array(6) for name in ("achieved_goal", "desired_goal", "observation")}
    observation = env.reset(np.array([2, 0]))
    assert jax.tree.map(np.shape, observation) == dict.fromkeys(observation, (2, 6))


def test_images():
    """Bytes, channels first."""
    env = make("Pong-v5", slots=2)
    assert env.spec.observation == array(4, 84, 84, dtype=np.uint8)
    assert env.reset(np.arange(2)).dtype == np.uint8


@pytest.mark.filterwarnings("ignore:.*precision lowered by casting")
def test_several_players():
    """Their actions are a box of integers, which is not supported."""
    with pytest.raises(ValueError, match=r"LevelBasedForaging-v0: action space Box.* is not supported"):
        make("LevelBasedForaging-v0", slots=1)


@pytest.mark.parametrize("name", ["CartPole-v1", "Hopper-v4"])
def test_threads_do_not_matter(name):
    """EnvPool's threads, more than there are slots even, give the same bytes."""
    runs = []
    for threads in (1, 3, 9):
        env, rng = make(name, slots=6, seed=2, threads=threads), np.random.default_rng(5)
        run = [env.reset(np.arange(6))]
        for _ in range(40):
            slots = rng.permutation(6)[: rng.integers(1, 7)]
            run.extend(env.step(slots, random_actions(env.spec, len(slots), rng)))
        runs.append([column.tobytes() for column in run])
    assert runs[0] == runs[1] == runs[2]


def test_hopper_falls():
    """Under a constant push it terminates, the reward of an episode's last step counts, and its reset pays nothing."""
    env = make("Hopper-v4", slots=1)
    env.reset(np.array([0]))
    steps = [env.step(np.array([0]), np.ones((1, 3))) for _ in range(200)]
    ends = [t for t, step in enumerate(steps) if step.terminated[0]]
    assert len(ends) > 3
    assert not any(step.truncated[0] for step in steps)
    assert [t for t, step in enumerate(steps) if step.reward[0] == 0] == [t + 1 for t in ends if t < 199]


def test_spaces_of_a_pool(monkeypatch):
    """What holds for Gymnasium's holds for EnvPool's: a start, a bound for each dimension, and one error."""

    class Pool:
        """A pool of environments, as EnvPool makes them."""

        observation_space, action_space = spaces.Box(-1.0, 1.0, (2,)), spaces.Discrete(3, start=1)

        def step(self, action, slots):
            return action, *(np.zeros(len(slots)),) * 3, {}

    monkeypatch.setattr(envpool, "make_gymnasium", lambda *args, **options: Pool())
    env = make("CartPole-v1", slots=3)
    assert (env.spec.actions, env.spec.start) == (3, 1)
    assert env.step(np.arange(3), np.array([0, 2, 1])).observation.tolist() == [1, 3, 2]
    Pool.action_space = spaces.Box(np.array([[-1.0], [0.0]]), np.array([[1.0], [5.0]]), dtype=np.float64)
    got = make("CartPole-v1", slots=1).step(np.array([0]), np.array([[-9.0, 9.0]])).observation
    assert (got.tolist(), got.dtype) == ([[[-1.0], [5.0]]], np.float64)
    Pool.action_space = spaces.MultiBinary(2)
    with pytest.raises(ValueError, match=r"CartPole-v1: action space MultiBinary\(2\) is not supported"):
        make("CartPole-v1", slots=1)


def test_closing_ends_a_pools_threads():
    """Not only once somebody collects it: a loop that restarts environments would gather them."""
    before = len(os.listdir("/proc/self/task"))
    env = make("CartPole-v1", slots=8, threads=4)
    env.reset(np.arange(8))
    assert len(os.listdir("/proc/self/task")) >= before + 4
    env.close()
    env.close()
    assert len(os.listdir("/proc/self/task")) == before
    with pytest.raises(IndexError, match=r"slots=\[0\]: CartPole-v1 is closed"):
        env.reset(np.array([0]))


def test_options():
    """EnvPool's own: here a stack of three frames; one that it does not know is named."""
    env = make(configure("Qbert-v5", stack_num=3, reward_clip=True), slots=1)
    assert env.spec.observation == array(3, 84, 84, dtype=np.uint8)
    with pytest.raises(ValueError, match=r"Qbert-v5: EnvPool does not take the options \{'frames': 3\}"):
        make(configure("Qbert-v5", frames=3), slots=1)


def test_an_environment_with_options_is_a_value():
    """Equal whatever the options' order, and recorded with them."""
    one, other = configure("Qbert-v5", a=1, b=2), configure("Qbert-v5", b=2, a=1)
    assert one == other
    assert hash(one) == hash(other)
    assert describe(Workload(one))["environment"] == {
        "type": "Configured",
        "name": "Qbert-v5",
        "options": [["a", 1], ["b", 2]],
    }
