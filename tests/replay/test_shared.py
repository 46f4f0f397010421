"""A table that processes share: what the table on the device does, also with several processes at once."""

import contextlib
import json
import os
import pickle
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import replay
from stellaris.replay import Window, shared

CAPACITY, LENGTH = 6, 4
SPEC = {
    "frame": jax.ShapeDtypeStruct((2,), jnp.uint8),
    "half": jax.ShapeDtypeStruct((), jnp.bfloat16),
    "over": jax.ShapeDtypeStruct((), jnp.bool_),
    "reward": jax.ShapeDtypeStruct((), jnp.float32),
}
WINDOWS = {
    "before": Window("frame", 3, offset=-2, pad="head", value=7),
    "half": Window("half", 2, value=0.5),
    "next": Window("over", 2, offset=1, value=True),
    "to go": Window("reward", 3, offset=-1, pad="head", value=-1.0, return_to_go=0.5),
}

pytestmark = pytest.mark.usefixtures("unchecked")


def batch_of(random, count, steps=LENGTH, names=tuple(SPEC)):
    return {name: random.integers(0, 200, (count, steps, *SPEC[name].shape)).astype(SPEC[name].dtype) for name in names}


def equal(one, other):
    for x, y in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert x.dtype == y.dtype
        np.testing.assert_array_equal(x, y)


@pytest.mark.slow
@pytest.mark.parametrize("removal", ["oldest", "lowest"])
def test_it_does_what_a_table_on_the_device_does(tmp_path, removal):
    """Random changes; after each the rows, and batches selected and gathered with the same keys, are the same."""
    table = replay.init(SPEC, capacity=CAPACITY, length=LENGTH)
    own = shared.create(tmp_path, SPEC, capacity=CAPACITY, length=LENGTH)
    other = pickle.loads(pickle.dumps(own))
    random = np.random.default_rng(0)
    for i in range(12):
        count, steps = 1 + i % 3, 2 + i % 2 * 2
        columns = batch_of(random, count, steps)
        settings = {
            "length": random.integers(1, steps + 1, count),
            "weight": random.integers(1, 9, count).astype(np.float32),
            "version": random.integers(0, 9, count),
        }
        changed = own if i % 2 else other
        changed.insert(columns, **settings, removal=removal)
        table = replay.insert(table, columns, **settings, removal=removal)
        row = random.integers(0, changed.size, 3)
        if i % 3 == 0:
            columns = batch_of(random, 3, LENGTH, ("reward", "over"))
            changed.write(row, columns, version=i)
            table = replay.write(table, row, columns, version=i)
        if i % 3 == 1:
            columns, length = batch_of(random, 3, 2), np.array([1, 2, 1])
            changed.write(row, columns, length=length, weight=0.5)
            table = replay.write(table, row, columns, length=length, weight=0.5)
        if i % 3 == 2:
            changed.update_weights(row, np.array([1.0, 2.0, 3.0]))
            table = replay.update_weights(table, row, np.array([1.0, 2.0, 3.0]))
        if i == 10:
            changed.reweigh(1.0 + own.version.astype(np.float32))
            table = replay.reweigh(table, 1.0 + table.version.astype(np.float32))
        replay.check(table)
        for at in range(own.size):
            mine, theirs = own.trajectory(at), replay.trajectory(table, at)
            equal(mine.columns, theirs.columns)
            assert mine[1:] == theirs[1:]
        for by in ("uniform", "weight", "top"):
            drawn = own.select(jax.random.key(i), 1, by=by)
            equal(drawn, replay.select(table, jax.random.key(i), 1, by=by))
        drawn = own.select(jax.random.key(i), 5, by="weight")
        steps = own.random_steps(drawn, jax.random.key(i))
        equal(own.gather(drawn, WINDOWS, step=steps), replay.gather(table, drawn, WINDOWS, step=steps))


@pytest.mark.slow
def test_rows_that_are_not_there(tmp_path):
    """As on the device, a row below 0 or beyond the table is no trajectory, and its masks are false."""
    table = replay.init(SPEC, capacity=CAPACITY, length=LENGTH)
    own = shared.create(tmp_path, SPEC, capacity=CAPACITY, length=LENGTH)
    columns = batch_of(np.random.default_rng(0), CAPACITY)
    own.insert(columns)
    rows = jnp.array([-1, 0, CAPACITY], jnp.int32)
    drawn = replay.Selection(rows, jnp.ones(3), jnp.zeros((), jnp.int32))
    equal(own.gather(drawn, WINDOWS), replay.gather(replay.insert(table, columns), drawn, WINDOWS))


