"""One run of a study: its settings, its folder in the cache, and the process that runs it."""

import contextlib
import csv
import functools
import hashlib
import json
import math
import multiprocessing
import os
import shutil
import signal
import sys
import threading
import traceback
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np

from experiments.study import runs
from experiments.study.retiming import retime
from experiments.tasks.presets import Contender
from experiments.toolkit import output
from experiments.toolkit.computing import keep_compiled, use_one_thread
from experiments.toolkit.provenance import code_version, provenance, versions
from experiments.toolkit.shell import reason
from stellaris._core.describe import describe, digest
from stellaris.acting import save_policy
from stellaris.acting.envs import Configured
from stellaris.runtime import Recording, Trace
from stellaris.runtime.files import atomic_write, sync
from stellaris.systems import Budget, Evaluation, Row, Workload

#: Files of a finished cell; a failed cell has only the log.
_HISTORY, _TRACE, _RECORD, _LOG = "history.csv", "trace.parquet", "cell.json", "failure.txt"
#: The last policy of a run, if it is kept.
POLICY = "policy.safetensors"
#: The files whose digests the record holds.
_SEALED = (_HISTORY, _TRACE)


@dataclass(frozen=True)
class Cell:
    """One run of a system on a workload."""

    contender: Contender
    workload: Workload
    budget: Budget
    seed: int
    setting: str = ""  #: words that distinguish the cell from the study's other runs of the system.
    evaluation: Evaluation | None = None
    replay: "Cell | None" = None  #: the cell whose recorded delays this cell repeats, invocation by invocation.
    retimes: "Cell | None" = None  #: the cell whose returns this cell has, at its own times and costs.
    keep_policy: bool = False  #: whether the run's last policy is saved with its results.
    factors: Mapping[str, str] = field(
        default_factory=dict, hash=False
    )  #: the values of swept settings, for the tables.

    @property
    def label(self) -> str:
        """The cell's name in tables and progress."""
        system = () if self.setting.startswith(self.contender.name) else (self.contender.name,)
        return " ".join(part for part in (self.environment, *system, self.setting, f"seed {self.seed}") if part)

    @property
    def variant(self) -> str:
        """The name of the variant, which is unique among the study's variants for the environment."""
        return self.setting or self.contender.name

    @property
    def environment(self) -> str:
        """The environment's name."""
        environment = self.workload.environment
        return str(getattr(environment, "name", environment))

    @property
    def needs(self) -> "Cell | None":
        """The cell that must be done before this one."""
        return self.replay or self.retimes

    def outcome(self) -> runs.Outcome:
        """Returns an empty outcome for the run."""
        return runs.Outcome(
            label=self.label,
            budget=self.budget,
            colour=self.contender.colour,
            contender=self.contender,
            seed=self.seed,
        )

    def settings(self) -> Mapping[str, Any]:
        """Returns everything that determines the result except the code."""
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
        earlier = {"replay": self.replay, "retimes": self.retimes}
        return settings | {name: cell.key for name, cell in earlier.items() if cell is not None}

    @functools.cached_property
    def key(self) -> str:
        """The cell's name in the cache: a digest of its settings, the library's code, and the packages that compute."""
        return digest({"code": code_version(), "packages": versions("jax", "jaxlib", "numpy"), **self.settings()})


@dataclass(frozen=True)
class Finished:
    """The results in a finished cell's folder."""

    cell: Cell
    folder: Path
    history: Sequence[Row]
    summary: Mapping[str, Any]

    @property
    def mean_return(self) -> float:
        """The mean over virtual time of the return of the last episodes, from the first row that has one to the end."""
        known = [(row["seconds"], row["episode_return"]) for row in self.history if "episode_return" in row]
        times, returns = np.array([row for row in known if np.isfinite(row[1])]).reshape(-1, 2).T
        if len(times) < 2:
            return float(returns[0]) if len(returns) else math.nan
        return float(np.trapezoid(returns, times) / (times[-1] - times[0]))

    @property
    def provenance(self) -> Mapping[str, str]:
        """Where the run was computed: not always here and now, because cells are kept and may be copied."""
        recorded: Mapping[str, str] = json.loads((self.folder / _RECORD).read_text())["provenance"]
        return recorded

    @property
    def trace(self) -> Trace:
        """The trace, read on each access: all traces of a study together do not fit into memory."""
        return Trace.load(self.folder / _TRACE)


def is_done(cell: Cell, out: Path) -> bool:
    """Returns whether a cell was run to its end: a killed cell leaves no record."""
    return (_folder(cell, out) / _RECORD).exists()


def finished(cell: Cell, out: Path) -> Finished | None:
    """Returns a cell's results, or None if it is not done or its files were changed."""
    folder = _folder(cell, out)
    if not is_done(cell, out) or damage(cell, out):
        return None
    with (folder / _HISTORY).open(newline="") as file:
        history = [{name: float(text) for name, text in row.items() if text} for row in csv.DictReader(file)]
    summary = json.loads((folder / _RECORD).read_text())["summary"]
    return Finished(cell, folder, history, summary)


def damage(cell: Cell, out: Path) -> str:
    """Says which file of a cell is missing or was changed; "" if all are intact, or if the cell failed or is absent."""
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
    return f"{changed[0]} was changed after the run" if changed else ""


def discard(cell: Cell, out: Path) -> None:
    """Removes a cell's folder, so that the cell counts as not done."""
    folder = _folder(cell, out)
    if folder.is_dir() and not folder.is_symlink():
        shutil.rmtree(folder)
    else:
        folder.unlink(missing_ok=True)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _seal(record: Mapping[str, Any]) -> str:
    """Returns the digest of a record, which itself holds the digests of the files."""
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()


