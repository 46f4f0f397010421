"""The effective sample fraction against a loop over the weights; steps that shorten with it, by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris import (
    approximate_kl,
    bounded_importance_weight,
    effective_sample_fraction,
    impala_loss,
    importance_ratio,
    lag_report,
    scale_by_effective_samples,
)


def close(got, want, tolerance=1e-12):
    np.testing.assert_allclose(got, want, rtol=tolerance, atol=tolerance)


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
        close(got, expected)
        close(fraction(log_ratio + 500.0, valid), expected, 1e-10)
        close(fraction(log_ratio - 500.0, valid), expected, 1e-10)
        close(fraction(log_ratio, None), loop(log_ratio, np.ones((12, 3))))
        report = lag_report(jnp.zeros((12, 3), int), log_ratio, valid=valid, lags=1)
        close(report.effective_sample_size[0], expected * valid.sum())
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


def test_fractions_under_vmap():
    """One for each row."""
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 7)), jnp.float32)
    got = jax.vmap(effective_sample_fraction)(x)
    close(got, [loop(row, np.ones(7)) for row in x], 1e-6)


def test_p3o():
    """Its loss in plain Python: `-sg(min(r, ess)) A log pi + (1 - ess) (r l - r + 1)`, value and gradient."""
    random = np.random.default_rng(0)
    log_prob, behaviour, advantage = random.normal(size=(3, 30))
    log_prob -= 2.0
    log_ratio = log_prob - behaviour + 2.0
    ess = loop(log_ratio, np.ones(30))
    assert 0.05 < ess < 0.95
    value = [
        -min(math.exp(x), ess) * a * p + (1 - ess) * (math.exp(x) * (x - 1) + 1)
        for x, a, p in zip(log_ratio, advantage, log_prob, strict=True)
    ]
    slope = [
        -min(math.exp(x), ess) * a + (1 - ess) * math.exp(x) * x for x, a in zip(log_ratio, advantage, strict=True)
    ]

    def loss(log_prob):
        log_ratio = log_prob - behaviour + 2.0
        ess = effective_sample_fraction(log_ratio)
        weight = bounded_importance_weight(log_ratio, high=ess).weight
        penalty = importance_ratio(log_ratio) * approximate_kl(-log_ratio)
        return weight * impala_loss(log_prob, jnp.asarray(advantage)) + (1 - ess) * penalty

    with jax.enable_x64(True):
        close(loss(jnp.asarray(log_prob)), value)
        close(jax.jit(jax.grad(lambda x: jnp.sum(loss(x))))(log_prob), slope)


# ---- steps ----------------------------------------------------------------------------------------------------------


def stepped(base, fraction, updates):
    """One step of the transformation alone."""
    made = scale_by_effective_samples(base)
    return made.update(updates, made.init(updates), None, effective_sample_fraction=fraction)[0]


@pytest.mark.parametrize(
    ("base", "fraction", "factor"),
    [(1.0, 1.0, 1.0), (1.0, 0.25, 0.5), (1.0, 0.0, 0.0), (0.55, 0.55, 1.0), (0.55, 0.9, 1.0), (0.5, 0.125, 0.5)],
)
def test_steps_by_hand(base, fraction, factor):
    """`sqrt(min(fraction / base, 1))`: never longer than they were; numbers and arrays, of every type."""
    updates = {"w": jnp.array([2.0, -4.0]), "b": jnp.asarray([8.0], jnp.bfloat16)}
    for given_fraction in (fraction, jnp.float32(fraction)):
        got = stepped(base, given_fraction, updates)
        jax.tree.map(lambda x, u: close(x.astype(jnp.float32), u.astype(jnp.float32) * factor, 1e-6), got, updates)
        assert got["b"].dtype == jnp.bfloat16


def test_it_scales_the_learning_rate_of_adam():
    """After Adam; before it a factor of so few steps would cancel. VCPO: `lr sqrt(min(1, ratio / base))`."""
    random = np.random.default_rng(0)
    log_ratio = jnp.asarray(random.normal(size=16, scale=2.0), jnp.float32)
    gradient, params = jnp.asarray(random.normal(size=5), jnp.float32), jnp.zeros(5)
    factor = math.sqrt(min(1.0, loop(log_ratio, np.ones(16)) / 0.55))
    assert 0.2 < factor < 0.95

    def stepped(optimizer):
        optimizer = optax.with_extra_args_support(optimizer)
        step, _ = optimizer.update(
            gradient,
            optimizer.init(params),
            params,
            effective_sample_fraction=effective_sample_fraction(log_ratio),
            staleness=3,  # others' arguments are left alone
        )
        return step

    link = scale_by_effective_samples(0.55)
    plain = stepped(optax.adam(0.1))
    close(stepped(optax.chain(optax.adam(0.1), link)), factor * plain, 1e-6)
    close(stepped(optax.chain(link, optax.adam(0.1))), plain, 1e-4)


def test_steps_under_transformations():
    """A swept base, a swept fraction, and a compiled step that is traced once."""
    fractions, traces = jnp.array([0.0, 0.25, 1.0]), []

    @jax.jit
    def step(fraction, base):
        traces.append(1)
        return stepped(base, fraction, jnp.ones(1))

    for base in (1.0, 0.5):
        got = [float(step(f, base)[0]) for f in fractions]
        close(got, np.sqrt(np.minimum(np.array([0.0, 0.25, 1.0]) / base, 1.0)), 1e-6)
    assert len(traces) == 1
    close(jax.vmap(step, in_axes=(0, None))(fractions, 1.0)[:, 0], [0.0, 0.5, 1.0], 1e-6)


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


@pytest.mark.parametrize(
    ("base", "error", "message"),
    [
        (0.0, ValueError, r"base=0\.0 is not positive"),
        (-1, ValueError, "base=-1 is not positive"),
        (1.5, ValueError, r"base=1\.5 lies outside \[0, 1\]"),
        (math.nan, ValueError, "base=nan is not positive"),
        ("1", TypeError, "base='1' is not a number"),
    ],
)
def test_step_errors(base, error, message, unchecked):
    """Each names the value."""
    with pytest.raises(error, match=message):
        scale_by_effective_samples(base)
