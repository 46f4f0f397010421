"""V-trace's operator: what it is in special cases, and its modulus."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from theory_checks import mdp, vtrace


@pytest.fixture
def process():
    case = mdp.draw(jax.random.key(5), 4, 3, policies=2, sharpness=2.0, discounts=(0.8, 0.9), ratios=(1.0, 2.0))
    return mdp.process(case), *mdp.policies(case)


def test_without_traces_vtrace_is_one_step(process):
    mdp_, pi, mu = process
    here = vtrace.operator(mdp_, pi, mu, 1.5, 0.0)
    value = jnp.arange(4.0)
    weight = jnp.minimum(1.5 * mu, pi)
    error = mdp_.reward + mdp_.discount * mdp_.transition @ value - value[:, None]
    np.testing.assert_allclose(here(value), value + (weight * error).sum(1))


def test_on_policy_vtrace_is_constant(process):
    mdp_, _, mu = process
    here = vtrace.operator(mdp_, mu, mu, 1.0, 1.0)
    np.testing.assert_allclose(here(jnp.zeros(4)), mdp.evaluate(mdp_, mu).value)
    np.testing.assert_allclose(here.lipschitz(), 0, atol=1e-12)


def test_no_two_values_come_closer_than_the_modulus_allows(process):
    mdp_, pi, mu = process
    here = vtrace.operator(mdp_, pi, mu, 1.5, 1.2)
    rng, apply = np.random.default_rng(0), jax.jit(here.__call__)
    for _ in range(50):
        a, b = rng.normal(size=(2, 4))
        assert abs(apply(a) - apply(b)).max() <= here.modulus.max() * abs(a - b).max() * (1 + 1e-12)
    np.testing.assert_allclose(abs(here(jnp.ones(4)) - here(jnp.zeros(4))), here.modulus)
