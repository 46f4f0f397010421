"""Running statistics of observations and returns."""

import chex
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.acting.normalisation import Normaliser, Statistics


def observations(sizes, shape=(3,), seed=0) -> list[np.ndarray]:
    rng = np.random.default_rng(seed)
    scale = np.logspace(-3, 3, int(np.prod(shape))).reshape(shape)
    return [scale * (rng.standard_normal((n, *shape)) + rng.normal(0, 30)) for n in sizes]


def assert_pooled(statistics: Statistics, pooled: np.ndarray) -> None:
    assert statistics.count == len(pooled)
    np.testing.assert_allclose(statistics.mean, pooled.mean(axis=0), rtol=1e-10)
    np.testing.assert_allclose(statistics.m2, pooled.var(axis=0) * len(pooled), rtol=1e-10)


@pytest.mark.parametrize("shape", [(3,), (), (2, 4)])
@pytest.mark.parametrize("seed", range(10))
def test_merging_agrees_with_pooling(seed, shape):
    """In any order and any grouping, to 1e-10."""
    rng = np.random.default_rng(seed)
    parts = observations(rng.integers(1, 50, size=7), shape, seed)
    pooled = np.concatenate(parts)
    increments = [Statistics.of(part) for part in parts]
    for _ in range(5):
        heap = [increments[i] for i in rng.permutation(len(increments))]
        while len(heap) > 1:
            a, b = heap.pop(int(rng.integers(len(heap)))), heap.pop(int(rng.integers(len(heap))))
            heap.append(a.merge(b))
        assert_pooled(heap[0], pooled)


def test_nothing_is_lost_far_from_zero():
    """A standard deviation of 1 around 10^8: sums of squares would have lost it."""
    x = 1e8 + np.random.default_rng(0).standard_normal((1000, 2))
    merged = Statistics.of(x[:300]).merge(Statistics.of(x[300:]))
    np.testing.assert_allclose(merged.m2, np.square(x - 1e8 - (x - 1e8).mean(axis=0)).sum(axis=0), rtol=1e-6)


def test_empty():
    """Merging with no observation changes nothing, from either side; alone it normalises nothing."""
    empty, some = Statistics.empty(np.zeros(3)), Statistics.of(observations([5])[0])
    for merged in (empty.merge(some), some.merge(empty)):
        chex.assert_trees_all_close(merged, some, rtol=1e-15)
    for few in (empty, empty.merge(empty), Statistics.of(np.full((1, 3), 7.0))):
        normaliser = few.normaliser()
        np.testing.assert_array_equal(normaliser.mean, np.zeros(3))
        np.testing.assert_array_equal(normaliser.scale, np.ones(3))
    assert empty.count == 0  # and nothing was changed in place


def test_trees():
    """Each array of floats by itself, exactly as alone; integers have no statistics, and stay as they are."""
    a, b = observations([7, 9], (2,)), observations([7, 9], (), seed=1)
    pixels = np.random.default_rng(0).integers(0, 256, (16, 2, 2), np.uint8)
    trees = [{"a": a[i], "rest": (b[i], rows, np.arange(len(rows)))} for i, rows in enumerate((pixels[:7], pixels[7:]))]
    merged = Statistics.empty(jax.tree.map(lambda x: x[0], trees[0]))
    for tree in trees:
        merged = merged.merge(Statistics.of(tree))
    assert (merged.mean["rest"][1:], merged.m2["rest"][1:]) == ((None, None), (None, None))
    for mean, m2, parts in [(merged.mean["a"], merged.m2["a"], a), (merged.mean["rest"][0], merged.m2["rest"][0], b)]:
        assert_pooled(Statistics(merged.count, mean, m2), np.concatenate(parts))
    normal = merged.normaliser()(trees[1])
    np.testing.assert_array_equal(normal["a"], Statistics.of(np.concatenate(a)).normaliser()(a[1]))
    np.testing.assert_array_equal(normal["rest"][1], pixels[7:])
    assert normal["rest"][1].dtype == np.uint8
    identity = Statistics.of({"a": pixels}).normaliser()
    assert jax.tree.leaves(identity) == []
    np.testing.assert_array_equal(identity({"a": pixels})["a"], pixels)


