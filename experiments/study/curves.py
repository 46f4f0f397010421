"""Curves and paired ratios of systems' runs, for several studies."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.study.cells import Finished
from experiments.toolkit import plots
from experiments.toolkit.statistics import Estimate, estimate, ratio


def draw(groups: Mapping[str, Sequence[Finished]], path: Path, *, title: str, over: Mapping[str, str]) -> None:
    """Draws return over columns of the history, one curve per variant."""
    curves = [plots.Curves(of[0].cell.contender, [one.history for one in of]) for of in groups.values()]
    steps = next(iter(groups.values()))[0].cell.budget.steps
    plots.learning(curves, path, title=title, steps=steps, over=over)


def last(of: Sequence[Finished], column: str) -> Estimate:
    """Estimates the last value in a column of the histories."""
    return estimate([next(row[column] for row in reversed(one.history) if column in row) for one in of])


def interval(estimated: Estimate) -> str:
    """Names an estimate's kind of middle and of interval, which depend on the number of seeds."""
    return "IQM, 95 %" if estimated.claim else "median, range"


def at(one: Finished, column: str, seconds: float = math.inf) -> float:
    """Interpolates a column of the history at an instant in virtual seconds, by default at the end."""
    known = [row for row in one.history if column in row]
    return float(np.interp(seconds, [row["seconds"] for row in known], [row[column] for row in known]))


def paired(of: Sequence[Finished], baseline: Sequence[Finished]) -> bool:
    """Whether two systems have a seed in common; an interrupted study may have run other seeds of each."""
    return not {one.cell.seed for one in of}.isdisjoint(one.cell.seed for one in baseline)


def ratios(of: Sequence[Finished], baseline: Sequence[Finished], column: str, seconds: float = math.inf) -> list[float]:
    """Returns ratios of a column to the baseline's, paired by seed, at an instant; by default at each run's end."""
    by_seed = {one.cell.seed: at(one, column, seconds) for one in baseline}
    return [ratio(at(one, column, seconds), by_seed[one.cell.seed]) for one in of if one.cell.seed in by_seed]


def means(of: Sequence[Finished], baseline: Sequence[Finished], column: str, seconds: float) -> list[float]:
    """Returns ratios of a column's mean over time to the baseline's, paired by seed, up to an instant."""
    by_seed = {one.cell.seed: _mean(one, column, seconds) for one in baseline}
    return [ratio(_mean(one, column, seconds), by_seed[one.cell.seed]) for one in of if one.cell.seed in by_seed]


def _mean(one: Finished, column: str, seconds: float) -> float:
    """Returns the mean over time of a column that is interpolated between its rows.

    Before the first number, such as the return before the first episode has ended, the first number counts. It is NaN
    if the history has no number.
    """
    known = [row for row in one.history if not math.isnan(row.get(column, math.nan))]
    if not known:
        return math.nan
    grid = np.linspace(0.0, seconds, 1_000)
    return float(np.interp(grid, [row["seconds"] for row in known], [row[column] for row in known]).mean())


def at_equal_time(of: Sequence[Finished], baseline: Sequence[Finished]) -> list[float]:
    """Returns ratios of the return to the baseline's, paired by seed, at the end of the shorter run."""
    pairs = [(one, other) for one in of for other in baseline if one.cell.seed == other.cell.seed]
    ends = [min(one.history[-1]["seconds"], other.history[-1]["seconds"]) for one, other in pairs]
    return [
        ratio(at(one, "episode_return", end), at(other, "episode_return", end))
        for (one, other), end in zip(pairs, ends, strict=True)
    ]


def cost_to(one: Finished, target: float) -> float | None:
    """Returns the cost by use up to a return, or None if the run did not reach it."""
    reached = (row["cost_pay_per_use"] for row in one.history if row["episode_return"] >= target)
    return next(reached, None)


def swept(groups: Mapping[str, Sequence[Finished]], system: str, what: str) -> dict[float, Sequence[Finished]]:
    """Returns the runs of a system by value of the varied parameter, for variants named by `setting`."""
    prefix = setting(system, what, "")
    return {float(name.removeprefix(prefix)): of for name, of in groups.items() if name.startswith(prefix)}


def setting(system: str, what: str, value: float | str) -> str:
    """Returns the name of a system's variant with a value of the parameter `what`."""
    return f"{system}, {what} {value if isinstance(value, str) else f'{value:g}'}"


def line(of: Mapping[float, Sequence[Finished]], figure: Callable[[Finished], float]) -> plots.Line:
    """Returns a system's line in a picture: the number `figure(run)` of each run, by value of the varied parameter."""
    contender = next(iter(of.values()))[0].cell.contender
    return plots.Line(contender, {value: [figure(one) for one in several] for value, several in of.items()})
