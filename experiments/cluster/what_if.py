"""Asks of a log of another stack: what if actors were paced, stale data dropped, or another correction used?

The log is of a system with asynchronous actors and one learner; see docs/traces.md.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.figures.lab.methods import methods
from experiments.toolkit import options, output, provenance, shell
from experiments.toolkit.statistics import estimate
from stellaris import PPO, ActorCritic, Workload
from stellaris._core.describe import describe
from stellaris.lab import CartPole, Logged, Schedule, dry_run, imposed, mean_return, sweep
from stellaris.runtime import FunctionSpec, SimulatedPlatform, Trace, Work, WorkLog
from stellaris.runtime.endings import ENDINGS
from stellaris.systems import AsynchronousActors, Budget, StalenessControl
from stellaris.systems.record import AGE, POLICY

DESCRIPTION = "what if a logged run had been paced, had dropped stale data, or had used another correction?"

#: Seconds at the start of a recorded run that the log leaves out: containers start and programs compile then.
_WARM = 10.0
#: Number of successive logged durations that are drawn together.
_BLOCK = 32
#: The fraction of the updates, at the end of a run, over which the return is averaged.
_TAIL = 0.2


@dataclass(frozen=True)
class Question:
    """The run that is logged, the changes that are simulated, and the size of the study."""

    workload: Workload = field(
        default_factory=lambda: Workload(CartPole(), ActorCritic(hidden=(32, 32)), actors=2, fragment=64)
    )
    epochs: int = 16
    minibatch_size: int = 64
    control: StalenessControl = StalenessControl(pace=8)  #: of the logged run.
    changes: Mapping[str, StalenessControl] = field(
        default_factory=lambda: {
            "paced: at most 2 batches ahead": StalenessControl(pace=2),
            "synchronous": StalenessControl(pace=0),
            "dropped: more than 4 versions old": StalenessControl(pace=8, discard=4),
        }
    )
    corrections: tuple[str, ...] = ("no correction", "PPO", "decoupled PPO")

    @property
    def gradients(self) -> int:
        """The number of gradients of a batch."""
        samples = self.workload.actors * self.workload.fragment
        return self.epochs * -(-samples // self.minibatch_size)

    def system(self, control: StalenessControl) -> AsynchronousActors:
        """Returns the logged system with a control."""
        return AsynchronousActors(PPO(epochs=self.epochs, minibatch_size=self.minibatch_size), control=control)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("log", type=Path, help="a CSV file with the columns of stellaris.runtime.Work")
    add("--record", type=options.seconds, help="first record the log: real seconds of a run on Ray on this machine")
    add("--seconds", type=options.seconds, default=60.0, help="virtual seconds of training under every schedule")
    add("--seeds", type=options.whole(1), default=16, help="number of seeds of every correction")
    add("--out", type=options.folder, default=Path("results/what-if"), help="folder of the table")


def main(arguments: argparse.Namespace) -> int:
    """Simulates the logged run and its changes, and learns under each schedule with each correction."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)
    question = Question()
    if arguments.record is not None:
        with output.kept(arguments.log.parent, lambda: "nothing else was written"):
            recorded(question, arguments.record).save(arguments.log)
    try:
        log = WorkLog.from_csv(arguments.log)
        rows = answers(question, log, arguments.seconds, arguments.seeds, console)
    except (OSError, LookupError, ValueError) as error:
        raise shell.UsageError(f"{arguments.log}: {error}") from error
    with output.usable(arguments.out):
        output.write_rows(arguments.out / "table.csv", rows)
        sizes = {"seconds": arguments.seconds, "seeds": arguments.seeds}
        provenance.write(arguments.out / "provenance.json", question=describe(question), **sizes)
    table = Table(*rows[0], title=f"{arguments.log.name}: {arguments.seconds:g} s, {arguments.seeds} seeds")
    for row in rows:
        table.add_row(*row.values())
    console.print(table)
    return 0


