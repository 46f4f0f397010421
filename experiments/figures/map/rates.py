"""Hopper on six deployments of the map: the runs, and the choice of a learning rate for each, on seeds of its own.

Registered in docs/registrations/stellaris-map.md. A run ends when it reaches a return of 200, or after 36 batches.
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import fmean

from rich.console import Console

from experiments.figures.map.deployments import (
    ALGORITHM,
    IN_ROUNDS,
    ONE_LEARNER,
    SAMPLING_ON,
    SYNCHRONOUS,
    Point,
)
from experiments.study import study, tidy
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks import presets
from experiments.tasks.presets import Contender
from stellaris import PPO, ActorCritic
from stellaris.systems import Budget

DESCRIPTION = "choose the learning rates of stellaris-map-hopper, on seeds of their own"

#: The first seed, so that the rates are not chosen on seeds of results.
SEED = 100

#: The deployments: of the map's table, the highest advantage of all; the two highest with four learners, with which
#: both tasks reached their return; and the three whose advantage is lowest with their best number of learners.
POINTS = (
    Point(SAMPLING_ON, 16.0, 0.1, 16),
    Point(SAMPLING_ON, 16.0, 1.0, 4),
    Point(SAMPLING_ON, 4.0, 1.0, 4),
    Point(IN_ROUNDS, 4.0, 1.0, 4),
    Point(IN_ROUNDS, 1.0, 1.0, 4),
    Point(IN_ROUNDS, 0.25, 1.0, 4),
)
#: Every run that is needed. The synchronous system's learning does not depend on durations, and data-parallel learners
#: compute what it computes.
RUN = (
    Point(SYNCHRONOUS, 1.0, 0.0),
    *dict.fromkeys(Point(ONE_LEARNER, point.kappa, point.variation) for point in POINTS),
    *POINTS,
)
#: The mean return of the last 100 episodes that is to be reached.
TARGET = 200.0
#: The batches after which a run ends without reaching it.
BATCHES = 36
RATES = (1e-4, 3e-4, 1e-3)
#: The best rate by variant: the least mean time to the target over the two seeds of tuning, of equal ones the smallest.
CHOSEN: Mapping[str, float] = {
    "synchronous": 1e-4,
    "asynchronous actors, one learner, kappa 16, variation 0.1": 1e-4,
    "asynchronous actors, one learner, kappa 16, variation 1": 1e-3,
    "asynchronous actors, one learner, kappa 4, variation 1": 3e-4,
    "asynchronous actors, one learner, kappa 1, variation 1": 3e-4,
    "asynchronous actors, one learner, kappa 0.25, variation 1": 1e-3,
    "Stellaris, actors sampling on, 16 learners, kappa 16, variation 0.1": 1e-4,
    "Stellaris, actors sampling on, 4 learners, kappa 16, variation 1": 3e-4,
    "Stellaris, actors sampling on, 4 learners, kappa 4, variation 1": 3e-4,
    "Stellaris, actors in rounds, 4 learners, kappa 4, variation 1": 3e-4,
    "Stellaris, actors in rounds, 4 learners, kappa 1, variation 1": 3e-4,
    "Stellaris, actors in rounds, 4 learners, kappa 0.25, variation 1": 3e-4,
}

STEPS = BATCHES * presets.ACTORS * presets.FRAGMENT
_STYLES = {SYNCHRONOUS: ("#D55E00", "--"), ONE_LEARNER: ("#E69F00", "-."), SAMPLING_ON: ("#0072B2", "-")}
_IN_ROUNDS = ("#56B4E9", (0, (1, 3)))


def label(point: Point) -> str:
    """Returns the name of a point's variant."""
    if point.system == SYNCHRONOUS:
        return SYNCHRONOUS
    learners = f", {point.learners} learners" if point.learners > 1 else ""
    return f"{point.system}{learners}, kappa {point.kappa:g}, variation {point.variation:g}"


def variant(environment: str, point: Point, rate: float) -> Variant:
    """Returns a point at a learning rate, on the map's deployment, whose runs end at the target."""
    scaled = ActorCritic(scaling_discount=PPO.discount)  # type: ignore[arg-type]
    workload = replace(presets.workload(environment), policy=scaled)
    minibatch = workload.actors * workload.fragment // 8
    colour, line = _STYLES.get(point.system, _IN_ROUNDS)
    contender = Contender(
        point.system,
        point.make_system(replace(ALGORITHM, learning_rate=rate, minibatch_size=minibatch)),
        point.functions(workload.fragment),
        point.prices(),
        colour,
        line,
    )
    return Variant(contender, workload, label(point), limits=Budget(steps=STEPS, target_return=TARGET))


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per point and rate."""
    return [
        variant(environment, point, rate)._replace(setting=f"{label(point)}: {rate:g}")
        for point in RUN
        for rate in RATES
    ]


def batches(one: Finished) -> float:
    """Returns the batches of a run."""
    workload = one.cell.workload
    return float(one.summary["steps"] / (workload.actors * workload.fragment))


def reached(of: Sequence[Finished]) -> str:
    """Says how many runs reached the target."""
    return f"{sum(one.summary['final_return'] >= TARGET for one in of)} of {len(of)}"


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Shows one row per point and rate."""
    rows = [
        (
            environment,
            setting,
            reached(of),
            f"{fmean(one.summary['virtual_seconds'] for one in of):.4g}",
            f"{fmean(map(batches, of)):.1f}",
            f"{fmean(one.summary['final_return'] for one in of):.0f}",
        )
        for environment, groups in study.by_environment(results).items()
        for setting, of in groups.items()
    ]
    headings = ("environment", "point: rate", "reached", "seconds", "batches", "last return")
    tidy.show(f"time to a return of {TARGET:g}, at most {BATCHES} batches", headings, rows, out, console)


SIZES = {"smoke": Size(("CartPole-v1",), STEPS, 1), "small": Size(("Hopper-v4",), STEPS, 2)}
STUDY = Study("stellaris-map-rates", SIZES, _variants, _report, seed=SEED)
add_arguments, main = STUDY.add_arguments, STUDY.main
