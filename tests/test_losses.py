"""Losses against transcriptions of their formulas in plain Python, and against each other where they coincide."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import (
    approximate_kl,
    decoupled_ppo_loss,
    global_ratio_cap,
    impact_loss,
    impala_loss,
    oapl_loss,
    ppo_loss,
    ppo_penalty_loss,
    truncated_policy_gradient_loss,
    value_loss,
)
from tests.close import close, equal


def ppo_sample(shape, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=shape, scale=0.5), random.normal(size=shape), random.uniform(1.0, 2.0, size=shape)


@pytest.mark.slow
def test_approximate_kl_is_unbiased():
    """Its mean over the behaviour policy's actions is the divergence, and its mean gradient the divergence's."""
    with jax.enable_x64(True):
        logits, behaviour = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5)))
        log_mu = jax.nn.log_softmax(behaviour)
        estimate = lambda x: jnp.sum(jnp.exp(log_mu) * approximate_kl(jax.nn.log_softmax(x) - log_mu))  # noqa: E731
        exact = lambda x: jnp.sum(jnp.exp(log_mu) * (log_mu - jax.nn.log_softmax(x)))  # noqa: E731
        got, expected = jax.value_and_grad(estimate)(logits), jax.value_and_grad(exact)(logits)
    close(got, expected, 1e-12)


def bounded(x, low, high):
    return min(max(x, low), high)


def paper_ppo(ratio, a, clip):
    return -min(ratio * a, bounded(ratio, 1 - clip, 1 + clip) * a)


def paper_decoupled(x, y, a, cap, clip):
    """Hilton et al.'s: a weight before PPO's loss around the proximal policy."""
    w = math.exp(y)
    u = min(math.exp(x), cap) / w
    return -w * min(u * a, bounded(u, 1 - clip, 1 + clip) * a)


def paper_huber(x, delta):
    return x * x if abs(x) <= delta else 2 * delta * abs(x) - delta * delta


def paper_value(v, g, old, clip, loss_clip, delta):
    near = old + bounded(v - old, -clip, clip)
    return min(max(paper_huber(v - g, delta), paper_huber(near - g, delta)), loss_clip)


INF = math.inf
# (loss of four arrays, its definition of four numbers, whether the second has a gradient)
DEFINITIONS = {
    "PPO": (
        lambda x, y, a, c: ppo_loss(x, a, clip=0.3),
        lambda x, y, a, c: paper_ppo(math.exp(x), a, 0.3),
        False,
    ),
    "PPO, capped": (
        lambda x, y, a, c: ppo_loss(x, a, ratio_cap=c),
        lambda x, y, a, c: paper_ppo(min(math.exp(x), c), a, 0.2),
        False,
    ),
    "value": (lambda x, y, a, c: value_loss(x, y), lambda x, y, a, c: (x - y) ** 2, True),
    "value, clipped": (
        lambda x, y, a, c: value_loss(x, y, old_value=a, clip=0.5, loss_clip=1.5),
        lambda x, y, a, c: paper_value(x, y, a, 0.5, 1.5, INF),
        True,
    ),
    "penalty": (
        lambda x, y, a, c: ppo_penalty_loss(x, a, y, coefficient=0.3),
        lambda x, y, a, c: -math.exp(x) * a + 0.3 * y,
        True,
    ),
    "penalty, clipped and capped": (
        lambda x, y, a, c: ppo_penalty_loss(x, a, y, coefficient=jnp.asarray(0.3), clip=0.3, ratio_cap=c),
        lambda x, y, a, c: paper_ppo(min(math.exp(x), c), a, 0.3) + 0.3 * y,
        True,
    ),
    "approximate KL": (
        lambda x, y, a, c: approximate_kl(x),
        lambda x, y, a, c: math.exp(x) - 1 - x,
        False,
    ),
    "IMPALA": (lambda x, y, a, c: impala_loss(x, a), lambda x, y, a, c: -x * a, False),
    "truncated policy gradient": (
        lambda x, y, a, c: truncated_policy_gradient_loss(x, y, a, ratio_cap=c),
        lambda x, y, a, c: -min(math.exp(y), c) * x * a,
        False,
    ),
    "IMPACT": (
        lambda x, y, a, c: impact_loss(x, y, a),
        lambda x, y, a, c: paper_ppo(math.exp(x) * min(math.exp(-y), 2.0), a, 0.2),
        False,
    ),
    "IMPACT, capped": (
        lambda x, y, a, c: impact_loss(x, y, a, clip=0.4, target_rho=1.3, ratio_cap=c),
        lambda x, y, a, c: paper_ppo(min(math.exp(x), c) * min(math.exp(-y), 1.3), a, 0.4),
        False,
    ),
    "decoupled": (
        lambda x, y, a, c: decoupled_ppo_loss(x, y, a),
        lambda x, y, a, c: paper_decoupled(x, y, a, INF, 0.2),
        False,
    ),
    "decoupled, capped": (
        lambda x, y, a, c: decoupled_ppo_loss(x, y, a, clip=0.4, ratio_cap=c),
        lambda x, y, a, c: paper_decoupled(x, y, a, c, 0.4),
        False,
    ),
    "Huber": (
        lambda x, y, a, c: value_loss(x, y, huber=0.6),
        lambda x, y, a, c: paper_huber(x - y, 0.6),
        True,
    ),
    "Huber, clipped": (
        lambda x, y, a, c: value_loss(x, y, old_value=a, clip=0.5, loss_clip=1.5, huber=0.6),
        lambda x, y, a, c: paper_value(x, y, a, 0.5, 1.5, 0.6),
        True,
    ),
}


@pytest.mark.parametrize("name", DEFINITIONS)
def test_definitions(name):
    """Each loss is the formula of its docstring, and its gradient the formula's slope, or zero for a constant."""
    loss, formula, second = DEFINITIONS[name]
    x, a, c = ppo_sample((40,))
    y, h = ppo_sample((40,), seed=1)[0], 1e-6
    expected = [formula(*row) for row in zip(x, y, a, c, strict=True)]
    by_x, by_y = (
        [
            (formula(p + h * u, q + h * v, *rest) - formula(p - h * u, q - h * v, *rest)) / (2 * h)
            for p, q, *rest in zip(x, y, a, c, strict=True)
        ]
        for u, v in ((1, 0), (0, 1))
    )
    with jax.enable_x64(True):
        arrays = [jnp.asarray(z) for z in (x, y, a, c)]
        got, (got_x, got_y) = jax.jit(
            lambda *z: (loss(*z), jax.grad(lambda *w: jnp.sum(loss(*w)), argnums=(0, 1))(*z))
        )(*arrays)
    assert got.dtype == jnp.float64
    close(got, expected, 1e-12)
    close(got_x, by_x, 1e-6)
    close(got_y, by_y if second else np.zeros(40), 1e-6 if second else 0.0)


