"""The command line of the benchmarks."""

import argparse

from rich.console import Console
from rich.table import Table

from experiments.benchmarks import cluster, corrections, gpu, lab, losses, overhead, peers, platform, replay, training
from experiments.toolkit import shell

#: Benchmarks by name: each module has `DESCRIPTION` and `measure(say) -> comparisons`. A module with options also has
#: `add_arguments(parser)`, and its `measure` takes the options as keyword arguments.
BENCHMARKS = {
    "training": training,
    "overhead": overhead,
    "losses": losses,
    "corrections": corrections,
    "platform": platform,
    "peers": peers,
    "cluster": cluster,
    "replay": replay,
    "lab": lab,
    "gpu": gpu,
}


DESCRIPTION = "speed, as ratios against a limit or a peer measured in the same run; run it on an idle machine"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds one subcommand per benchmark, with its options."""
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        own = names.add_parser(name, help=module.DESCRIPTION, description=module.DESCRIPTION)
        getattr(module, "add_arguments", lambda parser: None)(own)


def main(arguments: argparse.Namespace) -> int:
    """Runs a benchmark and prints a table of ratios."""
    options = dict(vars(arguments))
    benchmark = BENCHMARKS[options.pop("name")]
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)  # rich assumes 80 columns if the output is not a terminal
    table = Table(title=benchmark.DESCRIPTION)
    for column in ("what", "measured", "against", "ratio", "wanted"):
        table.add_column(column, justify="left" if column == "what" else "right")

    def work() -> None:
        for row in benchmark.measure(console.print, **options):
            table.add_row(row.what, row.measured, row.against, f"{row.ratio:.2f}", row.wanted)

    try:
        interrupted = shell.interruptible(work)
    finally:
        console.print(table)
    return shell.INTERRUPTED if interrupted else 0
