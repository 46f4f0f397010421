"""Checkpoints that are damaged, foreign, a stranger's, or cannot be written: never believed, never in the way."""

import builtins
import hashlib
import json
import os
import pickle
import resource
import shutil
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stellaris.runtime import CheckpointError, Checkpoints, FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
from stellaris.runtime.state import checkpoint, checkpoint_files


def platform() -> SimulatedPlatform:
    """One on which something has happened."""
    fresh = SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1)
    fresh.invoke("f", bool)
    return fresh


GIVEN = {"program": bool}


@pytest.fixture
def register_value(tmp_path: Path) -> Iterator[Checkpoints]:
    """A folder with two checkpoints."""
    with platform() as p:
        folder = Checkpoints(tmp_path / "run")
        for step in (3, 4):
            folder.save(step, p, {"step": step, "array": np.arange(1000)}, externals=GIVEN)
        yield folder


@pytest.fixture
def restored(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Every snapshot that is believed during a test."""
    seen: list[Any] = []

    def watched(snapshot: Any, **given: Any) -> Any:
        seen.append(snapshot)
        return restore(snapshot, **given)

    restore = checkpoint.restore
    monkeypatch.setattr(checkpoint, "restore", watched)
    return seen


def newest(of: Checkpoints) -> Path:
    """Its folder."""
    return Path(of.folder) / str(of.newest())


def load(of: Checkpoints) -> int:
    """The step that is loaded into a fresh platform."""
    with SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1) as fresh:
        step: int = of.load(fresh, externals=GIVEN)["step"]
        return step


def files(of: Path) -> list[Path]:
    """Every file of a checkpoint."""
    return sorted(path for path in of.rglob("*") if path.is_file())


def test_what_is_in_a_checkpoint(saved: Checkpoints) -> None:
    """Plain data, arrays that orbax reads by their names without stellaris, and hashes that others can check."""
    folder = newest(register_value)
    assert {path.name for path in folder.iterdir()} == {"SHA256SUMS", "arrays", "origin.json", "state.json"}
    state = json.loads((folder / "state.json").read_bytes())
    assert state["value"]["dict"]["step"] == 4
    assert state["configurations"]["platform"]["functions"]["f"]["compute"] == {"type": "Constant", "seconds": 1.0}
    script = "import orbax.checkpoint as o, sys; print(o.PyTreeCheckpointer().restore(sys.argv[1])['state.array'][-1])"
    command = [sys.executable, "-W", "ignore", "-c", script, str(folder / "arrays")]
    assert subprocess.run(command, capture_output=True, text=True, check=True).stdout == "999\n"
    subprocess.run(["sha256sum", "--check", "--strict", "--quiet", "SHA256SUMS"], cwd=folder, check=True)


# ---- damaged --------------------------------------------------------------------------------------------------------


NAMES = ["SHA256SUMS", "origin.json", "state.json", "_METADATA", "manifest.ocdbt", "arrays/_CHECKPOINT_METADATA"]
DAMAGES = {
    "emptied": lambda path: path.write_bytes(b""),
    "cut in half": lambda path: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]),
    "a byte short": lambda path: path.write_bytes(path.read_bytes()[:-1]),
    "a byte long": lambda path: path.write_bytes(path.read_bytes() + b"\0"),
    "zeros": lambda path: path.write_bytes(bytes(path.stat().st_size)),
    "deleted": lambda path: path.unlink(),
    "renamed": lambda path: path.rename(path.with_name("other")),
    "a folder": lambda path: (path.unlink(), path.mkdir()),
    "a dead link": lambda path: (path.unlink(), path.symlink_to("nowhere")),
    "a pickle": lambda path: path.write_bytes(pickle.dumps({"step": 4})),
}


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
def test_a_damaged_file(damage: Any, name: str, saved: Checkpoints, restored: list[Any]) -> None:
    """The checkpoint before is loaded, and a warning says what was skipped, and why."""
    damage(next(path for path in files(newest(register_value)) if path.as_posix().endswith(name)))
    with pytest.warns(UserWarning, match=r"run/3 is the newest checkpoint that can be loaded: 4 is damaged") as w:
        assert load(register_value) == 3
    assert len(w) == len(restored) == 1
    assert saved.newest() == 4  # it still stands there, and is not written over
    with platform() as p:
        saved.save(5, p, {"step": 5}, externals=GIVEN)
    assert load(register_value) == 5


FOLDERS = {
    "emptied": lambda folder: [shutil.rmtree(folder), folder.mkdir()],
    "a file more": lambda folder: (folder / "more").write_text("x"),
    "without arrays": lambda folder: shutil.rmtree(folder / "arrays"),
    "a file": lambda folder: [shutil.rmtree(folder), folder.write_bytes(b"x")],
    "a link": lambda folder: [shutil.rmtree(folder), folder.symlink_to("nowhere")],
    "an older format's": lambda folder: [folder.with_suffix(".checkpoint").write_bytes(b"x"), shutil.rmtree(folder)],
}


@pytest.mark.parametrize("damage", FOLDERS.values(), ids=FOLDERS)
def test_a_damaged_folder(damage: Any, saved: Checkpoints, restored: list[Any]) -> None:
    """Likewise."""
    damage(newest(register_value))
    with pytest.warns(UserWarning, match=r"run/3 is the newest checkpoint that can be loaded: 4(\.checkpoint)? is dam"):
        assert load(register_value) == 3
    assert len(restored) == 1
    assert saved.newest() == 4


def test_a_newest_that_was_deleted(saved: Checkpoints) -> None:
    """Was never there."""
    shutil.rmtree(newest(register_value))
    assert load(register_value) == saved.newest() == 3


def test_no_whole_one_is_an_error(saved: Checkpoints, restored: list[Any]) -> None:
    """It names the folder, and what is wrong with each."""
    (newest(register_value) / "state.json").write_bytes(b"")
    (Path(saved.folder) / "3" / "SHA256SUMS").unlink()
    with pytest.raises(CheckpointError) as error:
        load(register_value)
    assert str(error.value) == (
        f"folder={os.fspath(saved.folder)!r} holds no checkpoint that can be loaded: 4 is damaged: its hashes do not "
        f"fit state.json; 3 is damaged or no checkpoint (No such file or directory: {saved.folder}/3/SHA256SUMS)"
    )
    assert not restored


def test_no_flipped_bit_gets_through(saved: Checkpoints, restored: list[Any]) -> None:
    """A hundred of each file."""
    shutil.rmtree(Path(saved.folder) / "3")
    rng = np.random.default_rng(0)
    with platform() as p:
        for path in files(newest(register_value)):
            content, size = path.read_bytes(), 8 * path.stat().st_size
            for bit in rng.integers(0, size, min(100, size)).tolist():
                flipped = bytearray(content)
                flipped[bit // 8] ^= 1 << bit % 8
                path.write_bytes(flipped)
                with pytest.raises(CheckpointError, match=r"4 is damaged"):
                    saved.load(p, externals=GIVEN)
            path.write_bytes(content)
    assert not restored
    assert load(register_value) == 4


# ---- foreign --------------------------------------------------------------------------------------------------------


def sign(folder: Path) -> None:
    """Writes the hashes that fit, as any stranger can."""
    lines = [
        f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.relative_to(folder).as_posix()}\n"
        for path in files(folder)
        if path.name != "SHA256SUMS"
    ]
    (folder / "SHA256SUMS").write_text("".join(lines))


def rewrite(path: Path, change: Any) -> None:
    """Has JSON say something else, in a checkpoint whose hashes fit."""
    content = json.loads(path.read_bytes())
    change(content)
    path.write_text(json.dumps(content))
    sign(path.parent)


@pytest.mark.parametrize("what", ["format", "stellaris", "sources"])
def test_another_stellaris_is_refused(what: str, saved: Checkpoints, restored: list[Any]) -> None:
    """Another format, version, or the same version with other sources: whole, but it may mean something else."""
    rewrite(newest(register_value) / "origin.json", lambda origin: origin.update({what: "other"}))
    with pytest.warns(UserWarning, match=rf"4 was saved by another stellaris \(.*'{what}': 'other'.*this is"):
        assert load(register_value) == 3
    shutil.rmtree(Path(saved.folder) / "3")
    with pytest.raises(CheckpointError, match=r"holds no checkpoint that can be loaded: 4 was saved by another"):
        load(register_value)
    assert len(restored) == 1


def test_other_sources_are_another_stellaris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A module that changes, comes or goes."""
    package = Path(checkpoint_files.__file__).parents[2]
    copy = Path(shutil.copytree(package, tmp_path / "stellaris"))
    monkeypatch.setattr(checkpoint_files, "__file__", str(copy / "runtime" / "state" / "checkpoint_files.py"))

    def sources() -> str:
        checkpoint_files.origin.cache_clear()
        return str(checkpoint_files.origin()["sources"])

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
        checkpoint_files.origin.cache_clear()


def test_orbax_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Said before a run begins, with what to do."""
    real = builtins.__import__

    def without(name: str, *args: Any, **kwargs: Any) -> Any:
        if name.startswith("orbax"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(CheckpointError, match=r"a checkpoint needs orbax: pip install 'stellaris\[experiments\]'"):
        Checkpoints(tmp_path / "run").prepare()
    assert not (tmp_path / "run").exists()


# ---- a stranger's ---------------------------------------------------------------------------------------------------

RAN: list[str] = []


class Payload:
    """What runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return RAN.append, ("unpickled",)


@pytest.mark.parametrize(
    ("node", "message"),
    [
        ({"saved": "os.system", "fields": {"command": "touch sentinel"}}, r"state\.step: 'os\.system' is no class"),
        ({"saved": "builtins.eval", "fields": {}}, r"'builtins\.eval' is no class"),
        ({"saved": "subprocess.Popen", "fields": {"args": ["touch", "sentinel"]}}, r"'subprocess\.Popen' is no class"),
        ({"step": "close", "of": "platform"}, r"'close' is no step of a \S+\.SimulatedPlatform"),
        ({"step": "end_all", "of": "platform.life"}, r"'end_all' is no step"),
        ({"external": "os"}, r"externals lacks 'os'"),
        ({"array": "state.array", "dtype": "O", "shape": [1000], "on": "host"}, r"dtype 'O' is none of numbers"),
    ],
)
def test_a_stranger_names_code(node: Any, message: str, saved: Checkpoints, tmp_path: Path, monkeypatch: Any) -> None:
    """Refused by name, whatever the hashes say, and nothing is run."""
    monkeypatch.chdir(tmp_path)
    rewrite(newest(register_value) / "state.json", lambda state: state["value"]["dict"].update(step=node))
    with pytest.raises(CheckpointError, match=rf"run/4 cannot be loaded: .*{message}"):
        load(register_value)
    assert not (tmp_path / "sentinel").exists()


@pytest.mark.parametrize(
    "text",
    [
        *("", "[]", "3", "{}", "[" * 100_000, "\\xff", '{"configurations": [], "arrays": [], "value": 1, "parts": {}}'),
        '{"configurations": {"platform": 1, "run": NaN}, "arrays": [], "value": 1, "parts": {}}',
    ],
)
def test_a_stranger_writes_no_json(text: str, saved: Checkpoints, restored: list[Any]) -> None:
    """No checkpoint; the one before is loaded."""
    (newest(register_value) / "state.json").write_text(text)
    sign(newest(register_value))
    with pytest.warns(UserWarning, match=r"4 is no checkpoint \(\w+: "):
        assert load(register_value) == 3


@pytest.mark.parametrize("name", ["manifest.ocdbt", "_METADATA"])
def test_a_stranger_pickles_the_arrays(name: str, saved: Checkpoints) -> None:
    """What orbax cannot read is no checkpoint; nothing is unpickled."""
    for path in files(newest(register_value)):
        if path.name == name:
            path.write_bytes(pickle.dumps(Payload()))
    sign(newest(register_value))
    with pytest.warns(UserWarning, match=r"4 is no checkpoint \(\w+: "):
        assert load(register_value) == 3
    assert RAN == []


def test_a_stranger_saves_an_array_of_objects(saved: Checkpoints) -> None:
    """Whose numbers are a pickle, in the format that orbax reads: refused, and not unpickled."""
    arrays = newest(register_value) / "arrays"
    shutil.rmtree(arrays)
    ocp = checkpoint_files.orbax()
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler(use_ocdbt=False)) as checkpointer:
        checkpointer.save(arrays, args=ocp.args.PyTreeSave({"state.array": np.arange(1000)}))
    rewrite(newest(register_value) / "state.json", lambda state: state.update(arrays=["state.array"]))
    assert load(register_value) == 4  # so far it is one that orbax reads
    (arrays / "state.array" / "0").write_bytes(pickle.dumps(np.array([Payload()] * 1000, object)))
    kind = arrays / "state.array" / ".zarray"
    kind.write_text(json.dumps(json.loads(kind.read_text()) | {"dtype": "|O", "compressor": None}))
    sign(newest(register_value))
    with pytest.warns(UserWarning, match=r"4 is no checkpoint \(ValueError: .*dtype"):
        assert load(register_value) == 3
    assert RAN == []


