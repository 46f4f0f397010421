"""One run of a study: its key, its process, and what it leaves."""

import ast
import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from experiments.study import cells
from experiments.study.cells import Cell, Worker, finished
from experiments.tasks import presets
from stellaris import PPO
from stellaris.acting import ActorCritic
from stellaris.runtime import Trace
from stellaris.systems import Budget, Evaluation, Synchronous, Workload

PPO_CONFIG = PPO(epochs=1, minibatch_size=64)


def tiny(seed: int = 0, environment: str = "CartPole-v1", setting: str = "") -> Cell:
    """Four rounds of a small network."""
    contender = presets.contender("synchronous", Synchronous(PPO_CONFIG), colour="#D55E00")
    workload = Workload(environment, policy=ActorCritic(hidden=(8,)), actors=4, fragment=16)
    return Cell(contender, workload, Budget(steps=256), seed, setting)


class Rows:
    """What a run has said."""

    def __init__(self) -> None:
        self.history: list[dict[str, float]] = []

    def begin(self, run: object) -> None:
        """It begins."""

    def row(self, run: object) -> None:
        """A round is over."""
        self.history.append(run.history[-1])  # type: ignore[attr-defined]

    def end(self, run: object) -> None:
        """It has ended."""


def test_a_key_is_of_what_is_computed() -> None:
    """Whatever the run is called and however it is drawn; any other setting is another run."""
    cell = tiny()
    drawn = dataclasses.replace(cell.contender, name="another", colour="#000000", line=":")
    assert dataclasses.replace(cell, contender=drawn, setting="in words").key == cell.key == tiny().key
    others = [
        tiny(seed=1),
        tiny(environment="Acrobot-v1"),
        dataclasses.replace(cell, budget=Budget(steps=512)),
        dataclasses.replace(cell, evaluation=Evaluation()),
        dataclasses.replace(cell, contender=dataclasses.replace(cell.contender, prices=())),
        dataclasses.replace(
            cell, contender=dataclasses.replace(cell.contender, system=Synchronous(PPO(epochs=2, minibatch_size=64)))
        ),
    ]
    assert len({cell.key, *(other.key for other in others)}) == 7


def test_a_key_is_of_the_code(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another version of the library is another run."""
    one = tiny().key
    monkeypatch.setattr(cells, "code_version", lambda: "another")
    assert tiny().key != one


def test_what_counts_of_the_code() -> None:
    """Not its comments, docstrings and layout."""
    plain = "def f(x):\n    return x + 1\n"
    commented = '"""Module."""\n\ndef f(x):  # why\n    """Docstring."""\n    return (x +\n 1)\n'
    other = plain.replace("1", "2")
    one, same, different = (ast.dump(cells._bare(ast.parse(code))) for code in (plain, commented, other))
    assert one == same != different


def done(cell: Cell, out: Path) -> tuple[list[Any], bool]:
    """What a process says of a cell: its rows, and whether it went well."""
    worker = Worker(out)
    worker.begin(cell)
    said = [worker.wire.recv()]
    while not isinstance(said[-1], bool):
        said.append(worker.wire.recv())
    worker.end()
    return said[:-1], said[-1]


def test_a_process_does_what_this_one_does(tmp_path: Path) -> None:
    """Row for row; it leaves them, the trace, and what it was set up with."""
    cell, here = tiny(setting="as it is"), Rows()
    (tmp_path / "here").mkdir()
    cells.run(cell, tmp_path / "here", here, out=tmp_path)
    sent, well = done(cell, tmp_path)
    assert well
    result = finished(cell, tmp_path)
    assert result is not None
    for rows in (sent, result.history):
        assert len(rows) == len(here.history) == 4
        for row, expected in zip(rows, here.history, strict=True):
            np.testing.assert_equal(row, expected)
    here_trace = Trace.load(tmp_path / "here" / "trace.parquet")
    assert list(map(str, result.trace.rows())) == list(map(str, here_trace.rows()))
    assert len(here_trace) > 100
    record = json.loads((result.folder / "cell.json").read_text())
    assert record["label"] == "CartPole-v1 synchronous as it is seed 0"
    assert record["settings"]["system"]["algorithm"]["minibatch_size"] == 64
    assert result.summary["steps"] == 256


def test_one_that_fails_says_why(tmp_path: Path) -> None:
    """And has not been done; what a process that was killed has begun does not count either."""
    cell = tiny(environment="NoSuch-v0")
    draft = tmp_path / "cells" / f"{cell.key}.unfinished"
    draft.mkdir(parents=True)
    (draft / "cell.json").write_text("half")
    assert finished(cell, tmp_path) is None
    assert cells.failure(cell, tmp_path) == "its process was killed"
    assert done(cell, tmp_path) == ([], False)
    assert finished(cell, tmp_path) is None
    assert "NoSuch-v0" in cells.failure(cell, tmp_path)
    assert not draft.exists()
