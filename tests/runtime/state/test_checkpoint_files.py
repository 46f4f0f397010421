"""Checkpoints on the disk: damaged, foreign and a stranger's ones are refused, and a kill never spoils the last one."""

import hashlib
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

from stellaris.runtime import CheckpointError, Checkpoints, FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant

GIVEN = {"program": bool}
FILES = ["SHA256SUMS", "about.json", "arrays.bin", "state.json"]


def platform() -> SimulatedPlatform:
    """A platform with a pending invocation."""
    fresh = SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1)
    fresh.invoke("f", bool)
    return fresh


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Checkpoints]:
    """A folder with two checkpoints."""
    with platform() as p:
        folder = Checkpoints(tmp_path / "run")
        for step in (3, 4):
            folder.save(step, p, {"step": step, "array": np.arange(1000)}, externals=GIVEN)
        yield folder


def newest(of: Checkpoints) -> Path:
    """The folder of the newest checkpoint."""
    return Path(of.folder) / str(of.newest())


def load(of: Checkpoints) -> int:
    """The step that is loaded into a fresh platform."""
    with SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1) as fresh:
        step: int = of.load(fresh, externals=GIVEN)["step"]
        return step


def sign(folder: Path) -> None:
    """Writes hashes that fit, as any stranger can."""
    lines = [
        f"{hashlib.sha256((folder / name).read_bytes()).hexdigest()}  {name}\n" for name in FILES if name != FILES[0]
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


def rewrite(path: Path, change: Any) -> None:
    """Changes the JSON of a file, and its hash."""
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))
    sign(path.parent)


def test_the_files_of_a_checkpoint(saved: Checkpoints) -> None:
    folder = newest(saved)
    assert sorted(path.name for path in folder.iterdir()) == FILES
    about = json.loads((folder / "about.json").read_bytes())
    assert about["configurations"]["platform"]["functions"]["f"]["compute"] == {"type": "Constant", "seconds": 1.0}
    assert np.arange(1000).tobytes() in (folder / "arrays.bin").read_bytes()
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)


DAMAGES = {
    "emptied": lambda path: path.write_bytes(b""),
    "a byte short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "deleted": lambda path: path.unlink(),
    "a dead link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"step": 4})),
}


FOLDERS = {
    "emptied": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
    "a file more": lambda folder: (folder / "more").write_text("x"),
    "a file": lambda folder: [shutil.rmtree(folder), folder.write_bytes(b"x")],
    "a link": lambda folder: [shutil.rmtree(folder), folder.symlink_to("nowhere")],
    "an older format's": lambda folder: [folder.with_suffix(".checkpoint").write_bytes(b"x"), shutil.rmtree(folder)],
    **{
        f"{name} {how}": lambda folder, name=name, damage=damage: damage(folder / name)
        for name in FILES
        for how, damage in DAMAGES.items()
    },
}


@pytest.mark.parametrize("damage", FOLDERS.values(), ids=FOLDERS)
def test_damage(damage: Any, saved: Checkpoints) -> None:
    """The checkpoint before is loaded, a warning says what was skipped and why, and the next one is newer."""
    damage(newest(saved))
    with pytest.warns(UserWarning, match=r"run/3 is the newest checkpoint that can be loaded: 4(\.checkpoint)? is dam"):
        assert load(saved) == 3
    assert saved.newest() == 4
    with platform() as p:
        saved.save(5, p, {"step": 5}, externals=GIVEN)
    assert load(saved) == 5


def test_a_damaged_checkpoint_is_not_kept_in_place_of_an_intact_one(saved: Checkpoints) -> None:
    """The run was resumed from 3; if 5 is damaged as well, 3 must still be there."""
    (newest(saved) / "state.json").write_bytes(b"")
    with platform() as p:
        saved.save(5, p, {"step": 5}, externals=GIVEN)
    (newest(saved) / "state.json").write_bytes(b"")
    with pytest.warns(UserWarning, match="run/3 is the newest checkpoint that can be loaded"):
        assert load(saved) == 3
    with platform() as p:
        for step in (6, 7):
            saved.save(step, p, {"step": step}, externals=GIVEN)
    assert sorted(path.name for path in Path(saved.folder).iterdir()) == ["6", "7"]


def test_no_complete_checkpoint_is_an_error(saved: Checkpoints) -> None:
    (newest(saved) / "state.json").write_bytes(b"")
    (Path(saved.folder) / "3" / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError) as error:
        load(saved)
    assert str(error.value) == (
        f"folder={os.fspath(saved.folder)!r} holds no checkpoint that can be loaded: 4 is damaged: its hashes do not "
        f"match state.json; 3 is damaged or not a checkpoint (No such file or directory: {saved.folder}/3/SHA256SUMS)"
    )


