"""Delay compensation, by hand, on problems where it is exact, and in front of an optimizer."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import add_delay_compensation, delay_compensate

THEN = {"w": jnp.array([1.0, 2.0, -1.0]), "b": (jnp.float32(4.0),)}
NOW = {"w": jnp.array([2.0, 2.0, -4.0]), "b": (jnp.float32(3.5),)}
GRADIENT = {"w": jnp.array([0.5, 7.0, -2.0]), "b": (jnp.float32(-2.0),)}


def close(got, want, tolerance=1e-6):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance), got, want)


def bits(x):
    """The bit pattern of a float32, so that -0.0 is not 0.0."""
    return np.asarray(x).view(np.int32)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    ("strength", "w", "b"),
    [
        (1.0, [0.5 + 0.25, 7.0, -2.0 - 12.0], -2.0 - 2.0),  # g + g * g * (1, 0, -3; -0.5)
        (0.5, [0.625, 7.0, -8.0], -3.0),
        (2, [1.0, 7.0, -26.0], -6.0),
        (0, [0.5, 7.0, -2.0], -2.0),
    ],
)
def test_by_hand(strength, w, b, run):
    """`g + strength * g * g * (now - then)`, leaf by leaf: the square is of one sign, the distance has either."""
    got = run(functools.partial(delay_compensate, strength=strength))(GRADIENT, NOW, THEN)
    close(got, {"w": np.array(w, np.float32), "b": (np.float32(b),)})
    assert jax.tree.map(jnp.shape, got) == jax.tree.map(jnp.shape, GRADIENT)


@pytest.mark.parametrize(("strength", "now"), [(0.0, NOW), (0.7, THEN)], ids=["strength 0", "no delay"])
def test_nothing_to_compensate(strength, now):
    """The gradient comes back bit for bit."""
    gradient = jax.tree.map(lambda x: x / np.float32(3), GRADIENT)
    got = delay_compensate(gradient, now, THEN, strength)
    jax.tree.map(lambda a, b: np.testing.assert_array_equal(bits(a), bits(b)), got, gradient)


@pytest.mark.parametrize(("dtype", "large"), [(jnp.float16, 300.0), (jnp.float32, 1e20), (jnp.bfloat16, 1e20)])
@pytest.mark.parametrize(("strength", "now"), [(0.0, 2.0), (0.5, 1.0)], ids=["strength 0", "no delay"])
def test_nothing_to_compensate_of_a_large_gradient(strength, now, dtype, large):
    """The same where the gradient's square is beyond its type."""
    gradient, then = jnp.array([large], dtype), jnp.array([1.0], dtype)
    np.testing.assert_array_equal(delay_compensate(gradient, jnp.array([now], dtype), then, strength), gradient)


@pytest.mark.parametrize("then", [-3.0, 0.1, 2.0])
def test_exact_where_the_square_is_the_hessian(then):
    """exp(-x) has g * g = f'' * f: at f = 1, the first-order term of the gradient, error of the second order."""

    def loss(x):  # gradient exp(x - then), and at x = then both its square and the second derivative are 1
        return jnp.exp(x - then)

    with jax.enable_x64(True):
        stale = jax.grad(loss)(jnp.float64(then))
        for distance in (1e-2, 1e-3, -1e-3):
            fresh = jax.grad(loss)(then + distance)
            guess = delay_compensate(stale, jnp.float64(then + distance), jnp.float64(then), 1.0)
            assert abs(guess - fresh) < 0.51 * distance**2 < abs(stale - fresh) / 50


@pytest.mark.parametrize(("curvature", "then", "now"), [(2.0, 3.0, 1.5), (0.25, -2.0, 2.0), (1.0, 0.5, -0.5)])
def test_exact_on_a_quadratic(curvature, then, now):
    """`c x^2 / 2`: with `strength = c / g(then)^2` the square is the Hessian, and the gradient is today's, c * now."""
    loss = lambda x: curvature * x**2 / 2  # noqa: E731
    stale, fresh = (jax.grad(loss)(jnp.float32(x)) for x in (then, now))
    strength = curvature / (curvature * then) ** 2
    np.testing.assert_allclose(delay_compensate(stale, jnp.float32(now), jnp.float32(then), strength), fresh, rtol=1e-6)


def test_in_expectation_on_a_gaussian():
    """Of -log N(x; mu, 1), g = mu - x; with x = mu +- 1 g * g is the Hessian, 1, and each gradient is today's."""
    then, now = jnp.float32(0.3), jnp.float32(0.8)
    for x in (then - 1, then + 1):
        nll = lambda mu, x=x: -jax.scipy.stats.norm.logpdf(x, mu)  # noqa: E731
        stale, fresh = jax.grad(nll)(then), jax.grad(nll)(now)
        assert abs(stale - fresh) > 0.4
        np.testing.assert_allclose(delay_compensate(stale, now, then, 1.0), fresh, rtol=1e-5)
    samples = np.float32(0.3) + np.random.default_rng(0).standard_normal(100_000).astype(np.float32)
    guess = delay_compensate(then - samples, np.full_like(samples, now), np.full_like(samples, then), 1.0)
    np.testing.assert_allclose(np.mean(guess), np.mean(now - samples), atol=0.01)


