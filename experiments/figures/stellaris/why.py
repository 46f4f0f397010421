"""Decomposes the gain of Stellaris in its authors' demo: from the demo's baseline, one change at a time."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeAlias

from rich.console import Console

from experiments.figures.stellaris.motivation import EVALUATION, SIZES
from experiments.study import curves, study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Study, Variant
from experiments.tasks.presets import ACTORS, DEMO, FRAGMENT, LEARNERS, demo_ppo, on_demand, paper
from experiments.tasks.testbed import Assumed
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate
from stellaris import fully_asynchronous
from stellaris.systems import StalenessControl, Stellaris, Synchronous

DESCRIPTION = (
    "from the demo's baseline to its Stellaris, one change at a time: gradients, minibatches, functions, asynchrony"
)

#: The suffix of the settings of runs without overhead in their rounds.
_WITHOUT = ", 0 s"
#: A part of the names of their pictures.
_NO_OVERHEAD = "_no_overhead"

Groups: TypeAlias = Mapping[str, Sequence[Finished]]


def _variants(environment: str) -> Sequence[Variant]:
    """Returns the changes twice: on the demo's testbed, and on this testbed without the overhead of its rounds."""
    return [*_changes(environment, DEMO), *_changes(environment, replace(DEMO, overhead=0.0), _WITHOUT)]


def _changes(environment: str, assumed: Assumed, suffix: str = "") -> list[Variant]:
    """Returns variants that each change one setting of the previous variant.

    The exception is the third variant, which changes the first variant: it makes the same number of passes over a
    batch, but in smaller minibatches. "no waiting" is the demo as it runs, in which all gradients have the weight 1;
    "weights" adds the paper's weights.
    """
    preset = paper(environment, assumed)
    stellaris, baseline = preset.contenders
    batch = ACTORS * FRAGMENT
    quarter = demo_ppo(batch // LEARNERS)
    plain = Stellaris(
        quarter,
        learners=LEARNERS,
        aggregator=fully_asynchronous(capacity=2 * LEARNERS),
        rho=math.inf,
        control=StalenessControl(pace=0),
    )
    demo = stellaris.system
    assert isinstance(demo, Stellaris)
    aggregator: Any = demo.aggregator
    smaller = replace(baseline, system=Synchronous(quarter))
    rows = {
        "baseline": baseline,
        "4 x gradients": replace(baseline, system=Synchronous(demo_ppo(batch, epochs=40))),
        "minibatches / 4": smaller,
        "serverless": on_demand(smaller, assumed),
        "asynchrony": replace(stellaris, system=plain),
        "cap": replace(stellaris, system=replace(plain, rho=demo.rho)),
        "groups": replace(stellaris, system=replace(demo, control=plain.control)),
        "no waiting": stellaris,
        "weights": replace(stellaris, system=replace(demo, aggregator=replace(aggregator, smoothness=3.0))),
    }
    return [Variant(row, preset.workload, setting + suffix, EVALUATION) for setting, row in rows.items()]


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Draws and shows ratios to the baseline, paired by seed; the table also has ratios to the previous variant."""
    rows: list[Sequence[str]] = []
    for environment, groups, suffix in _ladders(results):
        if "baseline" not in groups:
            continue
        groups = {name: of for name, of in groups.items() if curves.paired(of, groups["baseline"])}
        until = min(one.history[-1]["seconds"] for one in groups["baseline"])
        returns = {
            "return when the baseline ends\n/ baseline's": _ratios(groups, "episode_return", until),
            "mean return until then\n/ baseline's": {
                name: curves.means(of, groups["baseline"], "episode_return", until) for name, of in groups.items()
            },
            "by evaluation, when it ends\n/ baseline's": _ratios(groups, "evaluation_return", until),
            "return at equal steps\n/ baseline's": _ratios(groups, "episode_return", math.inf),
        }
        spent = {
            # All variants rent the same machines under the demo's bill, which is in proportion to the time.
            "virtual time, and demo's bill\n/ baseline's": _ratios(groups, "seconds", math.inf),
            "cost by use\n/ baseline's": _ratios(groups, "cost_pay_per_use", math.inf),
        }
        colours = [of[0].cell.contender.colour for of in groups.values()]
        caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
        for name, panels in (("returns", returns), ("spent", spent)):
            path = out / f"why_{name}{_NO_OVERHEAD if suffix else ''}_{environment}"
            plots.waterfall(panels, path, colours=colours, title=caption)
        before = {name: groups[earlier] for earlier, name in itertools.pairwise(groups)}
        together = (*returns.values(), *spent.values())
        for name, of in groups.items():
            steps = curves.ratios(of, before[name], "episode_return") if name in before else []
            step = str(estimate(steps)) if steps else ""
            rows.append((environment, name + suffix, step, *(str(estimate(ratios[name])) for ratios in together)))
    headings = ("environment", "with", "/ row before", "return, equal time", "mean until then", "by evaluation")
    tidy.show("ratios to the demo's baseline", (*headings, "equal steps", "virtual time", "by use"), rows, out, console)


def _ladders(results: Sequence[Finished]) -> Iterator[tuple[str, Groups, str]]:
    """Yields, with and without overhead, an environment, its runs by change, and the suffix of their settings."""
    for environment, groups in study.by_environment(results).items():
        for suffix in ("", _WITHOUT):
            of = {name: runs for name, runs in groups.items() if name.endswith(_WITHOUT) == bool(suffix)}
            yield environment, {name.removesuffix(suffix): runs for name, runs in of.items()}, suffix


def _ratios(groups: Groups, column: str, until: float) -> dict[str, list[float]]:
    """Returns ratios of a column to the baseline's, paired by seed, per variant.

    Args:
      groups: finished runs by variant.
      column: a column of the history.
      until: the instant, in virtual seconds, at which the column is read.
    """
    baseline = groups["baseline"]
    return {name: curves.ratios(of, baseline, column, until) for name, of in groups.items()}


def _smoke(environment: str) -> Sequence[Variant]:
    """Returns the variants, except the two that sample two rounds before a learner starts if rounds lack overhead."""
    return [row for row in _variants(environment) if row.setting not in (f"no waiting{_WITHOUT}", f"weights{_WITHOUT}")]


_SIZES = {**SIZES, "smoke": SIZES["smoke"]._replace(variants=_smoke)}
_PICTURES = [f"why_{name}{suffix}" for suffix in ("", _NO_OVERHEAD) for name in ("returns", "spent")]
STUDY = Study("stellaris-why", _SIZES, _variants, _report, _PICTURES)
add_arguments, main = STUDY.add_arguments, STUDY.main
