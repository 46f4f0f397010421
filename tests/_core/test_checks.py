"""Checks of arguments: accepted and refused values, and the errors."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris._core import checks

pytestmark = pytest.mark.usefixtures("unchecked")


def known(**named):
    return dict(checks.known(**named))


def test_accepted_arguments():
    checks.floats(a=jnp.zeros(2), b=np.zeros(2), c=1.0, d=np.float32(1), e=jnp.zeros(2, jnp.bfloat16), f=None)
    checks.integers(a=jnp.arange(2), b=np.int64(3), c=4, d=np.zeros(2, np.uint8))
    checks.same_shape(jnp.zeros((2, 3)), "value", a=np.zeros((2, 3)), b=None)
    checks.same_structure({"a": 1, "b": (2, 3)}, "params", then={"a": "x", "b": (type, 0)})
    checks.whole(at_least=0, a=0, b=np.int64(7))
    checks.counts(a=1, b=np.int32(7))
    checks.seed(seed=0, other=2**31 - 1)
    checks.key(a=jax.random.key(0), b=jax.random.PRNGKey(1), c=jax.random.key(0, impl="rbg"))
    jax.vmap(lambda one: checks.key(a=one) or one)(jax.random.split(jax.random.key(0), 3))
    assert checks.given(a=None, b=0, c=False) == {"b": 0, "c": False}


@pytest.mark.parametrize(
    ("check", "arguments", "named", "error", "message"),
    [
        (checks.floats, (), {"a": 1.0, "b": jnp.arange(2)}, TypeError, "b has dtype int32: expected floating point"),
        (checks.floats, (), {"a": np.array(True)}, TypeError, "a has dtype bool"),
        (checks.floats, (), {"a": [1.0]}, TypeError, "a is a list: expected an array"),
        (checks.integers, (), {"a": jnp.zeros(2)}, TypeError, "a has dtype float32: expected integers"),
        (checks.integers, (), {"a": None}, TypeError, "a is a NoneType: expected an array"),
        (checks.floats, (), {"a": np.array(["1.0"])}, TypeError, "a has dtype <U3: expected numbers$"),
        (checks.integers, (), {"a": np.array(["x"])}, TypeError, r"a has dtype <U1: .*return_inverse=True\)\[1\]$"),
        (checks.integers, (), {"a": np.array(["x", None])}, TypeError, r"a has dtype object: .*numpy\.unique"),
        (checks.integers, (), {"a": ["x", "y"]}, TypeError, r"a is a list: .*return_inverse=True\)\[1\]$"),
        (checks.integers, (), {"a": [1, 2]}, TypeError, "a is a list: expected an array$"),
        (checks.same_shape, (np.zeros((2, 3)), "value"), {"a": np.zeros(2)}, ValueError, "it along a new last axis$"),
        (checks.same_shape, (np.zeros((2, 3)), "value"), {"a": np.zeros((2, 1))}, ValueError, "; broadcast it$"),
        (checks.same_shape, (np.zeros((2, 3)), "value"), {"a": np.zeros((3, 2))}, ValueError, "; transpose it$"),
        (checks.same_shape, (np.zeros((2, 3)), "value"), {"a": np.zeros((1, 2, 3))}, ValueError, r"\(2, 3\)$"),
        (
            checks.same_shape,
            (np.zeros((2, 3)), "value"),
            {"a": np.zeros(3)},
            ValueError,
            r"\(3,\): expected value's \(",
        ),
        (checks.same_shape, (np.zeros(1), "value"), {"a": "0"}, TypeError, "a is a str"),
        (checks.same_leaf, (np.zeros((2, 3)), "value"), {"a": np.zeros(3)}, ValueError, r"expected value's \(2, 3\)$"),
        (
            checks.same_structure,
            ({"a": 1}, "params"),
            {"b": [1]},
            ValueError,
            r"b has structure .*expected params's .*",
        ),
        (known, (), {"x": "1"}, TypeError, "x='1' is not a number"),
        (known, (), {"x": None}, TypeError, "x=None is not a number"),
        (known, (), {"x": np.ones(1)}, TypeError, r"x has shape \(1,\): expected one number"),
        (checks.whole, (), {"at_least": 2, "a": 1}, ValueError, "a=1 is below 2"),
        (checks.whole, (), {"at_least": 0, "a": 2.0}, TypeError, "a=2.0 is not a whole number: pass an int"),
        (checks.counts, (), {"a": 1, "b": 0}, ValueError, "^b=0 is not a positive whole number"),
        (checks.counts, (), {"b": 1.0}, ValueError, r"^b=1\.0 is not a positive whole number"),
        (checks.counts, (), {"b": [1]}, ValueError, r"^b=\[1\] is not a positive whole number"),
        (checks.seed, (), {"seed": -1}, ValueError, "seed=-1 is below 0"),
        (checks.seed, (), {"seed": 2**31}, ValueError, r"seed=2147483648 is not below 2\*\*31"),
        (checks.key, (), {"key": 0}, TypeError, r"^key=0 is not a key: pass jax\.random\.key\(0\)"),
        (checks.key, (), {"key": None}, TypeError, "^key=None is not a key"),
        (checks.key, (), {"key": jnp.zeros(2)}, TypeError, "is not a key"),
        (checks.key, (), {"key": jax.random.split(jax.random.key(0), 3)}, TypeError, r"shape \(3,\): .*key\[0\]$"),
        (checks.key, (), {"key": jax.random.split(jax.random.PRNGKey(0), 3)}, TypeError, r"^key has shape \(3, 2\)"),
        (checks.seed, (), {"seed": 1.5}, TypeError, r"seed=1\.5 is not a whole number"),
    ],
)
def test_refused_arguments(check, arguments, named, error, message):
    with pytest.raises(error, match=message):
        check(*arguments, **named)


def test_known_numbers_are_those_that_are_not_traced():
    settings = {"a": 1, "b": 2.5, "c": np.float32(3), "d": jnp.int32(4), "e": np.array(5)}
    assert known(**settings) == settings
    assert jax.jit(lambda x: known(x=x, y=2))(1.0) == {"y": 2}
    array = jnp.float32(-1.0)
    with pytest.raises(ValueError, match=r"^x=-1\.0 is not positive"):
        jax.jit(lambda y: checks.positive(x=array) or y)(1.0)


@pytest.mark.parametrize("dtype", [np.uint8, np.uint32, np.uint64, np.int64])
@pytest.mark.parametrize("of", [np.asarray, jnp.asarray])
def test_integers_that_fit_into_int32(dtype, of):
    """Of any type, on the host or on a device, and also as constants of a compiled function."""
    with jax.enable_x64(True):
        numbers = of(np.array([0, 200], dtype))
        checks.int32(a=numbers, b=numbers[1], c=-(2**31), d=2**31 - 1)
        assert jax.jit(lambda x: checks.int32(x=x, a=numbers) or x)(numbers).tolist() == [0, 200]
        if dtype != np.uint8:
            beyond = of(np.array([0, 2**31], dtype))
            with pytest.raises(ValueError, match="a=2147483648 does not fit into int32"):
                checks.int32(a=beyond)


def test_plain_numbers():
    for x, kind in ((np.float32(0.5), float), (jnp.float32(0.5), float), (np.array(0.5), float), (np.int64(3), int)):
        got = checks.plain(x)
        assert type(got) is kind
        assert got == x
    for x in (0.5, 3, True, None, "x"):
        assert checks.plain(x) is x
    jax.jit(lambda x: x if checks.plain(x) is x else pytest.fail("a traced number was changed"))(1.0)


@pytest.mark.parametrize(
    ("check", "inside", "outside", "message"),
    [
        (checks.positive, [1e-9, 3, math.inf], [0, -1.0, math.nan], "is not positive"),
        (checks.not_negative, [0, 2.5, math.inf], [-1e-9, math.nan], "is negative or NaN"),
        (checks.finite, [0, -2.5, 1e30], [math.inf, -math.inf, math.nan], "is not finite"),
        (checks.between_zero_and_one, [0, 0.5, 1], [-0.1, 1.1, math.nan], "lies outside"),
    ],
)
def test_ranges(check, inside, outside, message):
    for x in inside:
        check(x=x, y=jnp.asarray(x, jnp.float32))
    for x in outside:
        with pytest.raises(ValueError, match=f"^y={x} {message}"):
            check(x=inside[0], y=x)
        jax.jit(lambda x: check(x=x))(x)


def test_a_tensor_is_told_how_to_be_passed():
    """By its module's name, since PyTorch need not be installed."""
    tensor = type("Tensor", (), {"__module__": "torch"})()
    with pytest.raises(TypeError, match=r"x is a Tensor: expected an array; wrap the function: stellaris\.torch\.diff"):
        checks.floats(x=tensor)
    with pytest.raises(TypeError, match=r"x is a list: expected an array$"):
        checks.floats(x=[1.0])
