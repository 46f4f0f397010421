"""Tests whether the simulator predicts a cluster: simulates with delays measured on Ray, and compares the runs."""

import argparse
import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.cluster import on_cluster
from experiments.study import runs
from experiments.tasks.presets import Contender, tuned
from experiments.toolkit import options, plots, progress, provenance, shell
from stellaris.runtime import FunctionSpec, SimulatedPlatform, Trace, Transfer
from stellaris.runtime.delays import Empirical
from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.files import atomic_write
from stellaris.systems import Budget, Row, Stellaris, Workload, train

DESCRIPTION = "compare staleness, speed and cost on Ray with a simulation that uses the delays measured there"
#: The fraction at the start of a run that the comparison leaves out: containers start and programs compile then.
_WARM = 0.3
#: A prediction passes if its relative error is at most this.
_MARGIN = 0.1
#: Number of successive measured delays that are drawn as a block: about the number of gradients of several batches.
_BLOCK = 32
#: The predicted quantities, with their units.
_QUANTITIES = {
    "staleness": "mean, versions",
    "updates": "policy versions per second",
    "steps": "environment steps per second",
    "cost": "USD per hour, by use",
}


class Measured(NamedTuple):
    """Results of a run after its warm-up."""

    values: Mapping[str, float]  #: by quantity.
    staleness: np.ndarray[Any, Any]  #: one entry per applied gradient.


class Pair(NamedTuple):
    """A run on Ray, and the simulation with its delays."""

    system: str
    seed: int
    real: Measured
    simulated: Measured


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--env", default="CartPole-v1", help="environment, from EnvPool or Gymnasium")
    parser.add_argument(
        "--system", action="append", help="a system to run, may be repeated; default stellaris and asynchronous actors"
    )
    parser.add_argument("--actors", type=options.whole(1), default=2, help="actor processes")
    parser.add_argument(
        "--learners", type=options.whole(1), default=2, help="learner processes of systems that have several learners"
    )
    parser.add_argument("--seconds", type=options.seconds, default=60.0, help="real seconds of each run on Ray")
    parser.add_argument("--seeds", type=options.whole(1), default=3, help="runs on Ray, each with one simulation")
    parser.add_argument(
        "--out", type=options.folder, default=Path("results/cluster-vs-simulation"), help="results folder"
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs each system on Ray and in simulation; returns exit status 1 if a prediction's error exceeds the margin."""
    workload = replace(tuned(arguments.env).workload, actors=arguments.actors)
    runs.check(workload)
    every = on_cluster.contenders(arguments.env, actors=arguments.actors, learners=arguments.learners)
    names = arguments.system or ["stellaris", "asynchronous actors"]
    chosen = [row for row in every if row.name in names]
    if len(chosen) < len(names):
        raise shell.UsageError(f"--system {', '.join(names)}: choose from {', '.join(row.name for row in every)}")
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 110)
    pairs: list[Pair] = []

    def compare() -> None:
        from stellaris.runtime.ray.platform import connect

        connect()
        with progress.Display(console) as display:
            for row in chosen:
                for seed in range(arguments.seeds):
                    pairs.append(_pair(row, workload, seed, arguments.seconds, display))
                    _write(pairs, arguments.out)  # after each pair, because Ray may kill this process during the next

    status = shell.INTERRUPTED if shell.interruptible(compare) else 0
    if not pairs:
        return status
    _write(pairs, arguments.out)  # again: an interruption may have stopped the write above
    provenance.write(arguments.out / "provenance.json")
    _draw(pairs, [row for row in chosen if row.name in {pair.system for pair in pairs}], arguments)
    table, worst = _table(pairs)
    console.print(table)
    console.print(f"results: {arguments.out}/", markup=False)
    return status or (shell.FAILED if worst > _MARGIN else 0)


# ---- one run, and its prediction ------------------------------------------------------------------------------------


