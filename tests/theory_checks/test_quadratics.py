"""Moments of stale descent on quadratics: by hand, and against sampled descent."""

import jax.numpy as jnp
import numpy as np

from theory_checks import quadratics
from theory_checks.quadratics import Problem, Run, mean_square


def test_one_update_by_hand():
    """From x = 2 with h = 1/2, step 1/2, variance 3: x' = 2 - (1 + xi) / 2."""
    one = Problem(*(jnp.array([x]) for x in (0.5, 1.0, 1.0)))
    lags = jnp.tile(jnp.array([1.0, 0.0]), (2, 1))
    seen = mean_square(one, Run(1.0, 0.5, lags, jnp.full(2, 3.0), None))
    np.testing.assert_allclose(seen, [0.5**2 * 4, 0.5**2 * (1.5**2 + 0.75)])


def test_moments_are_those_of_sampled_descent():
    two = Problem(jnp.array([0.3, 0.9]), jnp.array([0.4, 0.6]), jnp.array([0.7, 0.3]))
    lags = np.random.default_rng(0).dirichlet(np.ones(4), size=12)
    exact = mean_square(two, Run(2.0, 0.4, lags, jnp.full(12, 0.5), None))
    h, start = np.asarray(two.curvature), np.sqrt(2 * 2.0 * np.asarray(two.gap / two.curvature))
    noise = np.random.default_rng(1).normal(size=(200_000, 12, 2)) * np.sqrt(0.5 * np.asarray(two.variance))
    versions = [np.broadcast_to(start, (200_000, 2))] * 4
    for t in range(12):
        np.testing.assert_allclose(exact[t], ((h * versions[0]) ** 2).sum(1).mean(), rtol=0.02)
        stale = sum(weight * version for weight, version in zip(lags[t], versions, strict=True))
        versions = [versions[0] - 0.4 * (h * stale + noise[:, t]), *versions[:3]]


def test_late_gradients_by_hand():
    """h = 1, step 1/2, every gradient one version late, from x^2 = 2: x, x/2, 0, -x/4."""
    one = Problem(*jnp.ones((3, 1)))
    lags = quadratics.all_late(4, 2, 1)
    np.testing.assert_array_equal(lags, [[0, 1, 0]] * 4)
    np.testing.assert_allclose(
        mean_square(one, Run(1.0, 0.5, lags, jnp.zeros(4), None)), [2, 0.5, 0, 0.125], atol=1e-15
    )


def test_the_slides_step_by_hand():
    """T = 8 updates of b = 2 samples, T = 4 k: C1 = 8 / (2 * 2 * 4), the step and the constant are 1/2."""
    run = quadratics.at_the_slides_step(4.0, quadratics.all_late(8, 0, 0), batch=2)
    assert (run.gap, run.step, run.constant) == (0.5, 0.5, 0.5)
    np.testing.assert_array_equal(run.noise, np.full(8, 0.5))
