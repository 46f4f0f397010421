"""Generalised advantage estimation, against its definition as a sum and numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import gae, vtrace
from tests.test_docs import ROOT, blocks

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


def test_lambda_by_hand():
    """deltas 1, 2, 3 at discount 1/2: A_0 = 1 + s/2 (2 + s/2 3), so that dA_0/ds = 1 + 3/2 s."""
    reward, value = jnp.array([1.0, 2.0, 3.0]), jnp.array([2.0, 4.0, 8.0, 16.0])
    slope = jax.grad(lambda s: gae(reward, jnp.full(3, 0.5), value, lambda_=s)[0])
    assert [float(slope(s)) for s in (0.0, 0.5, 1.0)] == [1.0, 1.75, 2.5]


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


def test_steps_that_are_skipped():
    """The recipe of `docs/functions.md`: as if the valid steps of a column, and the bootstrap, were all there is."""
    (recipe,) = (block for block in blocks(ROOT / "docs" / "functions.md") if "gae_over_valid_steps" in block)
    names = {"__name__": "functions"}
    exec(compile(recipe, "functions.md", "exec"), names)
    random = np.random.default_rng(0)
    valid = random.uniform(size=(9, 6)) < np.linspace(0.0, 1.0, 6)
    reward, discount = random.normal(size=(9, 6)), random.uniform(0.5, 1.0, size=(9, 6))
    value = random.normal(size=(10, 6))
    with jax.enable_x64(True):
        got = names["gae_over_valid_steps"](*map(jnp.asarray, (reward, discount, value, valid)), 0.9)
    expected = np.zeros((9, 6))
    for column in range(6):
        steps = np.flatnonzero(valid[:, column])
        values, later = np.append(value[steps, column], value[-1, column]), 0.0
        for k, t in reversed([*enumerate(steps)]):
            error = reward[t, column] + discount[t, column] * values[k + 1] - values[k]
            expected[t, column] = later = error + 0.9 * discount[t, column] * later
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-10)
