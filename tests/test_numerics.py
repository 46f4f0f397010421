"""Transformations, types, shapes and extremes of every function of returns, truncation, losses and weights per sample.

One table for all of them.
"""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    adapt_kl_coefficient,
    adaptive_clip,
    approximate_kl,
    approximate_proximal_log_ratio,
    balanced_clip,
    bidirectional_kl_mask,
    bounded_importance_weight,
    decoupled_ppo_loss,
    demo_threshold,
    exponential_weight,
    gae,
    global_ratio_cap,
    group_relative_advantage,
    hinge_weight,
    impact_loss,
    impala_loss,
    importance_ratio,
    lambda_returns,
    least_ratio_cap,
    n_step_returns,
    oapl_loss,
    off_policy_sequence_mask,
    optimal_advantage,
    polynomial_weight,
    ppo_loss,
    ppo_penalty_loss,
    probability_mask,
    retrace,
    sapo_loss,
    scale_by_effective_samples,
    second_moment_clip,
    second_moment_mask,
    staleness_threshold,
    staleness_weight,
    total_variation_mask,
    truncate_ratio,
    truncated_policy_gradient_loss,
    upgo_returns,
    value_loss,
    vespo_weight,
    vtrace,
)
from tests.close import close

pytestmark = pytest.mark.slow

# Each function of arrays alone, and what they are: x log-ratios, p log-probabilities, a advantages, c caps, r rewards,
# d discounts, v values with a row more, w values without, k divergences, X log-ratios of three policies.
FUNCTIONS = {
    "gae": (lambda r, d, v: gae(r, d, v, lambda_=0.9), "rdv"),
    "vtrace": (lambda r, d, v, x: vtrace(r, d, v, x, lambda_=0.9), "rdvx"),
    "vtrace, capped": (
        lambda r, d, v, x, c: vtrace(r, d, v, x, ratio_cap=c, rho_clip=math.inf, pg_rho_clip=math.inf),
        "rdvxc",
    ),
    "lambda_returns": (lambda r, d, v: lambda_returns(r, d, v, lambda_=0.9), "rdv"),
    "n_step_returns": (lambda r, d, v: n_step_returns(r, d, v, steps=3), "rdv"),
    "retrace": (lambda r, d, q, v, x: retrace(r, d, q, v, x, lambda_=0.9), "rdwvx"),
    "upgo_returns": (upgo_returns, "rdv"),
    "importance_ratio": (importance_ratio, "x"),
    "global_ratio_cap": (lambda x: global_ratio_cap(x, rho=1.2), "X"),
    "truncate_ratio": (truncate_ratio, "cc"),
    "ppo_loss": (ppo_loss, "xa"),
    "ppo_loss, capped": (lambda x, a, c: ppo_loss(x, a, ratio_cap=c), "xac"),
    "ppo_penalty_loss": (
        lambda x, a, k, c: ppo_penalty_loss(x, a, k + approximate_kl(x), coefficient=0.5, clip=0.2, ratio_cap=c),
        "xakc",
    ),
    "adapt_kl_coefficient": (jnp.vectorize(adapt_kl_coefficient), "kk"),
    "approximate_kl": (approximate_kl, "x"),
    "approximate_kl, k1": (lambda x: approximate_kl(x, estimator="k1"), "x"),
    "approximate_kl, k2": (lambda x: approximate_kl(x, estimator="k2"), "x"),
    "impala_loss": (impala_loss, "pa"),
    "truncated_policy_gradient_loss": (truncated_policy_gradient_loss, "pxa"),
    "impact_loss": (lambda x, y, a, c: impact_loss(x, y, a, ratio_cap=c), "xxac"),
    "decoupled_ppo_loss": (lambda x, y, a, c: decoupled_ppo_loss(x, y, a, ratio_cap=c), "xxac"),
    "ppo_loss, two widths": (lambda x, a, c, e: ppo_loss(x, a, clip=c / 4, clip_high=e / 8), "xacc"),
    "decoupled_ppo_loss, weighted": (
        lambda x, y, a, c: decoupled_ppo_loss(x, y, a, clip_high=0.3, weight=jnp.minimum(c, 1.5), ratio_cap=c),
        "xxac",
    ),
    "truncated_policy_gradient_loss, floored": (
        lambda p, x, a: truncated_policy_gradient_loss(p, x, a, ratio_cap=1.5, ratio_floor=0.7),
        "pxa",
    ),
    "sapo_loss": (
        lambda x, a, c: sapo_loss(x, a, temperature=0.5, negative_temperature=2.0, ratio_cap=c),
        "xac",
    ),
    "bounded_importance_weight": (lambda x, c: bounded_importance_weight(x, low=0.5, high=c).weight, "xc"),
    "bounded_importance_weight, masked": (
        lambda x: bounded_importance_weight(x, low=0.5, high=1.5, outside="mask").weight,
        "x",
    ),
    "vespo_weight": (vespo_weight, "xa"),
    "approximate_proximal_log_ratio": (
        lambda x: approximate_proximal_log_ratio(importance_ratio(x), jnp.full(x.shape, 3)),
        "x",
    ),
    "oapl_loss": (lambda x, a: oapl_loss(x, a, coefficient=0.01), "xa"),
    "least_ratio_cap": (lambda x: least_ratio_cap(x, rho=1.2), "X"),
    "value_loss": (lambda v, g: value_loss(v, g), "ww"),
    "value_loss, clipped": (lambda v, g, o: value_loss(v, g, old_value=o, clip=0.2, loss_clip=2.0, huber=0.5), "www"),
}
RETURNS = ("gae", "vtrace", "vtrace, capped", "lambda_returns", "n_step_returns", "retrace", "upgo_returns")
#: Constants: without a gradient.
FROZEN = (
    "vtrace",
    "global_ratio_cap",
    "least_ratio_cap",
    "retrace",
    "upgo_returns",
    "bounded_importance_weight",
    "vespo_weight",
    "approximate_proximal_log_ratio",
)
every_function = pytest.mark.parametrize("name", FUNCTIONS)


