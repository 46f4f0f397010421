"""What several studies do with the runs of systems: they are drawn as curves, and put into a table."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from experiments import plots
from experiments.cells import Finished
from experiments.statistics import Estimate, estimate


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
