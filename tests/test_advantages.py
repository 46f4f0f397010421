"""Advantages by group against a loop over the groups, and by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris import group_relative_advantage, leave_one_out_advantage, optimal_advantage, optimal_baseline
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


def oapl(rewards):
    return np.array(rewards) - 0.5 * np.log(np.mean(np.exp(np.array(rewards) / 0.5)))


ESTIMATES = [
    (lambda r, g, v: group_relative_advantage(r, g, valid=v, epsilon=0.0), grpo),
    (lambda r, g, v: group_relative_advantage(r, g, valid=v, divide_by_std=False), lambda r: r - np.mean(r)),
    (lambda r, g, v: leave_one_out_advantage(r, g, valid=v), rloo),
    (lambda r, g, v: optimal_advantage(r, g, valid=v, beta=0.5), oapl),
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


@pytest.mark.parametrize("reward", [0.7, 0.1, -3.3])
def test_equal_rewards_in_groups(reward):
    """Exactly: masks and clips depend on the sign of an advantage, and the mean of equal numbers is rounded."""
    for members in (3, 7, 8):
        rewards, group = jnp.full(2 * members, reward), jnp.arange(2 * members) % 2
        for function, _ in ESTIMATES[:3]:
            np.testing.assert_array_equal(function(rewards, group, None), 0.0)


@pytest.mark.slow
@pytest.mark.parametrize(("function", "expected"), ESTIMATES)
def test_an_axis_of_members(function, expected):
    """`[groups, members]`, with the groups broadcast, is each row by itself; and `vmap` maps whole batches."""
    reward = np.random.default_rng(0).normal(size=(3, 4)).astype(np.float32)
    group = jnp.broadcast_to(jnp.arange(3)[:, None], (3, 4))
    got = function(reward, group, None)
    close(got, np.stack([expected(row.tolist()) for row in reward]), 1e-5)
    mapped = jax.vmap(lambda r: function(r, jnp.zeros(4, int), None))(reward)
    close(mapped, got, 1e-5)


@pytest.mark.slow
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


@pytest.mark.slow
@pytest.mark.parametrize(("function", "_"), ESTIMATES)
def test_types_and_gradients(function, _):
    """The rewards' type, computed in float32 at least; a constant of the loss."""
    reward, group = jnp.asarray(np.random.default_rng(1).normal(size=8), jnp.bfloat16), jnp.arange(8) // 4
    got = function(reward, group, None)
    assert got.dtype == jnp.bfloat16
    close(got.astype(jnp.float32), function(reward.astype(jnp.float32), group, None), 2.0**-7)
    gradient = jax.grad(lambda r: jnp.sum(function(r, group, None) ** 2))(jnp.arange(8.0))
    np.testing.assert_array_equal(gradient, np.zeros(8))


@pytest.mark.slow
def test_the_optimal_value_is_between_the_mean_and_the_maximum():
    """The limits of a large and of a small temperature, at rewards whose exponentials overflow."""
    reward, group = jnp.array([0.0, 1.0, 2.0, 9e4, -9e4]), jnp.array([0, 0, 0, 1, 1])
    with jax.debug_nans(True):
        mean, most = optimal_advantage(reward, group, beta=1e6), optimal_advantage(reward, group, beta=1e-3)
    close(mean[:3], np.array([-1.0, 0.0, 1.0]), 1e-4)
    close(most, np.array([-2.0, -1.0, 0.0, 0.0, -18e4]), 1e-2)


@pytest.mark.slow
@given(st.integers(0, 2**31))
@settings(max_examples=10, deadline=None, derandomize=True, database=None)
def test_the_optimal_baseline_has_the_least_variance(seed):
    """Least squares of the gradients `w |g| (R - b)` of each group give the baseline, at any scale of the weights."""
    reward, group, valid = batch(seed)
    random = np.random.default_rng(seed)
    log_ratio, norm = random.normal(size=24), random.exponential(size=24)
    with jax.enable_x64(True):
        call = jax.jit(lambda shift: optimal_baseline(reward, log_ratio + shift, norm, group, valid=valid))
        got = call(0.0)
        close(call(5e3), got, 1e-9)
    for name in set(group.tolist()):
        members = (group == name) & valid
        if members.any():
            size = np.exp(log_ratio[members]) * norm[members]
            expected = np.linalg.lstsq(size[:, None], size * reward[members], rcond=None)[0][0]
            close(got[group == name], np.full(np.sum(group == name), expected), 1e-9)


def test_optimal_baselines_by_hand():
    """Equal weights give the mean; a weight that outweighs all others gives its reward; no weight gives 0."""
    reward, group, ones = jnp.array([1.0, 3.0, 8.0]), jnp.zeros(3, int), jnp.ones(3)
    with jax.debug_nans(True):
        close(optimal_baseline(reward, jnp.full(3, -7.0), ones, group), np.full(3, 4.0))
        close(optimal_baseline(reward, jnp.array([0.0, 1e4, -jnp.inf]), ones, group), np.full(3, 3.0))
        close(optimal_baseline(reward, jnp.array([0.0, jnp.inf, 1.0]), ones, group), np.full(3, 3.0))
        close(optimal_baseline(reward, 0 * ones, jnp.array([0.0, 0.0, 2.0]), group), np.full(3, 8.0))
        close(optimal_baseline(reward, 0 * ones, 0 * ones, group), np.zeros(3))
    assert np.isnan(optimal_baseline(reward, jnp.array([jnp.nan, 0.0, 0.0]), ones, group)).all()


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


@pytest.mark.parametrize(
    ("function", "changed", "error", "message"),
    [
        (optimal_advantage, {"beta": 0.0}, ValueError, r"beta=0\.0 is not positive"),
        (optimal_advantage, {"beta": np.inf}, ValueError, "beta=inf is not finite"),
        (optimal_advantage, {"beta": "1"}, TypeError, "beta='1' is not a number"),
        (optimal_baseline, {"log_ratio": jnp.zeros(2, int)}, TypeError, "log_ratio has dtype int32"),
        (
            optimal_baseline,
            {"gradient_norm": jnp.zeros(3)},
            ValueError,
            r"gradient_norm has shape \(3,\): expected rew",
        ),
        (optimal_baseline, {"group": jnp.zeros(2)}, TypeError, "group has dtype float32: expected integers"),
    ],
)
def test_errors_of_optimal_estimates(function, changed, error, message, unchecked):
    """Each names the argument."""
    own = {"beta": 1.0} if function is optimal_advantage else dict.fromkeys(["log_ratio", "gradient_norm"], jnp.ones(2))
    with pytest.raises(error, match=message):
        function(**({"reward": jnp.zeros(2), "group": jnp.zeros(2, int)} | own | changed))


@pytest.mark.parametrize(("reward", "members"), [(0.9, 24), (1.1, 16), (5.3, 32), (1000.1, 16)])
@pytest.mark.parametrize("epsilon", [0.0, 1e-6])
def test_equal_rewards_have_no_advantage(reward, members, epsilon):
    """A group whose answers are all right, or all wrong, though the mean of its rewards would be rounded."""
    got = group_relative_advantage(jnp.full(members, reward), jnp.zeros(members, int), epsilon=epsilon)
    np.testing.assert_array_equal(got, 0.0)
