"""Importance ratios and the global cap."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris import global_ratio_cap, importance_ratio, least_ratio_cap, truncate_ratio

EXTREMES = [1e4, -1e4, math.inf, -math.inf, 30.0, -30.0]


def log_ratios(policies, batch=(), seed=0):
    """Of either sign, in float32."""
    return jnp.asarray(np.random.default_rng(seed).normal(size=(policies, *batch)), jnp.float32)


def truncated(own, peers, rho):
    """A learner's ratio, truncated to the cap over its own policy and its peers'."""
    cap = global_ratio_cap(jnp.concatenate([own[None], peers]), rho=rho)
    return truncate_ratio(importance_ratio(own), cap)


def test_ratio_is_the_exponential():
    """exp(0) = 1 exactly, and NumPy's exp in float64, with itself for gradient."""
    assert importance_ratio(jnp.float32(0)) == 1.0
    x = np.linspace(-29, 29, 101)
    with jax.enable_x64(True):
        ratio, gradient = jax.vmap(jax.value_and_grad(importance_ratio))(jnp.asarray(x))
    np.testing.assert_allclose(ratio, np.exp(x), rtol=1e-12)
    np.testing.assert_allclose(gradient, np.exp(x), rtol=1e-12)


@pytest.mark.parametrize("log_ratio", EXTREMES)
def test_ratio_saturates(log_ratio):
    """Beyond ±30 the ratio is `exp(±30)`, finite even times an advantage of 1e8, and has no gradient."""
    ratio, gradient = jax.value_and_grad(importance_ratio)(jnp.float32(log_ratio))
    np.testing.assert_allclose(ratio, math.exp(math.copysign(30, log_ratio)), rtol=1e-5)
    assert np.isfinite(ratio * jnp.float32(1e8))
    assert gradient == 0 or abs(log_ratio) == 30


@pytest.mark.parametrize("batch", [(), (6,), (3, 2), (0,)])
@pytest.mark.parametrize("policies", [1, 2, 4])
@pytest.mark.parametrize("rho", [1.0, 1, 1.5, math.inf])
def test_cap_is_the_greater_of_rho_and_the_least_ratio(policies, batch, rho):
    """`max(min_j r_j, rho)` sample by sample, in plain Python."""
    logs = log_ratios(policies, batch)
    cap = global_ratio_cap(logs, rho=rho)
    assert cap.shape == batch
    expected = np.empty(batch)
    for index in np.ndindex(batch):
        expected[index] = max(min(math.exp(logs[(j, *index)]) for j in range(policies)), rho)
    np.testing.assert_allclose(cap, expected, rtol=1e-6)


# One's own ratio first. All moved towards the action: the least ratio is allowed; else rho is.
@pytest.mark.parametrize(
    ("ratios", "rho", "cap", "ratio"),
    [
        ([2.0, 1.5, 4.0], 1.0, 1.5, 1.5),  # all above rho: the least
        ([2.0, 1.5, 4.0], 1.75, 1.75, 1.75),  # rho is above the least
        ([2.0, 1.5, 4.0], math.inf, math.inf, 2.0),  # no truncation
        ([2.0, 0.5, 4.0], 1.0, 1.0, 1.0),  # they disagree: rho
        ([0.25, 0.5, 4.0], 1.0, 1.0, 0.25),  # below the cap: as it is
        ([1.5, 2.0, 4.0], 1.0, 1.5, 1.5),  # it sets the cap itself
    ],
)
def test_by_hand(ratios, rho, cap, ratio):
    """Three policies, one sample."""
    logs = jnp.log(jnp.array(ratios))
    np.testing.assert_allclose(global_ratio_cap(logs, rho=rho), cap, rtol=1e-6)
    np.testing.assert_allclose(truncated(logs[0], logs[1:], rho), ratio, rtol=1e-6)


@given(st.lists(st.floats(-40, 40, width=32), min_size=4, max_size=4), st.permutations(range(4)))
@settings(max_examples=60, deadline=None, derandomize=True)
def test_cap_properties(values, order):
    """At least rho; the same in any order and with a policy twice; never raised by one more policy."""
    logs = jnp.asarray(values, jnp.float32)
    cap = global_ratio_cap(logs, rho=1.5)
    assert cap >= 1.5
    assert global_ratio_cap(logs[jnp.array(order)], rho=1.5) == cap
    assert global_ratio_cap(logs[jnp.array([0, 1, 2, 3, 3, 0])], rho=1.5) == cap
    assert cap <= global_ratio_cap(logs[:3], rho=1.5)
    ratio = importance_ratio(logs)
    np.testing.assert_array_equal(truncate_ratio(ratio, jnp.full(4, cap)), np.minimum(ratio, cap))


