"""`python -m experiments.simtest`: random systems on random platforms, with what must always hold looked at."""

import argparse
import sys
import time
import traceback
from collections import Counter
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from experiments.simtest.runs import run

#: Seconds of real time between two lines of progress.
_PROGRESS_EVERY = 5.0


def main(argv: Sequence[str] | None = None) -> int:
    """Runs the seeds, one after the other; each that fails is printed with the command that replays it."""
    parser = argparse.ArgumentParser(
        prog="python -m experiments.simtest",
        description="Deterministic simulation testing: random systems, delays and faults on a tiny problem, with the "
        "invariants looked at after every event.",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds to run")
    parser.add_argument("--first-seed", type=int, default=0, help="the first of them")
    arguments = parser.parse_args(argv)
    if arguments.seeds < 1 or arguments.first_seed < 0:
        print(f"error: --seeds {arguments.seeds} and --first-seed {arguments.first_seed} are no seeds", file=sys.stderr)
        return 2
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 100)
    began = said = time.perf_counter()
    failed: list[int] = []
    events: Counter[str] = Counter()
    seeds = range(arguments.first_seed, arguments.first_seed + arguments.seeds)
    for seed in seeds:
        try:
            events += run(seed)
        except Exception as error:
            failed.append(seed)
            console.print(f"[bold]seed {seed} failed[/bold]: {type(error).__name__}: {error}", markup=True)
            if len(seeds) == 1:
                console.print(traceback.format_exc(), markup=False)
            console.print(f"  replay it: python -m experiments.simtest --first-seed {seed} --seeds 1")
        if time.perf_counter() - said > _PROGRESS_EVERY:
            said = time.perf_counter()
            done = seed - arguments.first_seed + 1
            console.print(f"{done:>6,} of {len(seeds):,} seeds  {len(failed)} failed  {said - began:6.1f} s")
    table = Table(title=f"seeds {seeds[0]} to {seeds[-1]}: {len(failed)} failed, {time.perf_counter() - began:.1f} s")
    table.add_column("event")
    table.add_column("times", justify="right")
    for event, count in sorted(events.items(), key=lambda item: -item[1]):
        table.add_row(event, f"{count:,}")
    console.print(table)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
