"""Random scenarios: a system, a deployment and its faults, on a problem that is learned in a fraction of a second."""

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from stellaris import (
    IMPACT,
    PPO,
    Aggregator,
    fully_asynchronous,
    softsync,
    stale_synchronous,
    staleness_aware,
    synchronous,
)
from stellaris.acting import ActorCritic
from stellaris.runtime import (
    Faults,
    FunctionSpec,
    Machine,
    Node,
    Outages,
    PriceSheet,
    Rate,
    Resources,
    Retry,
    SimulatedPlatform,
    StoreFaults,
    Transfer,
)
from stellaris.runtime.delays import Constant, Delay, Exponential, Gamma, LogNormal, Mixture, Uniform
from stellaris.systems import (
    AsynchronousActors,
    Budget,
    CentralInference,
    CircularReplay,
    DataParallel,
    StalenessControl,
    Stellaris,
    Synchronous,
    System,
    Workload,
)

WORKLOAD = Workload("CartPole-v1", policy=ActorCritic(hidden=(8,)), actors=2, fragment=16)
ALGORITHM = PPO(learning_rate=1e-2, epochs=2, minibatch_size=8)
TARGETED = IMPACT(learning_rate=1e-2, epochs=2, minibatch_size=8)
#: Settings of a workload's actors to choose from, the default twice as often as the others.
WAYS_OF_ACTING: tuple[dict[str, Any], ...] = ({}, {}, {"refresh": 4}, {"restart": True})
#: Number of gradients per invocation of a learner that learns from a whole batch at once.
_GRADIENTS_A_ROUND = 2 * 4

PRICES = (
    PriceSheet("machines", machines={"vm": Machine(0.01, runs=("learner",), places=3)}),
    PriceSheet(
        "by use",
        {
            "actor": Rate(per_vcpu_second=0.1, per_request=0.001, cold=True),
            "learner": Rate(per_second=0.2, per_gpu_slot_second=0.3, granularity=0.001, idle=True, cold=True),
            "parameter": Rate(per_gb_second=0.3, granularity=0.1, provisioned_per_gb_second=0.01),
        },
    ),
)

#: The most seconds until a lost message is noticed, and then until the retry: work that is not retried by then has
#: been given up.
NOTICED_WITHIN, RETRIED_WITHIN = 2.0, 1.0


@dataclass(frozen=True)
class Scenario:
    """Everything that a seed decides."""

    seed: int
    system: System
    workload: Workload
    functions: dict[str, FunctionSpec]
    options: dict[str, Any]  #: options of the platform.
    budget: Budget

    def platform(self, **more: Any) -> SimulatedPlatform:
        """Returns a fresh platform; `more` are further options."""
        return SimulatedPlatform(self.functions, seed=self.seed, threads=1, **self.options, **more)


def _aggregators(learners: int) -> list[Aggregator]:
    """Returns the aggregators to choose from; they are few because each kind of queue must be compiled."""
    aggregators: list[Aggregator] = [
        staleness_aware(learners, decay=0.5, max_staleness=1.0),
        staleness_aware(learners, decay=0.9, max_staleness=0.0),
    ]
    if learners > 1:
        aggregators.append(staleness_aware(learners, decay=1.0, max_staleness=math.inf))
    aggregators.append(fully_asynchronous(capacity=2 * learners))
    aggregators.append(fully_asynchronous(capacity=2 * learners, drop_from=2))
    aggregators.append(synchronous(learners))
    aggregators.append(stale_synchronous(1, learners))
    aggregators.append(softsync(2))
    return aggregators


AGGREGATORS = {learners: _aggregators(learners) for learners in (1, 3)}


