"""Lambda-returns, n-step returns, Retrace and UPGO, against their definitions and numbers worked by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import lambda_returns, n_step_returns, retrace, upgo_returns
from tests.close import close, equal
from tests.test_returns import SHAPES, sample
from tests.test_returns_vtrace import log_ratios


def n_step_definition(reward, discount, value, steps, valid):
    """The sum of rewards and a bootstrap, step by step; it ends at the trajectory's end and before invalid steps."""
    found = np.zeros(reward.shape)
    for index in np.ndindex(reward.shape):
        t, column, weight, total = index[0], index[1:], 1.0, 0.0
        while t < min(index[0] + steps, len(reward)) and valid[t, *column]:
            total += weight * reward[t, *column]
            weight *= discount[t, *column]
            t += 1
        found[index] = total + weight * value[t, *column]
    return found


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
def test_n_step_definition(shape, masked):
    """The composition of maps equals the sum, for any number of steps and any batch shape."""
    reward, discount, value, valid = sample(shape)
    valid = valid if masked else np.ones(shape, bool)
    for steps in (1, 2, 3, 5, 8, 100):
        with jax.enable_x64(True):
            got = n_step_returns(reward, discount, value, steps=steps, valid=jnp.asarray(valid) if masked else None)
        assert (got.shape, got.dtype) == (shape, jnp.float64)
        close(got, n_step_definition(reward, discount, value, steps, valid), 1e-12)


@pytest.mark.parametrize("masked", [False, True])
def test_lambda_returns_mix_n_step_returns(masked):
    """`(1 - lambda) sum_n lambda^(n-1) G^(n)`, in which the return up to the end has the rest of the weight."""
    reward, discount, value, valid = sample((6, 3))
    valid = valid if masked else np.ones((6, 3), bool)
    for lambda_ in (0.0, 0.4, 0.95, 1.0):
        returns = [n_step_definition(reward, discount, value, n, valid) for n in range(1, 7)]
        weights = [(1 - lambda_) * lambda_ ** (n - 1) for n in range(1, 6)] + [lambda_**5]
        with jax.enable_x64(True):
            got = lambda_returns(reward, discount, value, lambda_=lambda_, valid=valid)
        close(got, sum(w * g for w, g in zip(weights, returns, strict=True)), 1e-12)


@pytest.mark.parametrize("garbage", [2.0**100, math.inf, math.nan])
def test_padding_does_not_reach_the_returns(garbage):
    """Only the value at the first invalid step counts, whatever follows; a return of padding is its value."""
    valid = jnp.array([True, True, False, False, False, True])
    reward, discount = jnp.where(valid, 1.0, garbage), jnp.where(valid, 0.5, garbage)
    value = jnp.array([9.0, 9.0, 4.0, garbage, garbage, 9.0, 2.0])

    def total(value, steps):
        return jnp.where(valid, n_step_returns(reward, discount, value, steps=steps, valid=valid), 0.0).sum()

    for steps in (2, 3, 4, 9):
        got = n_step_returns(reward, discount, value, steps=steps, valid=valid)
        np.testing.assert_array_equal(got, [2.5, 3.0, 4.0, garbage, garbage, 2.0])
        np.testing.assert_array_equal(jax.grad(total)(value, steps), [0.0, 0.0, 0.75, 0.0, 0.0, 0.0, 0.5])


def retrace_definition(reward, discount, q_value, value, log_ratio, lambda_, valid):
    """The paper's operator: `Q_t + sum_s (prod_{t < i <= s} d_{i-1} c_i) (r_s + d_s V_{s+1} - Q_s)`."""
    found, trace = q_value.copy(), lambda_ * np.minimum(1.0, np.exp(log_ratio))
    for t in range(len(reward)):
        weight = 1.0
        for s in range(t, len(reward)):
            weight = weight * valid[s] * (discount[s - 1] * trace[s] if s > t else 1.0)
            found[t] += weight * (reward[s] + discount[s] * value[s + 1] - q_value[s])
    return found


def test_retrace_ignores_the_ratio_of_an_invalid_step():
    """The step before it bootstraps, whatever the padding holds."""
    got = retrace(
        jnp.ones(3),
        jnp.full(3, 0.9),
        jnp.zeros(3),
        jnp.zeros(4),
        jnp.array([0.0, jnp.nan, 0.0]),
        valid=jnp.array([True, False, True]),
    )
    assert got.tolist() == [1.0, 0.0, 1.0]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
def test_retrace_definition(shape, masked):
    """The recurrence equals the sum over all later errors."""
    reward, discount, value, valid = sample(shape)
    log_ratio, q_value = log_ratios(shape), np.random.default_rng(7).normal(size=shape)
    valid = valid if masked else np.ones(shape, bool)
    for lambda_ in (0.0, 0.6, 1.0):
        with jax.enable_x64(True):
            mask = jnp.asarray(valid) if masked else None
            got = retrace(reward, discount, q_value, value, log_ratio, lambda_=lambda_, valid=mask)
        assert (got.shape, got.dtype) == (shape, jnp.float64)
        close(got, retrace_definition(reward, discount, q_value, value, log_ratio, lambda_, valid), 1e-12)


