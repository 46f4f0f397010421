"""Views of a trace, as columns."""

from typing import NamedTuple

from stellaris.types import NDArray


class Events(NamedTuple):
    """The rows of one event of a trace, in order: arrays of equal length."""

    time: NDArray
    invocation: NDArray
    value: NDArray


class Invocations(NamedTuple):
    """Every invocation of a trace, in order of their numbers: arrays `[n]`, with NaN for what has not happened."""

    number: NDArray  #: int64.
    function: NDArray  #: int16: index into `names`.
    key: NDArray  #: int64: number of its first attempt.
    submitted: NDArray  #: seconds.
    acquired: NDArray  #: seconds: when it got a container.
    cold: NDArray  #: bool: whether that container was new.
    started: NDArray  #: seconds.
    ended: NDArray  #: seconds.
    ending: NDArray  #: int8: index into `ENDINGS`, or -1 while it is pending or runs.
    container: NDArray  #: int64, or -1.
    names: tuple[str, ...]  #: of the functions.
