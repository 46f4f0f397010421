"""Staleness weights, thresholds, and the transformation that applies them to a step."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris import scale_by_staleness, staleness_threshold, staleness_weight


@pytest.mark.parametrize(
    ("staleness", "smoothness", "weight"),
    [
        (0, 3.0, 1.0),  # fresh
        (1, 3.0, 1.0),
        (8, 3.0, 1 / 2),  # 8^(1/3) = 2
        (27, 3.0, 1 / 3),
        (4, 2.0, 1 / 2),
        (4, 0.5, 1 / 16),  # 4^2
        (5, 1, 1 / 5),  # Zhang et al.: one over the staleness
        (0, 1.0, 1.0),
        (10**6, math.inf, 1.0),  # staleness ignored
    ],
)
def test_weight_by_hand(staleness, smoothness, weight):
    """`max(staleness, 1) ** (-1 / smoothness)` of a Python int and of an array."""
    for x in (staleness, jnp.int32(staleness)):
        got = staleness_weight(x, smoothness=smoothness)
        assert (got.shape, got.dtype) == ((), jnp.float32)
        np.testing.assert_allclose(got, weight, rtol=1e-6)


def test_weights_that_are_exactly_one():
    """Fresh gradients at any smoothness, and all of them at infinite smoothness, keep their whole step."""
    for smoothness in (0.1, 1.0, 3.0, math.inf):
        np.testing.assert_array_equal(staleness_weight(jnp.array([0, 1]), smoothness=smoothness), [1.0, 1.0])
    np.testing.assert_array_equal(staleness_weight(jnp.arange(50), smoothness=math.inf), np.ones(50))


def test_weight_of_arrays():
    """Any shape, under jit and vmap, against Python's floats; the default smoothness is 3; JAX's default float type."""
    staleness = np.arange(60).reshape(3, 4, 5)
    expected = [max(s, 1) ** (-1 / 3) for s in range(60)]
    for function in (staleness_weight, jax.jit(staleness_weight), jax.vmap(staleness_weight)):
        got = function(jnp.asarray(staleness))
        assert got.shape == staleness.shape
        np.testing.assert_allclose(np.ravel(got), expected, rtol=1e-6)
    with jax.enable_x64(True):
        assert staleness_weight(jnp.arange(3)).dtype == jnp.float64


@given(st.lists(st.integers(0, 10**6), min_size=5, max_size=5), st.floats(0.5, 100))
@settings(max_examples=50, deadline=None, derandomize=True)
def test_weight_falls_with_staleness(staleness, smoothness):
    """The staler, the lighter; never above 1, never 0."""
    weight = staleness_weight(jnp.asarray(sorted(staleness)), smoothness=smoothness)
    assert np.all(np.diff(weight) <= 0)
    assert np.all((weight > 0) & (weight <= 1))


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


PARAMS = {"w": jnp.array([1.0, -2.0]), "b": jnp.float32(3.0)}
GRADIENT = {"w": jnp.array([0.3, -4.0]), "b": jnp.float32(0.01)}


def step(optimizer, **extra):
    """The first step of an optimizer on GRADIENT."""
    return optimizer.update(GRADIENT, optimizer.init(PARAMS), PARAMS, **extra)[0]


@pytest.mark.parametrize("scale", [optax.scale_by_adam(), optax.scale_by_rms(), optax.trace(0.9)])
def test_scaling_a_step(scale):
    """After an optimizer, staleness 8 halves the step, 0 leaves it bit for bit; also under jit."""
    whole = step(optax.chain(scale, optax.scale(-0.1)))
    stale = optax.chain(scale, scale_by_staleness(3.0), optax.scale(-0.1))
    jax.tree.map(np.testing.assert_array_equal, step(stale, staleness=jnp.int32(0)), whole)
    for run in (step, jax.jit(step, static_argnums=0)):
        half = run(stale, staleness=jnp.int32(8))
        jax.tree.map(lambda h, w: np.testing.assert_allclose(h, w / 2, rtol=1e-6), half, whole)


def test_before_adam_it_would_cancel():
    """Why it belongs after: Adam divides by the gradient's size, so that a factor on the gradient is lost."""
    order = optax.chain(scale_by_staleness(3.0), optax.scale_by_adam(eps=0.0))
    fresh, stale = (step(order, staleness=jnp.int32(s)) for s in (0, 8))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5), fresh, stale)


def test_transformation_keeps_dtypes_and_passes_over_other_extras():
    """A bfloat16 update stays one; the staleness has to be given, and others' extra arguments are ignored."""
    transform = scale_by_staleness(1.0)
    update, state = transform.update({"x": jnp.ones(2, jnp.bfloat16)}, transform.init({}), staleness=4, value=1.0)
    assert update["x"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(update["x"], np.float32), [0.25, 0.25])
    assert state == optax.EmptyState()
    with pytest.raises(TypeError, match="staleness"):
        transform.update({}, state)


@pytest.mark.parametrize("smoothness", [0.0, -3.0, math.nan])
def test_smoothness_that_is_not_positive(smoothness):
    """Found when the transformation is made, not when it is first used."""
    for function in (lambda s: staleness_weight(1, smoothness=s), scale_by_staleness):
        with pytest.raises(ValueError, match=f"smoothness={smoothness} is not positive"):
            function(smoothness)


@pytest.mark.parametrize("decay", [0.0, -0.5, 1.01, math.nan])
def test_decay_outside_its_range(decay):
    """Zero is no decay, and above 1 the threshold would grow."""
    with pytest.raises(ValueError, match=rf"decay={decay} lies outside \(0, 1\]"):
        staleness_threshold(0, max_staleness=4, decay=decay)