def arrays_of(name, shape=(4, 3), dtype="float32", seed=0):
    """Ordinary inputs of a function for steps and environments of `shape`; a divergence is 0.002, 0.01 or 0.05."""
    random = np.random.default_rng(seed)
    draw = {
        "v": lambda: random.normal(size=(shape[0] + 1, *shape[1:])),
        "X": lambda: random.normal(size=(3, *shape), scale=0.5),
        "x": lambda: random.normal(size=shape, scale=0.5),
        "p": lambda: -random.exponential(size=shape),
        "d": lambda: random.uniform(0.5, 1.0, size=shape),
        "c": lambda: random.uniform(1.0, 2.0, size=shape),
        "k": lambda: random.choice([0.002, 0.01, 0.05], size=shape),
    }
    return [jnp.asarray(draw.get(kind, lambda: random.normal(size=shape))(), dtype) for kind in FUNCTIONS[name][1]]


def total(function):
    """The sum of all its results."""
    return lambda *arrays: sum(jnp.sum(x) for x in jax.tree.leaves(function(*arrays)))


def value_and_gradient(name):
    """Of a function and its sum, with respect to every array."""
    function, kinds = FUNCTIONS[name]
    return lambda *a: (function(*a), jax.grad(total(function), argnums=tuple(range(len(kinds))))(*a))


@functools.cache
def compiled(name):
    return jax.jit(FUNCTIONS[name][0])


@every_function
def test_transformations(name):
    """`jit`, `vmap` over environments, `grad` and `checkpoint` agree, and agree with the plain call."""
    function, arrays = FUNCTIONS[name][0], arrays_of(name)
    over_environments = lambda f: jax.vmap(f, in_axes=-1, out_axes=-1)  # noqa: E731
    every = tuple(range(len(arrays)))

    @jax.jit
    def everything(*arrays):
        again = jax.grad(jax.checkpoint(total(function)), argnums=every)
        mapped = over_environments(function)(*arrays), over_environments(again)(*arrays)
        return *value_and_gradient(name)(*arrays), *mapped

    value, gradient, mapped, again = everything(*arrays)
    close(value, function(*arrays))
    close(mapped, value)
    close(again, gradient)
    assert all(np.isfinite(x).all() for x in jax.tree.leaves((value, gradient)))
    assert any(np.any(x) for x in gradient) != name.startswith(FROZEN)


