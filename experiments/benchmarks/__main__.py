"""`python -m experiments.benchmarks NAME`: measures, and prints a table of ratios. Run it on an idle machine."""

import argparse
import sys
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from experiments.benchmarks import losses, platform, training

#: Benchmarks by name: each module has `DESCRIPTION` and `measure(say) -> comparisons`.
BENCHMARKS = {"training": training, "losses": losses, "platform": platform}


def main(argv: Sequence[str] | None = None) -> int:
    """Parses the command line and runs the benchmark that it names."""
    parser = argparse.ArgumentParser(prog="python -m experiments.benchmarks", description=__doc__)
    names = parser.add_subparsers(dest="name", required=True, metavar="NAME")
    for name, module in BENCHMARKS.items():
        names.add_parser(name, help=module.DESCRIPTION, description=module.DESCRIPTION)
    arguments = parser.parse_args(argv)
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)  # where the output is no terminal, rich assumes 80 columns
    table = Table(title=BENCHMARKS[arguments.name].DESCRIPTION)
    for column in ("what", "measured", "against", "ratio", "wanted"):
        table.add_column(column, justify="left" if column == "what" else "right")
    for row in BENCHMARKS[arguments.name].measure(console.print):
        table.add_row(row.what, row.measured, row.against, f"{row.ratio:.2f}", row.wanted)
    console.print(table)
    return 0


if __name__ == "__main__":
    sys.exit(main())
