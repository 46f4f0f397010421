"""Virtual time, which jumps to the next event, and wall time, which is waited for."""

import math
import time
from queue import Empty, SimpleQueue
from typing import Any


class VirtualClock:
    """Time that costs nothing: it jumps."""

    def __init__(self) -> None:
        self.now = 0.0  #: seconds since the start.

    def reach(self, instant: float, interruptions: "SimpleQueue[Any]") -> Any | None:
        """Jumps to `instant` (never back); nothing interrupts virtual time."""
        del interruptions
        self.now = max(self.now, instant)
        return None


class WallClock:
    """Real time since the clock was made."""

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
