"""The drivers of time: virtual time jumps to the next event, wall time waits for it.

A driver takes events off the agenda and calls their handlers, until one of them returns a call to be handed out.
"""

import math
from collections.abc import Callable
from queue import Empty

from stellaris.runtime.engine.calls import Call
from stellaris.runtime.engine.clock import VirtualClock, WallClock
from stellaris.runtime.engine.lifecycle import Lifecycle

#: More events than this at one instant count as an endless loop. Systems stay far below, and a loop gets there within
#: seconds.
_MAX_EVENTS_AT_ONE_INSTANT = 100_000
#: Rows after which the trace moves them into its columns: many at a time is faster, too many fill memory.
_ROWS_AT_ONCE = 1 << 8


class VirtualTime:
    """The driver of virtual time: handles events one after the other, and sets the clock to the time of each.

    Args:
      life: the calls and the agenda.
      clock: the clock to set.
      on_event: called after every event, or None.
    """

    def __init__(self, life: Lifecycle, clock: VirtualClock, on_event: Callable[[], None] | None) -> None:
        self._life = life
        self._clock = clock
        self._on_event = on_event
        self._events_now = 0

    def next(self, until: float) -> Call | None:
        """Returns the next call to hand out; None if no call is pending, or none ends by `until`, which is then `now`.

        Raises:
          RuntimeError: if events at one instant never end, or at a deadlock.
        """
        # Local names, because every event passes through this loop, and looking up an attribute takes time.
        life = self._life
        clock = self._clock
        agenda = life.agenda
        departures = life.departures
        pending = departures.pending
        on_event = self._on_event
        bounded = until < math.inf
        if len(life.trace.newest) > _ROWS_AT_ONCE:
            life.trace.settle()
        # With a bound, events are handled even if no call is pending: containers expire until then. Without one they
        # are not, or a run would last until its last container has expired.
        while pending or departures.undelivered or (bounded and agenda):
            try:
                event = agenda.pop()
            except IndexError:
                break
            time = event[0]
            # Popped first and put back if need be: most calls have no bound, and looking first costs each event time.
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
            clock.now = max(clock.now, until)  # `until` may be past
        elif pending or departures.undelivered:
            raise _deadlock(life)
        return None


class WallTime:
    """The driver of wall time: waits for the time of each event, or for a body that returns earlier.

    Args:
      life: the calls and the agenda.
      clock: real time.
      on_event: called after every event, or None.
    """

    def __init__(self, life: Lifecycle, clock: WallClock, on_event: Callable[[], None] | None) -> None:
        self._life = life
        self._clock = clock
        self._on_event = on_event

    def next(self, until: float) -> Call | None:
        """Returns the next call to hand out; None if no call is pending, or none ends by `until`.

        Raises:
          RuntimeError: at a deadlock.
        """
        life = self._life
        agenda = life.agenda
        departures = life.departures
        # With a bound even if no call is pending, because containers expire until then.
        while departures.pending or departures.undelivered or until < math.inf:
            # Before the next event is chosen: a body that has returned may add an earlier one, the end of its call.
            self._take_note_of_all()
            instant = agenda.next_time
            if instant == until == math.inf and not agenda:
                raise _deadlock(life)  # no call runs, because every running call has an event that would end it
            if instant > self._clock.now:
                life.start_batches()  # everything that starts at this instant has been started
            returned = self._clock.reach(min(instant, until), life.returned)
            if returned is not None:
                life.take_note(returned)
                continue  # choose again, because its call may end before the event that was waited for
            if instant > until:
                return None
            time, _phase, _number, _serial, step, subject = agenda.pop()
            ended: Call | None = step(subject, time)
            if self._on_event is not None:
                self._on_event()
            if ended is not None:
                return ended
        return None

    def _take_note_of_all(self) -> None:
        """Takes note of all bodies that have returned by now, in the order in which they did."""
        while True:
            try:
                self._life.take_note(self._life.returned.get_nowait())
            except Empty:
                return


def _standstill(instant: float) -> RuntimeError:
    return RuntimeError(
        f"more than {_MAX_EVENTS_AT_ONE_INSTANT} events at {instant} s: invocations that take no time invoke one "
        "another; give a function a compute time above 0"
    )


def _deadlock(life: Lifecycle) -> RuntimeError:
    waiting = life.admission.blocked()
    return RuntimeError(
        f"deadlock: invocations of {waiting} wait for room that nothing will ever free; raise a limit or add nodes"
    )
