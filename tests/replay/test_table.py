"""The table by hand: rows, removal, dtypes, faults and errors; nothing is compiled twice, and nothing large copied."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import exponential_weight, hinge_weight, polynomial_weight, staleness_weight
from stellaris.replay import check, init, insert, reweigh, select, update_weights
from stellaris.replay import table as module

CAPACITY = 5
LENGTH = 4

pytestmark = pytest.mark.usefixtures("unchecked")


def rewards(*values, steps=LENGTH):
    """A batch of trajectories whose rewards are all of these values."""
    return {"reward": jnp.repeat(jnp.array(values, jnp.float32)[:, None], steps, axis=1)}


def empty(capacity=CAPACITY):
    return init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=capacity, length=LENGTH)


def filled():
    """Five trajectories of rewards 1 to 5, lengths 1, 2, 3, 4, 4, weights 5, 1, 3, 1, 2 and versions 10 to 14."""
    return insert(
        empty(),
        rewards(1, 2, 3, 4, 5),
        length=jnp.array([1, 2, 3, 4, 4]),
        weight=jnp.array([5.0, 1.0, 3.0, 1.0, 2.0]),
        version=jnp.arange(10, 15),
    )


def test_an_empty_table():
    """Zeros of the shapes that were asked for, rows that hold nothing, and no fault."""
    spec = {"frame": jax.ShapeDtypeStruct((2, 3), jnp.uint8), "done": jax.ShapeDtypeStruct((), bool)}
    table = init(spec, capacity=6, length=7)
    assert {name: (x.shape, x.dtype) for name, x in table.columns.items()} == {
        "frame": ((6, 7, 2, 3), jnp.uint8),
        "done": ((6, 7), bool),
    }
    assert (table.capacity, int(table.size)) == (6, 0)
    assert table.number.tolist() == [-1] * 6
    assert table.weight.tolist() == table.length.tolist() == [0] * 6
    check(table)


def test_what_is_inserted():
    """Each trajectory's own steps, length, weight, version and number; zeros behind its steps, whatever was given."""
    table = filled()
    assert table.columns["reward"].tolist() == [[1, 0, 0, 0], [2, 2, 0, 0], [3, 3, 3, 0], [4] * 4, [5] * 4]
    assert table.length.tolist() == [1, 2, 3, 4, 4]
    assert table.weight.tolist() == [5, 1, 3, 1, 2]
    assert table.version.tolist() == [10, 11, 12, 13, 14]
    assert table.number.tolist() == [0, 1, 2, 3, 4]
    assert (int(table.inserted), int(table.size)) == (5, 5)
    check(table)


def test_the_oldest_make_room():
    """Round the rows, also within one batch; nothing of a longer trajectory stays behind a shorter one."""
    table = insert(insert(filled(), rewards(6, 7, 8)), rewards(9, 10, 11, steps=2), version=jnp.array([7, 8, 9]))
    assert table.columns["reward"].tolist() == [[11, 11, 0, 0], [7] * 4, [8] * 4, [9, 9, 0, 0], [10, 10, 0, 0]]
    assert table.number.tolist() == [10, 6, 7, 8, 9]
    assert table.length.tolist() == [2, 4, 4, 2, 2]
    assert table.version.tolist() == [9, 0, 0, 7, 8]
    assert (int(table.inserted), int(table.size)) == (11, 5)


