"""Throughput: the updates, gradients and steps per second of a system on a deployment, from a dry run."""

import multiprocessing
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import NamedTuple, TypeVar

import numpy as np

from stellaris._core import checks
from stellaris.lab.dry_run import run_dry
from stellaris.runtime.contract import Platform
from stellaris.runtime.costs.price_sheets import PriceSheet, check_sheets
from stellaris.systems.record import AGE, POLICY
from stellaris.systems.system import System
from stellaris.systems.workload import Budget, Workload

T = TypeVar("T")


class Throughput(NamedTuple):
    """The rates of a system on a deployment, per second of the platform's clock."""

    updates: float  #: versions published per second.
    gradients: float  #: gradients applied per second.
    steps: float  #: environment steps delivered per second.
    staleness: float  #: mean staleness of the applied gradients, in versions; NaN if none was applied.
    data_lag: float  #: mean age of the learned steps, in versions, when their batch is made; NaN without a batch.
    cost: Mapping[str, float]  #: USD per second, by price sheet.
    seconds: float  #: length of the run on the platform's clock.


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
      workload: the workload; its environment need not be written in JAX, because only its specification is used.
      platform: a fresh platform; it is closed at the end.
      budget: limits of steps or seconds.
      prices: price sheets under which the run is billed.
      seed: seed of the run.

    Raises:
      LookupError, TypeError, ValueError: as `dry_run`; ValueError also if the run takes no time.

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
    check_sheets(prices)
    run_dry(system, workload, platform=platform, budget=budget, seed=seed)
    trace, seconds = platform.trace, platform.now
    if not seconds > 0:
        raise ValueError("the run took 0 s of the platform's clock, so it has no rates: give a function a compute time")
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


def throughputs(
    measure: Callable[[T], Throughput], cases: Iterable[T], *, processes: int | None = None
) -> list[Throughput]:
    """Measures many deployments in parallel processes.

    Args:
      measure: a function that calls `throughput` for one case. It must be defined at the top level of a module, because
        the processes import it by name.
      cases: the arguments of the calls, such as durations or numbers of learners.
      processes: the largest number of processes; by default the number of processors. With 1, all calls are made in
        this process.

    Returns:
      The results, in the order of the cases.

    Raises:
      ValueError: if `processes` is below 1. An exception of `measure` is raised unchanged.

    Example:
      >>> def measure(seconds):
      ...     from stellaris import ActorCritic, FunctionSpec, SimulatedPlatform, Workload
      ...     from stellaris.lab import CartPole
      ...     from stellaris.runtime.delays import Constant
      ...     from stellaris.systems import Budget, Synchronous
      ...     functions = {"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(seconds))}
      ...     workload = Workload(CartPole(), ActorCritic(hidden=(8,)), actors=2, fragment=50)
      ...     platform = SimulatedPlatform(functions)
      ...     return throughput(Synchronous(), workload, platform=platform, budget=Budget(seconds=10.0))
      >>> [round(one.steps) for one in throughputs(measure, [0.05, 0.15], processes=1)]
      [100, 50]
    """
    cases = list(cases)
    checks.whole(at_least=1, **checks.given(processes=processes))
    processes = min(processes or os.cpu_count() or 1, len(cases))
    if processes <= 1:
        return [measure(case) for case in cases]
    # Processes are spawned, because a forked process could inherit locks that JAX's threads hold.
    with ProcessPoolExecutor(processes, mp_context=multiprocessing.get_context("spawn")) as pool:
        return list(pool.map(measure, cases, chunksize=max(1, len(cases) // (4 * processes))))
