"""What is going to happen, in order."""

import heapq
import math
from collections import deque
from collections.abc import Callable
from typing import Any

#: Phases of an instant, in order. What ends is handed out before anything starts, and a container ends last of all.
END, ACQUIRE, START, EXPIRE = range(4)


class Agenda:
    """Events, handed out in the order `(time, phase, number)`.

    An event is the tuple `(time, phase, number, serial, handler, subject)`: at `time`, `handler(subject, time)` is
    called. The number is the invocation's, or the container's if no invocation is concerned; the serial number keeps
    the order of events that tie in all else. Tuples, because they are made and compared more often than anything else.

    Two optimisations avoid the heap. The last event added is kept aside, because it is often the next one due: an
    arrival finds its container at once, and starts at once. Events added in time order, as arrivals that are known
    beforehand are, go to a deque.

    Example:
      >>> agenda = Agenda()
      >>> agenda.add(2.0, START, 0, print, "later")
      >>> agenda.add(1.0, END, 1, print, "sooner")
      >>> agenda.next_time, agenda.pop()[-1], agenda.pop()[-1], agenda.next_time
      (1.0, 'sooner', 'later', inf)
    """

    __slots__ = ("_heap", "_line", "_newest", "_serial")

    def __init__(self) -> None:
        self._heap: list[Any] = []
        self._line: deque[Any] = deque()
        self._newest: Any = None
        self._serial = 0

    def add(self, time: float, phase: int, number: int, handler: Callable[[Any, float], Any], subject: Any) -> None:
        """Puts an event down."""
        self._serial += 1
        newest = self._newest
        if newest is not None:
            self.put_back(newest)
        self._newest = (time, phase, number, self._serial, handler, subject)

    @property
    def next_time(self) -> float:
        """When the next event is; infinity if there is none."""
        heads = [events[0][0] for events in (self._heap, self._line) if events]
        return min(heads if self._newest is None else [*heads, self._newest[0]], default=math.inf)

    def pop(self) -> Any:
        """Takes the next event out.

        Raises:
          IndexError: if there is none.
        """
        heap, line, newest = self._heap, self._line, self._newest
        if line and (not heap or line[0] < heap[0]):
            if newest is None or line[0] < newest:
                return line.popleft()
        elif newest is None or (heap and heap[0] < newest):
            return heapq.heappop(heap)
        self._newest = None
        return newest

    def put_back(self, event: Any) -> None:
        """Takes back an event whose time has not come."""
        line = self._line
        if not line or line[-1] < event:
            line.append(event)
        else:
            heapq.heappush(self._heap, event)

    def __len__(self) -> int:
        return len(self._heap) + len(self._line) + (self._newest is not None)

    def clear(self) -> None:
        """Forgets everything."""
        self._heap.clear()
        self._line.clear()
        self._newest = None
