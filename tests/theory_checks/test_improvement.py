"""The forms of the improvement bound: numbers by hand, and what must follow."""

import jax
import jax.numpy as jnp
import numpy as np

from theory_checks import improvement
from theory_checks.check import Instance


def two_states(discount, rho, reward):
    """One start, two actions: the first stays, the second leads away for good; mu takes it rarely, pi more often."""
    far = 40.0
    stay, go = jnp.array([far, 0.0]), jnp.array([0.0, far])
    free = {
        "transition": jnp.stack([jnp.stack([stay, go]), jnp.stack([go, go])]),
        "reward": jnp.arctanh(jnp.array(reward)),
        "start": stay,
        "policy": jnp.log(jnp.array([[[0.8, 0.2], [0.5, 0.5]], [[0.9, 0.1], [0.5, 0.5]]])),
    }
    return Instance(free, {"discount": jnp.array(discount), "rho": jnp.array(rho)})


def test_improvement_by_hand():
    """Staying pays 1/2, away nothing: V_mu(0) = 0.45 / (1 - 0.45); pi leaves twice as often."""
    sides = jax.jit(improvement.forms)(two_states(0.5, 2.0, [[0.5, 0.0], [0.0, 0.0]]))
    value, other = 0.45 / 0.55, 0.4 / 0.6
    advantage = np.array([0.5 + 0.5 * value - value, -value])
    gain, occupancy = 0.8 * advantage[0] + 0.2 * advantage[1], 0.5 / 0.55
    surrogate = occupancy * gain / 0.5
    scale = 0.5 * abs(gain) / 0.25
    np.testing.assert_allclose(sides["total variation"].left, abs(surrogate - (other - value)))
    np.testing.assert_allclose(sides["total variation"].right, 2 * scale * occupancy * 0.1)
    divergence = 0.8 * np.log(8 / 9) + 0.2 * np.log(2)
    np.testing.assert_allclose(sides["divergence"].right, scale * np.sqrt(2 * occupancy * divergence))
    np.testing.assert_allclose(sides["log rho"].right, scale * np.sqrt(2 * np.log(2)))
    np.testing.assert_allclose(sides["1 - 1/rho"].right, scale)


def test_the_printed_form_needs_a_surrogate_that_is_not_negative():
    """The docstring's counterexample, near discount 0: pi is worse, and next to nothing is granted."""
    sides = jax.jit(improvement.forms)(two_states(1e-9, 2.0, [[0.5, 0.0], [0.0, 0.0]]))
    np.testing.assert_allclose(sides["printed, S < 0"].left, 0.05, rtol=1e-6)
    assert sides["printed, S < 0"].right < 1e-7


def test_at_rho_one_nothing_changes_by_hand():
    """Only mu has no ratio above 1: it gains nothing, and every bound grants nothing."""
    sides = jax.jit(improvement.forms)(two_states(0.5, 1.0, [[0.5, 0.0], [0.0, 0.0]]))
    for name in ("total variation", "divergence", "log rho", "1 - 1/rho", "a claimed rho of 1"):
        np.testing.assert_allclose(sides[name][:2], 0.0, atol=1e-12)
