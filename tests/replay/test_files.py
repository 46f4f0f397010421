"""A table comes back as it was; what interrupts a save spoils nothing; what is damaged is named."""

import contextlib
import functools
import json
import os
import re
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import safetensors.numpy

from stellaris.replay import check, files, init, insert, update_weights
from stellaris.replay.files import load, save

SPEC = {
    "frame": jax.ShapeDtypeStruct((2,), jnp.uint8),
    "half": jax.ShapeDtypeStruct((), jnp.bfloat16),
    "done": jax.ShapeDtypeStruct((), jnp.bool_),
}


def table_of(batches, capacity=40, seed=0, **settings):
    """A table after so many batches of three."""
    table = init(SPEC, capacity=capacity, length=4)
    rng = np.random.default_rng(seed)
    for i in range(batches):
        columns = {
            "frame": rng.integers(0, 256, (3, 4, 2), np.uint8),
            "half": jnp.asarray(rng.normal(size=(3, 4)), jnp.bfloat16),
            "done": rng.random((3, 4)) < 0.5,
        }
        length = rng.integers(1, 5, 3).astype(np.int32)
        weight = rng.random(3).astype(np.float32)
        table = insert(table, columns, length=length, weight=weight, version=i, **settings)
    return table


def assert_same(one, other):
    for a, b in zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True):
        assert (a.shape, a.dtype) == (b.shape, b.dtype)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def insert_one(table, removal):
    columns = {name: jnp.ones((1, 2, *one.shape), one.dtype) for name, one in SPEC.items()}
    return insert(jax.tree.map(jnp.copy, table), columns, removal=removal)


@pytest.mark.slow
@pytest.mark.parametrize("batches", [0, 2, 14, 30])
@pytest.mark.parametrize("removal", ["oldest", "lowest"])
def test_a_table_comes_back_as_it_was(tmp_path, batches, removal):
    """Empty, partly filled, and after it has gone round; the sums of its weights and its faults, too."""
    table = table_of(batches, removal=removal)
    if batches == 2:
        table = update_weights(table, jnp.array([-1]), jnp.array([1.0]))
    save(table, tmp_path / "a" / "b")
    again = load(tmp_path / "a" / "b", spec=SPEC)
    assert_same(again, table)
    assert_same(insert_one(again, removal), insert_one(table, removal))


@pytest.mark.slow
def test_a_larger_table_keeps_the_order_of_insertion(tmp_path):
    """The oldest comes first, wherever it was; the next ones go behind the newest."""
    table = table_of(15)  # 45 trajectories, of which the first 5 are gone
    save(table, tmp_path)
    larger = load(tmp_path, capacity=50)
    order = np.argsort(np.asarray(table.number))
    for name in SPEC:
        np.testing.assert_array_equal(larger.columns[name][:40], np.asarray(table.columns[name])[order])
        assert not np.asarray(larger.columns[name][40:]).any()
    np.testing.assert_array_equal(larger.weight[:40], np.asarray(table.weight)[order])
    np.testing.assert_array_equal(larger.version[:40], np.asarray(table.version)[order])
    assert larger.number.tolist() == [*range(40), *[-1] * 10]
    assert (int(larger.inserted), int(larger.size)) == (40, 40)
    assert insert_one(larger, "oldest").number[40] == 40


@pytest.mark.parametrize(
    "dtype", ["bool", "uint8", "int32", "float16", "bfloat16", "float8_e4m3fn", "float8_e5m2", "int4", "complex64"]
)
def test_a_column_of_every_dtype(tmp_path, dtype):
    """Comes back as it was, also in dtypes that NumPy lacks."""
    table = init({"x": jax.ShapeDtypeStruct((), jnp.dtype(dtype))}, capacity=2, length=3)
    table = insert(table, {"x": jnp.array([[0, 1, 3]]).astype(dtype)})
    save(table, tmp_path)
    assert_same(load(tmp_path), table)


def test_only_rows_that_hold_something_are_written(tmp_path):
    save(table_of(1), tmp_path)
    before = {*tmp_path.iterdir()}
    small = sum(path.stat().st_size for path in before)
    save(table_of(14), tmp_path)
    (shard,) = {*tmp_path.iterdir()} - before
    assert small < 0.75 * (shard.stat().st_size + (tmp_path / "manifest.json").stat().st_size)


