"""Our side of the lab's benchmark: `stellaris.lab`, which compiles all runs into one program.

The arguments are the number of runs and, if it is not the lab's default, the number of runs at a time.
"""

import os
import sys
import time

import jax
import numpy as np

from experiments.benchmarks.sides.lab_task import LabTask, report


def main() -> None:
    """Runs the sweep; the reported `compiling` is the time up to the first call of the program."""
    jax.config.update("jax_num_cpu_devices", os.cpu_count() or 1)  # type: ignore[no-untyped-call]
    from stellaris import PPO, ActorCritic, Workload
    from stellaris.lab import CartPole, imposed, sweep

    task = LabTask(runs=int(sys.argv[1]))
    workload = Workload(
        CartPole(),
        ActorCritic(hidden=(task.hidden, task.hidden)),
        actors=task.actors,
        fragment=task.fragment,
    )
    ppo = PPO(epochs=task.epochs, minibatch_size=task.minibatch_size, learning_rate=task.learning_rate)
    began, compiled = time.perf_counter(), []
    result = sweep(
        workload,
        ppo,
        imposed(task.updates, actors=task.actors),
        seeds=task.runs,
        block=int(sys.argv[2]) if len(sys.argv) > 2 else None,
        on_progress=lambda progress: compiled.append(time.perf_counter()),
    )
    ended = time.perf_counter()
    returns = np.nanmean(result.episode_return.values, axis=0)
    report(task, runs=task.runs, compiling=compiled[0] - began, running=ended - compiled[0], returns=returns)


if __name__ == "__main__":
    main()
