"""Compares a scheduler fine-tuned from another task with a scheduler trained from scratch."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console

from experiments.figures.minionsrl.training import spent
from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import minionsrl
from experiments.toolkit import output, plots, shell
from stellaris.scheduling import Learned

DESCRIPTION = "schedulers trained from scratch and fine-tuned: their episodes, and time and cost of runs under each"

SCRATCH, TUNED, BEFORE = "from scratch", "fine-tuned", "before fine-tuning"
#: For each environment, the environment on which the scheduler was trained before it was fine-tuned.
STARTS: Mapping[str, str] = {"Hopper-v4": "CartPole-v1", "HalfCheetah-v4": "Hopper-v4", "Humanoid-v4": "Hopper-v4"}
SIZES = {
    "smoke": Size(("Hopper-v4",), 8_192, 1),
    "small": Size(("Hopper-v4",), 1_000_000, 10),
    "paper": Size(("Humanoid-v4",), 20_000_000, 5),
}


def files(environment: str) -> dict[str, Path]:
    """Returns the files of an environment's schedulers, by the kind of their training."""
    home = minionsrl.SCHEDULERS
    found = {SCRATCH: home / f"{environment}.npz", TUNED: home / f"{environment}-tuned.npz"}
    if environment in STARTS:
        found[BEFORE] = home / f"{STARTS[environment]}.npz"
    return {name: path for name, path in found.items() if path.exists()}


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per scheduler, all with the same task."""
    minionsrl.check_goal(environment)
    if not files(environment):
        raise shell.UsageError(
            f"--env {environment}: found no scheduler for it in {minionsrl.SCHEDULERS}: "
            "train a scheduler with minionsrl-scheduler"
        )
    task = minionsrl.task(environment)
    return [
        Variant(
            minionsrl.minions(minionsrl.LEARNED, Learned.load(path), task.ppo), task.workload, name, limits=task.limits
        )
        for name, path in files(environment).items()
    ]


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        trained = episodes(environment)
        drawn = {name: [(of.number, of.seconds)] for name, of in trained.items()}
        if drawn:
            plots.lines(
                drawn,
                out / f"finetuning_{environment}",
                colour="#0072B2",
                title=f"{environment}: training of the scheduler",
                xlabel="episode",
                ylabel="virtual time of the run (s)",
            )
        for name, of in groups.items():
            own = trained.get(name)
            count = f"{len(own.number):,}" if own is not None else ""
            cost = f"{sum(own.cost):.4g}" if own is not None else ""
            rows.append((environment, name, count, cost, *spent(of)))
    headings = ("environment", "scheduler", "episodes", "their USD", "reached", "virtual s", "USD by Eq. 2")
    tidy.show("fine-tuning", (*headings, "USD, Azure", "actors"), rows, out, console)


class Episodes(NamedTuple):
    """The `n` episodes of a scheduler's training, as arrays `[n]`."""

    number: Any  #: the first episode is number 1.
    seconds: Any
    cost: Any  #: USD by the paper's Eq. 2.


def episodes(environment: str) -> dict[str, Episodes]:
    """Returns the recorded episodes of each kind of training on an environment."""
    trained = {name: _episodes(path) for name, path in files(environment).items() if name != BEFORE}
    return {name: of for name, of in trained.items() if of is not None}


def _episodes(path: Path) -> Episodes | None:
    """Reads the episodes from the CSV file next to a scheduler, or returns None if it is missing."""
    if not (table := path.with_suffix(".csv")).exists():
        return None
    rows = output.read_rows(table)
    columns = ("episode", "seconds", "cost")
    return Episodes(*(np.array([float(row[column]) for row in rows]) for column in columns))


STUDY = Study("minionsrl-finetuning", SIZES, _variants, _report, ("finetuning",))
add_arguments, main = STUDY.add_arguments, STUDY.main
