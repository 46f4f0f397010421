"""Virtual time, which jumps from event to event, and wall time, which passes."""

import math
import time
from queue import Empty, SimpleQueue
from typing import Any, Protocol, runtime_checkable

from stellaris.runtime.state.registry import register_part


@runtime_checkable
class Clock(Protocol):
    """Seconds since the start."""

    virtual: bool  #: whether time jumps.

    @property
    def now(self) -> float:
        """The current instant."""


@register_part("now")
class VirtualClock:
    """Time that its driver sets."""

    virtual = True

    def __init__(self) -> None:
        self.now = 0.0


class WallClock:
    """Real time since the clock was made, or started.

    Args:
      stopped: whether it stands at 0 until it is started.
    """

    virtual = False

    def __init__(self, *, stopped: bool = False) -> None:
        self._start = None if stopped else time.monotonic()

    def start(self) -> None:
        """From now on time passes."""
        self._start = time.monotonic()

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return 0.0 if self._start is None else time.monotonic() - self._start

    def reach(self, instant: float, interruptions: "SimpleQueue[Any]") -> Any | None:
        """Waits until `instant`, and returns None; or until something is put into `interruptions`, and returns that."""
        while (left := instant - self.now) > 0:
            try:
                return interruptions.get(timeout=None if math.isinf(left) else left)
            except Empty:
                pass
        return None