def scenario(seed: int) -> Scenario:
    """Returns the scenario of a seed: a random system on a random, faulty platform.

    Functions may queue, start cold, be provisioned, limited, reserved, rejected, placed on nodes or killed; they may
    crash, straggle and lose messages; and the store may be slow or refuse requests.

    Args:
      seed: the seed, at least 0.
    """
    rng = np.random.default_rng([seed, 4])
    learners = int(rng.choice([1, 2, 3]))
    system = _system(rng, learners)
    central = isinstance(system, CentralInference)
    workload = replace(WORKLOAD, **WAYS_OF_ACTING[0 if central else rng.integers(len(WAYS_OF_ACTING))])
    own_containers = central or workload.refresh is not None
    nodes = _nodes(rng, learners) if rng.random() < 0.4 and not own_containers else ()
    functions = _functions(rng, system, learners, own_containers=own_containers)
    if nodes:  # nodes have room for one container of each function
        functions = {name: replace(spec, provisioned=min(spec.provisioned, 1)) for name, spec in functions.items()}
    reserved = sum(spec.reserved_concurrency or 0 for spec in functions.values())
    shares = any(spec.reserved_concurrency is None for spec in functions.values())
    options = {
        "nodes": nodes,
        "placement": str(rng.choice(["pack", "spread"])),
        "max_concurrency": int(reserved + shares + rng.integers(0, 4)) if rng.random() < 0.3 else None,
        "faults": {name: _faults(rng) for name in functions if rng.random() < 0.6},
        "store_faults": _store_faults(rng) if rng.random() < 0.25 else None,
        "keep_versions": int(rng.integers(1, 4)),
    }
    seconds = float(rng.uniform(5.0, 90.0))
    # With central inference a run may lose every fragment and never add a step: a time limit ends it.
    budget = Budget(steps=int(rng.integers(1, 160)), seconds=seconds if central or rng.random() < 0.5 else math.inf)
    return Scenario(seed, system, workload, functions, options, budget)


def _system(rng: np.random.Generator, learners: int) -> System:
    """Returns any of the architectures, most often Stellaris, which has the most parts."""
    queues = 3 if learners == 2 else learners  # only two sizes, as each size of queue must be compiled
    aggregators = AGGREGATORS[queues]
    aggregator = aggregators[rng.integers(len(aggregators))]
    rho = float(rng.choice([1.0, math.inf]))
    systems: tuple[System, ...] = (
        Stellaris(ALGORITHM, learners=queues, aggregator=aggregator, rho=rho, control=_control(rng)),
        Synchronous(ALGORITHM),
        AsynchronousActors(ALGORITHM, control=_control(rng)),
        CircularReplay(TARGETED, buffer=2, passes=2, control=_control(rng)),
        DataParallel(ALGORITHM, learners=min(learners, 2)),
        CentralInference(ALGORITHM),
    )
    return systems[rng.choice(len(systems), p=[0.6, 0.08, 0.08, 0.08, 0.08, 0.08])]


def _functions(
    rng: np.random.Generator, system: System, learners: int, *, own_containers: bool
) -> dict[str, FunctionSpec]:
    """Returns the functions of a system by name."""
    one_gradient = isinstance(system, Stellaris | DataParallel)
    gradients = 1 if one_gradient else _GRADIENTS_A_ROUND
    steps = 1 if isinstance(system, CentralInference) else WORKLOAD.fragment
    small = Resources(memory=1.0, vcpus=0.5)
    # Each function's seconds per invocation, units of work, largest number of concurrent invocations, and resources.
    kinds = {
        "actor": (steps / WORKLOAD.fragment, steps, WORKLOAD.actors, Resources(memory=1.0, vcpus=1.0)),
        "learner": (0.3 * gradients, gradients, learners, Resources(memory=2.0, vcpus=1.0, gpu_slots=1)),
        "parameter": (0.2, 1, 1, small),
        "inference": (0.02, 1, 1, small),
        "all_reduce": (0.05, 1000, 1, small),  # the work of an all-reduce is in bytes
    }
    # PRICES has rates for the first three functions, so every deployment has these functions.
    names = dict.fromkeys(("actor", "learner", "parameter", *system.functions))
    functions = {name: _function(rng, *kinds[name]) for name in names}
    if own_containers:
        functions["actor"] = replace(functions["actor"], max_concurrency=None, reserved_concurrency=None)
    if isinstance(system, CentralInference):
        # Actors' containers never expire: otherwise their environments would be lost before a fragment is complete.
        functions["actor"] = replace(functions["actor"], keep_alive=math.inf, timeout=None)
    return functions