@pytest.mark.slow
@pytest.mark.parametrize(("peers", "rho"), [("none", 1.0), ("own", 1.0), ("own", 3.0), ("others", math.inf)])
def test_reduces_to_the_plain_ratio(peers, rho):
    """With one policy held, or rho = inf, ratio and gradient are the untruncated ones, bit for bit."""
    own = jnp.concatenate([log_ratios(1, (50,))[0] * 3, jnp.asarray(EXTREMES, jnp.float32)])
    held = {"none": own[None][:0], "own": jnp.stack([own, own]), "others": own[None] - log_ratios(3, own.shape, 1)}[
        peers
    ]
    np.testing.assert_array_equal(truncated(own, held, rho), importance_ratio(own))
    gradient = jax.grad(lambda x: jnp.sum(truncated(x, held, rho)))(own)
    np.testing.assert_array_equal(gradient, jax.grad(lambda x: jnp.sum(importance_ratio(x)))(own))


@given(st.lists(st.floats(-40, 40, width=32), min_size=3, max_size=3), st.sampled_from([1.0, 1.5, math.inf]))
@settings(max_examples=40, deadline=None, derandomize=True)
def test_least_cap_bounds_every_ratio(values, rho):
    """The cap is at most rho and every policy's ratio, and all truncated ratios are equal to it."""
    logs = jnp.asarray(values, jnp.float32)
    cap, ratio = least_ratio_cap(logs, rho=rho), importance_ratio(logs)
    np.testing.assert_allclose(cap, min(*np.exp(np.clip(np.float64(values), -30, 30)), rho), rtol=1e-5)
    np.testing.assert_allclose(truncate_ratio(ratio, jnp.full(3, cap)), np.full(3, cap), rtol=1e-6)
    assert cap <= rho
    assert cap <= global_ratio_cap(logs, rho=rho)
    np.testing.assert_allclose(least_ratio_cap(logs[:1], rho=rho), jnp.minimum(ratio[0], rho), rtol=1e-6)


def test_least_cap_lets_the_least_ratio_learn():
    """The gradient is whole for the policy that sets the cap, zero for others, and zero above rho."""
    logs = jnp.log(jnp.array([[0.5, 3.0], [2.0, 4.0]]))
    cap = least_ratio_cap(logs, rho=2.0)
    slope = jax.grad(lambda x: jnp.sum(truncate_ratio(importance_ratio(x), jnp.broadcast_to(cap, x.shape))))(logs)
    np.testing.assert_allclose(slope, [[0.5, 0.0], [0.0, 0.0]], rtol=1e-6)
    np.testing.assert_array_equal(jax.grad(lambda x: jnp.sum(least_ratio_cap(x)))(logs), np.zeros((2, 2)))


def test_gradients():
    """None above the cap, whole below it and at equality; none to the cap, and none through it to the policies."""
    ratio, cap = jnp.array([0.5, 2.0, 2.0, 3.0]), jnp.array([1.0, 2.0, 1.5, jnp.inf])
    by_ratio, by_cap = jax.grad(lambda r, c: jnp.sum(truncate_ratio(r, c)), argnums=(0, 1))(ratio, cap)
    np.testing.assert_array_equal(by_ratio, [1.0, 1.0, 0.0, 1.0])
    np.testing.assert_array_equal(by_cap, np.zeros(4))
    for shift in (-5.0, 0.0, 5.0):  # where rho binds, and where a policy's ratio does
        gradient = jax.grad(lambda x, s=shift: jnp.sum(global_ratio_cap(x + s)))(log_ratios(3, (20,)))
        np.testing.assert_array_equal(gradient, np.zeros((3, 20)))


