"""What is read off a trace, as columns."""

from typing import NamedTuple

from stellaris.types import NDArray


class Events(NamedTuple):
    """Rows of a trace of one kind, in order."""

    time: NDArray
    invocation: NDArray
    value: NDArray


class Invocations(NamedTuple):
    """Every invocation of a trace, `[n]` in order of their numbers; NaN where something has not happened."""

    number: NDArray  #: int64.
    function: NDArray  #: int16: index into `names`.
    key: NDArray  #: int64: number of its first attempt.
    submitted: NDArray  #: seconds.
    acquired: NDArray  #: seconds: when it got a container.
    cold: NDArray  #: bool: whether that was a new one.
    started: NDArray  #: seconds.
    ended: NDArray  #: seconds.
    ending: NDArray  #: int8: index into `ENDINGS`, or -1 while it is pending or runs.
    container: NDArray  #: int64, or -1.
    names: tuple[str, ...]  #: of the functions.
