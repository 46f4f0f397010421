"""The events to come, in order of time."""

import heapq
import math
from collections.abc import Callable
from typing import Any

from stellaris.runtime.state.registry import register_part

#: Phases of an instant, in order:
#:
#: * END: calls end, messages arrive, and containers that were made ahead are ready. First, so that a container that is
#:   freed at an instant can be had at that instant, and so that a system reacts to a completion (publishes a version,
#:   say) before anything starts that could see the reaction.
#: * ACQUIRE: calls arrive or look for a container, and queues are served, when all that ends has freed its room.
#: * START: bodies start, and resolve their references. After ACQUIRE, so that all calls of an instant have looked for a
#:   container before the first of them runs: who gets one does not depend on how long the others take.
#: * EXPIRE: containers end that were idle for too long, or are lost. Last, so that a container whose time is up at the
#:   very instant of a call is still reused by that call.
END, ACQUIRE, START, EXPIRE = range(4)


@register_part("_heap", "_newest", "_serial")
class Agenda:
    """Events, handed out in the order `(time, phase, number)`.

    An event is the tuple `(time, phase, number, serial, handler, subject)`: at `time`, `handler(subject, time)` is
    called. The number is the invocation's, so that earlier invocations go first; the container's if no invocation is
    concerned; or -1 for what goes before all of them. The serial number keeps events that tie in all else in the order
    in which they were added, and handlers from being compared. Tuples, because Python makes and compares them fastest.

    The last event added is kept out of the heap, because it is often the next one due: an arrival finds its container
    at once, and starts at once.

    Example:
      >>> agenda = Agenda()
      >>> agenda.add(2.0, START, 0, print, "later")
      >>> agenda.add(1.0, END, 1, print, "sooner")
      >>> agenda.next_time, agenda.pop()[-1], agenda.pop()[-1], agenda.next_time
      (1.0, 'sooner', 'later', inf)
    """

    __slots__ = ("_heap", "_newest", "_serial")

    def __init__(self) -> None:
        self._heap: list[Any] = []
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
        """When the next event is; infinity if there is none."""
        return min(
            self._heap[0][0] if self._heap else math.inf,
            math.inf if self._newest is None else self._newest[0],
        )

    def pop(self) -> Any:
        """Removes and returns the next event.

        Raises:
          IndexError: if there is none.
        """
        heap = self._heap
        newest = self._newest
        if newest is None or (heap and heap[0] < newest):
            return heapq.heappop(heap)
        self._newest = None
        return newest

    def put_back(self, event: Any) -> None:
        """Returns an event that was popped before its time."""
        heapq.heappush(self._heap, event)

    def __len__(self) -> int:
        return len(self._heap) + (self._newest is not None)

    def clear(self) -> None:
        """Removes all events."""
        self._heap.clear()
        self._newest = None
