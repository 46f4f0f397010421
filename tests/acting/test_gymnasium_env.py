"""Gymnasium's environments, and a user's own, as a vector environment."""

from fractions import Fraction

import gymnasium
import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from stellaris.acting import gymnasium_env
from stellaris.acting.envs import EnvSpec, GymnasiumEnv, make
from tests.acting.environments import Own, Sensors, array


def test_specification():
    """Of the first environment's spaces."""
    env = GymnasiumEnv("Pendulum-v1", lambda: gymnasium.make("Pendulum-v1"), slots=2)
    assert env.spec == EnvSpec("Pendulum-v1", array(3), 1, False, (-2.0,), (2.0,), action_shape=(1,))


def test_trees_of_observations():
    """In the structure of the space, whatever the environment's own order; each slot's in its row."""
    env = make(Sensors, slots=3, seed=1)
    observation = env.reset(np.array([2, 0]))
    assert list(observation) == list(env.spec.observation) == ["last", "picture", "position"]
    assert observation["picture"].shape == (2, 2, 9)
    for row in range(2):
        assert observation["picture"][row].argmax(axis=1).tolist() == [observation["position"][row, 0] + 4] * 2
    step = env.step(np.array([0, 2]), np.array([1, 0]))
    moved = step.observation["position"] - observation["position"][::-1]
    assert moved.tolist() == [[1.0], [-1.0]]
    assert step.observation["last"][0].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("space", "given"),
    [(spaces.Box(-1.0, 1.0, (3,)), "shape"), (spaces.Dict({"a": spaces.Discrete(2)}), "structure")],
    ids=["shape", "structure"],
)
def test_an_observation_that_its_space_does_not_have(space, given):
    """`Own` gives two numbers, whatever it says."""
    env = make(lambda: Own(observations=space), slots=2)
    with pytest.raises(ValueError, match=rf"<lambda>: .*observation has .*{given}.*: its space says"):
        env.reset(np.arange(2))


OBSERVATION = np.zeros(2, np.float32)


def returning(monkeypatch, method, returned):
    """An environment one of whose methods returns this."""
    monkeypatch.setattr(Own, method, lambda self, *_, **__: returned)
    env = make(Own, slots=1)
    if method == "step":
        env.reset(np.array([0]))
    return env


@pytest.mark.parametrize(
    ("reward", "terminated", "truncated"),
    [
        (2, True, False),
        (np.float64(2), np.True_, np.False_),
        (np.array(2, np.float16), np.array(True), np.array(False)),
        (jnp.int8(2), jnp.bool_(True), jnp.bool_(False)),
        (Fraction(2), True, np.False_),
    ],
)
def test_what_a_step_may_return(reward, terminated, truncated, monkeypatch):
    """Scalars of any library."""
    env = returning(monkeypatch, "step", (OBSERVATION, reward, terminated, truncated, {}))
    step = env.step(np.array([0]), np.array([1]))
    assert (step.reward.dtype, step.terminated.dtype, step.truncated.dtype) == (np.float32, bool, bool)
    assert (step.reward.tolist(), step.terminated.tolist(), step.truncated.tolist()) == ([2.0], [True], [False])


def test_a_reward_may_be_a_bool(monkeypatch):
    """Of an environment that pays for a hit."""
    env = returning(monkeypatch, "step", (OBSERVATION, np.True_, False, False, {}))
    assert env.step(np.array([0]), np.array([1])).reward.tolist() == [1.0]


@pytest.mark.parametrize(
    ("method", "returned", "message"),
    [
        ("step", (OBSERVATION, 1.0, "no", False, {}), "terminated='no' is not a bool"),
        ("step", (OBSERVATION, 1.0, False, 0, {}), "truncated=0 is not a bool"),
        ("step", (OBSERVATION, 1.0, None, False, {}), "terminated=None is not a bool"),
        ("step", (OBSERVATION, 1.0, np.array([False]), False, {}), r"terminated=array\(\[False\]\) is not a bool"),
        ("step", (OBSERVATION, np.ones(1), False, False, {}), r"reward=array\(\[1\.\]\) is not a finite real number"),
        ("step", (OBSERVATION, None, False, False, {}), "reward=None is not a finite real number"),
        ("step", (OBSERVATION, "1", False, False, {}), "reward='1' is not a finite real number"),
        ("step", (OBSERVATION, 1j, False, False, {}), "reward=1j is not a finite real number"),
        ("step", (OBSERVATION, np.nan, False, False, {}), "reward=nan is not a finite real number"),
        ("step", (OBSERVATION, -np.inf, False, False, {}), "reward=-inf is not a finite real number"),
        ("step", (OBSERVATION, 1.0, False, {}), r"step returned 4 values: expected 5, \(observation, reward, term"),
        ("step", None, "step returned None: expected 5"),
        ("reset", OBSERVATION, r"reset returned a value of type ndarray: expected 2, \(observation, info\)"),
        ("reset", None, "reset returned None: expected 2"),
        ("reset", (OBSERVATION,), "reset returned 1 values: expected 2"),
    ],
)
def test_what_an_environment_may_not_return(method, returned, message, monkeypatch):
    """Is said with the environment's name."""
    env = returning(monkeypatch, method, returned)
    with pytest.raises(TypeError, match=f"^Own: {message}"):
        env.reset(np.array([0])) if method == "reset" else env.step(np.array([0]), np.array([1]))


def test_the_time_limit_of_gymnasium():
    """A taxi that only drives south never arrives: 200 steps at -1, one reset, and again."""
    env = make("Taxi-v4", slots=2)
    env.reset(np.arange(2))
    steps = [env.step(np.arange(2), np.zeros(2, int)) for _ in range(402)]
    cut = [t for t, step in enumerate(steps) if step.truncated.all()]
    assert cut == [199, 400]
    assert sum(int(step.truncated.sum() + step.terminated.sum()) for step in steps) == 4
    np.testing.assert_array_equal([step.reward[0] for step in steps], [-1.0] * 200 + [0.0] + [-1.0] * 200 + [0.0])


def test_close(register, made):
    """Every environment, once; one that fails does not keep the others open; there is nothing to step then."""
    env = make(register("Own-v0", actions=spaces.Discrete(2)), slots=3)
    made[1].close = lambda: 1 / 0
    with pytest.warns(UserWarning, match="failed to close: ZeroDivisionError"):
        env.close()
    env.close()
    assert [own.closed for own in made] == [1, 0, 1]
    with pytest.raises(IndexError, match=r"slots=\[0\]: Own-v0 is closed"):
        env.step(np.array([0]), np.array([0]))


def test_closing_does_not_wait_for_what_hangs(register, made, monkeypatch):
    """A body that never returns holds its environment: it is left with it."""
    monkeypatch.setattr(gymnasium_env, "_PATIENCE", 0.01)
    env = make(register("Own-v0", actions=spaces.Discrete(2)), slots=1)
    with env._lock:
        env.close()
    assert made[0].closed == 0
