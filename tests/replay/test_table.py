"""The table by hand: rows, removal, dtypes, faults and errors; nothing is compiled twice, and nothing large copied."""

import functools
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import polynomial_weight
from stellaris.replay import (
    Window,
    check,
    gather,
    init,
    insert,
    random_steps,
    reweigh,
    select,
    sharded,
    update_weights,
    write,
)
from stellaris.replay import table as module
from stellaris.replay.selection import _select
from stellaris.replay.windows import _gather

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


def test_large_whole_weights():
    """Beyond int32, of Python and of NumPy."""
    for weight in (2**32 + 5, np.int64(2**32 + 5), np.array([2**32 + 5])):
        assert insert(empty(), rewards(1), weight=weight).weight[0] == np.float32(2**32 + 5)
    with pytest.raises(TypeError, match="is complex: pass a real number"):
        insert(empty(), rewards(1), weight=1j)


@pytest.mark.slow
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


@pytest.mark.parametrize("weight", [np.array([2**32 + 5, 3, 2**31]), 2**40, np.int64(2**40)])
def test_whole_weights_beyond_int32(weight):
    """They are valid in every function that takes weights, and a compiled function would wrap them."""
    expected = np.broadcast_to(np.float32(weight), 3)
    over = sharded.Shards(jax.make_mesh((1,), ("data",)))
    spec = {"reward": jax.ShapeDtypeStruct((), "float32")}
    row = np.arange(3)
    for found in (
        insert(filled(), rewards(1, 2, 3), weight=weight).weight[:3],
        write(filled(), row, rewards(1, 2, 3), weight=weight).weight[row],
        sharded.insert(
            sharded.init(spec, capacity=3, length=LENGTH, over=over), rewards(1, 2, 3), weight=weight, over=over
        ),
        sharded.write(
            sharded.insert(sharded.init(spec, capacity=3, length=LENGTH, over=over), rewards(1, 2, 3), over=over),
            *(row, rewards(1, 2, 3)),
            weight=weight,
            over=over,
        ),
    ):
        weights = found if isinstance(found, jax.Array) else found.weight.ravel()
        assert sorted(weights.tolist()) == sorted(expected.tolist())


def test_weights_by_staleness():
    """Versions 10 to 14, the newest being 14, by a rule that the library has for gradients."""
    table = filled()
    table = reweigh(table, polynomial_weight(14 - table.version))
    expected = np.arange(5, 0, -1) ** -0.5
    np.testing.assert_allclose(table.weight, expected, rtol=1e-6)
    np.testing.assert_allclose(table.weights[-1].sum(), sum(expected), rtol=1e-6)


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


@pytest.mark.slow
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


def test_a_length_above_the_steps_given_is_a_fault():
    with pytest.raises(ValueError, match="above the number of steps given"):
        check(insert(empty(), rewards(1, 2, 3, steps=2), length=jnp.array([1, 2, 3])))


def test_all_faults_are_named():
    table = insert(empty(), rewards(1, 2, 3), length=jnp.array([4, 0, 2]), weight=jnp.array([1.0, 1.0, -1.0]))
    table = update_weights(table, jnp.array([0, -1, 2]), jnp.ones(3))
    with pytest.raises(ValueError, match=f"^{re.escape('; '.join((BAD_WEIGHT, BAD_LENGTH, BAD_INDEX)))}$"):
        check(table)


SPEC = {"reward": jax.ShapeDtypeStruct((), jnp.float32)}


