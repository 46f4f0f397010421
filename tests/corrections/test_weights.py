"""Bounded, masked and soft weights against transcriptions of their formulas in plain Python, and by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import (
    BoundedImportanceWeight,
    bounded_importance_weight,
    importance_ratio,
    sequence_log_ratio,
    vespo_weight,
)
from tests.close import close, equal


def sample(shape=(40, 2), seed=0):
    """Log-ratios, and bounds of each sample, NumPy."""
    random = np.random.default_rng(seed)
    return random.normal(size=shape), random.uniform(0.2, 1.0, size=shape), random.uniform(1.0, 3.0, size=shape)


def bounded(ratio, low, high, outside):
    """The weight and whether the sample is kept, of one sample."""
    if outside == "clamp":
        return min(max(ratio, low), high), True
    return (ratio, True) if low <= ratio <= high else (0.0, False)


@pytest.mark.parametrize("shape", [(40, 2), (), (0, 3)])
@pytest.mark.parametrize("outside", ["clamp", "mask"])
def test_bounds_are_a_loop(shape, outside):
    """Numbers, one bound a sample, and none; what is kept, and no gradient to anything."""
    log_ratio, low, high = sample(shape)
    bounds = {"numbers": (0.5, 1.5), "arrays": (low, high), "defaults": (0.0, 2.0), "none": (0.0, math.inf)}

    @jax.jit
    def everything(x, low, high):
        given = bounds | {"arrays": (low, high), "defaults": ()}
        return {
            name: bounded_importance_weight(x, outside=outside, **dict(zip(("low", "high"), pair, strict=False)))
            for name, pair in given.items()
        }

    with jax.enable_x64(True):
        got = everything(*map(jnp.asarray, (log_ratio, low, high)))
        total = lambda *z: sum(jnp.sum(found.weight) for found in everything(*z).values())  # noqa: E731
        slopes = jax.grad(total, argnums=(0, 1, 2))(*map(jnp.asarray, (log_ratio, low, high)))
    for name, (least, most) in bounds.items():
        weight, kept = np.zeros(shape), np.zeros(shape, bool)
        for i in np.ndindex(shape):
            pair = (least[i], most[i]) if name == "arrays" else (least, most)
            weight[i], kept[i] = bounded(math.exp(log_ratio[i]), *pair, outside)
        assert isinstance(got[name], BoundedImportanceWeight)
        assert (got[name].weight.dtype, got[name].kept.dtype) == (jnp.float64, jnp.bool)
        close(got[name].weight, weight, 1e-12)
        equal(got[name].kept, kept)
    equal(slopes, (np.zeros(shape),) * 3)


def test_bounds_by_hand():
    """Both bounds belong to what is kept; outside of them a ratio is pulled to the bound, or counts nothing."""
    log_ratio = jnp.array([-math.inf, -2.0, 0.0, 2.0, 1e4])
    low, high = jnp.exp(jnp.array([-2.0, 2.0]))
    masked = bounded_importance_weight(log_ratio, low=low, high=high, outside="mask")
    equal(masked.kept, [False, True, True, True, False])
    close(masked.weight, [0.0, low, 1.0, high, 0.0], 1e-6)
    clamped = bounded_importance_weight(log_ratio, low=low, high=high)
    equal(clamped.kept, [True] * 5)
    close(clamped.weight, [low, low, 1.0, high, high], 1e-6)


@pytest.mark.parametrize("outside", ["clamp", "mask"])
def test_what_is_not_a_number_is_seen(outside):
    """It stays one and is kept, so that a loss shows it; padding is left out by a mask of its own."""
    log_ratio = jnp.array([math.nan, 0.0, 3.0, math.nan])
    found = bounded_importance_weight(log_ratio, low=0.5, high=2.0, outside=outside)
    equal(found.weight, [math.nan, 1.0, 2.0 if outside == "clamp" else 0.0, math.nan])
    equal(found.kept, [True, True, outside == "clamp", True])
    unknown = bounded_importance_weight(jnp.zeros(2), low=jnp.array([math.nan, 0.0]), high=jnp.array([1.0, math.nan]))
    equal(unknown, BoundedImportanceWeight(np.full(2, math.nan), np.ones(2, bool)))
    valid = ~jnp.isnan(log_ratio)
    clean = bounded_importance_weight(jnp.where(valid, log_ratio, 0.0), low=0.5, high=2.0, outside=outside)
    assert np.isfinite(jnp.where(valid, clean.weight, 0.0)).all()
    whole = sequence_log_ratio(jnp.stack([log_ratio, log_ratio]), valid=jnp.stack([valid, valid]))
    assert np.isfinite(bounded_importance_weight(whole, outside=outside).weight).all()


def test_without_a_bound_it_is_the_ratio():
    """To the bit; between two bounds of 1 it is 1, so that the loss is not weighted."""
    log_ratio = jnp.asarray([*sample((40,))[0], 0.0, 31.0, 1e4, -1e4, -math.inf], jnp.float32)
    for outside in ("clamp", "mask"):
        found = bounded_importance_weight(log_ratio, high=math.inf, outside=outside)
        equal(found, BoundedImportanceWeight(importance_ratio(log_ratio), jnp.ones(45, bool)))
    equal(bounded_importance_weight(log_ratio, low=1.0, high=1.0).weight, np.ones(45))


def test_without_lag_every_weight_is_one():
    """Exactly, whatever the bounds around 1."""
    for outside in ("clamp", "mask"):
        for low, high in ((0.0, 2.0), (0.999, 1.001), (1.0, 1.0), (0.5, math.inf)):
            found = bounded_importance_weight(jnp.zeros(3), low=low, high=high, outside=outside)
            equal(found, BoundedImportanceWeight(jnp.ones(3), jnp.ones(3, bool)))
    equal(vespo_weight(jnp.zeros(3), jnp.array([-1.0, 0.0, 1.0])), np.ones(3))


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_narrow_types(dtype):
    """The weight has the log-ratio's type, is close to float32's, and finite at the extremes."""
    log_ratio = jnp.asarray(sample((60,))[0], dtype)
    got = bounded_importance_weight(log_ratio, low=0.5, high=jnp.full(60, 2.0))
    assert got.weight.dtype == log_ratio.dtype
    wide = bounded_importance_weight(log_ratio.astype(jnp.float32), low=0.5, high=2.0)
    close(got.weight.astype(jnp.float32), wide.weight, 2.0**-7)
    extreme = bounded_importance_weight(jnp.asarray([1e4, -1e4, -math.inf], dtype), high=math.inf)
    assert np.isfinite(extreme.weight.astype(jnp.float32)).all()


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"log_ratio": jnp.zeros((2, 3), jnp.int32)}, TypeError, "log_ratio has dtype int32: expected floating point"),
        ({"low": -0.1}, ValueError, r"low=-0\.1 is negative or NaN"),
        ({"low": math.nan}, ValueError, "low=nan is negative or NaN"),
        ({"high": -0.5}, ValueError, r"high=-0\.5 is negative"),
        ({"high": math.nan}, ValueError, "high=nan is negative or NaN"),
        ({"low": 3.0, "high": 2.0}, ValueError, r"low=3\.0 is above high=2\.0"),
        ({"low": 2.5}, ValueError, r"low=2\.5 is above high=2\.0"),
        ({"low": "0"}, TypeError, "low='0' is not a number"),
        ({"high": jnp.ones(3)}, ValueError, r"high has shape \(3,\): expected log_ratio's \(2, 3\)"),
        ({"low": jnp.zeros((2, 1))}, ValueError, r"low has shape \(2, 1\): expected log_ratio's \(2, 3\)"),
        ({"high": jnp.ones((2, 3), jnp.int32)}, TypeError, "high has dtype int32: expected floating point"),
        ({"outside": "zero"}, ValueError, "outside='zero' is neither 'clamp' nor 'mask'"),
        ({"outside": None}, ValueError, "outside=None is neither 'clamp' nor 'mask'"),
    ],
)
def test_errors(changed, error, message, unchecked):
    """Each names the argument, its value and what it should be."""
    with pytest.raises(error, match=message):
        bounded_importance_weight(**({"log_ratio": jnp.zeros((2, 3))} | changed))


# ---- VESPO ----------------------------------------------------------------------------------------------------------


def test_vespo_is_the_papers():
    """`phi(W) = W^c1 exp(c2 (1 - W))`, c of (2, 3) for A >= 0 and of (3, 2) below, or others; without a gradient."""
    random = np.random.default_rng(0)
    log_ratio, advantage = random.normal(size=60), random.normal(size=60)
    advantage[:5] = 0.0
    other = {"power": 0.5, "decay": 1.5, "negative_power": 0.0, "negative_decay": 4.0}
    with jax.enable_x64(True):
        arrays = jnp.asarray(log_ratio), jnp.asarray(advantage)
        for settings, good, bad in (({}, (2, 3), (3, 2)), (other, (0.5, 1.5), (0.0, 4.0))):
            expected = [
                math.exp(x) ** c1 * math.exp(c2 * (1 - math.exp(x)))
                for x, a in zip(log_ratio, advantage, strict=True)
                for c1, c2 in [good if a >= 0 else bad]
            ]
            function = lambda x, a, s=settings: vespo_weight(x, a, **s)  # noqa: E731
            close(jax.jit(function)(*arrays), expected, 1e-12)
            equal(jax.grad(lambda *z, f=function: jnp.sum(f(*z)), argnums=(0, 1))(*arrays), (np.zeros(60),) * 2)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_vespo_extremes(dtype):
    """Sequences of any length: nothing is infinite or no number, and both ends count nothing."""
    log_ratio = jnp.asarray([1e4, 30.0, -1e4, -math.inf, 0.0], dtype)
    with jax.debug_nans(True):
        for sign in (1.0, -1.0):
            got = vespo_weight(log_ratio, jnp.full(5, sign, dtype))
            assert got.dtype == dtype
            close(got.astype(jnp.float32), [0.0, 0.0, 0.0, 0.0, 1.0], 1e-24)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"advantage": jnp.zeros(3)}, ValueError, r"advantage has shape \(3,\): expected log_ratio's \(2,\)"),
        ({"log_ratio": jnp.zeros(2, jnp.int32)}, TypeError, "log_ratio has dtype int32: expected floating point"),
        ({"advantage": jnp.zeros(2, jnp.int32)}, TypeError, "advantage has dtype int32: expected floating point"),
        ({"power": -1.0}, ValueError, r"power=-1\.0 is negative"),
        ({"decay": -1}, ValueError, "decay=-1 is negative"),
        ({"negative_power": math.nan}, ValueError, "negative_power=nan is negative or NaN"),
        ({"decay": math.inf}, ValueError, "decay=inf is not finite"),
        ({"negative_power": math.inf}, ValueError, "negative_power=inf is not finite"),
        ({"negative_decay": None}, TypeError, "negative_decay=None is not a number"),
    ],
)
def test_vespo_errors(changed, error, message, unchecked):
    """Each names the argument and its value."""
    with pytest.raises(error, match=message):
        vespo_weight(**({"log_ratio": jnp.zeros(2), "advantage": jnp.zeros(2)} | changed))


@pytest.mark.parametrize("other", [np.ones(3, np.float32), jnp.ones(3), 2, 2.0])
def test_a_weight_and_its_mask_are_no_factor(other):
    """A tuple times a whole number is longer, and NumPy would multiply both arrays."""
    found = bounded_importance_weight(jnp.zeros(3))
    for product in (lambda: found * other, lambda: other * found):
        with pytest.raises(TypeError, match=r"multiply by its field, found\.weight \* x"):
            product()
