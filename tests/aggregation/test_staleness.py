"""Staleness weights, and the transformation that applies them to a step."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    exponential_weight,
    hinge_weight,
    polynomial_weight,
    scale_by_staleness,
    staleness_weight,
)
from tests.aggregation.aggregators import OPTIMIZERS, PARAMS


@pytest.mark.parametrize("weight", [staleness_weight, polynomial_weight, hinge_weight])
def test_staleness_beyond_int32(weight, unchecked):
    """As of a number near it, not of the one to which 32 bits would wrap."""
    near = weight(np.array([2**31 - 1, 7]))
    for kind in (np.int64, np.uint32):
        got = weight(np.array([2**31 + 7, 7], kind))
        np.testing.assert_allclose(got, near, rtol=1e-6)
    np.testing.assert_allclose(weight(np.int64(2**31 + 7)), near[0], rtol=1e-6)


@pytest.mark.parametrize(
    ("weight", "staleness", "value"),
    [
        (staleness_weight, 1, 1.0),
        (staleness_weight, 8, 1 / 2),  # the smoothness is 3 by default: 8^(1/3) = 2
        (functools.partial(staleness_weight, smoothness=2.0), 4, 1 / 2),
        (functools.partial(staleness_weight, smoothness=0.5), 4, 1 / 16),  # 4^2
        (functools.partial(staleness_weight, smoothness=1), 5, 1 / 5),  # Zhang et al.: one over the staleness
        (functools.partial(staleness_weight, smoothness=math.inf), 10**6, 1.0),
        (polynomial_weight, 0, 1.0),
        (polynomial_weight, 3, 1 / 2),  # 4^-1/2: the power is one half by default
        (functools.partial(polynomial_weight, power=1), 1, 1 / 2),  # unlike the inverse root, one version costs
        (functools.partial(polynomial_weight, power=2.0), 4, 1 / 25),
        (functools.partial(polynomial_weight, power=0), 10**6, 1.0),
        (hinge_weight, 4, 1.0),  # nothing is lost up to 4
        (hinge_weight, 5, 1 / 11),  # 1 / (10 * 1 + 1)
        (functools.partial(hinge_weight, slope=1.5), 6, 1 / 4),
        (functools.partial(hinge_weight, slope=0.5, tolerance=0), 2, 1 / 2),
        (functools.partial(hinge_weight, slope=1.0, tolerance=1.5), 3, 1 / 2.5),
        (functools.partial(hinge_weight, slope=0), 10**6, 1.0),
        (functools.partial(hinge_weight, tolerance=math.inf), 10**6, 1.0),
        (functools.partial(exponential_weight, rate=0.5), 0, 1.0),
        (functools.partial(exponential_weight, rate=0.5), 4, math.exp(-2)),
        (functools.partial(exponential_weight, rate=math.log(2)), 3, 1 / 8),
        (functools.partial(exponential_weight, rate=0), 10**6, 1.0),
        (functools.partial(exponential_weight, rate=100.0), 1, 0.0),  # e^-100 is no float32
    ],
)
def test_weights_by_hand(weight, staleness, value):
    """Of a Python int and of an array."""
    for x in (staleness, jnp.int32(staleness)):
        got = weight(x)
        assert (got.shape, got.dtype) == ((), jnp.float32)
        np.testing.assert_allclose(got, value, rtol=1e-6)


WEIGHTS = {
    "inverse root": (staleness_weight, lambda s: max(s, 1) ** (-1 / 3)),
    "inverse": (functools.partial(staleness_weight, smoothness=1.0), lambda s: 1 / max(s, 1)),
    "polynomial": (polynomial_weight, lambda s: (s + 1) ** -0.5),
    "hinge": (hinge_weight, lambda s: 1.0 if s <= 4 else 1 / (10 * (s - 4) + 1)),
    "exponential": (functools.partial(exponential_weight, rate=0.1), lambda s: math.exp(-0.1 * s)),
}


@pytest.mark.parametrize(("weight", "python"), WEIGHTS.values(), ids=WEIGHTS)
def test_every_weight_of_arrays(weight, python):
    """Any shape, under jit and vmap; exactly 1 when fresh, never rising, never above 1; float64 where enabled."""
    staleness = np.arange(60, dtype=np.int32).reshape(3, 4, 5)
    expected = [python(s) for s in range(60)]
    for function in (weight, jax.jit(weight), jax.vmap(weight)):
        got = function(jnp.asarray(staleness))
        assert got.shape == staleness.shape
        np.testing.assert_allclose(np.ravel(got), expected, rtol=1e-6)
    assert np.ravel(got)[0] == 1.0
    assert np.all(np.diff(np.ravel(got)) <= 0)
    np.testing.assert_array_equal(weight(jnp.array([-1, -9])), [1.0, 1.0])  # the clock never is below, but no NaN
    with jax.enable_x64(True):
        got = weight(staleness.ravel())
        assert got.dtype == jnp.float64
        np.testing.assert_allclose(got, expected, rtol=1e-14)


def test_no_weight_is_not_a_number():
    """Extremes give 0 or 1; no NaN on the way."""
    with jax.debug_nans(True):
        large = jnp.array([0, 2**31 - 1])
        for weight, last in (
            (functools.partial(staleness_weight, smoothness=0.01), 0.0),
            (functools.partial(staleness_weight, smoothness=math.inf), 1.0),
            (functools.partial(polynomial_weight, power=100.0), 0.0),
            (functools.partial(polynomial_weight, power=math.inf), 0.0),
            (functools.partial(exponential_weight, rate=1e30), 0.0),
        ):
            np.testing.assert_array_equal(weight(large), [1.0, last])


GRADIENT = {"w": jnp.array([0.3, -4.0]), "b": jnp.float32(0.01)}


def step(optimizer, **extra):
    """The first step of an optimizer on GRADIENT."""
    return optimizer.update(GRADIENT, optimizer.init(PARAMS), PARAMS, **extra)[0]


@pytest.mark.parametrize(
    ("scaling", "factor"),
    [
        (scale_by_staleness(), 1 / 2),  # smoothness 3
        (scale_by_staleness(weight=polynomial_weight), 1 / 3),
        (scale_by_staleness(weight=functools.partial(hinge_weight, slope=0.25)), 1 / 2),
        (scale_by_staleness(1.0), 1 / 8),
    ],
    ids=["inverse root", "polynomial", "hinge", "inverse"],
)
@pytest.mark.parametrize("base", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_a_whole_optimizer_takes_a_smaller_step(base, scaling, factor):
    """After one step, from the same state: staleness 8 costs its factor of the step, and the base's state nothing."""
    chain = optax.chain(base, scaling)
    update = jax.jit(lambda staleness, state: chain.update(GRADIENT, state, PARAMS, staleness=staleness))
    _, state = update(jnp.int32(3), chain.init(PARAMS))
    (whole, fresh), (part, stale) = (update(jnp.int32(s), state) for s in (0, 8))
    plain, plain_state = base.update(GRADIENT, base.update(GRADIENT, base.init(PARAMS), PARAMS)[1], PARAMS)
    for a, b, tolerance in (
        (whole, plain, 1e-6),
        (part, jax.tree.map(lambda x: x * factor, whole), 1e-6),
        (fresh[0], plain_state, 1e-6),
        (stale[0], fresh[0], 0),
    ):
        jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance), a, b)
    assert abs(whole["w"][1]) > 0.05


