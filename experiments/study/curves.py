"""What several studies do with the runs of systems: they are drawn as curves, and compared seed by seed."""

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import numpy as np

from experiments.study.cells import Finished
from experiments.toolkit import plots
from experiments.toolkit.statistics import Estimate, estimate, ratio


def draw(groups: Mapping[str, Sequence[Finished]], path: Path, *, title: str, over: Mapping[str, str]) -> None:
    """Returns over some columns of the history, by variant."""
    curves = [plots.Curves(of[0].cell.contender, [one.history for one in of]) for of in groups.values()]
    steps = next(iter(groups.values()))[0].cell.budget.steps
    plots.learning(curves, path, title=title, steps=steps, over=over)


def last(of: Sequence[Finished], column: str) -> Estimate:
    """What the runs of a system had last in a column of the history."""
    return estimate([next(row[column] for row in reversed(one.history) if column in row) for one in of])


def interval(estimated: Estimate) -> str:
    """What stands around the middle."""
    return "IQM, 95 %" if estimated.claim else "median, range"


def at(one: Finished, column: str, seconds: float = math.inf) -> float:
    """A column of the history after so many virtual seconds, or at the end."""
    known = [row for row in one.history if column in row]
    return float(np.interp(seconds, [row["seconds"] for row in known], [row[column] for row in known]))


def ratios(of: Sequence[Finished], baseline: Sequence[Finished], column: str, seconds: float = math.inf) -> list[float]:
    """A column over the baseline's, seed by seed, after so many virtual seconds, or each at its end."""
    by_seed = {one.cell.seed: at(one, column, seconds) for one in baseline}
    return [ratio(at(one, column, seconds), by_seed[one.cell.seed]) for one in of if one.cell.seed in by_seed]


def at_equal_time(of: Sequence[Finished], baseline: Sequence[Finished]) -> list[float]:
    """Returns over the baseline's, seed by seed, at the last instant that both have seen."""
    pairs = [(one, other) for one in of for other in baseline if one.cell.seed == other.cell.seed]
    ends = [min(one.history[-1]["seconds"], other.history[-1]["seconds"]) for one, other in pairs]
    return [
        ratio(at(one, "episode_return", end), at(other, "episode_return", end))
        for (one, other), end in zip(pairs, ends, strict=True)
    ]


def swept(groups: Mapping[str, Sequence[Finished]], system: str, what: str) -> dict[float, Sequence[Finished]]:
    """The runs of a system by the value of what is varied, whose variants are called as `setting` calls them."""
    prefix = setting(system, what, "")
    return {float(name.removeprefix(prefix)): of for name, of in groups.items() if name.startswith(prefix)}


def setting(system: str, what: str, value: float | str) -> str:
    """What a variant of a system is called that has another value of something."""
    return f"{system}, {what} {value if isinstance(value, str) else f'{value:g}'}"


def line(of: Mapping[float, Sequence[Finished]], figure: Callable[[Finished], float]) -> plots.Line:
    """A figure of a system's runs over what is varied."""
    contender = next(iter(of.values()))[0].cell.contender
    return plots.Line(contender, {value: [figure(one) for one in several] for value, several in of.items()})
