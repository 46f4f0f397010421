"""Trajectories as PPO's batches: advantages and targets by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stellaris
from stellaris import PPO, Trajectory
from tests.algorithms.problems import ACTIONS, FEATURES, close, equal


def test_one_step_of_one_environment():
    """T = B = 1, by hand: one temporal difference, and a deviation of zero."""
    one = np.ones((1, 1), np.float32)
    step = Trajectory(
        observation=np.ones((2, 1, FEATURES), np.float32),
        action=np.zeros((1, 1, ACTIONS), np.float32),
        reward=2 * one,
        terminated=one < 0,
        valid=one > 0,
        log_prob=-one,
        value=np.array([[3.0], [4.0]], np.float32),
        version=np.full((1, 1), 5, np.int32),
    )
    batch = PPO(discount=0.5, standardize_advantage=False).prepare(step)
    equal((batch.advantage, batch.target, batch.version), (np.ones(1), np.full(1, 4.0), np.full(1, 5)))
    equal(PPO(discount=0.5).prepare(step).advantage, np.zeros(1))


def trajectory(dtype=np.float32):
    """Two environments, five steps; value 1, 2, 4, 8, 16, 32 in both, rewards 1, 2, -, 3, 4.

    The first is truncated after step 1, resets in step 2, terminates in step 3 and resets in step 4; the second
    terminates after step 1, resets in step 2 and runs on.
    """
    value = np.array([[1, 2, 4, 8, 16, 32]] * 2, dtype).T
    return Trajectory(
        observation=np.arange(6 * 2 * FEATURES, dtype=np.float32).reshape(6, 2, FEATURES),
        action=np.arange(5 * 2 * ACTIONS, dtype=np.float32).reshape(5, 2, ACTIONS),
        reward=np.array([[1, 1], [2, 2], [99, -99], [3, 3], [99, 4]], dtype),
        terminated=np.array([[0, 0], [0, 1], [0, 0], [1, 0], [0, 0]], bool),
        valid=np.array([[1, 1], [1, 1], [0, 0], [1, 1], [0, 1]], bool),
        log_prob=-np.arange(10, dtype=dtype).reshape(5, 2),
        value=value,
        version=np.arange(10, dtype=np.int32).reshape(5, 2),
    )


# gamma = lambda = 1/2.
# First: A_1 = delta_1 = 2 + 4/2 - 2 = 2 (truncated: the last observation's value counts), delta_0 = 1 + 2/2 - 1 = 1,
# A_0 = 1 + 2/4; A_3 = 3 - 8 (terminated).
# Second: A_1 = 2 - 2 (terminated), A_0 = 1; A_4 = 4 + 32/2 - 16 = 4, delta_3 = 3 + 16/2 - 8 = 3, A_3 = 3 + 4/4.
ADVANTAGE = np.array([[1.5, 1.0], [2.0, 0.0], [0.0, 0.0], [-5.0, 4.0], [0.0, 4.0]])
BY_HAND = {"discount": 0.5, "lambda_": 0.5}


def test_prepare_by_hand():
    """Advantages, targets, and the order in which samples are laid out: `t * B + b`."""
    batch = PPO(standardize_advantage=False, **BY_HAND).prepare(trajectory())
    equal(batch.advantage, ADVANTAGE.ravel())
    valid = trajectory().valid.ravel()
    equal(batch.valid, valid)
    # A + V; the reset steps' targets are never looked at.
    equal(batch.target[valid], (ADVANTAGE + np.array([[1, 2, 4, 8, 16]]).T).ravel()[valid])
    equal(batch.value, [1, 1, 2, 2, 4, 4, 8, 8, 16, 16])
    equal(batch.version, np.arange(10))
    equal(batch.log_prob, -np.arange(10))
    equal(batch.observation, np.arange(10 * FEATURES).reshape(10, FEATURES))
    equal(batch.action, np.arange(10 * ACTIONS).reshape(10, ACTIONS))


def test_prepare_standardizes_over_valid_samples():
    """The seven transitions have mean 0 and deviation 1; resets stay at zero; targets are those without."""
    plain, standard = (PPO(standardize_advantage=s, **BY_HAND).prepare(trajectory()) for s in (False, True))
    valid = np.asarray(plain.valid)
    advantage = ADVANTAGE.ravel()[valid]
    close(standard.advantage[valid], (advantage - advantage.mean()) / advantage.std())
    equal(standard.advantage[~valid], np.zeros(3))
    equal(standard._replace(advantage=plain.advantage), plain)


def test_prepare_of_equal_advantages_is_finite():
    for transitions in (1, 0):
        valid = np.arange(10).reshape(5, 2) < transitions
        equal(PPO().prepare(trajectory()._replace(valid=valid)).advantage, np.zeros(10))


def test_prepare_under_jit_and_without_float_observations():
    """Static configuration, traced trajectory; other observation and action types stay what they are."""
    pixels = trajectory()._replace(observation=np.full((6, 2, 4, 4, 1), 7, np.uint8), action=np.zeros((5, 2), np.int32))
    got, expected = jax.jit(PPO.prepare, static_argnums=0)(PPO(), pixels), PPO().prepare(pixels)
    close(got, expected)
    assert (got.observation.shape, got.observation.dtype) == ((10, 4, 4, 1), jnp.uint8)
    assert (got.action.shape, got.action.dtype) == ((10,), jnp.int32)
    assert (got.version.dtype, got.valid.dtype) == (jnp.int32, jnp.bool_)


def linear(params, observation):
    return observation @ params, observation[..., 0]


@jax.jit
def by_every_algorithm(trajectory):
    params = jnp.ones((3, 2))
    loss, _ = stellaris.IMPALA().loss(linear, params, trajectory, (params + 0.1,), version=3)
    return (PPO().prepare(trajectory), stellaris.IMPACT().prepare(trajectory, linear, params)), loss


@pytest.mark.slow
@pytest.mark.parametrize("batch_shape", [(), (6,), (2, 3), (1, 2, 3)])
def test_any_number_of_batch_axes_is_flattened(batch_shape):
    """`[T, 6]`, however its environments are arranged, gives the samples of `[T, 6]`; `[T]` gives T."""
    flat = random_trajectory(6) if batch_shape else jax.tree.map(lambda x: x[:, :1], random_trajectory(6))
    deep = jax.tree.map(lambda x: x.reshape(len(x), *batch_shape, *x.shape[2:]), flat)
    (got, loss), (expected, expected_loss) = by_every_algorithm(deep), by_every_algorithm(flat)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), got, expected)
    assert {len(x) for x in jax.tree.leaves(got)} == {5 * (6 if batch_shape else 1)}
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-5)


def random_trajectory(envs):
    draw = np.random.default_rng(0)
    return stellaris.Trajectory(
        observation=jnp.asarray(draw.normal(size=(6, envs, 3)), jnp.float32),
        action=jnp.asarray(draw.integers(2, size=(5, envs)), jnp.int32),
        reward=jnp.asarray(draw.normal(size=(5, envs)), jnp.float32),
        terminated=jnp.asarray(draw.random((5, envs)) < 0.2),
        valid=jnp.asarray(draw.random((5, envs)) < 0.8),
        log_prob=jnp.asarray(-draw.random((5, envs)), jnp.float32),
        value=jnp.asarray(draw.normal(size=(6, envs)), jnp.float32),
        version=jnp.asarray(draw.integers(3, size=(5, envs)), jnp.int32),
    )
