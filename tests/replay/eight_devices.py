"""Tests of shards on eight devices, which `test_sharded.py` runs in a process that has them."""

import functools
import math
import re

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats
from jax.sharding import Mesh, PartitionSpec

from stellaris.replay import Window, check, files, selection, sharded, table
from stellaris.replay.sharded import Shards
from stellaris.replay.whole_numbers import below
from tests.replay.by_hand import window_of

CAPACITY, STEPS = 5, 6  # of each shard
SPEC = {
    "frame": jax.ShapeDtypeStruct((2,), jnp.uint8),
    "value": jax.ShapeDtypeStruct((3,), jnp.float64),
    "reward": jax.ShapeDtypeStruct((), jnp.float32),
    "done": jax.ShapeDtypeStruct((), jnp.bool_),
}
SIZES = (3, 0, 5, 1, 4, 5, 2, 3)  # trajectories: unequal, one of none, some full
WINDOWS = {
    "frame": Window("frame", 3, value=7),
    "past": Window("value", 4, offset=-3, pad="head", value=-1.5),
    "later": Window("reward", 6, offset=2),
    "done": Window("done", 2),
    "to go": Window("reward", 3, return_to_go=0.5, pad="head"),
}


@pytest.fixture(autouse=True)
def _wide():
    with jax.enable_x64(True):
        yield


@pytest.fixture(params=["auto", "explicit", "of two axes"])
def over(request):
    """The ways in which a mesh can be given."""
    devices = np.array(jax.devices())
    if request.param == "auto":
        return Shards(Mesh(devices, ("data",)))
    if request.param == "explicit":
        return Shards(jax.make_mesh((8,), ("shards",)), "shards")
    return Shards(Mesh(devices.reshape(2, 4), ("model", "data")), "data")


@pytest.fixture
def eight():
    return Shards(Mesh(np.array(jax.devices()), ("data",)))


def random_rows(batch, seed=0):
    """Columns, lengths and weights of a batch; sums of the weights are exact."""
    rng = np.random.default_rng(seed)
    columns = {
        "frame": rng.integers(0, 256, (batch, STEPS, 2), np.uint8),
        "value": rng.normal(size=(batch, STEPS, 3)),
        "reward": rng.normal(size=(batch, STEPS)).astype(np.float32),
        "done": rng.random((batch, STEPS)) < 0.5,
    }
    return columns, rng.integers(1, STEPS + 1, batch), rng.integers(1, 5, batch).astype(np.float32)


def stacked(over, sizes, seed=0):
    """A table whose shards hold so many, and each shard's rows as NumPy has them."""
    shards, known = [], []
    for i, size in enumerate(sizes):
        one = table.init(SPEC, capacity=CAPACITY, length=STEPS)
        columns, length, weight = random_rows(size, seed + i)
        if size:
            one = table.insert(one, columns, length=length, weight=weight, version=np.arange(size) + 10 * i)
        shards.append(one)
        rows = zip(length, weight, np.arange(size) + 10 * i, strict=True)
        known += [
            (CAPACITY * i + j, {name: column[j] for name, column in columns.items()}, *row)
            for j, row in enumerate(rows)
        ]
    whole = jax.tree.map(lambda *leaves: np.stack(leaves), *shards)
    return jax.device_put(whole, over.sharding), {row: rest for row, *rest in known}


