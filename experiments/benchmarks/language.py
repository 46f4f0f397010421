"""Compares runs of the lab's language task with the event loop's, and shows how well each task is learned.

Both sides count CPU seconds, so other work on the machine hardly matters. A run of the lab is measured without its
compilation, which is a separate part of the row; of the event loop a few updates are measured.
"""

import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import optax

from experiments.benchmarks.measuring import Comparison
from stellaris import FunctionSpec, SimulatedPlatform, Workload
from stellaris.lab import imposed, sweep
from stellaris.lab.language import GRPO, Addition, Answering, Sorting, Transformer, WarmStart, workload
from stellaris.runtime.delays import Constant
from stellaris.systems import AsynchronousActors, Budget, train

DESCRIPTION = "updates of the lab's language tasks, against the event loop's, and the answers that are exact (minutes)"

#: Actors of every run; each makes one group of answers per update.
_ACTORS = 32
#: Runs of each task.
_SEEDS = 2
#: Updates of the event loop that are measured.
_LOOP = 10


class _Case(NamedTuple):
    name: str
    workload: Workload
    algorithm: GRPO
    updates: int


def _cases() -> list[_Case]:
    """Returns the tasks with the defaults, one with a warm start, and one with settings that solve addition."""
    sorting, short, adding = (Answering(task) for task in (Sorting(), Sorting(most=4), Addition()))
    plain = Transformer.of(adding.task)
    falling = optax.cosine_decay_schedule(2e-3, 4000)
    return [
        _Case("Sorting()", _on(sorting), GRPO(sorting), 1200),
        _Case("Sorting(most=4)", _on(short), GRPO(short), 600),
        _Case("Addition()", _on(adding), GRPO(adding), 1200),
        _Case(
            "Addition() after a warm start of 150 steps",
            workload(adding, WarmStart(plain, adding.task, steps=150), actors=_ACTORS),
            GRPO(adding),
            600,
        ),
        _Case(
            "Addition(), entropy bonus 0.4, falling rate",
            _on(adding),
            GRPO(adding, learning_rate=falling, entropy_coefficient=0.4),
            4000,
        ),
    ]


def _on(env: Answering) -> Workload:
    return workload(env, Transformer.of(env.task), actors=_ACTORS)


def measure(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Measures the tasks one after the other."""
    for case in _cases():
        say(f"{case.name}, {case.updates:,} updates ...")
        compiling, running, exact = _lab(case)
        own, loop = running / (_SEEDS * case.updates), _loop(case)
        yield Comparison(
            f"{case.name}, {case.updates:,} updates: CPU ms an update, against the event loop",
            f"{1e3 * own:.1f}",
            f"{1e3 * loop:,.0f}",
            own / loop,
            "",
            {
                "exact": ", ".join(f"{share:.2f}" for share in exact),
                "CPU s a run": f"{running / _SEEDS:.0f}",
                "CPU s to compile": f"{compiling:.0f}",
            },
        )


def _lab(case: _Case) -> tuple[float, float, list[float]]:
    """Returns the CPU seconds of compiling and of all runs, and each run's exact share in its last tenth."""
    began, compiled = time.process_time(), []
    result = sweep(
        case.workload,
        case.algorithm,
        imposed(case.updates, actors=_ACTORS),
        seeds=_SEEDS,
        block=_SEEDS,
        on_progress=lambda progress: compiled.append(time.process_time()),
    )
    ended = time.process_time()
    last = result.exact.isel(update=slice(-max(1, case.updates // 10), None)).mean("update")
    return compiled[0] - began, ended - compiled[0], [float(share) for share in last.values]


def _loop(case: _Case) -> float:
    """Returns the CPU seconds of an update of the event loop, without what a run of any length takes."""
    functions = {"actor": FunctionSpec(Constant(0.1)), "learner": FunctionSpec(Constant(0.1))}
    system = AsynchronousActors(case.algorithm)

    def seconds(updates: int) -> float:
        budget = Budget(steps=updates * _ACTORS * case.workload.fragment)
        began = time.process_time()
        train(system, case.workload, platform=SimulatedPlatform(functions), budget=budget, threads=1)
        return time.process_time() - began

    seconds(1 + _LOOP)  # compiles every program that a long run needs, and a short one may not
    return (seconds(1 + _LOOP) - seconds(1)) / _LOOP
