"""An environment learned twice: by Stellaris on simulated serverless functions, and by a synchronous baseline."""

import argparse
import csv
import json
import math
import platform as machine
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments import plots, testbed
from experiments.presets import PRESETS, TARGETS, Preset
from stellaris.runtime import FunctionError, SimulatedPlatform, Trace
from stellaris.runtime.trace import atomic_write
from stellaris.systems import Budget, train
from stellaris.systems.training import Row

DESCRIPTION = "learn an environment twice, by Stellaris and by a synchronous baseline, and compare them"

#: Seconds of real time between two lines of progress.
_PROGRESS_EVERY = 2.0


@dataclass
class Outcome:
    """One run of one system: what it has done so far."""

    system: str
    seed: int
    history: list[Row] = field(default_factory=list)
    trace: Trace = field(default_factory=Trace)
    wall_seconds: float = 0.0
    status: str = "running"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command line's options."""
    parser.add_argument("--env", default="Hopper-v4", help="environment, from EnvPool or Gymnasium")
    parser.add_argument("--preset", choices=PRESETS, default="tuned", help="the authors' demo's settings, or ours")
    parser.add_argument("--seed", type=int, default=0, help="first seed; of parameters, environments and delays")
    parser.add_argument("--seeds", type=int, default=1, help="how many seeds to run, one after the other")
    parser.add_argument("--seconds", type=float, help="virtual seconds per run, instead of the preset's budget")
    parser.add_argument("--threads", type=int, default=2, help="threads of bodies and environments; results are alike")
    parser.add_argument("--out", type=Path, default=Path("results/quickstart"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Runs both systems for every seed, and writes what they did; also when it is interrupted."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)  # where the output is no terminal, rich assumes 80 columns
    error_message = _check(arguments)
    if error_message:
        print(f"error: {error_message}", file=sys.stderr)
        return 2
    preset = PRESETS[arguments.preset](arguments.env)
    console.print(f"{arguments.env}, preset [bold]{preset.name}[/bold]: {preset.summary}")
    outcomes: list[Outcome] = []
    status = 0
    try:
        for seed in range(arguments.seed, arguments.seed + arguments.seeds):
            seconds = arguments.seconds
            for name in preset.systems():
                outcome = Outcome(name, seed)
                outcomes.append(outcome)
                _run(preset, outcome, seconds=seconds, threads=arguments.threads, console=console)
                # Whatever ends the first system, the second gets the same virtual seconds.
                seconds = outcome.history[-1]["seconds"]
    except KeyboardInterrupt:
        print("interrupted: writing what there is", file=sys.stderr)
        status = 130
    except (FunctionError, LookupError, ValueError) as error:
        print(f"error: {error}", file=sys.stderr)
        status = 1
    if any(outcome.history for outcome in outcomes):
        _write(arguments, preset, [outcome for outcome in outcomes if outcome.history], console)
    return status


def _check(arguments: argparse.Namespace) -> str | None:
    for name in ("seeds", "threads", "seconds"):
        value = getattr(arguments, name)
        if value is not None and not value > 0:
            return f"--{name} {value} is not positive"
    return None


def _run(preset: Preset, outcome: Outcome, *, seconds: float | None, threads: int, console: Console) -> None:
    """One run; `outcome` is filled as it goes, so that an interruption loses nothing."""
    serverless = outcome.system == "stellaris"
    actors, learners = preset.workload.actors, preset.stellaris.learners
    deployment = testbed.serverless(actors=actors, learners=learners) if serverless else testbed.reserved(actors=actors)
    prices = (
        testbed.serverless_prices(actors=actors, learners=learners)
        if serverless
        else testbed.reserved_prices(actors=actors)
    )
    platform = SimulatedPlatform(deployment, seed=outcome.seed, threads=threads)
    outcome.trace = platform.trace
    began = said = time.perf_counter()

    def progress(row: Row) -> None:
        nonlocal said
        outcome.history.append(row)
        outcome.wall_seconds = time.perf_counter() - began
        if time.perf_counter() - said > _PROGRESS_EVERY:
            said = time.perf_counter()
            console.print(_line(outcome, row))

    try:
        train(
            preset.systems()[outcome.system],
            preset.workload,
            platform=platform,
            budget=preset.budget if seconds is None else Budget(seconds=seconds),
            prices=prices,
            seed=outcome.seed,
            threads=threads,
            on_progress=progress,
        )
        outcome.status = "done"
    except KeyboardInterrupt:
        outcome.status = "interrupted"
        raise
    except Exception:
        outcome.status = "failed"
        raise
    finally:
        if outcome.history:
            console.print(_line(outcome, outcome.history[-1]) + f"  [bold]{outcome.status}[/bold]")


def _line(outcome: Outcome, row: Row) -> str:
    return (
        f"{outcome.system:<12} seed {outcome.seed}  {row['seconds']:7.1f} virtual s  {row['steps']:>8,.0f} steps  "
        f"return {row['episode_return']:7.1f}  ${row['cost_demo']:.4f} demo  ${row['cost_pay_per_use']:.4f} by use  "
        f"staleness {_number(row['staleness_mean'], '.2f')}  {outcome.wall_seconds:5.1f} s"
    )


# ---- results ----------------------------------------------------------------------------------------------------


def summarise(outcome: Outcome, target: float | None) -> dict[str, Any]:
    """One run in figures, all of them read off its history and its trace."""
    last, trace = outcome.history[-1], outcome.trace
    staleness = trace.select("staleness").value
    reached = [row["seconds"] for row in outcome.history if target and row["episode_return"] >= target]
    return {
        "system": outcome.system,
        "seed": outcome.seed,
        "status": outcome.status,
        "final_return": last["episode_return"],
        "seconds_to_target": reached[0] if reached else None,
        "virtual_seconds": last["seconds"],
        "steps": int(last["steps"]),
        "versions": int(last["version"]),
        "gradients": int(last["gradients"]),
        "cost_demo": last["cost_demo"],
        "cost_pay_per_use": last["cost_pay_per_use"],
        "staleness_mean": float(staleness.mean()) if len(staleness) else None,
        "staleness_max": int(staleness.max()) if len(staleness) else None,
        "cold_starts": _cold_starts(trace),
        "wall_seconds": outcome.wall_seconds,
    }


def _cold_starts(trace: Trace) -> int:
    """Invocations that waited for a new container; a reserved machine is new once, but costs no wait."""
    acquired, started = trace.select("acquired"), trace.select("started")
    begun = dict(zip(started.invocation.tolist(), started.time.tolist(), strict=True))
    rows = zip(*(column.tolist() for column in acquired), strict=True)
    return sum(bool(cold) and begun.get(number, math.inf) > time for time, number, cold in rows)


def _write(arguments: argparse.Namespace, preset: Preset, outcomes: Sequence[Outcome], console: Console) -> None:
    out: Path = arguments.out
    target = TARGETS.get(arguments.env)
    summaries = [summarise(outcome, target) for outcome in outcomes]
    for outcome in outcomes:
        label = f"{outcome.system}_{outcome.seed}"
        with atomic_write(out / f"history_{label}.csv") as file:
            writer = csv.DictWriter(file, fieldnames=list(outcome.history[0]), lineterminator="\n")
            writer.writeheader()
            writer.writerows(outcome.history)
        outcome.trace.to_chrome(out / f"trace_{label}.json")
    record = {
        "environment": arguments.env,
        "preset": preset.name,
        "target_return": target,
        "settings": preset.settings(),
        "testbed": testbed.facts(),
        "versions": {name: version(name) for name in ("stellaris", "jax", "envpool", "optax")},
        "machine": machine.platform(),
        "runs": summaries,
    }
    with atomic_write(out / "summary.json") as file:
        json.dump(_finite(record), file, indent=2)
        file.write("\n")
    histories = {name: [o.history for o in outcomes if o.system == name] for name in preset.systems()}
    histories = {name: runs for name, runs in histories.items() if runs}
    plots.reward_vs_time(histories, out / "reward_vs_time.png", title=arguments.env, target=target)
    plots.reward_vs_cost(histories, out / "reward_vs_cost.png", title=arguments.env, target=target)
    traces = [o.trace for o in outcomes if o.system == "stellaris"]
    plots.staleness(traces, histories["stellaris"], out / "staleness.png", title=arguments.env)
    console.print(_table(summaries, list(histories), arguments.env, target))
    console.print(f"results: {out}/  (trace_*.json opens in ui.perfetto.dev)")


def _table(summaries: Sequence[dict[str, Any]], systems: Sequence[str], env: str, target: float | None) -> Table:
    seeds = len({summary["seed"] for summary in summaries})
    rows = {
        "final return (mean of the last 50 episodes)": ("final_return", ",.1f"),
        f"virtual seconds to a return of {target:g}" if target else "": ("seconds_to_target", ",.1f"),
        "virtual seconds": ("virtual_seconds", ",.1f"),
        "environment steps": ("steps", ",.0f"),
        "gradients applied": ("gradients", ",.0f"),
        "cost, demo's bill (USD)": ("cost_demo", ".4f"),
        "cost, pay per use (USD)": ("cost_pay_per_use", ".4f"),
        "staleness, mean (versions)": ("staleness_mean", ".2f"),
        "staleness, maximum": ("staleness_max", ",.0f"),
        "cold starts": ("cold_starts", ",.0f"),
        "wall seconds": ("wall_seconds", ",.1f"),
    }
    title = f"{env}: " + ("median of seeds (least to greatest)" if seeds > 1 else f"seed {summaries[0]['seed']}")
    table = Table(title=title)
    table.add_column("")
    for system in systems:
        table.add_column(system, justify="right")
    for label, (key, form) in rows.items():
        if label:
            values = [[s[key] for s in summaries if s["system"] == system] for system in systems]
            table.add_row(label, *(_spread(runs, form) for runs in values))
    return table


def _spread(values: Sequence[float | None], form: str) -> str:
    """The median, and the range if there are several; a run that never got there counts as infinite."""
    known = [math.inf if value is None else value for value in values]
    middle = statistics.median_low(known)
    if len(known) == 1:
        return _number(middle, form)
    return f"{_number(middle, form)} ({_number(min(known), form)} to {_number(max(known), form)})"


def _number(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def _finite(record: Any) -> Any:
    """JSON has no NaN."""
    if isinstance(record, dict):
        return {key: _finite(value) for key, value in record.items()}
    if isinstance(record, list):
        return [_finite(value) for value in record]
    return None if isinstance(record, float) and not math.isfinite(record) else record
