"""Answers the registered questions of `lab-gradients` from its tables, and draws them."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.lab import agreement, corrections_pictures, cosines, orders, verdicts
from experiments.figures.lab.outcomes import Cells, drawn, halves, scores, shared_rate, short
from experiments.figures.lab.stability import largest_stable, slopes
from experiments.figures.lab.surface import Surface, cells_of, floor_of, read
from experiments.toolkit import output, shell
from stellaris.types import NDArray

Rows = Sequence[dict[str, str]]

REFERENCE = "uncorrected"
#: The share of the resamples that must have a slope.
_ENOUGH = 0.9
_KINDS = _CONSTANT, _DRAWN = "constant", "drawn"


def report(folder: Path, tasks: Sequence[str]) -> None:
    """Writes the answers of every task whose table a folder holds, and the pictures.

    Raises:
      UsageError: if there is no table, or a table lacks runs.
    """
    runs = {task: rows for task in tasks if (rows := read(folder / f"runs_{task}.csv.gz"))}
    if not runs:
        raise shell.UsageError(f"--out {folder} holds no runs of {' or '.join(tasks)}: run the part runs first")
    try:
        surfaces = {(task, kind): surface_of(task, kind, rows) for task, rows in runs.items() for kind in _KINDS}
        tables = {name: [*rows] for name, rows in _tables(runs, surfaces)}
    except ValueError as error:
        raise shell.UsageError(f"--out {folder}: {error}") from error
    for name, rows in tables.items():
        output.write_rows(folder / f"{name}.csv", rows)
    for (task, kind), surface in surfaces.items():
        age, columns = ("age in gradients", 2) if kind == _CONSTANT else ("mean age in gradients, drawn", 3)
        path = folder / f"surface_{kind}_{task}"
        corrections_pictures.surface(task, surface, path, age=age, columns=columns)
    cosines.draw(tables["cosine"], folder / "cosines")


def surface_of(task: str, kind: str, rows: Rows) -> Surface:
    """Returns the outcomes of the methods that have runs at ages of this kind, with those without lag first.

    Without lag all weights are 1, so the runs of weights without lag are those of uncorrected gradients.
    """
    methods = dict.fromkeys(row["method"] for row in rows if row["kind"] == kind)
    fresh = [row for row in rows if row["kind"] == _CONSTANT and row["lag"] == "0"]
    own = [row for row in rows if row["kind"] == kind and row["lag"] != "0"]
    for method in methods:
        there = [row for row in fresh if row["method"] == method]
        own += there or [{**row, "method": method} for row in fresh if row["method"] == REFERENCE]
    own.sort(key=lambda row: [*methods].index(row["method"]))
    return Surface(cells_of(own, floor_of(task))._replace(reference=REFERENCE), frozenset())


def _tables(
    runs: Mapping[str, Rows], surfaces: Mapping[tuple[str, str], Surface]
) -> Iterator[tuple[str, list[dict[str, Any]]]]:
    """Yields the rows of every table with its name."""
    of_kinds = [(task, kind, surface) for (task, kind), surface in surfaces.items()]
    against = [{"kind": kind, **row} for task, kind, of in of_kinds for row in verdicts.against_ppo(task, of)]
    yield "best", [{"kind": kind, **row} for task, kind, of in of_kinds for row in verdicts.best(task, of)]
    yield "shared", [{"kind": kind, **row} for task, kind, of in of_kinds for row in verdicts.shared(task, of)]
    yield "half", [row for task, kind, of in of_kinds if kind == _CONSTANT for row in halves(task, of.cells)]
    yield "against", [{name.replace("ppo_", "reference_"): x for name, x in row.items()} for row in against]
    yield "helps", [*helps(against)]
    yield "orders", [{"kind": kind, **row} for task, kind, of in of_kinds for row in orders.answered(task, of)]
    yield "agreement", [row for task, rows in runs.items() for row in agreement.answered(task, rows, floor_of(task))]
    yield "border", [row for task, kind, of in of_kinds if kind == _CONSTANT for row in border(task, of.cells)]
    yield (
        "cosine",
        [
            row
            for task, kind, of in of_kinds
            if kind == _CONSTANT
            for row in cosines.answered(task, _constant(runs[task]), of.cells.rates[_shared(of.cells)])
        ],
    )
    yield "steps", [*steps(runs)]


def _constant(rows: Rows) -> Rows:
    return [row for row in rows if row["kind"] == _CONSTANT]


def _shared(cells: Cells) -> int:
    return shared_rate(scores(cells), cells.methods, cells.reference)


def helps(rows: Sequence[Mapping[str, Any]]) -> Iterator[dict[str, Any]]:
    """Yields, by kind of ages and method, on how many lags it beats uncorrected gradients, and whether it helps.

    At constant ages it must beat them at two lags or more on every task, at drawn ages at one; and be below nowhere.

    Args:
      rows: the rows of `verdicts.against_ppo`, with their kinds.
    """
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    for kind, method in dict.fromkeys((row["kind"], row["method"]) for row in rows):
        own = [row for row in rows if (row["kind"], row["method"]) == (kind, method)]
        counts = {
            f"{verdict} on {task}": sum(row["task"] == task and row["verdict"] == verdict for row in own)
            for verdict in (verdicts.BEATS, verdicts.BELOW)
            for task in tasks
        }
        enough = all(counts[f"{verdicts.BEATS} on {task}"] >= (2 if kind == _CONSTANT else 1) for task in tasks)
        never = not any(counts[f"{verdicts.BELOW} on {task}"] for task in tasks)
        yield {"kind": kind, "method": method, **counts, "helps": "yes" if enough and never else "no"}


def border(task: str, cells: Cells) -> Iterator[dict[str, Any]]:
    """Yields the largest stable rate of uncorrected gradients at each lag, and its slope against the lag from 1 on."""
    lags = [lag for lag in cells.lags if lag > 0]
    score = scores(cells)[[*cells.methods].index(REFERENCE), [[*cells.lags].index(lag) for lag in lags]]
    log_rates = np.array([*np.log10(cells.rates), np.nan])  # the last is the place of -1: nothing is learned
    index = largest_stable(score.mean(axis=-1))
    draws = log_rates[largest_stable(np.moveaxis(drawn(score), -1, 0))]
    slope = _slope(float(slopes(np.log10(lags), log_rates[index])), slopes(np.log10(lags), draws))
    edge = {0: "lowest", len(cells.rates) - 1: "highest"}
    for lag, i in zip(lags, index.tolist(), strict=True):
        rate = cells.rates[i] if i >= 0 else ""
        yield {"task": task, "lag": lag, "largest_stable_rate": rate, "edge": edge.get(i, ""), **slope}


def _slope(slope: float, draws: NDArray) -> dict[str, Any]:
    """Returns a slope with its interval, and whether it says S·η: -1 lies in the interval, and 0 does not."""
    there = draws[np.isfinite(draws)]
    if not np.isfinite(slope) or len(there) < _ENOUGH * len(draws):
        return {"slope": "", "low": "", "high": "", "verdict": "no slope"}
    low, high = (short(float(x)) for x in np.quantile(there, [0.025, 0.975]))
    verdict = "S·η" if low <= -1 <= high < 0 else "not S·η"
    return {"slope": short(slope), "low": low, "high": high, "verdict": verdict}


def steps(runs: Mapping[str, Rows]) -> Iterator[dict[str, Any]]:
    """Yields the mean distance between versions, and the measured staleness in versions, of every cell."""
    for task, rows in runs.items():
        cells: dict[tuple[str, ...], list[dict[str, str]]] = {}
        for row in rows:
            cells.setdefault(tuple(row[name] for name in ("method", "kind", "lag", "learning_rate")), []).append(row)
        for (method, kind, lag, rate), own in cells.items():
            means = {
                name: short(float(np.mean([float(row[name]) for row in own]))) for name in ("measured_lag", "step_norm")
            }
            yield {"task": task, "method": method, "kind": kind, "lag": lag, "learning_rate": rate, **means}
