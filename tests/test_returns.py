"""Generalised advantage estimation and V-trace, against their definitions as sums."""

import math

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import pytest

from stellaris import gae, global_ratio_cap, vtrace

SHAPES = [(1,), (5,), (1, 3), (8, 2), (9, 2), (21, 4), (7, 2, 3), (4, 0)]


def sample(shape, seed=0):
    """Reward, discount (some zero), value and valid (some False), float64."""
    random = np.random.default_rng(seed)
    reward = random.normal(size=shape)
    discount = random.uniform(0.5, 1.0, size=shape) * (random.uniform(size=shape) > 0.2)
    value = random.normal(size=(shape[0] + 1, *shape[1:]))
    return reward, discount, value, random.uniform(size=shape) > 0.2


def definition(reward, discount, value, lambda_, valid):
    """`A_t = sum_k (prod_{j<k} lambda discount_{t+j}) delta_{t+k}`, up to the first step that is no transition."""
    advantage = np.zeros(reward.shape)
    for t in range(len(reward)):
        weight = 1.0
        for k in range(t, len(reward)):
            weight = weight * valid[k]
            advantage[t] += weight * (reward[k] + discount[k] * value[k + 1] - value[k])
            weight = weight * lambda_ * discount[k]
    return advantage


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("masked", [False, True])
def test_definition(shape, masked):
    """The recursion equals the sum, for any batch shape."""
    reward, discount, value, valid = sample(shape)
    valid = valid if masked else np.ones(shape, bool)
    with jax.enable_x64(True):
        arrays, mask = map(jnp.asarray, (reward, discount, value)), jnp.asarray(valid) if masked else None
        got = gae(*arrays, lambda_=0.7, valid=mask)
    assert (got.shape, got.dtype) == (shape, jnp.float64)
    np.testing.assert_allclose(got, definition(reward, discount, value, 0.7, valid), rtol=1e-12, atol=1e-12)


# reward 1, 2, 3; gamma 1/2, lambda 1/2; value 2, 4, 8, 16
@pytest.mark.parametrize(
    ("discount", "expected"),
    [
        # delta = 1 + 2 - 2, 2 + 4 - 4, 3 + 8 - 8 = 1, 2, 3; A = 1 + 2.75/4, 2 + 3/4, 3
        ([0.5, 0.5, 0.5], [1.6875, 2.75, 3.0]),
        # terminated at the second step: delta_1 = 2 - 4 = -2, and the third adds nothing to it; A_0 = 1 - 2/4
        ([0.5, 0.0, 0.5], [0.5, -2.0, 3.0]),
        # terminated at the last: delta_2 = 3 - 8 = -5, A_1 = 2 - 5/4, A_0 = 1 + 0.75/4
        ([0.5, 0.5, 0.0], [1.1875, 0.75, -5.0]),
    ],
)
def test_by_hand(discount, expected):
    """Three steps whose every number is exact in float32."""
    reward, value = jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 4.0, 8.0, 16.0])
    np.testing.assert_array_equal(gae(reward, jnp.array(discount), value, lambda_=0.5), expected)


def test_truncated_or_terminated():
    """Cut after the second step by a reset: a truncation bootstraps from the last observation, a termination doesn't.

    As above, with the third step a reset. Truncated: delta_1 = 2 + 4 - 4 = 2, A_0 = 1 + 2/4.
    """
    reward, value, valid = jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 4.0, 8.0, 16.0]), jnp.array([True, True, False])
    for discount, expected in (([0.5, 0.5, 0.5], [1.5, 2.0, 0.0]), ([0.5, 0.0, 0.5], [0.5, -2.0, 0.0])):
        got = gae(reward, jnp.array(discount), value, lambda_=0.5, valid=valid)
        np.testing.assert_array_equal(got, expected)


def test_a_reset_step_separates_two_fragments():
    """The advantages on either side of a reset are those of two separate calls, whatever the reset step holds."""
    first, second = (
        [jnp.asarray(x, jnp.float32) for x in sample((length, 2), seed)[:3]] for length, seed in ((4, 1), (6, 2))
    )
    expected = jnp.concatenate([gae(*first), jnp.zeros((1, 2)), gae(*second)])
    valid = jnp.ones((11, 2), bool).at[4].set(False)
    value = jnp.concatenate([first[2], second[2]])
    for garbage in (1e30, jnp.nan):
        row = jnp.full((1, 2), garbage)
        reward, discount = (jnp.concatenate([a, row, b]) for a, b in zip(first[:2], second[:2], strict=True))
        np.testing.assert_array_equal(gae(reward, discount, value, valid=valid), expected)


