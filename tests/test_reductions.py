"""The reduction of losses against loops over sequences, and by hand."""

import math

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import ppo_loss, reduce_loss, sequence_log_ratio
from tests.close import close


def batch(seed, shape=(9, 4)):
    """Losses, with NaN at invalid steps and an empty second sequence; and segments of each column."""
    random = np.random.default_rng(seed)
    valid = random.uniform(size=shape) < 0.7
    valid[:, 1] = False
    segment = np.cumsum(random.uniform(size=shape) < 0.3, axis=0).astype(np.int32)
    return np.where(valid, random.normal(size=shape), np.nan), valid, segment


def sequences_of(loss, valid, segment):
    """The valid losses of each sequence that has any."""
    found = {}
    for t, column in np.ndindex(loss.shape):
        if valid[t, column]:
            found.setdefault((column, 0 if segment is None else segment[t, column]), []).append(loss[t, column])
    return list(found.values())


LOOPS = {
    "steps": lambda sequences: math.fsum(map(math.fsum, sequences)) / sum(map(len, sequences)),
    "sequences": lambda sequences: math.fsum(math.fsum(s) / len(s) for s in sequences) / len(sequences),
    "length": lambda sequences: math.fsum(math.fsum(s) / 12.0 for s in sequences) / len(sequences),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("over", LOOPS)
def test_a_loop_over_sequences(over, packed):
    """Counts valid steps and sequences with a valid step, in a column or packed into one, inside `jit`."""
    length = 12.0 if over == "length" else None
    for seed in range(5):
        loss, valid, segment = batch(seed)
        segment = segment if packed else None
        with jax.enable_x64(True):
            got = jax.jit(lambda x, v, s: reduce_loss(x, valid=v, segment=s, over=over, length=length))(
                loss, valid, segment
            )
        close(got, LOOPS[over](sequences_of(loss, valid, segment)), 1e-12)


def test_batches_in_parts():
    """The parts' results, weighted by their shares of the valid steps or of the sequences, are the batch's."""
    loss, valid, _ = batch(7)
    parts = [slice(0, 2), slice(2, 4)]
    for over, size in (("steps", np.sum), ("sequences", lambda v: np.sum(v.any(axis=0)))):
        results = [reduce_loss(loss[:, p], valid=valid[:, p], over=over) for p in parts]
        shares = [size(valid[:, p]) / size(valid) for p in parts]
        close(np.dot(shares, results), reduce_loss(loss, valid=valid, over=over), 1e-5)


def test_gradients():
    """A step's weight is its share, and exactly zero where it is not valid."""
    valid = jnp.array([[True, True], [True, False], [False, False], [True, False]])
    weights = {
        over: jax.grad(lambda x, o=over: reduce_loss(x, valid=valid, over=o, length=8 if o == "length" else None))
        for over in LOOPS
    }
    garbage = jnp.where(valid, 1.0, jnp.nan)
    close(weights["steps"](garbage), np.where(valid, 1 / 4, 0), 1e-6)
    close(weights["sequences"](garbage), np.where(valid, [[1 / 6, 1 / 2]], 0), 1e-6)
    close(weights["length"](garbage), np.where(valid, 1 / 16, 0), 1e-6)


def test_nothing_valid():
    """The mean of nothing is 0, without a NaN on the way."""
    with jax.debug_nans(True):
        for over in LOOPS:
            length = 3.0 if over == "length" else None
            assert reduce_loss(jnp.ones((3, 2)), valid=jnp.zeros((3, 2)), over=over, length=length) == 0.0
            assert reduce_loss(jnp.ones((0, 2)), over=over, length=length) == 0.0


def test_types():
    """Sums are in float32, in which 4,096 ones in bfloat16 are 4,096; a segment out of range shows."""
    got = reduce_loss(jnp.ones((4096, 1), jnp.bfloat16), over="length", length=1)
    assert (got.dtype, float(got)) == (jnp.float32, 4096.0)
    for wrong in (-1, 3):
        assert jnp.isnan(reduce_loss(jnp.ones(3), segment=jnp.array([0, 0, wrong]), over="sequences"))


def test_a_length_may_be_swept():
    swept = jax.jit(jax.vmap(lambda n: reduce_loss(jnp.ones((3, 2)), over="length", length=n)))(jnp.array([1.0, 6.0]))
    close(swept, np.array([3.0, 0.5]))


@pytest.mark.parametrize(
    ("changed", "error", "message"),
    [
        ({"loss": jnp.zeros(2, int)}, TypeError, "loss has dtype int32: expected floating point"),
        ({"loss": jnp.float32(0)}, ValueError, r"loss has shape \(\): expected \[T, ...\]"),
        ({"valid": jnp.ones(3)}, ValueError, r"valid has shape \(3,\): expected loss's \(2,\)"),
        ({"segment": jnp.zeros(2)}, TypeError, "segment has dtype float32: expected integers"),
        ({"over": "tokens"}, ValueError, "over='tokens' is not 'steps', 'sequences' or 'length'"),
        ({"over": "length"}, ValueError, "length=None with over='length'"),
        ({"length": 3.0}, ValueError, r"length=3\.0 with over='steps'"),
        ({"over": "length", "length": 0}, ValueError, "length=0 is not positive"),
        ({"over": "length", "length": "3"}, TypeError, "length='3' is not a number"),
    ],
)
def test_errors(changed, error, message, unchecked):
    """Each names the argument, its value and the remedy."""
    with pytest.raises(error, match=message):
        reduce_loss(**({"loss": jnp.zeros(2)} | changed))


@pytest.mark.parametrize("over", ["steps", "sequences"])
def test_the_segment_of_an_invalid_step_does_not_matter(over):
    """Padding is often numbered -1. It changes neither a value nor a gradient, also behind a log-ratio of sequences."""
    valid, steps = jnp.array([True, True, True, True, False]), jnp.array([0.1, 0.4, -0.2, 0.3, jnp.nan])

    def loss(steps, segment):
        ratio = sequence_log_ratio(steps, valid=valid, segment=segment, over="mean")
        return reduce_loss(ppo_loss(ratio, jnp.ones(5)), valid=valid, segment=segment, over=over)

    found = [jax.value_and_grad(loss)(steps, jnp.array([0, 0, 1, 1, padding])) for padding in (1, -1, 99)]
    for value, gradient in found:
        assert value == found[0][0]
        assert np.isfinite(value)
        np.testing.assert_array_equal(gradient[:4], found[0][1][:4])
        assert np.isfinite(gradient[:4]).all()
    assert np.isnan(loss(steps, jnp.array([0, 0, 1, -1, 1])))  # a valid step's
