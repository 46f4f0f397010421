"""Plots for print: lines that differ without colour, axes labelled with units."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import matplotlib
import numpy as np

matplotlib.use("Agg")
import matplotlib.pyplot as plt
from matplotlib import patheffects
from matplotlib.axes import Axes

from experiments.toolkit.statistics import FEWEST, estimate
from stellaris.runtime import Trace
from stellaris.runtime.files import atomic_path
from stellaris.systems import Row
from stellaris.systems.history import WINDOW

#: Line styles of one picture: the colours are distinct for the colour-blind (Okabe & Ito 2008), the dashes in grey.
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
    "hatch.linewidth": 0.3,
    "savefig.dpi": 200,
    "figure.constrained_layout.use": True,
}


#: The most bars whose names fit below them without rotation.
_LEVEL = 3


class Contender(Protocol):
    """A system as a line of a picture; `experiments.tasks.presets.Contender` implements this protocol."""

    @property
    def name(self) -> str:
        """The system's name in the legend."""

    @property
    def colour(self) -> str:
        """Matplotlib's colour of the line."""

    @property
    def line(self) -> Any:
        """Matplotlib's line style."""


class Curves(NamedTuple):
    """The histories of one system's runs, one per seed."""

    contender: Contender
    histories: Sequence[Sequence[Row]]


#: Columns of the history for the x-axes of returns, with their labels.
TIME_AND_STEPS = {"seconds": "virtual time (s)", "steps": "environment steps"}
TIME_AND_COST = {
    "seconds": "virtual time (s)",
    "cost_demo": "cost, demo's bill (USD)",
    "cost_pay_per_use": "cost, pay per use (USD)",
}


def _return(window: int = WINDOW) -> str:
    return f"mean return of the\nlast {window} training episodes"


def caption(environment: str, steps: float, *, seeds: int) -> str:
    """Returns a title: the environment, the steps of every run, and the number of seeds."""
    return f"{environment}: {steps:,.0f} steps a run, {counted(seeds)}"


def counted(seeds: int) -> str:
    """Returns "1 seed", "2 seeds" and so on."""
    return f"{seeds} seed{'s' if seeds > 1 else ''}"


def learning(
    systems: Sequence[Curves],
    path: Path,
    *,
    title: str,
    steps: float | None = None,
    over: Mapping[str, str] = TIME_AND_STEPS,
    window: int = WINDOW,
    evaluated: int = 0,
) -> None:
    """Draws return over columns of the history, and the final return, by system, as a PNG and a PDF.

    With enough seeds for an interval, a curve is the interquartile mean with its 95 % band; with fewer, the median, and
    a thin line per run. A run that has ended keeps its last return until the longest run ends: runs that end at a
    target end early because they are good, so a curve that stopped with them would show the others' returns.

    Args:
      systems: the systems, each drawn as one curve.
      path: the path of the pictures, without suffix.
      title: the title of the picture; with `steps`, the environment.
      steps: the steps of every run, for the title, if all runs have the same number.
      over: the labels of the x-axes, by column.
      window: the number of training episodes whose mean is the return, for the y-axis.
      evaluated: if not 0, the return is the mean of as many episodes of an evaluation.
    """
    of = "evaluation_return" if evaluated else "episode_return"
    seeds = max(len(curves.histories) for curves in systems)
    whole = title if steps is None else caption(title, steps, seeds=seeds)
    with figure(path, whole, columns=len(over) + 1, suffixes=(".png", ".pdf")) as (
        *panels,
        final,
    ):
        for axes, (column, label) in zip(panels, over.items(), strict=True):
            for curves in systems:
                _learning_curve(axes, curves, column, of)
            axes.set(xlabel=label)
            axes.set_xlim(left=0)
            if column == "steps":
                axes.xaxis.set_major_formatter(matplotlib.ticker.EngFormatter(sep=""))  # 200k, 1M
        panels[0].set(ylabel=f"mean return of\n{evaluated} evaluation episodes" if evaluated else _return(window))
        for i, (contender, histories) in enumerate(systems):
            returns = [next(row[of] for row in reversed(history) if of in row) for history in histories]
            bar(final, i, returns, contender.colour)
        final.set_xticks(range(len(systems)), [contender.name for contender, _ in systems], rotation=20, ha="right")
        legend(panels[0])


def _learning_curve(axes: Axes, curves: Curves, column: str, of: str) -> None:
    contender, histories = curves
    end = max(history[-1][column] for history in histories)
    grid = np.linspace(0.0, end, 200)
    lines = np.array([_interpolate(grid, history, column, of) for history in histories])
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
    """Draws a bar per variant, with its interval if there are enough seeds, and its runs as points."""
    with figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        for i, (name, values) in enumerate(returns.items()):
            bar(axes, i, values, colours[name])
        axes.set_xticks(range(len(returns)), list(returns), rotation=30, ha="right")
        axes.set(ylabel=_return())


