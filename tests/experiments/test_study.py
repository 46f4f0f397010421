"""Studies: their processes, what they keep, and how they end."""

import argparse
import csv
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from experiments import shell, study
from experiments.cells import Cell, Finished
from tests.experiments.test_cells import tiny


class Reports:
    """What was reported on."""

    def __init__(self) -> None:
        self.labels: list[list[str]] = []

    def __call__(self, results: Sequence[Finished], out: Path, console: Console) -> None:
        self.labels.append([result.cell.label for result in results])


def run(cells: Sequence[Cell], out: Path, *options: str) -> tuple[int, list[list[str]]]:
    """A study from the command line's options on: its status, and what it reported on."""
    parser = argparse.ArgumentParser()
    study.add_arguments(parser, {"small": study.Size(("CartPole-v1",), 256, 1)})
    reports = Reports()
    arguments = parser.parse_args(["--out", str(out), *options])
    return study.main(study.Study("own", cells, reports), arguments), reports.labels


def table(path: Path) -> list[dict[str, str]]:
    """A tidy file."""
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def test_a_study_is_kept(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not begun anew unasked; what is not there is run, and the tables are those of an unbroken run."""
    cells = [tiny(seed) for seed in (0, 1)]
    labels = ["CartPole-v1 synchronous seed 0", "CartPole-v1 synchronous seed 1"]
    assert run(cells, tmp_path) == (0, [labels])
    assert "1 runs to go" in capsys.readouterr().out
    unbroken = {name: (tmp_path / "own" / name).read_bytes() for name in ("runs.csv", "curves.csv")}
    assert [(row["seed"], row["steps"]) for row in table(tmp_path / "own" / "runs.csv")] == [("0", "256"), ("1", "256")]
    assert len(table(tmp_path / "own" / "curves.csv")) == 8

    with pytest.raises(shell.UsageError, match="holds 2 of the 2 runs: use them with --resume"):
        run(cells, tmp_path)
    kept = tmp_path / "cells" / cells[0].key
    age = kept.stat().st_mtime_ns
    shutil.move(tmp_path / "cells" / cells[1].key, tmp_path / "cells" / f"{cells[1].key}.unfinished")
    assert run(cells, tmp_path, "--resume", "--jobs", "1") == (0, [labels])
    assert kept.stat().st_mtime_ns == age
    assert {name: (tmp_path / "own" / name).read_bytes() for name in unbroken} == unbroken


def test_a_failure_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """With the command that does it again; the rest goes on."""
    bad = tiny(environment="NoSuch-v0")
    assert run([bad, tiny()], tmp_path, "--jobs", "1", "--env", "A", "--env", "B") == (
        1,
        [["CartPole-v1 synchronous seed 0"]],
    )
    said = capsys.readouterr().err
    assert said.startswith("error: NoSuch-v0 synchronous seed 0: ")
    assert "NoSuch-v0" in said
    again = f"python -m experiments own --preset small --env A --env B --seed 0 --out {tmp_path} --only {bad.key}"
    assert again in said


def test_only_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """In this process, in a folder of its own, and raising what it raises."""
    cell = tiny()
    assert run([cell], tmp_path, "--only", cell.key) == (0, [])
    assert (tmp_path / f"only-{cell.key}" / "cell.json").exists()
    with pytest.raises(shell.UsageError, match="--only 77 is none of this study's runs"):
        run([cell], tmp_path, "--only", "77")
    bad = tiny(environment="NoSuch-v0")
    with pytest.raises(ValueError, match="NoSuch-v0"):
        run([bad], tmp_path, "--only", bad.key)


def test_an_interruption_kills_the_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And reports on what is there."""
    started: list[Any] = []

    class Process(study.Running):
        def __init__(self, *arguments: Any) -> None:
            super().__init__(*arguments)
            started.append(self)

    def interrupted() -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(study, "Running", Process)
    monkeypatch.setattr(shell, "check", interrupted)
    assert run([tiny(0), tiny(1)], tmp_path, "--jobs", "2") == (130, [])
    assert len(started) == 2
    assert not any(process._process.is_alive() for process in started)
