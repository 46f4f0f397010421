"""V-trace, against its definition as a sum of products and numbers worked by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import gae, global_ratio_cap, vtrace
from tests.close import equal
from tests.test_returns import sample


def log_ratios(shape, seed=5):
    return np.random.default_rng(seed).normal(size=shape, scale=0.7)


def vtrace_definition(
    reward, discount, value, log_ratio, *, lambda_=1.0, rho_clip=1.0, c_clip=1.0, pg_rho_clip=1.0, cap=None, valid=None
):
    """The paper's Eq. 1, a sum of products, with lambda, a cap and steps that are no transition."""
    ratio, steps = np.exp(log_ratio), len(reward)
    cap = np.full(reward.shape, np.inf) if cap is None else cap
    valid = np.ones(reward.shape, bool) if valid is None else valid
    target, advantage, q_estimate = value.copy(), np.zeros(reward.shape), value[:-1].copy()
    for t in range(steps):
        for k in range(t, steps):
            weight = np.ones(reward.shape[1:])
            for i in range(t, k):
                weight = weight * discount[i] * lambda_ * np.minimum(ratio[i], c_clip) * valid[i]
            rho = np.minimum(np.minimum(ratio[k], rho_clip), cap[k]) * valid[k]
            target[t] += weight * rho * (reward[k] + discount[k] * value[k + 1] - value[k])
    for t in range(steps):
        bootstrap = lambda_ * target[t + 1] + (1 - lambda_) * value[t + 1]
        rho = np.minimum(np.minimum(ratio[t], pg_rho_clip), cap[t]) * valid[t]
        advantage[t] = rho * (reward[t] + discount[t] * bootstrap - value[t])
        q_estimate[t] = np.where(valid[t], reward[t] + discount[t] * bootstrap, value[t])
    return target[:-1], advantage, q_estimate


CLIPS = [
    {},
    {"lambda_": 0.0},
    {"lambda_": 0.6},
    {"rho_clip": 2.0},
    {"c_clip": 0.5},
    {"pg_rho_clip": 0.7},
    {"lambda_": 0.9, "rho_clip": 1.3, "c_clip": 0.8, "pg_rho_clip": 2.5},
    {"lambda_": 1, "rho_clip": math.inf, "c_clip": math.inf, "pg_rho_clip": math.inf},
]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("shape", "bounded"),
    [((5,), ()), ((9, 2), ("ratio_cap",)), ((9, 2), ("valid",)), ((8, 2), ("ratio_cap", "valid"))]
    + [(shape, ("ratio_cap", "valid")) for shape in [(1, 3), (7, 2, 3), (4, 0), (0, 2)]],
)
def test_vtrace_definition(shape, bounded):
    """The recurrence equals the sum over k, under all clips, caps and masks, for any batch shape."""
    reward, discount, value, valid = sample(shape)
    log_ratio, cap = log_ratios(shape), np.random.default_rng(6).uniform(1.0, 2.0, size=shape)
    cap, valid = cap if "ratio_cap" in bounded else None, valid if "valid" in bounded else None
    arrays = (reward, discount, value, log_ratio)
    with jax.enable_x64(True):
        got = jax.jit(lambda *a: [vtrace(*a[:4], ratio_cap=a[4], valid=a[5], **clips) for clips in CLIPS])(
            *arrays, cap, valid
        )
    for found, clips in zip(got, CLIPS, strict=True):
        expected = vtrace_definition(*arrays, cap=cap, valid=valid, **clips)
        for x, y in zip(found, expected, strict=True):
            assert (x.shape, x.dtype) == (shape, jnp.float64)
            np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


