"""Trains our synchronous system with PPO in virtual time, or our asynchronous actors on the wall clock or on Ray."""

import contextlib
import sys
from collections import deque

from experiments.benchmarks.sides.protocol import Reporter, Task, task_given
from experiments.tasks import testbed
from stellaris import IMPALA, PPO
from stellaris.acting import ActorCritic
from stellaris.runtime import FunctionSpec, Platform, SimulatedPlatform
from stellaris.runtime.delays import Constant, Measured
from stellaris.systems import AsynchronousActors, Budget, Synchronous, System, Workload, train


class _Over(Exception):
    """Raised by the progress callback to end training."""


def main(task: Task, threads: int, *, on_ray: bool = False) -> None:
    """Trains, and reports after every round."""
    reporter = Reporter(task)
    sampled: deque[tuple[float, float | None]] = deque([(0.0, None)])  # steps, and the return of their episodes

    def report(row: dict[str, float]) -> None:
        sampled.append((row["steps"], row["episode_return"] if row["episodes"] >= 100 else None))
        learned = row["version"] * task.batch  # one version per batch
        # A row is made when the next batch has been sampled, whose episodes the peers' rounds do not contain.
        while len(sampled) > 1 and sampled[1][0] <= learned:
            sampled.popleft()
        if not reporter.report(int(learned), sampled[0][1]):
            raise _Over

    scaling = task.discount if task.scale_rewards else None
    policy = ActorCritic((task.hidden,) * 2, scaling_discount=scaling)
    workload = Workload(task.environment, policy=policy, actors=task.actors, fragment=task.fragment)
    if on_ray:
        system, platform = _on_ray(task)
    else:
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


def _ppo(task: Task, threads: int) -> tuple[System, Platform]:
    return Synchronous(_ppo_of(task)), SimulatedPlatform(testbed.reserved(actors=task.actors), threads=threads)


def _impala(task: Task) -> tuple[System, Platform]:
    """Returns the system `AsynchronousActors`, and a platform that runs each body on its own thread, without delays."""
    at_once = FunctionSpec(compute=Constant(0.0))
    functions = {"actor": FunctionSpec(Constant(0.0), max_concurrency=task.actors), "learner": at_once}
    return AsynchronousActors(_impala_of(task)), SimulatedPlatform(functions, clock="wall")


def _on_ray(task: Task) -> tuple[System, Platform]:
    """Returns the system `AsynchronousActors`, and a platform with one process per actor and one for the learner."""
    from stellaris.runtime import RayPlatform

    functions = {
        "actor": FunctionSpec(Measured(), max_concurrency=task.actors, provisioned=task.actors),
        "learner": FunctionSpec(Measured(), max_concurrency=1, provisioned=1),
    }
    algorithm = _impala_of(task) if task.algorithm == "impala" else _ppo_of(task)
    return AsynchronousActors(algorithm), RayPlatform(functions, seed=task.seed)


def _ppo_of(task: Task) -> PPO:
    return PPO(
        learning_rate=task.learning_rate,
        discount=task.discount,
        lambda_=task.lambda_,
        clip=task.clip,
        value_coefficient=task.value_coefficient,
        epochs=task.epochs,
        minibatch_size=task.minibatch,
        max_gradient_norm=task.max_gradient_norm,
    )


def _impala_of(task: Task) -> IMPALA:
    return IMPALA(
        learning_rate=task.learning_rate,
        discount=task.discount,
        entropy_coefficient=0.0,
        minibatch_size=task.actors,
        max_gradient_norm=task.max_gradient_norm,
    )


if __name__ == "__main__":
    main(task_given(), int(sys.argv[2]), on_ray="ray" in sys.argv[3:])