# Log-ratio, second array, advantage -> the loss under a cap.
CAPPED = {
    "ppo": lambda x, y, a, cap: ppo_loss(x, a, ratio_cap=cap),
    "penalty": lambda x, y, a, cap: ppo_penalty_loss(x, a, y, coefficient=0.3, clip=0.2, ratio_cap=cap),
    "truncated": lambda x, y, a, cap: truncated_policy_gradient_loss(y + x, x, a, ratio_cap=cap),
    "impact": lambda x, y, a, cap: impact_loss(x, y, a, ratio_cap=cap),
    "decoupled": lambda x, y, a, cap: decoupled_ppo_loss(x, y, a, ratio_cap=cap),
}


def reduction_sample(count=64):
    """Log-ratios of either sign with the extremes among them, a second array, advantages; float32."""
    x, a, _ = ppo_sample((count,))
    x[:4] = 1e4, -1e4, 31.0, -math.inf
    return [jnp.asarray(z, jnp.float32) for z in (x, ppo_sample((count,), seed=1)[0], a)]


def with_gradient(loss, x, *rest):
    return loss(x, *rest), jax.grad(lambda z: jnp.sum(loss(z, *rest)))(x)


@pytest.mark.parametrize("name", CAPPED)
def test_a_constant_cap_is_an_array_full_of_it(name):
    """A number and an array; it does truncate, and an infinite one does not."""
    x, y, a = reduction_sample()
    got, same, plain = (with_gradient(CAPPED[name], x, y, a, c) for c in (1.25, jnp.full(64, 1.25), None))
    equal(got, same)
    assert np.any(np.asarray(got[1]) != plain[1])
    if name != "truncated":
        above = np.asarray(x) > math.log(1.25)
        equal(got[1], np.where(above, 0.0, plain[1]))
    equal(with_gradient(CAPPED[name], x, y, a, math.inf), plain)


def test_a_ratio_that_is_its_own_cap_keeps_its_gradient():
    """With one policy the global cap is its own ratio; none of 1,000 samples may lose its gradient by rounding."""
    random = np.random.default_rng(0)
    x, proximal = jnp.asarray(random.uniform(0, 1, 1000), jnp.float32), jnp.asarray(random.normal(size=1000) * 0.3)
    cap = global_ratio_cap(x[None])

    def gradient(ratio_cap):
        loss = lambda x: decoupled_ppo_loss(  # noqa: E731
            x, proximal.astype(jnp.float32), -jnp.ones(1000), clip=math.inf, weight=1.0, ratio_cap=ratio_cap
        )
        return jax.grad(lambda x: loss(x).sum())(x)

    close(gradient(cap), gradient(None))
    # A cap that is infinite in float16 is no number times 0.
    half = jnp.asarray([30.0, -30.0], jnp.float16)
    assert jnp.isfinite(decoupled_ppo_loss(half, half, jnp.ones_like(half), weight=1.0, ratio_cap=math.inf)).all()


def test_oapl_is_finite_in_float16():
    found = oapl_loss(jnp.asarray([-300.0, -30.0, math.inf], jnp.float16), jnp.ones(3, jnp.float16), coefficient=1.0)
    assert found.dtype == jnp.float16
    assert jnp.isfinite(found).all()
    assert found[1] == 31.0**2


def test_no_gradient_to_constants():
    """The cap, the target and the proximal policy, and the ratio that is a weight."""
    x, y, a = (z[4:] for z in reduction_sample())
    cap = jnp.full(60, 1.1)
    for name in CAPPED:
        by_y, by_cap = jax.grad(lambda *z, name=name: jnp.sum(CAPPED[name](*z)), argnums=(1, 3))(x, y, a, cap)
        np.testing.assert_array_equal(by_cap, np.zeros(60))
        if name in ("impact", "decoupled"):
            np.testing.assert_array_equal(by_y, np.zeros(60))
    by_ratio = jax.grad(lambda r: jnp.sum(truncated_policy_gradient_loss(y, r, a, ratio_cap=None)))(x)
    np.testing.assert_array_equal(by_ratio, np.zeros(60))