def answers(question: Question, log: WorkLog, seconds: float, seeds: int, console: Console) -> list[dict[str, str]]:
    """Returns a row per schedule: its rate and the ages of its data, and the return of every correction under it.

    Args:
      question: the logged run, and the changes.
      log: the log.
      seconds: virtual seconds of training.
      seeds: the number of seeds.
      console: the console for progress.
    """
    rate = log.versions_per_second()
    updates = max(1, round(rate * seconds))
    schedules = {"ages of the log": imposed(updates, actors=question.workload.actors, data=Logged(log.ages))}
    schedules |= simulated(question, log, seconds)
    rows = [{"what": "log", "versions/s": f"{rate:.1f}", **_ages(log.ages), **dict.fromkeys(question.corrections, "")}]
    for name, schedule in schedules.items():
        console.print(f"{name}: {schedule.updates} versions")
        speed = "" if name == "ages of the log" else f"{schedule.updates / seconds:.1f}"
        rows.append(
            {"what": name, "versions/s": speed, **_ages(schedule.data_lag), **_learned(question, schedule, seeds)}
        )
    return rows


def simulated(question: Question, log: WorkLog, seconds: float) -> dict[str, Schedule]:
    """Returns the schedules of the logged run and of its changes, on a platform with the delays of the log."""
    functions, budget = log.functions(block=_BLOCK), Budget(seconds=seconds)
    return {
        name: dry_run(question.system(control), question.workload, platform=SimulatedPlatform(functions), budget=budget)
        for name, control in {"as it was logged, simulated": question.control, **question.changes}.items()
    }


def _ages(ages: Any) -> dict[str, str]:
    return {"mean age": f"{np.mean(ages):.2f}", "largest": f"{np.max(ages):.1f}"}


def _learned(question: Question, schedule: Schedule, seeds: int) -> dict[str, str]:
    """Returns the mean return of the last versions, by correction, with its interval over seeds."""
    every = methods(epochs=question.epochs, minibatch_size=question.minibatch_size, fragment=question.workload.fragment)
    chosen = {name: every[name] for name in question.corrections}
    result = sweep(question.workload, chosen, schedule, seeds=seeds)
    returns = mean_return(result, last=max(1, round(_TAIL * schedule.updates)))
    return {name: str(estimate(returns.sel(algorithm=name).values.tolist())) for name in chosen}


# ---- the log ---------------------------------------------------------------------------------------------------------


def recorded(question: Question, seconds: float) -> WorkLog:
    """Runs the question's system on Ray on this machine, and returns its log without the warm-up.

    Args:
      question: the run.
      seconds: real seconds of the run.
    """
    from stellaris.runtime import RayPlatform
    from stellaris.runtime.delays import Measured
    from stellaris.systems import train

    functions = {
        "actor": FunctionSpec(Measured(), provisioned=question.workload.actors),
        "learner": FunctionSpec(Measured(), provisioned=1),
    }
    platform = RayPlatform(functions)
    workload = replace(question.workload, environment="CartPole-v1")
    train(question.system(question.control), workload, platform=platform, budget=Budget(seconds=seconds))
    sizes = {"actor": float(workload.steps_at_once), "learner": float(question.gradients)}
    return logged(platform.trace, sizes, since=min(_WARM, seconds / 2))


def logged(trace: Trace, sizes: Mapping[str, float], *, since: float) -> WorkLog:
    """Returns the log of a system with one learner from the trace of its run.

    The input of an invocation was there when the invocation ended that the system handled before submitting it.

    Args:
      trace: the trace.
      sizes: the work of an invocation, by function.
      since: the second from which the log begins; seconds count from here.
    """
    version, handled = 0, 0.0
    fragments: list[float] = []  # mean ages of the fragments of the next batch
    ages: list[float] = []  # mean ages of the batches
    begun: dict[int, dict[str, Any]] = {}
    rows = []
    for time, event, function, number, _, value in trace.rows():
        if event == "published" and function == POLICY:
            version = int(value)
        elif event == f"{AGE}mean":
            fragments.append(value)
        elif event == "batch":
            ages.append(float(np.mean(fragments)))
            fragments.clear()
        elif event == "submitted":
            begun[number] = {"started": handled, "version": version}
        elif event == "started":
            begun[number]["version"] = version
        elif event == "of_batch":
            begun[number]["staleness"] = ages[int(value) - 1]
        elif event in ENDINGS:
            handled = time
            work = begun.pop(number)
            if event == "completed" and work["started"] >= since:
                spent = time - work["started"]
                rows.append(Work(function, spent, sizes[function], **{**work, "started": work["started"] - since}))
    return WorkLog(tuple(rows))
