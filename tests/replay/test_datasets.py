"""Datasets of Minari and of D4RL, as trajectories of columns."""

import re
import sys
from types import SimpleNamespace
from unittest import mock

import h5py
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.replay import check, datasets, init, insert, sharded

LENGTHS = (4, 1, 11)
#: Columns of one number a step.
FLAT = ("reward", "terminated", "truncated")


def write_minari(path, lengths=LENGTHS, change=None):
    """Each number says from which episode and step it is; more than ten episodes would not be in order by name."""
    with h5py.File(path, "w") as file:
        for i, steps in enumerate(lengths):
            group = file.create_group(f"episode_{i}")
            group["observations"] = (100.0 * i + np.arange(steps + 1))[:, None] + np.array([0.25, 0.5])
            group["actions"] = np.full((steps, 1), i, np.float32)
            group["rewards"] = 10.0 * i + np.arange(steps)
            group["terminations"] = np.arange(steps) == steps - 1
            group["truncations"] = np.zeros(steps, bool)
            group["infos/x"] = np.zeros(steps + 1)
        if change:
            change(file)
    return path


def write_d4rl(path, change=None):
    """Two that end, of 3 and 4 steps, one truncated after 1, and one of 2 that the file cuts off."""
    with h5py.File(path, "w") as file:
        file["observations"] = np.arange(20, dtype=np.float32).reshape(10, 2)
        file["actions"] = -np.arange(10, dtype=np.float32)[:, None]
        file["rewards"] = np.arange(10, dtype=np.float32)
        file["terminals"] = np.isin(np.arange(10), [2, 6]).astype(np.uint8)
        file["timeouts"] = np.isin(np.arange(10), [6, 7])
        file["next_observations"] = np.zeros((10, 2), np.float32)
        file["infos/qpos"] = np.zeros((10, 5))
        if change:
            change(file)
    return path


def replaced(name, value, prefix=""):
    """What puts another dataset in place of one."""

    def change(file):
        del file[prefix + name.partition("/")[0]]
        if value is not None:
            file[prefix + name] = value

    return change


def test_minari(tmp_path):
    """Observations less the last, in the order of the numbers; behind the end there are zeros."""
    columns, length = datasets.read(write_minari(tmp_path / "main_data.hdf5", lengths=(2, 1, *[1] * 8, 3)))
    assert length.tolist() == [2, 1, *[1] * 8, 3]
    shapes = {"observation": (11, 3, 2), "action": (11, 3, 1)} | dict.fromkeys(FLAT, (11, 3))
    assert {name: column.shape for name, column in columns.items()} == shapes
    assert (columns["observation"].dtype, columns["action"].dtype) == (np.float64, np.float32)
    assert [columns[name].dtype for name in FLAT] == [np.float64, bool, bool]
    assert columns["observation"][0].tolist() == [[0.25, 0.5], [1.25, 1.5], [0, 0]]
    assert columns["observation"][10].tolist() == [[1000.25, 1000.5], [1001.25, 1001.5], [1002.25, 1002.5]]
    assert columns["reward"][[0, 10]].tolist() == [[0, 1, 0], [100, 101, 102]]
    assert columns["terminated"][0].tolist() == [False, True, False]
    assert not columns["truncated"].any()


def test_d4rl(tmp_path):
    """A trajectory ends where either flag is set; the last one is cut off by the file."""
    columns, length = datasets.read(write_d4rl(tmp_path / "hopper.hdf5"))
    assert length.tolist() == [3, 4, 1, 2]
    assert set(columns) == {"observation", "action", *FLAT}
    assert columns["reward"].tolist() == [[0, 1, 2, 0], [3, 4, 5, 6], [7, 0, 0, 0], [8, 9, 0, 0]]
    assert columns["observation"][3].tolist() == [[16, 17], [18, 19], [0, 0], [0, 0]]
    assert columns["terminated"].dtype == bool
    assert columns["terminated"].sum(1).tolist() == [1, 1, 0, 0]
    assert columns["truncated"].sum(1).tolist() == [0, 1, 1, 0]


