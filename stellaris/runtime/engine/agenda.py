"""The events to come, in order of time."""

import heapq
import math
from collections.abc import Callable
from typing import Any

from stellaris.runtime.state.registry import register_part

#: Phases of an instant, in order:
#:
#: * END: calls end, messages arrive, and pre-warmed containers become ready. END is first, so that a container freed at
#:   an instant is available at that instant, and so that a system can react to a completion (by publishing a version,
#:   say) before any body starts that could see the reaction.
#: * ACQUIRE: calls arrive or look for a container, and queues are served. ACQUIRE follows END, which frees room.
#: * START: bodies start, and references are resolved. START follows ACQUIRE, so that all calls of an instant look for a
#:   container before the first of them runs: which call gets a container does not depend on the calls' durations.
#: * EXPIRE: containers that were idle for too long end, and containers are lost. EXPIRE is last, so that a container
#:   that would expire at the instant of a call is still reused by that call.
END, ACQUIRE, START, EXPIRE = range(4)


@register_part("_heap", "_newest", "_serial")
class Agenda:
    """A queue of events in the order `(time, phase, number)`.

    An event is the tuple `(time, phase, number, serial, handler, subject)`: at `time`, `handler(subject, time)` is
    called. The number is the number of the invocation, so that earlier invocations go first; the number of the
    container for an event without an invocation; or -1 for an event that precedes all others of its phase. The serial
    number keeps events that are otherwise equal in the order in which they were added, and keeps handlers from being
    compared.

    Example:
      >>> agenda = Agenda()
      >>> agenda.add(2.0, START, 0, print, "later")
      >>> agenda.add(1.0, END, 1, print, "sooner")
      >>> agenda.next_time, agenda.pop()[-1], agenda.pop()[-1], agenda.next_time
      (1.0, 'sooner', 'later', inf)
    """

    __slots__ = ("_heap", "_newest", "_serial")

    def __init__(self) -> None:
        # Events are tuples, because Python makes and compares tuples fastest.
        self._heap: list[Any] = []
        # The last event added stays out of the heap, because it is often the next event due: an arrival finds its
        # container at once and starts at once. This saves two heap operations.
        self._newest: Any = None
        self._serial = 0

    def add(self, time: float, phase: int, number: int, handler: Callable[[Any, float], Any], subject: Any) -> None:
        """Adds an event."""
        self._serial += 1
        newest = self._newest
        if newest is not None:
            heapq.heappush(self._heap, newest)
        self._newest = (time, phase, number, self._serial, handler, subject)

    @property
    def next_time(self) -> float:
        """The time of the next event; infinity if the agenda is empty."""
        return min(
            self._heap[0][0] if self._heap else math.inf,
            math.inf if self._newest is None else self._newest[0],
        )

    def pop(self) -> Any:
        """Removes and returns the next event.

        Raises:
          IndexError: if the agenda is empty.
        """
        heap = self._heap
        newest = self._newest
        if newest is None or (heap and heap[0] < newest):
            return heapq.heappop(heap)
        self._newest = None
        return newest

    def put_back(self, event: Any) -> None:
        """Puts back an event that was popped but is not due yet; it keeps its place in the order."""
        # The event goes into the heap, because `_newest` has another event if this one came from the heap.
        heapq.heappush(self._heap, event)

    def __len__(self) -> int:
        return len(self._heap) + (self._newest is not None)

    def clear(self) -> None:
        """Removes all events."""
        self._heap.clear()
        self._newest = None
