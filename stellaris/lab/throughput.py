"""Timing alone: what a system does per second on a deployment, from a dry run."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from stellaris.lab.dry_run import run_dry
from stellaris.runtime.contract import Platform
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.systems.record import AGE, POLICY
from stellaris.systems.system import System
from stellaris.systems.workload import Budget, Workload


class Throughput(NamedTuple):
    """What a system does on a deployment, per second of the platform's clock."""

    updates: float  #: versions published per second.
    gradients: float  #: applied per second.
    steps: float  #: environment steps delivered per second.
    staleness: float  #: mean of the applied gradients, in versions; NaN if none was applied.
    data_lag: float  #: mean age of the learned steps when their batch is made, in versions; NaN without a batch.
    cost: Mapping[str, float]  #: USD per second, by price sheet.
    seconds: float  #: that were simulated.


def throughput(
    system: System,
    workload: Workload,
    *,
    platform: Platform,
    budget: Budget,
    prices: Sequence[PriceSheet] = (),
    seed: int = 0,
) -> Throughput:
    """Measures a dry run: updates, gradients, steps and costs per second, and the staleness.

    Args:
      system: as for `dry_run`.
      workload: as for `dry_run`.
      platform: a fresh platform; it is closed at the end.
      budget: when to stop: steps or seconds.
      prices: sheets under which the run is billed.
      seed: of the run.

    Raises:
      LookupError, TypeError, ValueError: as `dry_run`.

    Example:
      >>> from stellaris import ActorCritic, FunctionSpec, SimulatedPlatform, Workload
      >>> from stellaris.lab import CartPole
      >>> from stellaris.runtime.delays import Constant
      >>> from stellaris.systems import Synchronous
      >>> workload = Workload(CartPole(), ActorCritic(hidden=(8,)), actors=2, fragment=50)
      >>> platform = SimulatedPlatform({"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(0.05))})
      >>> measured = throughput(Synchronous(), workload, platform=platform, budget=Budget(seconds=10.0))
      >>> measured.updates, measured.steps  # a second: 0.5 of sampling, and 10 gradients
      (1.0, 100.0)
    """
    run_dry(system, workload, platform=platform, budget=budget, seed=seed)
    trace, seconds = platform.trace, platform.now
    staleness = trace.select("staleness").value
    ages = trace.select(f"{AGE}mean").value
    return Throughput(
        updates=len(trace.select("published", function=POLICY).time[1:]) / seconds,
        gradients=len(staleness) / seconds,
        steps=float(trace.select("sampled").value.sum()) / seconds,
        staleness=float(staleness.mean()) if len(staleness) else float(np.nan),
        data_lag=float(ages.mean()) if len(ages) else float(np.nan),
        cost={sheet.name: platform.bill(sheet).total / seconds for sheet in prices},
        seconds=seconds,
    )