def test_observations_of_several_arrays(tmp_path):
    def nested(file):
        for group in file.values():
            steps = len(group["rewards"])
            del group["observations"]
            group["observations/goal/achieved"] = np.ones((steps + 1, 3))
            group["observations/image"] = np.full((steps + 1, 2, 2), 255, np.uint8)

    columns, _ = datasets.read(write_minari(tmp_path / "a.hdf5", change=nested))
    assert columns["observation/goal/achieved"].shape == (3, 11, 3)
    assert columns["observation/image"].dtype == np.uint8
    assert columns["observation/image"].sum((1, 2, 3)).tolist() == [4 * 4 * 255, 4 * 255, 11 * 4 * 255]


SPEC = {
    "observation": jax.ShapeDtypeStruct((2,), jnp.float32),
    "reward": jax.ShapeDtypeStruct((), jnp.float32),
    "terminated": jax.ShapeDtypeStruct((), jnp.bool_),
}


@pytest.mark.slow
@pytest.mark.parametrize("capacity", [3, 8])
@pytest.mark.parametrize("kind", ["minari", "d4rl"])
def test_straight_into_a_table(tmp_path, kind, capacity):
    """Some columns of the file, as the table that has been given all in one batch; a small one keeps the last."""
    path = {"minari": write_minari, "d4rl": write_d4rl}[kind](tmp_path / "a.hdf5")
    table = datasets.insert(init(SPEC, capacity=capacity, length=12), path, weight=2.0, version=7)
    check(table)
    columns, length = datasets.read(path)
    expected = init(SPEC, capacity=capacity, length=12)
    for i in range(len(length)):
        one = {name: columns[name][i : i + 1].astype(kind.dtype) for name, kind in SPEC.items()}
        expected = insert(expected, one, length=length[i : i + 1], weight=2.0, version=7)
    for a, b in zip(jax.tree.leaves(table), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(a, b)


def test_more_than_one_batch(tmp_path, monkeypatch):
    monkeypatch.setattr(datasets, "_BATCH", 2)
    path = write_minari(tmp_path / "a.hdf5", lengths=(1, 2, 3, 4, 5))
    assert datasets.insert(init(SPEC, capacity=8, length=5), path).length.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("actions", None, "'episode_1/actions' is missing: expected one with a row for each step"),
        ("rewards", None, "'episode_1/rewards' is missing: expected one with a row for each step"),
        ("rewards", np.zeros(0), "'episode_1/rewards' is empty: expected at least one step"),
        ("rewards", np.zeros((1, 1)), "'episode_1/rewards' has shape (1, 1): expected one number for each step"),
        ("actions", 3.0, "'episode_1/actions' is one value: expected a row for each step"),
        ("observations/x", ["go", "stop"], "'episode_1/observations/x' has dtype object: expected numbers"),
        (
            "observations",
            np.zeros((1, 2)),
            "'/episode_1/observations' has 1 rows: expected 2, as there are 1 rewards and one more",
        ),
        ("truncations", [False] * 3, "'/episode_1/truncations' has 3 rows: expected 1, as there are 1 rewards"),
        (
            "actions",
            np.zeros((1, 2), np.float32),
            "'/episode_1/actions' has float32 [2] per step: expected float32 [1], as '/episode_0/actions' has",
        ),
        ("observations/x", np.zeros((2, 2)), "'/episode_0/observations' is not in every episode: expected it in all"),
    ],
)
def test_errors_of_minari_name_file_dataset_and_expectation(tmp_path, name, value, message):
    path = write_minari(tmp_path / "bad.hdf5", change=replaced(name, value, "episode_1/"))
    table = init(SPEC, capacity=3, length=12)
    for call in (datasets.read, lambda path: datasets.insert(table, path)):
        with pytest.raises(ValueError, match=re.escape(f"bad.hdf5: dataset {message}")):
            call(path)
    assert table.size == 0


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("timeouts", None, "dataset 'timeouts' is missing: expected one with a row for each step"),
        ("actions", np.zeros((9, 1)), "dataset '/actions' has 9 rows: expected 10, as there are 10 rewards"),
        ("terminals", np.zeros((10, 1)), "dataset 'terminals' has shape (10, 1): expected one number for each step"),
        ("observations", None, "has actions, infos, next_observations, rewards, terminals, timeouts; expected groups"),
        # What a stranger's file may hold.
        ("terminals", np.full(10, 0.5), "dataset '/terminals' has 0.5: expected 0 or 1 for each step"),
        ("timeouts", np.full(10, np.nan), "dataset '/timeouts' has nan: expected 0 or 1 for each step"),
        ("timeouts", np.arange(10), "dataset '/timeouts' has 2: expected 0 or 1 for each step"),
        ("observations", h5py.Empty("f"), "dataset 'observations' is one value: expected a row for each step"),
        ("rewards", h5py.Empty("f"), "dataset 'rewards' has shape None: expected one number for each step"),
        ("observations", np.dtype("f4"), "dataset 'observations' is one value: expected a row for each step"),
        ("actions", h5py.SoftLink("/nothing"), "dataset 'actions' is missing: expected one with a row for each step"),
        ("actions", h5py.SoftLink("/actions"), "'actions' in '/' cannot be opened ("),
    ],
)
def test_errors_of_d4rl_name_file_dataset_and_expectation(tmp_path, name, value, message):
    path = write_d4rl(tmp_path / "bad.hdf5", change=replaced(name, value))
    with pytest.raises(ValueError, match=re.escape(f"bad.hdf5: {message}")):
        datasets.read(path)


