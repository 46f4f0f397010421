"""What the losses refuse, and what the error says."""

import math

import jax
import jax.numpy as jnp
import pytest

from stellaris import (
    adapt_kl_coefficient,
    approximate_kl,
    decoupled_ppo_loss,
    impact_loss,
    impala_loss,
    oapl_loss,
    ppo_loss,
    ppo_penalty_loss,
    sapo_loss,
    truncated_policy_gradient_loss,
    value_loss,
)


def test_adapted_coefficient_errors():
    """An option out of its range is named, with its value."""
    for name, values in {
        "target": (0.0, math.nan),
        "tolerance": [0.9],
        "increase": [0.5],
        "decrease": (0, 1.1),
    }.items():
        for value in values:
            with pytest.raises(ValueError, match=f"{name}={value}"):
                adapt_kl_coefficient(1.0, 0.01, **{name: value})
    adapt_kl_coefficient(1.0, 0.01, tolerance=1, increase=1, decrease=1)


ZEROS = jnp.zeros((2, 3))
REQUIRED = {
    ppo_loss: ["log_ratio", "advantage"],
    ppo_penalty_loss: ["log_ratio", "advantage", "kl"],
    approximate_kl: ["log_ratio"],
    impala_loss: ["log_prob", "advantage"],
    truncated_policy_gradient_loss: ["log_prob", "log_ratio", "advantage"],
    impact_loss: ["log_ratio", "target_log_ratio", "advantage"],
    decoupled_ppo_loss: ["log_ratio", "proximal_log_ratio", "advantage"],
    sapo_loss: ["log_ratio", "advantage"],
    oapl_loss: ["log_ratio", "advantage"],
    value_loss: ["value", "target"],
}


def raises(error, message, loss, arguments):
    """Called as it is, and while it is traced by `jit`."""
    options = {"coefficient": 1.0} if loss in (ppo_penalty_loss, oapl_loss) else {}
    options |= {k: v for k, v in arguments.items() if not isinstance(v, jax.Array)}
    arrays = {k: v for k, v in arguments.items() if k not in options}
    with pytest.raises(error, match=message):
        loss(**arrays, **options)
    with pytest.raises(error, match=message):
        jax.jit(lambda arrays: loss(**arrays, **options))(arrays)