def upgo_definition(reward, discount, value, valid):
    """AlphaStar's recursion, with a discount: row by row, whether the next step is at least as good as expected."""
    found = value.copy()
    for t in reversed(range(len(reward))):
        later = value[t + 1]
        if t + 1 < len(reward):
            better = reward[t + 1] + discount[t + 1] * value[t + 2] >= value[t + 1]
            later = np.where(better & valid[t + 1], found[t + 1], later)
        found[t] = np.where(valid[t], reward[t] + discount[t] * later, value[t])
    return found[:-1]


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
def test_upgo_definition(shape, masked):
    """The recurrence equals the recursion, for any batch shape."""
    reward, discount, value, valid = sample(shape)
    valid = valid if masked else np.ones(shape, bool)
    with jax.enable_x64(True):
        got = upgo_returns(reward, discount, value, valid=jnp.asarray(valid) if masked else None)
    close(got, upgo_definition(reward, discount, value, valid), 1e-12)


def test_a_reset_by_hand():
    """The second step is a reset: the first bootstraps from the value before it, 4, and the reset's return is 4."""
    reward, discount, value = jnp.array([1.0, 9.0, 3.0]), jnp.full(3, 0.5), jnp.array([2.0, 4.0, 8.0, 16.0])
    valid = jnp.array([True, False, True])
    for got in (
        lambda_returns(reward, discount, value, lambda_=1.0, valid=valid),
        n_step_returns(reward, discount, value, steps=3, valid=valid),
        upgo_returns(reward, discount, value, valid=valid),
        retrace(reward, discount, value[:3], value, jnp.zeros(3), valid=valid),
    ):
        close(got, [3.0, 4.0, 11.0])


@pytest.mark.slow
def test_gradients():
    """They flow through lambda-returns and n-step returns as through their definitions, and not through the targets."""
    reward, discount, value, _ = (jnp.asarray(z, jnp.float32) for z in sample((5, 2)))
    got = jax.grad(lambda *a: jnp.sum(n_step_returns(*a, steps=3) ** 2), argnums=(0, 1, 2))(reward, discount, value)
    mixed = jax.grad(lambda *a: jnp.sum(lambda_returns(*a, lambda_=1.0)), argnums=(0, 1, 2))(reward, discount, value)

    def unrolled(reward, discount, value, steps):
        rows = []
        for t in range(5):
            row = value[min(t + steps, 5)]
            for k in reversed(range(t, min(t + steps, 5))):
                row = reward[k] + discount[k] * row
            rows.append(row)
        return jnp.stack(rows)

    every = (0, 1, 2)
    close(got, jax.grad(lambda *a: jnp.sum(unrolled(*a, 3) ** 2), argnums=every)(reward, discount, value), 1e-5)
    close(mixed, jax.grad(lambda *a: jnp.sum(unrolled(*a, 5)), argnums=every)(reward, discount, value), 1e-5)
    for target in (
        lambda r, d, v: upgo_returns(r, d, v),
        lambda r, d, v: retrace(r, d, v[:-1], v, r),
    ):
        slopes = jax.grad(lambda *a, f=target: jnp.sum(f(*a)), argnums=every)(reward, discount, value)
        equal(slopes, (jnp.zeros_like(reward), jnp.zeros_like(discount), jnp.zeros_like(value)))


FINE = {"reward": jnp.zeros((3, 2)), "discount": jnp.zeros((3, 2)), "value": jnp.zeros((4, 2))}
OWN = {
    lambda_returns: {},
    n_step_returns: {"steps": 2},
    upgo_returns: {},
    retrace: {"q_value": jnp.zeros((3, 2)), "log_ratio": jnp.zeros((3, 2))},
}


@pytest.mark.parametrize("function", OWN)
def test_arrays_that_do_not_fit(function, unchecked):
    """Each error names the argument, also while `jit` traces."""
    with pytest.raises(ValueError, match=r"value has shape \(3, 2\): expected \(4, 2\), one row more than reward"):
        jax.jit(lambda value: function(**(FINE | OWN[function] | {"value": value})))(jnp.zeros((3, 2)))
    with pytest.raises(TypeError, match="discount has dtype int32: expected floating point"):
        function(**(FINE | OWN[function] | {"discount": jnp.zeros((3, 2), int)}))
    with pytest.raises(ValueError, match=r"valid has shape \(3,\): expected reward's \(3, 2\)"):
        function(**(FINE | OWN[function] | {"valid": jnp.ones(3)}))


@pytest.mark.parametrize(
    ("function", "changed", "error", "message"),
    [
        (n_step_returns, {"steps": 0}, ValueError, "steps=0 is below 1"),
        (n_step_returns, {"steps": 1.5}, TypeError, r"steps=1\.5 is not a whole number"),
        (lambda_returns, {"lambda_": 1.1}, ValueError, r"lambda_=1\.1 lies outside \[0, 1\]"),
        (retrace, {"lambda_": math.nan}, ValueError, r"lambda_=nan lies outside \[0, 1\]"),
        (
            retrace,
            {"q_value": jnp.zeros((4, 2))},
            ValueError,
            r"q_value has shape \(4, 2\): expected reward's \(3, 2\)",
        ),
        (retrace, {"log_ratio": jnp.zeros(3)}, ValueError, r"log_ratio has shape \(3,\): expected reward's \(3, 2\)"),
    ],
)
def test_settings_that_do_not_fit(function, changed, error, message, unchecked):
    with pytest.raises(error, match=message):
        function(**(FINE | OWN[function] | changed))