def _pair(row: Contender, workload: Workload, seed: int, seconds: float, display: progress.Display) -> Pair:
    """Runs a system on Ray, and simulates it with the delays of that run."""
    from stellaris.runtime import RayPlatform

    budget = Budget(seconds=seconds)
    outcome = runs.Outcome(
        label=f"{row.name} {seed}", budget=budget, colour=row.colour, seconds="s", contender=row, seed=seed
    )
    platform = RayPlatform(row.functions, seed=seed)
    runs.run(workload, outcome, threads=1, watcher=display, platform=platform)
    simulated = train(
        row.system,
        workload,
        platform=SimulatedPlatform(deployment(outcome.trace, row, workload, since=_WARM * seconds), seed=seed),
        budget=budget,
        prices=row.prices,
        seed=seed,
    )
    warm = _WARM * seconds
    return Pair(
        row.name,
        seed,
        _measured(outcome.trace, outcome.history, warm),
        _measured(simulated.trace, simulated.history, warm),
    )


@dataclass
class _Delays:
    """The durations of a function's invocations, in seconds."""

    compute: list[float]  #: the body's time per unit of work.
    transfer: list[float]  #: the time from start to end, without the body's time.
    before: list[float]  #: the time from the last end of any invocation to the submission.


def deployment(trace: Trace, row: Contender, workload: Workload, *, since: float) -> dict[str, FunctionSpec]:
    """Returns the deployment of a run on Ray with empirical distributions of the delays in its trace.

    Delays are drawn in blocks of successive measurements, because the delays of processes that share processors are
    correlated: several are slow at the same time, for a while.

    On the simulated platform the system takes no time to decide, but on Ray it computes between a completion and the
    next submission. This computing time becomes the queueing time of the submitted invocation.

    Args:
      trace: the trace of the run.
      row: the system and its deployment.
      workload: the workload of the run.
      since: the instant in seconds from which invocations count.
    """
    return {
        name: replace(
            row.functions[name],
            compute=Empirical(delays.compute, _BLOCK),
            transfer=Transfer(Empirical(delays.transfer, _BLOCK), math.inf),
            queueing=Empirical(delays.before, _BLOCK),
        )
        for name, delays in _delays(trace, _work(row, workload), since).items()
    }


