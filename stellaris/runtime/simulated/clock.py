"""Virtual time, which jumps to the next event, and wall time, which is waited for."""

import math
import time
from queue import Empty, SimpleQueue
from typing import Any, Protocol, runtime_checkable

from stellaris.saved import part


@runtime_checkable
class Clock(Protocol):
    """Seconds since the start."""

    virtual: bool  #: whether time jumps.

    @property
    def now(self) -> float:
        """The current instant."""


@part("now")
class VirtualClock:
    """Time that costs nothing: its driver sets it."""

    virtual = True

    def __init__(self) -> None:
        self.now = 0.0


class WallClock:
    """Real time since the clock was made."""

    virtual = False

    def __init__(self) -> None:
        self._start = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return time.monotonic() - self._start

    def reach(self, instant: float, interruptions: "SimpleQueue[Any]") -> Any | None:
        """Waits until `instant`, or until something is put into `interruptions`, which is then returned instead."""
        while (left := instant - self.now) > 0:
            try:
                return interruptions.get(timeout=None if math.isinf(left) else left)
            except Empty:
                pass
        return None
