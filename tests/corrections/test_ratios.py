"""Log-ratios of sequences and of an approximated proximal policy: against loops over the steps, and by hand."""

import functools
import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import approximate_proximal_log_ratio, ppo_loss, sequence_log_ratio
from tests.close import close


def sample(shape=(12, 3), seed=0):
    """Log-ratios, validity, segments of some steps each, and weights of a gradient, NumPy."""
    random = np.random.default_rng(seed)
    log_ratio, cotangent = random.normal(size=(2, *shape))
    valid = random.uniform(size=shape) < 0.7
    segment = np.cumsum(random.uniform(size=shape) < 0.35, axis=0).astype(np.int32)
    segment -= segment[:1]
    return log_ratio, valid, segment, cotangent


def sequences(shape, segment):
    """The steps of every sequence, as indices, in plain Python."""
    found = []
    for column in np.ndindex(shape[1:]):
        for t in range(shape[0]):
            step, before = (t, *column), (t - 1, *column)
            if t == 0 or (segment is not None and segment[step] != segment[before]):
                found.append([])
            found[-1].append(step)
    return found


def loop(log_ratio, valid, segment, cotangent):
    """By `over`: the result, and the gradient of its weighted sum: each valid step gets its sequence's weights."""
    found = {}
    for over in ("sum", "mean"):
        result, gradient = np.zeros(log_ratio.shape), np.zeros(log_ratio.shape)
        for steps in sequences(log_ratio.shape, segment):
            counted = [s for s in steps if valid is None or valid[s]]
            share = 1.0 / max(len(counted), 1) if over == "mean" else 1.0
            for s in steps:
                result[s] = share * math.fsum(log_ratio[c] for c in counted)
            for c in counted:
                gradient[c] = share * math.fsum(cotangent[s] for s in steps)
        found[over] = result, gradient
    return found


@jax.jit
def both(log_ratio, valid, segment, cotangent):
    """The library's, at every step of a column."""
    found = {}
    for over in ("sum", "mean"):

        def form(x, over=over):
            return jnp.broadcast_to(sequence_log_ratio(x, valid=valid, segment=segment, over=over), x.shape)

        result, pull = jax.vjp(form, log_ratio)
        found[over] = result, pull(cotangent)[0]
    return found


@pytest.mark.parametrize(
    ("shape", "masked", "packed"),
    [(s, m, p) for s in [(12, 3), (9,), (5, 2, 2)] for m in (0, 1) for p in (0, 1) if m + p > 1 or s == (12, 3)],
)
def test_sequences_are_a_loop(shape, masked, packed):
    """Value and gradient, in float64: sequences are columns, or segments of them; a third are without a valid step."""
    for seed in range(4):
        log_ratio, valid, segment, cotangent = sample(shape, seed)
        chosen = (valid & (segment % 3 != 1) if masked else None, segment if packed else None, cotangent)
        with jax.enable_x64(True):
            got = both(log_ratio, *chosen)
            assert got["sum"][0].dtype == jnp.float64
            close(got, loop(log_ratio, *chosen), 1e-12)


def test_sequences_by_hand():
    """Two sequences of a prompt and an answer, one of which is padded; and one without an answer: 0."""
    log_ratio = jnp.array([[9.0, 9.0, 9.0], [0.5, -1.0, 9.0], [0.25, 9.0, 9.0]])
    valid = jnp.array([[False] * 3, [True, True, False], [True, False, False]])
    np.testing.assert_array_equal(sequence_log_ratio(log_ratio, valid=valid), [0.75, -1.0, 0.0])
    np.testing.assert_array_equal(sequence_log_ratio(log_ratio, valid=valid, over="mean"), [0.375, -1.0, 0.0])


def test_equal_numbers_are_one_sequence_within_their_column():
    """Wherever they stand; the same number in the next column is another sequence. The names do not matter."""
    log_ratio = jnp.array([[1.0, 16.0], [2.0, 32.0], [4.0, 64.0], [8.0, 128.0]])
    segment = jnp.array([[3, 0], [0, 0], [3, 0], [3, 2]])
    expected = [[13.0, 112.0], [2.0, 112.0], [13.0, 112.0], [13.0, 128.0]]
    np.testing.assert_array_equal(sequence_log_ratio(log_ratio, segment=segment), expected)
    renamed = jnp.array([[1, 3], [2, 3], [1, 3], [1, 0]])
    np.testing.assert_array_equal(sequence_log_ratio(log_ratio, segment=renamed), expected)


