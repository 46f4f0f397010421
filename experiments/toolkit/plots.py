"""Pictures that read well in print: distinct without colour, labelled in units."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes

from experiments.tasks.presets import Contender
from experiments.toolkit.statistics import FEWEST, estimate
from stellaris.runtime import Trace
from stellaris.runtime.files import atomic_path
from stellaris.systems import Row
from stellaris.systems.history import WINDOW

#: Lines of one picture: colours that stay apart for the colour-blind (Okabe & Ito 2008), lines that do in grey.
LINES: Sequence[dict[str, Any]] = (
    {"color": "#0072B2", "linestyle": "-"},
    {"color": "#D55E00", "linestyle": "--"},
    {"color": "#009E73", "linestyle": "-."},
    {"color": "#CC79A7", "linestyle": ":"},
)
_SETTINGS = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.alpha": 0.3,
    "legend.frameon": False,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
}


#: Names under bars that have room beside each other.
_LEVEL = 3


class Curves(NamedTuple):
    """The histories of one system's runs, over several seeds."""

    contender: Contender
    histories: Sequence[Sequence[Row]]


#: Columns of the history that returns are drawn over, and what they are called.
TIME_AND_STEPS = {"seconds": "virtual time (s)", "steps": "environment steps"}
TIME_AND_COST = {
    "seconds": "virtual time (s)",
    "cost_demo": "cost, demo's bill (USD)",
    "cost_pay_per_use": "cost, pay per use (USD)",
}


def _return(window: int = WINDOW) -> str:
    return f"mean return of the\nlast {window} training episodes"


def caption(environment: str, steps: float, *, seeds: int) -> str:
    """What a picture is of: the environment, the budget of every run, and how many there are."""
    return f"{environment}: {steps:,.0f} steps a run, {counted(seeds)}"


def counted(seeds: int) -> str:
    """So many seeds."""
    return f"{seeds} seed{'s' if seeds > 1 else ''}"


def learning(
    systems: Sequence[Curves],
    path: Path,
    *,
    title: str,
    steps: float | None = None,
    over: Mapping[str, str] = TIME_AND_STEPS,
    window: int = WINDOW,
) -> None:
    """Return over columns of the history, and at the end, by system; `path` has no suffix: a PNG and a PDF.

    The title says how many steps a run has, if all have as many.

    With seeds enough for an interval: the interquartile mean, with its 95 % band. With fewer, a thin line a run.
    """
    seeds = max(len(curves.histories) for curves in systems)
    whole = title if steps is None else caption(title, steps, seeds=seeds)
    with figure(path, whole, columns=len(over) + 1, suffixes=(".png", ".pdf")) as (
        *panels,
        final,
    ):
        for axes, (column, label) in zip(panels, over.items(), strict=True):
            for curves in systems:
                _learning_curve(axes, curves, column)
            axes.set(xlabel=label)
            axes.set_xlim(left=0)
            if column == "steps":
                axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))  # 200k, 1M
        panels[0].set(ylabel=_return(window))
        for i, (contender, histories) in enumerate(systems):
            returns = [history[-1]["episode_return"] for history in histories]
            bar(final, i, returns, contender.colour)
        final.set_xticks(range(len(systems)), [contender.name for contender, _ in systems], rotation=20, ha="right")
        legend(panels[0])


def _learning_curve(axes: Axes, curves: Curves, column: str) -> None:
    contender, histories = curves
    end = min(history[-1][column] for history in histories)
    grid = np.linspace(0.0, end, 200)
    lines = np.array([_interpolate(grid, history, column) for history in histories])
    known = np.isfinite(lines).all(axis=0)
    style: dict[str, Any] = {"color": contender.colour, "linestyle": contender.line}
    if len(lines) < FEWEST:
        axes.plot(grid, np.median(lines, axis=0), label=contender.name, linewidth=1.8, **style)
        for line in lines if len(lines) > 1 else ():
            axes.plot(grid, line, linewidth=0.6, alpha=0.6, **style)
        return
    estimates = [estimate(values) for values in lines[:, known].T.tolist()]
    axes.plot(grid[known], [e.middle for e in estimates], label=contender.name, linewidth=1.5, **style)
    low, high = [e.low for e in estimates], [e.high for e in estimates]
    axes.fill_between(grid[known], low, high, color=contender.colour, alpha=0.15, linewidth=0)


