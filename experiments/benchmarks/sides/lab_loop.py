"""The event loop's side of the lab's benchmark: runs of the same task by `train`, one after the other."""

import sys
import time
from typing import Any

import numpy as np

from experiments.benchmarks.sides.lab_task import LabTask, report
from stellaris import PPO, ActorCritic, FunctionSpec, SimulatedPlatform, Workload, train
from stellaris.runtime.delays import Constant
from stellaris.systems import Budget, Synchronous


def main() -> None:
    """Trains on EnvPool's CartPole, after a short run whose time counts as compiling."""
    task = LabTask()
    runs = int(sys.argv[1])
    policy = ActorCritic(hidden=(task.hidden, task.hidden))
    workload = Workload("CartPole-v1", policy, actors=task.actors, fragment=task.fragment)
    ppo = PPO(epochs=task.epochs, minibatch_size=task.minibatch_size, learning_rate=task.learning_rate)

    def run(seed: int, steps: int) -> Any:
        functions = {"actor": FunctionSpec(Constant(0.001)), "learner": FunctionSpec(Constant(0.01))}
        platform = SimulatedPlatform(functions)
        budget = Budget(steps=steps)
        return train(Synchronous(ppo), workload, platform=platform, budget=budget, seed=seed, threads=2).history

    began = time.perf_counter()
    run(0, 2 * task.actors * task.fragment)
    compiled = time.perf_counter()
    histories = [run(seed, task.steps) for seed in range(runs)]
    ended = time.perf_counter()
    updates = min(map(len, histories))
    returns = np.mean([[row["episode_return"] for row in history[:updates]] for history in histories], axis=0)
    report(task, runs=runs, compiling=compiled - began, running=ended - compiled, returns=returns)


if __name__ == "__main__":
    main()
