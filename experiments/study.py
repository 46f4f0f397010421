"""A study: many runs in parallel processes. What was run once, under the same settings and code, is not run again."""

import argparse
import os
import shlex
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from experiments import options, output, progress, runs, shell
from experiments.cells import Cell, Finished, Running, failure, finished, is_done, run

#: Runs that are done at once, by default.
PROCESSORS = os.cpu_count() or 1
#: Seconds of real time between two looks at an interruption.
_PATIENCE = 0.5
#: Rows of a run's curve in the tidy files.
_POINTS = 100


@dataclass(frozen=True)
class Study:
    """Runs, and what is made of them."""

    name: str
    cells: Sequence[Cell]
    report: Callable[[Sequence[Finished], Path, Console], None]  #: tables and pictures, of the cells that are there.


class Size(NamedTuple):
    """How much of a figure is run."""

    environments: Sequence[str]
    steps: int  #: environment steps of every run.
    seeds: int


def add_arguments(parser: argparse.ArgumentParser, sizes: Mapping[str, Size]) -> None:
    """The options that every study has.

    Args:
      parser: of the study.
      sizes: by preset, among them "small".
    """
    presets = "; ".join(
        f"{name}: {', '.join(size.environments)}, {size.steps:,} steps, {size.seeds} seeds"
        for name, size in sizes.items()
    )
    parser.add_argument("--preset", choices=sizes, default="small", help=f"how much is run ({presets})")
    parser.add_argument("--env", action="append", help="instead of the preset's; several times for several")
    parser.add_argument("--steps", type=options.whole(1), help="environment steps of every run; else the preset's")
    parser.add_argument("--seeds", type=options.whole(1), help="how many seeds; else the preset's")
    parser.add_argument("--seed", type=options.whole(0), default=0, help="first; of parameters, environments, delays")
    parser.add_argument("--jobs", type=options.whole(1), default=PROCESSORS, help="processes at once")
    parser.add_argument("--resume", action="store_true", help="go on, with what the folder holds of these runs")
    parser.add_argument("--only", metavar="KEY", default=argparse.SUPPRESS, help="one run, in this process, by its key")
    parser.add_argument(
        "--out",
        type=options.folder,
        default=Path("results"),
        help="folder of the results: of all studies, which share the runs that they have in common",
    )


def chosen(arguments: argparse.Namespace, sizes: Mapping[str, Size]) -> tuple[Size, range]:
    """What is to be run, and with which seeds: what the command line says goes before the preset."""
    size = sizes[arguments.preset]
    size = Size(arguments.env or size.environments, arguments.steps or size.steps, arguments.seeds or size.seeds)
    return size, options.seeds("--seed", arguments.seed, size.seeds)


def main(study: Study, arguments: argparse.Namespace) -> int:
    """Runs a study's cells, and reports on those that are done; also when it is interrupted."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 150)
    out: Path = arguments.out
    with output.usable(out):
        if "only" in arguments:
            return _only(study, arguments.only, out, console)
        done = [cell for cell in study.cells if is_done(cell, out)]
        if done and not arguments.resume:
            held = f"--out {out} holds {len(done)} of the {len(study.cells)} runs"
            raise shell.UsageError(f"{held}: use them with --resume, or name another folder")
        failures: list[Cell] = []
        interrupted = shell.interruptible(lambda: _run(study, arguments, console, failures))
        results = [result for cell in study.cells if (result := finished(cell, out))]
        for cell in failures:
            shell.complain(f"{cell.label}: {failure(cell, out)}  (again: {_command(study, cell, arguments)})")
        if results:
            home = out / study.name
            write(results, home)
            study.report(results, home, console)
            console.print(f"results: {home}/ ({len(results)} of {len(study.cells)} runs)", markup=False)
    if interrupted:
        return shell.INTERRUPTED
    return shell.FAILED if failures else 0


def _only(study: Study, key: str, out: Path, console: Console) -> int:
    """One run in this process, where a debugger can follow it; its folder is not the cache's."""
    chosen = [cell for cell in study.cells if cell.key == key]
    if not chosen:
        raise shell.UsageError(f"--only {key} is none of this study's runs: under other options they have other keys")
    with progress.Display(console) as display:
        run(chosen[0], out / f"only-{key}", display)
    return 0