def test_normaliser_of_statistics():
    """The observations come out with mean 0 and variance 1, in float32; a feature that never varies as 0."""
    x = np.concatenate([*observations([500]), np.full((500, 1), 2.0)], axis=1)
    normaliser = Statistics.of(x).normaliser()
    assert (normaliser.mean.dtype, normaliser.scale.dtype) == (np.float32, np.float32)
    normal = np.asarray(normaliser(x), np.float64)
    np.testing.assert_allclose(normal.mean(axis=0), 0.0, atol=1e-4)
    np.testing.assert_allclose(normal[:, 1:3].std(axis=0), 1.0, rtol=1e-4)
    np.testing.assert_array_equal(normal[:, 3], 0.0)
    # The first feature's deviation of 10^-3 is ten times the floor of 10^-4: 1 / sqrt(1 + 1/100).
    np.testing.assert_allclose(normal[:, 0].std(), np.sqrt(1 / (1 + 1e-8 / x[:, 0].var())), rtol=1e-3)


def test_normalising_by_hand():
    """(x - mean) * scale, clipped to ten; float32 of any shape, also under jit and of integers."""
    normaliser = Normaliser(jnp.array([1.0, -2.0]), jnp.array([2.0, 0.5]))
    x = np.array([[1.0, -2.0], [3.0, 0.0], [7.0, 99.0], [-99.0, -4.0]])
    expected = np.array([[0.0, 0.0], [4.0, 1.0], [10.0, 10.0], [-10.0, -1.0]], np.float32)
    for function in (normaliser, jax.jit(lambda x: normaliser(x))):
        for given in (x, x.astype(np.float32), x.astype(np.int32), jnp.asarray(x)):
            got = function(given)
            assert got.dtype == jnp.float32
            np.testing.assert_array_equal(got, expected)
    np.testing.assert_array_equal(normaliser(x.reshape(2, 2, 1, 2))[:, :, 0], expected.reshape(2, 2, 2))


def test_returns_are_pooled():
    """Returns of valid steps alone, with and without statistics of observations; a fragment of one reset adds none."""
    rng = np.random.default_rng(0)
    parts = [(rng.normal(50, 7, n), rng.random(n) < 0.8) for n in (9, 1, 30)] + [(np.zeros(1), np.zeros(1, bool))]
    pooled = np.concatenate([returns[valid] for returns, valid in parts])
    for observation in (np.zeros(3), ()):
        merged = Statistics.empty(observation, returns=True)
        assert merged.normaliser().reward == 0
        for returns, valid in parts:
            one = Statistics.of_returns(returns, valid)
            merged = merged.merge(Statistics.empty(observation)._replace(returns=one))
        assert_pooled(merged.returns, pooled)
        np.testing.assert_allclose(merged.normaliser().reward, 1 / pooled.std(), rtol=1e-6)


def test_scaling_rewards_by_hand():
    """By the version's factor, by the batch's own as long as there is none, not at all without factors; clipped."""
    reward = jnp.array([1.0, -2.0, 900.0])

    def normaliser(factor):
        return Normaliser((), (), factor)

    one, none, own = normaliser(np.float32(0.5)), normaliser(np.float32(0)), normaliser(np.float32(0.25))
    np.testing.assert_array_equal(one.rewards(reward, own), [0.5, -1.0, 10.0])
    np.testing.assert_array_equal(none.rewards(reward, own), [0.25, -0.5, 10.0])
    np.testing.assert_array_equal(none.rewards(reward, none), [0.0, 0.0, 0.0])
    assert normaliser(None).rewards(reward, normaliser(None)) is reward
