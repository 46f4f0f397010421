"""A study: many runs in parallel processes. What was run once, under the same settings and code, is not run again."""

import argparse
import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, NamedTuple

from rich.console import Console

from experiments.study import runs, tidy
from experiments.study.cells import Cell, Finished, Worker, damage, discard, failure, finished, is_done, run
from experiments.tasks.presets import Contender
from experiments.toolkit import options, output, progress, shell
from stellaris.systems import Budget, Evaluation, Workload

#: Runs that are done at once, by default.
PROCESSORS = os.cpu_count() or 1
#: Seconds of real time between two looks at an interruption.
_PATIENCE = 0.5


class Size(NamedTuple):
    """How much of a figure is run."""

    environments: Sequence[str]
    steps: int  #: environment steps of every run.
    seeds: int
    variants: "Callable[[str], Sequence[Variant]] | None" = None  #: of an environment, if not the study's.


class Variant(NamedTuple):
    """What is run with every seed: a system that learns a workload."""

    contender: Contender
    workload: Workload
    setting: str = ""  #: what tells it from the study's other variants of that system, in words.
    evaluation: Evaluation | None = None
    replays: str = ""  #: the variant before it whose schedule it repeats, seed by seed.
    limits: Budget | None = None  #: when its runs stop, if not after the study's number of steps, or before.

    @property
    def name(self) -> str:
        """By which it is asked for: that of its setting, or of its system."""
        return self.setting or self.contender.name


@dataclass(frozen=True)
class Study:
    """Variants by seeds, on some environments, and what is made of their runs."""

    name: str
    sizes: Mapping[str, Size]  #: by preset, among them "small".
    variants: Callable[[str], Sequence[Variant]]  #: of an environment.
    report: Callable[[Sequence[Finished], Path, Console], None]  #: tables and pictures, of the runs that are there.
    pictures: Sequence[str] = ()  #: stems of their names, which an environment's name may follow.
    seed: int = 0  #: the first one.
    alone: bool = False  #: whether its runs are done one at a time, because they measure this machine.

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options that every study has."""
        presets = "; ".join(
            f"{name}: {', '.join(size.environments)}, {size.steps:,} steps, {size.seeds} seeds"
            for name, size in self.sizes.items()
        )
        add = parser.add_argument
        add("--preset", choices=self.sizes, default="small", help=f"how much is run ({presets})")
        add("--env", action="append", help="instead of the preset's; several times for several")
        add("--variant", metavar="NAME", action="append", help="of the systems or settings; several times for several")
        add("--steps", type=options.whole(1), help="environment steps of every run; else the preset's")
        add("--seeds", type=options.whole(1), help="how many seeds; else the preset's")
        add("--seed", type=options.whole(0), default=self.seed, help="first; of parameters, environments, delays")
        add("--jobs", type=options.whole(1), default=PROCESSORS, help="processes at once")
        add("--resume", action="store_true", help="go on, with what the folder holds of these runs")
        add("--only", metavar="KEY", default=argparse.SUPPRESS, help="one run, in this process, by its key")
        out = "folder of the results: of all studies, which share the runs that they have in common"
        add("--out", type=options.folder, default=Path("results"), help=out)

    def cells(self, arguments: argparse.Namespace) -> list[Cell]:
        """The runs that the command line asks for, each once."""
        size = self.sizes[arguments.preset]
        seeds = options.seeds("--seed", arguments.seed, arguments.seeds or size.seeds)
        steps = arguments.steps or size.steps
        cells: list[Cell] = []
        for environment in dict.fromkeys(arguments.env or size.environments):
            variants = (size.variants or self.variants)(environment)
            asked = _named(variants, arguments.variant)
            for workload in {repr(variant.workload): variant.workload for variant in variants}.values():
                runs.check(workload)
            made: dict[str, Sequence[Cell]] = {}  # by variant, a run a seed
            for variant in variants:
                made[variant.name] = [
                    Cell(
                        variant.contender,
                        variant.workload,
                        _limited(variant.limits, steps),
                        seed,
                        variant.setting,
                        variant.evaluation,
                        made[variant.replays][i] if variant.replays else None,
                    )
                    for i, seed in enumerate(seeds)
                ]
                if variant.name in asked:
                    cells += made[variant.name]
        return cells

    def main(self, arguments: argparse.Namespace) -> int:
        """Runs what is not there yet, and reports on what is; also when it is interrupted."""
        console = Console(highlight=False, soft_wrap=True)
        console.width = max(console.width, 150)
        out: Path = arguments.out
        cells = self.cells(arguments)
        with output.usable(out):
            if "only" in arguments:
                return _only(cells, arguments.only, out, console)
            with output.locked(out):
                done = [cell for cell in cells if is_done(cell, out)]
                if done and not arguments.resume:
                    held = f"--out {out} holds {len(done)} of the {len(cells)} runs"
                    raise shell.UsageError(f"{held}: use them with --resume, or name another folder")
                with output.kept(out, lambda: _kept(cells, out)):
                    return self._run(cells, arguments, console)

    def _run(self, cells: Sequence[Cell], arguments: argparse.Namespace, console: Console) -> int:
        """In a folder that no other writes into; the exit status."""
        out: Path = arguments.out
        failures: list[Cell] = []
        jobs = 1 if self.alone else arguments.jobs
        with workers() as idle:
            interrupted = shell.interruptible(lambda: run_all(cells, out, jobs, console, failures=failures, idle=idle))
        for cell in failures:
            again = _command(self.name, cell, arguments)
            shell.complain(f"{cell.label}: {failure(cell, out)}  (again: {again})")
        results = [result for cell in cells if (result := finished(cell, out))]
        if results:
            home = out / self.name
            tidy.clear(home, self.pictures)
            tidy.write(results, home)
            self.report(results, home, console)
            console.print(f"results: {home}/ ({len(results)} of {len(cells)} runs)", markup=False)
        if interrupted:
            return shell.INTERRUPTED
        return shell.FAILED if failures else 0


def _kept(cells: Sequence[Cell], out: Path) -> str:
    """How many of a study's runs are there, in words."""
    done = sum(is_done(cell, out) for cell in cells)
    return f"{done} of the {len(cells)} runs are kept, and --resume goes on with them"