# reward 1, 2, 3; gamma 1/2; value 2, 4, 8, 16, so that delta = 1 + 2 - 2, 2 + 4 - 4, 3 + 8 - 8; ratios 2, 1/2, 4.
# x = target - value: x_2 = rho_2 3, x_1 = rho_1 2 + c_1 x_2 / 2, x_0 = rho_0 1 + c_0 x_1 / 2.
VTRACE_CASES = [
    # rho = c = 1, 1/2, 1: x = 1 + 1.75/2, 1 + 3/4, 3; advantage 1 (1 + 5.75/2 - 2), 1/2 (2 + 11/2 - 4), 3 + 8 - 8
    ({}, [3.875, 5.75, 11.0], [1.875, 1.75, 3.0]),
    # rho = 2, 1/2, 4: x = 2 + 4/2, 1 + 12/4, 12; advantage 1 + 8/2 - 2, 1/2 (2 + 20/2 - 4), 3
    ({"rho_clip": math.inf}, [6.0, 8.0, 20.0], [3.0, 4.0, 3.0]),
    # c = 2, 1/2, 4: x = 1 + 1.75, 1 + 3/4, 3
    ({"c_clip": math.inf}, [4.75, 5.75, 11.0], [1.875, 1.75, 3.0]),
    # the first case's advantages before their weight are 1.875, 3.5, 3: times 2, 1/2, 4
    ({"pg_rho_clip": math.inf}, [3.875, 5.75, 11.0], [3.75, 1.75, 12.0]),
    ({"pg_rho_clip": 0.25}, [3.875, 5.75, 11.0], [0.46875, 0.875, 0.75]),
    # c = 1/2, 1/4, 1/2: x = 1 + 1.375/4, 1 + 3/8, 3; V' = V + x / 2
    ({"lambda_": 0.5}, [3.34375, 5.375, 11.0], [1.34375, 1.375, 3.0]),
    # lambda = 0, as c_clip = 0, leaves x = rho delta; but V' is V there, and the target here
    ({"lambda_": 0.0}, [3.0, 5.0, 11.0], [1.0, 1.0, 3.0]),
    ({"c_clip": 0.0}, [3.0, 5.0, 11.0], [1.5, 1.75, 3.0]),
    ({"rho_clip": 0.0}, [2.0, 4.0, 8.0], [1.0, 1.0, 3.0]),
    # the caps bind nothing under clips of 1; in their place rho = 3/2, 1/2, 2: x = 1.5 + 2.5/2, 1 + 6/4, 6
    ({"ratio_cap": [1.5, 1.0, 2.0]}, [3.875, 5.75, 11.0], [1.875, 1.75, 3.0]),
    (
        {"ratio_cap": [1.5, 1.0, 2.0], "rho_clip": math.inf, "pg_rho_clip": math.inf},
        [4.75, 6.5, 14.0],
        [3.375, 2.5, 6.0],  # 3/2 (1 + 6.5/2 - 2), 1/2 (2 + 14/2 - 4), 2 * 3
    ),
    # terminated at the second step: delta_1 = 2 - 4, x = 1 - 1/2, -1, 3
    ({"discount": [0.5, 0.0, 0.5]}, [2.5, 3.0, 11.0], [0.5, -1.0, 3.0]),
    # the second step is a reset: the first bootstraps from the value before it, V_1 = 4
    ({"valid": [True, False, True]}, [3.0, 4.0, 11.0], [1.0, 0.0, 3.0]),
]


@pytest.mark.parametrize(("changed", "target", "advantage"), VTRACE_CASES)
def test_vtrace_by_hand(changed, target, advantage):
    """Three steps; each bound alone."""
    arguments = {
        "reward": jnp.array([1.0, 2.0, 3.0]),
        "discount": jnp.full(3, 0.5),
        "value": jnp.array([2.0, 4.0, 8.0, 16.0]),
        "log_ratio": jnp.log(jnp.array([2.0, 0.5, 4.0])),
    } | {k: jnp.array(v) if isinstance(v, list) else v for k, v in changed.items()}
    got = vtrace(**arguments)
    np.testing.assert_allclose(got.target, target, rtol=1e-6)
    np.testing.assert_allclose(got.advantage, advantage, rtol=1e-6)