@pytest.mark.parametrize("number", [-1, 3, 2**31 - 1])
def test_a_number_out_of_range_is_no_other_sequences(number):
    """Such a step is not a number; nothing else changes."""
    log_ratio, segment = jnp.array([[1.0, 8.0], [2.0, 16.0], [4.0, 32.0]]), jnp.array([[0, 0], [number, 1], [2, 2]])
    got = sequence_log_ratio(log_ratio, segment=segment)
    np.testing.assert_array_equal(got, [[1.0, 8.0], [math.nan, 16.0], [4.0, 32.0]])


@pytest.mark.parametrize("over", ["sum", "mean"])
def test_sequences_of_one_step_are_steps(over):
    """To the bit: the log-ratios, and so every function of them."""
    log_ratio = jnp.asarray(sample()[0], jnp.float32)
    alone = jnp.broadcast_to(jnp.arange(12)[:, None], (12, 3))
    np.testing.assert_array_equal(sequence_log_ratio(log_ratio, segment=alone, over=over), log_ratio)
    np.testing.assert_array_equal(sequence_log_ratio(log_ratio[:1], over=over), log_ratio[0])


@pytest.mark.parametrize("packed", [False, True])
def test_steps_that_are_not_valid_have_no_part(packed):
    """Whatever stands there: the same result, exactly no gradient, and the same gradient elsewhere; PPO's as well."""
    log_ratio, valid, segment, cotangent = (x.astype(np.float32) if x.dtype == float else x for x in sample())
    segment = segment if packed else None

    @jax.jit
    def surrogate(x):
        form = functools.partial(sequence_log_ratio, valid=valid, segment=segment, over="mean")
        advantage = cotangent if packed else cotangent[0]
        return jax.value_and_grad(lambda x: jnp.sum(ppo_loss(form(x), advantage)))(x)

    expected = both(log_ratio, valid, segment, cotangent), surrogate(log_ratio)
    for garbage in (math.nan, math.inf, -math.inf, 3e38):
        spoilt = np.where(valid, log_ratio, np.float32(garbage))
        got = both(spoilt, valid, segment, cotangent), surrogate(spoilt)
        jax.tree.map(np.testing.assert_array_equal, got, expected)
        for gradient in (got[0]["sum"][1], got[0]["mean"][1], got[1][1]):
            np.testing.assert_array_equal(gradient[~valid], np.zeros((~valid).sum()))


def test_an_impossible_action_makes_its_sequence_impossible():
    """Minus infinity, of that sequence alone, its mean as well; without a NaN on the way."""
    log_ratio = jnp.array([[0.5, 0.5], [-jnp.inf, 0.25]])
    with jax.debug_nans(True):
        for over in ("sum", "mean"):
            got = sequence_log_ratio(log_ratio, over=over)
            assert got[0] == -math.inf
            assert np.isfinite(got[1])
            slope = jax.grad(lambda x, over=over: jnp.sum(ppo_loss(sequence_log_ratio(x, over=over), jnp.ones(2))))
            assert np.isfinite(slope(log_ratio)).all()


@pytest.mark.parametrize("packed", [False, True])
def test_bfloat16_loses_no_digits_in_a_sum(packed):
    """4096 steps of about 1/256 each: in bfloat16 a running sum would stop at 1. The result is float32's, exactly."""
    steps = jnp.asarray(np.random.default_rng(0).uniform(0.003, 0.005, size=(4096, 2)), jnp.bfloat16)
    segment = jnp.zeros((4096, 2), jnp.int32) if packed else None
    for over in ("sum", "mean"):
        got = sequence_log_ratio(steps, segment=segment, over=over)
        assert got.dtype == jnp.float32
        np.testing.assert_array_equal(got, sequence_log_ratio(steps.astype(jnp.float32), segment=segment, over=over))
    exact = np.sum(np.asarray(steps, np.float64), axis=0)
    whole = sequence_log_ratio(steps, segment=segment)
    close(whole[0] if packed else whole, exact, 1e-5)
    assert (exact > 15).all()
    by_steps = jax.grad(lambda x: jnp.sum(sequence_log_ratio(x, segment=segment, over="mean")))(steps)
    assert by_steps.dtype == jnp.bfloat16
    np.testing.assert_array_equal(by_steps.astype(jnp.float32), np.full((4096, 2), 1.0 if packed else 2.0**-12))


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(0,), (0, 3), (4, 0)])
def test_no_steps(shape):
    """An empty batch has an empty result, packed or not."""
    for segment in (None, jnp.zeros(shape, jnp.int32)):
        got = jax.grad(lambda x, s=segment: jnp.sum(sequence_log_ratio(x, segment=s, over="mean")))(jnp.zeros(shape))
        assert got.shape == shape
    assert not np.any(sequence_log_ratio(jnp.zeros(shape), over="mean"))


