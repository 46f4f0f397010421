"""Answers the registered questions of `lab-language` from its tables, and draws them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.lab import (
    agreement,
    collapse,
    corrections_pictures,
    cosines,
    dips,
    orders,
    stability,
    verdicts,
)
from experiments.figures.lab.outcomes import Cells, halves, scores, shared_rate
from experiments.figures.lab.surface import Surface, cells_of, read
from experiments.toolkit import output, shell

Rows = Sequence[dict[str, str]]

TASK, REFERENCE = "Sorting", "GRPO"
_PARTS = _LAGS, _PATTERNS, _BORDER, _DIP = "lags", "patterns", "border", "dip"
#: A run has learned if its best reward is above the floor by this share of the reference's without lag.
_LEARNED = 0.1
#: The columns of this study by the names that the answers of `lab-corrections` read.
_COLUMNS = {"final_exact": "final_return", "mean_exact": "mean_return", "best_reward": "best_return"} | {
    "reward_fell": "return_fell"
}


def report(folder: Path) -> None:
    """Writes the answers of the parts whose tables a folder holds, and the pictures.

    Raises:
      UsageError: if the table of the part `lags` is missing, or a table lacks runs.
    """
    parts = {part: [_renamed(row) for row in read(folder / f"{part}.csv")] for part in _PARTS}
    if not parts[_LAGS]:
        raise shell.UsageError(f"--out {folder} holds no lags.csv: run the part lags first")
    try:
        cells = cells_of(parts[_LAGS], float(parts[_LAGS][0]["untrained"]))._replace(reference=REFERENCE)
        surface = Surface(cells, frozenset())
        borders = stability.borders(parts[_BORDER], cells.floor) if parts[_BORDER] else {}
        tables = {name: [*rows] for name, rows in _tables(parts, surface, borders)}
    except ValueError as error:
        raise shell.UsageError(f"--out {folder}: {error}") from error
    for name, rows in tables.items():
        if rows:
            output.write_rows(folder / f"{name}.csv", rows)
        else:
            (folder / f"{name}.csv").unlink(missing_ok=True)
    corrections_pictures.surface(
        TASK, surface, folder / "surface", outcome="share of exact answers", age="age of the answers (updates)"
    )
    corrections_pictures.cosines(tables["q5"], folder / "cosines", REFERENCE)
    if borders:
        corrections_pictures.border(read(folder / "stable.csv"), folder / "border", unit="updates")


def _renamed(row: dict[str, str]) -> dict[str, str]:
    return {_COLUMNS.get(name, name): value for name, value in row.items()}


def _tables(
    parts: Mapping[str, Rows], surface: Surface, borders: Mapping[str, stability.Border]
) -> Iterator[tuple[str, Iterator[dict[str, Any]] | list[dict[str, Any]]]]:
    """Yields the rows of every table with its name."""
    cells = surface.cells
    rate = cells.rates[shared_rate(scores(cells), cells.methods, cells.reference)]
    yield "best", verdicts.best(TASK, surface)
    yield "shared", verdicts.shared(TASK, surface)
    yield "half", halves(TASK, cells)
    yield "against", [_of_reference(row) for row in verdicts.against_ppo(TASK, surface)]
    yield "stable", [row for one in borders.items() for row in stability.stable(TASK, *one)]
    yield "q1", [row for one in borders.items() for row in stability.answered(TASK, *one)]
    yield "q2", _collapses(parts, rate)
    yield "q3", orders.answered(TASK, surface)
    yield "q4", agreement.answered(TASK, [*parts[_LAGS], *parts[_PATTERNS]], cells.floor)
    yield "q5", cosines.answered(TASK, parts[_LAGS], rate)
    yield "q6", dip(parts[_DIP], cells, rate)


def _of_reference(row: dict[str, Any]) -> dict[str, Any]:
    return {name.replace("ppo_", "reference_"): value for name, value in row.items()}


def _collapses(parts: Mapping[str, Rows], rate: float) -> Iterator[dict[str, Any]]:
    """Yields the answers to question 2, over the runs of all parts."""
    floor = float(parts[_LAGS][0]["untrained_reward"])
    fresh = [
        float(row["best_return"])
        for row in parts[_LAGS]
        if (row["method"], int(row["lag"]), float(row["learning_rate"])) == (REFERENCE, 0, rate)
    ]
    rows = [row for part in parts.values() for row in part]
    return collapse.answered(TASK, rows, floor, _LEARNED * (float(np.mean(fresh)) - floor))


def dip(rows: Rows, cells: Cells, rate: float) -> Iterator[dict[str, Any]]:
    """Yields the share of seeds with a dip at a lag of 4, at the rate of the part that is nearest to the shared one."""
    if not rows:
        return
    own = cells_of(rows, cells.floor)
    near = int(np.argmin(np.abs(np.log(own.rates) - np.log(rate))))
    outcomes = scores(own)[0, [[*own.lags].index(lag) for lag in (2, 4, 8)], near]
    yield {"task": TASK, "method": own.methods[0], "learning_rate": own.rates[near], **dips.shares(outcomes)}