@every_function
def test_types(name):
    """The result's type is the inputs'; bfloat16 is close to float32 within its eight bits, and float64 keeps more."""
    function = FUNCTIONS[name][0]
    narrow = arrays_of(name, dtype="bfloat16")
    got = compiled(name)(*narrow)
    expected = function(*(x.astype(jnp.float32) for x in narrow))
    assert {x.dtype for x in jax.tree.leaves(got)} == {jnp.dtype(jnp.bfloat16)}
    assert {x.dtype for x in jax.tree.leaves(expected)} == {jnp.dtype(jnp.float32)}
    as_float32 = lambda tree: jax.tree.map(lambda x: np.asarray(x, np.float32), tree)  # noqa: E731
    close(as_float32(got), as_float32(expected), 2.0**-8 if name in RETURNS else 2.0**-5)
    gradient = jax.eval_shape(jax.grad(total(function), argnums=tuple(range(len(narrow)))), *narrow)
    assert {x.dtype for x in gradient} == {jnp.dtype(jnp.bfloat16)}
    with jax.enable_x64(True):
        wide = arrays_of(name, dtype="float64")
        exact = compiled(name)(*wide)
        assert {x.dtype for x in jax.tree.leaves(exact)} == {jnp.dtype(jnp.float64)}
        rounded = function(*(x.astype(jnp.float32) for x in wide))
        pairs = [map(np.asarray, jax.tree.leaves(x)) for x in (exact, rounded)]
    distance = max(np.max(np.abs(x - y)) for x, y in zip(*pairs, strict=True))
    assert distance < 1e-5
    assert distance > 0 or name == "adapt_kl_coefficient"


@every_function
@pytest.mark.parametrize("shape", [(4, 0), (1, 3), (4, 2, 3)])
def test_shapes(name, shape):
    """No environment, one step, and deeper batches: each environment as if it were alone."""
    arrays = arrays_of(name, shape)
    value = compiled(name)(*arrays)
    assert all(x.shape == shape and np.isfinite(x).all() for x in jax.tree.leaves(value))
    _, gradients = jax.eval_shape(value_and_gradient(name), *arrays)
    assert [x.shape for x in gradients] == [x.shape for x in arrays]
    if len(shape) == 3:
        alone = compiled(name)(*(x[..., 1, :] for x in arrays))
        close(jax.tree.map(lambda x: x[:, 1], value), alone)


# ---- extremes -------------------------------------------------------------------------------------------------------

EXTREMES = {
    "x": [0.0, 1e-3, -1e-3, 30.0, -30.0, 1e4, -1e4, -math.inf],
    "p": [0.0, -1.0, 5.0, -1e4, -1e6, -1e7, -math.inf],
    "a": [0.0, 1.0, -1.0, 1e8, -1e8],
    "c": [1.0, 1.5, 1e13, math.inf],
    "r": [0.0, 1.0, 1e8, -1e8],
    "d": [0.0, 0.99, 1.0],
    "v": [0.0, -1.0, 1e8, -1e8],
    "w": [0.0, 1.0, 1e8, -1e8],
    "k": [0.0, 0.01, 1e6],
    "X": [0.0, 1.0, 30.0, 1e4, -1e4, -math.inf],
}
#: Where numbers end at 65504.
NARROW = {
    "x": [0.0, 5.0, -5.0, 11.5, 31.0, 1e4, -1e4, -math.inf],
    "p": [0.0, -1.0, -1e4, -math.inf],
    "a": [0.0, 1.0, -1.0, 10.0, -10.0],
    "c": [1.0, 1.5, 3.0],
    **{kind: [0.0, 1.0, 20.0, -20.0] for kind in "rvw"},
    "d": [0.0, 0.99, 1.0],
    "k": [0.0, 0.01, 100.0],
    "X": [0.0, 1.0, 11.5, 1e4, -1e4, -math.inf],
}


@every_function
@pytest.mark.parametrize(("dtype", "extremes"), [("float32", EXTREMES), ("float16", NARROW)])
def test_extremes_are_finite(name, dtype, extremes):
    """Ratios of exp(±1e4), actions of probability zero, advantages of ±1e8: values and gradients stay finite.

    Returns are compiled; the others run operation by operation, so that a NaN that a `where` hides is seen, too.
    """
    both, shapes = value_and_gradient(name), {"v": (4, 4), "X": (3, 3, 4)}
    both = jax.jit(both) if name in (*RETURNS, "adapt_kl_coefficient") else both
    if name == "truncate_ratio":  # of finite ratios
        extremes = extremes | {"c": extremes["c"][:3]}
    with jax.debug_nans(True):
        for seed in range(4):
            random = np.random.default_rng(seed)
            drawn = [random.choice(extremes[k], size=shapes.get(k, (3, 4))) for k in FUNCTIONS[name][1]]
            found = jax.tree.leaves(both(*(jnp.asarray(x, dtype) for x in drawn)))
            assert {x.dtype for x in found} == {jnp.dtype(dtype)}
            assert all(np.isfinite(x).all() for x in found)


