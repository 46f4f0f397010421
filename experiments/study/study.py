"""Studies: many runs in parallel processes, cached by settings and code."""

import argparse
import contextlib
import os
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from multiprocessing import connection
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from rich.console import Console

from experiments.study import logs, runs, tidy
from experiments.study.cells import (
    Cell,
    Finished,
    Worker,
    damage,
    discard,
    failure,
    finished,
    is_done,
    run,
)
from experiments.tasks.presets import Contender
from experiments.toolkit import options, output, progress, shell
from experiments.toolkit.computing import use_one_thread
from stellaris.systems import Budget, Evaluation, Workload

#: Default number of concurrent runs.
PROCESSORS = os.cpu_count() or 1
#: The most seconds of real time between two checks for an interruption.
_PATIENCE = 0.5


class Size(NamedTuple):
    """The extent of a study's runs."""

    environments: Sequence[str]
    steps: int  #: environment steps of every run.
    seeds: int
    variants: "Callable[[str], Sequence[Variant]] | None" = None  #: replaces the study's variants.


class Variant(NamedTuple):
    """A system on a workload, run with every seed."""

    contender: Contender
    workload: Workload
    setting: str = ""  #: words that distinguish the variant from the study's other variants of the system.
    evaluation: Evaluation | None = None
    replays: str = ""  #: an earlier variant whose schedule this variant repeats, seed by seed.
    retimes: str = ""  #: an earlier variant whose returns this variant has, at its own times and costs, seed by seed.
    limits: Budget | None = None  #: limits of the variant's runs, in addition to the study's number of steps.
    keep_policy: bool = False  #: whether the last policy of every run is saved.
    factors: Mapping[str, str] = MappingProxyType({})  #: the values of swept settings, which become columns.

    @property
    def name(self) -> str:
        """The variant's name for `--variant`: the setting, or the system's name."""
        return self.setting or self.contender.name


@dataclass(frozen=True)
class Study:
    """Variants that are run on environments and seeds, and a report on the runs."""

    name: str
    sizes: Mapping[str, Size]  #: by preset; "small" must be one of the presets.
    variants: Callable[[str], Sequence[Variant]]  #: returns the variants for an environment.
    report: Callable[[Sequence[Finished], Path, Console], None]  #: makes tables and pictures of the finished runs.
    pictures: Sequence[str] = ()  #: stems of the pictures' names, which the name of an environment may follow.
    seed: int = 0  #: the first seed.
    alone: bool = False  #: whether to run one process at a time, because the runs measure this machine.
    file: str = ""  #: the file of a user's own study, by which the command line names it.

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Adds the options that every study has."""
        presets = "; ".join(
            f"{name}: {', '.join(size.environments)}, {size.steps:,} steps, {size.seeds} seeds"
            for name, size in self.sizes.items()
        )
        add = parser.add_argument
        add("--preset", choices=self.sizes, default="small", help=f"size of the study ({presets})")
        add("--env", action="append", help="environment in place of the preset's, may be repeated")
        add("--variant", metavar="NAME", action="append", help="system or setting to run, may be repeated; default all")
        add("--steps", type=options.whole(1), help="environment steps of every run (default: the preset's)")
        add("--seeds", type=options.whole(1), help="number of seeds (default: the preset's)")
        add("--seed", type=options.whole(0), default=self.seed, help="first seed of everything that is random")
        add("--jobs", type=options.whole(1), default=PROCESSORS, help="concurrent processes")
        add("--resume", action="store_true", help="reuse the finished runs in the results folder")
        logs.add_argument(parser)
        add("--only", metavar="KEY", default=argparse.SUPPRESS, help="do only the run with this key, in this process")
        out = "results folder, which all studies share"
        add("--out", type=options.folder, default=Path("results"), help=out)

    def cells(self, arguments: argparse.Namespace) -> list[Cell]:
        """Returns the runs that the command line selects, as cells."""
        size = self.sizes[arguments.preset]
        seeds = options.seeds("--seed", arguments.seed, arguments.seeds or size.seeds)
        steps = arguments.steps or size.steps
        cells: list[Cell] = []
        for environment in dict.fromkeys(arguments.env or size.environments):
            variants = (size.variants or self.variants)(environment)
            asked = _named(variants, arguments.variant)
            for workload in {repr(variant.workload): variant.workload for variant in variants}.values():
                runs.check(workload)
            made: dict[str, Sequence[Cell]] = {}  # by variant, one cell per seed
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
                        made[variant.retimes][i] if variant.retimes else None,
                        variant.keep_policy,
                        dict(variant.factors),
                    )
                    for i, seed in enumerate(seeds)
                ]
                if variant.name in asked:
                    cells += made[variant.name]
        return cells

    def main(self, arguments: argparse.Namespace) -> int:
        """Runs the cells that are missing, and reports on the finished cells, also when interrupted."""
        console = Console(highlight=False, soft_wrap=True)
        console.width = max(console.width, 150)
        out: Path = arguments.out
        cells = self.cells(arguments)
        log = logs.Logs(arguments.log, out / self.name)
        with output.usable(out), log:
            if "only" in arguments:
                return _only(cells, arguments.only, out, console, log)
            with output.locked(out):
                done = [cell for cell in cells if is_done(cell, out)]
                if done and not arguments.resume:
                    held = f"--out {out} holds {len(done)} of the {len(cells)} runs"
                    raise shell.UsageError(f"{held}: use them with --resume, or name another folder")
                with output.kept(out, lambda: _kept(cells, out)):
                    return self._run(cells, arguments, console, log)

    def _run(self, cells: Sequence[Cell], arguments: argparse.Namespace, console: Console, log: runs.Watcher) -> int:
        """Runs the cells in a folder that is locked, and returns the exit status."""
        out: Path = arguments.out
        failures: list[Cell] = []
        jobs = 1 if self.alone else arguments.jobs
        with workers() as idle:
            interrupted = shell.interruptible(
                lambda: run_all(cells, out, jobs, console, failures=failures, idle=idle, log=log)
            )
        for cell in failures:
            again = _command(["study", self.file] if self.file else [self.name], cell, arguments)
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
    """Says how many of a study's runs are finished."""
    done = sum(is_done(cell, out) for cell in cells)
    return f"{done} of the {len(cells)} runs are kept, and --resume continues with them"


