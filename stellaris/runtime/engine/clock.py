"""The clocks of platforms: virtual time jumps from event to event, wall time passes by itself."""

import threading
import time
from queue import Empty, SimpleQueue
from typing import Any, Protocol, runtime_checkable

from stellaris.runtime.state.registry import register_part


@runtime_checkable
class Clock(Protocol):
    """A clock of seconds since the start of the run."""

    virtual: bool  #: True if time jumps from event to event, False if it passes by itself.

    @property
    def now(self) -> float:
        """The current instant in seconds."""


@register_part("now")
class VirtualClock:
    """Virtual time, set by `drivers.VirtualTime`."""

    virtual = True

    def __init__(self) -> None:
        self.now = 0.0


class WallClock:
    """Real time since the clock was made or started.

    Args:
      stopped: True to stay at 0 until `start` is called.
    """

    virtual = False

    def __init__(self, *, stopped: bool = False) -> None:
        # The clock is monotonic: the system's clock can be set back, and instants that have passed would come again.
        self._start = None if stopped else time.monotonic()

    def start(self) -> None:
        """Starts the clock at 0."""
        self._start = time.monotonic()

    @property
    def now(self) -> float:
        """The seconds since the start; 0 before the start."""
        return 0.0 if self._start is None else time.monotonic() - self._start

    def reach(self, instant: float, interruptions: "SimpleQueue[Any]") -> Any | None:
        """Waits until `instant`, or until something is put into `interruptions`.

        Returns:
          The item from `interruptions`; None if `instant` was reached first.
        """
        # This is a loop, because a queue may time out a little early.
        while (left := instant - self.now) > 0:
            try:
                # `get` takes no time-out above this one, some 292 years.
                return interruptions.get(timeout=min(left, threading.TIMEOUT_MAX))
            except Empty:
                pass
        return None
