"""Runs one cell of a study of the lab again, a method at a lag and a learning rate, beside the committed runs."""

import argparse
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, cast

from rich.console import Console
from rich.table import Table

from experiments.figures.lab import corrections, gradients, lag, language, language_report
from experiments.figures.lab.methods import methods
from experiments.lab.patterns import Kind
from experiments.toolkit import options, output, shell
from experiments.toolkit.repeat import COMMITTED, Repeat, matching

DESCRIPTION = "run one cell of a study of the lab again, beside the committed runs"

Rows = Iterable[Mapping[str, Any]]

#: Patterns of lag; lab-gradients calls "drawn" what the others call "maximum".
_KINDS = ("constant", "sawtooth", "maximum", "drawn")


class Cell(NamedTuple):
    """A cell of a study, by the values that its rows have in the tables of runs."""

    study: str
    task: str
    method: str
    lag: int
    learning_rate: float
    kind: str = "constant"
    updates: int = 0  #: of a run; if 0, those of the first committed run of the cell.


class Study(NamedTuple):
    """Where the runs of a study are, and how a cell is run."""

    task: str  #: the environment of a cell, if none is given.
    tables: Callable[[str], Sequence[str]]  #: the names of the tables of runs, given the task.
    outcome: str  #: the column of the result: the mean over the run.
    run: Callable[[Cell, int | None, str], Rows]  #: runs a cell, with some seeds or the study's, in a preset's sizes.


def committed(cell: Cell, folder: Path = COMMITTED) -> list[Mapping[str, str]]:
    """Returns the committed runs of a cell: those of the study's first table that has any.

    Raises:
      UsageError: if no table has any; the message says which values the tables have.
    """
    wanted = cell._asdict()
    del wanted["study"]
    if not cell.updates:
        del wanted["updates"]
    several = [folder / cell.study / name for name in STUDIES[cell.study].tables(cell.task)]
    tables = [output.read_rows(path) for path in several if path.exists()]
    for rows in tables:
        # Tables of one task, or of constant lags only, lack a column for these.
        if found := matching([{"task": cell.task, "kind": "constant", **row} for row in rows], wanted):
            return [row for row in found if row.get("updates") == found[0].get("updates")]
    values = {name: dict.fromkeys(row[name] for rows in tables for row in rows if name in row) for name in wanted}
    said = "; ".join(f"{name}: {', '.join(map(_quoted, of))}" for name, of in values.items() if of)
    raise shell.UsageError(f"{cell.study} has no run with {wanted}. Its tables have {said or f'no task {cell.task}'}")


def _quoted(text: str) -> str:
    """The text as a shell takes it, such as "cap, demo"."""
    return f'"{text}"' if " " in text else text


def repeat(cell: Cell, seeds: int | None = None, folder: Path = COMMITTED, preset: str = "small") -> Repeat:
    """Runs a cell again, with the study's seeds or the first of them.

    Raises:
      UsageError: if the committed tables have no such cell.
    """
    study = STUDIES[cell.study]
    known = committed(cell, folder)
    if "updates" in known[0]:
        cell = cell._replace(updates=int(known[0]["updates"]))
    now = study.run(cell, seeds, preset)
    what = f"{study.outcome}, {cell.method}, {cell.task}, lag {cell.lag}"
    return Repeat(cell.study, what, *([float(row[study.outcome]) for row in rows] for rows in (known, now)))


# ---- the studies -----------------------------------------------------------------------------------------------------


def _of_lag(cell: Cell, seeds: int | None, preset: str) -> Rows:
    size = _sized(lag.PRESETS[preset], cell, seeds)
    several = methods(epochs=size.epochs, minibatch_size=size.minibatch_size, fragment=size.fragment)
    result = lag.swept(size, size.tasks[cell.task]._replace(lags=(cell.lag,)), {cell.method: several[cell.method]})
    return [{"mean_return": float(one)} for one in lag.returns(size, result, 1.0).ravel()]


def _of_corrections(cell: Cell, seeds: int | None, preset: str) -> Rows:
    size = _sized(lag.PRESETS[preset], cell, seeds)
    part = corrections.Part((cell.method,), (cell.lag,), (cell.learning_rate,), cast(Kind, cell.kind))
    return corrections.run(size, cell.task, replace(part, updates=cell.updates))


def _of_language(cell: Cell, seeds: int | None, preset: str) -> Rows:
    size = language.PRESETS[preset]
    ages = [language.Age(cast(Kind, cell.kind), cell.lag)]
    part = language.Part((cell.method,), ages, (cell.learning_rate,), seeds or size.parts["lags"][0].seeds)
    return language.run(size, replace(part, updates=cell.updates))


def _of_gradients(cell: Cell, seeds: int | None, preset: str) -> Rows:
    study = gradients.PRESETS[preset]
    ages = {kind: (cell.lag,) if kind == cell.kind else () for kind in ("constant", "drawn")}
    few = replace(study, base=_sized(study.base, cell, None), methods=(cell.method,), seeds=seeds or study.seeds)
    return gradients.run(replace(few, constant=ages["constant"], drawn=ages["drawn"]), cell.task)


def _sized(size: lag.Preset, cell: Cell, seeds: int | None) -> lag.Preset:
    return replace(size, rates=(cell.learning_rate,), seeds=seeds or size.seeds)


def _language_tables(task: str) -> Sequence[str]:
    """Returns the tables of every part; they lack a column for the task, of which there is only one."""
    return [f"{part}.csv" for part in language.PRESETS["small"].parts] if task == language_report.TASK else []


#: The studies by name.
STUDIES: Mapping[str, Study] = {
    "lab-lag": Study("CartPole", lambda task: ["runs.csv"], "mean_return", _of_lag),
    "lab-corrections": Study(
        "CartPole",
        lambda task: [f"{part}_{task}.csv.gz" for part in corrections.PARTS if part not in corrections.EVALUATED],
        "mean_return",
        _of_corrections,
    ),
    "lab-language": Study(language_report.TASK, _language_tables, "mean_exact", _of_language),
    "lab-gradients": Study("CartPole", lambda task: [f"runs_{task}.csv.gz"], "mean_return", _of_gradients),
}


# ---- the command -----------------------------------------------------------------------------------------------------


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("study", choices=STUDIES, help="the study")
    add("--task", help="an environment of the study (default: CartPole; of lab-language Sorting, its only one)")
    add("--method", required=True, help='a method of the study, such as "SAPO"')
    add("--lag", type=options.whole(0), required=True, help="the age, or its mean")
    add("--rate", type=float, required=True, help="a learning rate of the study")
    add("--kind", choices=_KINDS, default="constant", help="the pattern of the lag")
    add("--updates", type=options.whole(1), default=0, help="updates of a run (default: the study's)")
    add("--seeds", type=options.whole(1), help="the first seeds only (default: the study's)")


def main(arguments: argparse.Namespace) -> int:
    """Runs a cell again, and shows its result beside the committed one."""
    cell = Cell(
        arguments.study,
        arguments.task or STUDIES[arguments.study].task,
        arguments.method,
        arguments.lag,
        arguments.rate,
        arguments.kind,
        arguments.updates,
    )
    found = repeat(cell, arguments.seeds)
    table = Table("study", "mean of", "committed", "now", "margin", "")
    table.add_row(*found.row())
    Console().print(table)
    return 0 if found.agrees else shell.FAILED
