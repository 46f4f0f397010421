"""Trains MinionsRL's scheduler on runs of a workload, in parallel processes; runs are cached, as in studies."""

import argparse
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.figures.minionsrl.ways import FAILURE, WIDTH
from experiments.study import runs
from experiments.study.cells import Cell, Worker, failure, finished
from experiments.study.study import PROCESSORS, run_all, workers
from experiments.tasks import minionsrl
from experiments.toolkit import options, output, provenance, shell
from stellaris.scheduling import Learned
from stellaris.scheduling.objective import History
from stellaris.scheduling.training import Progress, train_scheduler

DESCRIPTION = "train a scheduler of the number of actors per round on one workload, or fine-tune a trained one"

#: The files written: the scheduler, and one row per episode.
SCHEDULER, EPISODES = "scheduler.npz", "episodes.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--env", default="CartPole-v1", help=f"environment of the workload: {', '.join(minionsrl.TARGETS)}")
    add("--testbed", metavar="NAME", help="testbed of minionsrl-training; default: the first that has a budget")
    add("--budget", type=options.positive("USD"), help="the most USD of a run; default: the testbed's")
    add("--episodes", type=options.whole(1), default=100, help="number of runs of the workload")
    add("--together", type=options.whole(1), default=2, help="runs between two updates of the scheduler")
    add("--hold", type=options.whole(1), default=1, help="rounds for which a decision of a new scheduler holds")
    add("--share", action="store_true", help="let neighbouring numbers of actors share logits in a new scheduler")
    add("--held-out", type=options.whole(0), default=0, help="runs that choose among five versions of the scheduler")
    add("--minimise", choices=("time", "cost"), default="time", help="what runs should minimise within the budget")
    add("--start", type=Path, help="a trained scheduler to fine-tune")
    add(
        "--seed",
        type=options.whole(0),
        default=1000,
        help="seed of the first parameters and the first run; each next run has the next",
    )
    add("--jobs", type=options.whole(1), default=PROCESSORS, help="concurrent processes")
    add("--resume", action="store_true", help="reuse the finished runs in the results folder")
    add("--out", type=options.folder, default=Path("results"), help="results folder, which studies may share")
    add("--save", type=Path, help="one more file to write the scheduler to")


def main(arguments: argparse.Namespace) -> int:
    """Trains the scheduler, and writes it and a table of its episodes."""
    options.seeds("--seed", arguments.seed, arguments.episodes + arguments.held_out)
    testbed, task = task_of(arguments.env, arguments.testbed, arguments.budget)
    runs.check(task.workload)
    console = Console(highlight=False, soft_wrap=True)
    out: Path = arguments.out
    start = minionsrl.trained(arguments.start) if arguments.start else untrained(arguments)
    home = out / name(f"{arguments.env}-{testbed}", minimise=arguments.minimise, fine_tuned=arguments.start is not None)
    kept = "the finished episodes are kept, and --resume continues with them"
    with output.usable(out), output.locked(out), output.kept(out, lambda: kept):
        if (home / SCHEDULER).exists() and not arguments.resume:
            raise shell.UsageError(f"--out {out} holds {home.name}: continue it with --resume, or name another folder")
        with workers() as idle:
            training = Training(task, out, arguments.jobs, console, idle)
            try:
                interrupted = shell.interruptible(lambda: training.run(start, arguments, home))
            except EpisodeFailed as error:
                shell.complain(error)
                return shell.FAILED
    return shell.INTERRUPTED if interrupted else 0


def task_of(environment: str, testbed: str | None, budget: float | None) -> tuple[str, minionsrl.Task]:
    """Returns a testbed of an environment, by default its first that has a budget, with this budget or its own."""
    known = minionsrl.testbeds_of(environment)
    budgets = {of: usd for (name, of), usd in minionsrl.BUDGETS.items() if name == environment}
    if testbed is not None and testbed not in known:
        raise shell.UsageError(f"--testbed {testbed}: unknown for {environment}; choose one of {', '.join(known)}")
    testbed = testbed or next(iter(budgets), next(iter(known)))
    if budget is None and testbed not in budgets:
        raise shell.UsageError(f"--testbed {testbed} has no budget for {environment}: pass one in USD as --budget")
    return testbed, replace(known[testbed], budget=budget or budgets[testbed])


def _shown(arguments: argparse.Namespace) -> dict[str, Any]:
    """Returns the options on which the scheduler depends."""
    left_out = ("jobs", "resume", "out", "save")
    return {
        name: str(value) if isinstance(value, Path) else value
        for name, value in vars(arguments).items()
        if name not in left_out and isinstance(value, str | int | float | Path | None)
    }


