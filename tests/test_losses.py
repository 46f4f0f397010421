"""Losses against transcriptions of their formulas in plain Python, and against each other where they coincide."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    Categorical,
    approximate_kl,
    decoupled_ppo_loss,
    global_ratio_cap,
    impact_loss,
    impala_loss,
    importance_ratio,
    ppo_loss,
    ppo_penalty_loss,
    truncated_policy_gradient_loss,
    value_loss,
)


def close(got, want, tolerance=1e-6):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


def ppo_sample(shape, seed=0):
    random = np.random.default_rng(seed)
    return random.normal(size=shape, scale=0.5), random.normal(size=shape), random.uniform(1.0, 2.0, size=shape)


@pytest.mark.parametrize("shape", [(), (40,), (20, 2), (0,)])
@pytest.mark.parametrize("clip", [0.1, 0.3, 2])
@pytest.mark.parametrize("capped", [False, True])
def test_ppo_definition(shape, clip, capped):
    """`-min(r' A, clip(r') A)` in float64, in plain Python."""
    log_ratio, advantage, cap = ppo_sample(shape)
    expected = np.empty(shape)
    for i in np.ndindex(shape):
        ratio = min(math.exp(log_ratio[i]), cap[i] if capped else math.inf)
        expected[i] = -min(ratio * advantage[i], min(max(ratio, 1 - clip), 1 + clip) * advantage[i])
    with jax.enable_x64(True):
        ratio_cap = jnp.asarray(cap) if capped else None
        got = ppo_loss(jnp.asarray(log_ratio), jnp.asarray(advantage), clip=clip, ratio_cap=ratio_cap)
    assert got.dtype == jnp.float64
    close(got, expected, 1e-12)


def test_ppo_gradient_is_the_slope():
    """Central differences of the loss, away from its kinks."""
    log_ratio, advantage, cap = ppo_sample((60,))
    h = 1e-6
    with jax.enable_x64(True):
        loss = lambda x: ppo_loss(x, jnp.asarray(advantage), ratio_cap=jnp.asarray(cap))  # noqa: E731
        slope = (loss(jnp.asarray(log_ratio + h)) - loss(jnp.asarray(log_ratio - h))) / (2 * h)
        close(jax.grad(lambda x: jnp.sum(loss(x)))(jnp.asarray(log_ratio)), slope, 1e-6)


def test_ppo_without_a_cap_that_binds():
    """A cap of inf, or of one's own ratio, is plain PPO bit for bit: loss and gradient."""
    log_ratio, advantage = (jnp.asarray(x, jnp.float32) for x in ppo_sample((100,))[:2])
    plain = jax.value_and_grad(lambda x: jnp.sum(ppo_loss(x, advantage)))(log_ratio)
    for cap in (jnp.full(100, jnp.inf), jnp.exp(log_ratio)):
        got = jax.value_and_grad(lambda x, c=cap: jnp.sum(ppo_loss(x, advantage, ratio_cap=c)))(log_ratio)
        jax.tree.map(np.testing.assert_array_equal, got, plain)


@pytest.mark.parametrize("ratio_cap", [None, 1.0, math.inf])
def test_ppo_extremes_are_finite(ratio_cap):
    """Log-ratios of ±1e4 and advantages of ±1e8 overflow neither the loss nor the gradient."""
    log_ratio, advantage = (jnp.ravel(x) for x in jnp.meshgrid(jnp.array([1e4, -1e4]), jnp.array([1e8, -1e8])))
    cap = None if ratio_cap is None else jnp.full(4, ratio_cap)
    got = jax.value_and_grad(lambda x: jnp.sum(ppo_loss(x, advantage, ratio_cap=cap)))(log_ratio)
    assert all(np.isfinite(x).all() for x in got)


@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("loss_clip", [None, 1.5, 1])
def test_value_definition(clip, loss_clip):
    """`min(max((V - G)^2, (V_old + clip(V - V_old) - G)^2), loss_clip)` in float64, in plain Python."""
    value, target, old = np.random.default_rng(0).normal(size=(3, 25, 2))
    expected = (value - target) ** 2
    for i in np.ndindex(expected.shape):
        if clip is not None:
            near = old[i] + min(max(value[i] - old[i], -clip), clip)
            expected[i] = max(expected[i], (near - target[i]) ** 2)
        if loss_clip is not None:
            expected[i] = min(expected[i], loss_clip)
    with jax.enable_x64(True):
        got = value_loss(*map(jnp.asarray, (value, target)), old_value=jnp.asarray(old), clip=clip, loss_clip=loss_clip)
    assert got.dtype == jnp.float64
    close(got, expected, 1e-12)


