"""The pictures of the map: contours over κ and the number of learners."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import TwoSlopeNorm

from experiments.figures.map.deployments import IN_ROUNDS, ONE_LEARNER, SAMPLING_ON
from experiments.toolkit import plots

#: The contours of a ratio; the line at 1 is drawn thick.
_LEVELS = (0.125, 0.25, 0.5, 0.71, 1.0, 1.41, 2.0, 4.0, 8.0, 16.0)
#: Colours and markers of the systems whose learning is measured.
_STYLES = {ONE_LEARNER: ("#000000", "^"), IN_ROUNDS: ("#E69F00", "s"), SAMPLING_ON: ("#0072B2", "o")}


class Mark(NamedTuple):
    """A deployment that is marked on the map."""

    letter: str
    kappa: float
    learners: int
    variation: float

    def nearest(self, variations: Sequence[float]) -> float:
        """Returns the variation whose panel has the mark."""
        return min(variations, key=lambda one: abs(one - self.variation))

    def within(self, rows: Sequence[Mapping[str, Any]]) -> bool:
        """Returns whether the mark lies on the map of these rows."""
        own = {"kappa": self.kappa, "learners": self.learners}
        return all(
            min(row[name] for row in rows) <= value <= max(row[name] for row in rows) for name, value in own.items()
        )


def draw(
    rows: Sequence[Mapping[str, Any]], column: str, path: Path, title: str, marks: Sequence[Mark], label: str
) -> None:
    """Draws a column of the map as contours: a row of panels per system, a panel per variation of durations.

    Where a row's `at_most` is true, its number is an upper bound, and the map is hatched.
    """
    systems = list(dict.fromkeys(row["system"] for row in rows))
    variations = sorted({row["variation"] for row in rows})
    with plots.figure(
        path, title, columns=len(variations), rows=len(systems), suffixes=(".png", ".pdf"), height=3.0
    ) as several:
        filled = None
        for i, system in enumerate(systems):
            for j, variation in enumerate(variations):
                axes = several[i * len(variations) + j]
                own = [row for row in rows if (row["system"], row["variation"]) == (system, variation)]
                filled = _contours(axes, own, column)
                for mark in marks:
                    if variation == mark.nearest(variations) and mark.within(own):
                        above = "bottom" if mark.learners == 1 else "center"  # one learner is the axis itself
                        axes.text(mark.kappa, mark.learners, mark.letter, weight="bold", ha="center", va=above)
                if i == 0:
                    axes.set_title(f"variation {variation:g}", fontsize=9)
                if i == len(systems) - 1:
                    axes.set_xlabel("κ = Gτ/A")
                if j == 0:
                    axes.set_ylabel(f"{system}\nlearners")
        assert filled is not None
        bar = several[0].figure.colorbar(filled, ax=list(several), label=label, ticks=np.log2(_LEVELS))
        bar.ax.set_yticklabels([f"{level:g}" for level in _LEVELS])


def draw_eta(rows: Sequence[Mapping[str, Any]], path: Path, name: str) -> None:
    """Draws η over the number of learners, with its intervals: a panel per κ and variation of durations.

    A filled marker is measured, and an open one an upper bound.
    """
    rows = [row for row in rows if row["system"] in _STYLES]
    places = sorted({(row["kappa"], row["variation"]) for row in rows})
    title = f"{name}: steps of the synchronous system / steps to the same return"
    with plots.figure(path, title, columns=len(places), suffixes=(".png", ".pdf"), height=2.6) as several:
        for axes, (kappa, variation) in zip(several, places, strict=True):
            for i, (system, (colour, marker)) in enumerate(_STYLES.items()):
                own = [
                    row for row in rows if (row["system"], row["kappa"], row["variation"]) == (system, kappa, variation)
                ]
                for row in own:
                    learners = row["learners"] * 1.12 ** (i - 1)  # so that markers do not overlap
                    axes.plot([learners] * 2, [row["eta_low"], row["eta_high"]], color=colour, lw=1.0)
                    face = "white" if row["missed"] else colour
                    axes.plot(learners, row["eta"], marker, color=colour, mfc=face, ms=5)
                axes.plot([], [], marker, color=colour, ms=5, label=system)
            axes.axhline(1.0, color="black", lw=0.8)
            axes.set_xscale("log", base=2)
            axes.xaxis.set_major_formatter("{x:g}")
            axes.set_ylim(min(row["eta_low"] for row in rows) / 1.1, max(row["eta_high"] for row in rows) * 1.1)
            plots.logarithmic(axes, "y")
            axes.set_title(f"κ = {kappa:g}, variation {variation:g}", fontsize=9)
            axes.set_xlabel("learners")
        several[0].set_ylabel("η")
        several[0].figure.legend(*several[0].get_legend_handles_labels(), fontsize=7, ncols=3, loc="upper right")


def _contours(axes: Axes, rows: Sequence[Mapping[str, Any]], column: str) -> Any:
    kappas, learners = (sorted({row[name] for row in rows}) for name in ("kappa", "learners"))
    values = {(row["kappa"], row["learners"]): row.get(column, np.nan) for row in rows}
    ratio = np.log2([[values[kappa, n] for kappa in kappas] for n in learners])
    levels = np.log2(_LEVELS)
    norm = TwoSlopeNorm(0.0, levels[0], levels[-1])
    filled = axes.contourf(kappas, learners, ratio, levels=levels, cmap="PuOr_r", norm=norm, extend="both")
    axes.contour(kappas, learners, ratio, levels=levels, colors="0.5", linewidths=0.4)
    axes.contour(kappas, learners, ratio, levels=[0.0], colors="black", linewidths=1.6)
    bound = {(row["kappa"], row["learners"]): float(row.get("at_most", False)) for row in rows}
    hatched = np.array([[bound[kappa, n] for kappa in kappas] for n in learners])
    if hatched.any():
        axes.contourf(kappas, learners, hatched, levels=[0.5, 1.5], colors="none", hatches=["///"])
    axes.set_xscale("log", base=2)
    axes.set_yscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_major_formatter("{x:g}")
    axes.grid(visible=False)
    return filled
