"""Generalised advantage estimation, against its definition as a sum and numbers worked by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import gae, vtrace
from tests.pages import blocks
from tests.test_docs import ROOT

SHAPES = [(1,), (5,), (1, 3), (8, 2), (9, 2), (21, 4), (7, 2, 3), (4, 0), (0, 2)]


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
    """The recursion equals the sum, for any batch shape; lambda is 0.95 by default."""
    reward, discount, value, valid = sample(shape)
    valid = valid if masked else np.ones(shape, bool)
    for settings in ({}, {"lambda_": 0.0}, {"lambda_": 0.7}, {"lambda_": 1}):
        with jax.enable_x64(True):
            arrays, mask = map(jnp.asarray, (reward, discount, value)), jnp.asarray(valid) if masked else None
            got = gae(*arrays, **settings, valid=mask)
        assert (got.shape, got.dtype) == (shape, jnp.float64)
        expected = definition(reward, discount, value, settings.get("lambda_", 0.95), valid)
        np.testing.assert_allclose(got, expected, rtol=1e-12, atol=1e-12)


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