def failure(cell: Cell, out: Path) -> str:
    """Returns why a cell failed: the last line of its log, if it has one."""
    if cell.needs is not None and not is_done(cell.needs, out):
        return f"the run whose {'schedule it repeats' if cell.replay else 'returns it has'} is missing"
    log = _folder(cell, out) / _LOG
    lines = log.read_text().strip().splitlines() if log.exists() else []
    return lines[-1] if lines else "its process was killed"


class Worker:
    """A process that runs cells in turn, so that it compiles shared programs once.

    After `begin`, `wire` delivers every row of the cell's history, and finally whether the cell succeeded, or an
    OSError if its folder could not be written. The wire closes if the process is killed.

    Args:
      out: the study's folder.
    """

    def __init__(self, out: Path) -> None:
        context = multiprocessing.get_context("spawn")  # a fork of a process with JAX's threads may hang
        self.wire, far_end = context.Pipe()
        self._process = context.Process(target=_work, args=(out, far_end), daemon=True)
        self._process.start()
        far_end.close()

    def begin(self, cell: Cell) -> None:
        """Starts a cell; the worker must be idle."""
        with contextlib.suppress(OSError):  # the process was killed: reading from the wire reports it
            self.wire.send(cell)

    def end(self) -> None:
        """Kills the process."""
        self._process.kill()
        self._process.join()
        self.wire.close()


def _work(out: Path, wire: Connection) -> None:
    """Runs cells in the worker's process, until the study's process ends for any reason."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the study's process handles interruptions
    threading.Thread(target=_end_with_study, daemon=True).start()
    use_one_thread()
    keep_compiled(out / "compiled")
    while True:
        try:
            cell = wire.recv()
        except (EOFError, OSError):
            os._exit(0)  # a normal exit crashes if a thread is still compiling
        said: bool | OSError
        try:
            said = _do(cell, out, wire)  # any other error ends the process with a traceback
        except OSError as error:
            said = error
        sys.stdout.flush()
        with contextlib.suppress(OSError):
            wire.send(said)


def _end_with_study() -> None:
    """Ends this process if the study's process is killed, because a resumed study may run the same cell at once."""
    study = multiprocessing.parent_process()
    assert study is not None
    study.join()
    os._exit(0)


def _do(cell: Cell, out: Path, wire: Connection) -> bool:
    """Runs a cell, renames its folder into place once it is complete, and returns whether the cell succeeded.

    Raises:
      OSError: if the folder cannot be written.
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
    for path in (*draft.iterdir(), draft):  # sync before renaming: otherwise a crash may leave an empty cell
        sync(path)
    draft.rename(folder)
    sync(folder.parent)
    return well


def run(cell: Cell, folder: Path, watcher: runs.Watcher, *, out: Path) -> None:
    """Runs a cell in this process, and writes its results into a folder.

    Args:
      cell: the cell to run.
      folder: an existing, empty folder.
      watcher: the watcher that receives the progress.
      out: the results folder, which holds the cell to replay or to retime, if any.
    """
    outcome = cell.outcome()
    if cell.retimes is not None:
        base = finished(cell.retimes, out)
        assert base is not None
        retime(cell.workload, outcome, base.history)
    else:
        recorded = None if cell.replay is None else Recording(Trace.load(_folder(cell.replay, out) / _TRACE))
        runs.run(cell.workload, outcome, threads=1, watcher=watcher, evaluation=cell.evaluation, replay=recorded)
    output.write_rows(folder / _HISTORY, outcome.history)
    outcome.trace.save(folder / _TRACE)
    if cell.keep_policy and outcome.policy is not None:
        save_policy(folder / POLICY, outcome.policy, _described(cell))
    record = output.finite(
        {
            "label": cell.label,
            "key": cell.key,
            "code": code_version(),
            "provenance": provenance(),
            "settings": cell.settings(),
            "summary": runs.summarise(outcome, cell.budget.target_return),
            "files": {name: _digest(folder / name) for name in _SEALED},
        }
    )
    with atomic_write(folder / _RECORD) as file:
        json.dump({**record, "seal": _seal(record)}, file, indent=2)
        file.write("\n")


def _described(cell: Cell) -> dict[str, str]:
    """Returns the description from which `play` makes the policy and its environment, and the training's settings."""
    environment = cell.workload.environment
    text = repr(environment)
    if isinstance(environment, Configured):
        options = "".join(f", {name}={value!r}" for name, value in environment.options)
        text = f"configure({environment.name!r}{options})"
    of = {"environment": text, "policy": repr(cell.workload.policy), "label": cell.label, "code": code_version()}
    return of | {"settings": json.dumps(cell.settings())}


class _Wire:
    """Sends a run's rows to the study's process."""

    def __init__(self, rows: Connection) -> None:
        self._rows = rows

    def begin(self, run: runs.Outcome) -> None:
        """Sends nothing: the study's process started the cell itself."""

    def row(self, run: runs.Outcome) -> None:
        """Sends the last row."""
        try:
            self._rows.send(run.history[-1])
        except OSError:
            os._exit(0)  # the study's process was killed, which is not a failure of the cell

    def end(self, run: runs.Outcome) -> None:
        """Sends nothing: the results are in the cell's files."""


def _folder(cell: Cell, out: Path) -> Path:
    return out / "cells" / cell.key
