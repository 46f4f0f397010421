"""Draws what MinionsRL's schedulers take and cost, and their returns, from all committed runs of each task."""

import argparse
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from matplotlib.axes import Axes

from experiments.figures.minionsrl import training
from experiments.report.tables import minionsrl as tables
from experiments.report.tables import results
from experiments.tasks import minionsrl
from experiments.toolkit import options, output, plots
from experiments.toolkit.statistics import Estimate

DESCRIPTION = "time and cost of MinionsRL's schedulers relative to all actors, and returns, from the committed runs"

#: The limits of both axes. Schedulers beyond them are named in the legend, with their numbers.
TIMES, COSTS = (0.5, 1.65), (0.25, 1.2)
_FIXED = "#0072B2"
#: The legend's words for trained schedulers, of whose runs none is left out.
_WORDS = {training.LEARNED: "trained", training.FINE_TUNED: "trained, fine-tuned", minionsrl.ADAPT: "Adapt"}

Point = tuple[Estimate, Estimate]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the option."""
    default = Path("results/minionsrl-numbers")
    parser.add_argument("--out", type=options.folder, default=default, help="folder of the pictures")


def main(arguments: argparse.Namespace) -> int:
    """Draws a panel for each task and learner whose runs with all actors reach the target, and returns on MuJoCo."""
    panels = points()
    path: Path = arguments.out / "numbers"
    with output.usable(arguments.out):
        arguments.out.mkdir(parents=True, exist_ok=True)
    title = "time and cost to the target, relative to all 32 actors on the same seeds"
    rows = -(-len(panels) // 2)
    with plots.figure(path, title, columns=2, rows=rows, suffixes=(".png", ".pdf"), height=4.2) as axes:
        for one, (name, of) in zip(axes, panels.items(), strict=False):
            _draw(one, name, of)
        for one in axes[len(panels) :]:
            one.set_visible(False)
    print(f"{path}.png")
    for place in tables.SHOWN[1:]:  # the study draws CartPole's returns, which no other runs continue
        for (environment, testbed), curves in returns(place).items():
            _draw_returns(curves, arguments.out / f"returns_{testbed}_{environment}", environment, testbed)
            print(f"{arguments.out}/returns_{testbed}_{environment}.png")
    return 0


class _System(NamedTuple):
    """A system of the paper as a line of a picture."""

    name: str
    colour: str
    line: Any


def returns(place: str) -> Mapping[tuple[str, str], Sequence[plots.Curves]]:
    """Returns the curves of the paper's systems by task and learner, of a place's runs and of all that continue it.

    The runs of a trained scheduler end with their budget.
    """
    found: dict[tuple[str, str], dict[str, dict[str, dict[str, dict[str, float]]]]] = {}
    for row in (row for folder in tables.places(place) for row in results.rows(f"{folder}/curves.csv")):
        if name := training.papers_name(row["schedule"]):
            of = found.setdefault((row["environment"], row["testbed"]), {}).setdefault(name, {})
            of.setdefault(row["seed"], {}).setdefault(row["seconds"], dict(_numbers(row)))  # a seed may have run twice
    return {
        where: [
            plots.Curves(_System(name, *minionsrl.STYLES[name]), [[*run.values()] for run in of[name].values()])
            for name in minionsrl.STYLES
            if name in of
        ]
        for where, of in found.items()
    }


def _numbers(row: Mapping[str, str]) -> Iterator[tuple[str, float]]:
    """Yields the columns of a curve that a picture shows."""
    for name in ("seconds", "episode_return", "evaluation_return"):
        if row.get(name):
            yield name, float(row[name])


def _draw_returns(curves: Sequence[plots.Curves], path: Path, environment: str, testbed: str) -> None:
    """Draws the returns of one task and learner over time."""
    task = minionsrl.testbeds_of(environment)[testbed]
    seeds = " or ".join(str(n) for n in sorted({len(one.histories) for one in curves}, reverse=True))
    title = f"{environment}, {minionsrl.label(testbed)}: to {task.target:g}, {seeds} seeds"
    evaluated = task.evaluation.episodes if task.evaluation else 0
    over = {"seconds": "virtual time (s)"}
    plots.learning(curves, path, title=title, over=over, window=task.limits.window, evaluated=evaluated)


def points() -> Mapping[str, Mapping[str, Point]]:
    """Returns the ratios of time and cost by task and learner, and by scheduler.

    Those of a trained scheduler are of all its runs: a failed run counts as it was played on.
    """
    found: dict[str, dict[str, Point]] = {}
    for row in (row for place in tables.SHOWN for row in tables.rows_of(place)):
        if row["s / all"] and not row["actors"].endswith(training.PLAYED_ON):
            name = f"{row['environment']}, {minionsrl.label(row['testbed'])}"
            found.setdefault(name, {})[row["actors"]] = _estimate(row["s / all"]), _estimate(row["USD / all"])
    for name, scheduler, *numbers in tables.counted().rows:
        found[name][scheduler] = _estimate(numbers[2]), _estimate(numbers[4])
    return {name: of for name, of in found.items() if str(training.ALL) in of and len(of) > 1}


def _estimate(text: str) -> Estimate:
    """Parses an estimate of a table, whose interval is left out if it is a point."""
    middle, *ends = (float(number) for number in re.findall(r"[\d.]+", text))
    low, high = ends or (middle, middle)
    return Estimate(middle, low, high, claim=True)


def _draw(axes: Axes, title: str, of: Mapping[str, Point]) -> None:
    fixed = {int(name): point for name, point in of.items() if name.isdigit() and _within(point)}
    middles = [(time.middle, cost.middle) for _, (time, cost) in sorted(fixed.items())]
    axes.plot(*zip(*middles, strict=True), "o-", color=_FIXED, ms=4, lw=0.8, label="a fixed number of actors")
    for i, number in enumerate(sorted(fixed)):
        _cross(axes, fixed[number], _FIXED)
        # Labels alternate between both sides of the line, on which neighbouring numbers are close together.
        offset, side = ((5, 5), "left") if i % 2 else ((-5, -11), "right")
        axes.annotate(f"{number}", middles[i], xytext=offset, textcoords="offset points", fontsize=7, ha=side)
    levels = iter("<>hd")
    for name, point in of.items():
        if name.isdigit() and int(name) in fixed:
            continue
        marker, colour = training.style(name, levels)
        x, y, words = point[0].middle, point[1].middle, _WORDS.get(name, f"{name} actors" if name.isdigit() else name)
        if _within(point):
            axes.plot(x, y, marker, color=colour, ms=5, label=words)
            _cross(axes, point, colour)
        else:
            axes.plot([], [], marker, color=colour, ms=5, label=f"{words} ({x:.2f}, {y:.2f})")
    axes.set(xlim=TIMES, ylim=COSTS, xlabel="time / that of all actors", ylabel="cost by Eq. 2 / that of all actors")
    axes.set_title(title, fontsize=8)
    place: Any = {"loc": "upper center", "bbox_to_anchor": (0.45, -0.16)}
    axes.legend(fontsize=7, ncols=2, columnspacing=1.0, handletextpad=0.4, **place)


def _within(point: Point) -> bool:
    return all(low < one.middle < high for one, (low, high) in zip(point, (TIMES, COSTS), strict=True))


def _cross(axes: Axes, point: Point, colour: str) -> None:
    x, y = point
    axes.plot([x.low, x.high], [y.middle] * 2, color=colour, lw=0.7)
    axes.plot([x.middle] * 2, [y.low, y.high], color=colour, lw=0.7)
