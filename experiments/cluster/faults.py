"""Kills processes of a Ray cluster at random moments, and checks that runs end and use no result twice."""

import argparse
import contextlib
import os
import signal
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.simtest.scenarios import ALGORITHM, WORKLOAD
from experiments.toolkit import options, shell
from stellaris.runtime import FunctionError, FunctionSpec, RayPlatform, Resources
from stellaris.runtime.delays import Measured
from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.trace.trace import Trace
from stellaris.systems import Budget, Result, Stellaris, Synchronous, System, train

DESCRIPTION = (
    "kill a container, or a node with its object store, of a Ray cluster at random moments, and check the run's "
    "invariants"
)
SYSTEMS: dict[str, System] = {
    "synchronous": Synchronous(ALGORITHM),
    "stellaris": Stellaris(ALGORITHM, learners=1),
}
#: One run in `_NODES` loses a node; the other runs lose a container.
_NODES = 3
#: Seconds after which a run counts as hanging.
LIMIT = 300.0
#: The estimated seconds of a system's first run; each later run is expected to take as long as the run before it.
_GUESSED = 5.0
#: The event that a system writes when it uses the outcome of an invocation, by function.
_TAKEN = {"actor": "sampled", "learner": "staleness"}


@dataclass
class Outcome:
    """The outcome of a run."""

    system: str
    victim: str  #: "container" or "node"
    after: float  #: planned instant of the kill, in seconds from the start of the run.
    killed: bool = False  #: false if the run ended before the kill, or had no container.
    ended: str = ""  #: "completed", "hangs", or the error.
    seconds: float = 0.0  #: duration of the run.
    events: Counter[str] = field(default_factory=Counter)
    violations: list[str] = field(default_factory=list)

    def __str__(self) -> str:
        killed = f"{self.victim} killed after {self.after:.2f} s" if self.killed else "nothing killed"
        return f"{self.system}, {killed}: {self.ended} after {self.seconds:.1f} s, {self.events['crashed']} crashed"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--runs", type=options.whole(1), default=100, help="number of runs, with one kill each")
    parser.add_argument("--seed", type=options.whole(0), default=0, help="seed of the victims and the instants")