def test_the_q_estimate_by_hand():
    """Of the first case the advantages before their weight are 1.875, 3.5 and 3: with the values 3.875, 7.5 and 11."""
    arrays = jnp.array([1.0, 2.0, 3.0]), jnp.full(3, 0.5), jnp.array([2.0, 4.0, 8.0, 16.0])
    got = vtrace(*arrays, jnp.log(jnp.array([2.0, 0.5, 4.0])), pg_rho_clip=0.0)
    np.testing.assert_allclose(got.q_estimate, [3.875, 7.5, 11.0], rtol=1e-6)
    cut = vtrace(*arrays, jnp.zeros(3), valid=jnp.array([True, False, True]))
    np.testing.assert_allclose(cut.q_estimate, [3.0, 4.0, 11.0], rtol=1e-6)


def test_vtrace_on_policy():
    """At ratio 1 the advantage is gae's for any lambda, and the target is it and the value."""
    reward, discount, value, valid = sample((8, 3))
    with jax.enable_x64(True):
        arrays, mask = [jnp.asarray(x) for x in (reward, discount, value)], jnp.asarray(valid)
        zeros = jnp.zeros((8, 3))
        for lambda_ in (0.0, 0.3, 0.95, 1.0):
            for valid in (None, mask):
                got, expected = (
                    vtrace(*arrays, zeros, lambda_=lambda_, valid=valid),
                    gae(*arrays, lambda_=lambda_, valid=valid),
                )
                np.testing.assert_allclose(got.advantage, expected, rtol=1e-12, atol=1e-12)
                np.testing.assert_allclose(got.target, expected + arrays[2][:-1], rtol=1e-12, atol=1e-12)


@pytest.mark.slow
def test_the_global_cap_is_inert_under_the_default_clips():
    """It is never below rho >= 1, so it binds nothing at 1, to the bit; it does where there are no clips."""
    arrays = [jnp.asarray(x, jnp.float32) for x in sample((7, 4))[:3]]
    logs = jnp.asarray(log_ratios((3, 7, 4)), jnp.float32) + 0.5
    clipped = jax.jit(lambda x, cap: vtrace(*arrays, x, ratio_cap=cap))
    free = jax.jit(lambda x, cap: vtrace(*arrays, x, ratio_cap=cap, rho_clip=math.inf, pg_rho_clip=math.inf))
    unbounded = jnp.full((7, 4), jnp.inf)
    for held, rho in ((logs[:1], 1.0), (logs, 1.0), (logs, 1.5), (logs, math.inf)):
        cap = global_ratio_cap(held, rho=rho)
        equal(clipped(logs[0], cap), clipped(logs[0], unbounded))
        got, uncapped = free(logs[0], cap), free(logs[0], unbounded)
        if len(held) == 1 or rho == math.inf:  # a sole policy's cap is its own ratio, or above it
            equal(got, uncapped)
        else:
            assert all(np.mean(one != other) > 0.2 for one, other in zip(got, uncapped, strict=True))


def test_actions_of_probability_zero_carry_nothing():
    """A log-ratio of -inf: the target there is the value, the advantage zero, and no trace crosses."""
    reward, discount, value = (jnp.asarray(x, jnp.float32) for x in sample((5, 1))[:3])
    log_ratio = jnp.zeros((5, 1)).at[2].set(-jnp.inf)
    got = vtrace(reward, discount, value, log_ratio)
    np.testing.assert_allclose(got.target[2], value[2], rtol=1e-6)
    np.testing.assert_allclose(got.advantage[2], 0.0, atol=1e-6)
    alone = vtrace(reward[:2], discount[:2], value[:3], log_ratio[:2])
    np.testing.assert_allclose(got.target[:2], alone.target, rtol=1e-6)


@pytest.mark.parametrize("cap", [2, 1.5, np.float64(1.5), jnp.float32(1.5)])
def test_vtrace_takes_a_constant_cap(cap):
    """A number, of whatever library, is an array full of it."""
    arrays = [jnp.asarray(x, jnp.float32) for x in (*sample((5, 2))[:3], log_ratios((5, 2)) + 0.5)]
    free = {"rho_clip": math.inf, "pg_rho_clip": math.inf}
    expected = vtrace(*arrays, ratio_cap=jnp.full((5, 2), float(cap)), **free)
    equal(vtrace(*arrays, ratio_cap=cap, **free), expected)
