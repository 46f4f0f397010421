"""How many steps a second each system makes, on every deployment of the map, by dry runs."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from experiments.figures.map.deployments import (
    ACTORS,
    DATA_PARALLEL,
    FRAGMENT,
    IN_ROUNDS,
    ONE_LEARNER,
    SAMPLING_ON,
    SYNCHRONOUS,
    Point,
    workload,
)
from stellaris.lab import Throughput, throughput, throughputs
from stellaris.systems import Budget

#: Number of deployments that are measured between two lines of progress.
_AT_ONCE = 300


@dataclass(frozen=True)
class Grid:
    """The values of every axis of the map."""

    kappas: Sequence[float]
    variations: Sequence[float]
    learners: Sequence[int]
    sharers: Sequence[int]
    growths: Sequence[float]
    updates: Sequence[float]
    batches: int  #: number of batches of a dry run.

    def points(self) -> Iterator[Point]:
        """Yields every system on every deployment that differs for it."""
        for kappa, variation in itertools.product(self.kappas, self.variations):
            yield Point(SYNCHRONOUS, kappa, variation)
            yield Point(ONE_LEARNER, kappa, variation)
            for learners in self.learners:
                if learners > 1:
                    for growth in self.growths:
                        yield Point(DATA_PARALLEL, kappa, variation, learners, growth=growth)
                for system, sharers, update in itertools.product((IN_ROUNDS, SAMPLING_ON), self.sharers, self.updates):
                    if sharers == 1 or learners > 1:
                        yield Point(system, kappa, variation, learners, sharers, update=update)


def measure(case: tuple[Point, int]) -> Throughput:
    """Measures one point over a number of batches."""
    point, batches = case
    budget = Budget(steps=batches * ACTORS * FRAGMENT)
    return throughput(point.make_system(), workload(), platform=point.platform(), budget=budget, prices=point.prices())


def measured(grid: Grid, say: Callable[[str], None]) -> Iterator[Mapping[str, Any]]:
    """Yields a row for every point of the grid.

    A cost is in USD per million steps if a fragment takes a second.
    """
    cases = [(point, grid.batches) for point in grid.points()]
    for first in range(0, len(cases), _AT_ONCE):
        part = cases[first : first + _AT_ONCE]
        say(f"{first} of {len(cases)} deployments")
        for (point, _), found in zip(part, throughputs(measure, part), strict=True):
            yield {
                **dataclasses.asdict(point),
                "steps_per_second": _short(found.steps),
                "gradients_per_second": _short(found.gradients),
                "staleness": _short(found.staleness),
                "data_lag": _short(found.data_lag),
                **{f"cost_{name}": _short(1e6 * cost / found.steps) for name, cost in found.cost.items()},
            }


def _short(x: float) -> float:
    return float(f"{x:.5g}")
