"""Checkpoints that are damaged, foreign, or cannot be written: never loaded in silence, never in the way."""

import hashlib
import json
import os
import pickle
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stellaris.runtime import CheckpointError, Checkpoints, FunctionSpec, SimulatedPlatform, checkpoint
from stellaris.runtime.delays import Constant


def platform() -> SimulatedPlatform:
    """One on which something has happened."""
    fresh = SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1)
    fresh.invoke("f", bool)
    return fresh


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Checkpoints]:
    """A folder with two checkpoints."""
    with platform() as p:
        folder = Checkpoints(tmp_path / "run")
        folder.save(3, p, {"step": 3, "array": np.arange(50)})
        folder.save(4, p, {"step": 4, "array": np.arange(50)})
        yield folder


@pytest.fixture
def unpickled(monkeypatch: pytest.MonkeyPatch) -> list[bytes]:
    """Everything that is unpickled during a test."""
    seen: list[bytes] = []

    class Watched(checkpoint._Unpickler):
        """Takes note."""

        def __init__(self, file, externals):
            seen.append(file.getvalue())
            super().__init__(file, externals)

    monkeypatch.setattr(checkpoint, "_Unpickler", Watched)
    return seen


def newest(of: Checkpoints) -> Path:
    """Its file."""
    return Path(of.folder) / f"{of.newest()}.checkpoint"


def load(of: Checkpoints) -> int:
    """The step that is loaded into a fresh platform."""
    with SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1) as fresh:
        step: int = of.load(fresh)["step"]
        return step


def test_whole_ones_are_loaded_without_a_word(saved: Checkpoints) -> None:
    """The newest; warnings are errors here."""
    assert load(saved) == saved.newest() == 4


# ---- damaged --------------------------------------------------------------------------------------------------------

