"""Comparisons of arrays, or of trees of them."""

import functools

import jax
import numpy as np


def close(got, want, tolerance=1e-6):
    """Within a tolerance that is relative for large numbers and absolute for small ones."""
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=tolerance), got, want)


def equal(got, want):
    """Number by number; NaN equals NaN."""
    jax.tree.map(np.testing.assert_array_equal, got, want)
