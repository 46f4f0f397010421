"""What `gae` and `vtrace` refuse, and what the error says."""

import math

import jax
import jax.numpy as jnp
import pytest

from stellaris import gae, vtrace


def arguments_of(function):
    """Zeros of three steps and two environments, for `gae` or `vtrace`."""
    x = jnp.zeros((3, 2))
    return {"reward": x, "discount": x, "value": jnp.zeros((4, 2))} | ({"log_ratio": x} if function is vtrace else {})


def raises(error, message, function, arguments):
    """Called as it is, and while it is traced by `jit`."""
    arrays = {k: v for k, v in arguments.items() if isinstance(v, jax.Array)}
    rest = {k: v for k, v in arguments.items() if k not in arrays}
    with pytest.raises(error, match=message):
        function(**arguments)
    with pytest.raises(error, match=message):
        jax.jit(lambda arrays: function(**arrays, **rest))(arrays)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": jnp.float32(0)}, r"reward has shape \(\): expected \[T, \.\.\.\]"),
        (
            {"value": jnp.zeros((3, 2))},
            r"value has shape \(3, 2\): expected \(4, 2\), one row more than reward \(3, 2\)",
        ),
        ({"value": jnp.zeros((4, 1))}, r"value has shape \(4, 1\): expected \(4, 2\)"),
        ({"discount": jnp.zeros((2, 2))}, r"discount has shape \(2, 2\): expected reward's \(3, 2\)"),
        ({"valid": jnp.zeros(3, bool)}, r"valid has shape \(3,\): expected reward's \(3, 2\)"),
        ({"lambda_": -0.1}, r"lambda_=-0\.1 lies outside \[0, 1\]"),
        ({"lambda_": 1.1}, r"lambda_=1\.1 lies outside \[0, 1\]"),
        ({"lambda_": float("nan")}, r"lambda_=nan lies outside \[0, 1\]"),
    ],
)
def test_errors(changed, message, unchecked):
    """Without the run-time type checks, as a user calls it, an error names the argument and its value."""
    for function in (gae, vtrace):
        raises(ValueError, message, function, arguments_of(function) | changed)


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"log_ratio": jnp.zeros(2)}, r"log_ratio has shape \(2,\): expected reward's \(3, 2\)"),
        ({"ratio_cap": jnp.ones((4, 2))}, r"ratio_cap has shape \(4, 2\): expected reward's \(3, 2\)"),
        ({"rho_clip": -0.5}, r"rho_clip=-0\.5 is negative"),
        ({"c_clip": -1}, "c_clip=-1 is negative"),
        ({"pg_rho_clip": -math.inf}, "pg_rho_clip=-inf is negative"),
        ({"c_clip": math.nan}, "c_clip=nan is negative or not a number"),
    ],
)
def test_vtrace_errors(changed, message, unchecked):
    """Those that only V-trace has."""
    raises(ValueError, message, vtrace, arguments_of(vtrace) | changed)


@pytest.mark.parametrize("function", [gae, vtrace])
@pytest.mark.parametrize("name", ["reward", "discount", "value", "log_ratio", "ratio_cap"])
def test_integers(function, name, unchecked):
    """Integers where floats are due would be rounded somewhere; the error names the argument and the type."""
    if function is gae and name in ("log_ratio", "ratio_cap"):
        return
    arguments = arguments_of(function)
    shape = arguments[name].shape if name in arguments else (3, 2)
    message = f"{name} has dtype int32: expected floating point"
    raises(TypeError, message, function, arguments | {name: jnp.zeros(shape, jnp.int32)})


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"reward": [[0.0, 0.0]] * 3}, "reward is a list: expected an array"),
        ({"valid": [[True, True]] * 3}, "valid is a list: expected an array"),
        ({"lambda_": "0.9"}, "lambda_='0.9' is not a number"),
        ({"lambda_": None}, "lambda_=None is not a number"),
        ({"lambda_": jnp.ones(3)}, r"lambda_ has shape \(3,\): expected one number"),
    ],
)
def test_what_is_no_array_or_no_number(changed, message, unchecked):
    """The error names the argument."""
    for function in (gae, vtrace):
        with pytest.raises(TypeError, match=f"^{message}"):
            function(**(arguments_of(function) | changed))


@pytest.mark.parametrize("name", ["rho_clip", "c_clip", "pg_rho_clip"])
def test_no_clip_is_infinity(name, unchecked):
    """None, as elsewhere, is an error that names the clip."""
    with pytest.raises(TypeError, match=f"^{name}=None is not a number"):
        vtrace(**arguments_of(vtrace), **{name: None})