@pytest.mark.parametrize(
    ("spec", "sizes", "message"),
    [
        ({}, {}, "spec is empty"),
        (SPEC, {"capacity": 0}, "capacity=0 is below 1"),
        (SPEC, {"length": 0}, "length=0 is below 1"),
        (SPEC, {"capacity": 2**31}, "capacity=2147483648: a table holds at most 1073741824 trajectories"),
        (SPEC, {"capacity": 2.5}, "capacity=2.5 is not a whole number"),
        ({"x": jax.ShapeDtypeStruct((), np.float64)}, {}, "column 'x' has dtype float64: enable jax_enable_x64"),
    ],
)
def test_errors_of_init(spec, sizes, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        init(spec, **{"capacity": 2, "length": 3, **sizes})


def zeros(*shape, dtype=np.float32):
    return {"reward": np.zeros(shape, dtype)}


CONVERT = "'reward' has dtype int32: the table has float32; convert it, such as by x.astype('float32')"


@pytest.mark.parametrize(
    ("columns", "more", "message"),
    [
        ({}, {}, "column 'reward' is missing: the table has reward"),
        (None, {}, "columns is a NoneType: pass a mapping with reward"),
        (zeros(1, 4) | {"x": np.zeros((1, 4))}, {}, "column 'x' is unknown"),
        (zeros(4), {}, "'reward' has shape (4,): expected [batch, steps, ...]"),
        (zeros(1, 4, 2), {}, "'reward' has shape (1, 4, 2): expected"),
        (zeros(1, 4, dtype=np.int32), {}, CONVERT),
        (zeros(1, 5), {}, "5 steps: a trajectory of the table has 1 to 4"),
        (zeros(1, 0), {}, "0 steps: a trajectory of the table has 1 to 4"),
        (zeros(6, 4), {}, "columns have 6 trajectories: the table holds 5"),
        (zeros(0, 4), {}, "columns have 0 trajectories"),
        (rewards(1), {"removal": "newest"}, "removal='newest': expected 'oldest' or 'lowest'"),
        (rewards(1), {"length": np.ones(2, int)}, "length has shape (2,): expected (1,)"),
        (rewards(1), {"weight": np.ones(2)}, "weight has shape (2,): expected (1,)"),
        (rewards(1), {"version": np.ones((1, 1), int)}, "version has shape (1, 1): expected (1,)"),
        (rewards(1), {"length": np.ones(1)}, "length has dtype float32: expected integers"),
        (rewards(1), {"version": 1.5}, "version has dtype float32: expected integers"),
        (rewards(1), {"version": np.array(2**32 + 7)}, "version has 4294967303: expected a whole number that int32"),
        (rewards(1), {"length": np.array([2**32 + 1])}, "length has 4294967297: expected a whole number that int32"),
    ],
)
@pytest.mark.parametrize("traced", [False, True])
def test_errors_of_insert(columns, more, message, traced):
    """All that shapes and dtypes say is said at once, in the caller's own jit as well; the table is still there."""
    table = empty()
    add = functools.partial(insert, **more)
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        (jax.jit(add) if traced else add)(table, columns)
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
    table = init({"wave": jax.ShapeDtypeStruct((), jnp.complex64)}, capacity=2, length=1)
    with pytest.raises(ValueError, match=re.escape("'wave' has 1e+39j: the table's complex64 cannot hold it")):
        insert(table, {"wave": np.array([[1e39j]])})
    assert insert(table, {"wave": np.array([[1 + 2j]])}).columns["wave"].tolist() == [[1 + 2j], [0]]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda t: update_weights(t, np.zeros(2), np.zeros(2)), "index has dtype float32: expected integers"),
        (lambda t: update_weights(t, np.zeros(2, int), np.zeros(2, int)), "weight has dtype int32: expected floating"),
        (lambda t: update_weights(t, np.zeros(2, int), np.zeros(3)), "weight has shape (3,): expected index's (2,)"),
        (
            lambda t: update_weights(t, np.array([2**32]), np.zeros(1)),
            "index has 4294967296: expected a whole number that",
        ),
        (lambda t: reweigh(t, np.zeros(3)), "weight has shape (3,): expected length's (5,)"),
        (lambda t: reweigh(t, np.zeros(CAPACITY, int)), "weight has dtype int32"),
    ],
)
def test_errors_of_changing_weights(change, message):
    with pytest.raises((TypeError, ValueError), match=re.escape(message)):
        change(empty())


