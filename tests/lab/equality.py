"""Compares the parameters of `train` with those of the lab under the run's schedule, for random configurations.

    python -m tests.lab.equality [--first SEED] [--count N] [--float64]

Prints one line per configuration, and fails if one differs. Float32 admits 1e-5, float64 1e-10.
"""

import argparse
import math
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris import IMPACT, IMPALA, PPO
from stellaris.acting.policies import Policy
from stellaris.aggregation.staleness_aware import staleness_aware
from stellaris.aggregation.synchronisation import buffered, fully_asynchronous, softsync, stale_synchronous, synchronous
from stellaris.lab import CartPole, Schedule, dry_run, recorded
from stellaris.lab.plan import plan_of
from stellaris.lab.program import Keys, Program
from stellaris.runtime import Faults, FunctionSpec, Retry, SimulatedPlatform
from stellaris.runtime.delays import Constant, Exponential, LogNormal
from stellaris.systems import (
    AsynchronousActors,
    Budget,
    CircularReplay,
    DataParallel,
    StalenessControl,
    Stellaris,
    Synchronous,
    Workload,
    train,
)
from stellaris.systems.session import Keys as SessionKeys

#: Versions after which both are compared.
UPDATES = 20


@dataclass(frozen=True)
class Wide:
    """A network in JAX's default precision, float64 under `--float64`."""

    actions: int
    hidden: int = 8

    def init(self, key: Any, observation: Any) -> Any:
        """Draws small weights."""
        shapes = ((observation.shape[-1], self.hidden), (self.hidden, self.actions + 1))
        keys = jax.random.split(key, 2)
        return [0.3 * jax.random.normal(key, shape, float) for key, shape in zip(keys, shapes, strict=True)]

    def apply(self, params: Any, observation: Any) -> Any:
        """Returns logits and a value from one hidden layer."""
        output = jnp.tanh(observation @ params[0]) @ params[1]
        return output[..., :-1], output[..., -1]


def wide(spec: Any) -> Policy:
    """A policy with that network."""
    return Policy(spec, Wide(spec.actions))


def scaled(spec: Any) -> Policy:
    """The same policy with scaled rewards."""
    return Policy(spec, Wide(spec.actions), scaling_discount=0.9)


class Configuration(NamedTuple):
    """A system on a deployment."""

    system: Any
    workload: Workload
    functions: dict[str, FunctionSpec]
    faults: dict[str, Faults]
    seed: int

    def platform(self) -> SimulatedPlatform:
        """Makes a fresh platform."""
        return SimulatedPlatform(self.functions, seed=self.seed, faults=self.faults)


class Compared(NamedTuple):
    """How a run of the lab compares with `train`."""

    distance: float  #: the largest difference of a parameter or a normaliser.
    moved: float  #: the largest change of a parameter since the start.
    same: bool  #: whether the dry run has the schedule of the run.
    schedule: Schedule


def configure(
    system: Any,
    *,
    seed: int,
    refresh: int | None = None,
    faults: dict[str, Faults] | None = None,
    policy: Callable[[Any], Policy] = wide,
) -> Any:
    """A system on a deployment where every duration varies."""
    patient = Retry(limit=50)
    functions = {
        "actor": FunctionSpec(LogNormal(0.01, 1.0), cold_start=Constant(0.3), keep_alive=5.0, retry=patient),
        "learner": FunctionSpec(LogNormal(0.1, 0.7), cold_start=Constant(0.2), retry=patient),
        "parameter": FunctionSpec(LogNormal(0.01, 0.5), retry=patient),
        "all_reduce": FunctionSpec(Constant(1e-6)),
    }
    used = ("actor", *system.functions)
    own = {name: fault for name, fault in (faults or {}).items() if name in used}
    workload = Workload(CartPole(), policy, actors=3, fragment=16, refresh=refresh)
    return Configuration(system, workload, {name: functions[name] for name in used}, own, seed)


