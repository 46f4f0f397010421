"""Logs of other stacks: durations, versions and staleness from a CSV file, as a deployment and as ages of data."""

import csv
import math
import os
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np

from stellaris._core import checks
from stellaris.runtime.delays import Empirical
from stellaris.runtime.files import atomic_write
from stellaris.runtime.functions import FunctionSpec
from stellaris.types import NDArray


@dataclass(frozen=True)
class Work:
    """A piece of work that was done once: a rollout, a training step, or a publication of the policy.

    Args:
      function: the function that did it, such as `"actor"`, `"learner"` or `"parameter"`.
      seconds: its duration, from when its inputs were there to when its result was there.
      work: its size, in the unit in which the simulated function counts: the environment steps of a rollout, the
        gradients of a training step.
      started: when it started, in seconds of one clock for the whole log.
      version: the number of the policy with which it was done: a rollout's behaviour policy, and the newest version
        when a training step started.
      staleness: of a training step, the age of its data: the mean over the samples of the versions between the
        behaviour policy and `version`.

    Raises:
      TypeError: if the version is not whole.
      ValueError: if the function has no name, or a number is out of its range.
    """

    function: str
    seconds: float
    work: float = 1.0
    started: float | None = None
    version: int | None = None
    staleness: float | None = None

    def __post_init__(self) -> None:
        if not self.function:
            raise ValueError("function='' has no name: name the function, such as actor or learner")
        if not 0 <= self.seconds < math.inf:
            raise ValueError(f"seconds={self.seconds} is negative or not finite: give 0 seconds or more")
        if not 0 < self.work < math.inf:
            raise ValueError(f"work={self.work} is not positive and finite: give the size of the work, such as 1")
        if self.started is not None and not math.isfinite(self.started):
            raise ValueError(f"started={self.started} is not finite: give seconds since the start of the log")
        if self.version is not None:
            checks.whole(at_least=0, version=self.version)
        if self.staleness is not None and not 0 <= self.staleness < math.inf:
            raise ValueError(f"staleness={self.staleness} is negative or not finite: give 0 versions or more")


#: How the text in each column is read.
_READ: Mapping[str, Callable[[str], Any]] = {
    "function": str,
    "seconds": float,
    "work": float,
    "started": float,
    "version": int,
    "staleness": float,
}
#: The columns that a file must have.
_REQUIRED = ("function", "seconds")


