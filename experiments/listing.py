"""`python -m experiments list`: prints the table of experiments."""

import argparse
from collections.abc import Sequence

from rich.console import Console
from rich.table import Table

from experiments import catalogue

DESCRIPTION = "list the experiments, the papers they reproduce, and how long they take"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds no options."""


def main(arguments: argparse.Namespace) -> int:
    """Prints one row per experiment."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 160)
    table = Table(title="python -m experiments NAME", show_lines=True)
    table.add_column("name", no_wrap=True)
    for heading in ("description", "source", "minutes on two cores, estimated"):
        table.add_column(heading)
    # Grouped by paper, in the order of the catalogue; experiments of no paper come last.
    papers = [catalogue.STELLARIS, catalogue.MINIONSRL, catalogue.GEAR]
    groups = {name: _paper(entry, papers) for name, entry in catalogue.EXPERIMENTS.items()}
    ordered = sorted(catalogue.EXPERIMENTS.items(), key=lambda item: groups[item[0]])
    for name, entry in ordered:
        minutes = "\n".join(f"{preset} {time}".strip() for preset, time in entry.minutes.items())
        table.add_row(name, _description(entry), entry.of, minutes)
    console.print(table)
    return 0


def _paper(entry: catalogue.Entry, papers: Sequence[str]) -> int:
    """Returns the number of the entry's paper, or the number of papers if it is of none."""
    return next((i for i, paper in enumerate(papers) if entry.of.startswith(paper)), len(papers))


def _description(entry: catalogue.Entry) -> str:
    """Returns the module's description; if its import lacks a package, the error, which names the extra."""
    try:
        return str(entry.load().DESCRIPTION)
    except ModuleNotFoundError as error:
        return f"({error})"
