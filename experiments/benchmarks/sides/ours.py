"""Our synchronous system with PPO, in virtual time, or our asynchronous actors with IMPALA, on the wall clock."""

import contextlib
import sys

from experiments import testbed
from experiments.benchmarks.sides.protocol import Reporter, Task, task_given
from stellaris import IMPALA, PPO
from stellaris.acting import ActorCritic
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
from stellaris.systems import AsynchronousActors, Budget, Synchronous, System, Workload, train


class _Over(Exception):
    """The task's end."""


def main(task: Task, threads: int) -> None:
    """Trains, and reports after every round."""
    reporter = Reporter(task)

    def report(row: dict[str, float]) -> None:
        mean = row["episode_return"] if row["episodes"] >= 100 else None
        learned = row["version"] * task.batch  # a version a batch
        if not reporter.report(int(learned), mean):
            raise _Over

    workload = Workload(
        task.environment, policy=ActorCritic((task.hidden,) * 2), actors=task.actors, fragment=task.fragment
    )
    system, platform = _ppo(task, threads) if task.algorithm == "ppo" else _impala(task)
    with contextlib.suppress(_Over):
        train(
            system,
            workload,
            platform=platform,
            budget=Budget(steps=10**9),
            seed=task.seed,
            threads=threads,
            on_progress=report,  # type: ignore[arg-type]
        )


def _ppo(task: Task, threads: int) -> tuple[System, SimulatedPlatform]:
    algorithm = PPO(
        learning_rate=task.learning_rate,
        discount=task.discount,
        lambda_=task.lambda_,
        clip=task.clip,
        value_coefficient=task.value_coefficient,
        epochs=task.epochs,
        minibatch_size=task.minibatch,
        max_gradient_norm=task.max_gradient_norm,
    )
    return Synchronous(algorithm), SimulatedPlatform(testbed.reserved(actors=task.actors), threads=threads)


def _impala(task: Task) -> tuple[System, SimulatedPlatform]:
    """Every body on a thread of its own; nothing is waited for but the bodies' work."""
    algorithm = IMPALA(
        learning_rate=task.learning_rate,
        discount=task.discount,
        entropy_coefficient=0.0,
        minibatch_size=task.actors,
        max_gradient_norm=task.max_gradient_norm,
    )
    at_once = FunctionSpec(compute=Constant(0.0))
    functions = {"actor": FunctionSpec(Constant(0.0), max_concurrency=task.actors), "learner": at_once}
    return AsynchronousActors(algorithm), SimulatedPlatform(functions, clock="wall")


if __name__ == "__main__":
    main(task_given(), int(sys.argv[2]))
