"""The effective sample fraction against a loop over the weights, and by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris import (
    effective_sample_fraction,
    lag_report,
)
from tests.close import close


def loop(log_ratio, valid):
    """`(sum w)^2 / (n sum w^2)`, in plain Python."""
    weights = [math.exp(x) for x, v in zip(np.ravel(log_ratio), np.ravel(valid), strict=True) if v]
    return math.fsum(weights) ** 2 / (len(weights) * math.fsum(w * w for w in weights)) if weights else 0.0


fraction = jax.jit(lambda log_ratio, valid: effective_sample_fraction(log_ratio, valid=valid))


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**31), st.sampled_from([0.0, 0.01, 1.0, 5.0]))
def test_fraction_is_a_loop(seed, spread):
    """Of valid samples alone; between 1/n and 1, the same at any scale of the weights, and that of the lag report."""
    random = np.random.default_rng(seed)
    log_ratio, valid = random.normal(size=(12, 3)) * spread, random.uniform(size=(12, 3)) < 0.6
    expected = loop(log_ratio, valid)
    with jax.enable_x64(True):
        got = fraction(log_ratio, valid)
        assert (got.shape, got.dtype) == ((), jnp.float64)
        close(got, expected, 1e-12)
        close(fraction(log_ratio + 500.0, valid), expected, 1e-10)
        close(fraction(log_ratio - 500.0, valid), expected, 1e-10)
        close(fraction(log_ratio, None), loop(log_ratio, np.ones((12, 3))), 1e-12)
        report = lag_report(jnp.zeros((12, 3), int), log_ratio, valid=valid, lags=1)
        close(report.effective_sample_size[0], expected * valid.sum(), 1e-12)
        assert 1 / valid.sum() - 1e-12 <= float(got) <= 1 + 1e-12


@pytest.mark.parametrize(
    ("weights", "expected"),
    [
        ([1.0] * 4, 1.0),
        ([0.5] * 4, 1.0),  # less likely all of them, and none less than another
        ([1.0, 0.0, 0.0, 0.0], 0.25),
        ([0.0, 0.0], 0.0),
        ([], 0.0),
        ([3.0, 1.0], 0.8),
        ([1e30, 1.0], 0.5),
        ([math.inf, 1.0, 1.0], 1 / 3),  # one weight is all
        ([math.inf, math.inf, 0.0, 1.0], 0.5),
    ],
)
def test_fraction_by_hand(weights, expected):
    """Equal weights count all, one weight alone one of n, and none nothing; no NaN on the way."""
    with jax.debug_nans(True):
        got = effective_sample_fraction(jnp.log(jnp.array(weights)))
    close(got, expected, 1e-6)


def test_fraction_is_at_most_one():
    """In float32 too, of weights that are equal but for rounding: `1 - fraction` is never negative."""
    random = np.random.default_rng(0)
    every = jax.jit(jax.vmap(effective_sample_fraction))
    got = every(jnp.asarray(random.normal(size=(500, 37), scale=1e-4), jnp.float32))
    assert got.max() <= 1.0
    close(got, 1.0, 1e-5)


def test_weights_that_can_not_be_represented():
    """Log-ratios of ±1e4, of steps or of whole sequences, in float32: only their differences matter."""
    with jax.debug_nans(True):
        for size in (1e4, -1e4, 88.0, -104.0):
            close(effective_sample_fraction(jnp.full(8, size)), 1.0, 1e-6)
            close(effective_sample_fraction(size + jnp.log(jnp.array([3.0, 1.0]))), 0.8, 1e-3)
        close(effective_sample_fraction(jnp.array([1e4, -1e4, 0.0, -jnp.inf])), 0.25)
        assert effective_sample_fraction(jnp.full(3, -jnp.inf)) == 0.0


def test_fraction_of_bfloat16():
    """In float32, where a sum of 1000 ones is not 256."""
    got = effective_sample_fraction(jnp.zeros(1000, jnp.bfloat16))
    assert got.dtype == jnp.float32
    assert got == 1.0
    narrow = jnp.asarray(np.random.default_rng(0).normal(size=1000), jnp.bfloat16)
    assert effective_sample_fraction(narrow) == effective_sample_fraction(narrow.astype(jnp.float32))


def test_samples_that_are_not_valid_have_no_part():
    """Whatever they hold; and nothing has a gradient."""
    x, valid = jnp.array([0.5, 0.0, 9.0]), jnp.array([True, True, False])
    for garbage in (math.nan, math.inf, -math.inf, 1e30):
        assert fraction(x.at[2].set(garbage), valid) == fraction(x[:2], None)
    np.testing.assert_array_equal(jax.grad(effective_sample_fraction)(x), np.zeros(3))
    assert fraction(x, jnp.zeros(3, bool)) == 0.0


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"log_ratio": jnp.zeros(2, jnp.int32)}, TypeError, "log_ratio has dtype int32: expected floating point"),
        ({"valid": jnp.ones(3, bool)}, ValueError, r"valid has shape \(3,\): expected log_ratio's \(2,\)"),
    ],
)
def test_fraction_errors(changed, error, message, unchecked):
    """Each names the argument."""
    with pytest.raises(error, match=message):
        effective_sample_fraction(**({"log_ratio": jnp.zeros(2)} | changed))