def _limited(limits: Budget | None, steps: int) -> Budget:
    """Returns the limits with at most `steps` steps."""
    return Budget(steps=steps) if limits is None else replace(limits, steps=min(steps, limits.steps))


def _named(variants: Sequence[Variant], names: Sequence[str] | None) -> Sequence[str]:
    """Returns the selected names, or the names of all variants if `names` is empty.

    Raises:
      UsageError: if a name is unknown.
    """
    known = [variant.name for variant in variants]
    if unknown := [name for name in names or () if name not in known]:
        raise shell.UsageError(f"--variant {unknown[0]}: unknown; choose one of {', '.join(map(repr, known))}")
    return names or known


def by_environment(results: Sequence[Finished]) -> Mapping[str, Mapping[str, Sequence[Finished]]]:
    """Groups the runs by environment and variant, in the order of declaration."""
    groups: dict[str, dict[str, list[Finished]]] = {}
    for result in results:
        groups.setdefault(result.cell.environment, {}).setdefault(result.cell.variant, []).append(result)
    return groups


def by_factors(
    groups: Mapping[str, Sequence[Finished]], outer: str, inner: str
) -> Mapping[str, Mapping[str, Sequence[Finished]]]:
    """Groups an environment's variants by the values of two factors, in the order of declaration."""
    found: dict[str, dict[str, Sequence[Finished]]] = {}
    for of in groups.values():
        factors = of[0].cell.factors
        found.setdefault(factors[outer], {})[factors[inner]] = of
    return found


def _only(cells: Sequence[Cell], key: str, out: Path, console: Console, log: runs.Watcher) -> int:
    """Runs one cell in this process, where a debugger can follow it, and leaves the cache unchanged."""
    use_one_thread()  # as the workers do, for the same numbers
    needed = [cell.needs for cell in cells if cell.needs is not None]
    chosen = [cell for cell in (*cells, *needed) if cell.key == key]
    if not chosen:
        raise shell.UsageError(
            f"--only {key}: unknown run of this study; a run's key depends on the other options, so repeat them"
        )
    earlier = chosen[0].needs
    if earlier is not None and finished(earlier, out) is None:
        raise shell.UsageError(
            f"--only {key} needs the run {earlier.label}, which --out {out} does not hold: "
            "run the study without --only first"
        )
    with progress.Display(console) as display:
        run(chosen[0], out / f"only-{key}", runs.Together((display, log)), out=out)
    return 0


