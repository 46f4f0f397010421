"""PPO's configuration and optimizer; what no algorithm's configuration accepts."""

import dataclasses
import math

import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest

import stellaris
from stellaris import PPO
from tests.algorithms.problems import close


@pytest.mark.parametrize("max_norm", [None, 0.5, 100.0])
def test_optimizer_transcription(max_norm):
    """Adam with epsilon 1e-5, on gradients cut to the greatest norm, in plain NumPy."""
    optimizer = PPO(learning_rate=0.1, max_gradient_norm=max_norm).optimizer()
    params = np.array([1.0, -2.0, 0.0])
    got, opt_state = jnp.asarray(params), optimizer.init(jnp.asarray(params))
    first, second = np.zeros(3), np.zeros(3)
    for t, gradient in enumerate(np.array([[3.0, -4.0, 1e-5], [0.1, 0.2, 1e-5]]), 1):
        updates, opt_state = optimizer.update(jnp.asarray(gradient), opt_state, got)
        got = optax.apply_updates(got, updates)
        gradient = gradient * min(1.0, (max_norm or math.inf) / np.linalg.norm(gradient))
        first, second = 0.9 * first + 0.1 * gradient, 0.999 * second + 0.001 * gradient**2
        params = params - 0.1 * (first / (1 - 0.9**t)) / (np.sqrt(second / (1 - 0.999**t)) + 1e-5)
        close(got, params, 1e-4)


def test_configuration_is_a_frozen_value():
    """Equal configurations are one static argument to jit."""
    assert hash(PPO(clip=0.1)) == hash(PPO(clip=0.1))
    assert PPO(clip=0.1) == PPO(clip=0.1) != PPO()
    with pytest.raises(dataclasses.FrozenInstanceError):
        PPO().clip = 0.1


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        *(
            (name, value, "is not positive")
            for name in (
                "learning_rate",
                "clip",
                "value_clip",
                "value_loss_clip",
                "max_gradient_norm",
                "epochs",
                "minibatch_size",
            )
            for value in (0, -1)
        ),
        ("clip", math.nan, "is not positive"),
        ("kl_coefficient", -0.1, "is negative"),
        ("kl_coefficient", math.nan, "is negative or not a number"),
        *(
            (name, value, r"lies outside \[0, 1\]")
            for name in ("discount", "lambda_")
            for value in (-0.1, 1.1, math.nan)
        ),
    ],
)
def test_configuration_errors(name, value, message):
    """Found when the configuration is made; the error names the field and its value."""
    with pytest.raises(ValueError, match=f"^{name}={value} {message}"):
        PPO(**{name: value})


def test_configuration_limits():
    """The ends of the ranges are allowed, and None where there is a bound to lift."""
    PPO(discount=1.0, lambda_=0.0, value_clip=None, value_loss_clip=None, max_gradient_norm=None, epochs=1)
    PPO(discount=0, lambda_=1, clip=1)


@pytest.mark.parametrize(
    ("name", "value", "error", "message"),
    [
        ("entropy_coefficient", math.nan, ValueError, "entropy_coefficient=nan is not finite"),
        ("entropy_coefficient", "x", TypeError, "entropy_coefficient='x' is not a number"),
        ("value_coefficient", -1, ValueError, "value_coefficient=-1 is negative"),
        ("value_coefficient", math.inf, ValueError, "value_coefficient=inf is not finite"),
        ("learning_rate", "1e-3", TypeError, "learning_rate='1e-3' is not a number"),
        *(
            (name, None, TypeError, f"{name}=None is not a number")
            for name in ("clip", "learning_rate", "epochs", "discount")
        ),
    ],
)
def test_configurations_that_make_no_sense(name, value, error, message, monkeypatch):
    """None where there is no bound to lift, NaN, and what is no number."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for algorithm in (PPO, stellaris.IMPALA, stellaris.IMPACT):
        if name in {field.name for field in dataclasses.fields(algorithm)}:
            with pytest.raises(error, match=f"^{message}"):
                algorithm(**{name: value})


@pytest.mark.parametrize("algorithm", [PPO, stellaris.IMPALA, stellaris.IMPACT])
def test_the_learning_rate_may_be_a_schedule(algorithm):
    """The second step is half as long as the first, up to what the optimizer remembers."""
    steps = []
    for schedule in (0.1, optax.piecewise_constant_schedule(0.1, {1: 0.5})):
        optimizer = algorithm(learning_rate=schedule).optimizer()
        state = optimizer.init(jnp.ones(2))
        _, state = optimizer.update(jnp.ones(2), state)
        steps.append(optimizer.update(jnp.ones(2), state)[0])
    np.testing.assert_allclose(steps[1], steps[0] / 2, rtol=1e-6)
