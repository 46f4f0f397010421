"""Thresholds of a round: by hand, and against the authors' demo in Python's floats."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import demo_threshold, staleness_threshold


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
    ("function", "round", "max_staleness", "decay", "threshold"),
    [
        (staleness_threshold, 0, 4, 0.5, 4.0),
        (staleness_threshold, 3, 4, 0.5, 0.5),
        (staleness_threshold, 10, 6.0, 0.9, 6.0 * 0.9**10),
        (staleness_threshold, 100, 6.0, 1, 6.0),  # constant
        (staleness_threshold, 5, 0, 0.5, 0.0),  # only fresh gradients
        (staleness_threshold, 10**6, 4, 0.5, 0.0),
        (staleness_threshold, 10**6, math.inf, 0.5, math.inf),  # no threshold stays none, though 0.5^k has become 0
        (demo_threshold, 0, 4, 0.5, 4.0),  # int(8) + 1, clipped
        (demo_threshold, 2, 4, 0.5, 3.0),
        (demo_threshold, 4, 4, 0.5, 1.0),  # int(0.5) + 1
        (demo_threshold, 10**6, 4, 0.5, 1.0),  # never below 1
        (demo_threshold, 7, 4, 1.0, 4.0),  # constant
        (demo_threshold, 3, 10.0, 0.9, 9.0),  # int(8.1) + 1
        (demo_threshold, 3, 100, 0.9, 82.0),  # 81 + 1, though float32 makes it 80.99999
        (demo_threshold, 4, 1000, 0.9, 730.0),  # 729 + 1
        (demo_threshold, 10**6, math.inf, 0.5, math.inf),  # no threshold stays none
    ],
)
def test_thresholds_by_hand(function, round, max_staleness, decay, threshold):
    """Of Python's numbers and of arrays, with and without jit."""
    jitted = jax.jit(lambda k, m: function(k, max_staleness=m, decay=decay))
    for got in (
        function(round, max_staleness=max_staleness, decay=decay),
        function(jnp.int32(round), max_staleness=jnp.asarray(max_staleness), decay=decay),
        jitted(round, max_staleness),
    ):
        assert (got.shape, got.dtype) == ((), jnp.float32)
        np.testing.assert_allclose(got, threshold, rtol=1e-6 if function is staleness_threshold else 0)


@pytest.mark.parametrize("function", [staleness_threshold, demo_threshold])
@pytest.mark.usefixtures("unchecked")
def test_settings_out_of_their_range(function):
    """A negative threshold would let nothing pass, NaN everything wait, and with a decay above 1 it would grow."""
    for error, arguments, message in (
        *((ValueError, {"decay": x}, rf"decay={x} lies outside \(0, 1\]") for x in (0.0, -0.5, 1.01, math.nan)),
        *((ValueError, {"max_staleness": x}, f"max_staleness={x} is negative or NaN") for x in (-1, -0.5, math.nan)),
        (TypeError, {"decay": "0.9"}, "decay='0.9' is not a number"),
        (TypeError, {"max_staleness": "4"}, "max_staleness='4' is not a number"),
    ):
        with pytest.raises(error, match=f"^{message}"):
            function(0, **{"max_staleness": 4, "decay": 0.9} | arguments)