@pytest.mark.slow
def test_transformations_and_numpy():
    """jit, vmap over samples and NumPy's arrays give the same numbers."""
    x, y, z = (np.asarray(a, np.float32) for a in ppo_sample((9,)))
    for loss in (
        lambda x, y, z: ppo_loss(x, y, ratio_cap=z),
        lambda x, y, z: value_loss(x, y, old_value=z, clip=0.2, loss_clip=2.0),
    ):
        expected = loss(*map(jnp.asarray, (x, y, z)))
        for transformed in (loss, jax.jit(loss), jax.vmap(loss)):
            close(transformed(x, y, z), expected)


def test_approximate_kl_is_unbiased():
    """Its mean over the behaviour policy's actions is the divergence, and its mean gradient the divergence's."""
    with jax.enable_x64(True):
        logits, behaviour = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5)))
        log_mu = jax.nn.log_softmax(behaviour)
        estimate = lambda x: jnp.sum(jnp.exp(log_mu) * approximate_kl(jax.nn.log_softmax(x) - log_mu))  # noqa: E731
        exact = lambda x: jnp.sum(jnp.exp(log_mu) * (log_mu - jax.nn.log_softmax(x)))  # noqa: E731
        got, expected = jax.value_and_grad(estimate)(logits), jax.value_and_grad(exact)(logits)
    jax.tree.map(lambda x, y: close(x, y, 1e-12), got, expected)


def test_the_other_divergence_from_the_same_actions():
    """Weighted by the ratio: its mean over the behaviour policy's actions is `KL(pi || mu)`, in value and gradient.

    Without the weight it is neither that nor `KL(mu || pi)`.
    """
    with jax.enable_x64(True):
        logits, behaviour = jnp.asarray(np.random.default_rng(0).normal(size=(2, 5)))
        log_mu = jax.nn.log_softmax(behaviour)

        def estimate(x, weigh=importance_ratio):
            log_ratio = jax.nn.log_softmax(x) - log_mu
            return jnp.sum(jnp.exp(log_mu) * weigh(log_ratio) * approximate_kl(-log_ratio))

        exact = lambda x: Categorical(x).kl_divergence(Categorical(behaviour))  # noqa: E731
        got, expected = jax.value_and_grad(estimate)(logits), jax.value_and_grad(exact)(logits)
        unweighted = estimate(logits, jnp.ones_like)
        for divergence in (exact(logits), Categorical(behaviour).kl_divergence(Categorical(logits))):
            assert abs(unweighted - divergence) > 0.05
    jax.tree.map(lambda x, y: close(x, y, 1e-12), got, expected)


def test_truncated_policy_gradient_is_the_surrogates_below_the_cap():
    """`r A grad log pi`, that of `-r A`; above the cap `cap A grad log pi`."""
    behaviour, advantage, cap = ppo_sample((80,))
    log_prob = behaviour[::-1].copy()
    with jax.enable_x64(True):
        truncated, surrogate = (
            np.asarray(jax.grad(lambda x, f=loss: jnp.sum(f(x, x - behaviour)))(jnp.asarray(log_prob)))
            for loss in (
                lambda x, r: truncated_policy_gradient_loss(x, r, jnp.asarray(advantage), ratio_cap=jnp.asarray(cap)),
                lambda x, r: -jnp.exp(r) * advantage,
            )
        )
    above = np.exp(log_prob - behaviour) > cap
    assert 5 < above.sum() < 75
    close(truncated[~above], surrogate[~above], 1e-12)
    close(truncated[above], -(cap * advantage)[above], 1e-12)


