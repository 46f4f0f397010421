"""Where a factor comes from: from the demo's baseline to its Stellaris, one change at a time."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeAlias

from rich.console import Console

from experiments import curves, plots, study
from experiments.cells import Finished
from experiments.presets import ACTORS, FRAGMENT, LEARNERS, demo_ppo, paper
from experiments.statistics import estimate
from experiments.stellaris_motivation import EVALUATION, SIZES
from experiments.study import Study, Variant
from stellaris import fully_asynchronous
from stellaris.systems import StalenessControl, Stellaris, Synchronous

DESCRIPTION = "from the demo's baseline to its Stellaris: gradients, minibatches, asynchrony, cap and weights in turn"

Groups: TypeAlias = Mapping[str, Sequence[Finished]]


def _variants(environment: str) -> Sequence[Variant]:
    """Each is the one before it with one change."""
    preset = paper(environment)
    stellaris, baseline = preset.contenders
    batch = ACTORS * FRAGMENT
    quarter = demo_ppo(batch // LEARNERS)
    as_they_come = fully_asynchronous(capacity=2 * LEARNERS)
    in_rounds = StalenessControl(pace=0)
    plain = Stellaris(quarter, learners=LEARNERS, aggregator=as_they_come, rho=math.inf, control=in_rounds)
    capped = Stellaris(quarter, learners=LEARNERS, aggregator=as_they_come, rho=1.0, control=in_rounds)
    rows = {
        "baseline": baseline,
        "4 x gradients": replace(baseline, system=Synchronous(demo_ppo(batch, epochs=40))),
        "minibatches / 4": replace(baseline, system=Synchronous(quarter)),
        "asynchrony": replace(stellaris, system=plain),
        "cap": replace(stellaris, system=capped),
        "weights, threshold": stellaris,
    }
    return [Variant(row, preset.workload, setting, EVALUATION) for setting, row in rows.items()]


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """All as ratios to the baseline, seed by seed."""
    rows: list[Sequence[str]] = []
    for environment, groups in study.by_environment(results).items():
        if "baseline" not in groups:
            continue
        until = min(one.history[-1]["seconds"] for of in groups.values() for one in of)
        evaluated = ("evaluated", "evaluation_return")
        returns = {
            "return at equal time\n/ baseline's": _ratios(groups, "episode_return", until, evaluated),
            "return at equal steps\n/ baseline's": _ratios(groups, "episode_return", math.inf, evaluated),
        }
        spent = {
            "virtual time\n/ baseline's": _ratios(groups, "seconds", math.inf),
            "cost, demo's bill\n/ baseline's": _ratios(
                groups, "cost_demo", math.inf, ("billed by use", "cost_pay_per_use")
            ),
        }
        colours = [of[0].cell.contender.colour for of in groups.values()]
        caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
        for name, panels in (("returns", returns), ("spent", spent)):
            plots.waterfall(panels, out / f"why_{name}_{environment}", colours=[*colours, colours[-1]], title=caption)
        together = (*returns.values(), *spent.values())
        names = dict.fromkeys(name for changes in together for name in changes)
        rows += [
            (environment, name, *(str(estimate(of[name])) if name in of else "" for of in together)) for name in names
        ]
    headings = ("environment", "with", "return, equal time", "return, equal steps", "virtual time", "cost")
    console.print(study.table("ratios to the demo's baseline", headings, rows))


def _ratios(groups: Groups, column: str, until: float, last: tuple[str, str] | None = None) -> dict[str, list[float]]:
    """A column of each variant over that of the baseline, seed by seed; and the last variant by another column."""
    baseline = groups["baseline"]
    ratios = {name: curves.ratios(of, baseline, column, until) for name, of in groups.items()}
    if last is not None:
        name, other = last
        ratios[name] = curves.ratios([*groups.values()][-1], baseline, other, until)
    return ratios


STUDY = Study("stellaris-why", SIZES, _variants, _report)
add_arguments, main = STUDY.add_arguments, STUDY.main
