"""What is going to happen, in order."""

import heapq
from collections.abc import Callable
from typing import Any, NamedTuple

#: Phases of an instant, in order. What ends is handed out before anything starts, and a container ends last of all.
END, ACQUIRE, START, EXPIRE = range(4)


class Event(NamedTuple):
    """Something to be done at an instant: `handler(subject, time)`."""

    time: float
    phase: int
    number: int  #: the invocation's, or the container's if none is concerned.
    serial: int  #: events that tie in all else keep their order.
    handler: Callable[[Any, float], Any]
    subject: Any


class Agenda:
    """Events, handed out in the order `(time, phase, number)`.

    Example:
      >>> agenda = Agenda()
      >>> agenda.add(2.0, START, 0, print, "later")
      >>> agenda.add(1.0, END, 1, print, "sooner")
      >>> [event[-1] for event in sorted(agenda.events)]
      ['sooner', 'later']
    """

    __slots__ = ("_serial", "events")

    def __init__(self) -> None:
        #: A heap of `Event`s, as plain tuples: they are made and compared more often than anything else.
        self.events: list[Any] = []
        self._serial = 0

    def add(self, time: float, phase: int, number: int, handler: Callable[[Any, float], Any], subject: Any) -> None:
        """Puts an event down."""
        self._serial += 1
        heapq.heappush(self.events, (time, phase, number, self._serial, handler, subject))
