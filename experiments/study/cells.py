"""One run of a study: what it is set up with, where it is kept, and the process that does it."""

import ast
import contextlib
import csv
import functools
import hashlib
import json
import multiprocessing
import os
import shutil
import signal
import sys
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax

import stellaris
from experiments.study import runs
from experiments.tasks.presets import Contender
from experiments.toolkit import output
from experiments.toolkit.shell import reason
from stellaris._core.describe import describe, digest
from stellaris.runtime import Recording, Trace
from stellaris.runtime.files import atomic_write, sync
from stellaris.systems import Budget, Evaluation, Row, Workload

#: Seconds that a program takes to compile, from which on it is kept for other runs.
_WORTH_KEEPING = 0.1
#: Files of a finished cell; of one that failed there is the log.
_HISTORY, _TRACE, _RECORD, _LOG = "history.csv", "trace.parquet", "cell.json", "failure.txt"
#: Files whose digests are in the record.
_SEALED = (_HISTORY, _TRACE)


@dataclass(frozen=True)
class Cell:
    """A system that learns a workload once."""

    contender: Contender
    workload: Workload
    budget: Budget
    seed: int
    setting: str = ""  #: what tells it from the study's other runs of that system, in words.
    evaluation: Evaluation | None = None
    replay: "Cell | None" = None  #: whose schedule it repeats: the same invocations meet the same delays.

    @property
    def label(self) -> str:
        """Its name in the table and in the progress."""
        system = () if self.setting.startswith(self.contender.name) else (self.contender.name,)
        return " ".join(part for part in (self.environment, *system, self.setting, f"seed {self.seed}") if part)

    @property
    def variant(self) -> str:
        """What it is called among the study's runs of that environment."""
        return self.setting or self.contender.name

    @property
    def environment(self) -> str:
        """Which one, by its name."""
        environment = self.workload.environment
        return str(getattr(environment, "name", environment))

    def outcome(self) -> runs.Outcome:
        """What it has done before it begins: nothing."""
        return runs.Outcome(
            label=self.label,
            budget=self.budget,
            colour=self.contender.colour,
            contender=self.contender,
            seed=self.seed,
        )

    def settings(self) -> Mapping[str, Any]:
        """Everything that its result depends on, but the code."""
        contender = self.contender
        chosen = {
            "system": contender.system,
            "functions": contender.functions,
            "prices": contender.prices,
            "workload": self.workload,
            "budget": self.budget,
            "seed": self.seed,
            "evaluation": self.evaluation,
        }
        settings = {name: describe(value) for name, value in chosen.items()}
        return settings if self.replay is None else {**settings, "replay": self.replay.key}

    @functools.cached_property
    def key(self) -> str:
        """Names what it computes: other settings or another version of the library have another key."""
        return digest({"code": code_version(), **self.settings()})


@dataclass(frozen=True)
class Finished:
    """What a cell has left in its folder."""

    cell: Cell
    folder: Path
    history: Sequence[Row]
    summary: Mapping[str, Any]

    @property
    def trace(self) -> Trace:
        """Read anew each time: the traces of a study do not fit into memory together."""
        return Trace.load(self.folder / _TRACE)


@functools.cache
def code_version() -> str:
    """A digest of the library's code; comments, docstrings and formatting do not count."""
    root = Path(stellaris.__file__).parent
    parts = {
        path.relative_to(root).as_posix(): ast.dump(_bare(ast.parse(path.read_text())))
        for path in sorted(root.rglob("*.py"))
    }
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]


def _bare(tree: ast.Module) -> ast.Module:
    """Without docstrings."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:]
    return tree


def is_done(cell: Cell, out: Path) -> bool:
    """Whether a cell was run to its end; what one that was killed has left does not count."""
    return (_folder(cell, out) / _RECORD).exists()


def finished(cell: Cell, out: Path) -> Finished | None:
    """What a cell has left, if it was done, and if its files are as they were written."""
    folder = _folder(cell, out)
    if not is_done(cell, out) or damage(cell, out):
        return None
    with (folder / _HISTORY).open(newline="") as file:
        history = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    summary = json.loads((folder / _RECORD).read_text())["summary"]
    return Finished(cell, folder, history, summary)


def damage(cell: Cell, out: Path) -> str:
    """How the files of a cell differ from what was written, in words; empty if they do not, or if none is there."""
    folder = _folder(cell, out)
    if not folder.exists() or (folder / _LOG).exists():
        return ""
    try:
        record = json.loads((folder / _RECORD).read_text())
        whole = record.pop("seal") == _seal(record) and record["key"] == cell.key
        changed = [] if whole else [_RECORD]
        changed += [name for name in _SEALED if whole and record["files"][name] != _digest(folder / name)]
    except OSError as error:
        return f"{Path(error.filename or folder).name}: {reason(error)}"
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        changed = [_RECORD]
    return f"{changed[0]} is not as it was written" if changed else ""


def discard(cell: Cell, out: Path) -> None:
    """Removes what a cell has left, so that it is not done."""
    folder = _folder(cell, out)
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(record: Mapping[str, Any]) -> str:
    """A digest of a record, in which that of every file is."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def failure(cell: Cell, out: Path) -> str:
    """The last line of what a cell that failed has said."""
    if cell.replay is not None and not is_done(cell.replay, out):
        return "the run whose schedule it repeats is not there"
    log = _folder(cell, out) / _LOG
    lines = log.read_text().strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "its process was killed"