E30 = math.exp(30)
# Function, arguments, value, gradient with respect to the first.
SATURATED = [
    (importance_ratio, (1e4,), E30, 0.0),
    (importance_ratio, (-math.inf,), 1 / E30, 0.0),
    (ppo_loss, (1e4, 1e8), -1.2e8, 0.0),
    (ppo_loss, (1e4, -1e8), E30 * 1e8, 0.0),
    (ppo_loss, (-math.inf, 1e8), -1e8 / E30, 0.0),
    (ppo_loss, (-math.inf, -1e8), 0.8e8, 0.0),
    (approximate_kl, (-math.inf,), 1e6 - 1, 0.0),
    (approximate_kl, (1e4,), E30 - 1e4 - 1, -1.0),
    (impala_loss, (-math.inf, 1e8), 1e14, 0.0),
    (truncated_policy_gradient_loss, (-math.inf, -math.inf, 1e8), 1e14 / E30, 0.0),
    (truncated_policy_gradient_loss, (-1.0, 1e4, 1e8), 1e8, -1e8),
    (functools.partial(truncated_policy_gradient_loss, ratio_floor=0.5), (-1.0, -math.inf, 1e8), 0.5e8, -0.5e8),
    (sapo_loss, (1e4, 1e8), -4e8, 0.0),
    (sapo_loss, (-math.inf, 1e8), -4e8 / (1 + math.e), 0.0),
    (functools.partial(decoupled_ppo_loss, weight=2.0), (1e4, -math.inf, -1e8), 2e8 * E30, 0.0),
    (lambda x: bounded_importance_weight(x, high=math.inf).weight, (1e4,), E30, 0.0),
    (lambda x: bounded_importance_weight(x, outside="mask").weight, (1e4,), 0.0, 0.0),
    (lambda x: approximate_proximal_log_ratio(x, jnp.int32(4)), (-1e4,), -7500.0, 0.0),
    (impact_loss, (1e4, 1e4, -1e8), 1e8, 0.0),
    (impact_loss, (1e4, -math.inf, -1e8), 2e8 * E30, 0.0),
    (decoupled_ppo_loss, (1e4, 1e4, -1e8), E30 * 1e8, 0.0),
    (decoupled_ppo_loss, (-math.inf, 0.0, -1e8), 0.8e8, 0.0),
    (functools.partial(oapl_loss, coefficient=1e-3), (-math.inf, 0.0), 1e6, 0.0),
    (functools.partial(oapl_loss, coefficient=1e-3), (1e7, 0.0), 1e6, 0.0),
    (functools.partial(value_loss, huber=1.0), (1e8, -1e8), 4e8, 2.0),
]


@pytest.mark.parametrize(("function", "arguments", "value", "gradient"), SATURATED)
def test_saturation(function, arguments, value, gradient):
    """What the docstrings say of log-ratios beyond ±30 and log-probabilities below -1e6."""
    got = jax.value_and_grad(function)(*map(jnp.float32, arguments))
    np.testing.assert_allclose(got, (value, gradient), rtol=1e-5)


X = arrays_of("global_ratio_cap")[0]
x, a = arrays_of("ppo_loss")
v, g, o = arrays_of("value_loss, clipped")
LATE = jnp.array([0, 1, 4, 9])


