"""Hopper on six deployments of the map, on the event loop: does the map foretell who reaches a return first?

Registered before the runs, in docs/registrations/stellaris-map.md. The deployments are those for which the map,
computed with CartPole and Acrobot, says most and least.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from rich.console import Console

from experiments.figures.map.deployments import ACTORS, DATA_PARALLEL, FRAGMENT, ONE_LEARNER, SYNCHRONOUS, Point
from experiments.figures.map.rates import (
    BATCHES,
    CHOSEN,
    POINTS,
    RUN,
    STEPS,
    TARGET,
    batches,
    label,
    reached,
    variant,
)
from experiments.figures.map.speed import measure
from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.toolkit.statistics import estimate, ratio

DESCRIPTION = "the map's predictions against Hopper on the event loop"
_WHOLE = Size(("Hopper-v4",), STEPS, 10)
SIZES = {"smoke": Size(("CartPole-v1",), STEPS, 1), "small": _WHOLE, "paper": _WHOLE}

Runs = Mapping[str, Sequence[Finished]]


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per point, at its best rate."""
    return [variant(environment, point, CHOSEN[label(point)]) for point in RUN]


def rivals(point: Point) -> Sequence[Point]:
    """Returns the other systems on the deployment of a point."""
    place = (point.kappa, point.variation)
    return Point(SYNCHRONOUS, *place), Point(DATA_PARALLEL, *place, point.learners), Point(ONE_LEARNER, *place)


def seconds(point: Point, of: Runs) -> Mapping[int, float]:
    """Returns the virtual seconds to the target by seed; a run that did not reach it has those of its end.

    The synchronous and the data-parallel system need the batches of the synchronous runs, each of the mean duration of
    a dry run on the deployment.
    """
    if point.system not in (SYNCHRONOUS, DATA_PARALLEL):
        return {one.cell.seed: one.summary["virtual_seconds"] for one in of[label(point)]}
    a_batch = ACTORS * FRAGMENT / measure((point, BATCHES)).steps
    return {one.cell.seed: a_batch * batches(one) for one in of[SYNCHRONOUS]}


def compared(point: Point, of: Runs) -> Sequence[str]:
    """Returns a point's numbers: its own, and the times of the others divided by its own, paired by seed."""
    own = seconds(point, of)
    others = {other.system: seconds(other, of) for other in rivals(point)}
    ratios = {
        system: estimate([ratio(times[seed], own[seed]) for seed in own if seed in times])
        for system, times in others.items()
    }
    best = min(ratios, key=lambda system: ratios[system].middle)
    needed = {one.cell.seed: batches(one) for one in of[SYNCHRONOUS]}
    eta = estimate([needed[one.cell.seed] / batches(one) for one in of[label(point)] if one.cell.seed in needed])
    one_learner = Point(ONE_LEARNER, point.kappa, point.variation)
    return (
        *(str(column) for column in (point.kappa, point.variation, point.learners)),
        reached(of[label(point)]),
        reached(of[label(one_learner)]),
        str(estimate([*map(batches, of[label(point)])])),
        str(eta),
        str(estimate([*own.values()])),
        *map(str, ratios.values()),
        best,
    )


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    rows = []
    for environment, groups in study.by_environment(results).items():
        for point in POINTS:
            needed = (SYNCHRONOUS, label(point), label(Point(ONE_LEARNER, point.kappa, point.variation)))
            if all(key in groups for key in needed):
                rows.append((environment, point.system, *compared(point, groups)))
    place = ("kappa", "variation", "learners")
    own = ("reached", "one learner reached", "batches", "eta", "seconds")
    console.width = max(console.width, 300)  # Otherwise most of the fourteen columns would be cut off.
    headings = ("environment", "system", *place, *own, SYNCHRONOUS, DATA_PARALLEL, ONE_LEARNER, "best other")
    tidy.show(f"time to a return of {TARGET:g}: the others' divided by Stellaris'", headings, rows, out, console)


STUDY = Study("stellaris-map-hopper", SIZES, _variants, _report)
add_arguments, main = STUDY.add_arguments, STUDY.main
