"""PPO's adaptive penalty: its weight follows the divergence from batch to batch, and is constant within one."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import PPO
from stellaris.aggregation import gradient_queue
from stellaris.aggregation.apply import apply_update
from stellaris.algorithms import update
from tests.algorithms.problems import categorical, parameters, sample_batch


def learned(ppo, params, opt_state, batch):
    indices = ppo.minibatches(jax.random.key(3), batch)
    return update(ppo, categorical, params, opt_state, batch, indices, version=jnp.int32(9))


def problem():
    """Parameters, and a batch whose behaviour policy is at some distance from them."""
    return parameters(1, like=0), sample_batch(categorical)


@pytest.mark.slow
@pytest.mark.parametrize(("times", "factor"), [(0.4, 1.5), (0.6, 1.0), (1.9, 1.0), (2.1, 0.5)])
def test_the_weight_for_the_next_batch(times, factor):
    """Half and twice the target bound the divergences that leave the weight as it is."""
    params, batch = problem()
    settings = {"epochs": 2, "minibatch_size": 16, "learning_rate": 1e-6, "kl_coefficient": 0.2}
    plain = PPO(**settings)
    kl = float(learned(plain, params, plain.optimizer().init(params), batch)[2]["kl"])
    adaptive = PPO(**settings, kl_target=times * kl)
    state = learned(adaptive, params, adaptive.optimizer().init(params), batch)[1]
    assert float(state.kl_coefficient) == pytest.approx(0.2 * factor)


@pytest.mark.slow
def test_each_batch_is_learned_with_the_weight_that_the_batch_before_has_left():
    """As plain PPO with a constant weight for each batch, with one optimizer's state; the first halves the weight."""
    params, batch = problem()
    settings = {"epochs": 3, "minibatch_size": 16, "learning_rate": 0.05}
    adaptive = PPO(**settings, kl_coefficient=4.0, kl_target=100.0)
    state = adaptive.optimizer().init(params)
    expected = (params, adaptive.optimizer().init(params).optimizer)
    for weight in (4.0, 2.0, 1.0):
        params, state, _ = learned(adaptive, params, state, batch)
        expected = learned(PPO(**settings, kl_coefficient=weight), *expected, batch)[:2]
        jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-7), params, expected[0])
    constant = PPO(**settings, kl_coefficient=4.0)
    other = problem()[0], constant.optimizer().init(params)
    for _ in range(3):
        other = learned(constant, *other, batch)[:2]
    assert any(not np.allclose(a, b, rtol=1e-3) for a, b in zip(*map(jax.tree.leaves, (params, other[0])), strict=True))


def test_learners_of_single_gradients_keep_the_weight():
    ppo = PPO(kl_coefficient=0.2, kl_target=0.01)
    params = {"w": jnp.ones(2)}
    queue = gradient_queue.push(gradient_queue.empty(params, 2, ()), {"w": jnp.ones(2)}, jnp.int32(0))
    taken, _ = gradient_queue.take(queue, 1, jnp.int32(0), lambda staleness: jnp.ones_like(staleness, float), "mean")
    params, state = apply_update(ppo.optimizer(), taken, params, ppo.optimizer().init(params))
    assert float(state.kl_coefficient) == pytest.approx(0.2)
    assert float(params["w"][0]) == pytest.approx(1 - ppo.learning_rate, rel=1e-4)


def test_a_target_needs_a_weight_to_start_from():
    with pytest.raises(ValueError, match=r"kl_target=0\.01 with kl_coefficient=0"):
        PPO(kl_target=0.01)
