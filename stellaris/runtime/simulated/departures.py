"""How calls leave the simulated platform: complete, fail or are killed; their messages arrive, late or twice.

The second half of a call's life, which `lifecycle` begins.
"""

import copy

from stellaris.runtime.endings import ENDINGS_BY_NAME
from stellaris.runtime.simulated.agenda import END, Agenda
from stellaris.runtime.simulated.bodies import Bodies
from stellaris.runtime.simulated.calls import Call
from stellaris.runtime.simulated.fleet import Fleet
from stellaris.runtime.simulated.transfers import Transfers
from stellaris.runtime.trace import Trace
from stellaris.saved import part


@part(
    *("pending", "undelivered"),
    rebuilt=("_agenda", "_fleet", "_transfers", "_rows", "_bodies"),
    steps=("complete", "_end_if_pending", "_deliver"),
)
class Departures:
    """Ends calls, frees their containers, and hands them out.

    Args:
      agenda: where ends and messages are put down.
      fleet: whose containers the calls have.
      transfers: which holds what the calls refer to.
      trace: where it is recorded.
      bodies: what they compute.
    """

    def __init__(self, agenda: Agenda, fleet: Fleet, transfers: Transfers, trace: Trace, bodies: Bodies) -> None:
        self._agenda = agenda
        self._fleet = fleet
        self._transfers = transfers
        self._rows = trace.newest
        self._bodies = bodies
        self.pending: dict[int, Call] = {}  #: by number, until they end.
        self.undelivered = 0  #: messages under way whose call has ended.
        fleet.on_lost = self._crash

    # ---- ended ----------------------------------------------------------------------------------------------------

    def complete(self, call: Call, now: float) -> Call | None:
        """A call is due: its body has returned, or raised, or hangs; then its message may be lost."""
        if call.number not in self.pending:
            return None  # killed already
        outcome = self._bodies.finish(call)
        if outcome is None:
            limit = call.pool.spec.timeout
            if limit is None or call.started is None:
                return self._end_if_pending((call, "hung"), now)
            self.end_at(call.started + limit, call, "timed_out")
            return None
        call.value, call.error = outcome
        if call.error is not None:
            return self._end_if_pending((call, "failed"), now)
        if call.course is None:
            self.end(call, "completed", now)
            return call
        if call.course.crashes_at_end():
            return self._end_if_pending((call, "crashed"), now)
        noticed, again = call.course.messages(now)
        if again is not None:
            self._deliver_at(again, _twin(call, now), "redelivered")
        if noticed is None:
            return self._end_if_pending((call, "completed"), now)
        # It ends now, and its container is free; that it was lost is handed out once somebody notices.
        self._deliver_at(noticed, call, "noticed")
        self._end_if_pending((call, "lost"), now)
        return None

    def end_at(self, time: float, call: Call, status: str) -> None:
        """Has a call end at an instant, unless it has ended before."""
        self._agenda.add(time, END, call.number, self._end_if_pending, (call, status))

    def end(self, call: Call, status: str, now: float) -> None:
        """Ends a call; its container is free, or ends with it."""
        container = call.container
        dies = ENDINGS_BY_NAME[status].ends_container
        if dies and container is not None and call.status == "running":
            container.occupied = not self._bodies.drop(call)
        self._mark_ended(call, status, now)
        if container is not None:
            self._fleet.release(container, now, started=call.started is not None, dies=dies)

    def cancel_all(self, now: float) -> None:
        """The platform closes: what is pending is cancelled. The containers are the fleet's to end."""
        for call in list(self.pending.values()):
            self._mark_ended(call, "cancelled", now)

    def _end_if_pending(self, ending: tuple[Call, str], now: float) -> Call | None:
        """Ends a call and hands it out, unless it was killed before, or completed before its time-out."""
        call, status = ending
        if call.number not in self.pending:
            return None
        self.end(call, status, now)
        return call

    def _mark_ended(self, call: Call, status: str, now: float) -> None:
        """The one place where a call ends."""
        del self.pending[call.number]
        call.status = status
        call.finished = now
        call.resolved = None
        call.task = None
        if status != "completed":
            call.value = None
        if call.args:
            self._transfers.release(call.number)
        if not ENDINGS_BY_NAME[status].retriable:
            call.args = None
        if call.arrived:
            where = -1 if call.container is None else call.container.number
            self._rows.append((now, status, call.function, call.number, where, 0.0))

    def _crash(self, call: Call, now: float) -> Call | None:
        return self._end_if_pending((call, "crashed"), now)

    # ---- handed out later -----------------------------------------------------------------------------------------

    def _deliver_at(self, time: float, call: Call, event: str) -> None:
        self.undelivered += 1
        self._agenda.add(time, END, call.number, self._deliver, (call, event))

    def _deliver(self, message: tuple[Call, str], now: float) -> Call | None:
        """Hands out what ended before: a duplicate, or a call whose message was lost."""
        call, event = message
        self.undelivered -= 1
        self._rows.append((now, event, call.function, call.number, -1, 0.0))
        return call


def _twin(call: Call, now: float) -> Call:
    """A completion that arrives once more, as another object of the same number and key."""
    twin = copy.copy(call)
    twin.status = "completed"
    twin.finished = now
    twin.args = None
    twin.resolved = None
    twin.task = None
    return twin
