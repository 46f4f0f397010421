"""Trains MinionsRL's scheduler: its episodes are runs of a workload, in parallel processes, kept as studies' are."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments.study import runs
from experiments.study.cells import Cell, Worker, failure, finished
from experiments.study.study import PROCESSORS, run_all, workers
from experiments.tasks import minionsrl
from experiments.toolkit import options, output, shell
from stellaris.scheduling import Learned, SchedulerError
from stellaris.scheduling.training import History, Progress, train_scheduler

DESCRIPTION = "learn how many actors sample in each round, on one workload; or go on with a scheduler that was learned"

#: The file that is written: the scheduler; and one row an episode.
SCHEDULER, EPISODES = "scheduler.npz", "episodes.csv"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's options."""
    add = parser.add_argument
    add("--env", default="CartPole-v1", help=f"what is learned meanwhile: {', '.join(minionsrl.GOALS)}")
    add("--episodes", type=options.whole(1), default=100, help="runs of the workload in all")
    add("--together", type=options.whole(1), default=4, help="runs under one version of the scheduler")
    add("--minimise", choices=("time", "cost"), default="time", help="what is minimised, within the budget")
    add("--start", type=Path, help="a scheduler to go on with: fine-tuning")
    add("--seed", type=options.whole(0), default=1000, help="of the first run; the next ones count on")
    add("--jobs", type=options.whole(1), default=PROCESSORS, help="processes at once")
    add("--resume", action="store_true", help="go on, with what the folder holds of these runs")
    add("--out", type=options.folder, default=Path("results"), help="folder of the results, also of all studies")
    add("--save", type=Path, help="another file for the scheduler than the one in that folder")


def main(arguments: argparse.Namespace) -> int:
    """Learns, and writes the scheduler and what its episodes came to."""
    minionsrl.check_goal(arguments.env)
    options.seeds("--seed", arguments.seed, arguments.episodes)
    task = minionsrl.task(arguments.env)
    runs.check(task.workload)
    console = Console(highlight=False, soft_wrap=True)
    out: Path = arguments.out
    try:
        start = Learned.load(arguments.start) if arguments.start else Learned.untrained(most=minionsrl.ACTORS, seed=0)
    except (OSError, SchedulerError) as error:
        raise shell.UsageError(f"--start {arguments.start}: {error}") from error
    if start.most != task.workload.actors:
        raise shell.UsageError(
            f"--start {arguments.start} decides for up to {start.most} actors, not {minionsrl.ACTORS}"
        )
    home = out / name(arguments.env, minimise=arguments.minimise, fine_tuned=arguments.start is not None)
    kept = "the episodes that were played are kept, and --resume goes on with them"
    with output.usable(out), output.locked(out), output.kept(out, lambda: kept):
        if (home / SCHEDULER).exists() and not arguments.resume:
            raise shell.UsageError(f"--out {out} holds {home.name}: go on with --resume, or name another folder")
        with workers() as idle:
            training = Training(task, out, arguments.jobs, console, idle)
            try:
                interrupted = shell.interruptible(lambda: training.run(start, arguments, home))
            except EpisodeFailed as error:
                shell.complain(error)
                return shell.FAILED
    return shell.INTERRUPTED if interrupted else 0


def name(environment: str, *, minimise: str, fine_tuned: bool) -> str:
    """Of the folder of a training."""
    cost = "-cost" if minimise == "cost" else ""
    return f"minionsrl-scheduler{cost}{'-tuned' if fine_tuned else ''}-{environment}"


class EpisodeFailed(Exception):
    """A run of the workload has failed, so that nothing can be learned from it."""


class Training:
    """Plays episodes as cells, so that those that were played once are not played again.

    Args:
      task: the workload.
      out: the folder of all cells.
      jobs: processes at once.
      console: to print on.
      idle: processes that go on from one version of the scheduler to the next.
    """

    def __init__(self, task: minionsrl.Task, out: Path, jobs: int, console: Console, idle: list[Worker]) -> None:
        self.task = task
        self.out = out
        self.jobs = jobs
        self.console = console
        self.idle = idle
        self.rows: list[dict[str, float]] = []  #: of the episodes so far.

    def run(self, start: Learned, arguments: argparse.Namespace, home: Path) -> None:
        """Trains, and writes the scheduler after each time that it has learned."""
        objective = self.task.objective(arguments.minimise)

        def on_progress(progress: Progress, scheduler: Learned) -> None:
            mean = sum(progress.rewards) / len(progress.rewards)
            self.console.print(
                f"[bold]{progress.episodes} of {arguments.episodes} episodes[/bold]  reward {mean:,.1f}  "
                f"{sum(progress.reached)} of {len(progress.reached)} reached {self.task.target:g}"
            )
            for row, reward, reached in zip(
                self.rows[-len(progress.rewards) :], progress.rewards, progress.reached, strict=True
            ):
                row |= {"reward": reward, "reached": reached}
            output.write_rows(home / EPISODES, self.rows)
            scheduler.save(home / SCHEDULER)
            if arguments.save:
                scheduler.save(arguments.save)

        train_scheduler(
            start,
            self.play,
            objective,
            episodes=arguments.episodes,
            together=arguments.together,
            seed=arguments.seed,
            on_progress=on_progress,
        )
        self.console.print(f"scheduler: {arguments.save or home / SCHEDULER}", markup=False)

    def play(self, scheduler: Learned, seeds: Sequence[int]) -> list[History]:
        """The histories of runs under a scheduler.

        Raises:
          EpisodeFailed: if one has; says why, and where its log is.
        """
        contender = minionsrl.minions(minionsrl.LEARNED, scheduler, self.task.ppo)
        cells = [Cell(contender, self.task.workload, self.task.limits, seed) for seed in seeds]
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
