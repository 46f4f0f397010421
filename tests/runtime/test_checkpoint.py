"""A folder of checkpoints: what it is called, which is the newest, how many stay."""

import os
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from stellaris.runtime import CheckpointError, Checkpoints, FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant


def platform() -> SimulatedPlatform:
    """One on which something has happened."""
    fresh = SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1)
    fresh.invoke("f", bool)
    return fresh


GIVEN = {"program": bool}


@pytest.fixture
def saved(tmp_path: Path) -> Iterator[Checkpoints]:
    """A folder with two checkpoints."""
    with platform() as p:
        folder = Checkpoints(tmp_path / "run")
        for step in (3, 4):
            folder.save(step, p, {"step": step, "array": np.arange(50)}, externals=GIVEN)
        yield folder


def load(of: Checkpoints) -> int:
    """The step that is loaded into a fresh platform."""
    with SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, threads=1) as fresh:
        step: int = of.load(fresh, externals=GIVEN)["step"]
        return step


def test_whole_ones_are_loaded_without_a_word(saved: Checkpoints) -> None:
    """The newest; warnings are errors here."""
    assert load(saved) == saved.newest() == 4


# ---- saving ---------------------------------------------------------------------------------------------------------


def test_steps_go_up(saved: Checkpoints) -> None:
    """One that is not larger would not be the newest."""
    with platform() as p:
        for step in (4, 3, 0):
            with pytest.raises(ValueError, match=rf"step={step} is not larger than 4, the newest in '.*run'"):
                saved.save(step, p, None)
        with pytest.raises(ValueError, match="step=-1 is below 0"):
            saved.save(-1, p, None)
        saved.save(10, p, None, externals=GIVEN)
    assert sorted(os.listdir(saved.folder)) == ["10", "4"]  # 10 is above 4, and keep=2


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
    with pytest.raises(CheckpointError, match=r"/proc/nowhere cannot be written to: "):
        Checkpoints("/proc/nowhere").prepare()


@pytest.mark.parametrize("number", [0, -1])
@pytest.mark.parametrize("name", ["every", "keep"])
def test_numbers(name: str, number: int, tmp_path: Path) -> None:
    """At least one."""
    with pytest.raises(ValueError, match=f"{name}={number} is below 1"):
        Checkpoints(tmp_path, **{name: number})
