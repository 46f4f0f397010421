"""Losses and their gradients, against numbers worked by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import (
    adapt_kl_coefficient,
    approximate_kl,
    decoupled_ppo_loss,
    impact_loss,
    oapl_loss,
    optimal_advantage,
    ppo_loss,
    ppo_penalty_loss,
    sapo_loss,
    value_loss,
)
from tests.close import close

# With respect to log r, the derivative of -r A is -r A.
PPO_CASES = [
    # ratio, advantage, cap, loss, gradient
    (1.0, 3.0, None, -3.0, -3.0),  # on-policy
    (1.1, 2.0, None, -2.2, -2.2),  # inside the trust region
    (1.5, 1.0, None, -1.2, 0.0),  # clipped: a good action is likely enough
    (1.5, -1.0, None, 1.5, 1.5),  # not clipped: a bad action became likely
    (0.5, 1.0, None, -0.5, -0.5),  # not clipped: a good action became unlikely
    (0.5, -1.0, None, 0.8, 0.0),  # clipped: a bad action is unlikely enough
    (1.5, -1.0, 1.0, 1.0, 0.0),  # above the cap: r' = 1, no gradient
    (1.5, -1.0, 1.4, 1.4, 0.0),
    (1.1, 1.0, 1.0, -1.0, 0.0),  # ... though inside the trust region
    (1.5, -1.0, 1.5, 1.5, 1.5),  # at the cap: whole
    (1.5, -1.0, 2.0, 1.5, 1.5),  # below the cap: as without
    (1.5, 1.0, 2.0, -1.2, 0.0),
    (0.5, 1.0, 1.0, -0.5, -0.5),
    (0.5, -1.0, 1.0, 0.8, 0.0),
]


@pytest.mark.parametrize(("ratio", "advantage", "cap", "loss", "gradient"), PPO_CASES)
def test_ppo_by_hand(ratio, advantage, cap, loss, gradient):
    """Every branch of the surrogate and of the cap, with its gradient."""
    with jax.enable_x64(True):
        log_ratio = jnp.log(ratio)
        ratio_cap = None if cap is None else jnp.exp(log_ratio) * (cap / ratio)  # equal to the bit where cap == ratio
        got = jax.value_and_grad(lambda x: ppo_loss(x, jnp.asarray(advantage), ratio_cap=ratio_cap))(log_ratio)
    close(got, (loss, gradient), 1e-12)


VALUE_CASES = [
    # value, target, old value, clip, loss_clip, loss, gradient
    (3.0, 0.0, None, None, None, 9.0, 6.0),
    (0.0, 3.0, None, None, None, 9.0, -6.0),
    (3.0, 0.0, None, None, 10.0, 9.0, 6.0),  # below the bound
    (3.0, 0.0, None, None, 2.0, 2.0, 0.0),  # above it
    (0.5, 2.0, 0.0, 1.0, None, 2.25, -3.0),  # within clip of the old value: plain
    (3.0, 5.0, 0.0, 1.0, None, 16.0, 0.0),  # moved too far, towards the target: (1 - 5)^2, no gradient
    (3.0, 0.0, 0.0, 1.0, None, 9.0, 6.0),  # moved too far, and past the target: it may come back
    (-3.0, -5.0, 0.0, 1.0, None, 16.0, 0.0),
    (3.0, 5.0, 0.0, 1.0, 10.0, 10.0, 0.0),  # both
    (3.0, 5.0, 0.0, 1.0, 20.0, 16.0, 0.0),
    (3.0, 5.0, 0.0, None, None, 4.0, -4.0),  # an old value alone does nothing
]


@pytest.mark.parametrize(("value", "target", "old", "clip", "loss_clip", "loss", "gradient"), VALUE_CASES)
def test_value_by_hand(value, target, old, clip, loss_clip, loss, gradient):
    """Every branch of the two clippings, with its gradient."""
    bounds = {"old_value": None if old is None else jnp.float32(old), "clip": clip, "loss_clip": loss_clip}
    got = jax.value_and_grad(lambda v: value_loss(v, jnp.float32(target), **bounds))(jnp.float32(value))
    close(got, (loss, gradient))


def slope(loss, x):
    """Value and derivative at one number, float64."""
    with jax.enable_x64(True):
        return jax.value_and_grad(loss)(jnp.asarray(x))


@pytest.mark.parametrize(
    ("ratio", "advantage", "clip", "cap", "loss", "gradient"),
    [
        # coefficient 2 times a divergence of 1/4 adds 1/2
        (1.5, 1.0, None, None, -1.0, -1.5),
        (1.5, -1.0, None, None, 2.0, 1.5),
        (9.0, 1.0, None, None, -8.5, -9.0),  # no trust region
        (1.5, 1.0, 0.2, None, -0.7, 0.0),
        (0.5, -1.0, 0.2, None, 1.3, 0.0),
        (1.5, 1.0, None, 1.2, -0.7, 0.0),
        (1.5, -1.0, 0.2, 1.4, 1.9, 0.0),
        (1.5, -1.0, 0.2, 2.0, 2.0, 1.5),
    ],
)
def test_penalty_by_hand(ratio, advantage, clip, cap, loss, gradient):
    """`-r' A + beta KL`, clipped or not; the divergence keeps its gradient, beta, whatever is truncated."""

    def penalised(x, kl=0.25):
        return ppo_penalty_loss(x, jnp.asarray(advantage), jnp.asarray(kl), coefficient=2.0, clip=clip, ratio_cap=cap)

    close(slope(penalised, math.log(ratio)), (loss, gradient), 1e-12)
    by_kl = slope(lambda kl: ppo_penalty_loss(jnp.log(ratio), jnp.asarray(advantage), kl, coefficient=2.0, clip=clip,
                                              ratio_cap=cap), 0.25)  # fmt: skip
    close(by_kl, (loss, 2.0), 1e-12)


@pytest.mark.parametrize(
    ("kl", "factor"),
    [(2.5, 3.0), (2.0, 1.0), (1.9, 1.0), (1.0, 1.0), (0.6, 1.0), (0.5, 1.0), (0.4, 0.25), (0.0, 0.25), (math.inf, 3.0)],
)
def test_adapted_coefficient_by_hand(kl, factor):
    """Target 1, tolerance 2: unchanged from 1/2 to 2, both included; numbers and arrays, compiled or not."""
    options = {"target": 1.0, "tolerance": 2.0, "increase": 3.0, "decrease": 0.25}
    compiled = jax.jit(lambda c, k: adapt_kl_coefficient(c, k, **options))
    for got in (
        adapt_kl_coefficient(8.0, kl, **options),
        adapt_kl_coefficient(jnp.float32(8.0), jnp.float32(kl), **options),
        compiled(jnp.float32(8.0), jnp.float32(kl)),
    ):
        assert (got.shape, got.dtype) == ((), jnp.float32)
        assert got == 8.0 * factor


def test_adapted_coefficient_defaults():
    """The paper's: 0.01 nats, a factor of 1.5 either way, doubled and halved."""
    got = [float(adapt_kl_coefficient(1, kl)) for kl in (0.0066, 0.0067, 0.0149, 0.0151)]
    assert got == [0.5, 1.0, 1.0, 2.0]


