"""Environments of gymnax in the lab."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import PPO, ActorCritic
from stellaris.acting import jax_env
from stellaris.lab import Gymnax, imposed, sweep
from stellaris.systems import Workload


@pytest.mark.parametrize(
    ("name", "observation", "actions", "discrete"),
    [
        ("Acrobot-v1", 6, 3, True),
        ("Breakout-MinAtar", 400, 3, True),
        ("Asterix-MinAtar", 400, 5, True),
        ("Pendulum-v1", 3, 1, False),
        ("Reacher-misc", 8, 2, False),
    ],
)
def test_specifications(name, observation, actions, discrete):
    spec = Gymnax(name).spec
    assert (spec.observation_shape, spec.actions, spec.discrete) == ((observation,), actions, discrete)
    assert len(spec.low) == len(spec.high) == (0 if discrete else actions)


def test_an_episode_is_gymnaxs():
    """Observations, rewards and the end."""
    import gymnax

    own, params = gymnax.make("MountainCar-v0")
    env = Gymnax("MountainCar-v0")
    key = jax.random.key(0)
    state, observation = env.reset(key)
    expected, other = own.reset_env(key, params)
    np.testing.assert_array_equal(observation, jnp.ravel(expected))
    for action in (0, 2, 2, 1):
        moved = env.step(state, jnp.int32(action), key)
        expected, other, reward, *_ = own.step_env(key, other, action, params)
        np.testing.assert_allclose(moved.observation, jnp.ravel(expected), rtol=1e-6)
        assert float(moved.reward) == float(reward)
        state = moved.state


def test_a_time_limit_truncates_and_does_not_terminate():
    env = Gymnax("MountainCar-v0", (("max_steps_in_episode", 3),))
    slot = jax_env.start(env, 0, 0)
    ends = []
    for _ in range(3):
        slot, stepped = jax_env.advance(env, slot, jnp.int32(1))
        ends.append((bool(stepped.terminated), bool(stepped.finished)))
    assert ends == [(False, False), (False, False), (False, True)]


def test_actions_are_clipped_to_their_bounds():
    env = Gymnax("Pendulum-v1")
    state, _ = env.reset(jax.random.key(0))
    far, bound = (env.step(state, jnp.array([torque]), jax.random.key(0)) for torque in (99.0, env.spec.high[0]))
    np.testing.assert_array_equal(far.observation, bound.observation)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["Breakout-MinAtar", "Reacher-misc"])
def test_it_is_learned_from(name):
    workload = Workload(Gymnax(name), ActorCritic(hidden=(8,)), actors=2, fragment=16)
    result = sweep(workload, PPO(epochs=1), imposed(2, actors=2), seeds=2)
    assert np.isfinite(result.value_loss).all()


def test_errors():
    with pytest.raises(ValueError, match=r"Gymnax\('Maze-v9', \(\)\): "):
        Gymnax("Maze-v9")
    with pytest.raises(ValueError, match="speed"):
        Gymnax("Acrobot-v1", (("speed", 2),))
    with pytest.raises(TypeError, match=r"parameters=\{'max_steps_in_episode': 200\} must be a tuple of pairs"):
        Gymnax("Acrobot-v1", {"max_steps_in_episode": 200})
