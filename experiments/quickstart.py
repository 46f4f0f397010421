"""An environment learned twice: by Stellaris on simulated serverless functions, and by a synchronous baseline."""

import argparse
import csv
import json
import math
import platform as machine
import statistics
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments import options, plots, shell, testbed
from experiments.output import one_run
from experiments.presets import PRESETS, TARGETS, Preset
from stellaris.acting import envs
from stellaris.runtime import FunctionError, SimulatedPlatform, Trace
from stellaris.runtime.files import atomic_write
from stellaris.systems import Budget, Row, train

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
    parser.add_argument("--seed", type=options.whole(0), default=0, help="first; of parameters, environments, delays")
    parser.add_argument("--seeds", type=options.whole(1), default=1, help="how many seeds to run, one after the other")
    parser.add_argument(
        "--seconds", type=options.seconds, help="virtual seconds per run, instead of the preset's budget"
    )
    parser.add_argument(
        "--threads", type=options.whole(1), default=2, help="threads of bodies and environments; results are alike"
    )
    parser.add_argument(
        "--out",
        type=options.folder,
        default=Path("results/quickstart"),
        help="folder of the results; a run that it holds is replaced at the end, other files there stay",
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs both systems for every seed, and writes what they did; also when it is interrupted."""
    seeds = options.seeds("--seed", arguments.seed, arguments.seeds)
    _try_environment(arguments.env)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)  # where the output is no terminal, rich assumes 80 columns
    preset = PRESETS[arguments.preset](arguments.env)
    console.print(f"{arguments.env}, preset [bold]{preset.name}[/bold]: {preset.summary}")
    outcomes: list[Outcome] = []

    def learn() -> None:
        for seed in seeds:
            seconds = arguments.seconds
            for name in preset.systems():
                outcome = Outcome(name, seed)
                outcomes.append(outcome)
                _run(preset, outcome, seconds=seconds, threads=arguments.threads, console=console)
                # Whatever ends the first system, the second gets the same virtual seconds.
                seconds = outcome.history[-1]["seconds"]

    status = 0
    try:
        with one_run(arguments.out, record=_RECORD, files=_files, kinds=_KINDS) as draft:
            try:
                status = shell.INTERRUPTED if shell.interruptible(learn) else 0
            except (FunctionError, LookupError, ValueError, ImportError, OSError) as error:
                shell.complain(error)
                status = shell.FAILED
            learned = [outcome for outcome in outcomes if outcome.history]
            if not learned:
                return status
            _write(arguments, preset, learned, draft, console, _ENDINGS[status])
    except OSError as error:
        shell.complain(f"--out {arguments.out}: not all could be written: {shell.reason(error)}")
        return status or shell.FAILED
    console.print(f"results: {arguments.out}/  (trace_*.json opens in ui.perfetto.dev)", markup=False)
    return status


def _try_environment(name: str) -> None:
    """Makes it once, before anything else: what it raises, if it cannot be had or learned, is its author's choice."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # they come again with the run
            envs.make(name, slots=1)
    except Exception as error:
        raise shell.UsageError(f"--env {name}: {error}") from error


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
    # Between two events an interruption finds the trace whole.
    platform = SimulatedPlatform(
        deployment, seed=outcome.seed, threads=threads, on_event=lambda platform: shell.check()
    )
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


#: The file that tells of a run, and patterns of the names of the others.
_RECORD = "summary.json"
_PICTURES = ("reward_vs_time.png", "reward_vs_cost.png", "staleness.png")
_KINDS = ("history_*_*.csv", "trace_*_*.json", *_PICTURES)
#: How a run ended, by exit status.
_ENDINGS = {0: "done", shell.FAILED: "failed", shell.INTERRUPTED: "interrupted"}


def _files(record: Any) -> set[str]:
    """The files of the run that a record tells of."""
    labels = [f"{run['system']}_{run['seed']}" for run in record["runs"]]
    return {*_PICTURES, *(f"history_{label}.csv" for label in labels), *(f"trace_{label}.json" for label in labels)}


def _write(
    arguments: argparse.Namespace,
    preset: Preset,
    outcomes: Sequence[Outcome],
    out: Path,
    console: Console,
    status: str,
) -> None:
    """Prints the table, and writes the files: what could not be computed again first, and what takes least room."""
    target = TARGETS.get(arguments.env)
    summaries = [summarise(outcome, target) for outcome in outcomes]
    histories = {name: [o.history for o in outcomes if o.system == name] for name in preset.systems()}
    histories = {name: runs for name, runs in histories.items() if runs}
    console.print(_table(summaries, list(histories), arguments.env, target))
    for outcome in outcomes:
        with atomic_write(out / f"history_{outcome.system}_{outcome.seed}.csv") as file:
            # What nobody reported in a round, its row does not have.
            columns = dict.fromkeys(name for row in outcome.history for name in row)
            writer = csv.DictWriter(file, fieldnames=list(columns), lineterminator="\n")
            writer.writeheader()
            writer.writerows(outcome.history)
    record = {
        "environment": arguments.env,
        "preset": preset.name,
        "status": status,
        "target_return": target,
        "settings": preset.settings(),
        "testbed": testbed.facts(),
        "versions": {name: version(name) for name in ("stellaris", "jax", "envpool", "optax")},
        "machine": machine.platform(),
        "runs": summaries,
    }
    with atomic_write(out / _RECORD) as file:
        json.dump(_finite(record), file, indent=2)
        file.write("\n")
    for outcome in outcomes:
        outcome.trace.to_chrome(out / f"trace_{outcome.system}_{outcome.seed}.json")
    over_time, over_cost, stale = _PICTURES
    plots.reward_vs_time(histories, out / over_time, title=arguments.env, target=target)
    plots.reward_vs_cost(histories, out / over_cost, title=arguments.env, target=target)
    traces = [o.trace for o in outcomes if o.system == "stellaris"]
    plots.staleness(traces, histories["stellaris"], out / stale, title=arguments.env)


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
