"""Asynchronous updates of a tabular policy: what they are without lags, and at a lag."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from theory_checks import check, mdp, update
from theory_checks.check import Instance


@pytest.mark.slow
def test_an_update_on_fresh_data_is_the_policy_gradient():
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


@pytest.mark.slow
def test_steps_of_length_zero_change_nothing():
    """The next policy is mu, at whatever lags: nothing is gained, every ratio is 1, and the bounds are 0 = 0."""
    case = jax.tree.map(lambda x: x[0], check.draws(update.THEOREMS[0].families["asynchronous"], 0, 1))
    still = Instance(case.free, case.fixed | {"step": 0.0})
    seen, sides = jax.jit(lambda instance: (update.run(instance, 1.5), update.sides(instance)))(still)
    np.testing.assert_allclose(seen.ratio, 1.0)
    np.testing.assert_allclose((seen.change, seen.surrogate, seen.divergence), 0.0, atol=1e-12)
    np.testing.assert_allclose(sides["1 - 1/rho', the next policy's"].right, 0.0, atol=1e-12)
