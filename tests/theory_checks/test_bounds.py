"""The tabular bounds: numbers by hand, and what must follow."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from theory_checks import check, improvement, mdp, truncation, update, vtrace
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


def test_at_rho_one_there_is_one_policy():
    free, fixed = check.draws(improvement.THEOREMS[0].families["tiny"], 0, 100)
    pi, mu = jax.nn.softmax(free["policy"]).swapaxes(0, 1)
    np.testing.assert_allclose(jax.vmap(mdp.within, in_axes=(0, 0, None))(pi, mu, 1.0), mu)
    assert (fixed["rho"] > 1).all()


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


def test_an_update_on_fresh_data_is_the_policy_gradient():
    """Without lags and with one policy held there is nothing to truncate."""
    case = check.draws(update.THEOREMS[0].families["asynchronous"], 0, 1)
    case = jax.tree.map(lambda x: x[0], case)
    fixed = case.fixed | {"actor": jnp.zeros(1, int), "held": jnp.zeros((1, 4), int)}
    seen = jax.jit(update.run)(Instance(case.free, fixed), 1.0)
    process, logits = mdp.process(case), case.free["policy"][0]
    performance = lambda x: mdp.evaluate(process, jax.nn.softmax(x)).performance  # noqa: E731
    gradient = (1 - fixed["discount"]) * jax.jit(jax.grad(performance))(logits)
    after = logits + fixed["step"] * gradient
    np.testing.assert_allclose(seen.change[0], performance(after) - performance(logits), rtol=1e-8)
    ratio = jax.nn.softmax(after) / jax.nn.softmax(logits)
    np.testing.assert_allclose(seen.ratio[0], ratio.max(), rtol=1e-8)