def _control(rng: np.random.Generator) -> StalenessControl:
    """Returns a random staleness control: actors are 0, 1 or 3 batches ahead, or 3 with a limit on fragments kept."""
    controls = (
        StalenessControl(pace=0),
        StalenessControl(pace=1),
        StalenessControl(pace=3, discard=4),
        StalenessControl(pace=3, window=3),
    )
    return controls[rng.integers(len(controls))]


def _delay(rng: np.random.Generator, mean: float) -> Delay:
    """Returns a delay of a random family, or zero."""
    kinds: tuple[Delay, ...] = (
        Constant(0.0),
        Constant(mean),
        Exponential(mean),
        LogNormal(mean, 0.5),
        Gamma(mean, 2.0),
        Uniform(0.0, 2 * mean),
        Mixture((Constant(mean), Exponential(10 * mean)), (0.9, 0.1)),
    )
    return kinds[rng.integers(len(kinds))]


def _function(rng: np.random.Generator, mean: float, work: int, limit: int, resources: Resources) -> FunctionSpec:
    """Returns a random deployment; `mean` is an invocation's duration, `limit` bounds its concurrency."""
    most = int(rng.integers(1, limit + 1)) if rng.random() < 0.8 else None
    return FunctionSpec(
        compute=Mixture((_delay(rng, mean / work), Exponential(mean / work)), (0.5, 0.5)),
        cold_start=_delay(rng, mean),
        initialisation=_delay(rng, mean / 2) if rng.random() < 0.3 else Constant(0.0),
        keep_alive=float(rng.choice([0.0, mean, math.inf])),
        reuse=rng.choice(["newest", "most_recent", "least_recent"]),
        max_concurrency=most,
        reserved_concurrency=int(rng.integers(1, 3)) if rng.random() < 0.2 else None,
        provisioned=int(rng.integers(0, (most or limit) + 1)) if rng.random() < 0.2 else 0,
        overflow="reject" if rng.random() < 0.2 else "queue",
        timeout=None if rng.random() < 0.6 else 3 * mean,
        queueing=_delay(rng, mean / 10),
        transfer=Transfer(_delay(rng, mean / 20), 1e5) if rng.random() < 0.5 else None,
        resources=resources,
        # A busy function may reject one retry after the other, so a small limit would give up on the work.
        retry=Retry(limit=1000, first=0.05, factor=2.0, maximum=RETRIED_WITHIN, jitter=float(rng.choice([0.0, 1.0]))),
    )


def _faults(rng: np.random.Generator) -> Faults:
    def chance() -> float:
        return float(rng.choice([0.0, 0.0, 0.05, 0.2]))

    return Faults(
        throttle=chance(),
        crash_before=chance(),
        crash_during=chance(),
        crash_after=chance(),
        lose=chance(),
        notice_after=Uniform(0.0, NOTICED_WITHIN),
        duplicate=chance(),
        duplicate_after=Exponential(0.5),
        straggle=chance(),
        straggler_factor=Uniform(1.0, 5.0),
        lifetime=Exponential(20.0) if rng.random() < 0.2 else None,
        at={int(rng.integers(0, 10)): ("lose", "duplicate")} if rng.random() < 0.3 else {},
        lose_containers_at=tuple(rng.uniform(0.0, 20.0, size=2).tolist()) if rng.random() < 0.2 else (),
    )


def _store_faults(rng: np.random.Generator) -> StoreFaults:
    return StoreFaults(
        slow=Outages(every=Exponential(5.0), lasting=Exponential(2.0)),
        slow_factor=5.0,
        refuse=Outages(every=Exponential(10.0), lasting=Exponential(0.5)),
    )


def _nodes(rng: np.random.Generator, learners: int) -> tuple[Node, ...]:
    """Returns nodes with room for one container of each function, but not always for all containers at once."""
    cpu = Node("cpu", memory=float(rng.integers(4, 8)), vcpus=float(rng.integers(4, 8)))
    gpu = Node(
        "gpu",
        memory=8.0,
        vcpus=4.0,
        gpus=int(rng.integers(1, 3)),
        slots_per_gpu=int(rng.integers(1, 3)),
        gpu_sharing=0.5,
    )
    return cpu, gpu
