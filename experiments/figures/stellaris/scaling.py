"""Scaling from one function to a thousand: speed and cost of sampling, and staleness of gradients."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console

from experiments.study import curves, study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import presets
from experiments.tasks.presets import ACTORS, FRAGMENT, Contender
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate
from stellaris import staleness_aware
from stellaris.systems import DataParallel, Stellaris

DESCRIPTION = (
    "speed, cost, staleness and return with 1 to 1,024 actors on shorter and shorter fragments, and 1 to 64 learners"
)

#: The batch has the demo's size for every number of actors, so a fragment has from 4,096 down to 4 steps. Four of
#: Stellaris' learners share a GPU; each data-parallel learner has its own.
BATCH = ACTORS * FRAGMENT
ACTOR_FUNCTIONS, LEARNER_FUNCTIONS = (1, 4, 16, 64, 256, 1024), (1, 4, 16, 64)
SIZES = {
    "smoke": Size(("CartPole-v1",), 3 * BATCH, 1),
    "small": Size(("Hopper-v4",), 20 * BATCH, 5),
    "paper": Size(("Hopper-v4", "Humanoid-v4", "Walker2d-v4"), 100 * BATCH, 5),
}


def _variants(environment: str) -> Sequence[Variant]:
    """Varies actors in Stellaris and the synchronous system, and learners in Stellaris and the data-parallel system."""
    preset = presets.architectures(environment)
    rows = {row.name: row for row in preset.contenders}
    over_actors = [
        Variant(
            presets.contender(name, rows[name].system, colour=rows[name].colour, line=rows[name].line, actors=actors),
            replace(preset.workload, actors=actors, fragment=BATCH // actors),
            curves.setting(name, "actors", actors),
        )
        for actors in ACTOR_FUNCTIONS
        for name in ("stellaris", "synchronous")
    ]
    over_learners = [
        Variant(_with_learners(rows[name], learners), preset.workload, curves.setting(name, "learners", learners))
        for learners in LEARNER_FUNCTIONS
        for name in ("stellaris", "data-parallel")
        if name == "stellaris" or learners > 1  # a single learner has nothing to reduce
    ]
    return [*over_actors, *over_learners]


def _with_learners(row: Contender, learners: int) -> Contender:
    """Returns a system with another number of learners; the largest group of Stellaris' aggregator grows with it."""
    system = row.system
    if isinstance(system, Stellaris):
        aggregator = staleness_aware(learners, decay=1.0, combine="sequential")
        system = replace(system, learners=learners, aggregator=aggregator)
    else:
        assert isinstance(system, DataParallel)
        system = replace(system, learners=learners)
    return presets.contender(row.name, system, colour=row.colour, line=row.line)


def _speed(one: Finished) -> float:
    return curves.at(one, "steps") / curves.at(one, "seconds")


def _cost(one: Finished) -> float:
    return 1e6 * curves.at(one, "cost_pay_per_use") / curves.at(one, "steps")


def _staleness(one: Finished) -> float:
    return float(one.summary["staleness_mean"] or 0.0)


def _return(one: Finished) -> float:
    return curves.at(one, "episode_return")


#: The quantities of the picture and the table, by label.
_FIGURES: Mapping[str, Callable[[Finished], float]] = {
    "steps per virtual second": _speed,
    "USD by use\nper million steps": _cost,
    "mean staleness\n(versions)": _staleness,
    "mean return of the\nlast 100 training episodes": _return,
}


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Draws one picture by number of actors and one by number of learners, and shows both in one table."""
    rows = []
    for environment, groups in study.by_environment(results).items():
        caption = plots.caption(environment, results[0].cell.budget.steps, seeds=max(map(len, groups.values())))
        for what, baseline in (("actors", "synchronous"), ("learners", "data-parallel")):
            found = [of for system in ("stellaris", baseline) if (of := curves.swept(groups, system, what))]
            for several in (several for of in found for several in of.values()):
                figures = [str(estimate([figure(one) for one in several])) for figure in _FIGURES.values()]
                rows.append((environment, several[0].cell.variant, *figures))
            panels = [
                plots.Panel(
                    f"{what[:-1]} functions",
                    label,
                    [curves.line(of, figure) for of in found],
                    log=True,
                    log_y="USD" in label,
                )
                for label, figure in _FIGURES.items()
            ]
            if found:
                plots.sweep(panels, out / f"scaling_{what}_{environment}", title=caption)
    headings = ("environment", "variant", "steps / virtual s", "USD use / 1M steps", "staleness", "return")
    tidy.show("scaling", headings, rows, out, console)


STUDY = Study("stellaris-scaling", SIZES, _variants, _report, ("scaling_actors", "scaling_learners"))
add_arguments, main = STUDY.add_arguments, STUDY.main