@pytest.mark.parametrize("flag", [np.uint8, np.float64, bool])
def test_flags_of_0_and_1_in_any_dtype(tmp_path, flag):
    path = write_d4rl(tmp_path / "a.hdf5", change=replaced("terminals", np.isin(np.arange(10), [2, 6]).astype(flag)))
    assert datasets.read(path).length.tolist() == [3, 4, 1, 2]


def test_an_observation_may_be_called_as_a_flag(tmp_path):
    def nested(file):
        del file["observations"]
        file["observations/rewards"] = np.full((10, 2), 0.25)
        file["observations/timeouts"] = np.full(10, 0.25)

    columns, _ = datasets.read(write_d4rl(tmp_path / "a.hdf5", change=nested))
    assert columns["observation/timeouts"][0].tolist() == [0.25, 0.25, 0.25, 0]
    assert columns["observation/rewards"].shape == (4, 4, 2)


@pytest.mark.parametrize("kind", ["external", "virtual", "link", "link to a link"])
def test_nothing_is_read_from_another_file(tmp_path, kind):
    other = str(write_d4rl(tmp_path / "secret.hdf5"))

    def change(file):
        del file["actions"]
        if kind == "external":
            file.create_dataset("actions", (10, 1), "f4", external=[(other, 0, h5py.h5f.UNLIMITED)])
        elif kind == "virtual":
            layout = h5py.VirtualLayout((10, 1), "f4")
            layout[:] = h5py.VirtualSource(other, "actions", (10, 1), "f4")
            file.create_virtual_dataset("actions", layout)
        elif kind == "link":
            file["actions"] = h5py.ExternalLink(other, "/actions")
        else:
            file["other"] = h5py.ExternalLink(other, "/")
            file["actions"] = h5py.SoftLink("/other/actions")

    path = write_d4rl(tmp_path / "a.hdf5", change=change)
    with pytest.raises(ValueError, match=r"a.hdf5: .*'actions'.* is kept in another file, which is not read"):
        datasets.read(path)


