"""Gymnasium's environments, and a user's own, as a vector environment."""

import threading
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction

import jax.numpy as jnp
import numpy as np
import pytest
from gymnasium import spaces

from stellaris.acting.envs import make
from tests.acting.environments import Own


@pytest.mark.parametrize(
    ("space", "given"),
    [(spaces.Box(-1.0, 1.0, (3,)), "shape"), (spaces.Dict({"a": spaces.Discrete(2)}), "structure")],
)
def test_an_observation_that_its_space_does_not_have(space, given):
    """`Own` gives two numbers, whatever it says."""
    env = make(lambda: Own(observations=space), slots=2)
    with pytest.raises(ValueError, match=rf"<lambda>: .*observation has .*{given}.*: its space says"):
        env.reset(np.arange(2))


OBSERVATION = np.zeros(2, np.float32)


def returning(monkeypatch, method, returned):
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
    env = returning(monkeypatch, "step", (OBSERVATION, reward, terminated, truncated, {}))
    step = env.step(np.array([0]), np.array([1]))
    assert (step.reward.dtype, step.terminated.dtype, step.truncated.dtype) == (np.float32, bool, bool)
    assert (step.reward.tolist(), step.terminated.tolist(), step.truncated.tolist()) == ([2.0], [True], [False])


@pytest.mark.parametrize(
    ("method", "returned", "message"),
    [
        ("step", (OBSERVATION, 1.0, "no", False, {}), "terminated='no' is not a bool"),
        ("step", (OBSERVATION, 1.0, False, 0, {}), "truncated=0 is not a bool"),
        ("step", (OBSERVATION, 1.0, np.array([False]), False, {}), r"terminated=array\(\[False\]\) is not a bool"),
        ("step", (OBSERVATION, np.ones(1), False, False, {}), r"reward=array\(\[1\.\]\) is not a finite real number"),
        ("step", (OBSERVATION, None, False, False, {}), "reward=None is not a finite real number"),
        ("step", (OBSERVATION, 1j, False, False, {}), "reward=1j is not a finite real number"),
        ("step", (OBSERVATION, np.nan, False, False, {}), "reward=nan is not a finite real number"),
        ("step", (OBSERVATION, 1.0, False, {}), r"step returned 4 values: expected 5, \(observation, reward, term"),
        ("step", None, "step returned None: expected 5"),
        ("reset", OBSERVATION, r"reset returned a value of type ndarray: expected 2, \(observation, info\)"),
        ("reset", None, "reset returned None: expected 2"),
        ("reset", (OBSERVATION,), "reset returned 1 values: expected 2"),
    ],
)
def test_what_an_environment_may_not_return(method, returned, message, monkeypatch):
    env = returning(monkeypatch, method, returned)
    with pytest.raises(TypeError, match=f"^Own: {message}"):
        env.reset(np.array([0])) if method == "reset" else env.step(np.array([0]), np.array([1]))


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


def test_closing_does_not_wait_for_an_environment_that_hangs(register, made, monkeypatch):
    """It stays open: the hanging call is in it."""
    hangs, end = threading.Event(), threading.Event()
    monkeypatch.setattr(Own, "step", lambda self, action: hangs.set() or end.wait())
    env = make(register("Own-v0", actions=spaces.Discrete(2)), slots=1)
    env.reset(np.array([0]))
    with ThreadPoolExecutor(1) as pool:
        step = pool.submit(env.step, np.array([0]), np.array([1]))
        try:
            assert hangs.wait(60)
            env.close()
            assert (made[0].closed, step.done()) == (0, False)
        finally:
            end.set()
