"""The tables of benchmarks, as their commands have written them."""

from experiments.report.tables.results import rows
from experiments.report.tables.table import Table


def measured(benchmark: str, *, without: str = "") -> Table:
    """Returns the rows of a benchmark, without columns that are empty throughout.

    Args:
      benchmark: its name.
      without: words by which rows are left out; by default all are shown.
    """
    lines = [row for row in rows(f"benchmarks/{benchmark}.csv") if not (without and without in row["what"])]
    names = [name for name in lines[0] if any(line[name] for line in lines)]
    return Table(names, [[_shown(name, line[name]) for name in names] for line in lines])


def _shown(name: str, text: str) -> str:
    return f"{float(text):.2f}" if name == "ratio" and text else text


#: Rows about memory, which the page tells in words.
_MEMORY = "bytes per sample"
TABLES = {
    "benchmarks-training": lambda: measured("training"),
    "benchmarks-losses": lambda: measured("losses", without=_MEMORY),
    "benchmarks-platform": lambda: measured("platform"),
    "benchmarks-overhead": lambda: measured("overhead"),
    "benchmarks-corrections": lambda: measured("corrections", without=_MEMORY),
    "benchmarks-lab": lambda: measured("lab"),
    "benchmarks-replay": lambda: measured("replay"),
    "benchmarks-cluster": lambda: measured("cluster"),
    "benchmarks-backends": lambda: measured("backends"),
    "benchmarks-language": lambda: measured("language"),
    "benchmarks-peers": lambda: measured("peers"),
    "benchmarks-gpu": lambda: measured("gpu"),
}