@pytest.mark.parametrize("place", ["observations/again", "observations/deep/deeper/again"])
def test_a_group_that_contains_itself(tmp_path, place):
    for link in (lambda file: file["observations"], lambda _: h5py.SoftLink("/observations")):

        def nested(file, link=link):
            del file["observations"]
            file["observations/x"] = np.zeros((10, 2))
            file[place] = link(file)

        path = write_d4rl(tmp_path / "a.hdf5", change=nested)
        with pytest.raises(ValueError, match=re.escape(f"a.hdf5: group '{place}' contains itself, or occurs twice")):
            datasets.read(path)


def test_groups_may_be_deep(tmp_path):
    deep = replaced("observations" + "/x" * 1500, np.zeros((10, 2)))
    assert datasets.read(write_d4rl(tmp_path / "a.hdf5", change=deep)).length.tolist() == [3, 4, 1, 2]


@pytest.mark.parametrize("kind", ["minari", "d4rl"])
def test_sizes_that_a_file_cannot_have(tmp_path, kind):
    steps = 10**11

    def claim(file):
        group = file if kind == "d4rl" else file.create_group("episode_0")
        for name in [*group]:
            del group[name]
        flags = ("terminals", "timeouts") if kind == "d4rl" else ("terminations", "truncations")
        for name in ("observations", "actions", "rewards", *flags):
            rows = steps + (kind == "minari" and name == "observations")
            group.create_dataset(name, (rows,), "u1", chunks=(1000,))

    write = write_d4rl if kind == "d4rl" else lambda path, change: write_minari(path, (), change)
    path = write(tmp_path / "a.hdf5", change=claim)
    assert path.stat().st_size < 20_000
    with pytest.raises(ValueError, match=r"the file has .* bytes, but its datasets claim 500,000,000,00. bytes"):
        datasets.read(path)


def test_padding_that_is_too_large(tmp_path, monkeypatch):
    path = write_d4rl(tmp_path / "a.hdf5")
    full = vars(np) | {"zeros": mock.Mock(side_effect=MemoryError)}
    monkeypatch.setattr(datasets, "np", SimpleNamespace(**full))
    message = "a.hdf5: its trajectories, padded to the longest, make column 'observation' [4, 4, 2]: too large for"
    with pytest.raises(ValueError, match=re.escape(message)):
        datasets.read(path)


@pytest.mark.parametrize("kind", ["minari", "d4rl"])
@pytest.mark.parametrize(
    ("values", "dtype", "lost"),
    [
        (np.array([2**31 - 1, -(2**31)]), "int32", None),
        (np.array([0, 2**31]), "int32", 2**31),
        (np.array([-128, 127]), "int8", None),
        (np.array([0, -129]), "int8", -129),
        (np.array([0, 2**63], np.uint64), "int32", 2**63),
        (np.array([0, -1]), "uint8", -1),
        (np.array([2**24, -(2**24)]), "float32", None),
        (np.array([0, 2**24 + 1]), "float32", 2**24 + 1),
        (np.array([0, 257]), "bfloat16", 257),
        (np.array([1 / 3, np.inf]), "float32", None),
        (np.array([0, -1e39]), "float32", -1e39),
        (np.array([0, 1e5]), "float16", 1e5),
    ],
)
def test_numbers_that_fit_become_the_tables(tmp_path, kind, values, dtype, lost):
    """Whole ones exactly, others rounded; one that does not fit is named, and nothing is inserted."""
    if kind == "d4rl":
        path = write_d4rl(tmp_path / "a.hdf5", change=replaced("rewards", np.resize(values, 10)))
    else:
        path = write_minari(tmp_path / "a.hdf5", (2,), change=replaced("rewards", values, "episode_0/"))
    table = init({"reward": jax.ShapeDtypeStruct((), dtype)}, capacity=4, length=4)
    if lost is None:
        table = datasets.insert(table, path)
        np.testing.assert_array_equal(table.columns["reward"][0, :2], values.astype(dtype))
        return
    place = "/rewards" if kind == "d4rl" else "/episode_0/rewards"
    message = f"a.hdf5: dataset '{place}' has {lost}: the table's column 'reward' expects numbers that {dtype} can hold"
    with pytest.raises(ValueError, match=re.escape(message)):
        datasets.insert(table, path)
    assert table.size == 0