def _limited(limits: Budget | None, steps: int) -> Budget:
    """After so many steps at the latest."""
    return Budget(steps=steps) if limits is None else replace(limits, steps=min(steps, limits.steps))


def _named(variants: Sequence[Variant], names: Sequence[str] | None) -> Sequence[str]:
    """The names of the variants that are asked for: of all, unless some are named."""
    known = [variant.name for variant in variants]
    if unknown := [name for name in names or () if name not in known]:
        raise shell.UsageError(f"--variant {unknown[0]} is none of: {', '.join(known)}")
    return names or known


def by_environment(results: Sequence[Finished]) -> Mapping[str, Mapping[str, Sequence[Finished]]]:
    """The runs by environment, and there by variant, in the order in which they were declared."""
    groups: dict[str, dict[str, list[Finished]]] = {}
    for result in results:
        groups.setdefault(result.cell.environment, {}).setdefault(result.cell.variant, []).append(result)
    return groups


def _only(cells: Sequence[Cell], key: str, out: Path, console: Console) -> int:
    """One run in this process, where a debugger can follow it; its folder is not the cache's."""
    replayed = [cell.replay for cell in cells if cell.replay is not None]
    chosen = [cell for cell in (*cells, *replayed) if cell.key == key]
    if not chosen:
        raise shell.UsageError(f"--only {key} is none of this study's runs: under other options they have other keys")
    replay = chosen[0].replay
    if replay is not None and finished(replay, out) is None:
        raise shell.UsageError(f"--only {key} repeats the schedule of {replay.label}, which --out {out} does not hold")
    with progress.Display(console) as display:
        run(chosen[0], out / f"only-{key}", display, out=out)
    return 0


