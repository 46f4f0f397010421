"""Environments of JAX functions, stepped by the lab and by the systems."""

from dataclasses import dataclass
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.acting import envs, jax_env
from stellaris.lab import CartPole


def test_cartpole_is_gymnasiums():
    """The same actions from the same state lead through the same states, up to float32, to the same end."""
    reference = gymnasium.make("CartPole-v1").unwrapped
    reference.reset(seed=0)
    state, _ = CartPole().reset(jax.random.key(3))
    reference.state = tuple(np.asarray(state[0], float))
    actions = np.random.default_rng(0).integers(0, 2, 200)
    for action in actions:
        moved = CartPole().step(state, action, jax.random.key(0))
        observation, reward, terminated, _, _ = reference.step(int(action))
        np.testing.assert_allclose(moved.observation, observation, atol=1e-4)
        assert (float(moved.reward), bool(moved.terminated)) == (reward, terminated)
        state = moved.state
        if terminated:
            break
    assert terminated


def test_a_time_limit_truncates():
    state, _ = CartPole(time_limit=2).reset(jax.random.key(0))
    first = CartPole(time_limit=2).step(state, 0, jax.random.key(0))
    second = CartPole(time_limit=2).step(first.state, 1, jax.random.key(0))
    assert [bool(step.truncated) for step in (first, second)] == [False, True]
    assert not second.terminated
    for limit, error in ((0, ValueError), (2.5, TypeError)):
        with pytest.raises(error, match=f"time_limit={limit} is"):
            CartPole(time_limit=limit)


def test_a_slot_is_reset_by_the_step_after_the_end():
    """That step has no reward and is no transition, whatever its action, as in every vector environment."""
    env = CartPole(time_limit=1)
    slot = jax_env.start(env, 0, 0)
    ended, first = jax_env.advance(env, slot, 1)
    assert bool(first.finished)
    assert float(first.episode_return) == 1.0
    fresh, reset = jax_env.advance(env, ended, 1)
    other, _ = jax_env.advance(env, ended, 0)
    assert (float(reset.reward), bool(reset.valid), bool(reset.finished)) == (0.0, False, False)
    np.testing.assert_array_equal(fresh.observation, other.observation)
    assert np.abs(fresh.observation).max() <= 0.05


@pytest.mark.slow
def test_slots_depend_on_seed_and_start_alone():
    """Not on how many are stepped together, nor on what happened before their start."""
    many, one = (envs.make(CartPole(), slots=slots, seed=seed) for slots, seed in ((3, 5), (1, 7)))
    many.reset(np.arange(3))
    many.step(np.arange(3), np.zeros(3, int))
    a, b = many.begin(np.array([2]), np.array([4])), one.begin(np.array([0]), np.array([4]))
    np.testing.assert_array_equal(a, b)
    for action in (0, 1, 1):
        step = many.step(np.array([2, 0]), np.array([action, 0]))
        np.testing.assert_array_equal(step.observation[0], one.step(np.array([0]), np.array([action])).observation[0])


def test_resets_are_different_starts():
    env = envs.make(CartPole(), slots=1)
    first, second = env.reset(np.array([0])), env.reset(np.array([0]))
    assert not np.array_equal(first, second)
    with pytest.raises(IndexError, match="slots=1"):
        env.step(np.array([1]), np.array([0]))


@dataclass(frozen=True)
class Point:
    """An environment of one step, whose observations, states and results may be wrong."""

    first: int = 2
    later: int = 2
    state: int = 1
    result: Any = jax_env.Transition
    sizes: Any = ()
    begun: Any = jnp.float32

    @property
    def spec(self):
        return envs.EnvSpec("Point", jax.ShapeDtypeStruct((2,), jnp.float32), actions=2, discrete=True)

    def reset(self, key):
        return jnp.zeros(1, self.begun), jnp.zeros(self.first)

    def step(self, state, action, key):
        return self.result(
            jnp.zeros(self.state), jnp.zeros(self.later), jnp.float32(1), jnp.bool_(True), jnp.bool_(False)
        )


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (Point(first=3), r"Point\.reset returned the observation .*\(3,\).*: spec has .*\(2,\)"),
        (Point(later=1), r"Point\.step returned the observation .*\(1,\).*: spec has .*\(2,\)"),
        (Point(state=2), r"Point\.step returned the state .*\(2,\).*: reset has .*\(1,\)"),
        (Point(begun=jnp.int32), r"Point\.step returned the state .*float32.*: reset has .*int32"),
        (Point(result=lambda *parts: parts), r"Point\.step returned .*: expected a Transition"),
        (Point(sizes=np.zeros(2)), r"environment=Point.* cannot be hashed: make it a frozen dataclass"),
        (Point, r"environment=.*Point.* is not written in JAX: pass an instance, Point\(\)"),
    ],
)
def test_an_environment_does_what_its_spec_says(environment, message):
    envs.as_jax(Point())
    with pytest.raises(TypeError, match=message):
        envs.as_jax(environment)


@dataclass(frozen=True)
class Shown:
    """An environment that pays its action, without its shape, and the difference of two random numbers."""

    spec: envs.EnvSpec

    def reset(self, key):
        drawn, _ = jax.random.split(key)
        return jax.random.uniform(drawn), jnp.zeros(1)

    def step(self, state, action, key):
        observation = jnp.ravel(jax.random.uniform(key) - state)
        no = jnp.bool_(False)
        return jax_env.Transition(state, observation, jnp.sum(action) + 100.0 * action.ndim, no, no)


ONE = jax.ShapeDtypeStruct((1,), jnp.float32)


@pytest.mark.parametrize(
    ("spec", "action", "reward"),
    [
        (envs.EnvSpec("own", ONE, 2, False, low=(-1.0, 0.0), high=(1.0, 3.0)), [[5.0, -2.0]], 101.0),  # 1 + 0
        (envs.EnvSpec("own", ONE, 2, False, high=(1.0, 3.0)), [[5.0, -2.0]], 99.0),  # 1 - 2
        (envs.EnvSpec("own", ONE, 4, False, action_shape=(2, 2)), [[1.0, 2.0, 3.0, 4.0]], 210.0),
        (envs.EnvSpec("own", ONE, 2, True, start=10), [1], 11.0),
    ],
)
def test_actions_are_converted_to_the_environments(spec, action, reward):
    """As for Gymnasium's environments: clipped to the bounds, in the shape, and counted from the start."""
    env = envs.make(Shown(spec), slots=1)
    env.reset(np.array([0]))
    assert env.step(np.array([0]), np.array(action)).reward.tolist() == [reward]


def test_the_first_step_does_not_repeat_the_numbers_of_the_reset():
    """Even if the reset splits its key, whose parts JAX derives as it derives keys of steps."""
    slots = np.arange(50)
    env = envs.make(Shown(envs.EnvSpec("own", ONE, 2, True)), slots=50)
    env.reset(slots)
    for _ in range(3):
        assert np.abs(env.step(slots, np.zeros(50, int)).observation).min() > 0
