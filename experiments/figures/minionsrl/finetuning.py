"""Compares a scheduler that is trained from scratch with one that was trained on another task and is fine-tuned.

The paper's Figure 9. The runs are `minionsrl-learning`'s, with and without `--start`; this command reads their tables.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from rich.console import Console

from experiments.figures.minionsrl import ceiling
from experiments.study import tidy
from experiments.tasks import minionsrl
from experiments.toolkit import options, output, plots, shell
from experiments.toolkit.statistics import Estimate

DESCRIPTION = "a scheduler trained from scratch against one that is fine-tuned, by the runs that training takes"

_COMMITTED = Path(__file__).parents[2] / "results" / "minionsrl-learning" / "acrobot"
#: Labels, colours and markers: from scratch, before and after fine-tuning.
SCRATCH, BEFORE, TUNED = "from scratch", "before fine-tuning", "fine-tuned"
_STYLES = {SCRATCH: ("#D55E00", "o"), BEFORE: ("0.5", "s"), TUNED: ("#0072B2", "s")}

#: What is compared, relative to Max.
SPENT = ("time", "cost")
#: About the width and the height of a name in the picture, relative to Max.
_NAME = 0.05

Row = Mapping[str, str]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--testbed", choices=ceiling.TESTBEDS, default="acrobot", help="the testbed of both")
    help_ = "results of `minionsrl-learning`, {} `--start` (default: those of this repository)"
    add("--scratch", type=Path, default=_COMMITTED / "scratch", help=help_.format("without"))
    add("--tuned", type=Path, default=_COMMITTED / "tuned", help=help_.format("with"))
    add("--out", type=options.folder, default=Path("results/minionsrl-finetuning"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Draws rewards by the number of runs, and times and costs; shows the latter as a table."""
    out, testbed = arguments.out, arguments.testbed
    folders = {SCRATCH: ("--scratch", arguments.scratch), TUNED: ("--tuned", arguments.tuned)}
    training, schedulers = (
        {name: _rows(*folder, table, testbed) for name, folder in folders.items()}
        for table in ("training", "schedulers")
    )
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    found = compared(training, schedulers)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 150)
    environment, learner = ceiling.TESTBEDS[testbed]
    title = f"{environment}, {minionsrl.label(learner)}"
    headings = ("scheduler", "runs of training", "actors", "within the budget", *(f"{what} / Max's" for what in SPENT))
    tidy.show(title, headings, [texts(row) for row in found], out, console)
    with plots.figure(out / f"finetuning_{testbed}", title, columns=2, suffixes=(".png", ".pdf")) as (rewards, spent):
        _draw_rewards(rewards, training)
        _draw_spent(spent, found)
        plots.legend(spent)
    return 0


def _rows(option: str, folder: Path, table: str, testbed: str) -> Sequence[Row]:
    """Reads a table of `minionsrl-learning`.

    Raises:
      UsageError: if the folder lacks it.
    """
    path = folder / f"{table}_{testbed}.csv"
    try:
        return output.read_rows(path)
    except OSError as error:
        raise shell.UsageError(f"{option} {folder}: {error}: name a folder of `minionsrl-learning`") from error


def compared(training: Mapping[str, Sequence[Row]], schedulers: Mapping[str, Sequence[Row]]) -> list[Row]:
    """Returns the rows of the compared schedulers, each with its name and the number of its training runs.

    These are the fixed numbers of the first folder, the scheduler before fine-tuning, and the one of each training
    that did best on the held-out runs.
    """
    runs = {name: of[-1]["episodes"] for name, of in training.items()}
    found: list[Row] = [{**row, "name": row["way"], "training": ""} for row in schedulers[SCRATCH] if not row["seed"]]
    found += [{**row, "name": BEFORE, "training": "0"} for row in schedulers[TUNED] if row["way"] == BEFORE]
    for name, of in schedulers.items():
        ways = {row["way"] for row in training[name]}
        found += [{**row, "name": name, "training": runs[name]} for row in of if row["way"] in ways]
    return found


def texts(row: Row) -> Sequence[str]:
    """Returns the cells of a scheduler's row of the table."""
    within = f"{row['within_budget']} of {row['runs']}" if row.get("within_budget") else ""
    ratios = (f"{_estimate(row, what):.2f}" for what in SPENT)
    return (row["name"], row["training"], f"{float(row['actors']):.1f}", within, *ratios)


def _estimate(row: Row, what: str) -> Estimate:
    """Returns a row's ratio to Max and its interval, not a number if no run has reached the target."""
    middle, low, high = (float(row[column] or "nan") for column in (what, f"{what}_low", f"{what}_high"))
    return Estimate(middle, low, high, claim=True)


def _draw_rewards(axes: Axes, training: Mapping[str, Sequence[Row]]) -> None:
    """Draws the mean reward of the runs of each update, and of the held-out runs, by the number of runs so far."""
    for name, rows in training.items():
        colour, marker = _STYLES[name]
        for seed in dict.fromkeys(row["seed"] for row in rows):
            own = [row for row in rows if row["seed"] == seed]
            axes.plot(*_points(own, "reward"), color=colour, linewidth=0.8, alpha=0.6)
            axes.plot(*_points(own, "held_out"), marker=marker, color=colour, markersize=4, linewidth=1.2)
    axes.set(xlabel="runs of training", ylabel="reward of a run (lines: of training;\nmarkers: of held-out runs)")
    axes.set_xlim(left=0)


def _points(rows: Sequence[Row], column: str) -> tuple[list[float], list[float]]:
    known = [(float(row["episodes"]), float(row[column])) for row in rows if row.get(column)]
    return [x for x, _ in known], [y for _, y in known]


def _draw_spent(axes: Axes, found: Sequence[Row]) -> None:
    """Draws time and cost relative to all actors, with their intervals."""
    numbers = [tuple(_estimate(row, what).middle for what in SPENT) for row in found if row["name"] not in _STYLES]
    for row in found:
        name = row["name"]
        colour, marker = _STYLES.get(name, ("black", "x"))
        x, y = (_estimate(row, what) for what in SPENT)
        label = name if name in _STYLES else "a fixed number of actors"
        shown = label in axes.get_legend_handles_labels()[1]
        # Fine-tuning may keep the scheduler as it was: its filled marker then lies within the open one.
        size: Any = {"markersize": 9, "markerfacecolor": "none"} if name == BEFORE else {"markersize": 5}
        axes.plot(x.middle, y.middle, marker, color=colour, label=None if shown else label, zorder=6, **size)
        if name not in _STYLES:
            point = x.middle, y.middle
            plots.name_point(axes, name.removeprefix("always "), point, left=_covers(point, numbers))
        axes.plot([x.low, x.high], [y.middle] * 2, color=colour, linewidth=0.7)
        axes.plot([x.middle] * 2, [y.low, y.high], color=colour, linewidth=0.7)
    axes.set(xlabel="time / Max's", ylabel="cost / Max's")
    axes.margins(x=0.12)  # room for the name of the last point


def _covers(point: tuple[float, ...], others: Sequence[tuple[float, ...]]) -> bool:
    """Whether a name above a point and to its right would cover another point."""
    return any(0 < x - point[0] < _NAME and 0 < y - point[1] < _NAME for x, y in others)
