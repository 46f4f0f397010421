"""Compares fixed numbers of actors, two levels, learned schedulers and the paper's baselines, on both testbeds."""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from matplotlib.axes import Axes
from rich.console import Console

from experiments.figures.minionsrl.ceiling import Schedule
from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import minionsrl
from experiments.tasks.presets import Contender
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate
from stellaris.scheduling import Adapt, Learned, Scheduler
from stellaris.systems import Budget

DESCRIPTION = "time and cost to the target for numbers of actors, schedules, trained schedulers and baselines"

ALL = Schedule(minionsrl.ACTORS, minionsrl.ACTORS, 0)
#: The schedules: fixed numbers, and two levels. Chosen before any run on MuJoCo.
SCHEDULES = (
    ALL,
    *(Schedule(number, number, 0) for number in (24, 16, 12, 8, 4)),
    Schedule(8, 32, 16),
    Schedule(32, 8, 16),
)
_FEW = (ALL, Schedule(8, 8, 0))


#: The environment and the testbed whose schedulers also decide on the authors' learner of other environments.
SOURCE = ("CartPole-v1", "authors")


def learned(environment: str, testbed: str) -> Mapping[str, Learned]:
    """Returns the schedulers that were trained on a testbed, and on `SOURCE` for the authors' learner elsewhere."""
    if (environment, testbed) not in minionsrl.BUDGETS:
        return {}
    found = _trained(environment, testbed)
    if environment != SOURCE[0] and testbed.startswith("authors"):
        found |= {f"{name}, on {SOURCE[0]}": one for name, one in _trained(*SOURCE).items()}
    return found


def _trained(environment: str, testbed: str) -> dict[str, Learned]:
    """Loads the schedulers that were trained on a testbed, by objective."""
    names = {minimise: f"{environment}-{testbed}-{minimise}.npz" for minimise in ("cost", "time")}
    found = {minimise: minionsrl.SCHEDULERS / name for minimise, name in names.items()}
    return {f"learned, for {minimise}": Learned.load(path) for minimise, path in found.items() if path.exists()}


def _variants(environment: str, schedules: Sequence[Schedule] = SCHEDULES) -> Sequence[Variant]:
    """Returns each schedule, each trained scheduler and each baseline, on each testbed of an environment."""
    return [
        variant
        for testbed, task in minionsrl.testbeds_of(environment).items()
        for variant in _of(testbed, task, environment, schedules)
    ]


def _of(testbed: str, task: minionsrl.Task, environment: str, schedules: Sequence[Schedule]) -> Iterator[Variant]:
    """Yields the variants of a testbed. Only a learned scheduler has a budget, because it observes what is left."""

    def variant(contender: Contender, limits: Budget = task.limits) -> Variant:
        factors = {"testbed": testbed, "schedule": contender.name}
        name = f"{testbed}: {contender.name}"
        return Variant(contender, task.workload, name, task.evaluation, limits=limits, factors=factors)

    named: dict[str, Scheduler] = {str(one): one for one in schedules}
    if task.target > 0:  # otherwise Adapt has no share of the target that is reached
        named[minionsrl.ADAPT] = Adapt(task.target)
    for name, scheduler in named.items():
        yield variant(minionsrl.minions(name, scheduler, task.ppo, deployed=task.functions))
    for name, scheduler in learned(environment, testbed).items():
        budget = minionsrl.BUDGETS[environment, testbed]
        contender = minionsrl.minions(name, scheduler, task.ppo, deployed=task.functions)
        yield variant(contender, replace(task, budget=budget).limits)
    for contender in minionsrl.baselines(environment, task):
        yield variant(contender)


_WHOLE = Size(("CartPole-v1", "Hopper-v4", "HalfCheetah-v4"), 10_000_000, 20)
SIZES = {
    "smoke": Size(("CartPole-v1",), 8_192, 1, lambda environment: _variants(environment, _FEW)),
    "small": _WHOLE,
    "paper": _WHOLE,  # for `reproduce`; not in the paper
}


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Shows each scheduler's time and cost, also relative to all actors on the same seeds, and draws both."""
    console.width = max(console.width, 200)
    rows = []
    drawn: dict[str, dict[str, dict[str, Sequence[Finished]]]] = {}
    for environment, groups in study.by_environment(results).items():
        testbeds = drawn.setdefault(environment, {})
        for of in groups.values():
            factors = of[0].cell.factors
            testbeds.setdefault(factors["testbed"], {})[factors["schedule"]] = of
        for testbed, own in testbeds.items():
            everyone = {one.cell.seed: one for one in own.get(str(ALL), ())}
            rows += [(environment, testbed, name, *_columns(of, everyone)) for name, of in own.items()]
    spent = ("s", "USD", "USD, Azure")
    headings = (
        "environment",
        "testbed",
        "actors",
        "reached",
        "mean actors",
        *spent,
        *(f"{one} / all" for one in spent),
    )
    tidy.show("to the target", headings, rows, out, console)
    for environment, testbeds in drawn.items():
        with plots.figure(
            out / f"numbers_{environment}", environment, columns=len(testbeds), suffixes=(".png", ".pdf")
        ) as panels:
            for axes, (testbed, own) in zip(panels, testbeds.items(), strict=True):
                _draw(own, axes, testbed)