DAMAGES = {
    "empty": lambda path: path.write_bytes(b""),
    "one byte": lambda path: path.write_bytes(b"{"),
    "half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a byte short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a byte long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "no first line": lambda path: path.write_bytes(path.read_bytes().partition(b"\n")[2]),
    "a bare pickle": lambda path: path.write_bytes(pickle.dumps({"platform": {}, "state": {"step": 4}})),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "an empty folder": lambda path: (path.unlink(), path.mkdir()),
    "another format's": lambda path: (path.unlink(), path.with_suffix("").mkdir()),
    "a dead link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_what_is_damaged_is_skipped(damage, saved: Checkpoints, unpickled: list[bytes]) -> None:
    """The one before is loaded, and a warning says what was skipped, and why."""
    damage(newest(saved))
    with pytest.warns(
        UserWarning, match=r"3\.checkpoint is the newest checkpoint that can be loaded: 4(\.checkpoint)? "
    ) as w:
        assert load(saved) == 3
    assert len(w) == len(unpickled) == 1
    assert saved.newest() == 4  # it still stands there, and is not written over
    with platform() as p:
        saved.save(5, p, {"step": 5})
    assert load(saved) == 5


def test_a_newest_that_was_deleted(saved: Checkpoints) -> None:
    """Was never there."""
    newest(saved).unlink()
    assert load(saved) == saved.newest() == 3


def test_no_whole_one_is_an_error(saved: Checkpoints, unpickled: list[bytes]) -> None:
    """It names the folder, and what is wrong with each."""
    newest(saved).write_bytes(b"")
    (Path(saved.folder) / "3.checkpoint").unlink()
    (Path(saved.folder) / "3.checkpoint").mkdir()
    with pytest.raises(CheckpointError) as error:
        load(saved)
    assert str(error.value) == (
        f"folder={os.fspath(saved.folder)!r} holds no checkpoint that can be loaded: 4.checkpoint is damaged or no "
        "checkpoint (its hash does not fit its content); 3.checkpoint cannot be read (Is a directory)"
    )
    assert not unpickled


def test_no_flipped_bit_gets_through(saved: Checkpoints, unpickled: list[bytes]) -> None:
    """Every bit of the first line and of the hash, and a thousand others: refused before anything is unpickled."""
    (Path(saved.folder) / "3.checkpoint").unlink()
    path, content = newest(saved), newest(saved).read_bytes()
    first, size = content.index(b"\n") + 1, len(content)
    within = np.random.default_rng(0).integers(8 * first, 8 * (size - 32), 1000).tolist()
    with platform() as p:
        for bit in [*range(8 * first), *within, *range(8 * (size - 32), 8 * size)]:
            flipped = bytearray(content)
            flipped[bit // 8] ^= 1 << bit % 8
            path.write_bytes(flipped)
            with pytest.raises(CheckpointError, match=r"4\.checkpoint is damaged"):
                saved.load(p)
    assert not unpickled
    path.write_bytes(content)
    assert load(saved) == 4


# ---- foreign --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", ["format", "stellaris", "sources"])
def test_another_stellaris_is_refused(what: str, saved: Checkpoints, unpickled: list[bytes]) -> None:
    """Another format, version, or the same version with other sources: whole, but it may mean something else."""
    path = newest(saved)
    line, _, rest = path.read_bytes()[:-32].partition(b"\n")
    assert json.loads(line).keys() == {"format", "stellaris", "sources"}
    other = json.dumps(json.loads(line) | {what: "other"}).encode() + b"\n" + rest
    path.write_bytes(other + hashlib.sha256(other).digest())
    with pytest.warns(
        UserWarning, match=rf"4\.checkpoint was saved by another stellaris \(.*'{what}': 'other'.*this is"
    ):
        assert load(saved) == 3
    (Path(saved.folder) / "3.checkpoint").unlink()
    with pytest.raises(CheckpointError, match=r"holds no checkpoint that can be loaded: 4\.checkpoint was saved by"):
        load(saved)
    assert len(unpickled) == 1


def test_other_sources_are_another_stellaris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that changes, comes or goes."""
    package = Path(checkpoint.__file__).parents[1]
    copy = Path(shutil.copytree(package, tmp_path / "stellaris"))
    monkeypatch.setattr(checkpoint, "__file__", str(copy / "runtime" / "checkpoint.py"))

    def sources() -> str:
        checkpoint._origin.cache_clear()
        return str(checkpoint._origin()["sources"])

    try:
        seen = [sources()]
        (copy / "more.py").write_text("")
        seen.append(sources())
        (copy / "more.py").write_text("x = 1\n")
        seen.append(sources())
        assert len(set(seen)) == 3
        (copy / "more.py").unlink()
        assert sources() == seen[0]
    finally:
        checkpoint._origin.cache_clear()


class Vanishing:
    """A class that a pickle names."""


def test_what_cannot_be_unpickled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A class of the user's that is gone is no damage: the file is named."""
    saved = Checkpoints(tmp_path)
    with platform() as p:
        saved.save(0, p, Vanishing())
        monkeypatch.delattr(f"{__name__}.Vanishing")
        with pytest.raises(CheckpointError, match=r"0\.checkpoint cannot be loaded: AttributeError: .*Vanishing"):
            saved.load(p)


# ---- saving ---------------------------------------------------------------------------------------------------------


def test_steps_go_up(saved: Checkpoints) -> None:
    """One that is not larger would not be the newest."""
    with platform() as p:
        for step in (4, 3, 0):
            with pytest.raises(ValueError, match=rf"step={step} is not larger than 4, the newest in '.*run'"):
                saved.save(step, p, None)
        with pytest.raises(ValueError, match="step=-1 is below 0"):
            saved.save(-1, p, None)
        saved.save(10, p, None)
    assert sorted(os.listdir(saved.folder)) == ["10.checkpoint", "4.checkpoint"]  # 10 is above 4, and keep=2


def test_a_full_disk(saved: Checkpoints) -> None:
    """Is a CheckpointError; what was saved stays, and nothing else is left."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with platform() as p:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
        try:
            with pytest.raises(CheckpointError, match=r"run/5\.checkpoint cannot be written: .*what was saved before"):
                saved.save(5, p, np.zeros(10_000))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert sorted(os.listdir(saved.folder)) == ["3.checkpoint", "4.checkpoint"]
        assert load(saved) == 4
        saved.save(5, p, np.zeros(10_000))


def test_what_a_killed_process_left(saved: Checkpoints) -> None:
    """Half a draft is no checkpoint, and does not stay."""
    draft = Path(saved.folder) / checkpoint._DRAFT
    draft.write_bytes(b"half")
    assert load(saved) == 4
    with platform() as p:
        saved.save(5, p, None)
    assert not draft.exists()


# ---- folders --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("folder", "message"),
    [
        ("gs://bucket/run", r"folder='gs://bucket/run' is a URL: checkpoints are saved in a local folder"),
        ("s3://b", r"folder='s3://b' is a URL"),
        (Path("gs://bucket/run"), r"folder='gs:/bucket/run' is a URL"),
        ("", r"folder='' names no folder"),
        ("{tmp}/file", r"folder='.*file': .*/file is a file"),
        ("{tmp}/file/below/it", r"folder='.*below/it': .*/file is a file"),
    ],
)
def test_folders_that_are_none(folder, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said when the argument is made, not at the first checkpoint; nothing is made meanwhile."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("")
    with pytest.raises(ValueError, match=message):
        Checkpoints(folder.format(tmp=tmp_path) if isinstance(folder, str) else folder)
    assert os.listdir(tmp_path) == ["file"]


def test_a_folder_that_cannot_be_written_to(tmp_path: Path) -> None:
    """`prepare` makes it, leaves nothing, and says so if it cannot."""
    Checkpoints(tmp_path / "a" / "b").prepare()
    assert os.listdir(tmp_path / "a" / "b") == []
    with pytest.raises(CheckpointError, match=r"/proc/nowhere/.* cannot be written: "):
        Checkpoints("/proc/nowhere").prepare()


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("name", ["every", "keep"])
def test_numbers(name: str, number: int, tmp_path: Path) -> None:
    """At least one."""
    with pytest.raises(ValueError, match=f"{name}={number} is below 1"):
        Checkpoints(tmp_path, **{name: number})
