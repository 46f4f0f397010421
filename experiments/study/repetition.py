"""Repeats one committed run of each study, and compares the results."""

import argparse
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from experiments.study import study, tidy
from experiments.study.cells import Cell, failure, finished
from experiments.study.study import Study
from experiments.toolkit import options, output, provenance

#: The committed results of the preset `small`.
COMMITTED = Path(__file__).parents[1] / "results" / "small"
#: The digests of committed runs' code whose runs today's code repeats. Without them any change of the library, however
#: unrelated, would excuse a run that differs. A change that alters runs on purpose empties the set.
SAME_RUNS = frozenset({"a93b7a89036a1ff0", "c8fb74851e24217b"})
#: The columns that identify a run.
_NAMES = ("environment", "system", "setting", "seed")
#: The columns of the printed table.
_SHOWN = ("final_return", "virtual_seconds")


class Repeated(NamedTuple):
    """A committed run to repeat."""

    name: str  #: the study's name.
    cell: Cell
    row: Mapping[str, str]  #: the committed results.
    other: str  #: what may have changed the results: other code than in `SAME_RUNS`, jax or instructions; else "".


def chosen(name: str, of: Study, committed: Path = COMMITTED) -> Repeated | None:
    """Returns the committed run of a study that took the least time; where no times are kept, had the fewest gradients.

    Returns None if the study has no committed results, or measures the machine.

    Raises:
      LookupError: if none of the committed runs is part of the study any more.
    """
    folder = committed / name
    if of.alone or not (folder / "runs.csv").exists():
        return None
    rows = {_key(row): row for row in output.read_rows(folder / "runs.csv")}
    timed = (folder / "wall_seconds.csv").exists()
    file, column = ("wall_seconds.csv", "wall_seconds") if timed else ("runs.csv", "gradients")
    took = {_key(row): float(row[column]) for row in output.read_rows(folder / file)}
    cells = _cells(of, dict.fromkeys(row["environment"] for row in rows.values()))
    shortest = [key for key in sorted(took, key=lambda key: took[key]) if key in cells and key in rows]
    if not shortest:
        raise LookupError(f"{name}: none of the {len(rows)} committed runs is part of the study any more")
    made = json.loads(beside.read_text()) if (beside := folder / "provenance.json").exists() else {}
    here = {
        "code": {provenance.code_version(), *SAME_RUNS},
        "jax": {*provenance.versions("jax").values()},
        "instructions": {provenance.instructions()},
    }
    other = next((f"other {name}" for name, values in here.items() if made.get(name) not in values), "")
    return Repeated(name, cells[shortest[0]], rows[shortest[0]], other)


def check(names: Mapping[str, Study], out: Path, jobs: int, console: Console, committed: Path = COMMITTED) -> int:
    """Repeats a run of each study, and shows the committed results next to the new ones.

    Args:
      names: the studies, by name.
      out: the results folder.
      jobs: the number of concurrent processes.
      console: the console for progress and the table.
      committed: the folder of the committed results.

    Returns:
      The number of runs that failed, or differ although JAX and the processor's instructions are the same, and the
      library's code is the same or repeats their runs.
    """
    repeated = [one for name, of in names.items() if (one := chosen(name, of, committed))]
    with study.workers() as idle:
        study.run_all([one.cell for one in repeated], out, jobs, console, failures=[], idle=idle)
    table = Table("study", "run", *(f"{column}, {when}" for column in _SHOWN for when in ("committed", "now")), "")
    wrong = 0
    for one in repeated:
        result = finished(one.cell, out)
        if result is None:
            wrong += 1
            table.add_row(one.name, one.cell.label, *[""] * 2 * len(_SHOWN), f"failed: {failure(one.cell, out)}")
            continue
        now = {name: "" if value is None else str(value) for name, value in tidy.figures(result).items()}
        different = [name for name, value in now.items() if value != one.row.get(name)]
        wrong += bool(different) and not one.other
        numbers = [f"{float(of[column] or 'nan'):,.6g}" for column in _SHOWN for of in (one.row, now)]
        why = one.other or "it should be equal"
        table.add_row(one.name, one.cell.label, *numbers, f"differs ({why})" if different else "equal")
    console.print(table)
    return wrong


def _cells(of: Study, environments: Mapping[str, Any]) -> dict[tuple[str, ...], Cell]:
    """Returns the runs of the preset `small` on these environments, by the columns that identify a run."""
    parser = options.Parser()
    of.add_arguments(parser)
    words = [word for environment in environments for word in ("--env", environment)]
    arguments: argparse.Namespace = parser.parse_args(["--preset", "small", *words])
    cells = [cell for cell in of.cells(arguments) if cell.needs is None]
    return {(cell.environment, cell.contender.name, cell.setting, str(cell.seed)): cell for cell in cells}


def _key(row: Mapping[str, str]) -> tuple[str, ...]:
    return tuple(row[name] for name in _NAMES)
