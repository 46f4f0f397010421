"""Measures the overhead of each system over its environments, its inference and its gradients.

A system runs, and its calls of environments, inference and gradients are recorded with their arguments. Then a plain
loop makes the same calls in the same order, with the same shapes, on the same threads. The difference is the system's
overhead: platform, event loop, trace, batches, aggregators, copies. Function bodies run one at a time, because overhead
in parallel with a body would not be measured.
"""

import contextlib
import gc
import statistics
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple
from unittest.mock import patch

import jax
import numpy as np

from experiments.benchmarks.measuring import Comparison
from experiments.tasks import presets
from stellaris.acting import envs, rollout
from stellaris.acting.envpool_env import EnvPoolEnv
from stellaris.runtime import SimulatedPlatform
from stellaris.systems import Budget, batches, central_inference, data_parallel, programs, train

DESCRIPTION = "overhead of each system over its environments, its inference and its gradients"

ENVIRONMENT, THREADS = "Hopper-v4", 2
#: Numbers of timed rounds of a run, of warm-up rounds before them, and of runs.
ROUNDS, WARM_UP, REPEATS = 8, 3, 3

#: The calls that count as work: the kind, the owner and the name of each function.
WORK = (
    ("environment", EnvPoolEnv, "step"),
    ("inference", rollout, "_act"),
    ("inference", rollout, "_value"),
    ("inference", central_inference, "_chosen"),
    ("inference", central_inference, "_values"),
    ("inference", batches, "_prepared"),  # advantages, and for IMPACT the target policy's inference
    ("gradients", programs, "_learned"),
    ("gradients", programs, "_gradient"),
    ("gradients", programs, "_applied"),
    ("gradients", data_parallel, "_shard_gradient"),
    ("gradients", data_parallel, "_stepped"),
)
KINDS = ("environment", "inference", "gradients")


def measure(say: Callable[[str], None]) -> Iterator[Comparison]:
    """Runs every system and its plain loop in turn, and calls `say` with the time of each kind of work."""
    preset = presets.architectures(ENVIRONMENT)
    for contender in preset.contenders:
        say(f"{contender.name}, and a plain loop ...")
        costs = [cost(contender, preset.workload) for _ in range(REPEATS)]
        middle = sorted(costs, key=lambda one: one.ratio)[len(costs) // 2]
        parts = {kind: f"{seconds:.2f} s" for kind, seconds in middle.work.items()}
        parts["the rest"] = f"{middle.run - middle.plain:.2f} s"
        say(f"  of {middle.run:.2f} s: {', '.join(f'{kind} {seconds}' for kind, seconds in parts.items())}")
        yield Comparison(
            f"{contender.name}, {ROUNDS} rounds, against a plain loop of the same calls",
            f"{middle.run:.2f} s",
            f"{middle.plain:.2f} s",
            statistics.median(one.ratio for one in costs),
            "<= 1.05",
            parts,
        )


class Cost(NamedTuple):
    """The time of a run, and of its work in a plain loop."""

    run: float  #: seconds of real time.
    work: dict[str, float]  #: seconds of the plain loop, by kind.

    @property
    def plain(self) -> float:
        """Seconds of the plain loop."""
        return sum(self.work.values())

    @property
    def ratio(self) -> float:
        """The time of the run divided by the time of the plain loop."""
        return self.run / self.plain


def cost(contender: presets.Contender, workload: Any) -> Cost:
    """Times a system, and then its work alone."""
    calls = Calls()
    stamps: list[tuple[float, int]] = []
    gc.collect()
    with calls.noted():
        train(
            contender.system,
            workload,
            platform=SimulatedPlatform(contender.functions, threads=1),
            budget=Budget(steps=(WARM_UP + ROUNDS + 3) * workload.actors * workload.fragment),
            prices=contender.prices,
            threads=THREADS,
            on_progress=lambda row: stamps.append((time.perf_counter(), len(calls.made))),
        )
    (began, first), (ended, last) = stamps[WARM_UP], stamps[WARM_UP + ROUNDS]
    return Cost(ended - began, calls.again(first, last))


@dataclass
class Calls:
    """The recorded calls of a run that count as work."""

    made: list[tuple[str, Callable[..., Any], tuple[Any, ...], dict[str, Any]]] = field(default_factory=list)

    @contextlib.contextmanager
    def noted(self) -> Iterator[None]:
        """Records the calls made within the context."""
        with contextlib.ExitStack() as stack:
            for kind, owner, name in WORK:
                stack.enter_context(patch.object(owner, name, self._noting(kind, getattr(owner, name))))
            yield

    def _noting(self, kind: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self.made.append((kind, function, arguments, options))
            return function(*arguments, **options)

        return call

    def again(self, first: int, last: int) -> dict[str, float]:
        """Repeats calls `first` to `last - 1` in order, and returns the seconds of each kind."""
        calls = self.made[first:last]
        slots = 1 + max(int(np.max(arguments[1])) for kind, _, arguments, _ in calls if kind == "environment")
        env = envs.make(ENVIRONMENT, slots=slots, threads=THREADS)
        env.reset(np.arange(slots))
        seconds = dict.fromkeys(KINDS, 0.0)
        for kind, function, arguments, options in calls:
            if kind == "environment":
                arguments = (env, *arguments[1:])
            began = time.perf_counter()
            results = function(*arguments, **options)
            if kind != "environment":  # an environment returns NumPy arrays; for the others, wait for the device
                results = jax.block_until_ready(results)  # type: ignore[no-untyped-call]
            seconds[kind] += time.perf_counter() - began
        env.close()
        return seconds
