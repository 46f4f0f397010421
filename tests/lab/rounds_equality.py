"""Compares runs of MinionsRL by `train` with the lab's compiled rounds, for random deployments and schedulers.

    python -m tests.lab.rounds_equality [--first SEED] [--count N]

Prints one line per configuration, and fails if one differs by more than 1e-5.
"""

import argparse
import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris import PPO
from stellaris.acting import ActorCritic
from stellaris.acting.policies import Policy
from stellaris.lab import CartPole
from stellaris.lab.rounds import Rounds
from stellaris.runtime import FunctionSpec, Machine, PriceSheet, Rate, Resources, SimulatedPlatform, Transfer
from stellaris.runtime.delays import Constant, Delay, Gamma, LogNormal
from stellaris.scheduling import Fixed, Learned, Maximum, Stepped
from stellaris.scheduling.scheduler import states_of
from stellaris.systems import Budget, Evaluation, MinionsRL, Workload, train
from stellaris.systems.history import rounds_of
from tests.lab.equality import distance, scaled, wide

#: Relative difference that rounding in float32 may make. Divergences are differences of nearly equal numbers.
TOLERANCE, OF_DIVERGENCES = 1e-5, 3e-7
#: By use, by the life of containers, and by the clock; with units of billing.
PRICES = (
    PriceSheet("by_use", {"actor": Rate(per_gb_second=0.01), "learner": Rate(per_second=0.1, per_request=0.01)}),
    PriceSheet(
        "by_life",
        {
            "actor": Rate(per_vcpu_second=0.02, granularity=0.1, cold=True, idle=True),
            "learner": Rate(per_second=0.1, granularity=1.0, cold=True),
        },
    ),
    PriceSheet("by_clock", {"actor": Rate(per_second=0.1)}, {"server": Machine(0.05)}),
)
ROUNDS = 12


class Configuration(NamedTuple):
    """A scheduler and a deployment."""

    scheduler: Any
    ppo: PPO
    workload: Workload
    functions: dict[str, FunctionSpec]
    budget: Budget
    prewarm: bool
    seed: int
    evaluation: Evaluation | None = None

    def compiled(self, most: int = 12 * ROUNDS) -> Rounds:
        """Makes the compiled rounds."""
        return Rounds(
            self.workload,
            self.ppo,
            self.functions,
            PRICES,
            budget=self.budget,
            most=most,
            prewarm=self.prewarm,
            evaluation=self.evaluation,
        )


class Compared(NamedTuple):
    """How compiled rounds compare with `train`."""

    decisions: tuple[list[int], list[int]]
    worst: float  #: the largest relative difference in a column or a state.
    where: str  #: its name.
    params: float  #: the largest difference of a parameter or a normaliser.
    moved: float  #: the largest change of a parameter since the start.


def deployment(varying: bool, **options: Any) -> dict[str, FunctionSpec]:
    """Functions that take time for everything; every duration varies, or none does."""

    def seconds(mean: float, cv: float) -> Delay:
        return LogNormal(mean, cv) if varying else Constant(mean)

    wire = Transfer(seconds(0.01, 0.5), bandwidth=1e6)
    actor = FunctionSpec(
        seconds(0.01, 0.5),
        cold_start=seconds(0.3, 0.5),
        initialisation=seconds(0.05, 0.5),
        transfer=wire,
        resources=Resources(memory=2.0, vcpus=1.0),
    )
    learner = FunctionSpec(Gamma(0.1, 1.0) if varying else Constant(0.1), cold_start=seconds(1.5, 0.5), transfer=wire)
    return {"actor": replace(actor, **options), "learner": learner}


def configure(scheduler: Any, *, seed: int = 0, varying: bool = True, **changes: Any) -> Configuration:
    """A scheduler on a small problem with eight actors; `changes` are fields of the configuration."""
    configuration = Configuration(
        scheduler,
        PPO(epochs=2, minibatch_size=24, learning_rate=1e-3),
        Workload(CartPole(), ActorCritic(hidden=(8,)), actors=8, fragment=16),
        deployment(varying),
        Budget(steps=16 * 8 * ROUNDS, cost=100.0),
        False,
        seed,
    )
    return configuration._replace(**changes)


