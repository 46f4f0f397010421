"""When the headline ratios hold: over stragglers, the time of a gradient, and how learners slow each other down."""

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeAlias

from rich.console import Console

from experiments import curves, plots, presets, study, testbed, tidy, variants
from experiments.cells import Finished
from experiments.presets import Contender
from experiments.statistics import estimate
from experiments.study import Study, Variant
from experiments.testbed import Assumed
from stellaris.runtime import testbeds

DESCRIPTION = "the headline ratios over straggler variation, the time of a gradient, and the slow-down of a shared GPU"

Groups: TypeAlias = Mapping[str, Sequence[Finished]]


class Swept(NamedTuple):
    """One of the testbed's assumptions, and the values that it is given."""

    label: str
    values: Mapping[float, Assumed]


_TIMES, _SHARING = (0.25, 1.0, 4.0), (0.0, testbed.GPU_SHARING, 1.0)
SWEPT: Mapping[str, Swept] = {
    "variation": Swept(
        "coefficient of variation\nof every duration",
        {cv: Assumed(variation=cv) for cv in (0.0, testbed.VARIATION, 0.25, 0.5, 1.0)},
    ),
    "gradient": Swept(
        "time of a gradient\n/ testbed's", {time: Assumed(gradient=time * testbed.GRADIENT) for time in _TIMES}
    ),
    "sharing": Swept(
        "slow-down of four learners\non one GPU",
        {testbeds.LEARNERS_PER_GPU**power: Assumed(gpu_sharing=power) for power in _SHARING},
    ),
}


def _variants(environment: str) -> Sequence[Variant]:
    """Both systems of `tuned` on every testbed; what is not swept is as it is assumed elsewhere."""
    rows = variants.of_preset(presets.tuned(environment), ("stellaris", "synchronous"))
    return [
        row._replace(contender=_on(assumed, row.contender), setting=curves.setting(row.contender.name, name, value))
        for name, swept in SWEPT.items()
        for value, assumed in swept.values.items()
        for row in rows
    ]


def _on(assumed: Assumed, row: Contender) -> Contender:
    """The same system on another testbed."""
    return presets.contender(row.name, row.system, colour=row.colour, line=row.line, assumed=assumed)


class Ratio(NamedTuple):
    """What is compared: the runs of Stellaris with those of the synchronous system, seed by seed."""

    label: str
    of: Callable[[Sequence[Finished], Sequence[Finished]], list[float]]


RATIOS = {
    "return": Ratio("return at equal time", curves.at_equal_time),
    "demo": Ratio("cost, demo's bill", lambda own, other: curves.ratios(own, other, "cost_demo")),
    "use": Ratio("cost by use", lambda own, other: curves.ratios(own, other, "cost_pay_per_use")),
}


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Ratios seed by seed: Stellaris over the synchronous system."""
    rows = []
    for environment, groups in study.by_environment(results).items():
        caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
        pairs = {name: _pairs(groups, name) for name in SWEPT}
        for name, found in pairs.items():
            for value, pair in found.items():
                ratios = [str(estimate(ratio.of(*pair))) for ratio in RATIOS.values()]
                rows.append((environment, f"{name} {value:g}", *ratios))
        contender = results[0].cell.contender
        for ratio_name, ratio in RATIOS.items():
            panels = [
                plots.Panel(
                    SWEPT[name].label,
                    f"{ratio.label}\n/ synchronous",
                    [plots.Line(contender, {value: ratio.of(*pair) for value, pair in found.items()})],
                    level=1.0,
                )
                for name, found in pairs.items()
                if found
            ]
            if panels:
                plots.sweep(panels, out / f"sweeps_{ratio_name}_{environment}", title=caption)
    headings = ("environment", "testbed", *(ratio.label for ratio in RATIOS.values()))
    tidy.show("Stellaris over the synchronous system", headings, rows, out, console)


def _pairs(groups: Groups, name: str) -> dict[float, tuple[Sequence[Finished], Sequence[Finished]]]:
    """By the value of what is swept, the runs of both systems, where there are both."""
    own, other = (curves.swept(groups, system, name) for system in ("stellaris", "synchronous"))
    return {value: (own[value], other[value]) for value in own if value in other}


STUDY = Study("stellaris-sweeps", variants.SIZES, _variants, _report)
add_arguments, main = STUDY.add_arguments, STUDY.main