def test_lambda_zero_is_one_step_and_lambda_one_is_monte_carlo():
    """lambda 0: `r + gamma V' - V`; lambda 1: the discounted return, with the last value, minus the value."""
    reward, discount, value, _ = sample((6, 2))
    with jax.enable_x64(True):
        arrays = [jnp.asarray(x) for x in (reward, discount, value)]
        one_step, monte_carlo, default = gae(*arrays, lambda_=0.0), gae(*arrays, lambda_=1), gae(*arrays)
    np.testing.assert_allclose(one_step, reward + discount * value[1:] - value[:-1], rtol=1e-12)
    returns = value.copy()
    for t in reversed(range(6)):
        returns[t] = reward[t] + discount[t] * returns[t + 1]
    np.testing.assert_allclose(monte_carlo, (returns - value)[:-1], rtol=1e-10)
    np.testing.assert_allclose(default, definition(reward, discount, value, 0.95, np.ones((6, 2))), rtol=1e-10)


def test_a_perfect_critic_has_no_advantage():
    """Reward 1 at discount 1/2 is worth 2 for ever."""
    np.testing.assert_array_equal(gae(jnp.ones(9), jnp.full(9, 0.5), jnp.full(10, 2.0)), np.zeros(9))


def test_gradient_with_respect_to_rewards():
    """`dA_0 / dr_t = (gamma lambda)^t`, here 4^-t, as far as the second-last step; the last is a reset."""
    gradient = jax.grad(
        lambda r: gae(r, jnp.full(5, 0.5), jnp.ones(6), lambda_=0.5, valid=jnp.array([True] * 4 + [False]))[0]
    )(jnp.ones(5))
    np.testing.assert_array_equal(gradient, [1.0, 0.25, 0.0625, 0.015625, 0.0])


def test_transformations_and_numpy():
    """jit, vmap over the batch axis, and NumPy's arrays give the same numbers, in float32."""
    reward, discount, value, valid = (x.astype(bool if x.dtype == bool else np.float32) for x in sample((9, 3)))
    expected = definition(reward, discount, value, 0.95, valid)

    def positional(reward, discount, value, valid):
        return gae(reward, discount, value, valid=valid)

    for transformed in (positional, jax.jit(positional), jax.vmap(positional, in_axes=1, out_axes=1)):
        got = transformed(reward, discount, value, valid)
        assert got.dtype == jnp.float32
        np.testing.assert_allclose(got, expected, rtol=1e-5, atol=1e-5)


def test_no_steps():
    """An empty trajectory has empty results, and gradients of zero."""
    empty, value = jnp.zeros((0, 2)), jnp.ones((1, 2))
    assert [x.shape for x in vtrace(empty, empty, value, empty)] == [(0, 2)] * 2
    gradients = jax.grad(lambda *a: jnp.sum(gae(*a)), argnums=(0, 1, 2))(empty, empty, value)
    assert [x.shape for x in gradients] == [(0, 2), (0, 2), (1, 2)]
    np.testing.assert_array_equal(gradients[2], np.zeros((1, 2)))


def test_bfloat16_is_summed_in_float32():
    """Only the result is rounded, to 8 bits, however long the sum."""
    arrays = [jnp.asarray(x, jnp.bfloat16) for x in sample((64, 2))[:3]]
    wide = [x.astype(jnp.float32) for x in arrays]
    for narrow, exact in zip(
        (gae(*arrays, lambda_=1.0), *vtrace(*arrays, arrays[0], ratio_cap=jnp.exp(arrays[1]))),
        (gae(*wide, lambda_=1.0), *vtrace(*wide, wide[0], ratio_cap=jnp.exp(arrays[1]).astype(jnp.float32))),
        strict=True,
    ):
        assert narrow.dtype == jnp.bfloat16
        np.testing.assert_array_equal(narrow, exact.astype(jnp.bfloat16))


# ---- V-trace --------------------------------------------------------------------------------------------------------


def log_ratios(shape, seed=5):
    return np.random.default_rng(seed).normal(size=shape, scale=0.7)


def vtrace_definition(
    reward, discount, value, log_ratio, *, lambda_=1.0, rho_clip=1.0, c_clip=1.0, pg_rho_clip=1.0, cap=None, valid=None
):
    """The paper's Eq. 1, a sum of products, with lambda, a cap and steps that are no transition."""
    ratio, steps = np.exp(log_ratio), len(reward)
    cap = np.full(reward.shape, np.inf) if cap is None else cap
    valid = np.ones(reward.shape, bool) if valid is None else valid
    target, advantage = value.copy(), np.zeros(reward.shape)
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
    return target[:-1], advantage


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


