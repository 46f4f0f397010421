"""The command line of the benchmarks."""

import argparse
import inspect
from pathlib import Path

from rich.console import Console
from rich.table import Table

from experiments.benchmarks import (
    backends,
    cluster,
    corrections,
    gpu,
    lab,
    language,
    losses,
    overhead,
    peers,
    platform,
    replay,
    training,
)
from experiments.benchmarks.measuring import Comparison
from experiments.toolkit import options, output, provenance, shell

#: Benchmarks by name: each module has `DESCRIPTION` and `measure(say) -> comparisons`. A module with options also has
#: `add_arguments(parser)`. `measure` takes options as keyword arguments, also `out`, the results folder.
BENCHMARKS = {
    "training": training,
    "overhead": overhead,
    "losses": losses,
    "corrections": corrections,
    "platform": platform,
    "peers": peers,
    "cluster": cluster,
    "backends": backends,
    "replay": replay,
    "lab": lab,
    "language": language,
    "gpu": gpu,
}


DESCRIPTION = "speed, as ratios against a limit or a peer measured in the same run; run it on an idle machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one subcommand per benchmark, with its options."""
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        own = names.add_parser(name, help=module.DESCRIPTION, description=module.DESCRIPTION)
        getattr(module, "add_arguments", lambda parser: None)(own)
        own.add_argument("--out", type=options.folder, default=Path("results"), help="results folder")


def main(arguments: argparse.Namespace) -> int:
    """Runs a benchmark, prints a table of ratios, and writes its rows with their provenance into the results folder."""
    name, benchmark = arguments.name, BENCHMARKS[arguments.name]
    home = arguments.out / "benchmarks"
    taken = inspect.signature(benchmark.measure).parameters
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)  # rich assumes 80 columns if the output is not a terminal
    table = Table(title=benchmark.DESCRIPTION)
    for column in ("what", "measured", "against", "ratio", "wanted"):
        table.add_column(column, justify="left" if column == "what" else "right")

    rows: list[Comparison] = []

    def work() -> None:
        for row in benchmark.measure(console.print, **{of: one for of, one in vars(arguments).items() if of in taken}):
            table.add_row(row.what, row.measured, row.against, f"{row.ratio:.2f}", row.wanted)
            rows.append(row)
            output.write_rows(home / f"{name}.csv", [one.row() for one in rows])

    with output.usable(home):
        try:
            interrupted = shell.interruptible(work)
        finally:
            console.print(table)
            if rows:  # written at the end, because it makes JAX reserve a GPU's memory, which the sides need
                provenance.write(home / f"{name}.json")
    return shell.INTERRUPTED if interrupted else 0
