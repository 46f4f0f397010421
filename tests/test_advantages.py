"""Advantages by group against a loop over the groups, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris import group_relative_advantage, leave_one_out_advantage
from tests.close import close


def batch(seed, size=24, groups=5):
    """Rewards, groups that are named by large and negative integers, and validity."""
    random = np.random.default_rng(seed)
    names = random.integers(-(2**31), 2**31, size=groups)
    return random.normal(size=size), names[random.integers(groups, size=size)], random.uniform(size=size) < 0.8


def by_group(reward, group, valid, advantage):
    """Calls `advantage` with the valid rewards of each group, as the papers write it."""
    found = np.zeros(len(reward))
    for name in set(group.tolist()):
        members = [i for i in range(len(reward)) if group[i] == name and valid[i]]
        if len(members) > 1:
            found[members] = advantage([reward[i] for i in members])
    return found


def grpo(rewards):
    return (np.array(rewards) - np.mean(rewards)) / np.std(rewards, ddof=1)


def rloo(rewards):
    return [r - np.mean(rewards[:i] + rewards[i + 1 :]) for i, r in enumerate(rewards)]


ESTIMATES = [
    (lambda r, g, v: group_relative_advantage(r, g, valid=v, epsilon=0.0), grpo),
    (lambda r, g, v: group_relative_advantage(r, g, valid=v, divide_by_std=False), lambda r: r - np.mean(r)),
    (lambda r, g, v: leave_one_out_advantage(r, g, valid=v), rloo),
]


@settings(max_examples=20, deadline=None, derandomize=True, database=None)
@given(st.integers(0, 2**31))
def test_a_loop_over_groups(seed):
    """Counts valid members only, even if the others' rewards are NaN, in any order and inside `jit`."""
    reward, group, valid = batch(seed)
    for function, expected in ESTIMATES:
        with jax.enable_x64(True):
            got = jax.jit(function)(jnp.where(valid, reward, jnp.nan), group, valid)
        close(got, by_group(reward, group, valid, expected), 1e-9)


@pytest.mark.parametrize(("function", "expected"), ESTIMATES)
def test_an_axis_of_members(function, expected):
    """`[groups, members]`, with the groups broadcast, is each row by itself; and `vmap` maps whole batches."""
    reward = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    group = jnp.broadcast_to(jnp.arange(3)[:, None], (3, 4))
    got = function(reward, group, None)
    close(got, np.stack([expected(row.tolist()) for row in reward]), 1e-5)
    mapped = jax.vmap(lambda r: function(r, jnp.zeros(4, int), None))(reward)
    close(mapped, got, 1e-5)


def test_groups_without_a_difference():
    """Equal rewards and single members have the advantage 0, and nothing is NaN on the way, even without epsilon."""
    reward, group = jnp.array([0.1, 0.1, 0.1, 7.0]), jnp.array([0, 0, 0, 1])
    with jax.debug_nans(True):
        for function, _ in ESTIMATES:
            close(function(reward, group, jnp.ones(4)), np.zeros(4), 1e-2 if function is ESTIMATES[0][0] else 1e-6)
            close(function(jnp.ones(4), group, jnp.zeros(4)), np.zeros(4))
            assert function(jnp.zeros(0), jnp.zeros(0, int), None).shape == (0,)


def test_epsilon():
    """Added to the deviation: two rewards at a distance of 2 deviate by the root of 2."""
    reward, group = jnp.array([-1.0, 1.0]), jnp.zeros(2, int)
    close(group_relative_advantage(reward, group, epsilon=1.0), np.array([-1.0, 1.0]) / (1 + 2**0.5), 1e-6)


def test_nan_rewards_show():
    """In their group, and in no other."""
    reward, group = jnp.array([jnp.nan, 1.0, 2.0, 4.0]), jnp.array([0, 0, 1, 1])
    for function, _ in ESTIMATES:
        assert np.isnan(function(reward, group, None)).tolist() == [True, True, False, False]
        assert np.isfinite(function(reward, group, jnp.isfinite(reward))).all()


@pytest.mark.parametrize(("function", "_"), ESTIMATES)
def test_types_and_gradients(function, _):
    """The rewards' type, computed in float32 at least; a constant of the loss."""
    reward, group = jnp.asarray(np.random.default_rng(1).normal(size=8), jnp.bfloat16), jnp.arange(8) // 4
    got = function(reward, group, None)
    assert got.dtype == jnp.bfloat16
    close(got.astype(jnp.float32), function(reward.astype(jnp.float32), group, None), 2.0**-7)
    gradient = jax.grad(lambda r: jnp.sum(function(r, group, None) ** 2))(jnp.arange(8.0))
    np.testing.assert_array_equal(gradient, np.zeros(8))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"reward": jnp.zeros(2, int)}, TypeError, "reward has dtype int32: expected floating point"),
        ({"group": jnp.zeros(2)}, TypeError, "group has dtype float32: expected integers"),
        ({"group": np.array([0, 2**31])}, ValueError, "group=2147483648 does not fit into int32"),
        ({"group": jnp.zeros(3, int)}, ValueError, r"group has shape \(3,\): expected reward's \(2,\)"),
        ({"valid": jnp.ones(3)}, ValueError, r"valid has shape \(3,\): expected reward's \(2,\)"),
        ({"epsilon": -1.0}, ValueError, "epsilon=-1.0 is negative"),
    ],
)
def test_errors(changed, error, message, unchecked):
    """Each names the argument."""
    arguments = {"reward": jnp.zeros(2), "group": jnp.zeros(2, int)} | changed
    for function in (group_relative_advantage, leave_one_out_advantage):
        if "epsilon" not in changed or function is group_relative_advantage:
            with pytest.raises(error, match=message):
                function(**arguments)
