"""Who moves the clock: virtual time jumps to the next event, wall time waits for it.

A driver pops events off the agenda and carries them out, until one hands out a call.
"""

import math
from collections.abc import Callable
from queue import Empty

from stellaris.runtime.simulated.calls import Call
from stellaris.runtime.simulated.clock import VirtualClock, WallClock
from stellaris.runtime.simulated.lifecycle import Lifecycle

#: More events than this at one instant are a loop that costs no time.
_MAX_EVENTS_AT_ONE_INSTANT = 100_000
#: Rows that the trace takes over at a time.
_ROWS_AT_ONCE = 1 << 8


class VirtualTime:
    """Carries out events as fast as they come.

    Args:
      life: whose agenda.
      clock: that jumps to each event's time.
      on_event: called after every event, or None.
    """

    def __init__(self, life: Lifecycle, clock: VirtualClock, on_event: Callable[[], None] | None) -> None:
        self._life = life
        self._clock = clock
        self._on_event = on_event
        self._events_now = 0

    def next(self, until: float) -> Call | None:
        """The next call that is handed out; None if nothing is pending, or nothing ends by `until`, which is then now.

        Raises:
          RuntimeError: if events at one instant never end, or what is pending waits for room that nothing will free.
        """
        # Names of this loop's own: it is the platform's hottest.
        life = self._life
        clock = self._clock
        agenda = life.agenda
        departures = life.departures
        pending = departures.pending
        on_event = self._on_event
        bounded = until < math.inf
        if len(life.trace.newest) > _ROWS_AT_ONCE:
            life.trace.settle()
        # With a bound, what is left when nothing is pending happens too: containers expire until then.
        while pending or departures.undelivered or (bounded and agenda):
            try:
                event = agenda.pop()
            except IndexError:
                break
            time = event[0]
            if time > until:
                agenda.put_back(event)
                break
            if time > clock.now:
                clock.now = time
                self._events_now = 1
            else:
                self._events_now += 1
                if self._events_now > _MAX_EVENTS_AT_ONE_INSTANT:
                    raise _standstill(time)
            ended: Call | None = event[4](event[5], time)
            if on_event is not None:
                on_event()
            if ended is not None:
                return ended
        if bounded:
            clock.now = max(clock.now, until)
        elif pending or departures.undelivered:
            raise _deadlock(life)
        return None


class WallTime:
    """Waits for each event's time, or for a body that returns before.

    Args:
      life: whose agenda.
      clock: real time.
      on_event: called after every event, or None.
    """

    def __init__(self, life: Lifecycle, clock: WallClock, on_event: Callable[[], None] | None) -> None:
        self._life = life
        self._clock = clock
        self._on_event = on_event

    def next(self, until: float) -> Call | None:
        """The next call that is handed out; None if nothing is pending, or nothing ends by `until`.

        Raises:
          RuntimeError: if what is pending waits for room that nothing will free.
        """
        life = self._life
        agenda = life.agenda
        departures = life.departures
        while departures.pending or departures.undelivered or until < math.inf:
            self._take_note_of_all()
            instant = agenda.next_time
            if instant == until == math.inf and not agenda:
                raise _deadlock(life)  # what runs has its end in the agenda
            returned = self._clock.reach(min(instant, until), life.returned)
            if returned is not None:
                life.take_note(returned)
                continue  # its end may come before the event that was waited for
            if instant > until:
                return None
            time, _, _, _, step, subject = agenda.pop()
            ended: Call | None = step(subject, time)
            if self._on_event is not None:
                self._on_event()
            if ended is not None:
                return ended
        return None

    def _take_note_of_all(self) -> None:
        while True:
            try:
                self._life.take_note(self._life.returned.get_nowait())
            except Empty:
                return


def _standstill(instant: float) -> RuntimeError:
    return RuntimeError(
        f"more than {_MAX_EVENTS_AT_ONE_INSTANT} events at {instant} s: invocations that cost no time "
        "invoke one another; give a function a compute time above 0"
    )


def _deadlock(life: Lifecycle) -> RuntimeError:
    waiting = life.admission.blocked()
    return RuntimeError(f"invocations of {waiting} wait for room that nothing will ever free: raise a limit")