@pytest.mark.parametrize(
    ("shape", "bounded"),
    [((5,), ()), ((9, 2), ("ratio_cap",)), ((9, 2), ("valid",)), ((8, 2), ("ratio_cap", "valid"))]
    + [(shape, ("ratio_cap", "valid")) for shape in [(1, 3), (7, 2, 3), (4, 0)]],
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


def test_vtrace_on_policy():
    """At ratio 1 the advantage is gae's for any lambda; with lambda 1 and no clips the target is the n-step return."""
    reward, discount, value, valid = sample((8, 3))
    returns = value.copy()
    for t in reversed(range(8)):
        returns[t] = reward[t] + discount[t] * returns[t + 1]
    with jax.enable_x64(True):
        arrays, mask = [jnp.asarray(x) for x in (reward, discount, value)], jnp.asarray(valid)
        zeros = jnp.zeros((8, 3))
        free = vtrace(*arrays, zeros, rho_clip=math.inf, c_clip=math.inf, pg_rho_clip=math.inf)
        np.testing.assert_allclose(free.target, returns[:-1], rtol=1e-12)
        np.testing.assert_allclose(free.advantage, (returns - value)[:-1], rtol=1e-10)
        for lambda_ in (0.0, 0.3, 0.95, 1.0):
            for valid in (None, mask):
                got, expected = (
                    vtrace(*arrays, zeros, lambda_=lambda_, valid=valid),
                    gae(*arrays, lambda_=lambda_, valid=valid),
                )
                np.testing.assert_allclose(got.advantage, expected, rtol=1e-12, atol=1e-12)
                np.testing.assert_allclose(got.target, expected + arrays[2][:-1], rtol=1e-12, atol=1e-12)


def test_vtrace_without_traces_is_the_one_step_operator():
    """`c_clip = 0`: `V + rho (r + gamma V' - V)`."""
    reward, discount, value, _ = sample((6, 2))
    log_ratio = log_ratios((6, 2))
    with jax.enable_x64(True):
        got = vtrace(*map(jnp.asarray, (reward, discount, value, log_ratio)), c_clip=0.0, rho_clip=1.5)
    error = reward + discount * value[1:] - value[:-1]
    np.testing.assert_allclose(got.target, value[:-1] + np.minimum(np.exp(log_ratio), 1.5) * error, rtol=1e-12)


def test_the_global_cap_is_inert_under_the_default_clips():
    """It is never below rho >= 1, so it binds nothing at 1, to the bit; it does where there are no clips."""
    arrays = [jnp.asarray(x, jnp.float32) for x in sample((7, 4))[:3]]
    logs = jnp.asarray(log_ratios((3, 7, 4)), jnp.float32) + 0.5
    clipped = jax.jit(lambda x, cap: vtrace(*arrays, x, ratio_cap=cap))
    free = jax.jit(lambda x, cap: vtrace(*arrays, x, ratio_cap=cap, rho_clip=math.inf, pg_rho_clip=math.inf))
    unbounded = jnp.full((7, 4), jnp.inf)
    # Another program, compiled without a cap, may round otherwise in the last bit.
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-5, atol=1e-6), vtrace(*arrays, logs[0]),
                 clipped(logs[0], unbounded))  # fmt: skip
    for held, rho in ((logs[:1], 1.0), (logs, 1.0), (logs, 1.5), (logs, math.inf)):
        cap = global_ratio_cap(held, rho=rho)
        jax.tree.map(np.testing.assert_array_equal, clipped(logs[0], cap), clipped(logs[0], unbounded))
        got, uncapped = free(logs[0], cap), free(logs[0], unbounded)
        if len(held) == 1 or rho == math.inf:  # a sole policy's cap is its own ratio, or above it
            jax.tree.map(np.testing.assert_array_equal, got, uncapped)
        else:
            assert np.mean(got.target != uncapped.target) > 0.2
            assert np.mean(got.advantage != uncapped.advantage) > 0.2