def test_a_stranger_claims_other_arrays(saved: Checkpoints) -> None:
    """More than there are, fewer, or what are no names."""
    for names in (["state.array", "more"], ["more"], "state.array", [["state.array"]], None):
        rewrite(newest(register_value) / "state.json", lambda state, names=names: state.update(arrays=names))
        with pytest.warns(UserWarning, match=r"4 is no checkpoint"):
            assert load(register_value) == 3
    rewrite(newest(register_value) / "state.json", lambda state: state.update(arrays=[]))
    with pytest.raises(CheckpointError, match=r"state\.array: there is no array 'state\.array'"):
        load(register_value)


# ---- writing --------------------------------------------------------------------------------------------------------


def test_a_full_disk(saved: Checkpoints) -> None:
    """Is a CheckpointError; what was saved stays, and nothing else is left."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    rng = np.random.default_rng(0)
    with platform() as p:
        for state in (rng.standard_normal(100_000), ["x" * 100_000]):
            resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, limits[1]))
            try:
                with pytest.raises(CheckpointError, match=r"run/5 cannot be written: .*what was saved before stays"):
                    saved.save(5, p, state, externals=GIVEN)
            finally:
                resource.setrlimit(resource.RLIMIT_FSIZE, limits)
            assert sorted(os.listdir(saved.folder)) == ["3", "4"]
            assert load(register_value) == 4
        saved.save(5, p, rng.standard_normal(100_000), externals=GIVEN)


def test_what_a_killed_process_left(saved: Checkpoints) -> None:
    """Half a draft is no checkpoint, nor is one that was being removed; neither stays."""
    for name in (".draft", ".removed"):
        shutil.copytree(newest(register_value), Path(saved.folder) / name)
        (Path(saved.folder) / name / "state.json").unlink()
    assert load(register_value) == 4
    with platform() as p:
        saved.save(5, p, None, externals=GIVEN)
    assert sorted(os.listdir(saved.folder)) == ["4", "5"]


def test_other_folders_stay(saved: Checkpoints) -> None:
    """Of the older ones only checkpoints are removed, even if a name looks like one."""
    (Path(saved.folder) / "1").mkdir()
    (Path(saved.folder) / "1" / "thesis.tex").write_text("years")
    (Path(saved.folder) / "2.checkpoint").write_text("older")
    with platform() as p:
        saved.save(5, p, None, externals=GIVEN)
    assert sorted(os.listdir(saved.folder)) == ["1", "2.checkpoint", "4", "5"]


def test_no_thread_is_left(saved: Checkpoints) -> None:
    """Of the library that writes and reads the arrays."""
    with platform() as p:
        before = threading.active_count()
        saved.save(5, p, {"step": 5}, externals=GIVEN)
        assert saved.load(p, externals=GIVEN) == {"step": 5}
        assert threading.active_count() == before
