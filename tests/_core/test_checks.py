"""Checks of arguments: what passes, what does not, and what the error says."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris._core import checks


def fails(error, message, check, *arguments, **named):
    with pytest.raises(error, match=message):
        check(*arguments, **named)


def test_floats(unchecked):
    """Arrays and numbers of floating point, and arrays left out; the dtype is named."""
    checks.floats(a=jnp.zeros(2), b=np.zeros(2), c=1.0, d=np.float32(1), e=jnp.zeros(2, jnp.bfloat16), f=None)
    fails(TypeError, "b has dtype int32: expected floating point", checks.floats, a=1.0, b=jnp.arange(2))
    fails(TypeError, "a has dtype bool", checks.floats, a=np.array(True))
    fails(TypeError, "a is a list: expected an array", checks.floats, a=[1.0])


def test_integers(unchecked):
    """Whole types of any width; None is no array."""
    checks.integers(a=jnp.arange(2), b=np.int64(3), c=4, d=np.zeros(2, np.uint8))
    fails(TypeError, "a has dtype float32: expected integers", checks.integers, a=jnp.zeros(2))
    fails(TypeError, "a has dtype bool", checks.integers, a=jnp.array([True]))
    fails(TypeError, "a is a NoneType: expected an array", checks.integers, a=None)


def test_same_shape(unchecked):
    """That of the first; None passes."""
    checks.same_shape(jnp.zeros((2, 3)), "value", a=np.zeros((2, 3)), b=None)
    with pytest.raises(ValueError, match=r"a has shape \(3,\): expected value's \(2, 3\)"):
        checks.same_shape(jnp.zeros((2, 3)), "value", a=jnp.zeros(3))
    fails(TypeError, "a is a str", checks.same_shape, jnp.zeros(1), "value", a="0")


def test_same_structure(unchecked):
    """Names and nesting; leaves may be anything."""
    checks.same_structure({"a": 1, "b": (2, 3)}, "params", then={"a": "x", "b": (type, 0)})
    with pytest.raises(ValueError, match=r"then has structure PyTreeDef\(\[\*\]\): expected params's .*'a'"):
        checks.same_structure({"a": 1}, "params", then=[1])


def test_given_leaves_none_out():
    """Nothing else: zero is given."""
    assert checks.given(a=None, b=0, c=False) == {"b": 0, "c": False}


def test_known_numbers_are_those_that_are_not_traced(unchecked):
    """Of any library; a list or an array of several is no number."""
    settings = {"a": 1, "b": 2.5, "c": np.float32(3), "d": jnp.int32(4), "e": np.array(5)}
    assert dict(checks.known(**settings)) == settings
    seen = []
    jax.jit(lambda x: seen.extend(checks.known(x=x, y=2)))(1.0)
    assert seen == [("y", 2)]
    array = jnp.float32(-1.0)
    with pytest.raises(ValueError, match=r"^x=-1\.0 is not positive"):
        jax.jit(lambda y: checks.positive(x=array) or y)(1.0)
    for value, message in (("1", "x='1' is not a number"), ([1], r"x=\[1\] is not a number"), (None, "x=None is not")):
        fails(TypeError, message, lambda value=value: list(checks.known(x=value)))
    fails(TypeError, r"x has shape \(1,\): expected one number", lambda: list(checks.known(x=np.ones(1))))


def test_plain_numbers(unchecked):
    """NumPy's and JAX's become Python's, of the same kind; traced numbers and anything else stay as they are."""
    for x, kind in ((np.float32(0.5), float), (jnp.float32(0.5), float), (np.array(0.5), float), (np.int64(3), int)):
        got = checks.plain(x)
        assert type(got) is kind
        assert got == x
    for x in (0.5, 3, True, None, "x"):
        assert checks.plain(x) is x
    jax.jit(lambda x: x if checks.plain(x) is x else pytest.fail("a traced number was changed"))(1.0)


RANGES = {
    "positive": (checks.positive, [1e-9, 3, math.inf], [0, -1.0, math.nan], "is not positive"),
    "not_negative": (checks.not_negative, [0, 2.5, math.inf], [-1e-9, math.nan], "is negative or not a number"),
    "finite": (checks.finite, [0, -2.5, 1e30], [math.inf, -math.inf, math.nan], "is not finite"),
    "between_zero_and_one": (checks.between_zero_and_one, [0, 0.5, 1], [-0.1, 1.1, math.nan], "lies outside"),
}


@pytest.mark.parametrize("name", RANGES)
def test_ranges(name, unchecked):
    """The bounds and what lies beyond; the error names the argument and its value; traced numbers pass."""
    check, inside, outside, message = RANGES[name]
    for x in inside:
        check(x=x, y=jnp.asarray(x, jnp.float32))
    for x in outside:
        fails(ValueError, f"^y={x} {message}", check, x=inside[0], y=x)
        jax.jit(lambda x: check(x=x))(x)
    fails(TypeError, "x='1' is not a number", check, x="1")


def test_whole(unchecked):
    """Of a whole type, and large enough."""
    checks.whole(at_least=0, a=0, b=np.int64(7))
    fails(ValueError, "a=1 is below 2", checks.whole, at_least=2, a=1)
    for value in (2.0, "2", None):
        fails(TypeError, f"a={value!r} is not a whole number: pass an int", checks.whole, at_least=0, a=value)


def test_counts(unchecked):
    """Whole and at least 1."""
    checks.counts(a=1, b=np.int32(7))
    for value in (0, -3, 1.0, "1", None, [1]):
        with pytest.raises(ValueError, match=r"^b=.* is not a positive whole number"):
            checks.counts(a=1, b=value)


def test_seeds(unchecked):
    """Whole numbers that every library beneath takes: from 0 to 2**31 - 1."""
    checks.seed(seed=0, other=2**31 - 1)
    fails(ValueError, "seed=-1 is below 0", checks.seed, seed=-1)
    fails(ValueError, r"seed=2147483648 is not below 2\*\*31", checks.seed, seed=2**31)
    fails(TypeError, r"seed=1\.5 is not a whole number", checks.seed, seed=1.5)
