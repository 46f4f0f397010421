"""Losses, against numbers worked by hand and transcriptions in NumPy."""

import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from stellaris import ppo_loss, value_loss


def close(got, want, tolerance=1e-6):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


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


ZEROS = jnp.zeros((2, 3))


@pytest.mark.parametrize(
    ("loss", "arguments", "message"),
    [
        (ppo_loss, {"advantage": jnp.zeros(3)}, r"advantage has shape \(3,\): expected log_ratio's \(2, 3\)"),
        (ppo_loss, {"ratio_cap": jnp.ones(3)}, r"cap has shape \(3,\): expected ratio's \(2, 3\)"),
        (ppo_loss, {"clip": 0.0}, r"clip=0\.0 is not positive"),
        (ppo_loss, {"clip": math.nan}, "clip=nan is not positive"),
        (value_loss, {"target": jnp.zeros((2, 1))}, r"target has shape \(2, 1\): expected value's \(2, 3\)"),
        (value_loss, {"old_value": jnp.zeros(6)}, r"old_value has shape \(6,\): expected value's \(2, 3\)"),
        (value_loss, {"clip": -1.0, "old_value": ZEROS}, r"clip=-1\.0 is not positive"),
        (value_loss, {"loss_clip": 0}, "loss_clip=0 is not positive"),
        (value_loss, {"clip": 0.2}, "old_value is None: clip needs the behaviour policy's values"),
    ],
)
def test_errors(loss, arguments, message, monkeypatch):
    """Without the run-time type checks, as a user calls it, an error names the argument and its value."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    second = "advantage" if loss is ppo_loss else "target"
    with pytest.raises(ValueError, match=message):
        loss(ZEROS, **({second: ZEROS} | arguments))