def untrained(arguments: argparse.Namespace) -> Learned:
    """Returns the scheduler to start from if none is given."""
    width = WIDTH if arguments.share else 0.0
    return Learned.untrained(most=minionsrl.ACTORS, seed=arguments.seed, hold=arguments.hold, width=width)


def name(environment: str, *, minimise: str, fine_tuned: bool) -> str:
    """Returns the name of a training's folder."""
    cost = "-cost" if minimise == "cost" else ""
    return f"minionsrl-scheduler{cost}{'-fine-tuned' if fine_tuned else ''}-{environment}"


class EpisodeFailed(Exception):
    """A run of the workload failed, so training cannot continue."""


class Training:
    """Trains a scheduler. An episode is a run of the workload; finished runs are read from the studies' cache.

    Args:
      task: the workload.
      out: the results folder that holds the cells.
      jobs: the number of concurrent processes.
      console: the console for progress.
      idle: the processes to reuse from one version of the scheduler to the next.
    """

    def __init__(self, task: minionsrl.Task, out: Path, jobs: int, console: Console, idle: list[Worker]) -> None:
        self.task = task
        self.out = out
        self.jobs = jobs
        self.console = console
        self.idle = idle
        self.rows: list[dict[str, float]] = []  #: one per episode so far.
        self.held_out = range(0)  #: seeds of runs that are not training episodes.

    def run(self, start: Learned, arguments: argparse.Namespace, home: Path) -> None:
        """Trains the scheduler, and writes it after each update."""
        objective = self.task.objective(arguments.minimise, failure=FAILURE)

        def on_progress(progress: Progress, scheduler: Learned) -> None:
            mean = sum(progress.rewards) / len(progress.rewards)
            self.console.print(
                f"[bold]{progress.episodes} of {arguments.episodes} episodes[/bold]  reward {mean:,.1f}  "
                f"{sum(progress.reached)} of {len(progress.reached)} reached {self.task.target:g}"
            )
            for row, reward, reached in zip(
                self.rows[-len(progress.rewards) :], progress.rewards, progress.reached, strict=True
            ):
                row |= {"reward": reward, "reached": reached, "entropy": progress.metrics["entropy"]}
            output.write_rows(home / EPISODES, self.rows)
            scheduler.save(home / SCHEDULER)
            if arguments.save:
                scheduler.save(arguments.save)

        last = arguments.seed + arguments.episodes
        self.held_out = range(last, last + arguments.held_out)
        updates = -(-arguments.episodes // arguments.together)
        learned = train_scheduler(
            start,
            self.play,
            objective,
            episodes=arguments.episodes,
            together=arguments.together,
            seed=arguments.seed,
            held_out=self.held_out,
            every=max(1, updates // 4),
            on_progress=on_progress,
        )
        for path in {home / SCHEDULER, arguments.save or home / SCHEDULER}:
            learned.save(path)
            provenance.write(path.with_suffix(".json"), options=_shown(arguments))
        self.console.print(f"scheduler: {arguments.save or home / SCHEDULER}", markup=False)

    def play(self, scheduler: Learned, seeds: Sequence[int]) -> list[History]:
        """Runs the workload under a scheduler, once per seed, and returns the histories.

        Raises:
          EpisodeFailed: if a run failed; the message names the reason and the log.
        """
        task = self.task
        contender = minionsrl.minions(minionsrl.LEARNED, scheduler, task)
        cells = [Cell(contender, task.workload, task.limits, seed, evaluation=task.evaluation) for seed in seeds]
        failures: list[Cell] = []
        run_all(cells, self.out, self.jobs, self.console, failures=failures, idle=self.idle)
        if failures:
            why = failure(failures[0], self.out)
            raise EpisodeFailed(f"{failures[0].label}: {why}  (its log: {self.out / 'cells' / failures[0].key})")
        histories: list[History] = []
        for cell in cells:
            result = finished(cell, self.out)
            assert result is not None
            histories.append(result.history)
            if cell.seed in self.held_out:
                continue
            last = result.history[-1]
            actors = [row["actors"] for row in result.history if "actors" in row]
            self.rows.append(
                {
                    "episode": len(self.rows) + 1,
                    "seed": cell.seed,
                    "rounds": last["round"],
                    "seconds": last["seconds"],
                    "cost": last["cost_pay_per_use"],
                    "episode_return": last["episode_return"],
                    "actors": sum(actors) / len(actors),
                }
            )
        return histories