def test_the_lowest_make_room():
    """Of equal weights the first row; rows that hold nothing come first, in order."""
    table = insert(filled(), rewards(6, 7, 8), weight=jnp.array([0.0, 9.0, 2.0]), removal="lowest")
    assert table.columns["reward"][:, 0].tolist() == [1, 6, 3, 7, 8]  # weights were 5, 1, 3, 1, 2
    assert table.weight.tolist() == [5, 0, 3, 9, 2]
    assert table.number.tolist() == [0, 5, 2, 6, 7]
    table = empty()
    for value in (1, 2, 3):
        table = insert(table, rewards(value), weight=0.0, removal="lowest")
    assert table.columns["reward"][:, 0].tolist() == [1, 2, 3, 0, 0]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("dtype", "shape"),
    [("float32", (2,)), ("float64", (2,)), ("bfloat16", ()), ("uint8", (4, 4, 2)), ("int32", ()), ("bool", (1,))],
)
def test_every_dtype_is_kept(dtype, shape):
    """All bits of what NumPy has, from NumPy's arrays and JAX's; float64 where it is enabled."""
    dtype = jnp.dtype(dtype)
    random = np.random.default_rng(0)
    bits = random.integers(0, 256, (CAPACITY, LENGTH, *shape, dtype.itemsize), np.uint8)
    values = bits[..., 0] > 127 if dtype.kind == "b" else (bits // 2).view(dtype)[..., 0]  # // 2: no NaN
    with jax.enable_x64(dtype == jnp.float64):
        table = init({"x": jax.ShapeDtypeStruct(shape, dtype)}, capacity=CAPACITY, length=LENGTH)
        kinds = jax.tree.map(lambda x: x.dtype, table)
        table = insert(table, {"x": values[:3]})
        table = insert(table, {"x": jnp.asarray(values[3:])})
        assert jax.tree.map(lambda x: x.dtype, table) == kinds
        np.testing.assert_array_equal(np.asarray(table.columns["x"]), values)


def test_weights_change():
    """Of the same row twice the last counts; the others stay, and the sums are right."""
    table = update_weights(filled(), jnp.array([0, 3, 0]), jnp.array([7.0, 0.0, 8.0]))
    assert table.weight.tolist() == [8, 1, 3, 0, 2]
    assert table.weights[-1].sum() == 14
    check(table)


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (lambda lag: staleness_weight(lag, smoothness=2.0), [4**-0.5, 3**-0.5, 2**-0.5, 1, 1]),
        (polynomial_weight, [5**-0.5, 0.5, 3**-0.5, 2**-0.5, 1]),
        (lambda lag: exponential_weight(lag, rate=jnp.log(2.0)), [1 / 16, 1 / 8, 1 / 4, 1 / 2, 1]),
        (lambda lag: hinge_weight(lag, slope=1.0, tolerance=2.0), [1 / 3, 1 / 2, 1, 1, 1]),
    ],
)
def test_weights_by_staleness(rule, expected):
    """Versions 10 to 14, the newest being 14, by each rule that the library has for gradients."""
    table = filled()
    table = reweigh(table, rule(14 - table.version))
    np.testing.assert_allclose(table.weight, expected, rtol=1e-6)
    np.testing.assert_allclose(table.weights[-1].sum(), sum(expected), rtol=1e-6)


def test_rows_that_hold_nothing_keep_no_weight():
    """Whatever they are given, and even where it is not a number."""
    table = reweigh(insert(empty(), rewards(1, 2)), jnp.array([3.0, 4.0, 5.0, jnp.nan, -1.0]))
    assert table.weight.tolist() == [3, 4, 0, 0, 0]
    check(table)


@pytest.mark.parametrize("removal", ["oldest", "lowest"])
@pytest.mark.parametrize("before", [2**31 - 3, 2**31 - 1])
def test_counts_do_not_end(removal, before):
    """A table goes on beyond 2^31 insertions as one that has seen few: sizes, rows, and the order of insertion."""
    tables = []
    for seen in (before, before % CAPACITY + CAPACITY):
        number = jnp.arange(seen - CAPACITY, seen)
        row = number % CAPACITY
        table = filled()
        table = table._replace(number=table.number.at[row].set(number), inserted=jnp.int32(seen))
        for i in range(4):
            table = insert(table, rewards(6 + i, 7 + i), removal=removal)
        tables.append(table)
    late, early = tables
    assert int(late.size) == CAPACITY
    assert (late.number >= 0).all()
    assert (late.inserted > late.number).all()
    assert jnp.argsort(late.number).tolist() == jnp.argsort(early.number).tolist()
    assert late.columns["reward"].tolist() == early.columns["reward"].tolist()
    check(late)


def test_counts_of_a_table_that_is_not_full():
    """Rows that hold nothing stay so where many trajectories have replaced each other."""
    table = insert(empty(), rewards(1, 2), removal="lowest")
    table = table._replace(number=table.number.at[1].set(2**31 - 9), inserted=jnp.int32(2**31 - 8))
    table = module._recounted(table, CAPACITY)
    assert table.number.tolist() == [0, 2**31 - 9, -1, -1, -1]
    table = module._recounted(table._replace(inserted=jnp.int32(2**31 - 1)), CAPACITY)
    assert table.number.tolist() == [0, 2**30 - 9 + 2**30 % CAPACITY, -1, -1, -1]
    assert 2**30 - CAPACITY < int(table.inserted) - 2**30 % CAPACITY <= 2**30


