"""GAC's claim: whether successive gradients have a high cosine under a lag, and nearly none without."""

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.lab.outcomes import interval, short
from experiments.toolkit import plots

#: The claim holds if the cosine without lag is below the first bound, and at a long lag above the second.
FRESH, STALE, LONG = 0.1, 0.2, 16
#: Dashes that differ in print: the ones of other pictures, and two for further methods.
_DASHES: Sequence[Any] = (*(line["linestyle"] for line in plots.LINES), (0, (6, 1, 1, 1, 1, 1)), (0, (1, 4)))


def answered(task: str, rows: Sequence[dict[str, str]], rate: float) -> Iterator[dict[str, Any]]:
    """Yields the mean cosine of each method at each lag, at one learning rate, with its interval over seeds."""
    there = [row for row in rows if float(row["learning_rate"]) == rate]
    for method in dict.fromkeys(row["method"] for row in there):
        own = [row for row in there if row["method"] == method]
        cells: list[dict[str, Any]] = []
        for lag in sorted({int(row["lag"]) for row in own}):
            values = np.array([float(row["cosine"]) for row in own if int(row["lag"]) == lag])
            low, high = interval(values)
            numbers = {"cosine": values.mean(), "low": low, "high": high}
            cells.append({"lag": lag, **{name: short(float(x)) for name, x in numbers.items()}})
        said = {"appears": appears(cells), "rises": rises(cells)}
        yield from ({"task": task, "method": method, "learning_rate": rate, **cell, **said} for cell in cells)


def appears(cells: Sequence[dict[str, Any]]) -> str:
    """Returns whether the cosine appears as GAC claims, from the intervals at all lags.

    Example:
      >>> fresh = {"lag": 0, "low": 0.0, "high": 0.05}
      >>> appears([fresh, {"lag": 16, "low": 0.3, "high": 0.4}]), appears([fresh, {"lag": 8, "low": 0.3, "high": 0.4}])
      ('yes', 'no')
    """
    fresh = all(cell["high"] < FRESH for cell in cells if cell["lag"] == 0)
    return "yes" if fresh and any(cell["low"] > STALE for cell in cells if cell["lag"] >= LONG) else "no"


def rises(cells: Sequence[dict[str, Any]]) -> str:
    """Returns whether all intervals at long lags lie above the one without lag."""
    fresh = max((cell["high"] for cell in cells if cell["lag"] == 0), default=float("inf"))
    long = [cell["low"] for cell in cells if cell["lag"] >= LONG]
    return "yes" if long and min(long) > fresh else "no"


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """Draws the cosine against the lag, a panel per task and a line per method."""
    tasks, methods = (list(dict.fromkeys(row[name] for row in rows)) for name in ("task", "method"))
    # Every second colour of tab20 is pale; tab10 has the others.
    colours = plots.plt.get_cmap("tab10" if len(methods) <= 10 else "tab20").colors  # type: ignore[attr-defined]
    with plots.figure(path, "", columns=len(tasks), suffixes=(".png", ".pdf")) as several:
        for axes, task in zip(several, tasks, strict=True):
            for i, method in enumerate(methods):
                own = [row for row in rows if (row["task"], row["method"]) == (task, method)]
                lags = [row["lag"] for row in own]
                style = {"color": colours[i], "linestyle": _DASHES[i % len(_DASHES)]}
                axes.plot(lags, [row["cosine"] for row in own], label=method, linewidth=1.3, **style)
                low, high = ([row[end] for row in own] for end in ("low", "high"))
                axes.fill_between(lags, low, high, color=colours[i], alpha=0.15, linewidth=0)
            axes.set_xscale("symlog", base=2, linthresh=1)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.minorticks_off()
            axes.set(xlabel="lag", ylabel="cosine of successive gradients", title=task)
        plots.legend(several[-1])
