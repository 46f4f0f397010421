"""Trains Stellaris on simulated serverless functions, and a synchronous baseline, on the same environment."""

import argparse
import json
import math
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from experiments.study import runs
from experiments.tasks import testbed
from experiments.tasks.presets import PRESETS, TARGETS, Preset
from experiments.toolkit import options, plots, progress, shell
from experiments.toolkit.output import finite, one_run, write_rows
from experiments.toolkit.provenance import provenance, versions
from stellaris.runtime import FunctionError
from stellaris.runtime.files import atomic_write
from stellaris.systems import Budget

DESCRIPTION = "train Stellaris and a synchronous baseline on an environment, and compare them"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--env", default="Hopper-v4", help="environment, from EnvPool or Gymnasium")
    parser.add_argument("--preset", choices=PRESETS, default="tuned", help="the authors' demo's settings, or ours")
    parser.add_argument("--seed", type=options.whole(0), default=0, help="first seed of everything that is random")
    parser.add_argument("--seeds", type=options.whole(1), default=1, help="number of seeds, run one after the other")
    parser.add_argument(
        "--seconds",
        type=options.seconds,
        help="virtual seconds of every run; by default a run ends at the target return, or when the preset's budget is "
        "used up",
    )
    parser.add_argument(
        "--threads", type=options.whole(1), default=2, help="threads of bodies and environments; no effect on results"
    )
    parser.add_argument(
        "--out",
        type=options.folder,
        default=Path("results/quickstart"),
        help="results folder; an earlier run in it is replaced at the end, other files stay",
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs both systems for every seed and writes the results, also when interrupted."""
    seeds = options.seeds("--seed", arguments.seed, arguments.seeds)
    preset = PRESETS[arguments.preset](arguments.env)
    runs.check(preset.workload)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)  # rich assumes 80 columns if the output is not a terminal
    console.print(f"{arguments.env}, preset [bold]{preset.name}[/bold]: {preset.summary}")
    outcomes: list[runs.Outcome] = []

    def learn() -> None:
        with progress.Display(console) as display:
            for seed in seeds:
                budget = preset.budget if arguments.seconds is None else Budget(seconds=arguments.seconds)
                for contender in preset.contenders:
                    label = f"{contender.name} seed {seed}"
                    outcome = runs.Outcome(
                        label=label, budget=budget, colour=contender.colour, contender=contender, seed=seed
                    )
                    outcomes.append(outcome)
                    runs.run(preset.workload, outcome, threads=arguments.threads, watcher=display)
                    if math.isinf(budget.seconds):  # the second system gets as many seconds as the first used
                        budget = Budget(seconds=outcome.history[-1]["seconds"])

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
        shell.complain(f"--out {arguments.out}: some results could not be written: {shell.reason(error)}")
        return status or shell.FAILED
    console.print(f"results: {arguments.out}/  (trace_*.json opens in ui.perfetto.dev)", markup=False)
    return status


# ---- results ----------------------------------------------------------------------------------------------------


#: The file that describes a run, and patterns of the names of its other files.
_RECORD = "summary.json"
_PICTURES = ("reward_vs_time.png", "reward_vs_cost.png", "staleness.png")
_KINDS = ("history_*_*.csv", "trace_*_*.json", *_PICTURES)
#: The record's status, by exit status.
_ENDINGS = {0: "done", shell.FAILED: "failed", shell.INTERRUPTED: "interrupted"}


def _files(record: Any) -> set[str]:
    """Returns the names of the files of the run that a record describes."""
    labels = [f"{run['system']}_{run['seed']}" for run in record["runs"]]
    return {*_PICTURES, *(f"history_{label}.csv" for label in labels), *(f"trace_{label}.json" for label in labels)}


def _write(
    arguments: argparse.Namespace,
    preset: Preset,
    outcomes: Sequence[runs.Outcome],
    out: Path,
    console: Console,
    status: str,
) -> None:
    """Prints the table and writes the files: histories before pictures, and small files before large traces.

    If the disk fills up meanwhile, the most important results are already written.
    """
    target = TARGETS.get(arguments.env)
    summaries = [runs.summarise(outcome, target) for outcome in outcomes]
    systems = [
        plots.Curves(contender, [o.history for o in of])
        for contender in preset.contenders
        if (of := [outcome for outcome in outcomes if outcome.contender is contender])
    ]
    console.print(_table(summaries, [runs.contender.name for runs in systems], arguments.env, target))
    for outcome in outcomes:
        write_rows(out / f"history_{outcome.name}.csv", outcome.history)
    record = {
        "environment": arguments.env,
        "preset": preset.name,
        "status": status,
        "target_return": target,
        "settings": preset.settings(),
        "testbed": testbed.facts(),
        "versions": versions("stellaris", "envpool", "optax"),
        "provenance": provenance(),
        "runs": summaries,
    }
    with atomic_write(out / _RECORD) as file:
        json.dump(finite(record), file, indent=2)
        file.write("\n")
    for outcome in outcomes:
        outcome.trace.to_chrome(out / f"trace_{outcome.name}.json")
    over_time, over_cost, stale = _PICTURES
    plots.reward_vs_time(systems, out / over_time, title=arguments.env, target=target)
    plots.reward_vs_cost(systems, out / over_cost, title=arguments.env, target=target)
    traces = [outcome.trace for outcome in outcomes if outcome.contender is systems[0].contender]
    plots.staleness(systems[0], traces, out / stale, title=arguments.env)


def _table(summaries: Sequence[dict[str, Any]], systems: Sequence[str], env: str, target: float | None) -> Table:
    seeds = len({summary["seed"] for summary in summaries})
    rows = {
        "final return (mean of the last 100 episodes)": ("final_return", ",.1f"),
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
    """Formats the median, and the range of several values; None (the run missed the target) counts as infinite."""
    known = [math.inf if value is None else value for value in values]
    middle = statistics.median_low(known)
    if len(known) == 1:
        return progress.number(middle, form)
    return (
        f"{progress.number(middle, form)} ({progress.number(min(known), form)} to {progress.number(max(known), form)})"
    )
