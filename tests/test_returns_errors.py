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


INTEGERS = jnp.zeros((3, 2), jnp.int32)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"reward": jnp.float32(0)}, ValueError, r"reward has shape \(\): expected \[T, \.\.\.\]"),
        (
            {"value": jnp.zeros((3, 2))},
            ValueError,
            r"value has shape \(3, 2\): expected \(4, 2\), one row more than rew",
        ),
        # Time is the last axis of both, as in trainers of language models.
        ({"value": jnp.zeros((3, 3))}, ValueError, r"one row more than reward \(3, 2\); time is .*: transpose both"),
        ({"value": jnp.zeros((5, 2))}, ValueError, r"one row more than reward \(3, 2\)(\n|$)"),
        ({"value": jnp.zeros((4, 1))}, ValueError, r"value has shape \(4, 1\): expected \(4, 2\)"),
        ({"discount": jnp.zeros((2, 2))}, ValueError, r"discount has shape \(2, 2\): expected reward's \(3, 2\)"),
        ({"valid": jnp.zeros(3, bool)}, ValueError, r"valid has shape \(3,\): expected reward's \(3, 2\)"),
        ({"lambda_": -0.1}, ValueError, r"lambda_=-0\.1 lies outside \[0, 1\]"),
        ({"lambda_": 1.1}, ValueError, r"lambda_=1\.1 lies outside \[0, 1\]"),
        ({"lambda_": float("nan")}, ValueError, r"lambda_=nan lies outside \[0, 1\]"),
        ({"reward": INTEGERS}, TypeError, "reward has dtype int32: expected floating point"),
        ({"discount": INTEGERS}, TypeError, "discount has dtype int32: expected floating point"),
        ({"value": jnp.zeros((4, 2), jnp.int32)}, TypeError, "value has dtype int32: expected floating point"),
        ({"reward": [[0.0, 0.0]] * 3}, TypeError, "reward is a list: expected an array"),
        ({"valid": [[True, True]] * 3}, TypeError, "valid is a list: expected an array"),
        ({"lambda_": "0.9"}, TypeError, "lambda_='0.9' is not a number"),
        ({"lambda_": None}, TypeError, "lambda_=None is not a number"),
        ({"lambda_": jnp.ones(3)}, TypeError, r"lambda_ has shape \(3,\): expected one number"),
    ],
)
def test_errors_of_both(changed, error, message, unchecked):
    """Without the run-time type checks, as a user calls it, an error names the argument and its value."""
    for function in (gae, vtrace):
        raises(error, message, function, arguments_of(function) | changed)


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"log_ratio": jnp.zeros(2)}, ValueError, r"log_ratio has shape \(2,\): expected reward's \(3, 2\)"),
        ({"ratio_cap": jnp.ones((4, 2))}, ValueError, r"ratio_cap has shape \(4, 2\): expected reward's \(3, 2\)"),
        ({"rho_clip": -0.5}, ValueError, r"rho_clip=-0\.5 is negative"),
        ({"c_clip": -1}, ValueError, "c_clip=-1 is negative"),
        ({"pg_rho_clip": -math.inf}, ValueError, "pg_rho_clip=-inf is negative"),
        ({"c_clip": math.nan}, ValueError, "c_clip=nan is negative or NaN"),
        ({"log_ratio": INTEGERS}, TypeError, "log_ratio has dtype int32: expected floating point"),
        ({"ratio_cap": INTEGERS}, TypeError, "ratio_cap has dtype int32: expected floating point"),
        # without a clip is infinity
        *(({name: None}, TypeError, f"^{name}=None is not a number") for name in ("rho_clip", "c_clip", "pg_rho_clip")),
    ],
)
def test_errors_of_vtrace(changed, error, message, unchecked):
    raises(error, message, vtrace, arguments_of(vtrace) | changed)