@pytest.mark.parametrize("base", [optax.adam(0.1), optax.rmsprop(0.1)], ids=["adam", "rmsprop"])
def test_scaling_the_gradient_cancels(base):
    """The first step of an adaptive optimizer is as long with half the gradient: the factor belongs on the step."""
    lengths = []
    for chain in (optax.chain(scale_by_staleness(3.0), base), optax.chain(base, scale_by_staleness(3.0))):
        fresh, stale = (step(chain, staleness=jnp.int32(s)) for s in (0, 8))
        lengths.append(stale["w"] / fresh["w"])
    np.testing.assert_allclose(lengths, [[1.0, 1.0], [0.5, 0.5]], rtol=1e-4)


def test_transformation_keeps_dtypes_and_passes_over_other_extras():
    """A bfloat16 update stays one; the staleness has to be given, and others' extra arguments are ignored."""
    transform = scale_by_staleness(1.0)
    update, state = transform.update({"x": jnp.ones(2, jnp.bfloat16)}, transform.init({}), staleness=4, value=1.0)
    assert update["x"].dtype == jnp.bfloat16
    np.testing.assert_array_equal(np.asarray(update["x"], np.float32), [0.25, 0.25])
    assert state == optax.EmptyState()
    with pytest.raises(TypeError, match="staleness"):
        transform.update({}, state)