def _columns(of: Sequence[Finished], everyone: Mapping[int, Finished]) -> Sequence[str]:
    """Returns the cells of a row. Times and ratios leave out runs that miss the target."""
    there = [one for one in of if reached(one)]
    pairs = [(one, other) for one in there if (other := everyone.get(one.cell.seed)) is not None and reached(other)]
    actors = [[row["actors"] for row in one.history if "actors" in row] for one in of]
    spent = [[one.history[-1][column] for one in there] for column in SPENT]
    ratios = [[one.history[-1][column] / other.history[-1][column] for one, other in pairs] for column in SPENT]
    mean = f"{sum(sum(one) / len(one) for one in actors) / len(actors):.1f}" if all(actors) else ""
    return (
        f"{len(there)} of {len(of)}",
        mean,
        *(str(estimate(column)) if column else "" for column in (*spent, *ratios)),
    )


#: Columns of a history: the seconds, the cost by Eq. 2, and that under Azure's bill.
SPENT = ("seconds", "cost_pay_per_use", "cost_azure")


def reached(one: Finished) -> bool:
    """Whether a run has reached its target within its budget."""
    limits, last = one.cell.budget, one.history[-1]
    by_window = last["episodes"] >= limits.window and last["episode_return"] >= limits.target_return
    by_evaluation = last.get("evaluation_return", -math.inf) >= limits.target_evaluation
    return bool((by_window or by_evaluation) and last["cost_pay_per_use"] <= limits.cost)


def _draw(own: Mapping[str, Sequence[Finished]], axes: Axes, title: str) -> None:
    """Draws the median cost of each scheduler over its median time; schedules have labels, others are in the legend."""
    for name, of in own.items():
        there = [one for one in of if reached(one)]
        if not there:
            continue
        x, y = (estimate([one.history[-1][column] for one in there]) for column in SPENT[:2])
        # Runs that miss the target or their budget are left out, which flatters the others: the label says how many.
        label = name if len(there) == len(of) else f"{name}: {len(there)} of {len(of)} runs"
        marker, colour = _style(name)
        schedule = name[0].isdigit()
        axes.plot(x.middle, y.middle, marker, color=colour, ms=4, label=None if schedule else label)
        axes.plot([x.low, x.high], [y.middle] * 2, color=colour, lw=0.7)
        axes.plot([x.middle] * 2, [y.low, y.high], color=colour, lw=0.7)
        if schedule:
            axes.annotate(label, (x.middle, y.middle), xytext=(3, 3), textcoords="offset points", fontsize=7)
    axes.set_title(title, fontsize=9)
    axes.set_xlabel("seconds to the target")
    axes.set_ylabel("USD by Eq. 2")
    if axes.get_legend_handles_labels()[0]:
        axes.margins(y=0.25)  # room for the legend
        axes.legend(fontsize=7, loc="best")


#: Markers and colours of the baselines, as in the other pictures.
_BASELINES = {minionsrl.ADAPT: ("^", "#E69F00"), minionsrl.AZURE: ("v", "#D55E00"), minionsrl.IMPACT: ("P", "#56B4E9")}


def _style(name: str) -> tuple[str, str]:
    """Returns the marker and the colour of a fixed number, of two levels, of a learned scheduler or of a baseline."""
    if name in _BASELINES:
        return _BASELINES[name]
    if name.startswith("learned"):
        return ("s", "#009E73") if "time" in name else ("D", "#CC79A7")
    return ("o", "#E69F00") if "," in name else ("o", "#0072B2")


STUDY = Study("minionsrl-numbers", SIZES, _variants, _report, ("numbers",))
add_arguments, main = STUDY.add_arguments, STUDY.main