def bars(returns: Mapping[str, Sequence[float]], colours: Mapping[str, str], path: Path, *, title: str) -> None:
    """What each variant comes to: a bar, its interval where there are seeds enough, and its runs as points."""
    with figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        for i, (name, values) in enumerate(returns.items()):
            bar(axes, i, values, colours[name])
        axes.set_xticks(range(len(returns)), list(returns), rotation=30, ha="right")
        axes.set(ylabel=_return())


def bar(axes: Axes, place: int, values: Sequence[float], colour: str) -> None:
    """A bar to the middle of some runs, its interval where there are seeds enough, and the runs as points."""
    middle, low, high, claim = estimate(values)
    axes.bar(place, middle, width=0.7, color=colour, alpha=0.5)
    if claim:
        axes.errorbar(place, middle, [[middle - low], [high - middle]], color="black", capsize=3, linewidth=1)
    axes.plot([place] * len(values), values, "o", color=colour, markersize=3)


def per_run(
    systems: Sequence[Curves], path: Path, *, title: str, xlabel: str, panels: Mapping[str, str], x: str = "round"
) -> None:
    """Columns of the history over another, a panel a column: a thin line a run, each system's first the strongest."""
    with figure(path, title, columns=len(panels), suffixes=(".png", ".pdf")) as several:
        for axes, (column, label) in zip(several, panels.items(), strict=True):
            for contender, histories in systems:
                for i, history in enumerate(histories):
                    rows = [row for row in history if column in row]
                    axes.plot(
                        [row[x] for row in rows],
                        [row[column] for row in rows],
                        label=contender.name if i == 0 else None,
                        linewidth=0.9,
                        alpha=0.9 if i == 0 else 0.25,
                        color=contender.colour,
                        linestyle=contender.line,
                    )
            axes.set(xlabel=xlabel, ylabel=label, ylim=(0, None))
            axes.set_xlim(left=0)
        legend(several[0])


def lines(
    groups: Mapping[str, Sequence[tuple[Any, Any]]], path: Path, *, colour: str, title: str, xlabel: str, ylabel: str
) -> None:
    """The curves of the runs of a system's variants, `(x, y)` each: the first in its colour, the others in greys."""
    styles: Sequence[dict[str, Any]] = [
        {"color": colour, "linestyle": "-"},
        {"color": "0.25", "linestyle": "--"},
        {"color": "0.6"},
    ]
    with figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        for (name, runs), style in zip(groups.items(), styles, strict=False):
            for i, (x, y) in enumerate(runs):
                axes.plot(x, y, linewidth=1, label=name if i == 0 else None, **style)
        axes.set(xlabel=xlabel, ylabel=ylabel, ylim=(0, None))
        axes.set_xlim(left=0)
        if len(groups) > 1:
            legend(axes)


def spread(values: Mapping[str, Any], path: Path, *, level: float, title: str) -> None:
    """Milliseconds by name, as boxes from the 25th to the 75th percentile with whiskers from the 5th to the 95th."""
    with figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        middle = {"color": "black"}
        axes.boxplot([*values.values()], tick_labels=[*values], whis=(5, 95), showfliers=False, medianprops=middle)
        axes.axhline(level, color="black", linestyle=":", label="assumed of the testbed")
        axes.set(ylabel="milliseconds", yscale="log")
        axes.yaxis.set_major_locator(matplotlib.ticker.LogLocator(subs=(1, 2, 5)))
        axes.yaxis.set_major_formatter("{x:g}")
        axes.yaxis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        legend(axes)


