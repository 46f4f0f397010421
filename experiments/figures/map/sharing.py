"""How the advantage of four learners on one GPU depends on how much sharing slows them down."""

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from experiments.figures.map.deployments import (
    ACTORS,
    DATA_PARALLEL,
    FRAGMENT,
    ONE_LEARNER,
    SAMPLING_ON,
    SYNCHRONOUS,
    Point,
    workload,
)
from experiments.figures.map.outcomes import INTERVAL, MACHINES, TIME, USE, Efficiency, Speeds, rate
from experiments.figures.map.speed import Grid
from experiments.tasks import testbed
from stellaris.lab import Throughput, throughput
from stellaris.systems import Budget

#: Learners on the GPU.
LEARNERS = 4
#: How many times as long a gradient takes with four sharers: on the testbed, and on an H100 with the network of the
#: MuJoCo tasks and 1,024 to 2,048 samples (`benchmarks gpu`: 2.7 and 2.6).
SLOWER = (LEARNERS**testbed.GPU_SHARING, 2.65)
_KAPPAS, _VARIATIONS = (4.0, 16.0), (0.1, 1.0)


def compared(
    grid: Grid, speeds: Speeds, tasks: dict[str, tuple[Efficiency, Efficiency]], update: float
) -> Iterator[dict[str, Any]]:
    """Yields Stellaris' ratio to the best of the others, with g = 0, by slow-down, κ, variation, outcome and task.

    Args:
      grid: the grid of the map; nothing is yielded if it lacks learners that share a GPU.
      speeds: its table of speeds.
      tasks: η by task, and η of resampled seeds.
      update: seconds of an update of the policy, in gradients of a learner alone on a GPU.
    """
    places = [place for place in itertools.product(_KAPPAS, _VARIATIONS) if place[0] in grid.kappas]
    for slower, (kappa, variation) in itertools.product(SLOWER, places if LEARNERS in grid.sharers else []):
        found = _measured(kappa, variation, slower, update, grid.batches)
        for what, (task, several) in itertools.product((TIME, MACHINES, USE), tasks.items()):
            own = found.steps if what == TIME else found.steps / (1e6 * found.cost[what])  # million steps, as in `rate`
            best, drawn = (_ratio(speeds, eta, own, what, kappa, variation, slower) for eta in several)
            low, high = np.quantile(drawn, INTERVAL)
            place = {"task": task, "what": what, "slower": slower, "kappa": kappa, "variation": variation}
            numbers = {"best": best, "best_low": low, "best_high": high}
            yield place | {name: float(f"{x:.4g}") for name, x in numbers.items()}


def _measured(kappa: float, variation: float, slower: float, update: float, batches: int) -> Throughput:
    """Returns the throughput of learners whose gradients take `slower` times as long, at the prices of one GPU."""
    shared = Point(SAMPLING_ON, kappa, variation, LEARNERS, LEARNERS, update=update)
    # With a GPU each, learners take as long where κ is larger by this factor; the update's time does not change.
    alone = replace(shared, kappa=kappa * slower, sharers=1, update=update / slower)
    budget = Budget(steps=batches * ACTORS * FRAGMENT)
    platform, prices = alone.platform(), shared.prices()
    return throughput(alone.make_system(), workload(), platform=platform, budget=budget, prices=prices)


def _ratio(
    speeds: Speeds, eta: Efficiency, own: float, what: str, kappa: float, variation: float, slower: float
) -> Any:
    """Returns the ratio to the best of the others; an array if η was resampled."""
    others: Sequence[Any] = (
        rate(speeds.get(SYNCHRONOUS, kappa, variation), what),
        rate(speeds.get(ONE_LEARNER, kappa, variation), what) * eta(ONE_LEARNER, kappa, variation, 1),
        rate(speeds.get(DATA_PARALLEL, kappa, variation, LEARNERS), what),
    )
    return own * eta(SAMPLING_ON, kappa * slower, variation, LEARNERS) / functools.reduce(np.maximum, others)
