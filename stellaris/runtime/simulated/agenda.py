"""What is going to happen, in order."""

import heapq
import math
from collections.abc import Callable
from typing import Any

from stellaris.saved import part

#: Phases of an instant, in order. What ends is handed out before anything starts, and a container ends last of all.
END, ACQUIRE, START, EXPIRE = range(4)


@part("_heap", "_newest", "_serial")
class Agenda:
    """Events, handed out in the order `(time, phase, number)`.

    An event is the tuple `(time, phase, number, serial, handler, subject)`: at `time`, `handler(subject, time)` is
    called. The number is the invocation's, or the container's if no invocation is concerned; the serial number keeps
    the order of events that tie in all else. Tuples, because they are made and compared more often than anything else.

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
        """Puts an event down."""
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
        """Takes the next event out.

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
        """Takes back an event whose time has not come."""
        heapq.heappush(self._heap, event)

    def __len__(self) -> int:
        return len(self._heap) + (self._newest is not None)

    def clear(self) -> None:
        """Forgets everything."""
        self._heap.clear()
        self._newest = None