def test_flipped_bits(saved: Checkpoints) -> None:
    shutil.rmtree(Path(saved.folder) / "3")
    rng = np.random.default_rng(0)
    with platform() as p:
        for name in FILES:
            path = newest(saved) / name
            content, size = path.read_bytes(), 8 * path.stat().st_size
            for bit in rng.integers(0, size, 100).tolist():
                flipped = bytearray(content)
                flipped[bit // 8] ^= 1 << bit % 8
                path.write_bytes(flipped)
                with pytest.raises(CheckpointError, match=r"4 is damaged"):
                    saved.load(p, externals=GIVEN)
            path.write_bytes(content)
    assert load(saved) == 4


@pytest.mark.parametrize("name", ["format", "stellaris", "sources"])
def test_another_stellaris_is_refused(name: str, saved: Checkpoints) -> None:
    rewrite(newest(saved) / "about.json", lambda about: about["origin"].update({name: "other"}))
    with pytest.warns(
        UserWarning, match=rf"4 was saved by another version of stellaris \(.*'{name}': 'other'.*this is"
    ):
        assert load(saved) == 3


def test_a_stranger_names_code(saved: Checkpoints, tmp_path: Path, monkeypatch: Any) -> None:
    """It is refused by name although the hashes fit, and nothing is run."""
    monkeypatch.chdir(tmp_path)
    node = ["value", ["os.system", "command"], ["touch sentinel"]]
    rewrite(newest(saved) / "state.json", lambda state: state[2][1][2].__setitem__(1, node))
    with pytest.raises(CheckpointError, match=r"run/4 cannot be loaded: .*'os\.system' is not a class"):
        load(saved)
    assert not (tmp_path / "sentinel").exists()


@pytest.mark.parametrize("name", FILES[1:])
@pytest.mark.parametrize(
    "content",
    [b"", b"[]", b"3", b"{}", b"[" * 100_000, b"\xff", b"NaN", b'{"configurations": 1}', pickle.dumps(3)],
    ids=lambda content: repr(content[:20]),
)
def test_a_stranger_writes_nonsense(content: bytes, name: str, saved: Checkpoints) -> None:
    shutil.rmtree(Path(saved.folder) / "3")
    (newest(saved) / name).write_bytes(content)
    sign(newest(saved))
    with pytest.raises(CheckpointError, match=r"4 is not a checkpoint|run/4 cannot be loaded"):
        load(saved)


def test_a_full_disk(saved: Checkpoints) -> None:
    """It is a CheckpointError; the earlier checkpoints stay, and nothing else is left."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with platform() as p:
        for state in (np.arange(100_000), ["x" * 100_000]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
            try:
                with pytest.raises(CheckpointError, match=r"run/5 cannot be written: .*earlier checkpoints stay"):
                    saved.save(5, p, state, externals=GIVEN)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert sorted(os.listdir(saved.folder)) == ["3", "4"]
            assert load(saved) == 4


def test_killed_at_every_step_of_a_save(saved: Checkpoints, tmp_path: Path) -> None:
    """Whatever a kill leaves, the newest checkpoint is complete, and the next save removes the rest.

    The folder is copied before every system call that changes files, and after the last one.
    """
    copies: list[Path] = []
    changing = ("open", "write", "close", "mkdir", "rename", "unlink", "rmdir", "fsync")

    def copy() -> None:
        shutil.copytree(saved.folder, tmp_path / "killed" / str(len(copies)))
        copies.append(tmp_path / "killed" / str(len(copies)))

    def before_call(frame: FrameType, event: str, function: Any) -> None:
        if event == "c_call" and function.__name__ in changing:
            sys.setprofile(None)
            copy()
            sys.setprofile(before_call)

    with platform() as p:
        sys.setprofile(before_call)
        try:
            saved.save(5, p, {"step": 5, "array": np.arange(1000)}, externals=GIVEN)
        finally:
            sys.setprofile(None)
        copy()
        loaded = []
        for each in copies:
            killed = Checkpoints(each)
            loaded.append(load(killed))
            assert loaded[-1] == killed.newest()
            killed.save(6, p, {"step": 6}, externals=GIVEN)
            assert load(killed) == 6
            assert sorted(os.listdir(each)) == [str(max(4, loaded[-1])), "6"]
    assert loaded == sorted(loaded)
    assert loaded.count(4) >= 15
    assert loaded.count(5) >= 5


def test_other_folders_stay(saved: Checkpoints) -> None:
    (Path(saved.folder) / "1").mkdir()
    (Path(saved.folder) / "1" / "thesis.tex").write_text("years")
    (Path(saved.folder) / "2.checkpoint").write_text("older")
    with platform() as p:
        saved.save(5, p, None, externals=GIVEN)
    assert sorted(os.listdir(saved.folder)) == ["1", "2.checkpoint", "4", "5"]