def test_probability_zero():
    """One policy to which the action is impossible holds the cap at rho, and its own ratio is 1e-13."""
    logs = jnp.array([[-jnp.inf, 1.0], [2.0, 2.0]])
    np.testing.assert_allclose(global_ratio_cap(logs, rho=1.5), [1.5, math.e], rtol=1e-6)
    np.testing.assert_allclose(importance_ratio(logs[0, 0]), math.exp(-30), rtol=1e-5)


def test_a_constant_cap():
    """A number is an array full of it, for ratios at it, above it and below it, in value and gradient."""
    ratio = jnp.array([0.5, 2.0, 2.5, 1e13])
    for cap, integer in ((2.0, 2), (math.inf, None)):
        expected = jax.value_and_grad(lambda r, c=cap: jnp.sum(truncate_ratio(r, jnp.full(4, c))))(ratio)
        for number in (cap, integer) if integer else (cap,):
            got = jax.value_and_grad(lambda r, c=number: jnp.sum(truncate_ratio(r, c)))(ratio)
            jax.tree.map(np.testing.assert_array_equal, got, expected)
    np.testing.assert_array_equal(truncate_ratio(ratio, 2), [0.5, 2.0, 2.0, 2.0])


@pytest.mark.parametrize(
    ("dtype", "largest"), [("float16", 3261.0), ("bfloat16", math.exp(30)), ("float32", math.exp(30))]
)
def test_where_ratios_saturate(dtype, largest):
    """Below the largest number of the type, with room for an advantage of 20."""
    ratio = importance_ratio(jnp.array([31.0, 1e4], dtype))
    np.testing.assert_allclose(np.asarray(ratio, np.float64), largest, rtol=0.1)
    assert np.isfinite(ratio * 20).all()


RATIO = jnp.ones((2, 3))


@pytest.mark.parametrize(
    ("error", "function", "arguments", "message"),
    [
        (TypeError, importance_ratio, [jnp.ones(3, int)], "log_ratio has dtype int32: expected floating point"),
        (TypeError, global_ratio_cap, [jnp.ones((2, 3), int)], "log_ratios has dtype int32: expected floating point"),
        (TypeError, truncate_ratio, [jnp.ones(3, int), jnp.ones(3, int)], "ratio has dtype int32: expected floating"),
        (TypeError, truncate_ratio, [jnp.ones(3), jnp.ones(3, int)], "ratio_cap has dtype int32"),
        (TypeError, least_ratio_cap, [jnp.ones((2, 3), int)], "log_ratios has dtype int32: expected floating point"),
        (ValueError, least_ratio_cap, [jnp.zeros((0, 3))], r"log_ratios has shape \(0, 3\)"),
        (ValueError, global_ratio_cap, [jnp.float32(0)], r"log_ratios has shape \(\)"),
        (ValueError, global_ratio_cap, [jnp.zeros((0, 3))], r"log_ratios has shape \(0, 3\)"),
        (ValueError, truncate_ratio, [RATIO, jnp.ones(3)], r"ratio_cap has shape \(3,\): expected ratio's \(2, 3\)"),
    ],
)
def test_arrays_that_do_not_fit(error, function, arguments, message, unchecked):
    """The error names the argument, its type or shape, also while `jit` traces."""
    for call in (function, jax.jit(function)):
        with pytest.raises(error, match=f"^{message}"):
            call(*arguments)


@pytest.mark.parametrize(
    ("error", "rho", "message"),
    [
        *((ValueError, rho, f"rho={rho} is below 1") for rho in (0.99, 0, -math.inf, math.nan, np.float32(0.5))),
        *((ValueError, rho, "rho=.* is below 1") for rho in (np.int64(0), np.array(math.nan), jnp.float32(0.5))),
        *((TypeError, rho, "rho=.* is not a number") for rho in ("1", None)),
        (TypeError, np.ones(3), r"rho has shape \(3,\): expected one number"),
    ],
)
def test_rho_is_a_number_of_at_least_one(error, rho, message, unchecked):
    """A cap below 1 would truncate the behaviour policy itself."""
    for function in (global_ratio_cap, least_ratio_cap):
        with pytest.raises(error, match=f"^{message}"):
            function(RATIO, rho=rho)


@pytest.mark.parametrize("cap", [0.0, -1, math.nan, -math.inf])
def test_a_constant_cap_is_positive(cap):
    with pytest.raises(ValueError, match=f"cap={cap} is not positive"):
        truncate_ratio(jnp.ones(2), cap)