def main(arguments: argparse.Namespace) -> int:
    """Runs the systems in turn on a cluster of two nodes; returns exit status 1 if an invariant is violated."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)
    rng = np.random.default_rng(arguments.seed)
    outcomes: list[Outcome] = []

    def work() -> None:
        with _Machines() as machines:
            lasting = dict.fromkeys(SYSTEMS, _GUESSED)
            while sum(outcome.killed for outcome in outcomes) < arguments.runs:
                name = tuple(SYSTEMS)[len(outcomes) % len(SYSTEMS)]
                node = rng.random() < 1 / _NODES
                after = float(rng.uniform(0.0, lasting[name]))
                seed = int(rng.integers(2**31))
                outcome = run(name, after=after, seed=seed, node=machines.second if node else None)
                outcomes.append(outcome)
                lasting[name] = outcome.seconds
                console.print(f"{len(outcomes):>4} {outcome}", markup=False)
                for violation in outcome.violations:
                    console.print(f"     [bold]violated[/bold]: {escape(violation)}")
                if outcome.ended == HANGS:
                    break  # the threads of a hanging run would disturb the next run
                machines.mend()
                shell.check()

    interrupted = shell.interruptible(work)
    if outcomes:
        console.print(_table(outcomes))
    if interrupted:
        return shell.INTERRUPTED
    return shell.FAILED if any(outcome.violations for outcome in outcomes) else 0


def _table(outcomes: list[Outcome]) -> Table:
    violated = sum(bool(outcome.violations) for outcome in outcomes)
    killed = Counter(outcome.victim for outcome in outcomes if outcome.killed)
    title = (
        f"{len(outcomes)} runs, {killed['container']} containers and {killed['node']} nodes killed: {violated} failed"
    )
    table = Table(title=title)
    table.add_column("event")
    table.add_column("times", justify="right")
    for event, count in sum((outcome.events for outcome in outcomes), Counter[str]()).most_common():
        table.add_row(event, f"{count:,}")
    return table


# ---- a run ----------------------------------------------------------------------------------------------------------

HANGS = "hangs"


def run(name: str, *, after: float, seed: int, node: int | None = None, rounds: int = 100) -> Outcome:
    """Runs a system, kills a process during the run, and checks the trace, the history and the remaining processes.

    Args:
      name: the name of the system, a key of `SYSTEMS`.
      after: the instant of the kill, in seconds from the start of the run.
      seed: the seed of the run, and of the choice of the container.
      node: the process of the node to kill, or None to kill a container.
      rounds: the number of rounds of the run.
    """
    system: Any = SYSTEMS[name]
    outcome = Outcome(name, "container" if node is None else "node", after)
    on_two = FunctionSpec(Measured(), max_concurrency=1, resources=Resources(vcpus=0.5))
    platform = RayPlatform(dict.fromkeys(system.functions, on_two), seed=seed, placement="spread", hang_after=60.0)
    rng = np.random.default_rng(seed)
    over = threading.Event()

    def kill() -> None:
        over.wait(after)
        while not (over.is_set() or outcome.killed):
            there = containers() if node is None else [node]
            if there:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(there[rng.integers(len(there))], signal.SIGKILL)
                    outcome.killed = True
            over.wait(0.02)  # wait for the first container

    results: list[Result] = []

    def learn() -> None:
        try:
            budget = Budget(steps=rounds * WORKLOAD.actors * WORKLOAD.fragment)
            results.append(train(system, WORKLOAD, platform=platform, budget=budget, seed=seed))
            outcome.ended = "completed"
        except FunctionError as error:
            outcome.ended = f"{type(error).__name__}: {error}".splitlines()[0]
        except BaseException:
            outcome.violations.append(f"an error that names no function: {traceback.format_exc()}")
            outcome.ended = "error"

    began = time.perf_counter()
    threads = [threading.Thread(target=work, daemon=True) for work in (kill, learn)]
    for thread in threads:
        thread.start()
    threads[1].join(LIMIT)
    over.set()
    threads[0].join()
    outcome.seconds = time.perf_counter() - began
    if threads[1].is_alive():
        outcome.ended = HANGS
        outcome.violations.append(f"the run did not end within {LIMIT} s")
        return outcome
    outcome.events = Counter(event for _, event, *_ in platform.trace.rows() if event in _EVENTS)
    outcome.violations += [*violations(platform.trace, results[0] if results else None), *_left()]
    return outcome


#: Events that the final table counts.
_EVENTS = ("container_created", "container_lost", "completed", "failed", "crashed", "hung", "cancelled", "dropped")


def violations(trace: Trace, result: Result | None) -> Iterator[str]:
    """Yields the violated invariants in the trace and the history of a finished run.

    Args:
      trace: the trace of the run's platform.
      result: the result of the run, or None if the run ended with an error.
    """
    lives: dict[int, list[str]] = defaultdict(list)
    keys: dict[int, int] = {}
    containers: Counter[str] = Counter()
    # The invocations whose outcomes were used, by function and key.
    taken: dict[tuple[str, int], set[int]] = defaultdict(set)
    applied: Counter[int] = Counter()  # by invocation: its applied gradients
    versions: list[float] = []
    sums: Counter[str] = Counter()
    for _, event, function, number, _, value in trace.rows():
        if event == "submitted":
            keys[number] = int(value)
        if event in _LIFE or event in ENDINGS:
            lives[number].append(event)
        if _TAKEN.get(function) == event:
            taken[function, keys[number]].add(number)
        if event == "staleness":
            applied[number] += 1
        if event == "published":
            versions.append(value)
        containers[event] += 1
        sums[event] += value  # type: ignore[assignment]  # a Counter can also add floats
    for number, life in lives.items():
        if [event for event in life if event in ENDINGS] != life[-1:]:
            yield f"invocation {number} did not end once: {life}"
        if life[:-1] != list(_LIFE[: len(life) - 1]):
            yield f"invocation {number} lived in another order: {life}"
    for (function, key), numbers in taken.items():
        if len(numbers) > 1:
            yield f"{function} {key} counted more than once: invocations {sorted(numbers)}"
        if any(lives[number][-1] != "completed" for number in numbers):
            yield f"{function} {key} counted, but did not complete"
    if len(set(applied.values())) > 1:
        yield f"invocations had different numbers of their gradients applied: {dict(applied)}"
    if versions != list(range(len(versions))):
        yield f"versions are {versions}"
    if containers["container_created"] != containers["container_ended"]:
        yield f"{containers['container_created']} containers were made, {containers['container_ended']} ended"
    if result is not None:
        if sums["sampled"] != (spent := sum(sums[event] for event in _FATES)):
            yield f"{sums['sampled']:.0f} steps were sampled, and {spent:.0f} accounted for"
        yield from _history(result)


#: Events of an invocation before its ending, in order.
_LIFE = ("submitted", "acquired", "started")
#: Events that account for sampled steps.
_FATES = ("learned", "waiting", "reset", "discarded", "lost_steps")


def _history(result: Result) -> Iterator[str]:
    rows = result.history
    for column in ("round", "seconds", "steps", "version", "gradients"):
        values = [row[column] for row in rows]
        if values != sorted(values):
            yield f"the history's {column} goes back: {values}"
    if rows[-1]["version"] != len(result.trace.select("published").value) - 1:
        yield f"the history ends at version {rows[-1]['version']}"
    if rows[-1]["gradients"] != len(result.trace.select("staleness").value):
        yield f"the history ends with {rows[-1]['gradients']} gradients"


def _left() -> Iterator[str]:
    """Yields a violation if processes of containers outlive their platform by 30 s."""
    until = time.monotonic() + 30.0
    while (there := containers()) and time.monotonic() < until:
        time.sleep(0.05)
    if there:
        yield f"containers have outlived their platform: processes {there}"


# ---- processes ------------------------------------------------------------------------------------------------------


def descendants(pid: int) -> set[int]:
    """Returns the processes that a process has started, and their descendants."""
    parents: dict[int, int] = {}
    for file in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):  # the process has ended
            parents[int(file.parent.name)] = int(file.read_text().rpartition(")")[2].split()[1])
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def containers() -> list[int]:
    """Returns the processes of this process' Ray containers on this machine."""
    found = []
    for pid in sorted(descendants(os.getpid())):
        with contextlib.suppress(OSError):
            if Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"ray::Process"):
                found.append(pid)
    return found