def test_episodes_may_be_numbered_with_zeros(tmp_path):
    """Their names are taken as they are; what is no number of an episode is none."""

    def renamed(file):
        for i in range(3):
            file.move(f"episode_{i}", f"episode_{i:03}")
        file.create_group("episode_" + "1" * 5000)

    path = write_minari(tmp_path / "a.hdf5", change=renamed)
    assert datasets.read(path).length.tolist() == [*LENGTHS]


@pytest.mark.parametrize(
    ("column", "message"),
    [
        (
            ("observation", (3,), jnp.float32),
            "dataset '/observations' has float32 [2] per step: the table's column 'observation' expects float32 [3]",
        ),
        (
            ("reward", (), jnp.int32),
            "dataset '/rewards' has float32 [] per step: the table's column 'reward' expects int32 []",
        ),
        (
            ("cost", (), jnp.float32),
            "the table's column 'cost' is missing; the file has observation, action, reward, terminated, truncated",
        ),
        (
            ("reward", (), jnp.float32),
            "the trajectory from row 3 of '/observations' has 4 steps: the table expects at most 3",
        ),
    ],
)
def test_a_table_that_a_file_does_not_fit_into(tmp_path, column, message):
    path, (name, *kind) = write_d4rl(tmp_path / "a.hdf5"), column
    with pytest.raises(ValueError, match=re.escape(f"a.hdf5: {message}")):
        datasets.insert(init(SPEC | {name: jax.ShapeDtypeStruct(*kind)}, capacity=4, length=3), path)


def test_a_sharded_table_is_refused(tmp_path):
    """By name: its columns have one axis more, so that no dataset would seem to fit."""
    table = sharded.init(SPEC, capacity=4, length=12, over=sharded.Shards(jax.make_mesh((1,), ("data",))))
    with pytest.raises(ValueError, match=r"table is sharded: pass .* to `replay\.sharded\.insert`"):
        datasets.insert(table, write_d4rl(tmp_path / "a.hdf5"))


def test_no_file_and_no_hdf5(tmp_path):
    whole = write_minari(tmp_path / "whole.hdf5").read_bytes()
    h5py.File(tmp_path / "empty.hdf5", "w").close()
    empty = (tmp_path / "empty.hdf5").read_bytes()
    for content, message in (
        (b"text", r"not an HDF5 file, or damaged \(.*\); expected one of Minari or D4RL"),
        (whole[: len(whole) // 2], "not an HDF5 file, or damaged"),
        (empty, "has nothing; expected groups episode_0"),
    ):
        (tmp_path / "a.hdf5").write_bytes(content)
        with pytest.raises(ValueError, match=f"a.hdf5: {message}"):
            datasets.read(tmp_path / "a.hdf5")
    with pytest.raises(FileNotFoundError):
        datasets.read(tmp_path / "none.hdf5")


def test_a_damaged_chunk_names_its_dataset(tmp_path):
    def checked(file):
        del file["actions"]
        file.create_dataset("actions", data=np.full((10, 1), 77.0), chunks=(10, 1), fletcher32=True)

    path = write_d4rl(tmp_path / "a.hdf5", change=checked)
    content = path.read_bytes()
    place = content.index(np.full(10, 77.0).tobytes())
    path.write_bytes(content[:place] + b"\x01" + content[place + 1 :])
    with pytest.raises(ValueError, match=r"a.hdf5: dataset '/actions' cannot be read \(.*\): the file is damaged"):
        datasets.read(path)


def test_without_h5py_the_error_names_the_extra(tmp_path, monkeypatch):
    path = write_d4rl(tmp_path / "a.hdf5")
    monkeypatch.setitem(sys.modules, "h5py", None)
    with pytest.raises(ImportError, match=r"pip install 'stellaris-rl\[replay\]'"):
        datasets.read(path)