class Killed(BaseException):
    """As by `kill -9`: nothing is cleaned up either."""


class Interruption:
    """Lets so many steps of a save pass, and then fails: once, or whatever comes after it."""

    def __init__(self, monkeypatch, after, killed):
        self.left = after
        self.error = Killed if killed else OSError
        self.done = []
        self.patches = monkeypatch
        for owner, name in [(safetensors.numpy, "save_file"), (os, "fsync")]:
            self.patch(owner, name)
        for name in ("write_text", "replace", "unlink"):
            self.patch(Path, name)

    def patch(self, owner, name):
        function = getattr(owner, name)

        def counted(*arguments, **settings):
            if self.left == 0:
                if self.error is OSError:
                    self.left = -1
                if name == "save_file":  # half of it is on the disk
                    arguments[1].write_bytes(b"\x80" * 50)
                raise self.error(f"{name} was interrupted")
            self.left -= 1
            result = function(*arguments, **settings)
            self.done.append(name)
            return result

        self.patches.setattr(owner, name, counted)


@pytest.mark.parametrize("killed", [False, True])
def test_an_interrupted_save_never_spoils_the_one_before(tmp_path, monkeypatch, killed):
    """Interrupted at every step: until the manifest is replaced the old table is there, then the new one."""
    old, new, last = table_of(2, seed=1), table_of(14, seed=2), table_of(1, seed=3)
    for after in range(20):
        folder = tmp_path / str(after)
        save(old, folder)
        with monkeypatch.context() as patches:
            steps = Interruption(patches, after, killed)
            try:
                save(new, folder)
                interrupted = False
            except (OSError, Killed):
                interrupted = True
        assert_same(load(folder), new if "replace" in steps.done else old)
        save(last, folder)
        assert_same(load(folder), last)
        assert len([*folder.iterdir()]) == 3  # of an interrupted save nothing is left, of the one before its file
        if not interrupted and steps.left >= 0:
            break
    assert "replace" in steps.done
    assert after >= 7


def test_the_first_save_interrupted_leaves_no_table(tmp_path, monkeypatch):
    with monkeypatch.context() as patches:
        Interruption(patches, 2, True)
        with pytest.raises(Killed):
            save(table_of(1), tmp_path)
    with pytest.raises(FileNotFoundError, match=r"manifest.json: missing; expected the manifest that `save` writes"):
        load(tmp_path)
    save(table_of(1), tmp_path)
    assert_same(load(tmp_path), table_of(1))


def test_a_new_manifest_is_on_the_disk_after_all_that_it_names(tmp_path, monkeypatch):
    """Files, then their names, then the manifest, then its name: what a machine's crash leaves is in that order."""
    steps, kinds = [], {".safetensors": "shard", ".json": "manifest", "": "folder"}
    fsync, replace = os.fsync, Path.replace

    def recorded(descriptor):
        steps.append(kinds[Path(os.readlink(f"/proc/self/fd/{descriptor}")).suffix])
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    monkeypatch.setattr(Path, "replace", lambda *paths: (steps.append("renamed"), replace(*paths))[1])
    save(table_of(1), tmp_path / "table")
    assert steps == ["shard", "folder", "manifest", "renamed", "folder"]


def test_files_of_others_stay(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "weights.safetensors").write_text("mine, too")
    save(table_of(1), tmp_path)
    save(table_of(2), tmp_path)
    assert {path.name for path in tmp_path.iterdir()} >= {"notes.txt", "weights.safetensors"}
    assert len([*tmp_path.iterdir()]) == 5


class Beside:
    """Another process that does something before some of the steps of a load."""

    def __init__(self, monkeypatch, act):
        self.act = act  # of the number of the step
        self.steps = 0
        self.busy = False
        self.open = safetensors.safe_open
        monkeypatch.setattr(safetensors, "safe_open", self.opened)
        read = Path.read_bytes
        monkeypatch.setattr(Path, "read_bytes", lambda path: (self.step(), read(path))[1])

    def step(self):
        if not self.busy:
            self.busy = True
            self.act(self.steps)
            self.busy = False
            self.steps += 1

    def opened(self, *arguments, **settings):
        self.step()
        file = self.open(*arguments, **settings)

        def get_tensor(name):
            self.step()
            return file.get_tensor(name)

        @contextlib.contextmanager
        def watched():
            with file:
                yield SimpleNamespace(keys=file.keys, get_tensor=get_tensor)

        return watched()


