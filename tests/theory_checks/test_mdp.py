"""Exact values against sums over time, and NumPy's inverse."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from theory_checks import mdp


def instance(seed=0, **more):
    return mdp.draw(
        jax.random.key(seed),
        4,
        3,
        policies=2,
        **{"sharpness": 2.0, "discounts": (0.1, 0.9), "ratios": (1.1, 5.0), **more},
    )


def test_inverse_and_its_derivative():
    rng = np.random.default_rng(0)
    matrix, direction = np.eye(5) - 0.9 * rng.dirichlet(np.ones(5), 5), rng.normal(size=(5, 5))
    inverse, slope = jax.jvp(mdp.inverse, (jnp.array(matrix),), (jnp.array(direction),))
    np.testing.assert_allclose(inverse, np.linalg.inv(matrix), rtol=1e-12)
    wanted = (np.linalg.inv(matrix + 1e-6 * direction) - np.linalg.inv(matrix - 1e-6 * direction)) / 2e-6
    np.testing.assert_allclose(slope, wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_values_are_sums_over_time(seed):
    case = instance(seed)
    process, (pi, _) = mdp.process(case), mdp.policies(case)
    p, r, start, discount = (np.asarray(x) for x in process)
    chain, reward = np.einsum("sa,sat->st", pi, p), (np.asarray(pi) * r).sum(1)
    now, value, visits, occupancy = np.eye(4), np.zeros(4), start, np.zeros(4)
    for t in range(600):
        value, occupancy = value + discount**t * now @ reward, occupancy + (1 - discount) * discount**t * visits
        now, visits = now @ chain, visits @ chain
    seen = mdp.evaluate(process, pi)
    np.testing.assert_allclose(seen.value, value, rtol=1e-10)
    np.testing.assert_allclose(seen.occupancy, occupancy, rtol=1e-10)
    np.testing.assert_allclose(seen.performance, start @ value, rtol=1e-10)
    np.testing.assert_allclose((np.asarray(pi) * seen.advantage).sum(1), 0, atol=1e-10)


@pytest.mark.parametrize("rho", [1.0, 1.3, 4.0])
def test_within(rho):
    pi, mu = mdp.policies(instance(1, sharpness=4.0))
    near = mdp.within(pi, mu, rho)
    ratio = np.asarray(near / mu).max(1)
    np.testing.assert_allclose(near.sum(1), 1)
    np.testing.assert_allclose(ratio, np.minimum(np.asarray(pi / mu).max(1), rho))
    if rho == 1:
        np.testing.assert_allclose(near, mu)
