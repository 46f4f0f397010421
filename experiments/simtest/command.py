"""`simtest`: runs random systems on random platforms and checks the invariants."""

import argparse
import time
import traceback
from collections import Counter

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from experiments.simtest.runs import run
from experiments.toolkit import options, shell

#: Seconds of real time between two lines of progress.
_PROGRESS_EVERY = 5.0


DESCRIPTION = (
    "deterministic simulation testing: random systems, delays and faults on a tiny problem, with the invariants "
    "checked after every event"
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    parser.add_argument("--seeds", type=options.whole(1), default=200, help="number of seeds")
    parser.add_argument("--first-seed", type=options.whole(0), default=0, help="the first seed")


def main(arguments: argparse.Namespace) -> int:
    """Runs the seeds in turn, and prints each failure with the command that replays it."""
    seeds = options.seeds("--first-seed", arguments.first_seed, arguments.seeds)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)
    began = time.perf_counter()
    done: list[int] = []
    failed: list[int] = []
    events: Counter[str] = Counter()

    def work() -> None:
        said = began
        for seed in seeds:
            try:
                events.update(run(seed))
            except Exception as error:
                failed.append(seed)
                console.print(f"[bold]seed {seed} failed[/bold]: {type(error).__name__}: {escape(str(error))}")
                if len(seeds) == 1:
                    console.print(traceback.format_exc(), markup=False)
                console.print(f"  replay it: python -m experiments simtest --first-seed {seed} --seeds 1")
            done.append(seed)
            shell.check()
            if time.perf_counter() - said > _PROGRESS_EVERY:
                said = time.perf_counter()
                console.print(f"{len(done):>6,} of {len(seeds):,} seeds  {len(failed)} failed  {said - began:6.1f} s")

    interrupted = shell.interruptible(work)
    if done:
        title = f"seeds {done[0]} to {done[-1]}: {len(failed)} failed, {time.perf_counter() - began:.1f} s"
        console.print(_table(title, events))
    if interrupted:
        return shell.INTERRUPTED
    return shell.FAILED if failed else 0


def _table(title: str, events: Counter[str]) -> Table:
    table = Table(title=title)
    table.add_column("event")
    table.add_column("times", justify="right")
    for event, count in sorted(events.items(), key=lambda item: -item[1]):
        table.add_row(event, f"{count:,}")
    return table