def test_actions_of_probability_zero_carry_nothing():
    """A log-ratio of -inf: the target there is the value, the advantage zero, and no trace crosses."""
    reward, discount, value = (jnp.asarray(x, jnp.float32) for x in sample((5, 1))[:3])
    log_ratio = jnp.zeros((5, 1)).at[2].set(-jnp.inf)
    got = vtrace(reward, discount, value, log_ratio)
    np.testing.assert_allclose(got.target[2], value[2], rtol=1e-6)
    np.testing.assert_allclose(got.advantage[2], 0.0, atol=1e-6)
    alone = vtrace(reward[:2], discount[:2], value[:3], log_ratio[:2])
    np.testing.assert_allclose(got.target[:2], alone.target, rtol=1e-6)


# ---- the loop and the scan ------------------------------------------------------------------------------------------


@pytest.fixture(params=["loop", "scan"])
def formulation(request, monkeypatch):
    """Solves the recurrence in one of the two ways, wherever the test runs."""
    chosen = []

    def choose(*arguments, cpu, default):
        chosen.append(request.param)
        return (cpu if request.param == "loop" else default)(*arguments)

    monkeypatch.setattr(jax.lax, "platform_dependent", choose)
    jax.clear_caches()  # or what was traced for the other formulation would be used
    yield request.param
    jax.clear_caches()
    assert chosen


def unrolled(reward, discount, value, lambda_, valid):
    """The recursion row by row, for JAX to differentiate."""
    later, rows = jnp.zeros_like(reward[0]), []
    for t in reversed(range(len(reward))):
        error = reward[t] + discount[t] * value[t + 1] - value[t]
        later = jnp.where(valid[t], error + discount[t] * lambda_ * later, 0.0)
        rows.append(later)
    return jnp.stack(rows[::-1])


