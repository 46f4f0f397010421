"""The tables of benchmarks, as their commands have written them."""

from experiments.report.tables.results import rows
from experiments.report.tables.table import Table


def measured(benchmark: str) -> Table:
    """Returns the rows of a benchmark; columns that are empty throughout are left out."""
    lines = rows(f"benchmarks/{benchmark}.csv")
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    return Table(names, [[_shown(name, line[name]) for name in names] for line in lines])


def _shown(name: str, text: str) -> str:
    return f"{float(text):.2f}" if name == "ratio" else text