@pytest.mark.parametrize(
    ("ratio", "estimate"),
    [(1.0, 0.0), (2.0, 1 - math.log(2)), (0.5, math.log(2) - 0.5), (1e5, 1e5 - 1 - math.log(1e5))],
)
def test_approximate_kl_by_hand(ratio, estimate):
    """`r - 1 - log r`, whose derivative by log r is r - 1."""
    close(slope(approximate_kl, math.log(ratio)), (estimate, ratio - 1), 1e-12)


def test_approximate_kl_keeps_small_divergences():
    """Of a policy 1e-3 away, float32 keeps three digits of x^2 / 2 + x^3 / 6; `exp(x) - 1` would keep one."""
    x = jnp.array([1e-3, -1e-3, 3e-4])
    np.testing.assert_allclose(approximate_kl(x), np.float64(x) ** 2 / 2 + np.float64(x) ** 3 / 6, rtol=1e-3)


@pytest.mark.parametrize(
    ("ratio", "target", "advantage", "rho", "cap", "loss", "gradient"),
    [
        (1.5, 1.5, 1.0, 2.0, None, -1.0, -1.0),  # R = 1: the target policy
        (1.5, 1.0, 1.0, 2.0, None, -1.2, 0.0),
        (1.5, 0.5, -1.0, 2.0, None, 3.0, 3.0),  # R = 3/2 * 2
        (0.5, 0.25, -1.0, 2.0, None, 1.0, 1.0),  # 1/target = 4 truncated to 2
        (0.5, 0.25, -1.0, 4.0, None, 2.0, 2.0),
        (0.5, 0.125, -1.0, math.inf, None, 4.0, 4.0),
        (3.0, 2.0, -1.0, 2.0, 2.0, 1.0, 0.0),  # r = 2, R = 1: above the cap
        (3.0, 2.0, -1.0, 2.0, 4.0, 1.5, 1.5),
        (1.0, 2.0, -1.0, 2.0, 1.0, 0.8, 0.0),  # R = 1/2: clipped
    ],
)
def test_impact_by_hand(ratio, target, advantage, rho, cap, loss, gradient):
    """`R = min(r, cap) min(1 / target, rho)` within 0.2 of 1."""

    def surrogate(x):
        return impact_loss(x, jnp.log(target), jnp.asarray(advantage), target_rho=rho, ratio_cap=cap)

    close(slope(surrogate, math.log(ratio)), (loss, gradient), 1e-12)


