"""Truncated importance sampling: numbers by hand."""

import jax.numpy as jnp
import numpy as np
import pytest

from theory_checks import truncation
from theory_checks.check import Instance


@pytest.mark.slow
def test_truncation_by_hand():
    """Two outcomes, mu even, pi (0.9, 0.1): w is 1.8 and 0.2."""
    nothing = jnp.full(4, -60.0)  # outcomes that do not happen
    free = {
        "behaviour": jnp.concatenate([jnp.zeros(2), nothing]),
        "f": jnp.array([50.0, -50.0, 0, 0, 0, 0]),
        "together": jnp.concatenate([jnp.log(jnp.array([0.9, 0.1])), jnp.zeros(4)]),
        "apart": jnp.zeros((4, 6)),
    }
    sides = truncation.sides(Instance(free, {"rho": jnp.array(1.5)}))
    np.testing.assert_allclose(sides["second moment"].left, (1.5**2 + 0.2**2) / 2)
    np.testing.assert_allclose(sides["second moment"].right, 1.5)
    np.testing.assert_allclose(sides["bias"].left, 0.15)
    np.testing.assert_allclose(sides["bias"].right, 0.15)
    np.testing.assert_allclose(sides["untruncated, |f| = M"].left, 1.64)
    np.testing.assert_allclose(sides["untruncated, |f| = M"].right, 1 + 0.8**2)
    # All hold the same policy: nothing is cut, m = 1.8 where it is above rho.
    np.testing.assert_allclose(sides["global cap, second moment"].left, 1.64)
    np.testing.assert_allclose(sides["global cap, second moment"].right, 1.5 + 1.8**2 / 2)
    assert (
        sides["the constant's bound for the global cap"].left > sides["the constant's bound for the global cap"].right
    )


def test_chi_squared_by_hand():
    """(0.4^2 + 0.4^2) / 0.5, and 0 of a distribution with itself."""
    pi, mu = jnp.array([[0.9, 0.1], [0.5, 0.5]]), jnp.array([0.5, 0.5])
    np.testing.assert_allclose(truncation.chi_squared(pi, mu), [0.64, 0.0])