@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("weight", [weight for weight, _ in WEIGHTS.values()], ids=WEIGHTS)
@pytest.mark.usefixtures("unchecked")
def test_staleness_that_is_not_whole(weight, wrap):
    """Half a version is a mistake, and so is a truth value; also in the transformation, where it is traced."""
    transform = scale_by_staleness(weight=weight)
    for staleness, dtype in ((1.5, "float32"), (np.ones(2, np.float32), "float32"), (True, "bool")):
        message = f"staleness has dtype {dtype}: expected whole numbers of versions"
        with pytest.raises(TypeError, match=message):
            wrap(weight)(staleness)
        with pytest.raises(TypeError, match=message):
            transform.update(GRADIENT, optax.EmptyState(), staleness=staleness)
    with pytest.raises(TypeError, match="staleness is a list: expected an array"):
        weight([0, 1, 4])


@pytest.mark.parametrize(
    ("function", "arguments", "message"),
    [
        (polynomial_weight, {"power": -0.5}, r"power=-0\.5 is negative or NaN"),
        (polynomial_weight, {"power": math.nan}, "power=nan is negative or NaN"),
        (hinge_weight, {"slope": -1.0}, r"slope=-1\.0 is negative or NaN"),
        (hinge_weight, {"tolerance": -4}, "tolerance=-4 is negative or NaN"),
        (hinge_weight, {"tolerance": math.nan}, "tolerance=nan is negative or NaN"),
        (exponential_weight, {"rate": -0.1}, r"rate=-0\.1 is negative or NaN"),
        (staleness_weight, {"smoothness": 0}, "smoothness=0 is not positive"),
        (staleness_weight, {"smoothness": math.nan}, "smoothness=nan is not positive"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_weights_out_of_their_range(function, arguments, message):
    """The argument is named, with its value; under jit too."""
    for run in (function, jax.jit(functools.partial(function, **arguments))):
        with pytest.raises(ValueError, match=message):
            run(1, **(arguments if run is function else {}))


def test_one_negative_staleness():
    """A version that is not published yet; in an array it may stand for no gradient, and counts as fresh."""
    for weight in (staleness_weight, polynomial_weight, hinge_weight, functools.partial(exponential_weight, rate=0.5)):
        with pytest.raises(ValueError, match="staleness=-1 is negative"):
            weight(-1)
        np.testing.assert_array_equal(weight(jnp.array([-1, 0])), [1.0, 1.0])


def test_the_step_of_a_group_is_scaled_by_its_mean_weight():
    """Staleness 1, 8 and 27 at smoothness 3: (1 + 1/2 + 1/3) / 3; -1 is no gradient."""
    transform = scale_by_staleness(3.0)
    for group, factor in (([1, 8, 27, -1], 11 / 18), ([8], 0.5), ([-1, -1], 0.0)):
        got, _ = transform.update(jnp.array([36.0]), transform.init(None), staleness=jnp.array(group))
        np.testing.assert_allclose(got, [36.0 * factor], rtol=1e-6)


@pytest.mark.usefixtures("unchecked")
def test_settings_of_the_transformation():
    """Errors name the setting when the transformation is made, not when it is first used."""
    for error, arguments, message in (
        (ValueError, {"smoothness": -3.0}, r"smoothness=-3\.0 is not positive"),
        (TypeError, {"smoothness": "3"}, "smoothness='3' is not a number"),
        (TypeError, {"weight": 0.5}, r"weight=0\.5 is not a function"),
    ):
        with pytest.raises(error, match=f"^{message}"):
            scale_by_staleness(**arguments)


def test_a_weight_may_be_a_number():
    scaling = scale_by_staleness(weight=lambda staleness: 0.5)
    update, _ = scaling.update(jnp.ones(2), scaling.init(jnp.ones(2)), staleness=jnp.int32(3))
    assert update.tolist() == [0.5, 0.5]