def save_at(at, tables, folder, step):
    for table in tables if step == at else []:
        save(table, folder)


@pytest.mark.parametrize("saves", [1, 2, 3])
def test_a_reader_finds_a_whole_table_beside_a_writer(tmp_path, monkeypatch, saves):
    """Whatever is saved meanwhile, before any of its steps: what was there when it began, or later."""
    tables = [table_of(1 + i, seed=i) for i in range(4)]
    for at in range(30):
        folder = tmp_path / str(at)
        save(tables[0], folder)
        with monkeypatch.context() as patches:
            beside = Beside(patches, functools.partial(save_at, at, tables[1 : 1 + saves], folder))
            found = load(folder)
        if beside.steps <= at:
            break
        assert_same(found, tables[0] if int(found.size) == 3 else tables[saves])
    assert at >= 7


def test_a_reader_comes_to_an_end_beside_a_writer(tmp_path, monkeypatch):
    tables = [table_of(1, seed=seed) for seed in range(2)]
    save(tables[0], tmp_path)
    with monkeypatch.context() as patches:
        beside = Beside(patches, lambda step: save(tables[(step + 1) % 2], tmp_path))
        found = load(tmp_path)
    assert 5 < beside.steps < 30
    assert_same(found, tables[1])  # which was there when the manifest was read


def test_a_reader_names_a_folder_that_goes(tmp_path, monkeypatch):
    save(table_of(1), tmp_path / "table")
    Beside(monkeypatch, lambda step: shutil.rmtree(tmp_path / "table") if step == 1 else None)
    with pytest.raises(FileNotFoundError, match=r"manifest.json: missing; expected the manifest that `save` writes"):
        load(tmp_path / "table")


def test_two_writers(tmp_path, monkeypatch):
    """The second is told that there is a first, which goes on; once that has ended it may write."""
    function, refused = safetensors.numpy.save_file, []

    def interrupted(*arguments):
        with pytest.raises(OSError, match=rf"^{re.escape(str(tmp_path))}: another save is writing there") as error:
            save(table_of(2), tmp_path)
        refused.append(error)
        function(*arguments)

    with monkeypatch.context() as patches:
        patches.setattr(safetensors.numpy, "save_file", interrupted)
        save(table_of(1), tmp_path)
    assert len(refused) == 1
    assert_same(load(tmp_path), table_of(1))
    save(table_of(2), tmp_path)
    assert_same(load(tmp_path), table_of(2))


@pytest.fixture
def saved(tmp_path):
    save(table_of(2), tmp_path)
    (shard,) = tmp_path.glob("*.safetensors")
    return tmp_path, shard


def manifest_of(folder):
    return json.loads((folder / "manifest.json").read_text())["manifest"]


def accept_size(folder, shard):
    """Has the manifest say the size that the file has."""
    manifest = manifest_of(folder)
    manifest["shards"][0]["bytes"] = shard.stat().st_size
    write_manifest(folder, manifest)


def write_manifest(folder, manifest):
    content = json.dumps({"sha256": files._digest_of_manifest(manifest), "manifest": manifest})
    (folder / "manifest.json").write_text(content)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda arrays: {"column/frame": arrays["column/frame"] ^ 1},
            "column 'frame' is damaged: its SHA-256 is [0-9a-f]{64}, expected [0-9a-f]{64}",
        ),
        (
            lambda arrays: {"weight": np.nextafter(arrays["weight"], 2, dtype=np.float32)},
            "the weight of trajectories is damaged: its SHA-256 is",
        ),
        (lambda arrays: {"column/half": None}, r"column 'half' is missing: expected bfloat16 \[6, 4\]"),
        (
            lambda arrays: {"column/frame": arrays["column/frame"][:5]},
            r"column 'frame' is uint8 \[5, 4, 2\]: expected uint8 \[6, 4, 2\]",
        ),
        (
            lambda arrays: {"column/done": arrays["column/done"].astype(np.int8)},
            r"column 'done' is int8 \[6, 4\]: expected bool \[6, 4\]",
        ),
    ],
)
def test_damaged_columns_are_named(saved, change, message):
    folder, shard = saved
    arrays = safetensors.numpy.load_file(shard)
    changed = arrays | change(arrays)
    safetensors.numpy.save_file({name: array for name, array in changed.items() if array is not None}, shard)
    accept_size(folder, shard)
    with pytest.raises(ValueError, match=rf"{shard.name}: {message}"):
        load(folder)


