"""Studies of one system in several settings: what each comes to, beside the others, on the same seeds."""

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments import plots, presets, runs, study
from experiments.cells import Cell, Finished
from experiments.presets import Contender
from experiments.statistics import estimate
from experiments.study import Size, Study
from stellaris.systems import Budget, Stellaris

#: By name, what an environment is learned by, in the order in which it is shown.
Variants = Callable[[str], Mapping[str, Contender]]

SIZES = {
    "smoke": Size(("CartPole-v1",), 8_192, 1),
    "small": Size(("Hopper-v4",), 300_000, 5),
    "paper": Size(("Hopper-v4", "Qbert-v5"), 1_000_000, 5),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's options."""
    study.add_arguments(parser, SIZES)


def main(name: str, variants: Variants, arguments: argparse.Namespace) -> int:
    """Runs a study of variants, prints them in a table, and draws them."""
    size, seeds = study.chosen(arguments, SIZES)
    cells = []
    for environment in size.environments:
        workload = presets.workload(environment)
        runs.check(workload)
        for setting, contender in variants(environment).items():
            cells += [Cell(contender, workload, Budget(steps=size.steps), seed, setting) for seed in seeds]
    return study.main(Study(name, cells, lambda *of: _report(name, *of)), arguments)


def of_stellaris(environment: str, changes: Mapping[str, Mapping[str, Any]]) -> Mapping[str, Contender]:
    """`tuned`'s Stellaris with fields of it changed, by the name of the variant."""
    (row,) = (row for row in presets.tuned(environment).contenders if isinstance(row.system, Stellaris))
    return {
        name: replace(row, system=replace(row.system, **fields))  # type: ignore[type-var]
        for name, fields in changes.items()
    }


def _report(name: str, results: Sequence[Finished], out: Path, console: Console) -> None:
    """Return, time, staleness and both bills of every variant."""
    rows = []
    for environment in dict.fromkeys(result.cell.environment for result in results):
        here = [result for result in results if result.cell.environment == environment]
        groups = {
            setting: [result for result in here if result.cell.setting == setting]
            for setting in dict.fromkeys(result.cell.setting for result in here)
        }
        bars = {setting: _summaries(of, "final_return") for setting, of in groups.items()}
        colours = {setting: of[0].cell.contender.colour for setting, of in groups.items()}
        steps = here[0].cell.budget.steps
        plots.bars(bars, colours, out / f"{name}_{environment}", title=f"{environment}: {steps:,.0f} steps a run")
        for setting, of in groups.items():
            final = estimate(bars[setting])
            middles = [
                estimate(_summaries(of, column)).middle
                for column in ("virtual_seconds", "gradients", "versions", "staleness_mean")
            ]
            bills = [estimate(_summaries(of, column)).middle for column in ("cost_demo", "cost_pay_per_use")]
            figures = [f"{middle:,.4g}" for middle in middles] + [f"{bill:.4f}" for bill in bills]
            rows.append((environment, setting, str(final), str(len(of)), *figures))
    headings = ("environment", "variant", "return", "seeds", "virtual s", "gradients", "versions", "staleness")
    console.print(study.table(name, (*headings, "USD demo", "USD use"), rows))


def _summaries(of: Sequence[Finished], column: str) -> list[float]:
    """One figure of each run; 0 where there is none."""
    return [float(result.summary[column] or 0.0) for result in of]
