"""Whole numbers below a bound: Python's of as many digits as needed, from the same random bits."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy import stats

from stellaris.replay.whole_numbers import below

drawn = jax.jit(below, static_argnums=2)
KEY = jax.random.key(1)


@pytest.mark.parametrize("bound", [1, 2, 3, 1000, 65_536, 65_537, 10**6, 2**30 + 1, 2**31 - 1])
def test_it_is_the_upper_word_of_a_product(bound):
    """`floor(bits * bound / 2^64)`, to the last digit."""
    high, low = np.asarray(jax.random.bits(KEY, (2, 4000), jnp.uint32)).tolist()
    expected = [(((a << 32) | b) * bound) >> 64 for a, b in zip(high, low, strict=True)]
    assert drawn(KEY, jnp.int32(bound), (4000,)).tolist() == expected


def test_bounds_of_their_own():
    bounds = jnp.arange(1, 301)
    found = drawn(KEY, bounds, (300,))
    assert found.dtype == jnp.int32
    assert ((found >= 0) & (found < bounds)).all()
    assert (found[200:] > 100).any()


def test_all_are_alike():
    """Chi-squared, over 200,000 draws of 50."""
    counts = np.bincount(drawn(KEY, jnp.int32(50), (200_000,)), minlength=50)
    assert stats.chisquare(counts).pvalue > 1e-3
