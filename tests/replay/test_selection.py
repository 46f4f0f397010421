"""Selections by their chances, worked out by hand and exactly; faults, which leave nothing to use; and errors."""

import itertools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from stellaris.replay import (
    Selection,
    check,
    importance_weights,
    init,
    insert,
    random_steps,
    reweigh,
    select,
    update_weights,
)
from stellaris.replay.table import FAULTS

CAPACITY = 5
WEIGHTS = [5.0, 0.0, 3.0, 1.0]
EVERY = [("uniform", True), ("uniform", False), ("weight", True), ("weight", False), ("top", False)]

pytestmark = pytest.mark.usefixtures("unchecked")


def table_of(weights, capacity=CAPACITY):
    """A table with a trajectory of each weight in its first rows."""
    table = init({"x": jax.ShapeDtypeStruct((), jnp.int8)}, capacity=capacity, length=1)
    if not len(weights):
        return table
    return insert(table, {"x": np.zeros((len(weights), 1), np.int8)}, weight=jnp.asarray(weights, jnp.float32))


@pytest.fixture(scope="module")
def four():
    return table_of(WEIGHTS)


def fits(counts, chances):
    """Whether counts could come of these chances; of what has no chance there must be none."""
    counts = np.asarray(counts)
    chances = np.asarray(chances, float)
    assert not counts[chances == 0].any()
    expected = chances[chances > 0] / chances.sum() * counts.sum()
    return scipy.stats.chisquare(counts[chances > 0], expected).pvalue > 1e-3


@pytest.mark.slow
@pytest.mark.parametrize(("by", "chances"), [("uniform", [1, 1, 1, 1, 0]), ("weight", [5, 0, 3, 1, 0])])
def test_chances_with_replacement(four, by, chances):
    """Chi-squared over 100,000 draws; each comes with its chance. The row that holds nothing is never drawn."""
    chosen = select(four, jax.random.key(0), 100_000, by=by)
    assert fits(np.bincount(chosen.row, minlength=CAPACITY), chances)
    np.testing.assert_allclose(chosen.probability, np.array(chances)[chosen.row] / sum(chances), rtol=1e-6)
    check(chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "weights"), [("uniform", [1, 1, 1, 1, 0]), ("weight", [5, 0, 3, 1, 0])])
def test_chances_without_replacement(four, by, weights):
    """Chi-squared of 20,000 pairs, in order, against successive sampling: `w_i / W * w_j / (W - w_i)`."""
    keys = jax.random.split(jax.random.key(1), 20_000)
    chosen = jax.jit(jax.vmap(lambda key: select(four, key, 2, by=by, replace=False)))(keys)
    counts = np.zeros((CAPACITY, CAPACITY))
    np.add.at(counts, (chosen.row[:, 0], chosen.row[:, 1]), 1)
    chances = np.zeros((CAPACITY, CAPACITY))
    for i, j in itertools.permutations(range(CAPACITY), 2):
        chances[i, j] = weights[i] / sum(weights) * weights[j] / (sum(weights) - weights[i])
    assert fits(counts.ravel(), chances.ravel())
    np.testing.assert_allclose(chosen.probability, np.array(weights)[chosen.row] / sum(weights), rtol=1e-6)
    check(chosen)


def test_a_race_of_weights_a_billion_times_apart():
    """Sixty decades are drawn in the order of their weights: each outweighs all below by so much."""
    weights = 10.0 ** np.array([0, 30, -30, 10, -10, 20, -20])
    table = table_of(weights, capacity=7)
    chosen = select(table, jax.random.key(0), 7, by="weight", replace=False)
    check(chosen)
    assert chosen.row.tolist() == [1, 5, 3, 0, 4, 6, 2]


@pytest.mark.slow
@pytest.mark.parametrize("weight", [1.2e-38, 1e30])
def test_a_race_at_the_ends_of_the_scale(weight):
    """All are drawn, though the times of the least weights are beyond the largest number."""
    table = table_of([weight] * 20, capacity=20)
    chosen = jax.vmap(lambda key: select(table, key, 20, by="weight", replace=False))(
        jax.random.split(jax.random.key(0), 50)
    )
    check(chosen)
    assert (jnp.sort(chosen.row, axis=1) == jnp.arange(20)).all()


