"""Sweeps over the testbed's assumptions, one at a time: how does the ratio of two systems' results depend on them?"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

from rich.console import Console

from experiments.study import curves, study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import presets, testbed, testbeds
from experiments.tasks.testbed import Assumed
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate
from stellaris.systems import DataParallel, Synchronous

Groups: TypeAlias = Mapping[str, Sequence[Finished]]
#: Returns a system and its baseline, given an environment and the testbed's assumptions.
Pair: TypeAlias = Callable[[str, Assumed], tuple[Variant, Variant]]


class Swept(NamedTuple):
    """One of the testbed's assumptions with its values in the sweep."""

    label: str
    values: Mapping[float, Mapping[str, Any]]  #: the changed fields of `Assumed`, by the value on the x-axis.


_TIMES, _POWERS = (0.25, 1.0, 4.0), (0.0, 0.5, 1.0)
SWEPT: Mapping[str, Swept] = {
    "variation": Swept(
        "coefficient of variation\nof every duration",
        {cv: {"variation": cv} for cv in (0.0, testbed.VARIATION, 0.25, 0.5, 1.0)},
    ),
    "gradient": Swept(
        "time of a gradient\n/ testbed's", {time: {"gradient": time * testbed.GRADIENT} for time in _TIMES}
    ),
    "sharing": Swept(
        "slow-down of four learners\non one GPU",
        {testbeds.LEARNERS_PER_GPU**power: {"gpu_sharing": power} for power in _POWERS},
    ),
    "growth": Swept(
        "a gradient's time grows with\nthis power of its samples", {power: {"growth": power} for power in _POWERS}
    ),
    "overhead": Swept(
        "seconds per round of making\nworkers and evaluating",
        {seconds: {"overhead": seconds} for seconds in (0.0, 1.0, 5.0, 10.0)},
    ),
    "update": Swept(
        "time of an update and an invocation\n/ testbed's",
        {
            times: {"update": times * testbed.POLICY_UPDATE, "invocation": times * testbed.INVOCATION}
            for times in (0.0, 0.2, 1.0, 4.0)
        },
    ),
    "step": Swept(
        "time of an environment step\n/ testbed's", {x: {"step": x * testbed.ENVIRONMENT_STEP} for x in _TIMES}
    ),
    "places": Swept(
        "places on the machine that is\nrented for 16 actors",
        {float(places): {"actor_places": places} for places in (presets.ACTORS, testbed.SERVER_ACTORS_PLACES)},
    ),
    "idle": Swept("whether idle GPUs are billed\nby use (1) or not (0)", {0.0: {}, 1.0: {"idle_gpus": True}}),
}


class Ratio(NamedTuple):
    """The ratio of a result of one system's runs to that of another's, paired by seed."""

    label: str
    of: Callable[[Sequence[Finished], Sequence[Finished]], list[float]]


RATIOS = {
    "return": Ratio("return at equal time", curves.at_equal_time),
    "demo": Ratio("cost, demo's bill", lambda own, other: curves.ratios(own, other, "cost_demo")),
    "use": Ratio("cost by use", lambda own, other: curves.ratios(own, other, "cost_pay_per_use")),
}


def over(
    name: str,
    sizes: Mapping[str, Size],
    pair: Pair,
    swept: Sequence[str],
    systems: tuple[str, str],
    *,
    assumed: Assumed = testbed.ASSUMED,
) -> Study:
    """Returns a study of two systems over some of `SWEPT`, one at a time.

    Args:
      name: the name of the study.
      sizes: the sizes by preset.
      pair: the function that returns both systems under given assumptions.
      swept: the keys of `SWEPT` to sweep over.
      systems: the names of both systems, the baseline second.
      assumed: the values of the assumptions that are not being swept.
    """

    def variants(environment: str) -> Sequence[Variant]:
        rows: list[Variant] = []
        first: dict[str, str] = {}  # of each synchronous system the variant that learns; the others have its returns
        for what in swept:
            for value, changes in SWEPT[what].values.items():
                for row in pair(environment, replace(assumed, **changes)):
                    name = row.contender.name
                    setting = curves.setting(name, what, value)
                    timed = isinstance(row.contender.system, Synchronous | DataParallel) and name in first
                    rows.append(row._replace(setting=setting, retimes=first[name] if timed else ""))
                    first.setdefault(name, setting)
        return rows

    short = name.removeprefix("stellaris-")
    pictures = [f"{short}_{ratio}" for ratio in RATIOS]
    return Study(name, sizes, variants, lambda *of: _report(short, systems, *of), pictures)


def _report(name: str, systems: tuple[str, str], results: Sequence[Finished], out: Path, console: Console) -> None:
    """Draws and shows the ratios of the first system to the second, paired by seed."""
    rows = []
    for environment, groups in study.by_environment(results).items():
        caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
        pairs = {what: _pairs(groups, systems, what) for what in SWEPT}
        for what, found in pairs.items():
            for value, pair in found.items():
                ratios = [str(estimate(ratio.of(*pair))) for ratio in RATIOS.values()]
                rows.append((environment, f"{what} {value:g}", *ratios))
        contender = results[0].cell.contender
        for ratio_name, ratio in RATIOS.items():
            panels = [
                plots.Panel(
                    SWEPT[what].label,
                    f"{ratio.label}\n/ {systems[1]}",
                    [plots.Line(contender, {value: ratio.of(*pair) for value, pair in found.items()})],
                    level=1.0,
                    log_y=True,
                )
                for what, found in pairs.items()
                if found
            ]
            if panels:
                plots.sweep(panels, out / f"{name}_{ratio_name}_{environment}", title=caption)
    headings = ("environment", "testbed", *(ratio.label for ratio in RATIOS.values()))
    tidy.show(f"{systems[0]} / {systems[1]}", headings, rows, out, console)


def _pairs(
    groups: Groups, systems: tuple[str, str], what: str
) -> dict[float, tuple[Sequence[Finished], Sequence[Finished]]]:
    """Returns the runs of both systems by value of the swept assumption, if both have a seed in common."""
    own, other = (curves.swept(groups, system, what) for system in systems)
    return {value: (own[value], other[value]) for value in own if curves.paired(own[value], other.get(value, ()))}
