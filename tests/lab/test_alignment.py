"""What the program measures of its gradients and steps, and the parameters that it hands to the optimizer."""

from dataclasses import dataclass

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import PPO, ActorCritic, Workload
from stellaris.aggregation import fully_asynchronous
from stellaris.lab import CartPole, Constant, imposed, sweep
from stellaris.lab.alignment import alignment_of, measure_alignment

WORKLOAD = Workload(CartPole(), ActorCritic(hidden=(4,)), actors=1, fragment=8)


@dataclass(frozen=True)
class Back(PPO):
    """Steps to one more than the parameters at which the gradient was computed, whatever the gradient."""

    def optimizer(self):
        def update(updates, state, params, *, params_then, **extra):
            del updates, extra
            return jax.tree.map(lambda then, now: then + 1.0 - now, params_then, params), state

        return optax.GradientTransformationExtraArgs(lambda params: (), update)


@pytest.mark.slow
def test_the_optimizer_gets_the_parameters_of_the_gradient():
    """With ages 0, 1, 2, 2, … the versions are p, p + 1, p + 1, p + 1, p + 2, …: every third step is one of 1."""
    result = sweep(
        WORKLOAD,
        Back(epochs=1),
        imposed(7, actors=1, gradients=Constant(2)),
        aggregator=fully_asynchronous(capacity=1),
    )
    norms = result.step_norm.values[0]
    np.testing.assert_allclose(norms / norms[0], [1, 0, 0, 1, 0, 0, 1], atol=1e-6)
    count = sum(leaf.size for leaf in jax.tree.leaves(WORKLOAD.make_policy(CartPole().spec).init(jax.random.key(0))))
    np.testing.assert_allclose(norms[0], np.sqrt(count), rtol=1e-5)
    assert "gradient_cosine" not in result


def test_the_cosine_is_found_in_a_chain():
    optimizer = optax.chain(measure_alignment(), optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    params = {"a": jnp.zeros(1), "b": jnp.zeros(1)}
    state = optimizer.init(params)
    assert float(alignment_of(state)["gradient_cosine"]) == 0
    for gradient, cosine in (([1.0, 0.0], 0.0), ([3.0, 4.0], 0.6), ([-6.0, -8.0], -1.0)):
        _, state = optimizer.update({"a": jnp.array(gradient[:1]), "b": jnp.array(gradient[1:])}, state, params)
        np.testing.assert_allclose(alignment_of(state)["gradient_cosine"], cosine, rtol=1e-6)
    assert alignment_of(optax.adam(1e-3).init(params)) == {}
