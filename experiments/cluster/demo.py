"""Trains systems on a Ray cluster, and shows the quickstart's table and pictures, in real time."""

import argparse
import contextlib
import json
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.cluster import on_cluster
from experiments.study import runs
from experiments.tasks.presets import tuned
from experiments.toolkit import options, plots, progress, shell
from experiments.toolkit.output import finite, write_rows
from experiments.toolkit.provenance import provenance, versions
from stellaris.runtime import FunctionError
from stellaris.runtime.files import atomic_write
from stellaris.systems import Budget

DESCRIPTION = "train Stellaris and other architectures on a Ray cluster, in real time"
#: The default of `--system`.
_SYSTEMS = ("stellaris", "synchronous")
_TARGETS = {"CartPole-v1": 300.0, "Hopper-v4": 400.0}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--env", default="CartPole-v1", help="environment, from EnvPool or Gymnasium")
    parser.add_argument(
        "--system",
        action="append",
        help=f"a system to run, may be repeated; default {' and '.join(_SYSTEMS)}; `all` runs every architecture",
    )
    parser.add_argument("--actors", type=options.whole(1), default=4, help="actor processes")
    parser.add_argument(
        "--learners", type=options.whole(1), default=2, help="learner processes of systems that have several learners"
    )
    target = "mean return of the last 100 episodes that ends a run"
    parser.add_argument("--target", type=options.finite, help=target)
    parser.add_argument("--seconds", type=options.seconds, default=300.0, help="most real seconds of each run")
    parser.add_argument("--seed", type=options.whole(0), default=0, help="seed of parameters and environments")
    parser.add_argument(
        "--address", help="address of a running cluster, such as auto; by default two nodes are started on this machine"
    )
    parser.add_argument("--out", type=options.folder, default=Path("results/cluster"), help="results folder")


def main(arguments: argparse.Namespace) -> int:
    """Runs the systems in turn; returns exit status 1 if a system misses the target."""
    preset = tuned(arguments.env)
    workload = replace(preset.workload, actors=arguments.actors)
    runs.check(workload)
    every = on_cluster.contenders(arguments.env, actors=arguments.actors, learners=arguments.learners)
    chosen = arguments.system or list(_SYSTEMS)
    unknown = sorted({*chosen} - {row.name for row in every} - {"all"})
    if unknown:
        raise shell.UsageError(
            f"--system {unknown[0]}: unknown; choose one of {', '.join(row.name for row in every)}, all"
        )
    target = _TARGETS.get(arguments.env) if arguments.target is None else arguments.target
    budget = Budget(seconds=arguments.seconds, target_return=math.inf if target is None else target)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)
    outcomes: list[runs.Outcome] = []

    def learn() -> None:
        from stellaris.runtime import RayPlatform

        with _cluster(arguments.address, console), progress.Display(console) as display:
            recorder = on_cluster.Recorder(display, arguments.out)
            for row in every:
                if row.name not in chosen and "all" not in chosen:
                    continue
                outcome = runs.Outcome(
                    label=row.name,
                    budget=budget,
                    colour=row.colour,
                    seconds="s",
                    contender=row,
                    seed=arguments.seed,
                )
                outcomes.append(outcome)
                platform = RayPlatform(row.functions, seed=arguments.seed)
                runs.run(workload, outcome, threads=1, watcher=recorder, platform=platform)
                # Write after each run, because Ray may kill this process during the next run.
                _write(arguments, outcomes, target)

    try:
        status = shell.INTERRUPTED if shell.interruptible(learn) else 0
    except (FunctionError, LookupError, ValueError, ImportError, OSError, RuntimeError) as error:
        shell.complain(error)
        status = shell.FAILED
    learned = [outcome for outcome in outcomes if outcome.history]
    if learned:
        summaries = _write(arguments, learned, target)
        console.print(_table(summaries, arguments.env, target))
        _draw(arguments, learned, target)
        console.print(f"results: {arguments.out}/  (trace_*.json opens in ui.perfetto.dev)", markup=False)
        if target is not None and any(summary["seconds_to_target"] is None for summary in summaries):
            status = status or shell.FAILED
    return status


@contextlib.contextmanager
def _cluster(address: str | None, console: Console) -> Iterator[None]:
    """Connects to the cluster at an address, or starts a cluster of two nodes on this machine."""
    from stellaris.runtime.ray.platform import connect

    if address is not None:
        connect(address)
        yield
        return
    console.print("starting a Ray cluster of two nodes on this machine")
    with on_cluster.two_nodes():
        yield


def _table(summaries: Sequence[dict[str, object]], env: str, target: float | None) -> Table:
    table = Table(title=f"{env}, in real time")
    for heading in ("system", f"seconds to {target:g}" if target else "", "seconds", "return", "steps", "gradients"):
        table.add_column(heading, justify="left" if heading == "system" else "right")
    table.add_column("staleness", justify="right")
    table.add_column("cold starts", justify="right")
    for summary in summaries:
        keys = ("seconds_to_target", "virtual_seconds", "final_return", "steps", "gradients", "staleness_mean")
        forms = (".1f", ".1f", ",.1f", ",d", ",d", ".2f")
        cells = [
            "-" if summary[key] is None else format(summary[key], form) for key, form in zip(keys, forms, strict=True)
        ]
        table.add_row(str(summary["system"]), *cells, str(summary["cold_starts"]))
    return table


def _write(
    arguments: argparse.Namespace, outcomes: Sequence[runs.Outcome], target: float | None
) -> Sequence[dict[str, object]]:
    """Writes the last run's history and trace, and the record of all runs; returns the runs' summaries."""
    write_rows(on_cluster.history_file(arguments.out, outcomes[-1]), outcomes[-1].history)
    outcomes[-1].trace.to_chrome(arguments.out / f"trace_{outcomes[-1].name}.json")
    summaries = [runs.summarise(outcome, target) for outcome in outcomes]
    record = {
        "environment": arguments.env,
        "target_return": target,
        "versions": versions("stellaris", "ray"),
        "provenance": provenance(),
        "runs": summaries,
    }
    with atomic_write(on_cluster.record_file(arguments.out)) as file:
        json.dump(finite(record), file, indent=2)
        file.write("\n")
    return summaries


def _draw(arguments: argparse.Namespace, outcomes: Sequence[runs.Outcome], target: float | None) -> None:
    """Draws the quickstart's pictures."""
    out = arguments.out
    systems = [plots.Curves(outcome.contender, [outcome.history]) for outcome in outcomes]
    title = f"{arguments.env} on Ray"
    plots.reward_vs_time(systems, out / "reward_vs_time.png", title=title, target=target, time="wall")
    plots.reward_vs_cost(systems, out / "reward_vs_cost.png", title=title, target=target)
    for outcome, curves in zip(outcomes, systems, strict=True):
        if outcome.contender.name == "stellaris":
            plots.staleness(curves, [outcome.trace], out / "staleness.png", title=title, time="wall")