@dataclass(frozen=True)
class WorkLog:
    """Another stack's log of a run, in the order of its events; see docs/traces.md.

    Args:
      rows: the pieces of work.

    Raises:
      ValueError: if there are no rows.

    Example:
      >>> log = WorkLog((Work("actor", 0.8, work=4), Work("learner", 0.5, staleness=1.5), Work("actor", 1.2, work=4)))
      >>> log.functions()["actor"].compute
      Empirical(samples=(0.2, 0.3), block=1)
      >>> log.ages
      array([1.5])
    """

    rows: tuple[Work, ...]

    def __post_init__(self) -> None:
        if not self.rows:
            raise ValueError("rows is empty: give at least one piece of work")

    @classmethod
    def from_csv(cls, path: str | os.PathLike[str]) -> "WorkLog":
        """Reads a log: a CSV file, separated by commas, whose columns are the fields of `Work`.

        The columns `function` and `seconds` are needed. The others may be missing, or empty in a row that has no such
        value. Rows are sorted by `started`, if every row has it.

        Args:
          path: path of the file, in UTF-8, whose first line names the columns.

        Raises:
          ValueError: if a column is missing, unknown or there twice, a value is not a number or out of its range, or a
            row has too many or too few values; the error names the file, the line and the column.
        """
        name = os.fspath(path)
        with open(path, newline="", encoding="utf-8-sig") as file:
            reader = csv.DictReader(file, skipinitialspace=True)
            try:
                _check_columns(name, list(reader.fieldnames or ()))
                rows = [_work(row, f"{name}, line {reader.line_num}") for row in reader]
            except (csv.Error, UnicodeDecodeError) as error:
                raise ValueError(f"{name} cannot be read as CSV: {error}") from error
        if not rows:
            raise ValueError(f"{name} has no rows: expected one for each piece of work")
        if all(row.started is not None for row in rows):
            rows.sort(key=lambda row: row.started or 0.0)
        return cls(tuple(rows))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the log as a CSV file that `from_csv` reads; columns without a value are left out."""
        texts = [
            {name: "" if value is None else str(value) for name, value in asdict(row).items()} for row in self.rows
        ]
        columns = [field.name for field in fields(Work) if any(row[field.name] for row in texts)]
        with atomic_write(path) as file:
            writer = csv.DictWriter(file, columns, extrasaction="ignore", lineterminator="\n")
            writer.writeheader()
            writer.writerows(texts)

    def functions(self, *, block: int = 1) -> dict[str, FunctionSpec]:
        """Returns the deployment that took these times: for each function, the durations per unit of work.

        A log has no limits, such as the number of GPUs: set them by `dataclasses.replace(spec, max_concurrency=8)`.

        Args:
          block: number of successive durations that are drawn together, which keeps the correlation of a machine that
            is slow for a while; 1 draws each by itself.

        Raises:
          ValueError: if `block` is below 1.
        """
        samples: dict[str, list[float]] = {}
        for row in self.rows:
            samples.setdefault(row.function, []).append(row.seconds / row.work)
        return {name: FunctionSpec(Empirical(tuple(seconds), block)) for name, seconds in samples.items()}

    @property
    def ages(self) -> NDArray:
        """The staleness of every training step that has one, in versions, in order: the ages for `lab.Logged`.

        Raises:
          ValueError: if no row has a staleness.
        """
        ages = [row.staleness for row in self.rows if row.staleness is not None]
        if not ages:
            raise ValueError("the log has no staleness: fill this column in the rows of the training steps")
        return np.array(ages)

    def versions_per_second(self, function: str = "learner") -> float:
        """Returns the rate at which a function's versions followed each other.

        Args:
          function: the function whose rows count. Rows of training steps have the newest version at their start.

        Raises:
          ValueError: if not two of the rows have a version and a start, at different times.
        """
        known = [row for row in self.rows if row.function == function]
        points = [(row.started, row.version) for row in known if row.started is not None and row.version is not None]
        (began, first), (ended, last) = (min(points), max(points)) if points else ((0.0, 0), (0.0, 0))
        if began == ended:
            raise ValueError(
                f"function={function!r}: fewer than two of its rows have `version` and different `started`, so the log "
                "has no rate; fill both columns"
            )
        return (last - first) / (ended - began)


def _check_columns(name: str, columns: list[str]) -> None:
    """Checks the names of a file's columns."""
    if missing := [column for column in _REQUIRED if column not in columns]:
        remedy = "; separate columns by commas" if len(columns) == 1 and missing[0] in columns[0] else ""
        raise ValueError(f"{name} has the columns {columns}: column {missing[0]!r} is missing{remedy}")
    if twice := [column for column in columns if columns.count(column) > 1]:
        raise ValueError(f"{name} has the column {twice[0]!r} {columns.count(twice[0])} times: leave one")
    if unknown := [column for column in columns if column not in _READ]:
        raise ValueError(f"{name} has an unknown column {unknown[0]!r}: remove it, or rename it to one of {[*_READ]}")


def _work(row: Mapping[str | None, Any], where: str) -> Work:
    """Reads a row; `where` names it in errors."""
    if None in row or None in row.values():
        raise ValueError(f"{where}: the row has too many or too few values: expected one for each column")
    values = {}
    for column, text in row.items():
        assert column is not None
        if text or column in _REQUIRED:
            try:
                values[column] = _READ[column](text)
            except ValueError:
                kind = "a whole number" if column == "version" else "a number"
                raise ValueError(f"{where}: {column}={text!r} is not {kind}") from None
    try:
        return Work(**values)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{where}: {error}") from error