@pytest.mark.parametrize("weight", [1e-39, 1e-45])
def test_a_weight_below_the_least_counts_as_0(weight):
    """Wherever it comes in, as the error of a selection says; the least one counts."""
    for table in (
        insert(empty(), rewards(1, 2, 3), weight=np.full(3, weight, np.float32)),
        update_weights(insert(empty(), rewards(1, 2, 3)), np.arange(3), np.full(3, weight, np.float32)),
        reweigh(insert(empty(), rewards(1, 2, 3)), np.full(CAPACITY, weight, np.float32)),
    ):
        assert np.asarray(table.weight).tobytes() == bytes(4 * CAPACITY)
        check(table)
        with pytest.raises(ValueError, match=re.escape("whose weights are all 0 (below 1.2e-38 they count as 0)")):
            check(select(table, jax.random.key(0), 2, by="weight"))
    table = insert(empty(), rewards(1, 2, 3), weight=np.full(3, module.LEAST_WEIGHT, np.float32))
    drawn = select(table, jax.random.key(0), 100, by="weight")
    check(drawn)
    assert sorted({*drawn.row.tolist()}) == [0, 1, 2]


BAD_WEIGHT, BAD_LENGTH, _, _, BAD_INDEX = module.FAULTS
BAD_WEIGHTS = [-1.0, float("nan"), float("inf"), -float("inf"), 1.1e30]


@pytest.mark.parametrize("bad", BAD_WEIGHTS)
def test_a_bad_weight_is_a_fault(bad):
    """It counts as 0 wherever it comes in, the others count as they are, and the flag stays until it is looked at."""
    weights = jnp.array([1.0, bad, 3.0])
    inserted = insert(empty(), rewards(1, 2, 3), weight=weights)
    updated = update_weights(insert(empty(), rewards(1, 2, 3)), jnp.arange(3), weights)
    reweighed = reweigh(insert(empty(), rewards(1, 2, 3)), jnp.pad(weights, (0, 2)))
    for table in (inserted, updated, reweighed):
        assert table.weight.tolist() == [1, 0, 3, 0, 0]
        with pytest.raises(ValueError, match=f"^{re.escape(BAD_WEIGHT)}$"):
            check(table)
    with pytest.raises(ValueError, match=f"^{re.escape(BAD_WEIGHT)}$"):
        check(insert(table, rewards(4, 5, 6), weight=jnp.ones(3)))


@pytest.mark.parametrize(("bad", "kept"), [(0, 0), (-1, 0), (LENGTH + 1, LENGTH)])
def test_a_bad_length_is_a_fault(bad, kept):
    """The trajectory's weight is 0, and the others are as they should be."""
    table = insert(empty(), rewards(1, 2, 3), length=jnp.array([4, bad, 2]))
    assert table.length.tolist() == [4, kept, 2, 0, 0]
    assert table.weight.tolist() == [1, 0, 1, 0, 0]
    with pytest.raises(ValueError, match=f"^{re.escape(BAD_LENGTH)}$"):
        check(table)


def test_a_length_above_the_steps_given_is_a_fault():
    """Though the table has as many: what would the steps be?"""
    with pytest.raises(ValueError, match="above the number of steps given"):
        check(insert(empty(), rewards(1, 2, 3, steps=2), length=jnp.array([1, 2, 3])))


@pytest.mark.parametrize("bad", [-1, 3, CAPACITY, 32, 10**6])
def test_an_index_out_of_range_is_a_fault(bad):
    """Be it of a row that holds nothing yet; no weight changes but those of the others."""
    table = insert(empty(), rewards(1, 2, 3))
    table = update_weights(table, jnp.array([0, bad, 2]), jnp.array([4.0, 5.0, 6.0]))
    assert table.weight.tolist() == [4, 1, 6, 0, 0]
    assert table.weights[-1].sum() == 11
    with pytest.raises(ValueError, match=f"^{re.escape(BAD_INDEX)}$"):
        check(table)


def test_all_faults_are_named():
    """Each by its own words, in one error."""
    table = insert(empty(), rewards(1, 2, 3), length=jnp.array([4, 0, 2]), weight=jnp.array([1.0, 1.0, -1.0]))
    table = update_weights(table, jnp.array([0, -1, 2]), jnp.ones(3))
    with pytest.raises(ValueError, match=f"^{re.escape('; '.join((BAD_WEIGHT, BAD_LENGTH, BAD_INDEX)))}$"):
        check(table)


SPEC = {"reward": jax.ShapeDtypeStruct((), jnp.float32)}


