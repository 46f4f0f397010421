"""Thresholds of a round: by hand, and against the authors' demo in Python's floats."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import demo_threshold, staleness_threshold


@pytest.mark.parametrize(
    ("round", "max_staleness", "decay", "threshold"),
    [
        (0, 4, 0.5, 4.0),
        (1, 4, 0.5, 2.0),
        (3, 4, 0.5, 0.5),
        (10, 6.0, 0.9, 6.0 * 0.9**10),
        (100, 6.0, 1, 6.0),  # constant
        (5, 0, 0.5, 0.0),  # only fresh gradients
        (10**6, 4, 0.5, 0.0),
        (10**6, math.inf, 0.5, math.inf),  # no threshold stays none, though 0.5^k has become 0
    ],
)
def test_threshold_by_hand(round, max_staleness, decay, threshold):
    """`max_staleness * decay ** round`, of Python's numbers and of arrays, with and without jit."""
    jitted = jax.jit(lambda k, m: staleness_threshold(k, max_staleness=m, decay=decay))
    for got in (
        staleness_threshold(round, max_staleness=max_staleness, decay=decay),
        staleness_threshold(jnp.int32(round), max_staleness=jnp.asarray(max_staleness), decay=decay),
        jitted(round, max_staleness),
    ):
        assert (got.shape, got.dtype) == ((), jnp.float32)
        np.testing.assert_allclose(got, threshold, rtol=1e-6)


def demo(max_staleness, decay, k):
    """The authors' demo in Python's floats: `clip(int(max * d ** (k - 1)) + 1, 1, max)`."""
    return min(max(int(max_staleness * decay ** (k - 1)) + 1, 1), max_staleness)


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("decay", [0.3, 0.5, 0.9, 0.99, 1.0])
def test_integer_threshold_is_the_demos(decay, x64):
    """Every maximum to 30 and round to 60, also where the product is whole and float32 would round it down."""
    expected = [[demo(m, decay, k) for k in range(61)] for m in range(1, 31)]
    with jax.enable_x64(x64):
        one = functools.partial(demo_threshold, decay=decay)
        row = jax.vmap(lambda m, k: one(k, max_staleness=m), in_axes=(None, 0))
        got = jax.jit(jax.vmap(row, in_axes=(0, None)))(jnp.arange(1, 31), jnp.arange(61))
        assert got.dtype == (jnp.float64 if x64 else jnp.float32)
    np.testing.assert_array_equal(got, expected)


@pytest.mark.parametrize(
    ("round", "max_staleness", "decay", "threshold"),
    [
        (0, 4, 0.5, 4.0),  # int(8) + 1, clipped
        (1, 4, 0.5, 4.0),  # int(4) + 1, clipped
        (2, 4, 0.5, 3.0),
        (3, 4, 0.5, 2.0),
        (4, 4, 0.5, 1.0),  # int(0.5) + 1
        (10**6, 4, 0.5, 1.0),  # never below 1
        (7, 4, 1.0, 4.0),  # constant
        (2, 10.0, 0.9, 10.0),  # int(9.0) + 1
        (3, 10.0, 0.9, 9.0),  # int(8.1) + 1
        (3, 100, 0.9, 82.0),  # 81 + 1, though float32 makes it 80.99999
        (4, 1000, 0.9, 730.0),  # 729 + 1
        (5, 1, 0.5, 1.0),
        (0, math.inf, 0.5, math.inf),
        (10**6, math.inf, 0.5, math.inf),  # no threshold stays none
    ],
)
def test_integer_threshold_by_hand(round, max_staleness, decay, threshold):
    """Of Python's numbers and of arrays, with and without jit."""
    jitted = jax.jit(lambda k, m: demo_threshold(k, max_staleness=m, decay=decay))
    for got in (
        demo_threshold(round, max_staleness=max_staleness, decay=decay),
        demo_threshold(jnp.int32(round), max_staleness=jnp.asarray(max_staleness), decay=decay),
        jitted(round, max_staleness),
    ):
        assert (got.shape, got.dtype) == ((), jnp.float32)
        np.testing.assert_array_equal(got, threshold)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.01, math.nan])
def test_decay_outside_its_range(decay):
    """Zero is no decay, and above 1 the threshold would grow."""
    for threshold in (staleness_threshold, demo_threshold):
        with pytest.raises(ValueError, match=rf"decay={decay} lies outside \(0, 1\]"):
            threshold(0, max_staleness=4, decay=decay)


@pytest.mark.parametrize("max_staleness", [-1, -0.5, math.nan])
def test_thresholds_are_not_negative(max_staleness):
    """A negative one would let nothing pass, and NaN everything wait."""
    for threshold in (staleness_threshold, demo_threshold):
        with pytest.raises(ValueError, match=f"max_staleness={max_staleness} is negative or not a number"):
            threshold(0, max_staleness=max_staleness, decay=0.9)


def test_settings_that_are_no_numbers(unchecked):
    """The error names the setting."""
    for name, call in {
        "decay='0.9'": lambda: staleness_threshold(1, max_staleness=4, decay="0.9"),
        "max_staleness='4'": lambda: demo_threshold(1, max_staleness="4", decay=0.9),
    }.items():
        with pytest.raises(TypeError, match=f"^{name} is not a"):
            call()