SETTINGS = {
    "global_ratio_cap": (lambda rho: global_ratio_cap(X, rho=rho), (1.0, 1.5)),
    "truncate_ratio": (lambda s: truncate_ratio(jnp.exp(x), s), (1.0, 1.5)),
    "ppo_loss": (lambda s: ppo_loss(x, a, clip=s / 4, clip_high=s / 2, ratio_cap=s), (0.9, 1.3)),
    "ppo_penalty_loss": (
        lambda s: ppo_penalty_loss(x, a, x**2, coefficient=s, clip=s / 4, ratio_cap=s),
        (0.9, 1.3),
    ),
    "impact_loss": (
        lambda s: impact_loss(x, x / 2, a, clip=s / 9, clip_high=s / 4, target_rho=1 + s, ratio_cap=s),
        (0.9, 1.3),
    ),
    "decoupled_ppo_loss": (
        lambda s: decoupled_ppo_loss(x, x / 2, a, clip=s / 4, clip_high=s / 2, weight=3 * s, ratio_cap=s),
        (0.9, 1.3),
    ),
    "truncated_policy_gradient_loss": (
        lambda s: truncated_policy_gradient_loss(-abs(x), x, a, ratio_cap=s, ratio_floor=s / 2),
        (0.9, 1.3),
    ),
    "sapo_loss": (lambda s: sapo_loss(x, a, temperature=s, negative_temperature=2 * s, ratio_cap=s), (0.9, 1.3)),
    "value_loss": (lambda s: value_loss(v, g, old_value=o, clip=s, loss_clip=3 * s, huber=s), (0.2, 0.9)),
    "adapt_kl_coefficient": (lambda s: adapt_kl_coefficient(0.02, 1.0, target=s, increase=1 + s), (0.01, 0.1)),
    "gae": (lambda s: gae(*arrays_of("gae"), lambda_=s), (0.0, 0.9)),
    "vtrace": (
        lambda s: vtrace(*arrays_of("vtrace"), lambda_=s, rho_clip=2 * s, c_clip=s / 2, pg_rho_clip=3 * s).advantage,
        (0.5, 0.9),
    ),
    "vtrace, cap": (
        lambda s: vtrace(*arrays_of("vtrace"), ratio_cap=s, rho_clip=math.inf, pg_rho_clip=math.inf),
        (0.9, 1.3),
    ),
    "bounded_importance_weight": (lambda s: bounded_importance_weight(x, low=s / 2, high=s), (0.9, 1.3)),
    "bounded_importance_weight, masked": (
        lambda s: bounded_importance_weight(x, low=s / 2, high=s, outside="mask"),
        (0.9, 1.3),
    ),
    "vespo_weight": (
        lambda s: vespo_weight(x, a, power=s, decay=2 * s, negative_power=3 * s, negative_decay=s / 2),
        (0.5, 2.0),
    ),
    "second_moment_mask": (lambda s: second_moment_mask(x, a, max_second_moment=s), (0.0, 0.1)),
    "probability_mask": (lambda s: probability_mask(x - 2, x / 2 - 2, a, max_distance=s), (0.01, 0.1)),
    "off_policy_sequence_mask": (lambda s: off_policy_sequence_mask(x, a, max_divergence=s), (0.0, 0.1)),
    "total_variation_mask": (lambda s: total_variation_mask(x, a, max_distance=s), (0.1, 0.5)),
    "bidirectional_kl_mask": (lambda s: bidirectional_kl_mask(-abs(x), -abs(a), max_divergence=s), (0.1, 0.5)),
    "least_ratio_cap": (lambda rho: least_ratio_cap(X, rho=rho), (1.0, 1.5)),
    "oapl_loss": (lambda s: oapl_loss(x, a, coefficient=s), (0.1, 1.0)),
    "group_relative_advantage": (
        lambda s: group_relative_advantage(x, jnp.zeros(x.shape, int), epsilon=s),
        (0.0, 1.0),
    ),
    "optimal_advantage": (lambda s: optimal_advantage(x, jnp.zeros(x.shape, int), beta=s), (0.1, 1.0)),
    "second_moment_clip": (
        lambda s: second_moment_clip(x, a, max_second_moment=s, min_clip=s / 2, min_clip_high=s),
        (0.0, 0.1),
    ),
    "balanced_clip": (
        lambda s: balanced_clip(x, a, low=s, max_low=s + 0.1, high=1 + s, max_high=2 + s, step=s, balance=2 * s),
        (0.2, 0.6),
    ),
    "adaptive_clip": (lambda s: adaptive_clip(x, clip=s, clip_high=2 * s, quantile=s), (0.1, 0.5)),
    "scale_by_effective_samples": (
        lambda s: scale_by_effective_samples(s).update(x, optax.EmptyState(), effective_sample_fraction=s**2)[0],
        (0.5, 0.9),
    ),
    "staleness_weight": (lambda s: staleness_weight(LATE, smoothness=s), (1.0, 3.0)),
    "polynomial_weight": (lambda s: polynomial_weight(LATE, power=s), (0.0, 0.5)),
    "hinge_weight": (lambda s: hinge_weight(LATE, slope=s, tolerance=4 * s), (0.5, 1.0)),
    "exponential_weight": (lambda s: exponential_weight(LATE, rate=s), (0.1, 1.0)),
    "staleness_threshold": (lambda s: staleness_threshold(3, max_staleness=4, decay=s), (0.5, 0.9)),
    "demo_threshold": (lambda s: demo_threshold(3, max_staleness=4, decay=s), (0.5, 0.9)),
}


@pytest.mark.parametrize("name", SETTINGS)
def test_settings_may_be_swept(name):
    """A vmapped or jitted setting gives what the number gives."""
    function, values = SETTINGS[name]
    swept = jax.jit(jax.vmap(function))(jnp.array(values))
    for i, value in enumerate(values):
        close(jax.tree.map(lambda y: y[i].astype(float), swept), function(value))  # noqa: B023
