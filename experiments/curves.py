"""What several studies do with the runs of systems: they are grouped, drawn as curves, and put into a table."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from experiments import plots
from experiments.cells import Cell, Finished
from experiments.presets import Preset
from experiments.statistics import Estimate, estimate
from stellaris.systems import Budget


def cells(preset: Preset, systems: Sequence[str], steps: int, seeds: Sequence[int]) -> list[Cell]:
    """The runs of a preset's systems by name, for as many steps."""
    return [
        Cell(contender, preset.workload, Budget(steps=steps), seed)
        for contender in preset.contenders
        if contender.name in systems
        for seed in seeds
    ]


def by_environment(results: Sequence[Finished]) -> Iterator[tuple[str, Mapping[str, Sequence[Finished]]]]:
    """For each environment the runs by their system's name, in the order in which they were declared."""
    for environment in dict.fromkeys(result.cell.environment for result in results):
        here = [result for result in results if result.cell.environment == environment]
        names = dict.fromkeys(result.cell.contender.name for result in here)
        yield environment, {name: [one for one in here if one.cell.contender.name == name] for name in names}


def draw(groups: Mapping[str, Sequence[Finished]], path: Path, *, title: str, over: Mapping[str, str]) -> None:
    """Returns over some columns of the history."""
    first = next(iter(groups.values()))[0].cell
    curves = [plots.Curves(of[0].cell.contender, [one.history for one in of]) for of in groups.values()]
    plots.learning(curves, path, title=title, steps=first.budget.steps, over=over)


def last(of: Sequence[Finished], column: str) -> Estimate:
    """Where the runs of a system ended, in a column of the history."""
    return estimate([one.history[-1][column] for one in of])


def interval(estimated: Estimate) -> str:
    """What stands around the middle."""
    return "IQM, 95 %" if estimated.claim else "median, range"
