"""Objectives against their derivatives, and slopes."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stellaris
from theory_checks import mdp, rates, schedules
from theory_checks.check import Instance


def test_not_convex_by_hand():
    """From (pi / 2, pi, 0, 0): 1 - cos is 1, 2, 0 and 0; the noise's variance is 8 over the samples of a batch."""
    objective = rates.not_convex(jnp.array([np.pi / 4, np.pi / 2, 0.0, 0.0, 99.0]))
    np.testing.assert_allclose(objective.gap, 3.0)
    np.testing.assert_allclose(objective.expected(objective.start), [1, 0, 0, 0], atol=1e-12)
    keys = jax.random.split(jax.random.key(0), 4_000)
    samples = jax.jit(jax.vmap(lambda key: objective.gradient(objective.start, key, 4)))(keys)
    squares = ((samples - objective.expected(objective.start)) ** 2).sum(1)
    np.testing.assert_allclose(squares.mean(), 8 / 4, rtol=0.05)


def test_the_mean_is_over_versions_by_hand():
    """Of x^2 over the first two versions, 1 and 1/2; the second, on which two gradients arrive, counts once."""
    exact = rates.Objective(jnp.ones(1), 0.5, 1.0, 0.0, lambda x, key, batch: x, lambda x: x)
    every_second = stellaris.softsync(2)
    recorded = schedules.Schedule(jnp.arange(6), jnp.array([0, 0, 1, 1, 2, 2]), jnp.array([0, 0, 1, 1, 2, 2]))
    seen = rates.mean_squares(exact, every_second, recorded, jax.random.key(0), step=0.5, batch=1, updates=2)
    np.testing.assert_allclose(seen, (1 + 0.25) / 2)


@pytest.mark.slow
def test_the_variance_for_which_there_are_enough_updates_by_hand(monkeypatch):
    """T = 4, tau = 1, k s^2 = 1: 14 (tau + 1)^2 / 4 = 14, so the slides' constant is 2 sqrt(14 / 4)."""
    monkeypatch.setattr(rates, "_ARRIVALS", 4)
    exact = rates.Objective(jnp.ones(1), 0.5, 1.0, 1e-6, lambda x, key, batch: x, lambda x: x)
    schedule = schedules.Schedule(jnp.arange(4), jnp.array([0, 0, 1, 2]), jnp.arange(4))
    fixed = {"schedule": schedule, "batch": 1, "noise": jax.random.key_data(jax.random.key(0))}
    sides = rates.sides(lambda free: exact, Instance((), fixed))
    np.testing.assert_allclose(sides["T >= 14 k (tau+1)^2"].right, 2 * np.sqrt(14 / 4))


@pytest.mark.slow
def test_policy_gradients_are_unbiased_and_within_their_variance():
    @jax.jit
    def estimate(numbers, logits, keys):
        objective = rates.policy_gradient(numbers)
        samples = jax.vmap(lambda key: objective.gradient(logits, key, 4))(keys)
        return samples, objective.expected(logits), objective.variance

    numbers, logits = jax.random.normal(jax.random.key(0), (27,)), jax.random.normal(jax.random.key(1), (3, 2))
    samples, exact, variance = estimate(numbers, logits, jax.random.split(jax.random.key(2), 4_000))
    error = abs(samples.mean(0) - exact) / (samples.std(0) / np.sqrt(4_000))
    assert (error < 5).all()
    assert 4 * ((samples - exact) ** 2).sum((1, 2)).mean() <= variance


@pytest.mark.slow
def test_policy_gradient_is_the_derivative_of_the_return():
    @jax.jit
    def compare(numbers, logits):
        objective = rates.policy_gradient(numbers)
        transition, reward, start = jnp.split(numbers, (18, 24))
        process = mdp.MDP(
            jax.nn.softmax(2 * transition.reshape(3, 2, 3)),
            jax.nn.sigmoid(2 * reward.reshape(3, 2)),
            jax.nn.softmax(start),
            0.5,
        )
        loss = lambda x: -mdp.evaluate(process, jax.nn.softmax(x)).performance  # noqa: E731
        every = jax.vmap(lambda x: (objective.expected(x), *jax.value_and_grad(loss)(x)[::-1]))(logits)
        hessian = jax.vmap(jax.jacfwd(objective.expected))(logits)
        return *every, hessian, loss(objective.start) - objective.gap

    numbers = jax.random.normal(jax.random.key(0), (27,))
    logits = 3 * jax.random.normal(jax.random.key(1), (20, 3, 2))
    expected, gradient, losses, hessian, least = compare(numbers, logits)
    np.testing.assert_allclose(expected, gradient, atol=1e-10)
    assert abs(np.linalg.eigvalsh(hessian.reshape(20, 6, 6))).max() <= 64  # 8 / (1 - 1/2)^3
    assert (least <= losses).all()


def test_slope():
    at = (1.0, 2.0, 4.0)
    squares = np.outer(np.array(at) ** -0.5, np.random.default_rng(0).uniform(0.9, 1.1, 50))
    low, middle, high = rates.slope(at, squares, seed=0)
    assert low <= middle <= high
    assert middle == pytest.approx(-0.5)
