"""The paper's motivation: reward and cost of PPO, on reserved machines and on asynchronous serverless functions."""

import argparse
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments import curves, plots, runs, study
from experiments.cells import Finished
from experiments.presets import paper
from experiments.study import Size, Study

DESCRIPTION = "reward and cost of PPO, serverful against asynchronous serverless, with the demo's own settings"

#: The demo: 20 rounds of 16 x 256 steps.
_STEPS = 20 * 16 * 256
SIZES = {
    "smoke": Size(("CartPole-v1",), 8_192, 1),
    "small": Size(("Hopper-v4",), _STEPS, 5),
    "paper": Size(("Hopper-v4", "Humanoid-v4", "Walker2d-v4"), _STEPS, 10),
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's options."""
    study.add_arguments(parser, SIZES)


def main(arguments: argparse.Namespace) -> int:
    """Runs both systems on the same seeds."""
    size, seeds = study.chosen(arguments, SIZES)
    cells = []
    for environment in size.environments:
        preset = paper(environment)
        runs.check(preset.workload)
        cells += curves.cells(preset, ("synchronous", "stellaris"), size.steps, seeds)
    return study.main(Study("stellaris-motivation", cells, _report), arguments)


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in curves.by_environment(results):
        curves.draw(groups, out / f"motivation_{environment}", title=environment, over=plots.TIME_AND_COST)
        for name, of in groups.items():
            final, seconds = curves.last(of, "episode_return"), curves.last(of, "seconds")
            bills = [f"{curves.last(of, column).middle:.4f}" for column in ("cost_demo", "cost_pay_per_use")]
            rows.append((environment, name, str(final), f"{seconds.middle:,.1f}", *bills, curves.interval(final)))
    headings = ("environment", "system", "return", "virtual s", "USD demo", "USD use", "interval")
    console.print(study.table("the authors' demo's settings", headings, rows))