def _work(row: Contender, workload: Workload) -> dict[str, float]:
    """Returns the units of work per invocation, by function: an actor's steps, a learner's gradients."""
    system: Any = row.system
    gradients = 1.0
    if not isinstance(system, Stellaris):
        items = workload.actors * (1 if _learns_fragments(system) else workload.fragment)
        gradients = float(system.algorithm.epochs * -(-items // system.algorithm.minibatch_size))
    return {"actor": float(workload.steps_at_once), "learner": gradients, "parameter": 1.0}


def _learns_fragments(system: Any) -> bool:
    return type(system.algorithm).__name__ == "IMPALA"


def _delays(trace: Trace, work: Mapping[str, float], since: float) -> dict[str, _Delays]:
    """Reads the delays of each function's completed invocations that were submitted at or after `since`."""
    delays = {name: _Delays([], [], []) for name in work}
    handled = 0.0
    submitted: dict[int, float] = {}  # by invocation: seconds that the system computed before the submission
    started: dict[int, float] = {}
    computed: dict[int, float] = {}
    for time, event, name, number, _, value in trace.rows():
        if event == "submitted" and time >= since:
            submitted[number] = time - handled
        elif event == "started":
            started[number] = time
        elif event == "computed":
            computed[number] = value
        elif event in ENDINGS:
            handled = time
            if event == "completed" and number in submitted:
                one = delays[name]
                one.compute.append(computed[number] / work[name])
                one.transfer.append(max(time - started[number] - computed[number], 0.0))
                one.before.append(max(submitted[number], 0.0))
    return {name: one for name, one in delays.items() if one.compute}


def _measured(trace: Trace, history: Sequence[Row], since: float) -> Measured:
    """Returns the results of a run from `since` on."""
    first = next(row for row in history if row["seconds"] >= since)
    last = history[-1]
    seconds = last["seconds"] - first["seconds"]
    stale = trace.select("staleness")
    late = stale.value[stale.time >= since]
    values = {
        "staleness": float(late.mean()),
        "updates": (last["version"] - first["version"]) / seconds,
        "steps": (last["steps"] - first["steps"]) / seconds,
        "cost": 3600 * (last["cost_pay_per_use"] - first["cost_pay_per_use"]) / seconds,
    }
    return Measured(values, late)


# ---- results --------------------------------------------------------------------------------------------------------


def _table(pairs: Sequence[Pair]) -> tuple[Table, float]:
    """Returns a table of medians over the runs, and the largest relative error of a prediction."""
    table = Table(title="Ray and the simulation's prediction (medians of the runs)")
    for heading in ("system", "quantity", "Ray", "simulation", "off by"):
        table.add_column(heading, justify="right" if heading in ("Ray", "simulation", "off by") else "left")
    worst = 0.0
    for name in dict.fromkeys(pair.system for pair in pairs):
        mine = [pair for pair in pairs if pair.system == name]
        for quantity, unit in _QUANTITIES.items():
            real = float(np.median([pair.real.values[quantity] for pair in mine]))
            simulated = float(np.median([pair.simulated.values[quantity] for pair in mine]))
            off = _ratio(simulated, real) - 1
            worst = max(worst, abs(off))
            table.add_row(name, f"{quantity} ({unit})", f"{real:,.4g}", f"{simulated:,.4g}", f"{off:+.1%}")
        distance = np.median([_distance(pair.real.staleness, pair.simulated.staleness) for pair in mine])
        table.add_row(name, "staleness (share of gradients that would have to move)", "", "", f"{distance:.1%}")
    return table, worst


def _ratio(simulated: float, real: float) -> float:
    """Returns the prediction divided by the real value, or 1 if that is 0, as is a single learner's staleness."""
    return simulated / real if real else 1.0


def _distance(one: Any, other: Any) -> float:
    """Returns the total variation distance between two samples of integers."""
    shares = _shares([one, other])
    return float(np.abs(shares[0] - shares[1]).sum() / 2)


def _shares(samples: Sequence[Any]) -> list[Any]:
    """Returns the frequencies of 0, 1, ... in each sample, in arrays of equal length."""
    length = int(max(values.max() for values in samples)) + 1
    return [np.bincount(values.astype(int), minlength=length) / len(values) for values in samples]


def _write(pairs: Sequence[Pair], out: Path) -> None:
    with atomic_write(out / "runs.csv") as file:
        writer = csv.writer(file)
        writer.writerow(("system", "seed", "on", *_QUANTITIES))
        for pair in pairs:
            for where, side in (("Ray", pair.real), ("simulation", pair.simulated)):
                writer.writerow((pair.system, pair.seed, where, *(side.values[name] for name in _QUANTITIES)))


def _draw(pairs: Sequence[Pair], rows: Sequence[Contender], arguments: argparse.Namespace) -> None:
    """Draws each system's staleness on Ray and in simulation, and all ratios; those in the grey band pass."""
    title = f"{arguments.env}: Ray and simulation"
    with plots.figure(arguments.out / "cluster_vs_simulation.png", title, columns=len(rows) + 1) as panels:
        for axes, row in zip(panels, rows, strict=False):
            mine = [pair for pair in pairs if pair.system == row.name]
            real = np.concatenate([pair.real.staleness for pair in mine])
            simulated = np.concatenate([pair.simulated.staleness for pair in mine])
            for i, (shares, label) in enumerate(zip(_shares([real, simulated]), ("Ray", "simulation"), strict=True)):
                places = np.arange(len(shares)) + 0.4 * (i - 0.5)
                face = row.colour if i == 0 else "white"
                axes.bar(places, 100 * shares, width=0.4, color=face, edgecolor=row.colour, label=label)
            axes.set(xlabel=f"staleness, {row.name} (versions)", ylabel="share of gradients (%)", xlim=(-0.8, None))
            axes.set_xticks(range(max(4, len(shares))))
            axes.legend()
        ratios = panels[-1]
        for i, row in enumerate(rows):
            for pair in (pair for pair in pairs if pair.system == row.name):
                values = [_ratio(pair.simulated.values[name], pair.real.values[name]) for name in _QUANTITIES]
                ratios.plot(np.arange(len(values)) + 0.15 * (i - 0.5), values, "o", color=row.colour, alpha=0.7)
        ratios.axhspan(1 - _MARGIN, 1 + _MARGIN, color="0.9", zorder=0, label=f"within {_MARGIN:.0%}")
        ratios.axhline(1.0, color="black", linewidth=0.8)
        ratios.set_xticks(range(len(_QUANTITIES)), list(_QUANTITIES))
        ratios.set(ylabel="simulation / Ray")
        ratios.legend()
