"""How many steps each system needs to a return, on deployments of the map, in the lab."""

import dataclasses
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.map.deployments import (
    ACTORS,
    ALGORITHM,
    FRAGMENT,
    IN_ROUNDS,
    ONE_LEARNER,
    SAMPLING_ON,
    SYNCHRONOUS,
    Point,
    workload,
)
from stellaris.acting.jax_env import JaxEnvironment
from stellaris.lab import dry_run, sweep
from stellaris.lab.sweep import Progress
from stellaris.systems import Budget
from stellaris.types import NDArray

#: A learning rate so small that the policy stays untrained; its mean return is the floor.
_UNTRAINED = 1e-12


@dataclass(frozen=True)
class Learning:
    """The deployments, the rates and the seeds with which learning is measured."""

    kappas: Sequence[float]
    variations: Sequence[float]
    learners: Sequence[int]
    rates: Sequence[float]
    seeds: int
    batches: int

    def points(self) -> Iterator[Point]:
        """Yields the baseline and every other system on every deployment."""
        yield Point(SYNCHRONOUS, 1.0, 0.0)  # its learning does not depend on durations
        for kappa, variation in itertools.product(self.kappas, self.variations):
            yield Point(ONE_LEARNER, kappa, variation)
            for learners, system in itertools.product(self.learners, (IN_ROUNDS, SAMPLING_ON)):
                yield Point(system, kappa, variation, learners)


def curves(
    of: Learning,
    point: Point,
    environment: JaxEnvironment,
    folder: Path | None,
    on_progress: Callable[[Progress], None] | None,
) -> NDArray:
    """Returns the mean return of the episodes that ended in each batch of steps, `[rate, seed, batch]`."""
    system: Any = point.make_system()
    workload_ = replace(workload(), environment=environment)
    steps = ACTORS * FRAGMENT
    schedule = dry_run(system, workload_, platform=point.platform(), budget=Budget(steps=of.batches * steps), seed=0)
    result = sweep(
        workload_,
        ALGORITHM,
        schedule,
        {"algorithm.learning_rate": [_UNTRAINED, *of.rates] if point.system == SYNCHRONOUS else list(of.rates)},
        seeds=of.seeds,
        aggregator=getattr(system, "aggregator", None),
        rho=getattr(system, "rho", float("inf")),
        directory=folder,
        on_progress=on_progress,
    )
    sampled = batch_of(result.steps.cumsum("update").values, of.batches)
    episodes = result.episodes.values
    totals = np.nan_to_num(result.episode_return.values) * episodes
    shape = (*episodes.shape[:2], of.batches)
    ended, returns = np.zeros(shape), np.zeros(shape)
    for place in np.ndindex(shape[:2]):
        np.add.at(ended[place], sampled[place], episodes[place])
        np.add.at(returns[place], sampled[place], totals[place])
    with np.errstate(invalid="ignore"):
        return np.asarray(returns / ended)


def batch_of(sampled: NDArray, batches: int) -> NDArray:
    """Returns the batch, from 0, that holds the last of the steps that were sampled until a version.

    A batch's own last step belongs to it, and steps after the last batch count as the last batch's.
    """
    found: NDArray = np.clip((sampled - 1) // (ACTORS * FRAGMENT), 0, batches - 1)
    return found


def rows(of: Learning, point: Point, found: NDArray) -> Iterator[Mapping[str, Any]]:
    """Yields a row for every rate, seed and batch in which an episode ended."""
    rates = [_UNTRAINED, *of.rates] if len(found) > len(of.rates) else of.rates
    for rate, seed in np.ndindex(found.shape[:2]):
        yield {
            **dataclasses.asdict(point),
            "learning_rate": rates[rate],
            "seed": seed,
            "returns": " ".join("" if np.isnan(x) else f"{x:.4g}" for x in found[rate, seed]),
        }
