"""The table that compares the simulated platform with Ray."""

from statistics import median

from experiments.report.tables.results import rows
from experiments.report.tables.table import Table

#: The rows: label, system, column and digits.
_SHOWN = (
    ("asynchronous actors: steps a second", "asynchronous actors", "steps", ",.0f"),
    ("USD an hour by use", "asynchronous actors", "cost", ".2f"),
    ("Stellaris: mean staleness", "stellaris", "staleness", ".2f"),
    ("updates a second", "stellaris", "updates", ".2f"),
    ("steps a second", "stellaris", "steps", ",.0f"),
    ("USD an hour by use", "stellaris", "cost", ".3f"),
)


def predicted() -> Table:
    """Returns medians over seeds on Ray and in simulation, and by how much each seed's prediction is off."""
    runs: dict[tuple[str, str], list[dict[str, str]]] = {}
    for row in rows("cluster-vs-simulation/runs.csv"):
        runs.setdefault((row["system"], row["on"]), []).append(dict(row))
    lines = []
    for label, system, column, digits in _SHOWN:
        real, simulated = ([float(row[column]) for row in runs[system, on]] for on in ("Ray", "simulation"))
        off = [100 * (two / one - 1) for one, two in zip(real, simulated, strict=True)]
        both = (median(real), median(simulated))
        between = " to ".join(dict.fromkeys((_signed(min(off)), _signed(max(off)))))
        numbers = (f"{one:{digits}}" for one in both)
        lines.append((label, *numbers, f"{_signed(100 * (both[1] / both[0] - 1))} %", f"{between} %"))
    return Table(("", "on Ray", "simulated", "off by", "each seed"), lines)


def _signed(number: float) -> str:
    """Returns a number with its sign and one decimal, and nothing as "0.0"."""
    text = f"{number:+.1f}"
    return text if float(text) else "0.0"
