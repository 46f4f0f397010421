"""Trains every architecture on one environment, up to a target return."""

import argparse
import dataclasses
import math
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from experiments.study import runs
from experiments.tasks.presets import TARGETS, architectures
from experiments.toolkit import options, progress, shell
from stellaris.runtime import FunctionError

DESCRIPTION = "train every architecture on an environment; exit status 1 if one misses the target return"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--env", default="CartPole-v1", help="environment, from EnvPool or Gymnasium")
    parser.add_argument(
        "--target",
        type=options.finite,
        help="mean return of 100 training episodes that ends a run (default: the preset's)",
    )
    parser.add_argument("--seed", type=options.whole(0), default=0, help="seed of parameters, environments and delays")
    parser.add_argument("--seconds", type=options.seconds, help="most virtual seconds of a run (default: the preset's)")
    parser.add_argument(
        "--threads", type=options.whole(1), default=2, help="threads of bodies and environments; no effect on results"
    )


def main(arguments: argparse.Namespace) -> int:
    """Runs the systems in turn and prints a table of their results."""
    preset = architectures(arguments.env)
    runs.check(preset.workload)
    target = TARGETS.get(arguments.env) if arguments.target is None else arguments.target
    if target is None:
        raise shell.UsageError(f"--target: {arguments.env} has no default target: set one, such as --target 500")
    seconds = arguments.seconds or preset.budget.seconds
    budget = dataclasses.replace(preset.budget, target_return=target, seconds=seconds)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)
    console.print(f"{arguments.env} to a return of {target:g}: {preset.summary}")
    outcomes: list[runs.Outcome] = []

    def learn() -> None:
        with progress.Display(console) as display:
            for contender in preset.contenders:
                outcome = runs.Outcome(
                    label=contender.name,
                    budget=budget,
                    colour=contender.colour,
                    contender=contender,
                    seed=arguments.seed,
                )
                outcomes.append(outcome)
                runs.run(preset.workload, outcome, threads=arguments.threads, watcher=display)

    try:
        status = shell.INTERRUPTED if shell.interruptible(learn) else 0
    except (FunctionError, LookupError, ValueError, ImportError, OSError) as error:
        shell.complain(error)
        status = shell.FAILED
    learned = [outcome for outcome in outcomes if outcome.history]
    if learned:
        console.print(_table(learned, arguments.env, target))
    missed = [outcome.label for outcome in learned if not _reached(outcome, target)]
    if status == 0 and missed:
        shell.complain(f"{', '.join(missed)}: a return of {target:g} was not reached in {seconds:g} virtual seconds")
        return shell.FAILED
    return status


def _reached(outcome: runs.Outcome, target: float) -> bool:
    return runs.summarise(outcome, target)["seconds_to_target"] is not None


def _table(outcomes: Sequence[runs.Outcome], environment: str, target: float) -> Table:
    table = Table(title=f"{environment}, seed {outcomes[0].seed}, to a return of {target:g}")
    headings = ("system", "reached", "return", "virtual s", "wall s", "steps", "USD demo", "USD use")
    for heading in (*headings, "staleness", "data lag"):
        table.add_column(heading, justify="left" if heading == "system" else "right", no_wrap=True)
    for outcome in outcomes:
        summary = runs.summarise(outcome, target)
        lags = [row["lag_mean"] for row in outcome.history if "lag_mean" in row]
        table.add_row(
            outcome.label,
            "yes" if _reached(outcome, target) else "no",
            f"{summary['final_return']:.1f}",
            f"{summary['virtual_seconds']:.1f}",
            f"{summary['wall_seconds']:.1f}",
            f"{summary['steps']:,}",
            f"{summary['cost_demo']:.4f}",
            f"{summary['cost_pay_per_use']:.4f}",
            progress.number(summary["staleness_mean"] or 0.0, ".2f"),
            progress.number(sum(lags) / len(lags) if lags else math.nan, ".2f"),
        )
    return table