def run_all(
    cells: Sequence[Cell],
    out: Path,
    jobs: int,
    console: Console,
    *,
    failures: list[Cell],
    idle: list[Worker],
) -> None:
    """Keeps so many processes busy until every cell is done; what several cells have in common is done once.

    A cell whose files are not as they were written is named, and done again.

    Args:
      cells: to be run, unless they are there.
      out: the folder.
      jobs: processes at once.
      console: to print on.
      failures: cells that fail are added to it.
      idle: processes that have nothing to do, which are used, and left there at the end.

    Raises:
      OSError: if the folder cannot be written into.
    """
    needed = [cell.replay for cell in cells if cell.replay is not None]
    asked = {cell.key: cell for cell in (*needed, *cells)}.values()
    for cell in asked:
        if why := damage(cell, out):
            console.print(f"{cell.label}: {why}: it is run again", markup=False)
            discard(cell, out)
    waiting = [cell for cell in asked if not is_done(cell, out)]
    clock = _Clock()
    running: dict[Any, _Running] = {}
    try:
        with progress.Display(console) as display:
            while waiting or running:
                ready = [cell for cell in waiting if cell.replay is None or is_done(cell.replay, out)]
                if not ready and not running:
                    failures += waiting  # what they repeat has failed
                    break
                for cell in ready[: jobs - len(running)]:
                    waiting.remove(cell)
                    begun = _Running(idle.pop() if idle else Worker(out), cell, cell.outcome())
                    running[begun.worker.wire] = begun
                    begun.worker.begin(cell)
                    begun.outcome.begin()
                    display.begin(begun.outcome)
                for wire in connection.wait(list(running), timeout=_PATIENCE):
                    worker, cell, outcome = running[wire]
                    if isinstance(said := _said(worker), OSError):
                        raise said
                    if isinstance(said, bool):
                        del running[wire]
                        outcome.status = "done" if said else "failed"
                        if said:
                            idle.append(worker)
                        else:
                            worker.end()
                            failures.append(cell)
                        display.end(outcome)
                        console.print(clock.ended(jobs, len(waiting) + len(running)))
                    else:
                        outcome.add(said)
                        display.row(outcome)
                shell.check()
    finally:
        for begun in running.values():
            begun.worker.end()


@contextlib.contextmanager
def workers() -> Iterator[list[Worker]]:
    """Processes that are idle, to be used by `run_all`, and ended here."""
    idle: list[Worker] = []
    try:
        yield idle
    finally:
        for worker in idle:
            worker.end()


class _Running(NamedTuple):
    """A cell that a worker does."""

    worker: Worker
    cell: Cell
    outcome: runs.Outcome


def _said(worker: Worker) -> Any:
    """A row of a worker's cell; or whether the cell went well, which it did not if the worker is no more.

    Or an OSError, if the cell's folder cannot be written.
    """
    try:
        return worker.wire.recv()
    except (EOFError, OSError):
        return False


class _Clock:
    """How long the rest will take, by what was done so far."""

    def __init__(self) -> None:
        self._done = 0
        self._began = time.perf_counter()

    def ended(self, jobs: int, left: int) -> str:
        """A run has ended: a line about the study."""
        self._done += 1
        each = (time.perf_counter() - self._began) / self._done
        return f"[dim]{left} runs to go, about {each * left / 60:.0f} min with {jobs} at once[/dim]" if left else ""


def _command(name: str, cell: Cell, arguments: argparse.Namespace) -> str:
    """What does a cell again, by itself."""
    words: list[str] = []
    for option, value in vars(arguments).items():
        if option not in ("only", "resume", "jobs"):
            words += [word for one in _several(value) for word in (f"--{option}", str(one))]
    return shlex.join(["python", "-m", "experiments", name, *words, "--only", cell.key])


def _several(value: Any) -> Sequence[Any]:
    """What an option was given: nothing, one value, or several."""
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)
