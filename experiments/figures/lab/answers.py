"""Answers the registered questions of `lab-corrections` from its tables, and draws them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.figures.lab import (
    agreement,
    collapse,
    corrections_pictures,
    dips,
    lag,
    newest,
    orders,
    stability,
    surface,
    verdicts,
)
from experiments.figures.lab.outcomes import halves
from experiments.figures.lab.surface import LAB_LAG, LAB_NEWEST, Surface, floor_of, read
from experiments.toolkit import output, shell

Rows = Sequence[dict[str, str]]

#: The parts of a task's runs, as their tables are named.
_PARTS = _LAGS, _PATTERNS, _BORDER = "lags", "patterns", "border"
#: The parts whose outcome is that of the newest policy. The tables of the first answer two of the questions again, and
#: those of the second question 4 for batches that mix ages.
_NEWEST, _MIXED = "newest", "mixed"
#: A run has learned if its best return is above the floor by this share of PPO's outcome without lag.
_LEARNED = 0.1


def report(folder: Path, size: lag.Preset) -> None:
    """Writes the answers of every task whose tables a folder holds, and the pictures.

    Raises:
      UsageError: if the folder holds no table, or one that lacks runs.
    """
    parts = {task: {part: read(folder / f"{part}_{task}.csv.gz") for part in _PARTS} for task in size.tasks}
    parts = {task: {part: rows for part, rows in own.items() if rows} for task, own in parts.items()}
    try:
        surfaces = {task: surface.surface_of(task, own[_LAGS], size) for task, own in parts.items() if own.get(_LAGS)}
        borders = {
            task: stability.borders(own[_BORDER], floor_of(task)) for task, own in parts.items() if own.get(_BORDER)
        }
        evaluated = _evaluated(folder, size)
    except ValueError as error:
        raise shell.UsageError(f"--out {folder}: {error}") from error
    if not any(parts.values()) and not evaluated:
        raise shell.UsageError(f"--out {folder} holds no table of a part: run --parts {' '.join(_PARTS)} first")
    tables = _tables(parts, surfaces, borders, [*size.tasks]) | _tables_of_newest(evaluated)
    tables[_MIXED] = [row for task in size.tasks for row in _mixed(task, folder, size)]
    for name, rows in tables.items():
        _write(folder / f"{name}.csv", rows)
    for task, of in surfaces.items():
        corrections_pictures.surface(task, of, folder / f"surface_{task}")
    for task, of in evaluated.items():
        corrections_pictures.surface(task, of, folder / f"{_NEWEST}_{task}", outcome="evaluated return")
    if borders:
        corrections_pictures.border(read(folder / "stable.csv"), folder / "border")


def _evaluated(folder: Path, size: lag.Preset) -> dict[str, Surface]:
    """Returns the outcomes by the newest policy of every task whose table a folder holds."""
    size = newest.PRESETS["small"] if size == lag.PRESETS["small"] else size
    tables = {task: read(folder / f"{_NEWEST}_{task}.csv.gz") for task in size.tasks}
    return {task: surface.surface_of(task, rows, size, _NEWEST, LAB_NEWEST) for task, rows in tables.items() if rows}


def _tables_of_newest(evaluated: Mapping[str, Surface]) -> dict[str, list[dict[str, Any]]]:
    over = evaluated.items()
    return {
        f"{_NEWEST}_best": [row for task, of in over for row in verdicts.best(task, of)],
        f"{_NEWEST}_half": [row for task, of in over for row in halves(task, of.cells)],
        f"{_NEWEST}_against_ppo": [row for task, of in over for row in verdicts.against_ppo(task, of)],
    }


def _tables(
    parts: Mapping[str, Mapping[str, Rows]],
    surfaces: Mapping[str, Surface],
    borders: Mapping[str, Mapping[str, stability.Border]],
    tasks: Sequence[str],
) -> dict[str, list[dict[str, Any]]]:
    """Returns the rows of every table by its name."""
    over = surfaces.items()
    against = [row for task, of in over for row in verdicts.against_ppo(task, of)]
    return {
        "best": [row for task, of in over for row in verdicts.best(task, of)],
        "shared": [row for task, of in over for row in verdicts.shared(task, of)],
        "half": [row for task, of in over for row in halves(task, of.cells)],
        "against_ppo": against,
        "recommended": [*verdicts.recommended(against, tasks)],
        "stable": [row for task, of in borders.items() for one in of.items() for row in stability.stable(task, *one)],
        "q1": [row for task, of in borders.items() for one in of.items() for row in stability.answered(task, *one)],
        "q2": [row for task, own in parts.items() if own for row in _collapses(task, own)],
        "q3": [row for task, of in over for row in orders.answered(task, of)],
        "q4": [row for task, own in parts.items() for row in _agreements(task, own)],
        "q6": [row for task, of in over for row in dips.answered(task, of)],
    }


def _collapses(task: str, own: Mapping[str, Rows]) -> Iterator[dict[str, Any]]:
    (ppo,) = (
        float(row["score_without_lag"])
        for row in read(LAB_LAG / "half.csv")
        if (row["task"], row["method"], row["rate"]) == (task, "PPO", "best")
    )
    rows = [row for part in own.values() for row in part]
    return collapse.answered(task, rows, floor_of(task), _LEARNED * ppo)


def _agreements(task: str, own: Mapping[str, Rows]) -> Iterator[dict[str, Any]]:
    rows = [row for part in (_LAGS, _PATTERNS) for row in own.get(part, [])]
    return agreement.answered(task, rows, floor_of(task))


def _mixed(task: str, folder: Path, size: lag.Preset) -> Iterator[dict[str, Any]]:
    """Yields question 4's answers for batches that mix ages; the constant lags are those of the newest policy."""
    mixed = read(folder / f"{_MIXED}_{task}.csv.gz")
    constant = read(folder / f"{_NEWEST}_{task}.csv.gz")
    if size == lag.PRESETS["small"]:  # a smoke run has other settings
        earlier = [row for row in read(LAB_NEWEST / "runs.csv") if row["task"] == task]
        constant = [*({**row, "kind": "constant"} for row in earlier), *constant]
    return agreement.answered(task, [*constant, *mixed], floor_of(task, LAB_NEWEST))


def _write(path: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Writes a table; without rows, removes the table of an earlier report."""
    if several := [*rows]:
        output.write_rows(path, several)
    else:
        path.unlink(missing_ok=True)