@pytest.mark.parametrize("delta", [0.3, 1.0])
def test_huber_is_twice_optax(delta):
    """Which halves the square; loss and gradient."""
    value, target = jnp.asarray(np.random.default_rng(0).normal(size=(2, 60)), jnp.float32)
    got = jax.value_and_grad(lambda v: jnp.sum(value_loss(v, target, huber=delta)))(value)
    want = jax.value_and_grad(lambda v: jnp.sum(2.0 * optax.huber_loss(v, target, delta=delta)))(value)
    jax.tree.map(lambda x, y: close(x, y, 1e-5), got, want)


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
    "truncated policy gradient, by default": (
        lambda x, y, a, c: truncated_policy_gradient_loss(x, y, a),
        lambda x, y, a, c: -min(math.exp(y), 1.0) * x * a,
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
    "penalty, unclipped": lambda x, y, a, cap: ppo_penalty_loss(x, a, y, coefficient=0.3, ratio_cap=cap),
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


@pytest.mark.slow
@pytest.mark.parametrize("name", CAPPED)
def test_caps_that_bind_nothing(name):
    """inf, an array of inf, and the global cap of one's own policy give the plain loss, to the bit, and gradient."""
    x, y, a = reduction_sample()
    expected = with_gradient(CAPPED[name], x, y, a, None)
    for cap in (math.inf, jnp.full(64, jnp.inf), global_ratio_cap(x[None]), global_ratio_cap(jnp.stack([x, x]))):
        jax.tree.map(np.testing.assert_array_equal, with_gradient(CAPPED[name], x, y, a, cap), expected)


@pytest.mark.parametrize("name", CAPPED)
def test_a_constant_cap_is_an_array_full_of_it(name):
    """A number and an array; and it does truncate."""
    x, y, a = reduction_sample()
    got, same, plain = (with_gradient(CAPPED[name], x, y, a, c) for c in (1.25, jnp.full(64, 1.25), None))
    jax.tree.map(np.testing.assert_array_equal, got, same)
    assert np.any(np.asarray(got[1]) != plain[1])
    if name == "truncated":
        return
    above = np.asarray(x) > math.log(1.25)
    assert 5 < above.sum() < 60
    np.testing.assert_array_equal(got[1][above], np.zeros(above.sum()))
    np.testing.assert_array_equal(got[1][~above], plain[1][~above])


@pytest.mark.parametrize("cap", [None, 1.25])
def test_reductions_to_ppo(cap):
    """No penalty, and a proximal or target policy that is the behaviour policy: PPO, to the bit, capped or not."""
    x, y, a = reduction_sample()
    zeros = jnp.zeros_like(x)
    expected = with_gradient(lambda x: ppo_loss(x, a, clip=0.3, ratio_cap=cap), x)
    for loss in (
        lambda x: decoupled_ppo_loss(x, zeros, a, clip=0.3, ratio_cap=cap),
        lambda x: impact_loss(x, zeros, a, clip=0.3, ratio_cap=cap),
        lambda x: ppo_penalty_loss(x, a, y, coefficient=0.0, clip=0.3, ratio_cap=cap),
        lambda x: ppo_penalty_loss(x, a, approximate_kl(x), coefficient=0.0, clip=0.3, ratio_cap=cap),
    ):
        jax.tree.map(np.testing.assert_array_equal, with_gradient(loss, x), expected)


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


def test_a_constant_cap_of_at_least_one_plus_clip_is_dual_clip():
    """`max(min(r A, clip(r) A), c A)` where A < 0, and plain PPO elsewhere."""
    log_ratio, advantage = jnp.linspace(-3.0, 3.0, 41), jnp.array([-2.0, 1.5])[:, None]
    log_ratio, advantage = jnp.broadcast_to(log_ratio, (2, 41)), jnp.broadcast_to(advantage, (2, 41))
    for cap in (1.2, 3.0):
        plain = -ppo_loss(log_ratio, advantage)
        dual = -jnp.where(advantage < 0, jnp.maximum(plain, cap * advantage), plain)
        np.testing.assert_allclose(ppo_loss(log_ratio, advantage, ratio_cap=cap), dual, rtol=1e-6)


def test_a_cap_of_one_takes_the_pull_back_away():
    """Where A < 0 and r > 1 plain PPO has the gradient r; under a cap of 1 there is none."""
    slope = lambda r, **cap: float(jax.grad(lambda x: ppo_loss(x, jnp.float32(-1.0), **cap))(jnp.log(r)))  # noqa: E731
    for ratio in (1.1, 1.5, 3.0):
        np.testing.assert_allclose(slope(ratio), ratio, rtol=1e-6)
        assert slope(ratio, ratio_cap=1.0) == 0.0