# The loop is unrolled by two where rows or arrays are large: there with an odd and an even number of steps.
@pytest.mark.parametrize("shape", [(1, 3), (7, 3), (4, 2100), (5, 1700)])
@pytest.mark.parametrize("masked", [False, True])
def test_both_formulations(formulation, shape, masked):
    """The loop and the scan give one value and one gradient."""
    reward, discount, value, valid = sample(shape, seed=3)
    log_ratio, weight = log_ratios((2, *shape))
    valid = valid if masked else np.ones_like(valid)

    def everything(reward, discount, value, log_ratio, weight, valid):
        mask = valid if masked else None
        advantage, pull = jax.vjp(lambda *a: gae(*a, lambda_=0.7, valid=mask), reward, discount, value)
        plain, pull_plain = jax.vjp(lambda *a: unrolled(*a, 0.7, valid), reward, discount, value)
        off_policy = vtrace(reward, discount, value, log_ratio, lambda_=0.7, rho_clip=1.5, valid=mask)
        return (advantage, pull(weight)), (plain, pull_plain(weight)), off_policy

    with jax.enable_x64(True):
        got, expected, off_policy = jax.jit(everything)(reward, discount, value, log_ratio, weight, valid)
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12), got, expected)
    definition = vtrace_definition(reward, discount, value, log_ratio, lambda_=0.7, rho_clip=1.5, valid=valid)
    for x, y in zip(off_policy, definition, strict=True):
        np.testing.assert_allclose(x, y, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("garbage", [math.nan, math.inf, 1e30])
def test_what_invalid_steps_hold_reaches_nothing(formulation, garbage):
    """Neither values nor gradients see their reward, discount, ratio or cap, nor a value between two of them."""
    reward, discount, value, _ = (np.asarray(x, np.float32) for x in sample((6, 2)))
    log_ratio = np.asarray(log_ratios((6, 2)), np.float32)
    valid = np.array([True, False, False, True, True, False])[:, None] & np.ones((6, 2), bool)
    between = np.array([False, False, True, False, False, False, True])[:, None]  # used by no transition
    cap = np.exp(log_ratio) + 0.5

    @jax.jit
    def everything(reward, discount, value, log_ratio, cap):
        advantage, pull = jax.vjp(lambda *a: gae(*a, lambda_=0.7, valid=valid), reward, discount, value)

        def total(*arrays):
            found = vtrace(*arrays[:4], ratio_cap=arrays[4], rho_clip=9.0, valid=valid)
            return jnp.sum(jnp.where(valid, found.target * found.advantage, 0.0)), found

        gradients, found = jax.grad(total, argnums=(0, 1, 2, 3, 4), has_aux=True)(
            reward, discount, value, log_ratio, cap
        )
        return advantage, pull(jnp.where(valid, 1.5, 0.0)), gradients, found

    def filled(fill):
        arrays = [np.where(valid, x, np.float32(fill)) for x in (reward, discount, log_ratio, cap)]
        return everything(*arrays[:2], np.where(between, np.float32(fill), value), *arrays[2:])

    got, expected = filled(garbage), filled(0.0)
    np.testing.assert_array_equal(got[3].target[~valid[:, 0]][1], np.full(2, garbage, np.float32))
    clean = [(x[0], x[1], x[2], (x[3].target[valid], x[3].advantage)) for x in (got, expected)]
    assert all(np.isfinite(x).all() for x in jax.tree.leaves(clean))
    jax.tree.map(np.testing.assert_array_equal, *clean)
    advantage, by_array, gradients, _ = got
    assert not np.any(advantage[~valid])
    assert not any(np.any(x[~valid]) for x in by_array[:2])
    assert not any(np.any(x) for x in gradients)


def test_what_a_loss_makes_of_invalid_steps_reaches_nothing(formulation):
    """The gradient that comes back for an invalid step's advantage, say of a masked NaN times it, goes no further."""
    reward, discount, value, _ = (jnp.asarray(x, jnp.float32) for x in sample((6, 2)))
    valid = jnp.array([True, True, False, True, True, False])[:, None] & jnp.ones((6, 2), bool)

    @jax.jit
    def gradients(garbage):
        ratio = jnp.where(valid, 1.5, garbage)
        masked_loss = lambda *a: jnp.sum(jnp.where(valid, ratio * gae(*a, lambda_=0.7, valid=valid), 0.0))  # noqa: E731
        return jax.grad(masked_loss, argnums=(0, 1, 2))(reward, discount, value)

    jax.tree.map(np.testing.assert_array_equal, gradients(jnp.nan), gradients(0.0))


@pytest.mark.parametrize(("platform", "loops"), [("cpu", True), ("cuda", False), ("tpu", False)])
def test_the_platform_decides(platform, loops):
    """What is compiled for a CPU loops over the steps, and for accelerators doesn't; the gradient, too."""
    x, value = jax.ShapeDtypeStruct((8, 2), jnp.float32), jax.ShapeDtypeStruct((9, 2), jnp.float32)
    for function, arguments in (
        (lambda *a: gae(*a), (x, x, value)),
        (jax.grad(lambda *a: jnp.sum(gae(*a))), (x, x, value)),
        (lambda *a: vtrace(*a), (x, x, value, x)),
    ):
        text = jax.jit(function).trace(*arguments).lower(lowering_platforms=(platform,)).as_text()
        assert ("stablehlo.while" in text) == loops


# ---- errors ---------------------------------------------------------------------------------------------------------


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
def test_errors(changed, message, monkeypatch):
    """Without the run-time type checks, as a user calls it, an error names the argument and its value."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
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
def test_vtrace_errors(changed, message, monkeypatch):
    """Those that only V-trace has."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    raises(ValueError, message, vtrace, arguments_of(vtrace) | changed)


@pytest.mark.parametrize("function", [gae, vtrace])
@pytest.mark.parametrize("name", ["reward", "discount", "value", "log_ratio", "ratio_cap"])
def test_integers(function, name, monkeypatch):
    """Integers where floats are due would be rounded somewhere; the error names the argument and the type."""
    if function is gae and name in ("log_ratio", "ratio_cap"):
        return
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    arguments = arguments_of(function)
    shape = arguments[name].shape if name in arguments else (3, 2)
    message = f"{name} has dtype int32: expected floating point"
    raises(TypeError, message, function, arguments | {name: jnp.zeros(shape, jnp.int32)})


# ---- settings that are traced, types that differ --------------------------------------------------------------------


@pytest.mark.parametrize("masked", [False, True])
def test_lambda_may_be_traced(formulation, masked):
    """Swept by `vmap`, under `jit` and `grad`: each as with the number; its gradient is the recursion's own."""
    reward, discount, value, valid = sample((6, 2))
    with jax.enable_x64(True):
        arrays, mask = [jnp.asarray(x) for x in (reward, discount, value)], jnp.asarray(valid) if masked else None
        weight, lambdas = jnp.asarray(log_ratios((6, 2))), jnp.array([0.0, 0.4, 1.0])
        got = jax.jit(jax.vmap(lambda s: gae(*arrays, lambda_=s, valid=mask)))(lambdas)
        by_lambda = jax.grad(lambda s: jnp.sum(weight * gae(*arrays, lambda_=s, valid=mask)))
        expected = jax.grad(
            lambda s: jnp.sum(weight * unrolled(*arrays, s, jnp.asarray(valid if masked else valid | True)))
        )
        by_reward = jax.vmap(jax.grad(lambda r, s: jnp.sum(gae(r, *arrays[1:], lambda_=s)), argnums=0), (None, 0))
        swept = by_reward(arrays[0], lambdas)
        for i, number in enumerate((0.0, 0.4, 1.0)):
            np.testing.assert_allclose(got[i], gae(*arrays, lambda_=number, valid=mask), rtol=1e-12)
            np.testing.assert_allclose(by_lambda(number), expected(number), rtol=1e-10)
            alone = jax.grad(lambda r, s=number: jnp.sum(gae(r, *arrays[1:], lambda_=s)))(arrays[0])
            np.testing.assert_allclose(swept[i], alone, rtol=1e-12)


def test_lambda_by_hand():
    """deltas 1, 2, 3 at discount 1/2: A_0 = 1 + s/2 (2 + s/2 3), so that dA_0/ds = 1 + 3/2 s."""
    reward, value = jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 4.0, 8.0, 16.0])
    slope = jax.grad(lambda s: gae(reward, jnp.full(3, 0.5), value, lambda_=s)[0])
    assert [float(slope(s)) for s in (0.0, 0.5, 1.0)] == [1.0, 1.75, 2.5]


