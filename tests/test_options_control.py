"""The tables of `docs/options-control.md`: their calls compute what those trainers compute."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import stellaris
from tests.option_tables import VALID, B, T, calls_of, defaults_of, named, normal, policies, rows_of

ROWS = rows_of("options-control.md")
CALLS = calls_of(ROWS)

_random = np.random.default_rng(1)
_normal = functools.partial(normal, _random)
_log_mu, _log_target, _log_pi = policies(_random)
_valid = VALID
_reward, _value = _normal(T, B), _normal(T + 1, B)
_discount = jnp.asarray(0.9 * (_random.uniform(size=(T, B)) > 0.2), jnp.float32)
#: The page's notation, and numbers for what it does not give.
NAMES = {name: getattr(stellaris, name) for name in stellaris.__all__ if name[0].islower()} | {
    **{name: getattr(jnp, name) for name in ("where", "exp", "sum", "mean", "std", "minimum", "inf")},
    "log_pi": _log_pi,
    "log_mu": _log_mu,
    "l": _log_pi - _log_mu,
    "t": _log_target - _log_mu,
    "A": _normal(T, B),
    "v": 4.0 * _normal(T, B),
    "target": _normal(T, B),
    "old_value": 4.0 * _normal(T, B),
    "reward": _reward,
    "discount": _discount,
    "value": _value,
    "VTrace": stellaris.vtrace(_reward, _discount, _value, _log_target - _log_mu),
    "valid": _valid,
    "loss": _normal(T, B),
    "mean_kl": 0.03,
    "version": 4,
    "step_version": jnp.array([[4, 3, 1, 2, 4, 0]] * T),
    "begun": 40,
    "batch": 16,
    "max_staleness": 4,
}
#: Clips that separate the data, where a project's default does not.
GIVEN = {"vtrace_c": 0.8, "vtrace_rho": 1.2, "vtrace_clip_rho_threshold": 1.2, "vtrace_clip_pg_rho_threshold": 0.9}
GIVEN |= {"vf_clip_param": 3.0, "max_policy_lag": 3}


def evaluate(project: str, call: str, log_pi=None):
    """The value of the call, for the policy that learns as above or for another one."""
    own = [row for row in ROWS if row[0] == project and f"`{call}`" in row[1][1]]
    names = NAMES | defaults_of(ROWS, project) | defaults_of(own, project) | GIVEN
    if log_pi is not None:
        names |= {"log_pi": log_pi, "l": log_pi - _log_mu}
    return eval(call, names)


@pytest.mark.parametrize(("project", "option", "call"), CALLS)
def test_a_call_of_the_table_runs(project: str, option: str, call: str) -> None:
    """On one batch; the numbers are finite."""
    if call.startswith("imposed"):
        pytest.skip("a schedule of the lab")
    assert all(np.isfinite(np.asarray(x)).all() for x in jax.tree.leaves(evaluate(project, call)))


def numbers(name: str):
    return np.asarray(NAMES[name], np.float64)


def clipped(ratio, advantage, low, high):
    return -np.minimum(ratio * advantage, np.clip(ratio, low, high) * advantage)


def v_trace(log_ratio, rho, c, pg):
    """Targets and advantages, backward in time as in the trainers' loops."""
    ratio, value, target = np.exp(log_ratio), numbers("value"), np.zeros((T + 1, B))
    target[T] = value[T]
    advantage = np.zeros((T, B))
    for i in reversed(range(T)):
        reward, discount = numbers("reward")[i], numbers("discount")[i]
        delta = np.minimum(ratio[i], rho) * (reward + discount * value[i + 1] - value[i])
        advantage[i] = np.minimum(ratio[i], pg) * (reward + discount * target[i + 1] - value[i])
        target[i] = value[i] + delta + discount * np.minimum(ratio[i], c) * (target[i + 1] - value[i + 1])
    return target[:T], advantage


def generalized_advantages(lambda_):
    value, found = numbers("value"), np.zeros((T + 1, B))
    for i in reversed(range(T)):
        discount = numbers("discount")[i]
        delta = numbers("reward")[i] + discount * value[i + 1] - value[i]
        found[i] = delta + discount * lambda_ * found[i + 1]
    return found[:T]


def appo():
    """The ratio to the target policy, from two ratios to the policy that sampled."""
    between = np.clip(np.exp(numbers("log_mu") - (numbers("t") + numbers("log_mu"))), 0.0, 2.0)
    _, advantage = v_trace(numbers("t"), 1.0, 1.0, 1.0)
    return clipped(between * np.exp(numbers("l")), advantage, 0.6, 1.4)


def appo_without_weight():
    between = np.minimum(np.exp(-numbers("t")), 2.0)
    return clipped(between * np.exp(numbers("l")), numbers("A"), 0.8, 1.2)


def sample_factory_value_loss():
    value, old, target = numbers("v"), numbers("old_value"), numbers("target")
    return 0.5 * np.maximum((value - target) ** 2, (old + np.clip(value - old, -1.0, 1.0) - target) ** 2)


def squares(name: str):
    return (numbers(name) - numbers("target")) ** 2