@pytest.mark.slow
def test_an_empty_table(tmp_path):
    """A selection has a fault, and the masks of its batch are false."""
    table = shared.create(tmp_path, SPEC, capacity=CAPACITY, length=LENGTH)
    drawn = table.select(jax.random.key(0), 2)
    batch = table.gather(drawn, WINDOWS)
    assert not any(mask.any() for mask in batch.mask.values())
    with pytest.raises(ValueError, match="a selection was made from a table that is empty"):
        replay.check(drawn)


def test_errors(tmp_path):
    """They are raised at once, and change nothing."""
    with pytest.raises(FileNotFoundError, match=re.escape(f"{tmp_path} has no shared table: make one with")):
        shared.attach(tmp_path)
    table = shared.create(tmp_path, SPEC, capacity=CAPACITY, length=LENGTH)
    with pytest.raises(FileExistsError, match="is not empty: attach to its table, or choose another folder"):
        shared.create(tmp_path, SPEC, capacity=CAPACITY, length=LENGTH)
    random = np.random.default_rng(0)
    table.insert(batch_of(random, 3))
    before = [table.trajectory(row) for row in range(3)]
    three, one = batch_of(random, 3), batch_of(random, 1, 2, ("reward",))
    for call, error, message in (
        (lambda: table.insert(three, length=np.array([1, 0, 1])), ValueError, "length has 0: expected from 1 to 4"),
        (lambda: table.insert(three, weight=np.nan), ValueError, "weight has nan: expected a number from 0 to 1e+30"),
        (lambda: table.insert(three, weight=np.full(3, np.inf, np.float16)), ValueError, "weight has inf"),
        (lambda: table.insert(three, weight=np.full(3, 1e39)), ValueError, "weight has 1e+39"),
        (lambda: table.insert({"reward": three["reward"]}), ValueError, "column 'frame' is missing"),
        (lambda: table.write(np.array([3]), one), IndexError, "row=3: the table holds 3 trajectories"),
        (lambda: table.write(np.array([0]), one), ValueError, "length has 4: expected from 0 to 2"),
        (lambda: table.write(np.array([0]), one, length=2), ValueError, "column 'frame' is not: a new length needs"),
        (lambda: table.update_weights(np.array([-1]), np.ones(1)), IndexError, "row=-1: the table holds 3"),
        (lambda: table.reweigh(np.full(CAPACITY, -1.0)), ValueError, "weight has -1.0"),
        (lambda: table.trajectory(3), IndexError, "row=3: the table holds 3 trajectories"),
        (lambda: table.select(jax.random.key(0), 7, by="top"), ValueError, "at most 6 can be drawn"),
    ):
        with pytest.raises(error, match=re.escape(message)):
            call()
    for row, held in enumerate(before):
        equal(table.trajectory(row).columns, held.columns)
        assert table.trajectory(row)[1:] == held[1:]
    nothing = {"x": jax.ShapeDtypeStruct((0,), jnp.float32)}
    with pytest.raises(ValueError, match=re.escape("column 'x' has shape (0,): a step needs at least one number")):
        shared.create(tmp_path / "other", nothing, capacity=1, length=1)


def test_a_column_that_was_donated(tmp_path):
    """It raises before anything is changed."""
    table = shared.create(tmp_path, REWARD, capacity=1, length=LENGTH)
    table.insert({"reward": np.ones((1, LENGTH), np.float32)}, weight=2.0, version=3)
    deleted = jnp.zeros((1, LENGTH))
    deleted.delete()
    for change in (table.insert, lambda columns: table.write(np.array([0]), columns)):
        with pytest.raises(RuntimeError, match="deleted"):
            change({"reward": deleted})
        held = table.trajectory(0)
        assert (held.columns["reward"].tolist(), held.weight, held.version, held.number) == ([1.0] * 4, 2.0, 3, 0)


def test_a_relative_folder(tmp_path, monkeypatch):
    """The table stays where it is when the process changes its folder, and so does its pickle."""
    monkeypatch.chdir(tmp_path)
    own = shared.create("table", {"reward": SPEC["reward"]}, capacity=CAPACITY, length=LENGTH)
    packed = pickle.dumps(own)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    own.insert({"reward": np.ones((2, LENGTH), np.float32)})
    assert pickle.loads(packed).size == 2