def test_a_truncated_file_is_named(saved):
    folder, shard = saved
    whole = shard.read_bytes()
    shard.write_bytes(whole[:-10])
    with pytest.raises(ValueError, match=f"{shard.name}: has {len(whole) - 10} bytes: expected {len(whole)}, as the"):
        load(folder)
    accept_size(folder, shard)
    with pytest.raises(ValueError, match=rf"{shard.name}: damaged \(.*\); expected a file that `save` writes"):
        load(folder)
    shard.unlink()
    with pytest.raises(ValueError, match=f"{shard.name}: missing; expected a file of {len(whole) - 10} bytes"):
        load(folder)


@pytest.mark.parametrize("text", ["", "{", "[]", "null", "{}", '{"sha256": "0", "manifest": {}}', "[" * 100_000])
def test_a_damaged_manifest_is_named(saved, text):
    folder, _ = saved
    (folder / "manifest.json").write_text(text)
    with pytest.raises(ValueError, match=r"manifest.json: damaged .*; expected the manifest that `save` writes"):
        load(folder)
    save(table_of(1), folder)
    assert_same(load(folder), table_of(1))
    assert len([*folder.iterdir()]) == 2


def test_a_bit_of_the_manifest_is_noticed(saved):
    path = saved[0] / "manifest.json"
    path.write_text(path.read_text().replace('"capacity": 40', '"capacity": 41'))
    with pytest.raises(ValueError, match=r"damaged .its SHA-256 does not match"):
        load(saved[0])


@pytest.mark.parametrize(
    ("place", "values", "message"),
    [
        ((), [[], 3, None, {}], "manifest.json: "),
        (("capacity",), [None, 0, -1, 2.5, True, "4", 10**30], "manifest.json: capacity is .*: expected"),
        (("length",), [None, 0, -1, 4.0, False, [4], 2**31], "manifest.json: length is .*: expected"),
        (("columns",), [None, [], {}, "frame"], "manifest.json: columns is .*: expected"),
        (("columns", "frame"), [None, []], "manifest.json: columns is .*: expected a dict of records"),
        (("columns", "frame"), [{}], "manifest.json: shape of column 'frame' is None: expected"),
        (
            ("columns", "frame", "shape"),
            [None, 2, [-1], [2.0], ["2"], [[2]], [2**31], [10**30, 10**30]],
            "shape of column 'frame' is .*: expected",
        ),
        (
            ("columns", "frame", "dtype"),
            [None, 1, "", "nonsense", "object", "U5", "M8[s]", "V4", "f4", ">f4", "f4,(", "(2,)f4", "{}"],
            "dtype of column 'frame'",
        ),
        (("shards",), [None, [], {}, [None], [3]], "manifest.json: "),
        (
            ("shards", 0, "file"),
            [None, 7, "x", "../other/000001.shard-00000-of-00001.safetensors", "/etc/passwd"],
            "file of shard 0 is",
        ),
        (("shards", 0, "bytes"), [None, -1, 1.5, "1"], "bytes of shard 0 is .*: expected"),
        (("shards", 0, "trajectories"), [None, -1, 1.5, 41, 10**30], "trajectories of shard 0 is .*: expected"),
        (("shards", 0, "trajectories"), [5], r"safetensors: the number of trajectories is int32 \[6\]: expected"),
        (("shards", 0, "inserted"), [None, -1, 5, 2**31], "inserted of shard 0 is .*: expected"),
        (("shards", 0, "faults"), [None, -1, 32], "faults of shard 0 is .*: expected"),
        (("shards", 0, "sha256"), [None, [], {}, {"weight": 3}], "sha256 of shard 0 is .*: expected"),
        (("format",), [2], "manifest.json: format 2; this stellaris reads format 1"),
        (("length",), [2**31 - 1], r"safetensors: column 'done' is bool \[6, 4\]: expected bool \[6, 2147483647\]"),
    ],
)
def test_nonsense_in_a_manifest_is_named(saved, place, values, message):
    """Whoever has computed its hash: the field, its value, and what was expected. A save writes a new one."""
    folder, _ = saved
    whole = manifest_of(folder)
    for value in values:
        manifest = inner = json.loads(json.dumps(whole))
        for key in place[:-1]:
            inner = inner[key]
        if place:
            inner[place[-1]] = value
        write_manifest(folder, manifest if place else value)
        with pytest.raises(ValueError, match=message):
            load(folder)
    save(table_of(1), folder)
    assert_same(load(folder), table_of(1))