@pytest.mark.parametrize("wide", ["reward", "discount", "value", "log_ratio", "ratio_cap", "lambda_"])
def test_two_float_types_promote_to_the_wider(wide):
    """Under x64 any one array may be float64; values and gradients are those of all in float64, in their own types."""
    reward, discount, value, _ = sample((5, 2))
    narrow = dict(
        zip(
            ("reward", "discount", "value"), (np.asarray(x, np.float32) for x in (reward, discount, value)), strict=True
        )
    )
    ratios = {"log_ratio": np.asarray(log_ratios((5, 2)), np.float32), "ratio_cap": np.ones((5, 2), np.float32)}
    setting = {"lambda_": np.float64(0.7)} if wide == "lambda_" else {"lambda_": 0.7}
    with jax.enable_x64(True):

        def both(function, arguments):
            promoted = {k: jnp.asarray(x, jnp.float64) for k, x in arguments.items()}
            mixed = {k: jnp.asarray(x, jnp.float64 if k == wide else jnp.float32) for k, x in arguments.items()}
            total = lambda a: sum(jnp.sum(x) for x in jax.tree.leaves(function(**a, **setting)))  # noqa: E731
            for a, b in zip(
                jax.tree.leaves(function(**mixed, **setting)),
                jax.tree.leaves(function(**promoted, **setting)),
                strict=True,
            ):
                assert a.dtype == (jnp.float64 if wide in set(arguments) - {"ratio_cap"} else jnp.float32)
                np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-5)
            gradients = jax.grad(total)(mixed), jax.grad(total)(promoted)
            for name in arguments:
                assert gradients[0][name].dtype == mixed[name].dtype
                np.testing.assert_allclose(gradients[0][name], gradients[1][name], rtol=1e-5, atol=1e-5)

        if wide in {*narrow, "lambda_"}:
            both(gae, narrow)
        both(vtrace, narrow | ratios)


@pytest.mark.parametrize("cap", [2, 1.5, np.float64(1.5), jnp.float32(1.5)])
def test_vtrace_takes_a_constant_cap(cap):
    """A number, of whatever library, is an array full of it."""
    arrays = [jnp.asarray(x, jnp.float32) for x in (*sample((5, 2))[:3], log_ratios((5, 2)) + 0.5)]
    free = {"rho_clip": math.inf, "pg_rho_clip": math.inf}
    expected = vtrace(*arrays, ratio_cap=jnp.full((5, 2), float(cap)), **free)
    jax.tree.map(np.testing.assert_array_equal, vtrace(*arrays, ratio_cap=cap, **free), expected)
    swept = jax.vmap(lambda c: vtrace(*arrays, ratio_cap=c, **free))(jnp.array([float(cap)]))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x[0], y, rtol=1e-6), swept, expected)


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
def test_what_is_no_array_or_no_number(changed, message, monkeypatch):
    """The error names the argument."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    for function in (gae, vtrace):
        with pytest.raises(TypeError, match=f"^{message}"):
            function(**(arguments_of(function) | changed))


@pytest.mark.parametrize("name", ["rho_clip", "c_clip", "pg_rho_clip"])
def test_no_clip_is_infinity(name, monkeypatch):
    """None, as elsewhere, is an error that names the clip."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    with pytest.raises(TypeError, match=f"^{name}=None is not a number"):
        vtrace(**arguments_of(vtrace), **{name: None})
