"""The algorithms' configurations and optimizers."""

import dataclasses
import functools
import math

import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import IMPACT, IMPALA, PPO
from tests.algorithms.problems import close


def adam(gradients):
    """Steps of Adam at a learning rate of 0.1, with epsilon 1e-5."""
    first, second = np.zeros(3), np.zeros(3)
    for t, gradient in enumerate(gradients, 1):
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        yield 0.1 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-5)


def rmsprop(gradients):
    """Steps of RMSProp at a learning rate of 0.1, with decay 0.9 and epsilon 0.3."""
    square = np.zeros(3)
    for gradient in gradients:
        square = 0.9 * square + 0.1 * gradient**2
        yield 0.1 * gradient / np.sqrt(square + 0.3)


@pytest.mark.parametrize("max_norm", [None, 0.5, 100.0])
@pytest.mark.parametrize(
    ("algorithm", "steps"), [(PPO, adam), (IMPACT, adam), (functools.partial(IMPALA, decay=0.9, epsilon=0.3), rmsprop)]
)
def test_optimizer_transcription(algorithm, steps, max_norm):
    optimizer = algorithm(learning_rate=0.1, max_gradient_norm=max_norm).optimizer()
    params = np.array([1.0, -2.0, 0.0])
    got, opt_state = jnp.asarray(params), optimizer.init(jnp.asarray(params))
    gradients = np.array([[3.0, -4.0, 1e-5], [0.1, 0.2, 1e-5]])
    cut = [gradient * min(1.0, (max_norm or math.inf) / np.linalg.norm(gradient)) for gradient in gradients]
    for gradient, step in zip(gradients, steps(cut), strict=True):
        updates, opt_state = optimizer.update(jnp.asarray(gradient), opt_state, got)
        got, params = optax.apply_updates(got, updates), params - step
        close(got, params, 1e-4)


BOUNDS = ("clip", "clip_high", "value_clip", "value_loss_clip", "kl_target", "max_gradient_norm")
POSITIVE = (*BOUNDS, "learning_rate", "epsilon")
COUNTS = ("epochs", "minibatch_size")


@pytest.mark.parametrize("algorithm", [PPO, IMPALA, IMPACT])
@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        *((name, value, ValueError, "is not positive") for name in POSITIVE for value in (0, -1)),
        *((name, value, ValueError, "is not a positive whole") for name in COUNTS for value in (0, -1, 2.5, None)),
        ("clip", math.nan, ValueError, "is not positive"),
        ("learning_rate", math.nan, ValueError, "is not positive"),
        ("learning_rate", "1e-3", TypeError, "is not a number"),
        *((n, v, ValueError, "is negative") for n in ("rho_clip", "c_clip", "pg_rho_clip") for v in (-0.1, math.nan)),
        *(
            (n, v, ValueError, r"lies outside \[0, 1\]")
            for n in ("discount", "lambda_", "decay")
            for v in (-0.1, 1.1, math.nan)
        ),
        *(("target_rho", value, ValueError, "is below 1") for value in (0.99, 0, math.nan)),
        ("kl_coefficient", -0.1, ValueError, "is negative"),
        ("kl_coefficient", math.nan, ValueError, "is negative or NaN"),
        ("entropy_coefficient", math.nan, ValueError, "is not finite"),
        ("entropy_coefficient", "x", TypeError, "is not a number"),
        ("value_coefficient", -1, ValueError, "is negative"),
        ("value_coefficient", math.inf, ValueError, "is not finite"),
        *((name, None, TypeError, "is not a number") for name in ("clip", "learning_rate", "discount")),
    ],
)
def test_configuration_errors(algorithm, name, value, error, message, unchecked):
    """Found when the configuration is made; the error names the field and its value."""
    if name in {field.name for field in dataclasses.fields(algorithm)}:
        with pytest.raises(error, match=f"^{name}={value!r} {message}"):
            algorithm(**{name: value})


@pytest.mark.parametrize("algorithm", [PPO, IMPALA, IMPACT])
def test_configuration_limits(algorithm):
    """The ends of the ranges are allowed, and None where there is a bound to lift."""
    limits = {"lambda_": 0.0, "decay": 1, "rho_clip": 0, "c_clip": math.inf, "pg_rho_clip": 0.0, "target_rho": 1}
    limits |= {"discount": 1.0, "epochs": 1, **dict.fromkeys(("value_clip", "value_loss_clip", "max_gradient_norm"))}
    known = {field.name for field in dataclasses.fields(algorithm)}
    algorithm(**{name: value for name, value in limits.items() if name in known})
    algorithm(discount=0, lambda_=1)


@pytest.mark.parametrize("algorithm", [PPO, IMPALA, IMPACT])
def test_the_learning_rate_may_be_a_schedule(algorithm):
    """The second step is half as long as the first, up to what the optimizer remembers."""
    steps = []
    for schedule in (0.1, optax.piecewise_constant_schedule(0.1, {1: 0.5})):
        optimizer = algorithm(learning_rate=schedule).optimizer()
        state = optimizer.init(jnp.ones(2))
        _, state = optimizer.update(jnp.ones(2), state)
        steps.append(optimizer.update(jnp.ones(2), state)[0])
    np.testing.assert_allclose(steps[1], steps[0] / 2, rtol=1e-6)