class _Machines:
    """A cluster of two nodes on this machine; the second may be killed."""

    def __enter__(self) -> Self:
        from ray.cluster_utils import Cluster

        from stellaris.runtime.ray.platform import connect, starting_processes, stay_on_loopback

        stay_on_loopback()
        with starting_processes():
            self._cluster = Cluster(initialize_head=True, head_node_args={**_NODE, "include_dashboard": False})
            self._second = self._cluster.add_node(**_NODE)
        connect(self._cluster.address)
        return self

    def __exit__(self, *details: object) -> None:
        import ray

        ray.shutdown()
        self._cluster.shutdown()

    @property
    def second(self) -> int:
        """The process of the second node."""
        (raylet,) = self._second.all_processes["raylet"]
        return int(raylet.process.pid)

    def mend(self) -> None:
        """Replaces the second node if it was killed."""
        import ray

        from stellaris.runtime.ray.platform import starting_processes

        if _alive(self.second):
            return
        self._cluster.remove_node(self._second, allow_graceful=False)
        until = time.monotonic() + 60.0
        while sum(node["Alive"] for node in ray.nodes()) > 1 and time.monotonic() < until:
            time.sleep(0.05)
        with starting_processes():
            self._second = self._cluster.add_node(**_NODE)


_NODE = {"num_cpus": 4, "object_store_memory": 100 * 2**20}


def _alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False
