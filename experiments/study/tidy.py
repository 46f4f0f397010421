"""Writes the files of a study (its runs, their curves, its table and its provenance), and removes its old pictures."""

import csv
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.study.cells import Finished
from experiments.toolkit import output
from stellaris.runtime.files import atomic_write

#: The most rows of a run's curve.
_POINTS = 50
#: The table of the runs.
_RUNS = "runs.csv"


def clear(home: Path, pictures: Sequence[str]) -> None:
    """Removes a study's pictures of the environments in the folder's tables, and no other file.

    Args:
      home: the study's folder.
      pictures: stems of the pictures' names, which the name of an environment may follow.
    """
    environments = _environments(home / _RUNS)
    for name in (*pictures, *(f"{picture}_{environment}" for picture in pictures for environment in environments)):
        for kind in ("png", "pdf"):
            if Path(name).name == name:
                (home / f"{name}.{kind}").unlink(missing_ok=True)


def _environments(runs: Path) -> set[str]:
    """Returns the environments in a table of runs, or the empty set if the table cannot be read."""
    try:
        with runs.open(newline="") as file:
            return {row["environment"] for row in csv.DictReader(file)}
    except (OSError, ValueError, LookupError, csv.Error):
        return set()


def write(results: Sequence[Finished], out: Path) -> None:
    """Writes `runs.csv`, one row per run, and `curves.csv`, one row per point of a run's curve.

    The real time of each run is in `wall_seconds.csv`, and the code and the machine in `provenance.json`: when the runs
    are repeated, only these two files differ. The settings of a run are in its cell.
    """
    output.write_rows(out / _RUNS, [{**_names(result), **figures(result)} for result in results])
    took = [{**_names(result), "wall_seconds": result.summary["wall_seconds"]} for result in results]
    output.write_rows(out / "wall_seconds.csv", took)
    with atomic_write(out / "provenance.json") as file:
        json.dump(_together([result.provenance for result in results]), file, indent=1)
    output.write_rows(out / "curves.csv", [{**_names(result), **row} for result in results for row in _thinned(result)])


def _together(of: Sequence[Mapping[str, str]]) -> dict[str, str]:
    """Returns the provenance of several runs: each value once, in the order of the runs."""
    return {name: "; ".join(dict.fromkeys(one[name] for one in of)) for name in of[0]}


def _names(result: Finished) -> dict[str, Any]:
    """Returns the columns that identify a run; each swept setting has a column."""
    cell = result.cell
    names = {"environment": cell.environment, "system": cell.contender.name, "setting": cell.setting, "seed": cell.seed}
    return names | dict(cell.factors)


def figures(result: Finished) -> dict[str, Any]:
    """Returns the results that are reproducible."""
    other = ("system", "seed", "status", "wall_seconds")
    own = {name: value for name, value in result.summary.items() if name not in other}
    mean = result.mean_return
    return own | {"mean_return": None if math.isnan(mean) else mean}


def _thinned(result: Finished) -> Sequence[dict[str, float]]:
    """Returns evenly spaced rows of the history, the last among them, to seven digits: step counts stay exact."""
    bills = (name for name in result.history[-1] if name.startswith("cost_"))
    evaluated = ["evaluation_return"] if all("evaluation_return" in row for row in result.history) else []
    columns = ("seconds", "steps", "episode_return", *evaluated, *bills)
    stride = -(-len(result.history) // _POINTS)
    rows = result.history[::-1][::stride][::-1]
    return [{column: float(f"{row[column]:.7g}") for column in columns} for row in rows]


def show(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]], out: Path, console: Console) -> None:
    """Prints a study's table and writes it to `table.csv`; the first two columns hold names."""
    output.write_rows(out / "table.csv", [dict(zip(headings, row, strict=True)) for row in rows])
    printed = Table(title=title)
    for i, heading in enumerate(headings):
        printed.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
    for row in rows:
        printed.add_row(*row)
    console.print(printed)
