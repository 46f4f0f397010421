"""Views of a trace: the rows of one event, and the table of invocations, as columns."""

import math
from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

from stellaris.runtime.endings import ENDINGS
from stellaris.types import NDArray


class Events(NamedTuple):
    """The rows of one event of a trace, in order: arrays of equal length."""

    time: NDArray
    invocation: NDArray
    value: NDArray


class Invocations(NamedTuple):
    """The invocations of a trace, in order of their numbers: arrays `[n]`, with NaN for times that are not known."""

    number: NDArray  #: int64.
    function: NDArray  #: int32: index into `names`.
    key: NDArray  #: int64: number of the first attempt.
    submitted: NDArray  #: seconds.
    acquired: NDArray  #: seconds: time at which the invocation got a container.
    cold: NDArray  #: bool: whether that container was new.
    started: NDArray  #: seconds.
    ended: NDArray  #: seconds.
    ending: NDArray  #: int8: index into `ENDINGS`, or -1 if the invocation has not ended.
    container: NDArray  #: int64: number of the container, or -1.
    names: tuple[str, ...]  #: names of the functions.


def invocations_of(columns: Mapping[str, NDArray], codes: Mapping[str, int], functions: tuple[str, ...]) -> Invocations:
    """Makes the table of all invocations.

    Args:
      columns: the columns of a trace, `[rows]` each: time, event, function, invocation, container, value.
      codes: the codes of events and functions in these columns, by name.
      functions: names of the functions that were invoked.

    Returns:
      The table. If an event happened to an invocation more than once, the last time counts.
    """
    time = columns["time"]
    number = columns["invocation"]
    n = int(number.max(initial=-1)) + 1
    times = {name: np.full(n, math.nan) for name in ("submitted", "acquired", "started", "ended")}
    key = np.arange(n)
    container = np.full(n, -1)
    function = np.full(n, -1, np.int32)
    cold = np.zeros(n, bool)
    ending = np.full(n, -1, np.int8)
    places = np.full(len(codes) + 1, -1, np.int32)  # indices into `functions`, by code
    places[[codes[name] for name in functions]] = np.arange(len(functions))

    def rows(name: str) -> NDArray:
        return np.flatnonzero((columns["event"] == codes.get(name, -1)) & (number >= 0))

    for name in ("submitted", "acquired", "started"):
        at = rows(name)
        which = number[at]
        times[name][which] = time[at]
        function[which] = places[columns["function"][at]]
        if name == "submitted":
            key[which] = columns["value"][at]
        elif name == "acquired":
            cold[which] = columns["value"][at] > 0
        if name != "submitted":
            container[which] = columns["container"][at]
    for code, name in enumerate(ENDINGS):
        at = rows(name)
        times["ended"][number[at]] = time[at]
        ending[number[at]] = code
    # Numbers may be missing: a call that was cancelled before it was due to be submitted is not in the trace.
    there = np.flatnonzero(function >= 0)
    return Invocations(
        number=there,
        function=function[there],
        key=key[there],
        submitted=times["submitted"][there],
        acquired=times["acquired"][there],
        cold=cold[there],
        started=times["started"][there],
        ended=times["ended"][there],
        ending=ending[there],
        container=container[there],
        names=functions,
    )
