"""The drivers of time: virtual time jumps to the next event, wall time waits for it.

A driver takes events off the agenda and calls their handlers, until a handler returns a call to be handed out.
"""

import math
from collections.abc import Callable
from queue import Empty

from stellaris.runtime.engine.calls import Call
from stellaris.runtime.engine.clock import VirtualClock, WallClock
from stellaris.runtime.engine.lifecycle import Lifecycle

#: The most events at one instant; more count as an endless loop. Systems stay far below this number, and an endless
#: loop reaches it within seconds.
_MAX_EVENTS_AT_ONE_INSTANT = 100_000
#: The most events in a row, over time, during which every pending call waits for room and no call arrives or finds
#: room. More count as a deadlock: containers that are lost and replaced can keep the agenda full for ever.
_MAX_EVENTS_IN_VAIN = 100_000
#: Number of new rows after which the trace packs them into columns: packing many at once is faster, but unpacked rows
#: take more memory.
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
        """Returns the next call to hand out; None if no call is pending or no call ends by `until`.

        If this method returns None, the clock stands at `until` or later, unless `until` is infinite.

        Raises:
          RuntimeError: if events at one instant never end, or at a deadlock.
        """
        # Attributes have local names, because every event passes through this loop, and a look-up takes time.
        life = self._life
        clock = self._clock
        agenda = life.agenda
        departures = life.departures
        pending = departures.pending
        on_event = self._on_event
        bounded = until < math.inf
        handled = 0
        stuck = None
        if len(life.trace.newest) > _ROWS_AT_ONCE:
            life.trace.settle()
        # With a bound, events are handled even if no call is pending, because containers may expire before the bound.
        # Without a bound they are handled only while calls are pending: otherwise a run would last until its last
        # container has expired.
        while pending or departures.undelivered or (bounded and agenda):
            try:
                event = agenda.pop()
            except IndexError:
                break
            time = event[0]
            # The event is popped, and put back if it is later than `until`. Usually `until` is infinite, and checking
            # the time before popping would slow down every event.
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
            handled += 1
            # A run with a bound ends in any case, and its caller may be waiting for a time and not for a call.
            if handled == _MAX_EVENTS_IN_VAIN and not bounded:
                handled = 0
                before, stuck = stuck, life.stuck()
                if stuck is not None and stuck == before:
                    raise _deadlock(life)
        if bounded:
            clock.now = max(clock.now, until)  # `until` may have passed
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
        """Returns the next call to hand out; None if no call is pending or no call ends by `until`.

        Raises:
          RuntimeError: at a deadlock.
        """
        life = self._life
        agenda = life.agenda
        departures = life.departures
        # With a bound, events are handled even if no call is pending, because containers may expire before the bound.
        while departures.pending or departures.undelivered or until < math.inf:
            # Returned bodies are noted before the next event is chosen, because a body may add an earlier event: the
            # end of its call.
            self._take_note_of_all()
            instant = agenda.next_time
            if instant == until == math.inf and not agenda:
                raise _deadlock(life)  # no call runs, because every running call has an event that would end it
            if instant > self._clock.now:
                life.start_batches()  # everything that starts at this instant has been started
            returned = self._clock.reach(min(instant, until), life.returned)
            if returned is not None:
                life.take_note(returned)
                continue  # the next event is chosen again, because the body's call may end before it
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
        """Takes note of all bodies that have returned by now, in the order of their return."""
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
    if not waiting:
        pending = sorted(life.departures.pending)
        return RuntimeError(f"deadlock: invocations {pending} lack an event that could end them: an error lost it")
    return RuntimeError(
        f"deadlock: invocations of {waiting} wait for room that nothing will ever free; raise a limit or add nodes"
    )
