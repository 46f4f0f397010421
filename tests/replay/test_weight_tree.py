"""The tree of sums: levels by hand, draws by their chances, and weights of zero, which no rounding may find."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from stellaris.replay import weight_tree

#: The largest number that `jax.random.uniform` gives.
ALMOST_ONE = 1.0 - 2.0**-23

build = jax.jit(weight_tree.build)
update = jax.jit(weight_tree.update)
choose = jax.jit(weight_tree.choose)


@functools.partial(jax.jit, static_argnums=2)
def drawn(tree, key, count):
    return weight_tree.draw(tree, jax.random.uniform(key, (len(tree), count)))


def test_levels_by_hand():
    """Forty weights from 1 to 40: blocks of 16 sum to 16 * 17 / 2 = 136, 136 + 16 * 16 = 392, and 820 - 528 = 292."""
    weights, sums = build(jnp.arange(1.0, 41.0))
    assert weights.tolist() == [*range(1, 41), *[0] * 8]
    assert sums.tolist() == [136, 392, 292, *[0] * 13]
    assert weight_tree.total((weights, sums)) == 820


@pytest.mark.slow
def test_sums_do_not_drift_over_many_updates():
    """After 1,000 updates by weights from 1e-30 to 1e30 the sums are those of a new tree, and what is 0 exactly 0."""
    random = np.random.default_rng(0)
    index = random.integers(0, 2000, (1000, 16)).astype(np.int32)
    new = (10.0 ** random.uniform(-30, 30, index.shape) * (random.random(index.shape) < 0.5)).astype(np.float32)
    index[-125:] = np.arange(2000).reshape(125, 16)  # at last all become small, and the first thousand 0
    new[-125:] = np.where(index[-125:] < 1000, 0.0, 1e-20)
    updates = jax.jit(lambda tree: jax.lax.scan(lambda t, x: (weight_tree.update(t, *x), None), tree, (index, new))[0])
    tree = updates(build(jnp.full(2000, 1e30)))
    fresh = build(jnp.where(jnp.arange(2000) < 1000, 0.0, 1e-20))
    jax.tree.map(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), tree, fresh)
    assert not tree[1][:62].any()  # 62 blocks of 16 are within the first thousand
    assert drawn(tree, jax.random.key(0), 10_000).min() >= 1000


def test_choice_by_hand():
    """Of 1, 0 and 3 the first quarter chooses the first; a point at an end belongs to the next that has any weight."""
    random = jnp.array([0.0, 0.2499, 0.25, 0.5, ALMOST_ONE])
    rows = jnp.broadcast_to(jnp.array([1.0, 0.0, 3.0]), (5, 3))
    assert choose(rows, random).tolist() == [0, 0, 2, 2, 2]
    behind = jnp.broadcast_to(jnp.array([0.0, 2.0, 0.0]), (5, 3))
    assert choose(behind, random).tolist() == [1] * 5
    assert choose(jnp.zeros((5, 3)), random).tolist() == [0] * 5


@pytest.mark.slow
def test_choice_never_is_a_zero_however_sums_round():
    """Of 100,000 rows of any sizes, half of which are zeros, at the points where a sum ends, at both ends, and at 1."""
    random = np.random.default_rng(0)
    weights = 10.0 ** random.uniform(-30, 30, (100_000, 32)) * (random.random((100_000, 32)) < 0.5)
    weights = jnp.asarray(weights, jnp.float32)
    sums = jnp.cumsum(weights, axis=1)
    ends = (sums / sums[:, -1:])[:, 7]
    for point in (0.0, jnp.minimum(ends, ALMOST_ONE), ALMOST_ONE, 1.0):
        chosen = choose(weights, jnp.broadcast_to(point, ends.shape))
        assert (jnp.take_along_axis(weights, chosen[:, None], 1) > 0).all()


def test_chances_are_the_weights():
    """Chi-squared over 400,000 draws from 40 weights, in two levels."""
    weights = np.arange(40.0)
    counts = np.bincount(drawn(build(jnp.asarray(weights)), jax.random.key(1), 400_000), minlength=40)
    assert counts[0] == 0
    expected = weights[1:] / weights.sum() * 400_000
    assert scipy.stats.chisquare(counts[1:], expected).pvalue > 1e-3


def test_a_million_equal_weights_have_equal_chances():
    """One number of 23 bits for a whole draw would give 9 of its values to some weights, and 8 to all others."""
    ends = np.ceil(np.arange(10**6 + 1) * (2**23 / 10**6)).astype(int)
    nine = np.diff(ends) == 9
    draws = 100_000
    got = nine[np.asarray(drawn(build(jnp.ones(10**6)), jax.random.key(4), draws))].sum()
    assert scipy.stats.binomtest(int(got), draws, nine.mean()).pvalue > 1e-3