class Line(NamedTuple):
    """A system over what is varied."""

    contender: Contender
    points: Mapping[float, Sequence[float]]  #: the runs' figures, by the value of what is varied.


class Panel(NamedTuple):
    """Some lines in a part of a picture."""

    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    log: bool = False  #: whether the values of what is varied are on a logarithmic axis.
    level: float | None = None  #: what to compare with.


def sweep(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """What figures come to over what is varied: middles, intervals where there are seeds enough, and runs as points."""
    with figure(path, title, columns=len(panels), suffixes=(".png", ".pdf")) as several:
        for axes, panel in zip(several, panels, strict=True):
            for contender, points in panel.lines:
                estimates = [estimate(values) for values in points.values()]
                style: dict[str, Any] = {"color": contender.colour, "linestyle": contender.line}
                axes.plot([*points], [one.middle for one in estimates], label=contender.name, linewidth=1.5, **style)
                for x, one, values in zip(points, estimates, points.values(), strict=True):
                    axes.plot([x] * len(values), values, "o", color=contender.colour, markersize=2.5, alpha=0.5)
                    if one.claim:
                        around = [[one.middle - one.low], [one.high - one.middle]]
                        axes.errorbar(x, one.middle, around, color=contender.colour, capsize=3, linewidth=1)
            if panel.level is not None:
                axes.axhline(panel.level, color="black", linewidth=0.8, linestyle=":")
            if panel.log:
                axes.set_xscale("log", base=2)
                axes.xaxis.set_major_formatter("{x:g}")
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        if len(panels[0].lines) > 1:
            legend(several[0])


def waterfall(
    panels: Mapping[str, Mapping[str, Sequence[float]]], path: Path, *, colours: Sequence[str], title: str
) -> None:
    """For each panel, by its label, what every change leads to: a bar from where the change before it has led.

    The first bar begins at 0, and the last, once more from 0, is what all changes together come to.
    """
    with figure(path, title, columns=len(panels), height=3.8, suffixes=(".png", ".pdf")) as axes:
        for panel, (label, changes) in zip(axes, panels.items(), strict=True):
            before = 0.0
            for i, (values, colour) in enumerate(zip(changes.values(), colours, strict=False)):
                middle, low, high, claim = estimate(values)
                panel.bar(i, middle - before, bottom=before, width=0.7, color=colour, alpha=0.5)
                panel.hlines(middle, i - 0.35, i + 0.35, color=colour)  # or no change were not seen
                if claim:
                    panel.errorbar(i, middle, [[middle - low], [high - middle]], color="black", capsize=3, linewidth=1)
                before = middle
            panel.bar(len(changes), before, width=0.7, color="0.5")
            panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
            panel.set_xticks(range(len(changes) + 1), [*changes, "together"], rotation=40, ha="right")
            panel.set(ylabel=label, ylim=(0, 1.05 * panel.get_ylim()[1]))


def stacked(parts: Mapping[str, Mapping[str, float]], path: Path, *, title: str, ylabel: str) -> None:
    """A bar for each name, made of its parts, which have the same names in all of them."""
    names = list(parts)
    with figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        bottom = np.zeros(len(names))
        for i, part in enumerate(next(iter(parts.values()))):
            heights = np.array([parts[name][part] for name in names])
            shade = str(0.85 - 0.25 * i)
            axes.bar(names, heights, bottom=bottom, width=0.6, label=part, color=shade, edgecolor="black")
            bottom += heights
        if len(names) > _LEVEL:
            axes.set_xticks(range(len(names)), names, rotation=20, ha="right")
        axes.set(ylabel=ylabel)
        legend(axes)


def reward_vs_time(
    systems: Sequence[Curves], path: Path, *, title: str, target: float | None, time: str = "virtual"
) -> None:
    """Return against virtual seconds, or real ones, by system."""
    with figure(path, _title(title, systems), columns=1) as (axes,):
        _curves(axes, systems, "seconds", target)
        axes.set(xlabel=f"{time} time (s)", ylabel=_return())
        legend(axes)


def reward_vs_cost(systems: Sequence[Curves], path: Path, *, title: str, target: float | None) -> None:
    """Return against cost, under both bills."""
    with figure(path, _title(title, systems), columns=2) as panels:
        bills = (("cost_demo", "demo's bill"), ("cost_pay_per_use", "pay per use"))
        for axes, (column, name) in zip(panels, bills, strict=True):
            _curves(axes, systems, column, target)
            axes.set(xlabel=f"training cost, {name} (USD)")
        panels[0].set(ylabel=_return())
        legend(panels[0])


def staleness(system: Curves, traces: Sequence[Trace], path: Path, *, title: str, time: str = "virtual") -> None:
    """How stale a system's applied gradients were: the distribution, by its runs' traces, and its mean over time."""
    values = np.concatenate([trace.select("staleness").value for trace in traces]).astype(int)
    colour = system.contender.colour
    with figure(path, f"{title}, {system.contender.name}", columns=2) as (distribution, over_time):
        if len(values):
            shares = np.bincount(values) / len(values)
            distribution.bar(np.arange(len(shares)), 100 * shares, width=0.8, color=colour)
            distribution.axvline(values.mean(), color="black", linestyle=":", label=f"mean {values.mean():.2f}")
            distribution.legend()
        distribution.set(xlabel="staleness of an applied gradient (versions)", ylabel="share of gradients (%)")
        distribution.xaxis.set_major_locator(matplotlib.ticker.MaxNLocator(integer=True))
        for history in system.histories:
            seconds = [row["seconds"] for row in history]
            means = [row["staleness_mean"] for row in history]
            over_time.plot(seconds, means, color=colour, linewidth=1, alpha=0.8)
        over_time.set(xlabel=f"{time} time (s)", ylabel="mean of the round (versions)", ylim=(0, None))


def _curves(axes: Axes, systems: Sequence[Curves], column: str, target: float | None) -> None:
    """A line a system; over several seeds their mean, with the range as a band, as far as all of them went."""
    for contender, runs in systems:
        end = min(run[-1][column] for run in runs)
        grid = np.linspace(0.0, end, 200)
        curves = np.array([_interpolate(grid, run, column) for run in runs])
        axes.plot(
            grid,
            curves.mean(axis=0),
            label=contender.name,
            linewidth=1.5,
            color=contender.colour,
            linestyle=contender.line,
        )
        if len(runs) > 1:
            axes.fill_between(grid, curves.min(axis=0), curves.max(axis=0), color=contender.colour, alpha=0.15)
    if target is not None:
        axes.axhline(target, color="black", linestyle=":", linewidth=0.8, label=f"target {target:g}")
    axes.set_xlim(left=0)
    axes.margins(y=0.08)


def _title(title: str, systems: Sequence[Curves]) -> str:
    seeds = max(len(runs.histories) for runs in systems)
    return title if seeds == 1 else f"{title} (mean and range of {seeds} seeds)"


def legend(axes: Axes) -> None:
    """Above the panels, where it covers no curve."""
    figure = axes.get_figure()
    assert figure is not None
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)


def _interpolate(grid: Any, run: Sequence[Row], column: str) -> Any:
    return np.interp(grid, [row[column] for row in run], [row["episode_return"] for row in run], left=np.nan)


@contextmanager
def figure(
    path: Path, title: str, *, columns: int, height: float = 3.0, suffixes: Sequence[str] = ("",)
) -> Iterator[Sequence[Axes]]:
    """A figure that appears under its name, with each of the suffixes, only once it is whole."""
    with plt.rc_context(_SETTINGS):
        canvas, axes = plt.subplots(1, columns, figsize=(4.4 + 2.6 * (columns - 1), height), squeeze=False)
        try:
            yield list(axes[0])
            axes[0][0].set_title(title, loc="left", fontsize=10)
            for suffix in suffixes:
                with atomic_path(f"{path}{suffix}") as draft:
                    canvas.savefig(draft)
        finally:
            plt.close(canvas)
