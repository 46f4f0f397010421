"""The pictures of `lab-corrections` and `lab-language`: curves against lag, a panel per method; the stable rates."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes

from experiments.figures.lab.outcomes import at_best, interval, scores, shared_rate
from experiments.figures.lab.surface import Surface
from experiments.toolkit import plots
from stellaris.types import NDArray

#: Panels in a row; so many are narrow, and have room for every third tick.
_COLUMNS = 4
_BEST: dict[str, Any] = {"color": "#0072B2", "linestyle": "-"}
_SHARED: dict[str, Any] = {"color": "#D55E00", "linestyle": "--"}
_REFERENCE: dict[str, Any] = {"color": "0.55", "linestyle": "-"}


def surface(
    task: str,
    of: Surface,
    path: Path,
    *,
    outcome: str = "return",
    age: str = "age of the data (batches)",
    columns: int = _COLUMNS,
) -> None:
    """Draws outcome against lag at the best and the shared rate, a panel per method; the reference is grey."""
    cells, score = of.cells, scores(of.cells)
    best, shared = (
        at_best(score) + cells.floor,
        score[:, :, shared_rate(score, cells.methods, cells.reference)] + cells.floor,
    )
    names = [name for name in cells.methods if name != cells.reference]
    every = 3 if len(cells.lags) > 6 and columns >= _COLUMNS else 1
    columns = min(columns, len(names))
    rows = -(-len(names) // columns)
    title = f"{task}: mean {outcome} of the last fifth of the updates, with 95 % intervals over seeds"
    with plots.figure(path, title, columns=columns, rows=rows, height=2.1, suffixes=(".png", ".pdf")) as several:
        for i, name in enumerate(names):
            axes = several[i]
            own, reference = ([*cells.methods].index(one) for one in (name, of.reference(name)))
            axes.plot(
                cells.lags,
                best[reference].mean(axis=-1),
                linewidth=2.5,
                label=f"{cells.reference}, at its best rate",
                **_REFERENCE,
            )
            _curve(axes, cells.lags, shared[own], "the method at the shared rate", _SHARED)
            _curve(axes, cells.lags, best[own], "the method at its best rate", _BEST)
            plots.untrained(axes, cells.floor)
            axes.set_title(name, fontsize=9)
            _lags(axes, cells.lags, every)
            if i >= len(names) - columns:
                axes.set_xlabel(age)
            if i % columns == 0:
                axes.set_ylabel(outcome)
        _same_heights(several[: len(names)])
        for axes in several[len(names) :]:
            axes.set_visible(False)
        _legend(several[0], columns)


def _curve(axes: Axes, lags: Sequence[int], returns: NDArray, label: str, style: dict[str, Any]) -> None:
    low, high = interval(returns)
    axes.plot(lags, returns.mean(axis=-1), label=label, linewidth=1.5, **style)
    axes.fill_between(lags, low, high, color=style["color"], alpha=0.2, linewidth=0)


def _lags(axes: Axes, lags: Sequence[int], every: int) -> None:
    axes.set_xscale("symlog", base=2, linthresh=1)
    axes.set_xticks(lags[::every])
    axes.xaxis.set_major_formatter("{x:g}")
    axes.minorticks_off()
    axes.set_xlim(0, lags[-1])


def _legend(axes: Axes, columns: int = 3) -> None:
    """Draws the legend below the panels: the title of several rows of panels is above them."""
    axes.figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=columns)


def _same_heights(several: Sequence[Axes]) -> None:
    low, high = (end([axes.get_ylim()[i] for axes in several]) for i, end in ((0, min), (1, max)))
    for axes in several:
        axes.set_ylim(low, high)


def border(rows: Sequence[dict[str, str]], path: Path, unit: str = "batches") -> None:
    """Draws the largest stable rate against the lag, a line per length, a row per task and a column per method.

    Args:
      rows: the rows of `stability.stable`; a cell without a stable rate has no point.
      path: the path of the pictures, without suffix.
      unit: the unit of the lag, for the axis.
    """
    tasks, methods = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "method"))
    lengths = sorted({int(row["updates"]) for row in rows})
    ends = ("largest_stable_rate", "low", "high")
    rates = sorted({float(row[end]) for row in rows for end in ends if row[end]})
    title = "largest stable learning rate, with 95 % intervals over seeds"
    with plots.figure(path, title, columns=len(methods), rows=len(tasks), suffixes=(".png", ".pdf")) as several:
        panels = iter(several)
        for task in tasks:
            for method in methods:
                axes = next(panels)
                own = [row for row in rows if (row["task"], row["method"]) == (task, method)]
                for i, length in enumerate(lengths):
                    aside = i - (len(lengths) - 1) / 2
                    _stable(axes, [row for row in own if int(row["updates"]) == length], aside, plots.LINES[i])
                axes.set_title(f"{task}, {method}", fontsize=9)
                axes.set_xscale("log", base=2)
                axes.set_yscale("log")
                axes.set_yticks(rates, [f"{rate:g}" for rate in rates])
                axes.set_xticks(sorted({int(row["lag"]) for row in own}))
                axes.xaxis.set_major_formatter("{x:g}")
                axes.minorticks_off()
                axes.set(xlabel=f"lag S ({unit})", ylabel="learning rate η")
        _same_heights(several)
        _legend(several[0])


def _stable(axes: Axes, rows: Sequence[dict[str, str]], aside: float, style: dict[str, Any]) -> None:
    """Draws the line of one length, moved to the side and upwards so that lines at equal rates remain visible."""
    there = [row for row in rows if row["largest_stable_rate"]]
    up = 10 ** (0.04 * aside)
    rates, lows, highs = (
        np.array([float(row[end] or row["largest_stable_rate"]) * up for row in there])
        for end in ("largest_stable_rate", "low", "high")
    )
    place = [int(row["lag"]) * 2 ** (0.15 * aside) for row in there]
    label, spread = f"{int(rows[0]['updates']):,} updates", [rates - lows, highs - rates]
    axes.errorbar(place, rates, spread, marker="o", markersize=3, capsize=2, linewidth=1.2, label=label, **style)


def cosines(rows: Sequence[Mapping[str, Any]], path: Path, reference: str) -> None:
    """Draws the cosine of successive gradients against lag, a panel per method; the reference is grey.

    Args:
      rows: the rows of `cosines.answered`, of one task.
      path: the path of the pictures, without suffix.
      reference: the method whose curve is in every other panel.
    """
    of = {name: [row for row in rows if row["method"] == name] for name in dict.fromkeys(row["method"] for row in rows)}
    grey = of.pop(reference)
    title = f"{rows[0]['task']}: mean cosine of successive gradients, with 95 % intervals over seeds"
    high = -(-len(of) // _COLUMNS)
    with plots.figure(path, title, columns=_COLUMNS, rows=high, height=1.9, suffixes=(".png", ".pdf")) as panels:
        for i, (axes, (name, own)) in enumerate(zip(panels, of.items(), strict=False)):
            _cosines(axes, grey, reference, {**_REFERENCE, "linewidth": 2.5})
            _cosines(axes, own, "the method", _BEST)
            axes.set_title(name, fontsize=9)
            if i >= len(of) - _COLUMNS:
                axes.set_xlabel("age of the answers (updates)")
        _same_heights(panels[: len(of)])
        for axes in panels[len(of) :]:
            axes.set_visible(False)
        _legend(panels[0])


def _cosines(axes: Axes, rows: Sequence[Mapping[str, Any]], label: str, style: dict[str, Any]) -> None:
    lags, middle, low, high = ([row[name] for row in rows] for name in ("lag", "cosine", "low", "high"))
    axes.plot(lags, middle, label=label, **style)
    axes.fill_between(lags, low, high, color=style["color"], alpha=0.2, linewidth=0)
    _lags(axes, lags, every=2)
