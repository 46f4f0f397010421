"""The second half of a call's life: the call completes, fails or is killed. It is handed out, perhaps late or twice.

A call is handed out when `next_completion` returns it. `lifecycle` has the first half.
"""

import copy

from stellaris.runtime.endings import ENDINGS_BY_NAME
from stellaris.runtime.engine.agenda import END, Agenda
from stellaris.runtime.engine.bodies import BodyRunner, ContainerLostError
from stellaris.runtime.engine.calls import Call
from stellaris.runtime.engine.fleet import Fleet
from stellaris.runtime.engine.transfers import Transfers
from stellaris.runtime.state.registry import register_part
from stellaris.runtime.trace.trace import Trace


@register_part(
    "pending",
    "undelivered",
    rebuilt=("_agenda", "_fleet", "_transfers", "_rows", "_bodies"),
    steps=("complete", "_end_if_pending", "_deliver"),
)
class Departures:
    """Ends calls, frees their containers, and hands them out.

    Args:
      agenda: receives the events of ends and messages.
      fleet: the containers.
      transfers: hold the versions and objects that calls refer to.
      trace: the event log.
      bodies: run the calls' bodies.
    """

    def __init__(self, agenda: Agenda, fleet: Fleet, transfers: Transfers, trace: Trace, bodies: BodyRunner) -> None:
        self._agenda = agenda
        self._fleet = fleet
        self._transfers = transfers
        self._rows = trace.newest
        self._bodies = bodies
        self.pending: dict[int, Call] = {}  #: calls that have not ended, by number.
        self.undelivered = 0  #: number of messages under way whose call has ended.
        fleet.on_lost = self._crash

    # ---- ended ----------------------------------------------------------------------------------------------------

    def complete(self, call: Call, now: float) -> Call | None:
        """Ends a call that is due, and returns it if it is handed out now.

        The checks are in the order of a real call. The body may hang or raise; then the container may crash, and the
        result is lost with it; then the message may be lost or arrive twice.
        """
        if call.number not in self.pending:
            return None  # the call was killed before it was due
        try:
            outcome = self._bodies.finish(call)
        except KeyboardInterrupt:
            # A loop that continues after Ctrl-C finds the call where it was.
            self._agenda.add(now, END, call.number, self.complete, call)
            raise
        if outcome is None:
            # The function's time-out ends a call whose body hangs, as on a real platform. Without a time-out the call
            # ends as `hung`.
            limit = call.pool.spec.timeout
            if limit is None or call.started is None:
                return self._end_if_pending((call.number, "hung"), now)
            self.end_at(call.started + limit, call, "timed_out")
            return None
        call.value, call.error = outcome
        if isinstance(call.error, ContainerLostError):
            # The fleet ends the call, because it also records the container's loss, and closes nodes that have failed.
            assert call.container is not None
            return self._fleet.lose(call.container, now)
        if call.error is not None:
            return self._end_if_pending((call.number, "failed"), now)
        if call.course is None:
            self.end(call, "completed", now)
            return call
        if call.course.crashes_at_end():
            return self._end_if_pending((call.number, "crashed"), now)
        noticed, again = call.course.messages(now)
        if again is not None:
            # The duplicate is made before the call ends: `_mark_ended` drops the value of a call whose message is lost.
            self._deliver_at(again, _twin(call, now), "redelivered")
        if noticed is None:
            return self._end_if_pending((call.number, "completed"), now)
        # The call ends now and frees its container, but is handed out only when the loss of its message is noticed.
        self._deliver_at(noticed, call, "noticed")
        self._end_if_pending((call.number, "lost"), now)
        return None

    def end_at(self, time: float, call: Call, status: str) -> None:
        """Schedules the end of a call. If the call ends earlier, the event does nothing."""
        # The event stays in the agenda even if the call ends earlier, because finding the event would cost more. It has
        # the call's number and not the call, whose result would otherwise stay in memory up to this time.
        self._agenda.add(time, END, call.number, self._end_if_pending, (call.number, status))

    def end(self, call: Call, status: str, now: float) -> None:
        """Ends a call. Its container becomes idle, or ends with the call, for example after a crash."""
        container = call.container
        dies = ENDINGS_BY_NAME[status].ends_container
        # The task is None if the body never ran: the call crashed at its start, or its end was known beforehand.
        if dies and container is not None and call.status == "running" and call.task is not None:
            # `drop` comes before `release`: while a killed body still runs in a slot, no other call may get the slot.
            container.occupied = not self._bodies.drop(call)
        # The call ends before its container is released: in the trace a call ends before its container ends or another
        # call gets it.
        self._mark_ended(call, status, now)
        if container is not None:
            self._fleet.release(container, now, started=call.started is not None, dies=dies)

    def cancel_all(self, now: float) -> None:
        """Cancels all pending calls, because the platform closes. The fleet ends the containers."""
        for call in list(self.pending.values()):
            self._mark_ended(call, "cancelled", now)
        self.undelivered = 0  # the messages under way are not delivered: their events go with the agenda

    def _end_if_pending(self, ending: tuple[int, str], now: float) -> Call | None:
        """Ends a call and returns it; returns None if the call has ended already, for example before its time-out."""
        number, status = ending
        call = self.pending.get(number)
        if call is None:
            return None
        # The body of a measured call may have returned, and its scaled time end later: it does not hang.
        if status == "hung" and call.finished is not None and call.finished > now:
            return None
        self.end(call, status, now)
        return call

    def _mark_ended(self, call: Call, status: str, now: float) -> None:
        """Records the end of a call and frees its arguments and versions. Every call ends here."""
        del self.pending[call.number]
        call.status = status
        call.finished = now
        # A system may keep the invocation for its result. Its arguments and versions must not stay in memory with it.
        call.resolved = ()
        call.task = None
        if status != "completed":
            call.value = None
        if call.args:
            self._transfers.release(call.number)
        if not ENDINGS_BY_NAME[status].retriable:
            call.args = None
        # A call that is cancelled before its instant of submission was never recorded as submitted, so its end is not
        # recorded either. Its row tells a `Recording` the function's other calls apart.
        where = -1 if call.container is None else call.container.number
        self._rows.append((now, status if call.arrived else "withdrawn", call.function, call.number, where, 0.0))

    def _crash(self, call: Call, now: float) -> Call | None:
        return self._end_if_pending((call.number, "crashed"), now)

    # ---- handed out later -----------------------------------------------------------------------------------------

    def _deliver_at(self, time: float, call: Call, event: str) -> None:
        self.undelivered += 1  # the drivers do not stop while a message is under way, even if no call is pending
        self._agenda.add(time, END, call.number, self._deliver, (call, event))

    def _deliver(self, message: tuple[Call, str], now: float) -> Call | None:
        """Hands out a call that ended earlier: a duplicate, or a call whose lost message is noticed."""
        call, event = message
        self.undelivered -= 1
        self._rows.append((now, event, call.function, call.number, -1, 0.0))
        return call


def _twin(call: Call, now: float) -> Call:
    """Returns a copy of a completing call, with the same number and key, for the duplicate of its message.

    The copy is a separate object, because the call may end as `lost` while its duplicate ends as `completed`.
    """
    twin = copy.copy(call)
    twin.status = "completed"
    twin.finished = now
    twin.args = None
    twin.resolved = ()
    twin.task = None
    return twin