def test_a_capacity_that_is_too_large(tmp_path):
    """No file tells how many rows there are, for only those that hold something are written."""
    save(init({"x": jax.ShapeDtypeStruct((2**10,), jnp.uint8)}, capacity=1, length=2**10), tmp_path)
    write_manifest(tmp_path, manifest_of(tmp_path) | {"capacity": 2**30})
    with pytest.raises(ValueError, match=r"json: column 'x' of capacity=1073741824 and length=1024 is too large for"):
        load(tmp_path)


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("length", 5, "the length of trajectories has 5: expected 0 to 4"),
        ("length", -1, "the length of trajectories has -1: expected 0 to 4"),
        ("weight", np.nan, r"the weight of trajectories has nan: expected 0 to 1e\+30"),
        ("weight", -1, r"the weight of trajectories has -1.0: expected 0 to 1e\+30"),
        ("number", -1, "the number of trajectories has -1: expected 0 to 5"),
        ("number", 6, "the number of trajectories has 6: expected 0 to 5"),
    ],
)
def test_nonsense_in_a_file_is_named(saved, name, value, message):
    folder, shard = saved
    arrays = safetensors.numpy.load_file(shard)
    arrays[name][2] = value
    safetensors.numpy.save_file(arrays, shard)
    manifest = manifest_of(folder)
    manifest["shards"][0]["sha256"][name] = files._digest(arrays[name])
    write_manifest(folder, manifest)
    with pytest.raises(ValueError, match=f"{shard.name}: {message}"):
        load(folder)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"frame": jax.ShapeDtypeStruct((3,), jnp.uint8)}, r"column 'frame' is uint8 \[2\]: expected uint8 \[3\]"),
        ({"done": jax.ShapeDtypeStruct((), jnp.int8)}, r"column 'done' is bool \[\]: expected int8 \[\]"),
        ({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, r"column 'reward' is missing: expected float32 \[\]"),
    ],
)
def test_another_spec_than_expected_is_named(saved, change, message):
    with pytest.raises(ValueError, match=f"manifest.json: {message}"):
        load(saved[0], spec=SPEC | change)
    with pytest.raises(ValueError, match=r"manifest.json: column 'done' is bool \[\]: expected no such column"):
        load(saved[0], spec={name: one for name, one in SPEC.items() if name != "done"})


def test_a_column_of_a_dtype_that_is_not_enabled_is_named(tmp_path):
    with jax.enable_x64(True):
        table = init({"x": jax.ShapeDtypeStruct((), jnp.float64)}, capacity=2, length=2)
        save(insert(table, {"x": np.full((1, 2), 1 / 3)}), tmp_path)
        assert load(tmp_path).columns["x"][0].tolist() == [1 / 3, 1 / 3]
    with pytest.raises(ValueError, match=r"manifest.json: column 'x' has dtype float64: enable jax_enable_x64"):
        load(tmp_path)


def test_errors_of_load(saved):
    check(load(saved[0], capacity=6))
    for options, message in (
        ({"capacity": 5}, "capacity=5: the table in .* holds 6 trajectories"),
        ({"capacity": 0}, "capacity=0 is below 1"),
        ({"capacity": 6.5}, "capacity=6.5 is not a whole number"),
        ({"memory": "disk"}, "memory='disk': expected 'device' or 'pinned_host'"),
    ):
        with pytest.raises((TypeError, ValueError), match=message):
            load(saved[0], **options)


def test_without_safetensors_the_error_names_the_extra(tmp_path, monkeypatch):
    """Importing the module needs neither it nor h5py."""
    monkeypatch.setitem(sys.modules, "safetensors.numpy", None)
    for call in (lambda: save(table_of(0), tmp_path), lambda: load(tmp_path)):
        with pytest.raises(ImportError, match=r"pip install 'stellaris-rl\[replay\]'"):
            call()
