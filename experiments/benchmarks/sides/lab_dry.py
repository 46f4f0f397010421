"""Stellaris in the lab's benchmark: either lab runs that repeat a dry run's schedule, or runs of the event loop."""

import os
import sys
import time
from typing import Any

import jax
import numpy as np

from experiments.benchmarks.sides.lab_task import LabTask, report


def main() -> None:
    """Runs the side `lab` or `loop`, including compilation; reports as `compiling` the time of the dry run, if any."""
    side, runs, learners = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jax.config.update("jax_num_cpu_devices", (os.cpu_count() or 1) if side == "lab" else 1)  # type: ignore[no-untyped-call]
    from stellaris import PPO, ActorCritic, FunctionSpec, SimulatedPlatform, Workload, staleness_aware, train
    from stellaris.lab import CartPole, dry_run, sweep
    from stellaris.runtime.delays import Constant, LogNormal
    from stellaris.systems import Budget, Stellaris

    task = LabTask(runs=runs)
    workload = Workload(
        CartPole(), ActorCritic(hidden=(task.hidden, task.hidden)), actors=task.actors, fragment=task.fragment
    )
    ppo = PPO(epochs=task.epochs, minibatch_size=task.minibatch_size, learning_rate=task.learning_rate)
    aggregator = staleness_aware(learners, decay=0.9)
    arguments: dict[str, Any] = {"budget": Budget(steps=task.steps), "seed": 0}
    system = Stellaris(ppo, learners=learners, aggregator=aggregator)

    def platform() -> SimulatedPlatform:
        functions = {
            "actor": FunctionSpec(LogNormal(0.001, cv=0.5)),
            "learner": FunctionSpec(LogNormal(0.02, cv=0.5)),
            "parameter": FunctionSpec(Constant(0.005)),
        }
        return SimulatedPlatform(functions, seed=0)

    began = time.perf_counter()
    if side == "lab":
        schedule = dry_run(system, workload, platform=platform(), **arguments)
        planned = time.perf_counter()
        result = sweep(workload, ppo, schedule, aggregator=aggregator, seeds=runs)
        returns = np.nanmean(result.episode_return.values, axis=0)
    else:
        planned = began
        histories = []
        for seed in range(runs):
            history = train(system, workload, platform=platform(), **arguments | {"seed": seed}, threads=2).history
            histories.append([row["episode_return"] for row in history])
        updates = min(map(len, histories))
        returns = np.mean([history[:updates] for history in histories], axis=0)
    report(task, runs=runs, compiling=planned - began, running=time.perf_counter() - planned, returns=returns)


if __name__ == "__main__":
    main()
