"""Reports the costs of the training runs under both bills, in total and up to the paper's target returns."""

import math
from collections.abc import Sequence
from pathlib import Path

from rich.console import Console

from experiments.figures.stellaris import training
from experiments.study import curves, study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Study
from experiments.tasks.presets import TARGETS
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate

DESCRIPTION = "cost of training under the demo's bill and by use, for Stellaris and the systems it is compared with"


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        curves.draw(groups, out / f"cost_{environment}", title=environment, over=plots.TIME_AND_COST)
        target = TARGETS.get(environment, math.inf)
        for name, of in groups.items():
            bills = [str(curves.last(of, column)) for column in ("cost_demo", "cost_pay_per_use")]
            reached = [spent for one in of if (spent := curves.cost_to(one, target)) is not None]
            cost = str(estimate(reached)) if reached else "-"
            rows.append((environment, name, *bills, f"{target:g}", f"{len(reached)} of {len(of)}", cost))
    headings = ("environment", "system", "USD demo", "USD use", "target", "reached", "USD by use to the target")
    tidy.show("cost of training", headings, rows, out, console)


# The study has the variants of `stellaris-training`, so that the two studies share their runs.
STUDY = Study("stellaris-cost", training.SIZES, training.tuned, _report, ("cost",))
add_arguments, main = STUDY.add_arguments, STUDY.main