def test_sizes_of_numpy(tmp_path):
    """They are written as numbers of Python, which JSON can hold."""
    spec = {"frame": jax.ShapeDtypeStruct((np.int64(2),), jnp.uint8)}
    table = shared.create(tmp_path, spec, capacity=np.int64(3), length=np.uint8(4))
    assert (table.capacity, table.size) == (3, 0)
    assert (tmp_path / "column0").stat().st_size == 3 * 4 * 2


def test_a_creation_that_fails_leaves_nothing(tmp_path, monkeypatch):
    """Neither files nor memory, so that a smaller table fits: nothing is written for arguments that are refused."""
    for spec, capacity, error in (
        (REWARD, 2**30 + 1, ValueError),
        (REWARD, 0, ValueError),
        ({**REWARD, "x": jax.ShapeDtypeStruct((0,), jnp.float32)}, 1, ValueError),
        ({"x": jax.ShapeDtypeStruct((), np.float64)}, 1, ValueError),
    ):
        with pytest.raises(error):
            shared.create(tmp_path / "new", spec, capacity=capacity, length=LENGTH)
    assert not (tmp_path / "new").exists()

    def full(descriptor, offset, size):
        if size > 1000:
            raise OSError("No space left on device")
        os.truncate(descriptor, size)

    monkeypatch.setattr(os, "posix_fallocate", full, raising=False)
    with pytest.raises(OSError, match="No space left on device"):
        shared.create(tmp_path / "new", SPEC, capacity=200, length=1)
    assert [*(tmp_path / "new").iterdir()] == []
    assert shared.create(tmp_path / "new", SPEC, capacity=20, length=1).capacity == 20


def test_the_folder_is_the_table(tmp_path):
    """Its files have the size that was reserved, and its description the columns."""
    shared.create(tmp_path, SPEC, capacity=CAPACITY, length=LENGTH)
    assert [*json.loads((tmp_path / "table.json").read_text())["columns"]] == [*SPEC]
    assert (tmp_path / "column0").stat().st_size == CAPACITY * LENGTH * 2
    assert (tmp_path / "number").stat().st_size == CAPACITY * 8


WRITER = """
import itertools, pathlib, sys
import numpy as np
from stellaris.replay import shared
table, first, stop = shared.attach(sys.argv[1]), int(sys.argv[2]), pathlib.Path(sys.argv[1], "stop")
print("ready", flush=True)
for i in itertools.count():
    if stop.exists():
        break
    table.insert({"reward": np.full((2, 512), first + i, np.float32)}, version=first + i)
print(i)
"""
REWARD = {"reward": jax.ShapeDtypeStruct((), jnp.float32)}


@contextlib.contextmanager
def writer(folder, first):
    """A process that inserts pairs of trajectories, whose rewards are their version, until it is told to stop."""
    command = [sys.executable, "-c", WRITER, folder, str(first)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ | {"JAX_PLATFORMS": "cpu"}) as run:
        try:
            assert run.stdout.readline() == "ready\n"
            yield run
        finally:
            run.kill()


@pytest.mark.slow
def test_processes_at_once(tmp_path):
    """Two processes insert while this one gathers: no batch has parts of two trajectories, and no insertion is lost."""
    table = shared.create(tmp_path, REWARD, capacity=8, length=512)
    table.insert({"reward": np.zeros((1, 512), np.float32)})
    with writer(tmp_path, 1) as one, writer(tmp_path, 1_000_001) as other:
        for i in range(300):
            batch = table.gather(table.select(jax.random.key(i), 16), {"x": Window("reward", 512)})
            values = np.asarray(batch.values["x"])
            np.testing.assert_array_equal(values, np.broadcast_to(np.asarray(batch.version)[:, None], values.shape))
        (tmp_path / "stop").touch()
        inserted = [int(run.stdout.readline()) for run in (one, other)]
    assert min(inserted) > 10
    last = 1 + 2 * sum(inserted)
    assert sorted(table.trajectory(row).number for row in range(8)) == [*range(last - 8, last)]


@pytest.mark.slow
def test_a_process_that_is_killed(tmp_path):
    """Others go on, and no half of a trajectory that it was inserting is seen."""
    table = shared.create(tmp_path, REWARD, capacity=8, length=512)
    for _ in range(3):
        with writer(tmp_path, 1):
            for i in range(20):
                table.select(jax.random.key(i), 1)
        for row in range(table.size):
            one = table.trajectory(row)
            assert len(one.columns["reward"]) in (0, 512)
            assert (one.columns["reward"] == one.version).all()
    table.insert({"reward": np.ones((8, 512), np.float32)}, version=1)
    assert all((table.trajectory(row).columns["reward"] == 1).all() for row in range(8))