def weighted(known, shards, of_shard, of_row):
    """The row of which two random numbers choose first the shard by its total, then the trajectory by its weight."""
    apart = [{row: rest[2] for row, rest in known.items() if row // CAPACITY == i} for i in range(shards)]
    ends = np.cumsum([sum(weights.values()) for weights in apart], dtype=np.float32)
    weights = apart[np.searchsorted(ends, of_shard * ends[-1], side="right")]
    ends = np.cumsum([*weights.values()], dtype=np.float32)
    return [*weights][np.searchsorted(ends, of_row * ends[-1], side="right")]


SELECTORS = [("uniform", True), ("uniform", False), ("weight", True), ("weight", False), ("top", True)]


@pytest.mark.parametrize(
    ("over", "by", "replace"),
    [("auto", *selector) for selector in SELECTORS] + [("explicit", "weight", True), ("of two axes", "weight", False)],
    indirect=["over"],
)
def test_every_selector_and_window_agrees_with_numpy(over, by, replace):
    """Unequal shards, one of them empty; frames and float64. Each device gets its rows in order."""
    sizes = SIZES[: over.number]
    shards, known = stacked(over, sizes)
    count = 8
    drawn = sharded.select(shards, jax.random.key(3), count, by=by, replace=replace, over=over)
    check(drawn)
    rows = np.asarray(drawn.row)
    assert {*rows.tolist()} <= known.keys()
    assert replace or len({*rows.tolist()}) == count
    held = np.array([*known])
    weight = np.array([known[row][2] for row in held])
    if by == "uniform" and replace:
        numbers = below(jax.random.key(3), len(held), (count,))
        np.testing.assert_array_equal(rows, held[numbers])
    if by == "weight" and replace:
        points = np.asarray(jax.random.uniform(jax.random.key(3), (2, count), jnp.float32))
        np.testing.assert_array_equal(rows, [weighted(known, over.number, shard, row) for row, shard in points.T])
    if by == "top":
        np.testing.assert_array_equal(rows, held[np.argsort(-weight, stable=True)[:count]])
    else:
        chance = weight / weight.sum() if by == "weight" else np.full(len(held), 1 / len(held))
        expected = [chance[held.tolist().index(row)] for row in rows]
        np.testing.assert_allclose(drawn.probability, expected, rtol=1e-6)

    steps = sharded.random_steps(shards, drawn, jax.random.key(4), over=over)
    lengths = np.array([known[row][1] for row in rows])
    np.testing.assert_array_equal(steps, below(jax.random.key(4), lengths, (count,)))
    batch = sharded.gather(shards, drawn, WINDOWS, step=steps, over=over)
    for name, window in WINDOWS.items():
        every = []
        for row, step in zip(rows, np.asarray(steps), strict=True):
            columns, length, *_ = known[row]
            every.append(window_of(columns[window.column], length, step, window))
        values, mask = map(np.stack, zip(*every, strict=True))
        assert batch.values[name].dtype == SPEC[window.column].dtype
        np.testing.assert_array_equal(batch.mask[name], mask)
        np.testing.assert_allclose(batch.values[name], values, rtol=1e-6 if name == "to go" else 0)
        assert batch.values[name].sharding.is_equivalent_to(over.sharding, batch.values[name].ndim)
    np.testing.assert_array_equal(batch.length, lengths)
    np.testing.assert_array_equal(batch.version, [known[row][3] for row in rows])


@pytest.mark.parametrize("removal", ["oldest", "lowest"])
def test_insertion_splits_a_batch_in_order_and_goes_round(over, removal):
    shards = sharded.init(SPEC, capacity=CAPACITY * over.number, length=STEPS, over=over)
    apart = [table.init(SPEC, capacity=CAPACITY, length=STEPS) for _ in range(over.number)]
    for seed in range(4):
        columns, length, weight = random_rows(2 * over.number, seed)
        shards = sharded.insert(shards, columns, length=length, weight=weight, version=seed, removal=removal, over=over)
        for i in range(over.number):
            part = slice(2 * i, 2 * i + 2)
            mine = {name: column[part] for name, column in columns.items()}
            apart[i] = table.insert(
                apart[i], mine, length=length[part], weight=weight[part], version=seed, removal=removal
            )
    for leaf, *leaves in zip(*map(jax.tree.leaves, (shards, *apart)), strict=True):
        np.testing.assert_array_equal(leaf, np.stack(leaves))
        assert leaf.sharding.is_equivalent_to(over.sharding, leaf.ndim)
    assert shards.capacity == CAPACITY
    assert shards.size.tolist() == [CAPACITY] * over.number
    assert shards.weight.shape == shards.length.shape


def test_weights_of_rows_change_in_their_shards_alone(over):
    """Of the same row twice the last counts; then all change, and empty rows stay at 0."""
    shards, known = stacked(over, SIZES[: over.number])
    before = np.array(shards.weight).ravel()
    index = np.array([0, 10, 2, 0])
    changed = sharded.update_weights(shards, index, np.array([9.0, 8.0, 0.0, 7.0]), over=over)
    before[[10, 2, 0]] = 8, 0, 7
    np.testing.assert_array_equal(np.asarray(changed.weight).ravel(), before)
    check(changed)
    top = sharded.select(changed, jax.random.key(0), 2, by="top", over=over)
    assert top.row.tolist() == [10, 0]

    again = sharded.reweigh(changed, 1.0 + changed.version.astype(jnp.float32), over=over)
    expected = np.zeros(over.number * CAPACITY)
    for row, (*_, version) in known.items():
        expected[row] = 1 + version
    np.testing.assert_array_equal(np.asarray(again.weight).ravel(), expected)


def test_rows_are_written_in_their_shards_alone(over):
    """Whole trajectories and single columns, as one table would; of the same row twice the last counts."""
    shards, known = stacked(over, SIZES[: over.number])
    row = np.array([0, 10, 2, 0])
    columns, length, weight = random_rows(4, seed=9)
    expected = {**known}
    changed = sharded.write(shards, row, columns, length=length, weight=weight, version=8, over=over)
    for i, at in enumerate(row):
        expected[at] = {name: column[i] for name, column in columns.items()}, length[i], weight[i], 8
    reward = np.arange(6.0 * 2, dtype=np.float32).reshape(2, 6)
    changed = sharded.write(changed, row[1:3], {"reward": reward}, over=over)
    for one, at in zip(reward, row[1:3], strict=True):
        whole, *others = expected[at]
        expected[at] = {**whole, "reward": one}, *others
    check(changed)
    flat = jax.tree.map(lambda leaf: np.asarray(leaf).reshape(-1, *leaf.shape[2:]), changed._replace(weights=()))
    for at, (whole, long, heavy, version) in expected.items():
        assert (flat.length[at], np.asarray(changed.weight).ravel()[at], flat.version[at]) == (long, heavy, version)
        for name, column in whole.items():
            np.testing.assert_array_equal(flat.columns[name][at, :long], column[:long])
            assert not flat.columns[name][at, long:].any()
    for leaf in jax.tree.leaves(changed):
        assert leaf.sharding.is_equivalent_to(over.sharding, leaf.ndim)
    bad = sharded.write(
        changed, np.array([3]), {"reward": reward[:1]}, over=over
    )  # behind the first shard's trajectories
    np.testing.assert_array_equal(np.asarray(bad.columns["reward"]).reshape(-1, 6), flat.columns["reward"])
    with pytest.raises(ValueError, match="an index is not a row of a trajectory in the table"):
        check(bad)


@pytest.mark.parametrize("index", [-1, 3, 5, 8 * CAPACITY])
def test_a_row_that_no_shard_holds_is_a_fault(eight, index):
    """Before the first, behind the trajectories of the first shard, in the empty one, behind the last."""
    shards, _ = stacked(eight, SIZES)
    before = np.array(shards.weight)
    changed = sharded.update_weights(shards, np.array([index]), np.array([1.0]), over=eight)
    np.testing.assert_array_equal(changed.weight, before)
    with pytest.raises(ValueError, match="an index is not a row of a trajectory in the table"):
        check(changed)


@pytest.mark.parametrize("by", ["uniform", "weight"])
def test_chances_without_replacement_are_exact(eight, by):
    """Of each ordered pair, over 200,000 draws: w_i / W, then w_j / (W - w_i)."""
    shards, known = stacked(eight, (2, 0, 1, 0, 0, 2, 0, 1))

    def pairs(key):
        return sharded.select(shards, key, 2, by=by, replace=False, over=eight).row

    drawn = np.asarray(jax.jit(jax.vmap(pairs))(jax.random.split(jax.random.key(6), 100_000)))
    rows = [*known]
    weight = np.array([float(known[row][2]) if by == "weight" else 1.0 for row in rows])
    first = weight / weight.sum()
    chances = np.array([[first[i] * weight[j] / (weight.sum() - weight[i]) for j in range(6)] for i in range(6)])
    places = np.searchsorted(rows, drawn)
    np.testing.assert_array_equal(np.array(rows)[places], drawn)
    counts = np.bincount(places[:, 0] * 6 + places[:, 1], minlength=36).reshape(6, 6)
    assert counts.trace() == 0
    apart = ~np.eye(6, dtype=bool)
    assert scipy.stats.chisquare(counts[apart], 100_000 * chances[apart]).pvalue > 0.001


@pytest.mark.parametrize("by", ["uniform", "weight", "top"])
@pytest.mark.parametrize("replace", [True, False])
def test_nothing_to_select_is_a_fault_and_an_empty_batch(eight, by, replace):
    shards = sharded.init(SPEC, capacity=8 * CAPACITY, length=STEPS, over=eight)
    drawn = sharded.select(shards, jax.random.key(0), 8, by=by, replace=replace, over=eight)
    with pytest.raises(ValueError, match="a table that is empty"):
        check(drawn)
    batch = sharded.gather(shards, drawn, WINDOWS, over=eight)
    assert not any(mask.any() for mask in batch.mask.values())
    one, _ = stacked(eight, (0, 0, 1, 0, 0, 0, 0, 0))
    if by == "top" or not replace:
        with pytest.raises(ValueError, match="more trajectories than have a weight above 0"):
            check(sharded.select(one, jax.random.key(0), 8, by=by, replace=replace, over=eight))


def test_no_more_than_a_batch_is_exchanged(eight):
    """The programs' collective operations: their kinds, and the most numbers that any of them makes."""
    large = {"frame": jax.ShapeDtypeStruct((100,), jnp.uint8)}
    shards = sharded.init(large, capacity=8 * 64, length=10, over=eight)
    key, count = jax.random.key(0), 16
    drawn = sharded.select(shards, key, count, over=eight)
    columns = {"frame": np.zeros((8, 10, 100), np.uint8)}
    windows = (("frame", Window("frame", 4)),)
    allowed = {
        sharded._insert.lower(shards, columns, 10, 1.0, 0, eight, "oldest"): {},
        sharded._select.lower(shards, key, count, eight, "uniform", True): {"all-gather": 8},
        sharded._select.lower(shards, key, count, eight, "weight", True): {"all-gather": 8, "all-reduce": count},
        sharded._select.lower(shards, key, count, eight, "weight", False): {"all-gather": 8 * count},
        sharded._select.lower(shards, key, count, eight, "top", True): {"all-gather": 8 * count},
        sharded._random_steps.lower(shards, drawn, key, eight): {"all-reduce": count},
        sharded._gather.lower(shards, drawn, 0, windows, eight): {"reduce-scatter": count // 8 * 4 * 100},
        sharded._update_weights.lower(shards, drawn.row, jnp.ones(count), eight): {"all-reduce": count},
        sharded._reweigh.lower(shards, jnp.ones((8, 64)), eight): {},
    }
    for lowered, most in allowed.items():
        text = lowered.compile().as_text()
        assert exchanged(text).keys() <= most.keys()
        assert all(size <= most[kind] for kind, size in exchanged(text).items())


def exchanged(program):
    """The collective operations of a compiled program, and the numbers of the largest array of each."""
    found = {}
    kinds = "all-gather|all-reduce|reduce-scatter|all-to-all|collective-permute|collective-broadcast"
    for made, kind in re.findall(rf"= (.+?) ({kinds})(?:-start)?\(", program):
        for shape in re.findall(r"\w+\[([\d,]*)\]", made):
            size = math.prod(int(x) for x in shape.split(",") if x)
            found[kind] = max(found.get(kind, 0), size)
    return found


def test_the_programs_are_parts_of_a_compiled_step(over):
    shards, known = stacked(over, SIZES[: over.number])

    @jax.jit
    def step(shards, key):
        drawn = sharded.select(shards, key, 8, over=over)
        batch = sharded.gather(shards, drawn, WINDOWS, over=over)
        shards = sharded.update_weights(shards, drawn.row, jnp.full(8, 0.25, jnp.float32), over=over)
        return shards, drawn, batch

    changed, drawn, batch = step(shards, jax.random.key(2))
    assert (np.asarray(changed.weight).ravel()[np.asarray(drawn.row)] == 0.25).all()
    np.testing.assert_array_equal(batch.length, [known[row][1] for row in drawn.row.tolist()])


def test_a_table_is_donated(eight):
    shards = sharded.init(SPEC, capacity=8 * CAPACITY, length=STEPS, over=eight)
    columns, length, weight = random_rows(8)
    sharded.insert(shards, columns, length=length, weight=weight, over=eight)
    assert all(column.is_deleted() for column in shards.columns.values())


def test_errors_name_what_was_given_for_all_shards(unchecked, eight):
    shards, key = sharded.init(SPEC, capacity=8 * CAPACITY, length=STEPS, over=eight), jax.random.key(0)
    columns, _, _ = random_rows(8)
    drawn = sharded.select(shards, key, 12, over=eight)
    four = {name: column[:4] for name, column in columns.items()}
    narrow = {**columns, "frame": columns["frame"][..., :1]}
    one = table.init(SPEC, capacity=CAPACITY, length=STEPS)
    init, insert = functools.partial(sharded.init, SPEC, length=STEPS), functools.partial(sharded.insert, shards)
    for call, message in (
        (
            lambda: init(capacity=9, over=eight),
            "capacity=9 cannot be split evenly over 8 devices; choose a multiple of 8",
        ),
        (lambda: init(capacity=8, over=eight, memory="disk"), "memory='disk': expected 'device' or 'pinned_host'"),
        (
            lambda: sharded.update_weights(shards, np.array([2**32]), np.ones(1), over=eight),
            "index has 4294967296: expected a whole number that int32",
        ),
        (
            lambda: insert(four, over=eight),
            "columns have 4 trajectories, which cannot be split evenly over 8 devices; insert a multiple of 8",
        ),
        (lambda: insert(narrow, over=eight), "column 'frame' has shape (8, 6, 1): expected [batch, steps, 2]"),
        (lambda: insert(random_rows(48)[0], over=eight), "columns have 48 trajectories: the table holds 40"),
        (lambda: insert(columns, weight=np.ones(3), over=eight), "weight has shape (3,): expected (8,)"),
        (
            lambda: sharded.select(shards, key, 41, by="top", over=eight),
            "count=41: without replacement at most 40 can be drawn",
        ),
        (
            lambda: sharded.gather(shards, drawn, WINDOWS, over=eight),
            "selection has 12 trajectories, which cannot be split evenly over 8 devices; select a multiple of 8",
        ),
        (
            lambda: sharded.gather(shards, drawn, {"a": Window("reward", 7)}, over=eight),
            "window 'a': length=7 is not between 1 and the table's 6",
        ),
        (lambda: sharded.reweigh(shards, np.ones(40), over=eight), "weight has shape (40,): expected length's (8, 5)"),
        (lambda: Shards(eight.mesh, "rows"), "axis='rows' is not an axis of the mesh: use 'data'"),
        (
            lambda: sharded.insert(one, columns, over=eight),
            "table has arrays of shape (5,): expected [shards, capacity]",
        ),
    ):
        with pytest.raises(ValueError, match=re.escape(message)):
            call()


def test_a_users_own_shard_map_has_the_same(eight):
    shards, _ = stacked(eight, SIZES)

    def local(shards, key):
        one = jax.tree.map(lambda leaf: leaf[0], shards)
        return selection.select(one, key, 8, by="weight", axis="data")

    split, same = PartitionSpec("data"), PartitionSpec()
    mapped = jax.shard_map(local, mesh=eight.mesh, in_specs=(split, same), out_specs=same, check_vma=False)
    drawn = jax.jit(mapped)(shards, jax.random.key(1))
    again = sharded.select(shards, jax.random.key(1), 8, by="weight", over=eight)
    np.testing.assert_array_equal(drawn.row, again.row)


def in_order(one):
    """Each trajectory's first value in a table, and its weight, in the order of insertion, then of shards."""
    number, value = np.asarray(one.number).ravel(), np.asarray(one.columns["value"]).reshape(-1, STEPS, 3)[:, 0, 0]
    order = np.argsort(np.where(number < 0, len(number), number), kind="stable")[: (number >= 0).sum()]
    return list(zip(value[order], np.asarray(one.weight).ravel()[order], strict=True))


@pytest.mark.parametrize("sizes", [SIZES, (0,) * 8], ids=["unequal", "empty"])
def test_shards_are_loaded_onto_another_number_of_them(eight, tmp_path, sizes):
    """Onto as many they are what they were; onto others, and onto one table, in the order of insertion."""
    shards, known = stacked(eight, sizes)
    files.save(shards, tmp_path / "eight")
    assert len([*(tmp_path / "eight").iterdir()]) == 9
    same = files.load(tmp_path / "eight", over=eight, spec=SPEC)
    for one, other in zip(jax.tree.leaves(same), jax.tree.leaves(shards), strict=True):
        np.testing.assert_array_equal(one, other)
        assert (one.dtype, one.sharding) == (other.dtype, eight.sharding)

    four = Shards(Mesh(np.array(jax.devices()).reshape(2, 4), ("model", "data")))
    fewer = files.load(tmp_path / "eight", over=four)
    assert fewer.capacity == 2 * CAPACITY
    assert fewer.size.tolist() == [len([*known][i::4]) for i in range(4)]
    single = files.load(tmp_path / "eight")
    assert int(single.size) == sum(sizes)
    assert in_order(single) == in_order(fewer) == in_order(shards)

    files.save(fewer, tmp_path / "four")
    assert len([*(tmp_path / "four").iterdir()]) == 5
    assert in_order(files.load(tmp_path / "four", over=eight)) == in_order(shards)
    files.save(single, tmp_path / "one")
    three = Shards(Mesh(np.array(jax.devices()[:3]), ("data",)))
    with pytest.raises(ValueError, match="capacity=40 cannot be split evenly over 3 devices; choose a multiple of 3"):
        files.load(tmp_path / "one", over=three)
    assert in_order(files.load(tmp_path / "one", over=three, capacity=42)) == in_order(shards)


def test_loaded_shards_go_on(eight, tmp_path):
    """A batch inserted after loading joins the rows that were saved, and all can be selected."""
    shards, _ = stacked(eight, SIZES)
    files.save(shards, tmp_path)
    four = Shards(Mesh(np.array(jax.devices()[:4]), ("data",)))
    fewer = files.load(tmp_path, over=four)
    before = in_order(fewer)
    columns, length, weight = random_rows(4, 50)
    more = sharded.insert(fewer, columns, length=length, weight=weight, over=four)
    assert {*in_order(more)} == {*before, *zip(columns["value"][:, 0, 0], weight, strict=True)}
    check(sharded.select(more, jax.random.key(0), 27, by="top", over=four))


def test_nothing_compiles_again_while_the_table_fills(eight, caplog):
    capacity = 3  # as no other test has, so that the first round compiles
    shards = sharded.init(SPEC, capacity=8 * capacity, length=STEPS, over=eight)
    with jax.log_compiles():
        for i in range(2 * capacity):
            columns, length, weight = random_rows(8, i)
            shards = sharded.insert(shards, columns, length=length, weight=weight, version=jnp.int32(i), over=eight)
            drawn = sharded.select(shards, jax.random.key(i), 8, by="weight", over=Shards(eight.mesh, "data"))
            steps = sharded.random_steps(shards, drawn, jax.random.key(i), over=eight)
            batch = sharded.gather(shards, drawn, WINDOWS, step=steps, over=eight)
            shards = sharded.update_weights(shards, drawn.row, batch.length.astype(np.float32), over=eight)
            compiled = [record for record in caplog.messages if "XLA compilation" in record]
            assert bool(compiled) == (i == 0)
            caplog.clear()


def test_columns_that_stay_with_the_hosts(eight, tmp_path):
    """They are there after each insertion and after loading, and batches are those of columns on the devices."""
    batches = []
    for memory in ("device", "pinned_host"):
        shards = sharded.init(SPEC, capacity=8 * CAPACITY, length=STEPS, over=eight, memory=memory)
        columns, length, weight = random_rows(16)
        shards = sharded.insert(shards, columns, length=length, weight=weight, over=eight)
        files.save(shards, tmp_path)
        loaded = files.load(tmp_path, over=eight, memory=memory)
        for one in (shards, loaded):
            assert {column.sharding.memory_kind for column in one.columns.values()} == {memory}
            assert one.length.sharding.memory_kind == "device"
            drawn = sharded.select(one, jax.random.key(1), 8, by="weight", over=eight)
            batches.append(sharded.gather(one, drawn, WINDOWS, over=eight))
    for leaf, *leaves in zip(*map(jax.tree.leaves, batches), strict=True):
        assert all(np.array_equal(leaf, other) for other in leaves)
