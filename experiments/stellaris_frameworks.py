"""The paper's comparison of frameworks, generated from `stellaris.systems.properties`."""

import argparse
from dataclasses import dataclass

from rich.console import Console
from rich.table import Table

from stellaris.systems.properties import PROPERTIES

DESCRIPTION = "the paper's table of what the frameworks can do, and which system here stands for each"


@dataclass(frozen=True)
class Column:
    """A property, as a heading."""

    field: str
    heading: str


COLUMNS = (
    Column("asynchronous_learners", "asynchronous learners"),
    Column("scalable_actors", "scalable actors"),
    Column("on_and_off_policy", "on- and off-policy"),
    Column("serverless", "serverless"),
)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """It has none."""


def main(arguments: argparse.Namespace) -> int:
    """Prints the table."""
    console = Console(highlight=False, soft_wrap=True)
    console.width = max(console.width, 120)
    table = Table(title="each entry is shown in a trace by tests/systems/test_properties.py")
    table.add_column("framework")
    for column in COLUMNS:
        table.add_column(column.heading, justify="center")
    table.add_column("system here")
    for name, properties in PROPERTIES.items():
        entries = ("yes" if getattr(properties, column.field) else "no" for column in COLUMNS)
        table.add_row(name, *entries, properties.system.__name__ if properties.system else "(none yet)")
    console.print(table)
    return 0
