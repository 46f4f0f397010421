"""A problem that is learned in a fraction of a second: CartPole with a network of eight units."""

from typing import Any

from stellaris import PPO
from stellaris.acting import ActorCritic
from stellaris.runtime import FunctionSpec, Machine, PriceSheet, Rate, SimulatedPlatform
from stellaris.runtime.delays import Constant, Delay, Gamma, LogNormal
from stellaris.systems import Budget, Result, System, Workload, train

WORKLOAD = Workload("CartPole-v1", policy=ActorCritic(hidden=(8,)), actors=2, fragment=16)
PPO_CONFIG = PPO(learning_rate=1e-2, epochs=2, minibatch_size=8)
GRADIENTS_A_ROUND = 2 * 4
ACTOR, LEARNER, PARAMETER = Constant(0.01), Constant(0.1), Constant(0.05)
PRICES = (
    PriceSheet("demo", machines={"machine": Machine(0.01)}),
    PriceSheet(
        "pay_per_use",
        functions={"actor": Rate(per_second=0.1), "learner": Rate(per_second=0.2), "parameter": Rate(per_second=0.3)},
    ),
)


def deployment(
    actor: Delay = ACTOR, learner: Delay = LEARNER, parameter: Delay = PARAMETER, **shared: Any
) -> dict[str, FunctionSpec]:
    """The three functions with their compute times; other settings are shared."""
    delays = {"actor": actor, "learner": learner, "parameter": parameter}
    return {name: FunctionSpec(compute=delay, **shared) for name, delay in delays.items()}


JITTERY = deployment(LogNormal(0.01, 0.5), Gamma(0.1, 1.0), LogNormal(0.02, 0.5), cold_start=LogNormal(0.3, 0.5))


def run(
    system: System, functions: dict[str, FunctionSpec], *, seed: int = 0, threads: int = 1, **options: Any
) -> Result:
    """Trains on the tiny problem; by default for 4 rounds."""
    platform = SimulatedPlatform(functions, seed=seed, threads=threads)
    options = {"budget": Budget(steps=4 * 32), "workload": WORKLOAD, "prices": PRICES} | options
    workload = options.pop("workload")
    return train(system, workload, platform=platform, seed=seed, **options)