@pytest.mark.parametrize(
    ("ratio", "proximal", "advantage", "cap", "loss", "gradient"),
    [
        (1.5, 1.0, 1.0, None, -1.2, 0.0),
        (1.5, 1.5, 1.0, None, -1.5, -1.5),  # at the proximal policy
        (1.5, 2.0, -1.0, None, 1.6, 0.0),  # 3/4 of it: clipped to 4/5
        (1.5, 2.0, 1.0, None, -1.5, -1.5),
        (3.0, 2.0, 1.0, None, -2.4, 0.0),
        (3.0, 2.0, -1.0, None, 3.0, 3.0),
        (3.0, 2.0, -1.0, 2.2, 2.2, 0.0),  # above the cap
        (3.0, 2.0, 1.0, 2.2, -2.2, 0.0),
        (3.0, 2.0, -1.0, 3.5, 3.0, 3.0),
    ],
)
def test_decoupled_by_hand(ratio, proximal, advantage, cap, loss, gradient):
    """The ratio within a fifth of the proximal policy's."""
    surrogate = lambda x: decoupled_ppo_loss(x, jnp.log(proximal), jnp.asarray(advantage), ratio_cap=cap)  # noqa: E731
    close(slope(surrogate, math.log(ratio)), (loss, gradient), 1e-12)


def test_sapo_by_hand():
    """`-(4 / tau) sigmoid(tau (r - 1)) A` and its slope `-4 sigmoid' r A`: at r = 1 that of `-r A`."""
    for ratio, a, tau in ((1.0, 2.0, 1.0), (3.0, 1.0, 1.0), (3.0, -1.0, 1.05), (0.25, -2.0, 1.05), (2.0, 0.0, 1.05)):
        gate = 1 / (1 + math.exp(-tau * (ratio - 1)))
        got = jax.value_and_grad(sapo_loss)(jnp.float32(math.log(ratio)), jnp.float32(a))
        np.testing.assert_allclose(got, (-4 / tau * gate * a, -4 * gate * (1 - gate) * ratio * a), rtol=1e-5)
    assert jax.grad(lambda x: sapo_loss(x, jnp.float32(1.0), ratio_cap=2.0))(jnp.float32(1.0)) == 0.0


@pytest.mark.parametrize(
    ("estimator", "value", "slope"), [("k1", -math.log(2), -1.0), ("k2", math.log(2) ** 2 / 2, math.log(2))]
)
def test_estimators_of_the_divergence(estimator, value, slope):
    """At a ratio of 2; k3 is above. All are 0 at a ratio of 1, and finite for impossible actions."""
    got = jax.value_and_grad(lambda x: approximate_kl(x, estimator=estimator))(math.log(2))
    close(got, (value, slope))
    assert approximate_kl(0.0 * jnp.ones(()), estimator=estimator) == 0.0
    assert np.isfinite(approximate_kl(jnp.array(-jnp.inf), estimator=estimator))


def test_an_unknown_estimator():
    with pytest.raises(ValueError, match="estimator='k4' is not 'k1', 'k2' or 'k3'"):
        approximate_kl(jnp.zeros(2), estimator="k4")


def test_oapl_by_hand():
    """(0.5 * 2 - 3)^2 = 4, with slope 2 * -2 * 0.5 in the log-ratio."""
    got = jax.value_and_grad(lambda x: oapl_loss(x, jnp.asarray(3.0), coefficient=0.5))(2.0)
    close(got, (4.0, -2.0))


@pytest.mark.slow
def test_oapl_finds_the_optimum_of_the_penalised_return():
    """A softmax policy over three answers becomes `mu exp(R / beta)`, normalised.

    `mu` is uniform and each answer occurs once, so that the group's V is exactly the optimal value.
    """
    reward, beta = jnp.array([1.0, 0.2, -0.5]), 0.7
    advantage = optimal_advantage(reward, jnp.zeros(3, int), beta=beta)

    def loss(logits):
        return jnp.mean(oapl_loss(jax.nn.log_softmax(logits) + jnp.log(3.0), advantage, coefficient=beta))

    step = jax.jit(lambda logits: logits - 0.5 * jax.grad(loss)(logits))
    logits = jnp.zeros(3)
    for _ in range(200):
        logits = step(logits)
    close(jax.nn.softmax(logits), jax.nn.softmax(reward / beta), 1e-4)
    close(loss(logits), 0.0, 1e-6)