def _run(study: Study, arguments: argparse.Namespace, console: Console, failures: list[Cell]) -> None:
    """Keeps so many processes busy until every cell is done."""
    out: Path = arguments.out
    waiting = [cell for cell in study.cells if not is_done(cell, out)]
    clock = _Clock(left=len(waiting))
    running: dict[Any, tuple[Cell, Running, runs.Outcome]] = {}
    try:
        with progress.Display(console) as display:
            while waiting or running:
                while waiting and len(running) < arguments.jobs:
                    cell = waiting.pop(0)
                    process, outcome = Running(cell, out), cell.outcome()
                    running[process.rows] = (cell, process, outcome)
                    outcome.begin()
                    display.begin(outcome)
                for rows in connection.wait(list(running), timeout=_PATIENCE):
                    cell, process, outcome = running[rows]
                    try:
                        outcome.add(process.rows.recv())
                        display.row(outcome)
                    except EOFError:
                        del running[rows]
                        outcome.status = "done" if process.wait() else "failed"
                        if outcome.status == "failed":
                            failures.append(cell)
                        display.end(outcome)
                        console.print(clock.ended(arguments.jobs, len(waiting) + len(running)))
                shell.check()
    finally:
        for _, process, _ in running.values():
            process.kill()


@dataclass
class _Clock:
    """How long the rest will take, by what was done so far."""

    left: int
    done: int = 0
    began: float = 0.0

    def __post_init__(self) -> None:
        self.began = time.perf_counter()

    def ended(self, jobs: int, left: int) -> str:
        """A run has ended: a line about the study."""
        self.done += 1
        each = (time.perf_counter() - self.began) / self.done
        return f"[dim]{left} runs to go, about {each * left / 60:.0f} min with {jobs} at once[/dim]" if left else ""


def _command(study: Study, cell: Cell, arguments: argparse.Namespace) -> str:
    """What does a cell again, by itself."""
    words: list[str] = []
    for name, value in vars(arguments).items():
        if name not in ("only", "resume", "jobs"):
            words += [word for one in _several(value) for word in (f"--{name}", str(one))]
    return shlex.join(["python", "-m", "experiments", study.name, *words, "--only", cell.key])


def _several(value: Any) -> Sequence[Any]:
    """What an option was given: nothing, one value, or several."""
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)


# ---- tidy files --------------------------------------------------------------------------------------------------


def write(results: Sequence[Finished], out: Path) -> None:
    """`runs.csv`, a row a run, and `curves.csv`, a row a point of a run's curve; what was run with is in its cell."""
    output.write_rows(out / "runs.csv", [{**_names(result), **_figures(result)} for result in results])
    output.write_rows(out / "curves.csv", [{**_names(result), **row} for result in results for row in _thinned(result)])


def _names(result: Finished) -> dict[str, Any]:
    cell = result.cell
    return {"environment": cell.environment, "system": cell.contender.name, "setting": cell.setting, "seed": cell.seed}


def _figures(result: Finished) -> dict[str, Any]:
    """Those that are the same whenever it is run; how long it took is in its cell."""
    other = ("system", "seed", "status", "wall_seconds")
    return {name: value for name, value in result.summary.items() if name not in other}


def _thinned(result: Finished) -> Sequence[dict[str, float]]:
    """Evenly over the run, its last row included."""
    columns = ("seconds", "steps", "episode_return", "cost_demo", "cost_pay_per_use")
    stride = -(-len(result.history) // _POINTS)
    rows = result.history[::-1][::stride][::-1]
    return [{column: row[column] for column in columns} for row in rows]


def table(title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> Table:
    """A table whose first two columns are names, and the others numbers."""
    printed = Table(title=title)
    for i, heading in enumerate(headings):
        printed.add_column(heading, justify="left" if i < 2 else "right", no_wrap=True)
    for row in rows:
        printed.add_row(*row)
    return printed
