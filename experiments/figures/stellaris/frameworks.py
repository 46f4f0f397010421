"""Prints the paper's comparison of frameworks from `experiments.figures.stellaris.properties`."""

import argparse
from collections.abc import Sequence
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from experiments.figures.stellaris.properties import PROPERTIES

DESCRIPTION = "the paper's table of frameworks and their properties, with the system that stands for each"


@dataclass(frozen=True)
class Column:
    """A property and its heading."""

    field: str
    heading: str


COLUMNS = (
    Column("asynchronous_learners", "asynchronous learners"),
    Column("scalable_actors", "scalable actors"),
    Column("on_and_off_policy", "on- and off-policy"),
    Column("serverless", "serverless"),
)
HEADINGS = ("framework", *(column.heading for column in COLUMNS), "system here")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds no options."""


def main(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)
    table = Table(title="each entry is shown in a trace by tests/experiments/figures/stellaris/test_properties.py")
    for i, heading in enumerate(HEADINGS):
        table.add_column(heading, justify="center" if 0 < i <= len(COLUMNS) else "left")
    for row in rows():
        table.add_row(*row)
    console.print(table)
    return 0


def rows() -> list[Sequence[str]]:
    """Returns one row per framework: its name, its properties, and its system."""
    found: list[Sequence[str]] = []
    for name, properties in PROPERTIES.items():
        entries = ("yes" if getattr(properties, column.field) else "no" for column in COLUMNS)
        found.append((name, *entries, properties.system.__name__))
    return found
