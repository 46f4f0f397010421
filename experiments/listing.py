"""`python -m experiments list`: prints the table of experiments."""

import argparse

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
    for name, entry in catalogue.EXPERIMENTS.items():
        minutes = "\n".join(f"{preset} {time}".strip() for preset, time in entry.minutes.items())
        table.add_row(name, _description(entry), entry.of, minutes)
    console.print(table)
    return 0


def _description(entry: catalogue.Entry) -> str:
    """Returns the module's description; if its import lacks a package, the error, which names the extra."""
    try:
        return str(entry.load().DESCRIPTION)
    except ModuleNotFoundError as error:
        return f"({error})"
