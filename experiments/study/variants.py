"""Studies that compare settings of one system on the same seeds."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import presets
from experiments.tasks.presets import Preset
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate
from stellaris.systems import Stellaris

#: "smoke" has three rounds: within two rounds, a learner that starts on demand computes no gradient.
SIZES = {
    "smoke": Size(("CartPole-v1",), 12_288, 1),
    "small": Size(("Hopper-v4",), 300_000, 5),
    "paper": Size(("Hopper-v4", "Qbert-v5"), 1_000_000, 5),
}


def of_preset(preset: Preset, systems: Sequence[str]) -> list[Variant]:
    """Returns the systems of a preset that have these names."""
    return [Variant(row, preset.workload) for row in preset.contenders if row.name in systems]


def of_stellaris(environment: str, changes: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    """Returns variants of the tuned Stellaris, each with functions for its number of learners.

    Args:
      environment: the environment's name.
      changes: the changed fields of `Stellaris`, by name of the variant.
    """
    (row,) = (row for row in presets.tuned(environment).contenders if isinstance(row.system, Stellaris))
    workload = presets.workload(environment)
    systems = {name: replace(row.system, **fields) for name, fields in changes.items()}  # type: ignore[type-var]
    return [
        Variant(presets.contender(row.name, system, colour=row.colour, line=row.line), workload, name)
        for name, system in systems.items()
    ]


def compared(name: str, variants: Callable[[str], Sequence[Variant]]) -> Study:
    """Returns a study that compares the results of variants, at the sizes of this module."""
    return compared_at(name, SIZES, variants)


def compared_at(name: str, sizes: Mapping[str, Size], variants: Callable[[str], Sequence[Variant]]) -> Study:
    """Returns a study that compares the results of variants.

    Args:
      name: the name of the study, of its folder and of its picture.
      sizes: the sizes by preset, `"small"` among them.
      variants: the function that returns the variants for an environment.
    """
    return Study(name, sizes, variants, lambda *of: _report(name, *of), (name,))


def _report(name: str, results: Sequence[Finished], out: Path, console: Console) -> None:
    """Draws the returns, and shows return, time, staleness and both bills of every variant."""
    rows = []
    for environment, groups in study.by_environment(results).items():
        bars = {setting: column(of, "final_return") for setting, of in groups.items()}
        colours = {setting: of[0].cell.contender.colour for setting, of in groups.items()}
        caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
        plots.bars(bars, colours, out / f"{name}_{environment}", title=caption)
        for setting, of in groups.items():
            figures = [middle(of, figure) for figure in ("virtual_seconds", "gradients", "versions", "staleness_mean")]
            bills = [middle(of, bill, ".4f") for bill in ("cost_demo", "cost_pay_per_use")]
            means = estimate([one.mean_return for one in of])
            rows.append(
                (environment, setting, str(estimate(bars[setting])), str(means), str(len(of)), *figures, *bills)
            )
    headings = (
        "environment",
        "variant",
        "return",
        "mean over the run",
        "seeds",
        "virtual s",
        "gradients",
        "versions",
        "staleness",
    )
    tidy.show(name, (*headings, "USD demo", "USD use"), rows, out, console)


def middle(of: Sequence[Finished], name: str, spec: str = ",.4g") -> str:
    """Returns the centre of one number of the runs that have it, such as staleness; blank if no run has it."""
    values = [float(result.summary[name]) for result in of if result.summary[name] is not None]
    return format(estimate(values).middle, spec) if values else ""


def styled(one: Finished, name: str, colour: str, line: Any) -> Finished:
    """Returns a run whose contender has another name and line style, for pictures."""
    contender = replace(one.cell.contender, name=name, colour=colour, line=line)
    return replace(one, cell=replace(one.cell, contender=contender))


def column(of: Sequence[Finished], name: str) -> list[float]:
    """Returns one number of each run's summary, NaN for None: a return without a finished episode is unknown."""
    return [math.nan if result.summary[name] is None else float(result.summary[name]) for result in of]
