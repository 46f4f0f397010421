"""Measures the time of a round of MinionsRL over the number of actors."""

import itertools
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from rich.console import Console

from experiments.study import curves, study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import minionsrl
from experiments.tasks.presets import Contender
from experiments.toolkit import plots
from experiments.toolkit.statistics import estimate
from stellaris.scheduling import Fixed
from stellaris.systems import Budget

DESCRIPTION = "seconds of a round, of its actors and of its learner, by the number of actors, with both learners"

ACTORS = (1, 2, 4, 8, 16, 32)
#: Rounds of a run; the means leave out the first, in which containers start.
_ROUNDS = 4
SIZES = {
    "smoke": Size(("CartPole-v1",), 1_000_000, 1),
    "small": Size(("Hopper-v4", "HalfCheetah-v4", "Humanoid-v4"), 1_000_000, 5),
    "paper": Size(
        ("Hopper-v4", "Humanoid-v4", "HalfCheetah-v4", "Gravitar-v5", "SpaceInvaders-v5", "Qbert-v5"), 1_000_000, 5
    ),
}
#: Colours and lines of the two learners.
_STYLES = {"tuned": ("#0072B2", "-"), "authors": ("#D55E00", "--")}
_COLUMNS = {"learner_seconds": "learner (s)", "actor_seconds": "mean of the actors (s)"}


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per number of actors, each with `_ROUNDS` rounds, with both learners."""
    return [
        Variant(
            _styled(testbed, minionsrl.minions(minionsrl.LEARNED, Fixed(actors), task)),
            task.workload,
            f"{testbed}: {actors} actors",
            limits=Budget(steps=_ROUNDS * actors * task.workload.fragment),
            factors={"testbed": testbed, "actors": str(actors)},
        )
        for testbed, task in minionsrl.both_learners(environment).items()
        for actors in ACTORS
    ]


def _styled(testbed: str, contender: Contender) -> Contender:
    colour, line = _STYLES[testbed]
    return replace(contender, name=minionsrl.label(testbed), colour=colour, line=line)


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        testbeds = {
            testbed: {float(actors): of for actors, of in own.items()}
            for testbed, own in study.by_factors(groups, "testbed", "actors").items()
        }
        figures = {"a round (s)": _round_seconds} | {
            label: lambda one, column=column: fmean(row[column] for row in one.history[1:] or one.history)
            for column, label in _COLUMNS.items()
        }
        panels = [
            plots.Panel("actors", label, [curves.line(own, of) for own in testbeds.values()], log=True)
            for label, of in figures.items()
        ]
        title = f"{environment}: {_ROUNDS - 1} rounds, {plots.counted(len(next(iter(groups.values()))))}"
        plots.sweep(panels, out / f"scaling_{environment}", title=title)
        rows += [
            (
                environment,
                testbed,
                f"{actors:g}",
                *(str(estimate([of(one) for one in several])) for of in figures.values()),
            )
            for testbed, own in testbeds.items()
            for actors, several in own.items()
        ]
    headings = ("environment", "testbed", "actors", "round", "learner", "actors, mean")
    tidy.show("one round", headings, rows, out, console)


def _round_seconds(one: Finished) -> float:
    """Returns the mean seconds of a round, without the first round unless it is the only one."""
    ends = [row["seconds"] for row in one.history]
    return fmean(later - earlier for earlier, later in itertools.pairwise(ends if len(ends) > 1 else [0.0, *ends]))


STUDY = Study("minionsrl-scaling", SIZES, _variants, _report, ("scaling",))
add_arguments, main = STUDY.add_arguments, STUDY.main
