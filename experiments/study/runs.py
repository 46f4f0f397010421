"""Runs one system on a fresh platform, reports its progress, and summarises the result."""

import math
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from experiments.tasks.presets import Contender
from experiments.toolkit import progress, shell
from stellaris.acting import PolicyVersion, envs
from stellaris.acting.rollout import Fragment
from stellaris.runtime import Platform, Recording, SimulatedPlatform, Trace
from stellaris.systems import Evaluation, Row, Workload, train


@dataclass(kw_only=True)
class Outcome(progress.Run):
    """The results so far of one run of one system."""

    contender: Contender
    seed: int
    trace: Trace = field(default_factory=Trace)
    policy: PolicyVersion | None = None  #: the newest version, at the end of the run.

    @property
    def name(self) -> str:
        """The run's name in the names of its files."""
        return f"{self.contender.name}_{self.seed}"


class Watcher(Protocol):
    """Receives the progress of runs."""

    def begin(self, run: Outcome, /) -> None:
        """Called when a run begins."""

    def row(self, run: Outcome, /) -> None:
        """Called after each round of a run."""

    def end(self, run: Outcome, /) -> None:
        """Called when a run ends, also by an error or an interruption."""


@dataclass(frozen=True)
class Together:
    """Passes the progress of runs to several watchers."""

    watchers: Sequence[Watcher]

    def begin(self, run: Outcome) -> None:
        """Passes the beginning of a run."""
        for watcher in self.watchers:
            watcher.begin(run)

    def row(self, run: Outcome) -> None:
        """Passes the end of a round."""
        for watcher in self.watchers:
            watcher.row(run)

    def end(self, run: Outcome) -> None:
        """Passes the end of a run."""
        for watcher in self.watchers:
            watcher.end(run)


def check(workload: Workload) -> None:
    """Checks before any run that the environment and the policy can be made, by making them once.

    Raises:
      UsageError: if one of them cannot be made. Every error is replaced, because environments and policies may raise
        errors of any class.
    """
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the run repeats the warnings
            workload.make_policy(envs.make(workload.environment, slots=1).spec)
    except Exception as error:
        raise shell.UsageError(f"--env {workload.environment}: {error}") from error


def run(
    workload: Workload,
    outcome: Outcome,
    *,
    threads: int,
    watcher: Watcher,
    evaluation: Evaluation | None = None,
    replay: Recording | None = None,
    platform: Platform | None = None,
    on_fragment: Callable[[Fragment], None] | None = None,
) -> None:
    """Runs a system, by default on a simulated platform; fills `outcome` during the run, so interruptions lose nothing.

    Args:
      workload: the workload to learn.
      outcome: the outcome, which names the contender, the budget and the seed, and receives history, trace and status.
      threads: the number of threads of bodies and environments.
      watcher: the watcher that receives the progress.
      evaluation: the evaluation of the policy during the run.
      replay: the recording whose delays the simulated platform repeats.
      platform: the platform to use in place of a simulated platform.
      on_fragment: the function that gets each fragment.
    """
    contender = outcome.contender
    platform = platform or SimulatedPlatform(
        contender.functions,
        seed=outcome.seed,
        threads=threads,
        replay=replay,
        on_event=lambda platform: shell.check(),  # interrupts between events, when the trace is consistent
    )
    outcome.trace = platform.trace
    outcome.begin()
    watcher.begin(outcome)

    def on_progress(row: Row) -> None:
        outcome.add(row)
        watcher.row(outcome)

    try:
        outcome.policy = train(
            contender.system,
            workload,
            platform=platform,
            budget=outcome.budget,
            prices=contender.prices,
            seed=outcome.seed,
            evaluation=evaluation,
            threads=threads,
            on_progress=on_progress,
            on_fragment=on_fragment,
        ).policy
        outcome.status = "done"
    except KeyboardInterrupt:
        outcome.status = "interrupted"
        raise
    except Exception:
        outcome.status = "failed"
        raise
    finally:
        watcher.end(outcome)


def summarise(outcome: Outcome, target: float | None) -> dict[str, Any]:
    """Summarises a run in numbers computed from its history and its trace.

    The seconds to the target are those to the target return over a full window of episodes, or to the budget's target
    of evaluations if that was reached earlier.
    """
    last, trace = outcome.history[-1], outcome.trace
    staleness = trace.select("staleness").value
    evaluated = outcome.budget.target_evaluation
    reached = [
        row["seconds"]
        for row in outcome.history
        if (target is not None and row["episodes"] >= outcome.budget.window and row["episode_return"] >= target)
        or row.get("evaluation_return", math.nan) >= evaluated
    ]
    return {
        "system": outcome.contender.name,
        "seed": outcome.seed,
        "status": outcome.status,
        "final_return": last["episode_return"],
        "seconds_to_target": reached[0] if reached else None,
        "virtual_seconds": last["seconds"],
        "steps": int(last["steps"]),
        "versions": int(last["version"]),
        "gradients": int(last["gradients"]),
        **{name: value for name, value in last.items() if name.startswith("cost_")},
        "staleness_mean": float(staleness.mean()) if len(staleness) else None,
        "staleness_max": int(staleness.max()) if len(staleness) else None,
        "cold_starts": _cold_starts(trace),
        "wall_seconds": outcome.wall_seconds,
    }


def _cold_starts(trace: Trace) -> int:
    """Counts the invocations that waited for a new container; a reserved machine's containers start without a wait."""
    acquired, started = trace.select("acquired"), trace.select("started")
    begun = dict(zip(started.invocation.tolist(), started.time.tolist(), strict=True))
    rows = zip(*(column.tolist() for column in acquired), strict=True)
    return sum(bool(cold) and begun.get(number, math.inf) > time for time, number, cold in rows)
