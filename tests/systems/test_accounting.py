"""Nothing is lost and nothing counted twice, whatever the platform does."""

import math
from collections import Counter
from typing import Any

import numpy as np
import pytest

from stellaris import fully_asynchronous, staleness_aware, synchronous
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant, Exponential, Gamma, LogNormal, Mixture, Uniform
from stellaris.runtime.trace import ENDINGS
from stellaris.systems import Budget, Result, Stellaris, Synchronous, train
from stellaris.systems.training import System
from tests.systems import tiny

SEEDS = 120
#: Few, so that each queue is compiled once.
AGGREGATORS = {
    learners: (
        staleness_aware(learners, decay=0.9),
        staleness_aware(learners, decay=0.5, max_staleness=1.0, smoothness=1.0),
        fully_asynchronous(capacity=2 * learners),
        synchronous(learners),
    )
    for learners in (1, 3)
}


def random_delay(rng: np.random.Generator, mean: float) -> Any:
    """A delay of any family, zero included."""
    kinds = (
        Constant(0.0),
        Constant(mean),
        Exponential(mean),
        LogNormal(mean, 0.5),
        Gamma(mean, 2.0),
        Uniform(0.0, 2 * mean),
        Mixture((Constant(mean), Exponential(10 * mean)), (0.9, 0.1)),
    )
    return kinds[rng.integers(len(kinds))]


def random_spec(rng: np.random.Generator, mean: float, work: int, limit: int) -> FunctionSpec:
    """A deployment that queues, starts cold, expires and kills; `mean` is an invocation's duration."""
    return FunctionSpec(
        compute=Mixture((random_delay(rng, mean / work), Exponential(mean / work)), (0.5, 0.5)),
        cold_start=random_delay(rng, mean),
        keep_alive=float(rng.choice([0.0, mean, math.inf])),
        max_concurrency=int(rng.integers(1, limit + 1)),
        timeout=None if rng.random() < 0.5 else 3 * mean,
        queueing=random_delay(rng, mean / 10),
    )


def random_run(seed: int) -> tuple[Result, SimulatedPlatform]:
    """A random system on a random platform, stopped by a random budget."""
    rng = np.random.default_rng(seed)
    learners = int(rng.choice([1, 3]))
    system: System = Stellaris(
        tiny.PPO_CONFIG,
        learners=learners,
        aggregator=AGGREGATORS[learners][rng.integers(4)],
        rho=float(rng.choice([1.0, math.inf])),
        round_based=bool(rng.random() < 0.5),
    )
    if rng.random() < 0.15:
        system = Synchronous(tiny.PPO_CONFIG)
    gradients = 1 if isinstance(system, Stellaris) else tiny.GRADIENTS_A_ROUND
    deployment = {
        "actor": random_spec(rng, 1.0, tiny.WORKLOAD.fragment, limit=2),
        "learner": random_spec(rng, 0.3, gradients, limit=learners),
        "parameter": random_spec(rng, 0.2, 1, limit=1),
    }
    platform = SimulatedPlatform(deployment, seed=seed, threads=2)
    budget = Budget(steps=int(rng.integers(1, 200)), seconds=float(rng.uniform(1.0, 60.0)))
    result = train(system, tiny.WORKLOAD, platform=platform, budget=budget, prices=tiny.PRICES, seed=seed)
    return result, platform


@pytest.mark.parametrize("block", range(6))
def test_accounts_balance(block: int) -> None:
    """Invocations, gradients, steps and costs add up over random platforms."""
    size = SEEDS // 6
    for seed in range(block * size, (block + 1) * size):
        check(random_run(seed)[0], seed)


def check(result: Result, seed: int) -> None:
    """The four accounts of one run."""
    trace = result.trace

    def total(event: str) -> float:
        return float(trace.select(event).value.sum())

    submitted = trace.select("submitted").invocation.tolist()
    ended = Counter(number for ending in ENDINGS for number in trace.select(ending).invocation.tolist())
    assert ended == Counter(submitted), f"seed {seed}: an invocation did not end exactly once"

    if "parameter" in trace.functions() or len(trace.select("pushed").time):
        pushed, applied = len(trace.select("pushed").time), len(trace.select("staleness").time)
        assert pushed == applied + total("queued"), f"seed {seed}: gradients"

    spent = total("learned") + total("discarded") + total("waiting") + total("reset")
    assert total("sampled") == spent, f"seed {seed}: steps"
    assert total("sampled") == result.history[-1]["steps"]
    assert trace.select("staleness").value.min(initial=0) >= 0

    last = result.history[-1]
    for name, bill in result.bill.items():
        assert last[f"cost_{name}"] == pytest.approx(bill.total, rel=1e-9), f"seed {seed}: {name}"
        assert bill.total == pytest.approx(by_hand(result, name), rel=1e-9, abs=1e-12), f"seed {seed}: {name}"


def by_hand(result: Result, sheet: str) -> float:
    """The bill, added up event by event."""
    prices = next(p for p in tiny.PRICES if p.name == sheet)
    end = result.history[-1]["seconds"]
    cost = sum(end * machine.per_second for machine in prices.machines.values())
    started: dict[int, float] = {}
    frame = result.trace.to_dataframe()
    for row in frame.itertuples():
        if row.event == "started":
            started[row.invocation] = row.time
        elif row.event in ENDINGS and row.invocation in started:
            cost += (row.time - started.pop(row.invocation)) * getattr(
                prices.functions.get(row.function), "per_second", 0.0
            )
    assert not started
    return cost


def test_the_random_platforms_are_hard_enough() -> None:
    """Among them are kills, expiries, cold starts, stale gradients, leftovers: the accounts are put to the test."""
    seen: Counter[str] = Counter()
    for seed in range(30):
        trace = random_run(seed)[0].trace
        frame = trace.to_dataframe()
        seen["timed_out"] += len(trace.select("timed_out").time)
        seen["cancelled"] += len(trace.select("cancelled").time)
        seen["cold"] += int(trace.select("acquired").value.sum())
        seen["expired"] += int((frame.event == "container_ended").sum())
        seen["stale"] += int((trace.select("staleness").value > 0).sum())
        seen["queued"] += int(trace.select("queued").value.sum())
        seen["waiting"] += int(trace.select("waiting").value.sum())
        seen["reset"] += int(trace.select("reset").value.sum())
    assert min(seen.values()) > 0, seen
