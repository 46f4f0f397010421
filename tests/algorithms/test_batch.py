"""Batches: minibatches that cover each epoch once, and means over valid samples."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import IMPACT, IMPALA, PPO
from stellaris.algorithms import Batch
from stellaris.algorithms.batch import cleaned, flatten, masked_mean, permutation, standardized, take
from tests.algorithms.problems import close, equal, gaussian, parameters
from tests.algorithms.test_impala import sample_trajectory


def samples(n):
    return Batch(*[jnp.zeros(n)] * len(Batch._fields))


def test_minibatches_of_nothing():
    with pytest.raises(ValueError, match="size=0 is below 1"):
        PPO().minibatches(jax.random.key(0), samples(0))


@pytest.mark.usefixtures("unchecked")
@pytest.mark.parametrize("algorithm", [PPO(), IMPALA(), IMPACT()], ids=lambda algorithm: type(algorithm).__name__)
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: {"observation": t.observation[:-1]}, r"^observation has shape .*, one row more than reward"),
        (lambda t: {"observation": {"a": t.observation[1:]}}, r"^observation\['a'\] has shape .*, one row more"),
        (lambda t: {"action": t.action[:-1]}, r"^action has shape .*, \.\.\.\), as reward"),
        (lambda t: {"log_prob": t.log_prob[:, 0]}, r"^log_prob has shape .*: expected reward's"),
        (lambda t: {"version": t.version[0, 0]}, r"^version has shape \(\): expected reward's .*; broadcast it"),
    ],
)
def test_a_trajectory_with_rows_missing_is_refused(algorithm, change, message):
    """An index beyond an array takes its last row, so samples would be paired with other observations."""
    trajectory = sample_trajectory(gaussian)
    with pytest.raises(ValueError, match=message):
        algorithm.prepare(trajectory._replace(**change(trajectory)), gaussian, parameters(1, like=0))


@pytest.mark.usefixtures("unchecked")
def test_what_is_no_batch_or_no_tuple_of_peers_is_refused():
    trajectory, params = sample_trajectory(gaussian), parameters(1, like=0)
    for algorithm in (PPO(), IMPACT()):
        with pytest.raises(TypeError, match="batch is a Trajectory: pass the result of the algorithm's prepare"):
            algorithm.loss(gaussian, params, trajectory)
    with pytest.raises(TypeError, match=r"peers is a \w+: expected a tuple of policies' parameters"):
        PPO().loss(gaussian, params, PPO().prepare(trajectory), params)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("size", "minibatch_size", "shape"),
    [
        (8, 4, (6, 4)),  # even
        (6, 4, (6, 3)),  # two of three rather than four and two
        (10, 4, (9, 4)),  # two indices of padding
        (5, 100, (3, 5)),  # full batch
        (1, 1, (3, 1)),
    ],
)
def test_minibatches_cover_each_epoch_once(size, minibatch_size, shape):
    """Every index exactly once an epoch, then the padding, which fills no minibatch."""
    indices = PPO(epochs=3, minibatch_size=minibatch_size).minibatches(jax.random.key(0), samples(size))
    assert (indices.shape, indices.dtype) == (shape, jnp.int32)
    epochs = np.asarray(indices).reshape(3, -1)
    for epoch in epochs:
        assert sorted(epoch[:size]) == list(range(size))
        assert (epoch[size:] == size).all()
    assert (np.asarray(indices)[:, 0] < size).all()


@pytest.mark.slow
def test_minibatches_are_shuffled_anew():
    """Epochs differ from each other and from the order of the batch, and keys from each other; a key repeats itself."""
    ppo = PPO(epochs=2, minibatch_size=50)
    first, second = ppo.minibatches(jax.random.key(0), samples(50))
    orders = [first, second, ppo.minibatches(jax.random.key(1), samples(50))[0], jnp.arange(50)]
    assert len({tuple(order.tolist()) for order in orders}) == 4
    jitted = jax.jit(PPO.minibatches, static_argnums=0)
    equal(jitted(ppo, jax.random.key(0), samples(50)), jnp.stack([first, second]))


@pytest.mark.slow
@pytest.mark.parametrize("size", [1, 2, 7, 100, 1625, 1626, 4096, 70_000])  # one, two rounds of sorting, and three
def test_permutations_are_those_of_jax(size):
    """Number by number, compiled for several keys at once as for one."""
    keys = jax.random.split(jax.random.key(size), 2)
    expected = jnp.stack([jax.random.permutation(key, size) for key in keys])
    got = jax.jit(jax.vmap(lambda key: permutation(key, size)))(keys)
    assert got.dtype == jnp.int32
    np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(permutation(keys[0], size), expected[0])


def test_an_index_beyond_a_batch_is_not_valid():
    """Zeros and False in its place, along either axis; the types stay."""
    batch = {"x": jnp.arange(6.0).reshape(3, 2), "valid": jnp.ones((3, 2), bool)}
    got = take(batch, jnp.array([2, 3, 0]))
    equal(got, {"x": [[4.0, 5.0], [0.0, 0.0], [0.0, 1.0]], "valid": [[True] * 2, [False] * 2, [True] * 2]})
    got = take(batch, jnp.array([1, 2]), axis=1)
    equal(got, {"x": [[1.0, 0.0], [3.0, 0.0], [5.0, 0.0]], "valid": [[True, False]] * 3})


def test_flattening_by_hand():
    """Sample `t * B + b` is step t of environment b; what follows the axes stays."""
    got = flatten({"x": np.arange(12).reshape(2, 3, 2), "y": np.arange(6).reshape(2, 3)}, 2)
    equal(got, {"x": np.arange(12).reshape(6, 2), "y": np.arange(6)})


def test_means_by_hand():
    """Over valid samples, though others hold NaN; of truth values a fraction; of none zero."""
    valid = jnp.array([True, False, True, True])
    assert masked_mean(jnp.array([1.0, jnp.nan, 3.0, 5.0]), valid) == 3.0
    assert masked_mean(jnp.array([True, True, False, False]), valid) == jnp.float32(1 / 3)
    assert masked_mean(jnp.full(4, jnp.nan), jnp.zeros(4, bool)) == 0.0
    close(standardized(jnp.array([1.0, 99.0, 3.0, 5.0]), valid), np.array([-1.0, 0.0, 0.0, 1.0]) * np.sqrt(1.5))


def test_equal_samples_are_standardised_to_zero():
    """Though their mean is rounded; a NaN among them is not hidden."""
    valid = jnp.arange(512) < 500
    x = jnp.full(512, 100.1).at[-1].set(7.0)
    np.testing.assert_array_equal(standardized(x, valid), 0.0)
    assert jnp.isnan(standardized(x.at[0].set(jnp.nan), valid)[1])


def test_means_of_many_samples_in_float16():
    """The number of samples and their sum are beyond float16, the mean is not."""
    x = jnp.full(70_000, 10, jnp.float16)
    assert masked_mean(x, jnp.ones(70_000, bool)) == 10
    varied = x.at[::2].set(8)
    scaled = standardized(varied, jnp.ones(70_000, bool))
    assert scaled.dtype == jnp.float16
    np.testing.assert_array_equal(scaled[:2], [-1, 1])


def test_cleaned_fields_are_zero_where_not_valid():
    """Those named, whatever they held and however many axes they have; the others are left alone."""
    batch = samples(2)._replace(
        observation=jnp.full((2, 3), jnp.nan),
        action=jnp.array([[1.0, 2.0], [jnp.nan, jnp.inf]]),
        advantage=jnp.array([3.0, jnp.nan]),
        valid=jnp.array([True, False]),
    )
    got = cleaned(batch, "action", "advantage")
    equal(got.action, [[1.0, 2.0], [0.0, 0.0]])
    equal(got.advantage, [3.0, 0.0])
    equal(got.observation, batch.observation)
