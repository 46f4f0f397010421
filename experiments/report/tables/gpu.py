"""The table of gradients on a GPU."""

from collections.abc import Mapping

from experiments.report.tables.results import rows
from experiments.report.tables.table import Table

_NETWORKS = {"2x256": "two layers of 256 units, Hopper-v4", "convolutions": "MinionsRL's convolutions, three frames"}


def gradients() -> Table:
    """Returns milliseconds per gradient by network and minibatch, for one sharer and for several on one GPU."""
    of: dict[tuple[str, int], dict[int, float]] = {}
    for row in rows("gpu/gradients.csv"):
        of.setdefault((row["network"], int(row["samples"])), {})[int(row["sharers"])] = 1e3 * float(row["seconds"])
    lines = [
        (f"{_NETWORKS[network]}: {samples:,}", *(f"{ms:.3g}" for ms in times.values()), f"{_slowed(times):.2f}")
        for (network, samples), times in of.items()
    ]
    return Table(("ms per gradient of as many samples", "alone", "two", "three", "four", "four / alone"), lines)


def _slowed(times: Mapping[int, float]) -> float:
    return times[max(times)] / times[1]