OUT_OF_RANGE = [
    (ppo_loss, {"advantage": jnp.zeros(3)}, r"advantage has shape \(3,\): expected log_ratio's \(2, 3\)"),
    (ppo_loss, {"ratio_cap": jnp.ones(3)}, r"^ratio_cap has shape \(3,\): expected log_ratio's \(2, 3\)"),
    (ppo_loss, {"clip": 0.0}, r"clip=0\.0 is not positive"),
    (ppo_loss, {"clip": jnp.full(3, 0.2)}, r"clip has shape \(3,\): expected log_ratio's \(2, 3\)"),
    (ppo_loss, {"clip_high": 0.0}, r"clip_high=0\.0 is not positive"),
    (ppo_loss, {"clip_high": jnp.full((2, 1), 0.2)}, r"clip_high has shape \(2, 1\): expected log_ratio's"),
    (impact_loss, {"clip_high": 0.0}, r"clip_high=0\.0 is not positive"),
    (impact_loss, {"clip": jnp.full(3, 0.2)}, r"clip has shape \(3,\): expected log_ratio's \(2, 3\)"),
    (decoupled_ppo_loss, {"clip_high": math.nan}, "clip_high=nan is not positive"),
    (decoupled_ppo_loss, {"weight": -0.5}, r"weight=-0\.5 is negative or NaN"),
    (decoupled_ppo_loss, {"weight": jnp.ones(2)}, r"weight has shape \(2,\): expected log_ratio's \(2, 3\)"),
    (truncated_policy_gradient_loss, {"ratio_floor": -0.5}, r"ratio_floor=-0\.5 is negative or NaN"),
    (sapo_loss, {"advantage": jnp.zeros(3)}, r"advantage has shape \(3,\): expected log_ratio's \(2, 3\)"),
    (oapl_loss, {"coefficient": 0.0}, r"coefficient=0\.0 is not positive"),
    (oapl_loss, {"coefficient": math.inf}, "coefficient=inf is not finite"),
    (oapl_loss, {"advantage": jnp.zeros(3)}, r"advantage has shape \(3,\): expected log_ratio's"),
    (sapo_loss, {"temperature": 0.0}, r"temperature=0\.0 is not positive"),
    (sapo_loss, {"temperature": math.inf}, "temperature=inf is not finite"),
    (sapo_loss, {"negative_temperature": -1}, "negative_temperature=-1 is not positive"),
    (sapo_loss, {"ratio_cap": jnp.ones(3)}, r"ratio_cap has shape \(3,\): expected log_ratio's \(2, 3\)"),
    (value_loss, {"target": jnp.zeros((2, 1))}, r"target has shape \(2, 1\): expected value's \(2, 3\)"),
    (value_loss, {"old_value": jnp.zeros(6)}, r"old_value has shape \(6,\): expected value's \(2, 3\)"),
    (value_loss, {"clip": -1.0, "old_value": ZEROS}, r"clip=-1\.0 is not positive"),
    (value_loss, {"loss_clip": 0}, "loss_clip=0 is not positive"),
    (value_loss, {"clip": 0.2}, "old_value is None: pass the behaviour policy's values, which clip needs"),
    (value_loss, {"huber": 0.0}, r"huber=0\.0 is not positive"),
    (ppo_loss, {"ratio_cap": 0.0}, r"ratio_cap=0\.0 is not positive"),
    (ppo_penalty_loss, {"kl": jnp.zeros(3)}, r"kl has shape \(3,\): expected log_ratio's \(2, 3\)"),
    (ppo_penalty_loss, {"advantage": jnp.zeros((3, 2))}, r"advantage has shape \(3, 2\)"),
    (ppo_penalty_loss, {"clip": -0.1}, r"clip=-0\.1 is not positive"),
    (impala_loss, {"advantage": jnp.zeros(2)}, r"advantage has shape \(2,\): expected log_prob's \(2, 3\)"),
    (truncated_policy_gradient_loss, {"log_prob": jnp.zeros(2)}, r"log_prob has shape \(2,\)"),
    (truncated_policy_gradient_loss, {"ratio_cap": -1.0}, r"ratio_cap=-1\.0 is not positive"),
    (impact_loss, {"target_log_ratio": jnp.zeros(2)}, r"target_log_ratio has shape \(2,\)"),
    (impact_loss, {"clip": 0}, "clip=0 is not positive"),
    (impact_loss, {"target_rho": 0.5}, r"target_rho=0\.5 is below 1"),
    (decoupled_ppo_loss, {"proximal_log_ratio": jnp.zeros(2)}, r"proximal_log_ratio has shape \(2,\)"),
    (decoupled_ppo_loss, {"ratio_cap": jnp.ones(2)}, r"ratio_cap has shape \(2,\)"),
]
NO_NUMBERS = [
    (ppo_loss, {"clip": None}, "clip=None is not a number"),
    (ppo_loss, {"clip": "0.2"}, "clip='0.2' is not a number"),
    (ppo_penalty_loss, {"clip": jnp.full(3, 0.2), "coefficient": 1.0}, r"clip has shape \(3,\): expected one num"),
    (ppo_loss, {"ratio_cap": "2"}, "ratio_cap='2' is not a number"),
    (decoupled_ppo_loss, {"weight": "1"}, "weight='1' is not a number"),
    (truncated_policy_gradient_loss, {"ratio_floor": None}, "ratio_floor=None is not a number"),
    (truncated_policy_gradient_loss, {"ratio_floor": jnp.ones((2, 3))}, r"ratio_floor has shape \(2, 3\)"),
    (sapo_loss, {"temperature": jnp.ones(3)}, r"temperature has shape \(3,\): expected one number"),
    (impact_loss, {"target_rho": "2"}, "target_rho='2' is not a number"),
    (value_loss, {"huber": "1"}, "huber='1' is not a number"),
    (ppo_loss, {"advantage": [[0.0] * 3] * 2}, "advantage is a list: expected an array"),
]


@pytest.mark.parametrize(
    ("error", "loss", "arguments", "message"),
    [(ValueError, *row) for row in OUT_OF_RANGE] + [(TypeError, *row) for row in NO_NUMBERS],
)
def test_errors(error, loss, arguments, message, unchecked):
    """Without the run-time type checks, as a user calls it and as `jit` traces it: the argument and its value."""
    raises(error, message, loss, dict.fromkeys(REQUIRED[loss], ZEROS) | arguments)


@pytest.mark.parametrize(
    ("loss", "name"),
    [(loss, name) for loss, names in REQUIRED.items() for name in names]
    + [(ppo_loss, "ratio_cap"), (impact_loss, "ratio_cap"), (value_loss, "old_value")]
    + [(ppo_loss, "clip"), (impact_loss, "clip_high"), (decoupled_ppo_loss, "weight")],
)
def test_integers(loss, name, unchecked):
    """Integers where floats are due: the error names the argument and its type."""
    integers = {name: jnp.zeros((2, 3), jnp.int32)}
    message = f"{name} has dtype int32: expected floating point"
    raises(TypeError, message, loss, dict.fromkeys(REQUIRED[loss], ZEROS) | integers)


def test_two_widths_of_a_trust_region_are_no_tuple(unchecked):
    for loss in (ppo_loss, impact_loss, decoupled_ppo_loss):
        arguments = dict.fromkeys(REQUIRED[loss], ZEROS)
        with pytest.raises(TypeError, match="clip is a tuple: pass its half-widths as clip= and clip_high="):
            loss(**arguments, clip=(0.2, 0.28))
    with pytest.raises(TypeError, match=r"ratio_cap is a list: expected a number or an array$"):
        ppo_loss(ZEROS, ZEROS, ratio_cap=[1.0])
