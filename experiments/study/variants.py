"""Studies of one system in several settings: what each comes to, beside the others, on the same seeds."""

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

#: In two rounds of a batch the learner that starts on demand makes no gradient yet.
SIZES = {
    "smoke": Size(("CartPole-v1",), 12_288, 1),
    "small": Size(("Hopper-v4",), 300_000, 5),
    "paper": Size(("Hopper-v4", "Qbert-v5"), 1_000_000, 5),
}


def of_preset(preset: Preset, systems: Sequence[str]) -> list[Variant]:
    """A preset's systems of these names, as they are."""
    return [Variant(row, preset.workload) for row in preset.contenders if row.name in systems]


def of_stellaris(environment: str, changes: Mapping[str, Mapping[str, Any]]) -> list[Variant]:
    """`tuned`'s Stellaris with fields of it changed, by the name of the variant; on functions for as many learners."""
    (row,) = (row for row in presets.tuned(environment).contenders if isinstance(row.system, Stellaris))
    workload = presets.workload(environment)
    systems = {name: replace(row.system, **fields) for name, fields in changes.items()}  # type: ignore[type-var]
    return [
        Variant(presets.contender(row.name, system, colour=row.colour, line=row.line), workload, name)
        for name, system in systems.items()
    ]


def compared(name: str, variants: Callable[[str], Sequence[Variant]]) -> Study:
    """A study that shows what each variant comes to."""
    return Study(name, SIZES, variants, lambda *of: _report(name, *of), (name,))


def _report(name: str, results: Sequence[Finished], out: Path, console: Console) -> None:
    """Return, time, staleness and both bills of every variant."""
    rows = []
    for environment, groups in study.by_environment(results).items():
        bars = {setting: column(of, "final_return") for setting, of in groups.items()}
        colours = {setting: of[0].cell.contender.colour for setting, of in groups.items()}
        caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
        plots.bars(bars, colours, out / f"{name}_{environment}", title=caption)
        for setting, of in groups.items():
            middles = [
                estimate(column(of, figure)).middle
                for figure in ("virtual_seconds", "gradients", "versions", "staleness_mean")
            ]
            bills = [estimate(column(of, bill)).middle for bill in ("cost_demo", "cost_pay_per_use")]
            figures = [f"{middle:,.4g}" for middle in middles] + [f"{bill:.4f}" for bill in bills]
            rows.append((environment, setting, str(estimate(bars[setting])), str(len(of)), *figures))
    headings = ("environment", "variant", "return", "seeds", "virtual s", "gradients", "versions", "staleness")
    tidy.show(name, (*headings, "USD demo", "USD use"), rows, out, console)


def column(of: Sequence[Finished], name: str) -> list[float]:
    """One figure of each run's summary; 0 where there is none."""
    return [float(result.summary[name] or 0.0) for result in of]