def bar(axes: Axes, place: int, values: Sequence[float], colour: str) -> None:
    """Draws a bar up to the estimate of some runs, its interval if there are enough seeds, and the runs as points."""
    middle, low, high, claim = estimate(values)
    axes.bar(place, middle, width=0.7, color=colour, alpha=0.5)
    if claim:
        axes.errorbar(place, middle, [[middle - low], [high - middle]], color="black", capsize=3, linewidth=1)
    axes.plot([place] * len(values), values, "o", color=colour, markersize=3)


def per_run(
    systems: Sequence[Curves], path: Path, *, title: str, xlabel: str, panels: Mapping[str, str], x: str = "round"
) -> None:
    """Draws columns of the history over the column `x`, one panel per drawn column.

    If there are enough runs for an interval, it draws the median over the runs that have not ended, and a band between
    their quartiles; otherwise one line per run, the first one darkest.
    """
    with figure(path, title, columns=len(panels), suffixes=(".png", ".pdf")) as several:
        for axes, (column, label) in zip(several, panels.items(), strict=True):
            for contender, histories in systems:
                if len(histories) >= FEWEST:
                    _quartiles(axes, contender, histories, x, column)
                    continue
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
            axes.set(xlabel=xlabel, ylabel=label)
            axes.set_xlim(left=0)
            if axes.dataLim.y0 >= 0:  # returns may be negative
                axes.set_ylim(bottom=0)
        legend(several[0])


def _quartiles(axes: Axes, contender: Contender, histories: Sequence[Sequence[Row]], x: str, column: str) -> None:
    """Draws the median and the quartiles of a column, at every value of `x` that at least half of the runs have."""
    values: dict[float, list[float]] = {}
    for history in histories:
        for row in history:
            if column in row:
                values.setdefault(row[x], []).append(row[column])
    shown = sorted(at for at, several in values.items() if 2 * len(several) >= len(histories))
    if not shown:
        return
    low, middle, high = np.transpose([np.percentile(values[at], (25, 50, 75)) for at in shown])
    axes.plot(shown, middle, label=contender.name, linewidth=1.2, color=contender.colour, linestyle=contender.line)
    axes.fill_between(shown, low, high, color=contender.colour, alpha=0.15, linewidth=0)


def lines(
    groups: Mapping[str, Sequence[tuple[Any, Any]]],
    path: Path,
    *,
    colour: str,
    title: str,
    xlabel: str,
    ylabel: str,
    log: bool = False,
) -> None:
    """Draws the curves `(x, y)` of a system's runs by variant: the first variant in colour, the others in grey.

    With `log` the y-axis is logarithmic, for values that span several orders of magnitude.
    """
    styles: Sequence[dict[str, Any]] = [
        {"color": colour, "linestyle": "-"},
        {"color": "0.25", "linestyle": "--"},
        {"color": "0.6"},
    ]
    with figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        for (name, runs), style in zip(groups.items(), styles, strict=False):
            for i, (x, y) in enumerate(runs):
                axes.plot(x, y, linewidth=1, label=name if i == 0 else None, **style)
        axes.set(xlabel=xlabel, ylabel=ylabel, **({"yscale": "log"} if log else {"ylim": (0, None)}))
        axes.set_xlim(left=0)
        if len(groups) > 1:
            legend(axes)


def spread(values: Mapping[str, Any], path: Path, *, level: float, title: str) -> None:
    """Draws a box of milliseconds per name, from percentile 25 to 75, with whiskers from percentile 5 to 95."""
    with figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        middle = {"color": "black"}
        axes.boxplot([*values.values()], tick_labels=[*values], whis=(5, 95), showfliers=False, medianprops=middle)
        axes.axhline(level, color="black", linestyle=":", label="assumed in the testbed")
        axes.set(ylabel="milliseconds")
        logarithmic(axes, "y")
        legend(axes)


def logarithmic(axes: Axes, *names: str) -> None:
    """Makes axes, "x" or "y", logarithmic, with plain numbers at 1, 2 and 5 times the powers of ten.

    An axis that is too short to hold three of these has evenly spaced numbers instead.
    """
    for name in names:
        axes.set(**{f"{name}scale": "log"})
        axis, (low, high) = {"x": (axes.xaxis, axes.get_xlim()), "y": (axes.yaxis, axes.get_ylim())}[name]
        short = high < 10 * low
        axis.set_major_locator(
            matplotlib.ticker.MaxNLocator(5) if short else matplotlib.ticker.LogLocator(subs=(1, 2, 5))
        )
        axis.set_major_formatter("{x:g}")
        axis.set_minor_formatter(matplotlib.ticker.NullFormatter())
        if short:
            axis.set_minor_locator(matplotlib.ticker.NullLocator())


