"""Bisection over floats, against sorting them."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from stellaris._core import order_statistics

EXTREMES = [-math.inf, -3e38, -1.0, -1e-45, -0.0, 0.0, 1e-45, 1e-38, 0.1, 1.0, 3e38, math.inf]
QUANTILES = (0.0, 0.1, 0.5, 0.75, 1.0)
quantiles = jax.jit(order_statistics.quantiles)


@jax.jit
def not_above(bound):
    """The largest float that is not above another."""
    return order_statistics.largest(lambda x: x <= bound, bound.shape, bound.dtype)


def test_every_float_is_found():
    """Of both signs, or infinite; float32 and float64. Denormal ones are 0."""
    for dtype in ("float32", "float64"):
        with jax.enable_x64(dtype == "float64"):
            given = np.array([*EXTREMES, *np.random.default_rng(0).normal(size=50)], dtype)
            found = not_above(jnp.asarray(given))
            assert found.dtype == dtype
            np.testing.assert_array_equal(found, np.where(abs(given) < np.finfo(dtype).tiny, 0.0, given))


@settings(max_examples=60, deadline=None, derandomize=True, database=None)
@given(
    arrays.arrays(np.float32, 12, elements=st.integers(-40, 40).map(lambda x: x / 8)),
    arrays.arrays(bool, 12),
)
def test_quantiles(x, there):
    got = quantiles(jnp.asarray(x), jnp.asarray(there), jnp.array(QUANTILES))
    expected = np.quantile(x[there].astype(float), QUANTILES) if there.any() else np.zeros(len(QUANTILES))
    np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_quantiles_between_infinities():
    x = jnp.array([-math.inf, -math.inf, 1.0, math.inf])
    found = quantiles(x, jnp.ones(4, bool), jnp.array([0.0, 0.2, 0.5, 2 / 3, 0.9, 1.0]))
    np.testing.assert_array_equal(found, [-math.inf, -math.inf, -math.inf, 1.0, math.inf, math.inf])


@pytest.mark.parametrize(("shape", "greatest"), [((3, 4), 11), ((0,), 0), ((), 0)])
def test_shapes(shape, greatest):
    x = jnp.arange(math.prod(shape), dtype=jnp.float32).reshape(shape)
    assert order_statistics.quantiles(x, jnp.ones(shape, bool), jnp.array([1.0])).tolist() == [greatest]