@pytest.mark.slow
def test_nothing_is_compiled_twice_as_a_table_fills():
    """Twelve batches into five rows, their weights changed in between: one program for each function."""
    programs = module._insert, module._update_weights, module._reweigh, _select, _gather
    table = empty()
    sizes = []
    for i in range(12):
        table = insert(table, rewards(i, i), length=jnp.array([1, 4]), weight=jnp.ones(2), version=jnp.array([i, i]))
        table = update_weights(table, jnp.array([0, 1]), jnp.array([2.0, float(i)]))
        table = reweigh(table, table.weight + 1.0)
        drawn = select(table, jax.random.key(i), 4, by="weight")
        gather(table, drawn, {"x": Window("reward", 3)}, step=random_steps(table, drawn, jax.random.key(i)))
        sizes.append([program._cache_size() for program in programs])
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


def test_the_caller_may_write_to_its_arrays_after_a_call():
    """The table keeps the values that they had at each call; programs wait for those before, so they read late."""
    table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=8, length=1 << 16)
    reward, number, weight = np.zeros((1, 1 << 16), np.float32), np.zeros(1, np.int32), np.zeros(8, np.float32)
    for i in range(8):
        reward[:] = number[:] = i
        table = insert(table, {"reward": reward}, version=number)
    for i in range(8):
        reward[:], number[:], weight[:] = 10 + i, i, 20 + i
        table = update_weights(table, number, weight[:1])
        table = write(table, number, {"reward": reward})
    reward[:] = number[:] = weight[:] = -1
    assert table.columns["reward"][:, -1].tolist() == [*range(10, 18)]
    assert (table.version.tolist(), table.weight.tolist()) == ([*range(8)], [*range(20, 28)])
    weight[:], step = range(8), np.full(1 << 20, 7)
    table = write(table, np.arange(8), {"reward": np.zeros((8, 1 << 16), np.float32)})
    table = reweigh(table, weight)
    batch = gather(table, select(table, jax.random.key(0), len(step)), {"x": Window("reward", 1)}, step=step)
    weight[:] = step[:] = -1
    assert table.weight.tolist() == [*range(8)]
    assert batch.mask["x"].all()


def test_a_sharded_table_is_refused():
    """By every function of one table, whose programs would mistake shards for rows."""
    table = jax.tree.map(lambda leaf: leaf[None], filled())
    drawn = select(filled(), jax.random.key(0), 2)
    for call in (
        lambda: insert(table, {"reward": jnp.ones((1, CAPACITY, LENGTH))}),
        lambda: write(table, jnp.array([0]), {"reward": jnp.ones((1, CAPACITY, LENGTH))}),
        lambda: update_weights(table, jnp.array([0]), jnp.ones(1)),
        lambda: reweigh(table, jnp.ones((1, CAPACITY))),
        lambda: select(table, jax.random.key(0), 2),
        lambda: random_steps(table, drawn, jax.random.key(0)),
        lambda: gather(table, drawn, {"x": Window("reward", 1)}),
    ):
        with pytest.raises(ValueError, match=re.escape("table has arrays of shape (1, 5): for a sharded table call")):
            call()


def test_one_table_is_refused_as_a_sharded_one():
    over, rows = sharded.Shards(jax.make_mesh((1,), ("data",))), {"reward": jnp.ones((1, CAPACITY, LENGTH))}
    table = filled()
    drawn = select(table, jax.random.key(0), 2)
    for call in (
        lambda: sharded.insert(table, rows, over=over),
        lambda: sharded.write(table, jnp.array([0]), rows, over=over),
        lambda: sharded.update_weights(table, jnp.array([0]), jnp.ones(1), over=over),
        lambda: sharded.reweigh(table, jnp.ones(CAPACITY), over=over),
        lambda: sharded.select(table, jax.random.key(0), 2, over=over),
        lambda: sharded.random_steps(table, drawn, jax.random.key(0), over=over),
        lambda: sharded.gather(table, drawn, {"x": Window("reward", 1)}, over=over),
    ):
        with pytest.raises(ValueError, match=re.escape("table has arrays of shape (5,): expected [shards, capacity]")):
            call()


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


def test_a_weight_beyond_int32():
    table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=1)
    table = insert(table, {"reward": jnp.zeros((1, 1))}, weight=10**10)
    assert table.weight.tolist() == [1e10, 0.0]