@pytest.mark.parametrize("optimizer", [optax.sgd(0.1), optax.adam(0.1)], ids=["sgd", "adam"])
def test_in_a_chain(optimizer):
    """Three steps of a chain, under jit, are those on gradients compensated by hand; the optimizer's state too."""
    chain = optax.chain(add_delay_compensation(0.3), optimizer)
    params, state, opt_state = NOW, chain.init(NOW), optimizer.init(NOW)
    update = jax.jit(lambda g, state, params, then: chain.update(g, state, params, params_then=then))
    for scale in (1.0, -0.5, 0.25):
        gradient = jax.tree.map(lambda g, scale=scale: np.float32(scale) * g, GRADIENT)
        by_hand = jax.tree.map(lambda g, now, then: g + np.float32(0.3) * g * g * (now - then), gradient, params, THEN)
        want, opt_state = optimizer.update(by_hand, opt_state, params)
        got, state = update(gradient, state, params, THEN)
        close(got, want, 1e-4)
        close(state[1], opt_state, 1e-4)
        params = optax.apply_updates(params, got)
    raw = optimizer.update(GRADIENT, optimizer.init(NOW), NOW)[0]
    chained = chain.update(GRADIENT, chain.init(NOW), NOW, params_then=THEN)[1][1]
    assert state[0] == optax.EmptyState()
    if jax.tree.leaves(chained):  # Adam's moments are of the compensated gradient
        np.testing.assert_allclose(chained[0].mu["w"][2], 0.1 * (-2.0 + 0.3 * 4.0 * -3.0), rtol=1e-5)
    assert jax.tree.structure(raw) == jax.tree.structure(GRADIENT)


def test_the_transformation_passes_over_other_extras_but_needs_params_then():
    """Others' extra arguments are ignored; without the parameters of then there is nothing to compensate with."""
    transform = add_delay_compensation(1.0)
    got, state = transform.update(GRADIENT, transform.init(NOW), NOW, params_then=THEN, staleness=3)
    close(got, delay_compensate(GRADIENT, NOW, THEN, 1.0))
    assert state == optax.EmptyState()
    with pytest.raises(TypeError, match="params_then"):
        transform.update(GRADIENT, state, NOW)


@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16, jnp.float32, jnp.float64])
@pytest.mark.parametrize("params_dtype", [jnp.float32, jnp.float64])
def test_dtypes_are_kept(dtype, params_dtype):
    """The gradient's, whatever the parameters'; in float64 with its precision."""
    with jax.enable_x64(True):
        gradient, now, then = jnp.array([3.0], dtype), jnp.array([1.5], params_dtype), jnp.array([1.0], params_dtype)
        for function in (delay_compensate, jax.jit(delay_compensate, static_argnums=3)):
            got = function(gradient, now, then, 0.5)
            assert (got.dtype, got.shape) == (dtype, (1,))
            np.testing.assert_array_equal(np.asarray(got, np.float64), [5.25])
        if dtype == params_dtype == jnp.float64:
            fine = delay_compensate(jnp.array([1.0]), jnp.array([1 + 2.0**-40]), jnp.array([1.0]), 1.0)
            np.testing.assert_array_equal(fine, [1 + 2.0**-40])


def test_under_vmap():
    """One gradient at several distances."""
    now = jnp.array([1.0, 1.5, 3.0])
    got = jax.vmap(lambda now: delay_compensate(jnp.float32(2.0), now, jnp.float32(1.0), 0.5))(now)
    close(got, np.array([2.0, 3.0, 6.0]))


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("which", ["params_now", "params_then"])
@pytest.mark.usefixtures("unchecked")
def test_trees_that_do_not_fit(which, run):
    """Another structure or shape names the tree, the leaf, what it is and what is expected."""
    function = run(functools.partial(delay_compensate, strength=0.5))
    good = {"gradient": GRADIENT, "params_now": NOW, "params_then": THEN}
    for bad, message in (
        ({"w": NOW["w"]}, rf"{which} has structure .*: expected gradient's .*'b'"),
        ({"w": NOW["w"], "b": [NOW["b"][0]]}, f"{which} has structure .*: expected gradient's"),
        (NOW | {"w": np.ones(2, np.float32)}, rf"{which}\['w'\] has shape \(2,\): expected gradient\['w'\]'s \(3,\)"),
        (NOW | {"b": (np.ones(1),)}, rf"{which}\['b'\]\[0\] has shape \(1,\): expected gradient\['b'\]\[0\]'s \(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            function(**good | {which: bad})


@pytest.mark.usefixtures("unchecked")
def test_a_gradient_of_integers():
    """The leaf is named, with its type."""
    for leaf, dtype in ((np.arange(3, dtype=np.int32), "int32"), (np.ones(3, bool), "bool")):
        with pytest.raises(TypeError, match=rf"gradient\['w'\] has dtype {dtype}: expected floating point"):
            delay_compensate(GRADIENT | {"w": leaf}, NOW, THEN, 0.5)


@pytest.mark.parametrize("strength", [-0.5, math.nan])
@pytest.mark.usefixtures("unchecked")
def test_a_strength_out_of_its_range(strength):
    """Found when the transformation is made, not when it is first used."""
    for function in (functools.partial(delay_compensate, GRADIENT, NOW, THEN), add_delay_compensation):
        with pytest.raises(ValueError, match=f"strength={strength} is negative or not a number"):
            function(strength)


@pytest.mark.usefixtures("unchecked")
def test_params_that_are_missing():
    """optax lets a caller leave the parameters out; here they are needed."""
    chain = optax.chain(add_delay_compensation(0.5), optax.sgd(0.1))
    with pytest.raises(ValueError, match="params is None: delay compensation needs the newest parameters"):
        chain.update(GRADIENT, chain.init(NOW), params_then=THEN)
    with pytest.raises(ValueError, match="params_then has structure"):
        chain.update(GRADIENT, chain.init(NOW), NOW, params_then=THEN["w"])