def a_million(weights):
    """A table whose rows all hold something, of these weights."""
    table = init({"x": jax.ShapeDtypeStruct((), jnp.int8)}, capacity=len(weights), length=1)
    table = table._replace(number=jnp.arange(len(weights)), inserted=jnp.int32(len(weights)))
    return reweigh(table, jnp.asarray(weights, jnp.float32))


@pytest.mark.slow
def test_a_million_trajectories():
    """What has no weight is drawn by no rule by weight, though most have none, nor after many changes of weights."""
    random = np.random.default_rng(0)
    weights = np.where(random.random(10**6) < 0.1, 10.0 ** random.uniform(-30, 30, 10**6), 0.0).astype(np.float32)
    table = a_million(weights)
    for seed in range(10):
        index = random.integers(0, 10**6, 1000)
        new = np.where(random.random(1000) < 0.5, 10.0 ** random.uniform(-30, 30, 1000), 0.0).astype(np.float32)
        table = update_weights(table, index, new)
        for i, weight in zip(index, new, strict=True):
            weights[i] = weight
        chosen = select(table, jax.random.key(seed), 1000, by="weight")
        assert (weights[np.asarray(chosen.row)] > 0).all()
    np.testing.assert_array_equal(table.weight, weights)
    race = select(table, jax.random.key(0), 1000, by="weight", replace=False)
    assert (weights[np.asarray(race.row)] > 0).all()
    assert len({*race.row.tolist()}) == 1000
    top = select(table, jax.random.key(0), 1000, by="top")
    assert top.row.tolist() == np.argsort(-weights, kind="stable")[:1000].tolist()
    for chosen in (race, top, table):
        check(chosen)


@pytest.mark.slow
@pytest.mark.parametrize(("by", "replace"), EVERY)
def test_the_same_key_selects_the_same(four, by, replace):
    """Within the caller's jit and scan as well; another key another, but for the top."""
    keys = jax.random.split(jax.random.key(3), 20)

    @jax.jit
    def scanned(table):
        return jax.lax.scan(lambda _, key: (None, select(table, key, 3, by=by, replace=replace)), None, keys)[1]

    inside = scanned(four)
    outside = [select(four, key, 3, by=by, replace=replace) for key in keys]
    np.testing.assert_array_equal(inside.row, [x.row for x in outside])
    np.testing.assert_array_equal(inside.probability, [x.probability for x in outside])
    check(inside)
    assert len({*map(tuple, inside.row.tolist())}) == 1 if by == "top" else len({*map(tuple, inside.row.tolist())}) > 3


_, _, EMPTY, TOO_FEW, _ = FAULTS


@pytest.mark.slow
@pytest.mark.parametrize(("by", "replace"), EVERY)
@pytest.mark.parametrize("weights", [[], [0.0, 0.0, 0.0, 0.0]])
def test_an_empty_table_is_a_fault(by, replace, weights):
    """And one whose weights are all 0, but for a uniform selection. No row lies outside, where nothing may be read."""
    chosen = select(table_of(weights), jax.random.key(0), 3, by=by, replace=replace)
    assert ((chosen.row >= 0) & (chosen.row < CAPACITY)).all()
    if by == "uniform" and weights:
        check(chosen)
    else:
        with pytest.raises(ValueError, match=f"^{re.escape(EMPTY)}$"):
            check(chosen)


def test_one_fault_of_many_selections_is_found():
    flags = jnp.array([0, 0, 8, 0, 4])
    with pytest.raises(ValueError, match=re.escape(f"{EMPTY}; {TOO_FEW}")):
        check(Selection(jnp.zeros((5, 2), jnp.int32), jnp.zeros((5, 2)), flags))