def there(x):
    return x[np.asarray(_valid)]


log_ratio, to_target = numbers("l"), numbers("t")
#: What the trainers' code computes, by trainer, the start of the option's cell and the number of the call in the row.
ORACLES = {
    ("RLlib", "`clip_param=0.3`", 0): lambda: clipped(np.exp(log_ratio), numbers("A"), 0.7, 1.3),
    ("RLlib", "`vf_clip_param=10.0`", 0): lambda: np.clip(squares("v"), 0.0, 3.0),
    ("RLlib", "`use_kl_loss=True`", 0): lambda: 0.2 * 1.5,
    ("RLlib", "`vtrace_clip_rho_threshold=1.0`", 0): lambda: v_trace(log_ratio, 1.2, 1.0, 0.9),
    ("RLlib", "the policy's loss", 0): lambda: -numbers("log_pi") * numbers("A"),
    ("RLlib", "`vf_loss_coeff=0.5`", 0): lambda: 0.25 * squares("v"),
    ("RLlib", "V-trace of APPO", 0): lambda: v_trace(to_target, 1.2, 1.0, 0.9),
    ("RLlib", "`clip_param=0.4`", 0): appo,
    ("RLlib", "`target_worker_clipping=2.0`", 0): appo_without_weight,
    ("Sample Factory", "`ppo_clip_ratio=0.1`", 0): lambda: clipped(np.exp(log_ratio), numbers("A"), 1 / 1.1, 1.1),
    ("Sample Factory", "`with_vtrace=False`", 0): lambda: generalized_advantages(0.95),
    ("Sample Factory", "`with_vtrace=True`", 0): lambda: v_trace(log_ratio, 1.2, 0.8, 1.2),
    ("Sample Factory", "normalised advantages", 0): lambda: (
        (numbers("A") - there(numbers("A")).mean()) / there(numbers("A")).std(ddof=1)
    ),
    ("Sample Factory", "`ppo_clip_value=1.0`", 0): sample_factory_value_loss,
    ("Sample Factory", "`max_policy_lag=1000`", 0): lambda: numbers("loss")[
        np.asarray(_valid) & (4 - numbers("step_version") < 3)
    ].mean(),
    ("Cleanba", "`clip_coef=0.1`", 0): lambda: clipped(np.exp(log_ratio), numbers("A"), 0.9, 1.1),
    ("Cleanba", "`gae_lambda=0.95`", 0): lambda: generalized_advantages(0.95),
    ("Cleanba", "the policy's loss", 0): lambda: -there(numbers("log_pi") * numbers("A")).sum(),
    ("Cleanba", "`vf_coef=0.5`", 0): lambda: 0.25 * there(squares("v")).sum(),
    ("TorchBeast", "V-trace", 0): lambda: v_trace(log_ratio, 1.0, 1.0, 1.0),
    ("TorchBeast", "the policy's loss", 0): lambda: -(numbers("log_pi") * numbers("A")).sum(),
    ("TorchBeast", "`baseline_cost=0.5`", 0): lambda: 0.25 * squares("v").sum(),
}


@pytest.mark.parametrize(("project", "start", "number"), ORACLES)
def test_a_call_computes_what_the_trainer_computes(project: str, start: str, number: int) -> None:
    found, expected = evaluate(project, named(ROWS, project, start, number)), ORACLES[project, start, number]()
    if isinstance(expected, tuple):
        found = found[: len(expected)]  # without the estimate of action values
    for one, other in zip(np.atleast_1d(found), np.atleast_1d(expected), strict=True):
        np.testing.assert_allclose(np.asarray(one), other, rtol=2e-5, atol=1e-5)


def test_every_row_with_a_call_of_its_own_is_compared() -> None:
    """Only the bounds of the age, which these trainers lack, are not."""
    compared = {(project, named(ROWS, project, start, number)) for project, start, number in ORACLES}
    assert {call for project, _, call in CALLS if (project, call) not in compared} == {
        "rollout_capacity(version, begun=begun, batch=batch, max_staleness=max_staleness)"
    }


def test_the_data_tell_the_clips_apart() -> None:
    ratio = np.exp(log_ratio)
    assert (ratio < 0.7).any()
    assert ((ratio > 0.9) & (ratio < 1.1)).any()
    assert (ratio > 1.3).any()
    assert (np.exp(-to_target) > 2.0).any()
    assert (squares("v") > 3.0).any()
    assert (numbers("discount") == 0.0).any()


def test_what_rllibs_appended_step_does_to_the_targets() -> None:
    """The example of the page: a third step with a reward and a discount of 0 takes the place of the bootstrap."""
    arrays = (jnp.ones(2), jnp.full(2, 0.9), jnp.array([1.0, 1.0, 10.0]), jnp.zeros(2))
    assert stellaris.vtrace(*arrays).target.tolist() == pytest.approx([10.0, 10.0])
    appended = jnp.append(arrays[0], 0.0), jnp.append(arrays[1], 0.0), jnp.append(arrays[2], 5.0), jnp.zeros(3)
    assert stellaris.vtrace(*appended).target[:2].tolist() == pytest.approx([1.9, 1.0])