@pytest.mark.parametrize(
    ("spec", "sizes", "error", "message"),
    [
        ({}, {}, ValueError, "spec is empty"),
        (SPEC, {"capacity": 0}, ValueError, "capacity=0 is below 1"),
        (SPEC, {"length": 0}, ValueError, "length=0 is below 1"),
        (SPEC, {"capacity": 2**31}, ValueError, "capacity=2147483648: a table holds at most 1073741824 trajectories"),
        (SPEC, {"capacity": 2.5}, TypeError, "capacity=2.5 is not a whole number"),
        (
            {"x": jax.ShapeDtypeStruct((), np.float64)},
            {},
            ValueError,
            "column 'x' has dtype float64: enable jax_enable_x64",
        ),
    ],
)
def test_errors_of_init(spec, sizes, error, message):
    """A table that cannot be is refused, by name."""
    with pytest.raises(error, match=re.escape(message)):
        init(spec, **{"capacity": 2, "length": 3, **sizes})


@pytest.mark.parametrize(
    ("columns", "more", "error", "message"),
    [
        ({}, {}, ValueError, "column 'reward' is missing: the table has reward"),
        ({"reward": np.zeros((1, 4), np.float32), "x": np.zeros((1, 4))}, {}, ValueError, "column 'x' is unknown"),
        ({"reward": np.zeros(4, np.float32)}, {}, ValueError, "'reward' has shape (4,): expected [batch, steps, ...]"),
        ({"reward": np.zeros((1, 4, 2), np.float32)}, {}, ValueError, "'reward' has shape (1, 4, 2): expected"),
        (
            {"reward": np.zeros((1, 4), np.int32)},
            {},
            TypeError,
            "'reward' has dtype int32: the table has float32; convert it, such as by x.astype('float32')",
        ),
        ({"reward": np.zeros((1, 5), np.float32)}, {}, ValueError, "5 steps: a trajectory of the table has 1 to 4"),
        ({"reward": np.zeros((1, 0), np.float32)}, {}, ValueError, "0 steps: a trajectory of the table has 1 to 4"),
        ({"reward": np.zeros((6, 4), np.float32)}, {}, ValueError, "columns have 6 trajectories: the table holds 5"),
        ({"reward": np.zeros((0, 4), np.float32)}, {}, ValueError, "columns have 0 trajectories"),
        (rewards(1), {"removal": "newest"}, ValueError, "removal='newest': expected 'oldest' or 'lowest'"),
        (rewards(1), {"length": np.ones(2, int)}, ValueError, "length has shape (2,): expected (1,)"),
        (rewards(1), {"weight": np.ones(2)}, ValueError, "weight has shape (2,): expected (1,)"),
        (rewards(1), {"version": np.ones((1, 1), int)}, ValueError, "version has shape (1, 1): expected (1,)"),
        (rewards(1), {"length": np.ones(1)}, TypeError, "length has dtype float32: expected integers"),
        (rewards(1), {"version": 1.5}, TypeError, "version has dtype float32: expected integers"),
        (
            rewards(1),
            {"version": np.array(2**32 + 7)},
            ValueError,
            "version has 4294967303: expected a number of int32",
        ),
        (
            rewards(1),
            {"length": np.array([2**32 + 1])},
            ValueError,
            "length has 4294967297: expected a number of int32",
        ),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_errors_of_insert(columns, more, error, message, traced):
    """All that shapes and dtypes say is said at once, in the caller's own jit as well; the table is still there."""
    table = empty()
    add = functools.partial(insert, **more)
    if traced:
        add = jax.jit(add)
    with pytest.raises(error, match=re.escape(message)):
        add(table, columns)
    assert table.columns["reward"].sum() == 0


def test_numbers_of_64_bits_that_fit_are_inserted():
    """As NumPy makes them: they become the table's, except where a number would be another."""
    table = init({"action": jax.ShapeDtypeStruct((), jnp.int32)}, capacity=2, length=1)
    table = insert(table, {"action": np.array([[2**31 - 1], [-(2**31)]])})
    assert table.columns["action"].tolist() == [[2**31 - 1], [-(2**31)]]
    with pytest.raises(ValueError, match=re.escape("'action' has 2147483648: the table's int32 cannot hold it")):
        insert(table, {"action": np.array([[2**31 - 1], [2**31]])})
    with pytest.raises(ValueError, match=re.escape("'reward' has -1e+39: the table's float32 cannot hold it")):
        insert(empty(), {"reward": np.array([[np.inf, np.nan, 1.0, -1e39]])})
    assert insert(empty(), {"reward": np.full((1, 1), np.inf)}).columns["reward"][0, 0] == np.inf


@pytest.mark.parametrize(
    ("index", "weight", "error", "message"),
    [
        (np.zeros(2), np.zeros(2), TypeError, "index has dtype float32: expected integers"),
        (np.zeros(2, int), np.zeros(2, int), TypeError, "weight has dtype int32: expected floating point"),
        (np.zeros(2, int), np.zeros(3), ValueError, "weight has shape (3,): expected index's (2,)"),
        (np.array([0, 2**32]), np.zeros(2), ValueError, "index has 4294967296: expected a number of int32"),
    ],
)
def test_errors_of_changing_weights(index, weight, error, message):
    """Named, for some rows and for all of them."""
    with pytest.raises(error, match=re.escape(message)):
        update_weights(empty(), index, weight)


def test_errors_of_reweighing():
    """One weight is needed for each row, in floating point."""
    with pytest.raises(ValueError, match=re.escape("weight has shape (3,): expected length's (5,)")):
        reweigh(empty(), np.zeros(3))
    with pytest.raises(TypeError, match="weight has dtype int32"):
        reweigh(empty(), np.zeros(CAPACITY, int))


def test_nothing_is_compiled_twice_as_a_table_fills():
    """Twelve batches into five rows, their weights changed in between: one program for each function."""
    table = empty()
    sizes = []
    for i in range(12):
        table = insert(table, rewards(i, i), length=jnp.array([1, 4]), weight=jnp.ones(2), version=jnp.array([i, i]))
        table = update_weights(table, jnp.array([0, 1]), jnp.array([2.0, float(i)]))
        table = reweigh(table, table.weight + 1.0)
        sizes.append([f._cache_size() for f in (module._insert, module._update_weights, module._reweigh)])
    assert sizes == [sizes[0]] * 12
    check(table)


@pytest.mark.parametrize(
    "change",
    [
        lambda table: insert(table, rewards(1, 2, 3)),
        lambda table: update_weights(table, jnp.arange(3), jnp.ones(3)),
        lambda table: reweigh(table, jnp.ones(CAPACITY)),
    ],
)
def test_the_table_that_was_given_is_donated(change):
    """Its columns are gone, and lie at the same place in the new one."""
    table = filled()
    place = table.columns["reward"].unsafe_buffer_pointer()
    changed = change(table)
    assert table.columns["reward"].is_deleted()
    assert changed.columns["reward"].unsafe_buffer_pointer() == place


@pytest.mark.parametrize("removal", ["oldest", "lowest"])
def test_nothing_large_is_copied(removal):
    """A column of 4 MB takes a batch of 1 kB with all of it in place, and less than 100 kB beside it."""
    spec = {"x": jax.ShapeDtypeStruct((16,), jnp.float32)}
    table = jax.eval_shape(lambda: init(spec, capacity=1024, length=64))
    batch = {"x": jax.ShapeDtypeStruct((1, 16, 16), jnp.float32)}
    numbers = (jax.ShapeDtypeStruct((1,), jnp.int32), jax.ShapeDtypeStruct((1,), jnp.float32), 0)
    memory = module._insert.lower(table, batch, *numbers, removal).compile().memory_analysis()
    assert memory.alias_size_in_bytes >= 1024 * 64 * 16 * 4
    assert memory.temp_size_in_bytes < 100_000


def test_within_the_callers_own_scan():
    """Twelve batches in one program leave what twelve calls leave, and a fault is seen afterwards."""

    @jax.jit
    def all_at_once(table):
        def one(table, i):
            table = insert(table, {"reward": jnp.full((2, LENGTH), i, jnp.float32)}, weight=i - 5.0, version=i)
            table = update_weights(table, jnp.array([0]), jnp.array([9.0]))
            return reweigh(table, table.weight * 2.0), None

        return jax.lax.scan(one, table, jnp.arange(12))[0]

    scanned = all_at_once(empty())
    table = empty()
    for i in range(12):
        table = insert(table, rewards(i, i), weight=i - 5.0, version=i)
        table = update_weights(table, jnp.array([0]), jnp.array([9.0]))
        table = reweigh(table, table.weight * 2.0)
    jax.tree.map(np.testing.assert_array_equal, scanned, table)
    with pytest.raises(ValueError, match="a weight is negative"):
        check(scanned)
