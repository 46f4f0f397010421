"""Measures both sides of a ratio in turn, in one process, and compares their medians."""

import statistics
import time
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

import jax

#: Approximate seconds of one measurement of a side, and number of measurements.
SECONDS, REPEATS = 0.01, 25


class Comparison(NamedTuple):
    """A row of a benchmark's table: a measurement, its reference, their ratio, and the ratio that is wanted."""

    what: str
    measured: str
    against: str
    ratio: float
    wanted: str
    parts: Mapping[str, str] = MappingProxyType({})  #: what the measurement consists of, by name; if that is known.

    def row(self) -> dict[str, str]:
        """Returns the row of a CSV file; the parts are further columns."""
        ratio = {"ratio": f"{self.ratio:.4g}", "wanted": self.wanted}
        return {"what": self.what, "measured": self.measured, "against": self.against, **ratio, **self.parts}


def interleaved(sides: Mapping[str, Callable[[], Any]]) -> dict[str, float]:
    """Returns the median seconds per call of each side, measured in turn; waits for the calls' results."""
    calls = {name: _calls(side) for name, side in sides.items()}
    times: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(REPEATS):
        for name, side in sides.items():
            times[name].append(_time(side, calls[name]))
    return {name: statistics.median(seconds) for name, seconds in times.items()}


def _calls(side: Callable[[], Any]) -> int:
    """Returns the number of calls that take about `SECONDS` after compilation."""
    _time(side, 3)
    return max(1, int(SECONDS / _time(side, 3)))


def _time(side: Callable[[], Any], calls: int) -> float:
    began = time.perf_counter()
    for _ in range(calls):
        result = side()
    jax.block_until_ready(result)  # type: ignore[no-untyped-call]
    return (time.perf_counter() - began) / calls