def draw(seed: int) -> Configuration:
    """Draws a configuration: any scheduler, number of actors, minibatch, reuse, limits, expiry, billing and target."""
    rng = np.random.default_rng(seed)

    def one_of(*options: Any) -> Any:
        return options[rng.integers(len(options))]

    actors, length = int(rng.integers(3, 10)), int(rng.integers(5, 30))
    schedule: Sequence[int] = rng.integers(1, actors + 1, ROUNDS).tolist()
    scheduler = one_of(
        Fixed(int(rng.integers(1, actors + 1))),
        Maximum(),
        Stepped(1, 1, every=2),
        Stepped(actors, -2, every=2),
        schedule,
        *(Learned.untrained(most=actors, seed=seed, hold=hold) for hold in (1, 3)),
    )
    ppo = PPO(
        epochs=int(rng.integers(1, 4)),
        minibatch_size=one_of(17, 24, 32, actors * length),
        learning_rate=1e-3,
        kl_coefficient=0.2,
        kl_target=one_of(None, 0.001),
    )
    functions = deployment(
        one_of(True, True, False),
        keep_alive=one_of(float("inf"), 2.0, 0.0),
        reuse=one_of("newest", "most_recent", "least_recent"),
        queueing=one_of(Constant(0.0), Constant(0.02)),
        max_concurrency=one_of(None, actors),
    )
    functions["learner"] = replace(functions["learner"], max_concurrency=one_of(None, 1), keep_alive=one_of(1.0, 50.0))
    evaluation = one_of(None, Evaluation(every=1, episodes=3))
    target = 30.0 if evaluation is not None and rng.random() < 0.5 else float("inf")
    drawn = Configuration(
        scheduler,
        ppo,
        Workload(CartPole(time_limit=40), one_of(wide, scaled), actors=actors, fragment=length),
        functions,
        Budget(
            steps=length * actors * ROUNDS,
            cost=one_of(8.0, 100.0),
            target_return=one_of(24.0, 1e9),
            target_evaluation=target,
            window=9,
        ),
        one_of(True, False),
        seed,
        evaluation,
    )
    # Compiled rounds have one container for each actor, which is too few if prewarmed ones are ready at various times.
    if drawn.prewarm and isinstance(functions["actor"].cold_start, LogNormal):
        functions["actor"] = replace(functions["actor"], max_concurrency=actors)
    return drawn


def compare(configuration: Configuration) -> Compared:
    """Runs both, and compares histories, states and parameters."""
    ppo, workload, seed = configuration.ppo, configuration.workload, configuration.seed
    scheduler = configuration.scheduler
    own = Listed(tuple(scheduler)) if isinstance(scheduler, list) else scheduler
    run = train(
        MinionsRL(ppo, own, configuration.prewarm),
        workload,
        platform=SimulatedPlatform(configuration.functions, seed=seed),
        budget=configuration.budget,
        prices=PRICES,
        evaluation=configuration.evaluation,
        seed=seed,
    )
    played = configuration.compiled().play(scheduler, [seed])
    assert played.over.tolist() == [True]
    compiled = played.history(0)
    worst = (0.0, "nothing")
    for one, row in zip(compiled, run.history, strict=False):
        for name, value in one.items():
            worst = max(worst, (_apart(name, value, row.get(name, 0.0)), name))
    cost = configuration.budget.cost
    states, others = (states_of(rounds_of(rows, "by_use"), budget=cost) for rows in (compiled, run.history))
    for state, other in zip(states, others, strict=False):
        for name in state._fields:
            worst = max(worst, (_apart(name, getattr(state, name), getattr(other, name)), f"state {name}"))
    first = jax.jit(Policy.init, static_argnums=0)
    version = jax.tree.map(lambda x: x[0], played.policy)
    start = first(workload.make_policy(workload.environment.spec), _key(seed))  # type: ignore[union-attr]
    return Compared(
        ([row["actors"] for row in compiled], [int(row["actors"]) for row in run.history]),  # type: ignore[arg-type]
        *worst,
        distance(version, run.policy),
        distance(version.params, start),
    )


def _key(seed: int) -> jax.Array:
    from stellaris.systems.session import Keys

    return Keys.of(seed).params


def _apart(name: str, one: float, other: float) -> float:
    """The relative difference, as a multiple of what is admitted: 1 is too much."""
    if np.isnan(one) and np.isnan(other):
        return 0.0
    if name == "policy_kl":
        return abs(one - other) / (OF_DIVERGENCES + 1e-3 * abs(other))
    return abs(one - other) / (TOLERANCE * max(abs(other), 1e-3))


class Listed(NamedTuple):
    """The numbers of a list, one for each round; the last also for later rounds."""

    numbers: tuple[int, ...]

    def decide(self, states: Any, *, most: int, key: Any) -> int:
        """Returns the number of the round."""
        return self.numbers[min(len(states), len(self.numbers)) - 1]


def main() -> int:
    """Compares random configurations."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--first", type=int, default=0, help="the first seed")
    parser.add_argument("--count", type=int, default=50, help="number of configurations")
    arguments = parser.parse_args()
    wrong = 0
    for seed in range(arguments.first, arguments.first + arguments.count):
        began = time.perf_counter()
        configuration = draw(seed)
        compared = compare(configuration)
        same = compared.decisions[0] == compared.decisions[1]
        bad = not (same and compared.worst < 1 and compared.params < 1e-5)
        wrong += bad
        print(
            f"{seed:4d} {'WRONG' if bad else 'equal'} {compared.worst:.2f} in {compared.where}, parameters "
            f"{compared.params:.1e} of {compared.moved:.2f}, {len(compared.decisions[0])} rounds, "
            f"{time.perf_counter() - began:.0f} s, {configuration.scheduler!r:.60}, prewarm={configuration.prewarm}",
            flush=True,
        )
        if bad:
            print(f"     {compared.decisions}\n     {configuration}", flush=True)
        if seed % 20 == 19:
            jax.clear_caches()
    print(f"{wrong} differ")
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