def run_all(
    cells: Sequence[Cell],
    out: Path,
    jobs: int,
    console: Console,
    *,
    failures: list[Cell],
    idle: list[Worker],
    log: runs.Watcher | None = None,
) -> None:
    """Runs the cells that are not done, and the cells that they replay or retime, in up to `jobs` processes.

    If the files of a finished cell were changed, the function prints its label, and runs it again.

    Args:
      cells: the cells to run.
      out: the results folder.
      jobs: the number of concurrent processes.
      console: the console for progress.
      failures: the list that receives the cells that fail.
      idle: the idle workers to use; at the end the list holds all idle workers.
      log: the watcher that receives the progress, next to the console.

    Raises:
      OSError: if the results folder cannot be written.
    """
    needed = [cell.needs for cell in cells if cell.needs is not None]
    asked = {cell.key: cell for cell in (*needed, *cells)}.values()
    for cell in asked:
        if why := damage(cell, out):
            console.print(f"{cell.label}: {why}: running it again", markup=False)
            discard(cell, out)
    waiting = [cell for cell in asked if not is_done(cell, out)]
    clock = _Clock()
    running: dict[Any, _Running] = {}
    try:
        with progress.Display(console) as display:
            watcher = runs.Together((display, log) if log else (display,))
            while waiting or running:
                ready = [cell for cell in waiting if cell.needs is None or is_done(cell.needs, out)]
                if not ready and not running:
                    failures += waiting  # the cells that they need have failed
                    break
                for cell in ready[: jobs - len(running)]:
                    waiting.remove(cell)
                    begun = _Running(idle.pop() if idle else Worker(out), cell, cell.outcome())
                    running[begun.worker.wire] = begun
                    begun.worker.begin(cell)
                    begun.outcome.begin()
                    watcher.begin(begun.outcome)
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
                        watcher.end(outcome)
                        console.print(clock.ended(jobs, len(waiting) + len(running)))
                    else:
                        outcome.add(said)
                        watcher.row(outcome)
                shell.check()
    finally:
        for begun in running.values():
            begun.worker.end()


@contextlib.contextmanager
def workers() -> Iterator[list[Worker]]:
    """Yields a list of idle workers for `run_all`, and ends these workers afterwards."""
    idle: list[Worker] = []
    try:
        yield idle
    finally:
        for worker in idle:
            worker.end()


class _Running(NamedTuple):
    """A cell and the worker that runs it."""

    worker: Worker
    cell: Cell
    outcome: runs.Outcome


def _said(worker: Worker) -> Any:
    """Returns a worker's next message: a row of its cell's history, or at the end whether the cell succeeded.

    Returns False if the worker was killed, and an OSError if the cell's folder cannot be written.
    """
    try:
        return worker.wire.recv()
    except (EOFError, OSError):
        return False


class _Clock:
    """Estimates the remaining time from the finished runs."""

    def __init__(self) -> None:
        self._done = 0
        self._began = time.perf_counter()

    def ended(self, jobs: int, left: int) -> str:
        """Counts a finished run, and returns a line about the remaining runs."""
        self._done += 1
        each = (time.perf_counter() - self._began) / self._done
        return f"[dim]{left} runs to go, about {each * left / 60:.0f} min with {jobs} at once[/dim]" if left else ""


def _command(study: Sequence[str], cell: Cell, arguments: argparse.Namespace) -> str:
    """Returns the command that runs one cell again; `study` has the words that name the study."""
    words: list[str] = []
    for option, value in vars(arguments).items():
        if option not in ("only", "resume", "jobs"):
            words += [word for one in _several(value) for word in (f"--{option}", str(one))]
    return shlex.join(["python", "-m", "experiments", *study, *words, "--only", cell.key])


def _several(value: Any) -> Sequence[Any]:
    """Returns the values of an option as a sequence."""
    if value is None:
        return ()
    return value if isinstance(value, list) else (value,)