@pytest.mark.parametrize(
    ("count", "more", "error", "message"),
    [
        (2, {"by": "newest"}, ValueError, "by='newest': expected 'uniform', 'weight' or 'top'"),
        (0, {}, ValueError, "count=0 is below 1"),
        (2.0, {}, TypeError, "count=2.0 is not a whole number"),
        (2, {"replace": "False"}, TypeError, "replace='False': expected True or False"),
        (6, {"by": "top"}, ValueError, "count=6: without replacement at most 5 can be drawn"),
        (6, {"replace": False}, ValueError, "count=6: without replacement at most 5 can be drawn"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_errors(four, count, more, error, message, traced):
    def chosen(table):
        return select(table, jax.random.key(0), count, **more)

    with pytest.raises(error, match=re.escape(message)):
        (jax.jit(chosen) if traced else chosen)(four)


def test_the_key_of_a_draw_is_checked(four):
    """It is the argument that is named, and not JAX's implementation of keys."""
    with pytest.raises(TypeError, match=r"^key=0 is not a key: pass jax\.random\.key\(0\)"):
        select(four, 0, 2)
    with pytest.raises(TypeError, match=r"^key=None is not a key"):
        random_steps(four, select(four, jax.random.key(0), 2), None)


def test_importance_weights_are_schauls():
    """`(1 / N * 1 / P(i)) ** beta`, over the largest of the batch (Schaul et al. 2016, section 3.4)."""
    priorities = np.array([0.5, 1.0, 2.0, 4.0]) ** 0.6
    chances = priorities / priorities.sum()
    for beta in (0.4, 1.0):
        by_hand = [(1 / 4 * 1 / chance) ** beta for chance in chances]
        got = importance_weights(jnp.asarray(chances, jnp.float32), 4, beta=beta)
        np.testing.assert_allclose(got, np.array(by_hand) / max(by_hand), rtol=1e-6)
    np.testing.assert_array_equal(importance_weights(jnp.asarray(chances), 4, beta=0.0), np.ones(4))


@pytest.mark.slow
def test_importance_weights_make_a_mean_unbiased(four):
    """With beta 1 the weighted mean over draws by weight is the mean over trajectories that can be drawn."""
    chosen = select(four, jax.random.key(0), 100_000, by="weight")
    weights = importance_weights(chosen.probability, four.size, beta=1.0)
    value = jnp.array([1.0, 100.0, 4.0, 10.0])[chosen.row]
    np.testing.assert_allclose((weights * value).sum() / weights.sum(), (1 + 4 + 10) / 3, rtol=0.02)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16"])
@pytest.mark.parametrize("beta", [0.0, 0.4, 1.0])
@pytest.mark.parametrize(
    ("chances", "size"), [([1.0, 0.0], 2), ([0.0, 0.0], 0), ([1.0, 1e-38], 5), ([0.5, 0.25], 10**6), ([1.0, 0.5], 2)]
)
def test_importance_weights_are_in_their_range(chances, size, beta, dtype):
    """In (0, 1], the least chance with the weight 1, also where a chance is too small for its dtype."""
    weights = np.asarray(importance_weights(jnp.array(chances, dtype), size, beta=beta).astype(jnp.float32))
    assert ((weights > 0) & (weights <= 1)).all()
    assert weights[np.argmin(chances)] == 1
    assert importance_weights(jnp.array(chances, dtype), size, beta=beta).dtype == dtype


@pytest.mark.slow
def test_importance_weights_of_weights_far_apart():
    """1e20 and 1e-20, both of which are drawn: the correction of the first is as good as none of it."""
    chosen = select(table_of([1e20, 1e-20]), jax.random.key(0), 2, by="weight", replace=False)
    check(chosen)
    weights = importance_weights(chosen.probability, 2, beta=1.0)
    assert weights[1] == 1
    assert 0 < weights[0] < 1e-37


def test_errors_of_importance_weights():
    with pytest.raises(ValueError, match=re.escape("beta=1.5 lies outside [0, 1]")):
        importance_weights(jnp.ones(2), 4, beta=1.5)
    with pytest.raises(TypeError, match="probability has dtype int32"):
        importance_weights(jnp.ones(2, int), 4, beta=1.0)