def draw(seed: int) -> Configuration:
    """Draws a configuration: any system, loss, aggregator, cap, control, refresh, delays and faults."""
    rng = np.random.default_rng(seed)

    def one_of(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    learners = int(rng.integers(2, 5))
    # Streams of their own, so that the other settings of a number stay what they were before these were added.
    penalised, in_rounds = np.random.default_rng((seed, 1)).random(2) < 1 / 3
    ppo = PPO(epochs=2, minibatch_size=24, learning_rate=1e-3, clip=one_of(0.1, 0.3))
    if penalised:
        ppo = replace(ppo, kl_coefficient=0.2, kl_target=0.001)
    loss = one_of(ppo, ppo, IMPALA(minibatch_size=2), IMPACT(epochs=1, minibatch_size=24))
    control = one_of(
        StalenessControl(pace=int(rng.integers(0, 4))),
        StalenessControl(pace=2, discard=int(rng.integers(1, 6))),
        StalenessControl(pace=3, window=int(rng.integers(3, 9))),
    )
    control = replace(control, rounds=bool(in_rounds))
    aggregator = one_of(
        None,
        staleness_aware(learners, decay=0.9, combine="sequential"),
        staleness_aware(2, capacity=8, decay=0.95, max_staleness=1.0),
        staleness_aware(learners, decay=0.9, threshold="demo"),
        softsync(2, capacity=8),
        buffered(2, capacity=8),
        fully_asynchronous(capacity=8),
        fully_asynchronous(capacity=8, drop_from=int(rng.integers(1, 4))),
        stale_synchronous(int(rng.integers(0, 3)), learners),
        synchronous(learners),
    )
    rho = one_of(1.0, 1.05, 1.5, math.inf)
    system = one_of(
        Synchronous(loss),
        DataParallel(ppo, learners=2),
        AsynchronousActors(loss, control=control),
        CircularReplay(loss, buffer=int(rng.integers(1, 4)), passes=int(rng.integers(1, 4)), control=control),
        *[Stellaris(loss, learners, aggregator, rho, control)] * 4,
    )
    faults = one_of(
        {},
        {"actor": Faults(crash_during=0.05, lose=0.1, lifetime=Exponential(3.0))},
        {
            "actor": Faults(crash_after=0.05, throttle=0.1, duplicate=0.1),
            "learner": Faults(crash_before=0.1, lose=0.1, straggle=0.2),
            "parameter": Faults(crash_during=0.1, duplicate=0.2),
        },
    )
    policy = (wide, scaled)[np.random.default_rng((seed, 2)).integers(2)]
    return configure(system, seed=seed, refresh=one_of(None, None, 4, 8), faults=faults, policy=policy)


def compare(configuration: Configuration, updates: int = UPDATES, budget: Budget | None = None) -> Compared:
    """Trains, follows the run's schedule in the lab, and compares the versions after so many updates."""
    system, workload, seed = configuration.system, configuration.workload, configuration.seed
    platform, versions = configuration.platform(), []
    publish = platform.store.publish

    def published(name: str, version: Any) -> int:
        versions.append(version)
        return publish(name, version)

    platform.store.publish = published
    # A whole batch takes synchronous learners longest.
    budget = budget or Budget(seconds=60.0 if isinstance(system, Synchronous | DataParallel) else 15.0)
    result = train(system, workload, platform=platform, budget=budget, seed=seed)
    held = 0 if math.isinf(getattr(system, "rho", math.inf)) else system.learners - 1
    whole = recorded(result.trace, held=held)
    dry = dry_run(system, workload, platform=configuration.platform(), budget=budget, seed=seed)
    schedule = whole.first(min(updates, whole.updates))
    followed = follow(configuration, schedule)
    apart = distance(followed, versions[schedule.updates])
    return Compared(apart, distance(versions[0].params, followed.params), dry == whole, schedule)


def follow(configuration: Configuration, schedule: Schedule) -> Any:
    """The last version of the lab under a schedule."""
    system, workload, seed = configuration.system, configuration.workload, configuration.seed
    sizes, plan = plan_of(schedule)
    policy, keys = workload.make_policy(workload.environment.spec), SessionKeys.of(seed)
    aggregator = None
    if isinstance(system, Stellaris):
        aggregator = system.aggregator or staleness_aware(system.learners, decay=0.9)
    steps = workload.steps_at_once
    rho = getattr(system, "rho", math.inf)
    pieces = workload.fragment // steps
    program = Program(workload.environment, policy, system.algorithm, aggregator, rho, steps, pieces, sizes)
    params = jax.jit(Policy.init, static_argnums=0)(policy, keys.params)
    return jax.jit(program.run)(plan, params, Keys(keys.batches, keys.noise, jnp.int32(seed)))[0]


def distance(one: Any, other: Any) -> float:
    pairs = zip(jax.tree.leaves(one), jax.tree.leaves(other), strict=True)
    return max(float(np.abs(np.asarray(a, float) - np.asarray(b, float)).max()) for a, b in pairs)


def main() -> int:
    """Compares random configurations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=300, help="number of configurations")
    parser.add_argument("--float64", action="store_true", help="compute in float64")
    arguments = parser.parse_args()
    jax.config.update("jax_enable_x64", arguments.float64)
    bound, wrong, most = (1e-10 if arguments.float64 else 1e-5), 0, 0.0
    for seed in range(arguments.first, arguments.first + arguments.count):
        began = time.perf_counter()
        configuration = draw(seed)
        try:
            compared = compare(configuration)
        except ValueError as error:  # a combination that a system refuses, or too short a run
            print(f"{seed:4d} refused: {error}", flush=True)
            continue
        bad = not (compared.distance < bound and compared.same)
        wrong, most = wrong + bad, max(most, compared.distance)
        print(
            f"{seed:4d} {'WRONG' if bad else 'equal'} {compared.distance:.1e} of {compared.moved:.2f}, "
            f"{time.perf_counter() - began:.0f} s, {compared.schedule}, {configuration.system}",
            flush=True,
        )
        if seed % 20 == 19:
            jax.clear_caches()
    print(f"{wrong} differ; the largest distance is {most:.1e}")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