class Worker:
    """A process that does one cell after the other: what it has compiled for one it need not compile for the next.

    After `begin` its `wire` brings every row of the cell's history, and at last whether the cell went well. A worker
    whose process was killed closes it.

    Args:
      out: the study's folder.
    """

    def __init__(self, out: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process that has JAX's threads may hang
        self.wire, far_end = context.Pipe()
        self._process = context.Process(target=_work, args=(out, far_end), daemon=True)
        self._process.start()
        far_end.close()

    def begin(self, cell: Cell) -> None:
        """Has it do a cell; it must have none."""
        with contextlib.suppress(OSError):  # of a process that was killed meanwhile the wire says so itself
            self.wire.send(cell)

    def end(self) -> None:
        """At once."""
        self._process.kill()
        self._process.join()
        self.wire.close()


def _work(out: Path, wire: Connection) -> None:
    """The process: ends with the study's, whatever ends that."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent looks after that
    _keep_compiled(out / "compiled")
    while True:
        try:
            cell = wire.recv()
        except (EOFError, OSError):
            os._exit(0)  # a thread that still compiles crashes the interpreter's end
        said: bool | OSError
        try:
            said = _do(cell, out, wire)  # what else it raises is no matter of the wire's: it is printed
        except OSError as error:
            said = error
        sys.stdout.flush()
        with contextlib.suppress(OSError):
            wire.send(said)


def _do(cell: Cell, out: Path, wire: Connection) -> bool:
    """Runs a cell, and puts its folder in place once all of it is there; whether it went well.

    Raises:
      OSError: if that folder cannot be written.
    """
    folder = _folder(cell, out)
    discard(cell, out)
    draft = folder.with_suffix(".unfinished")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir(parents=True)
    try:
        run(cell, draft, _Wire(wire), out=out)
        well = True
    except Exception as error:
        if output.is_full(error):
            shutil.rmtree(draft, ignore_errors=True)
            raise
        (draft / _LOG).write_text(traceback.format_exc())
        well = False
    for path in (*draft.iterdir(), draft):  # or a crash of the machine may leave the name without the content
        sync(path)
    draft.rename(folder)
    sync(folder.parent)
    return well


def _keep_compiled(folder: Path) -> None:
    """What one run has compiled the others need not; a folder that the user has named goes before this one."""
    # One that cannot be read or written costs time alone: on a full disk each program would say so.
    warnings.filterwarnings("ignore", "Error (reading|writing) persistent compilation cache entry")
    config: Any = jax.config
    if config.jax_compilation_cache_dir is None:
        config.update("jax_compilation_cache_dir", str(folder.resolve()))
        config.update("jax_persistent_cache_min_compile_time_secs", _WORTH_KEEPING)


def run(cell: Cell, folder: Path, watcher: runs.Watcher, *, out: Path) -> None:
    """Runs a cell in this process, and writes what it leaves into a folder.

    Args:
      cell: to be run.
      folder: of its own.
      watcher: is told how it gets on.
      out: the study's folder, which holds the run whose schedule it may repeat.
    """
    outcome = cell.outcome()
    recorded = None if cell.replay is None else Recording(Trace.load(_folder(cell.replay, out) / _TRACE))
    runs.run(cell.workload, outcome, threads=1, watcher=watcher, evaluation=cell.evaluation, replay=recorded)
    output.write_rows(folder / _HISTORY, outcome.history)
    outcome.trace.save(folder / _TRACE)
    record = output.finite(
        {
            "label": cell.label,
            "key": cell.key,
            "code": code_version(),
            "settings": cell.settings(),
            "summary": runs.summarise(outcome, cell.budget.target_return),
            "files": {name: _digest(folder / name) for name in _SEALED},
        }
    )
    with atomic_write(folder / _RECORD) as file:
        json.dump({**record, "seal": _seal(record)}, file, indent=2)
        file.write("\n")


class _Wire:
    """Sends a run's rows to the study's process, and ends with it."""

    def __init__(self, rows: Connection) -> None:
        self._rows = rows

    def begin(self, run: runs.Outcome) -> None:
        """Nothing to be said yet."""

    def row(self, run: runs.Outcome) -> None:
        """A round is over."""
        self._rows.send(run.history[-1])  # fails when the study's process was killed: then this one ends too

    def end(self, run: runs.Outcome) -> None:
        """The files say the rest."""


def _folder(cell: Cell, out: Path) -> Path:
    return out / "cells" / cell.key
