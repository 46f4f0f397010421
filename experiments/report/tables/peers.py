"""The table of returns after as many steps, against other libraries."""

from experiments.benchmarks import returns
from experiments.report.tables.results import rows
from experiments.report.tables.table import Table
from experiments.toolkit.statistics import estimate


def compared() -> Table:
    """Returns each side's return with its interval, and the ratio of ours to each peer's."""
    of: dict[str, list[float]] = {}
    for row in rows("peers-returns/runs.csv"):
        of.setdefault(row["side"], []).append(float(row["return"]))
    own, *peers = of
    lines = [(own, f"{len(of[own])}", format(estimate(of[own]), ",.0f"), "", "")]
    for peer, one in zip(peers, returns.rows(of), strict=True):
        lines.append((peer, f"{len(of[peer])}", one.against, f"{one.ratio:.2f}", one.wanted))
    return Table(("side", "seeds", "return", "ours / theirs", "wanted"), lines)