def name_point(axes: Axes, text: str, point: tuple[float, float], *, left: bool = False) -> None:
    """Writes a name above a point and to its right, or to its left, legible on top of lines and markers."""
    side: dict[str, Any] = {"xytext": (-4, 4), "ha": "right"} if left else {"xytext": (4, 4)}
    halo = patheffects.withStroke(linewidth=2.5, foreground="white")
    axes.annotate(text, point, textcoords="offset points", fontsize=8, zorder=5, path_effects=[halo], **side)


class Line(NamedTuple):
    """The results of a system over a varied parameter."""

    contender: Contender
    points: Mapping[float, Sequence[float]]  #: results of the runs, by the parameter's value.


class Panel(NamedTuple):
    """Several lines on common axes."""

    xlabel: str
    ylabel: str
    lines: Sequence[Line]
    log: bool = False  #: whether the x-axis is logarithmic.
    log_y: bool = False  #: whether the y-axis is logarithmic.
    level: float | None = None  #: height of a dotted reference line.


#: The most panels of a sweep in one row; with more, a page would show them too small.
_ABREAST = 5


def sweep(panels: Sequence[Panel], path: Path, *, title: str) -> None:
    """Draws results over a varied parameter: estimates, intervals if there are enough seeds, and runs as points.

    A line joins the estimates of a system if there are others.
    """
    rows = 1 if len(panels) <= _ABREAST else 2
    with figure(path, title, columns=-(-len(panels) // rows), rows=rows, suffixes=(".png", ".pdf")) as several:
        for empty in several[len(panels) :]:
            empty.set_visible(False)
        for axes, panel in zip(several[: len(panels)], panels, strict=True):
            for contender, points in panel.lines:
                estimates = [estimate(values) for values in points.values()]
                style: dict[str, Any] = {"color": contender.colour, "linestyle": contender.line}
                if len(panel.lines) == 1:  # without others to be told from, a line would only join noise
                    style = {"color": contender.colour, "linestyle": "none", "marker": "D", "markersize": 4}
                axes.plot([*points], [one.middle for one in estimates], label=contender.name, linewidth=0.8, **style)
                for x, one, values in zip(points, estimates, points.values(), strict=True):
                    axes.plot([x] * len(values), values, "o", color=contender.colour, markersize=2.5, alpha=0.5)
                    if one.claim:
                        around = [[one.middle - one.low], [one.high - one.middle]]
                        axes.errorbar(x, one.middle, around, color=contender.colour, capsize=3, linewidth=1)
            if panel.level is not None:
                axes.axhline(panel.level, color="black", linewidth=0.8, linestyle=":")
            if panel.log:
                # Below 1 the axis is linear, so that it has a place for 0.
                axes.set_xscale("symlog", base=2, linthresh=1) if _has_zero(panel) else axes.set_xscale("log", base=2)
                axes.set_xticks(sorted({x for line in panel.lines for x in line.points}))
                axes.xaxis.set_minor_locator(matplotlib.ticker.NullLocator())
                axes.xaxis.set_major_formatter("{x:g}")
            if panel.log_y:
                logarithmic(axes, "y")
            axes.set(xlabel=panel.xlabel, ylabel=panel.ylabel)
        if len(panels[0].lines) > 1:
            legend(several[0])


def _has_zero(panel: Panel) -> bool:
    return any(0 in line.points for line in panel.lines)


def waterfall(
    panels: Mapping[str, Mapping[str, Sequence[float]]], path: Path, *, colours: Sequence[str], title: str
) -> None:
    """Draws the cumulative effect of changes: each bar begins at the level that the previous change reached.

    The first bar begins at 0.

    Args:
      panels: the results of the runs after each change, by the label of the panel and the name of the change.
      path: the path of the pictures, without suffix.
      colours: the colours, one per change.
      title: the title of the picture.
    """
    with figure(path, title, columns=len(panels), height=3.8, suffixes=(".png", ".pdf")) as axes:
        for panel, (label, changes) in zip(axes, panels.items(), strict=True):
            before = 0.0
            for i, (values, colour) in enumerate(zip(changes.values(), colours, strict=False)):
                middle, low, high, claim = estimate(values)
                panel.bar(i, middle - before, bottom=before, width=0.7, color=colour, alpha=0.5)
                panel.hlines(middle, i - 0.35, i + 0.35, color=colour)  # a bar without height would be invisible
                if claim:
                    panel.errorbar(i, middle, [[middle - low], [high - middle]], color="black", capsize=3, linewidth=1)
                before = middle
            panel.axhline(1.0, color="black", linewidth=0.8, linestyle=":")
            panel.set_xticks(range(len(changes)), [*changes], rotation=40, ha="right")
            panel.set(ylabel=label, ylim=(0, 1.05 * panel.get_ylim()[1]))


def grouped(parts: Mapping[str, Mapping[str, float]], path: Path, *, title: str, ylabel: str) -> None:
    """Draws a group of bars per name, one bar per part, on a logarithmic axis; all groups have the same parts."""
    names = list(parts)
    with figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        several = list(next(iter(parts.values())))
        width = 0.8 / len(several)
        for i, part in enumerate(several):
            heights = [parts[name][part] for name in names]
            places = np.arange(len(names)) + (i - (len(several) - 1) / 2) * width
            shade = str(0.9 - 0.8 * i / len(several))
            axes.bar(places, heights, width=width, label=part, color=shade, edgecolor="black", linewidth=0.6)
        axes.set_xticks(range(len(names)), names)
        if len(names) > _LEVEL:
            axes.tick_params(axis="x", rotation=20)
        axes.set(ylabel=ylabel)
        logarithmic(axes, "y")
        legend(axes)


def reward_vs_time(
    systems: Sequence[Curves], path: Path, *, title: str, target: float | None, time: str = "virtual"
) -> None:
    """Draws return over virtual or real seconds, by system."""
    with figure(path, _title(title, systems), columns=1) as (axes,):
        _curves(axes, systems, "seconds", target)
        axes.set(xlabel=f"{time} time (s)", ylabel=_return())
        legend(axes)


def reward_vs_cost(systems: Sequence[Curves], path: Path, *, title: str, target: float | None) -> None:
    """Draws return over cost, under both bills."""
    with figure(path, _title(title, systems), columns=2) as panels:
        bills = (("cost_demo", "demo's bill"), ("cost_pay_per_use", "pay per use"))
        for axes, (column, name) in zip(panels, bills, strict=True):
            _curves(axes, systems, column, target)
            axes.set(xlabel=f"training cost, {name} (USD)")
        panels[0].set(ylabel=_return())
        legend(panels[0])


def staleness(system: Curves, traces: Sequence[Trace], path: Path, *, title: str, time: str = "virtual") -> None:
    """Draws the staleness of a system's applied gradients: its distribution in the traces, and its mean over time."""
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
    """Draws one line per system: the mean over seeds, with the range as a band. An ended run keeps its last return."""
    for contender, runs in systems:
        end = max(run[-1][column] for run in runs)
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


def untrained(axes: Axes, returned: float) -> None:
    """Draws the mean return of an untrained policy as a thin level line."""
    axes.axhline(returned, color="0.5", linewidth=0.8, linestyle=":", label="untrained policy")


def legend(axes: Axes) -> None:
    """Draws the legend above the panels, where it covers no curve."""
    figure = axes.get_figure()
    assert figure is not None
    figure.legend(*axes.get_legend_handles_labels(), loc="outside upper center", ncols=3)


def _interpolate(grid: Any, run: Sequence[Row], column: str, of: str = "episode_return") -> Any:
    known = [row for row in run if of in row]
    return np.interp(grid, [row[column] for row in known], [row[of] for row in known], left=np.nan)


@contextmanager
def figure(
    path: Path, title: str, *, columns: int, rows: int = 1, height: float = 3.0, suffixes: Sequence[str] = ("",)
) -> Iterator[Sequence[Axes]]:
    """Yields the axes of a figure, row by row, and saves it under each suffix; a file appears only once complete.

    The title is above the first axes; with several rows, or axes that have titles, it is above the whole figure.
    """
    with plt.rc_context(_SETTINGS):
        size = (4.4 + 2.6 * (columns - 1), rows * height)
        canvas, axes = plt.subplots(rows, columns, figsize=size, squeeze=False)
        try:
            yield list(axes.flat)
            if rows > 1 or axes[0][0].get_title():
                canvas.suptitle(title, x=0.0, ha="left", fontsize=10, wrap=True)
            else:
                axes[0][0].set_title(title, loc="left", fontsize=10)
            for suffix in suffixes:
                with atomic_path(f"{path}{suffix}") as draft:
                    canvas.savefig(draft)
        finally:
            plt.close(canvas)