@pytest.mark.slow
def test_sequences_under_transformations():
    """`vmap` over columns, and NumPy's arrays, give the same."""
    x, valid, segment, _ = sample()
    x = x.astype(np.float32)
    function = lambda x, v, s: sequence_log_ratio(x, valid=v, segment=s, over="mean")  # noqa: E731
    plain = function(*map(jnp.asarray, (x, valid, segment)))
    close(function(x, valid, segment), plain)
    close(jax.vmap(function, in_axes=1, out_axes=1)(x, valid, segment), plain)


FINE = {"log_ratio": jnp.zeros((2, 3)), "valid": jnp.ones((2, 3), bool), "segment": jnp.zeros((2, 3), jnp.int32)}


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"log_ratio": jnp.zeros((2, 3), jnp.int32)}, TypeError, "log_ratio has dtype int32: expected floating point"),
        ({"valid": jnp.ones(3, bool)}, ValueError, r"valid has shape \(3,\): expected log_ratio's \(2, 3\)"),
        ({"segment": jnp.zeros(2, jnp.int32)}, ValueError, r"segment has shape \(2,\): expected log_ratio's \(2, 3\)"),
        ({"segment": jnp.zeros((2, 3))}, TypeError, "segment has dtype float32: expected integers"),
        (
            {"log_ratio": jnp.float32(0.0), "valid": None, "segment": None},
            ValueError,
            r"log_ratio has shape \(\): expected \[T, \.\.\.\]",
        ),
        ({"over": "product"}, ValueError, "over='product' is neither 'sum' nor 'mean'"),
        ({"over": None}, ValueError, "over=None is neither 'sum' nor 'mean'"),
    ],
)
def test_sequence_errors(changed, error, message, unchecked):
    """Each names the argument, what it is and what it should be."""
    with pytest.raises(error, match=message):
        sequence_log_ratio(**(FINE | changed))


# ---- the proximal policy that is not at hand ------------------------------------------------------------------------


def test_approximate_proximal_is_the_papers():
    """`alpha l`, alpha = clip((v - 1 - v_b) / (v - v_b), 0, 1): A-3PO's, for versions of either order."""
    random = np.random.default_rng(0)
    log_ratio, staleness = random.normal(size=(50, 2)), random.integers(-3, 40, size=(50, 2))
    expected = np.zeros((50, 2))
    for i in np.ndindex(50, 2):
        now, then = 100, 100 - int(staleness[i])
        alpha = min(max((now - 1 - then) / (now - then), 0.0), 1.0) if now > then else 0.0
        expected[i] = alpha * log_ratio[i]
    with jax.enable_x64(True):
        got = approximate_proximal_log_ratio(jnp.asarray(log_ratio), jnp.asarray(staleness))
        assert got.dtype == jnp.float64
        close(got, expected, 1e-12)


@pytest.mark.parametrize(
    ("staleness", "share"),
    [(-2, 0.0), (0, 0.0), (1, 0.0), (2, 0.5), (4, 0.75), (10, 0.9), (2**32 + 1, 1.0)],
)
def test_approximate_proximal_by_hand(staleness, share):
    """One version before the policy that learns; the behaviour policy where there is none between the two."""
    got = approximate_proximal_log_ratio(jnp.array([-2.0, 0.5]), np.full(2, staleness))
    close(got, [-2.0 * share, 0.5 * share])


def test_approximate_proximal_is_a_constant():
    """No gradient; an impossible action of no staleness has the log-ratio 0, not NaN, and else minus infinity."""
    x, staleness = jnp.array([0.5, -jnp.inf, -jnp.inf, 1e4]), jnp.array([3, 1, 2, 4])
    with jax.debug_nans(True):
        np.testing.assert_array_equal(
            approximate_proximal_log_ratio(x, staleness)[1:], np.float32([0.0, -math.inf, 7500.0])
        )
        slope = jax.grad(lambda x: jnp.sum(approximate_proximal_log_ratio(x, staleness)))
        np.testing.assert_array_equal(slope(x), np.zeros(4))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"log_ratio": jnp.zeros(2, jnp.int32)}, TypeError, "log_ratio has dtype int32: expected floating point"),
        ({"staleness": jnp.zeros(2)}, TypeError, "staleness has dtype float32: expected integers"),
        ({"staleness": jnp.zeros(3, jnp.int32)}, ValueError, r"staleness has shape \(3,\): expected log_ratio's"),
    ],
)
def test_approximate_proximal_errors(changed, error, message, unchecked):
    """Each names the argument."""
    with pytest.raises(error, match=message):
        approximate_proximal_log_ratio(**({"log_ratio": jnp.zeros(2), "staleness": jnp.zeros(2, jnp.int32)} | changed))
