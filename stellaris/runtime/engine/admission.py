"""Admission of calls: a call that finds room gets a container at once, other calls wait in order of submission."""

import heapq
from collections.abc import Callable, Mapping

from stellaris.runtime.engine.agenda import ACQUIRE, Agenda
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.containers import Pool
from stellaris.runtime.engine.fleet import Fleet
from stellaris.runtime.state.registry import register_part


@register_part("waiting", "_serving", rebuilt=("_pools", "_fleet", "_agenda", "_on_found"), steps=("_serve",))
class Admission:
    """The queues of calls that wait for room.

    Args:
      pools: the pool of each function, which holds the function's queue.
      fleet: finds room.
      agenda: receives the event that serves the queues.
      on_found: called with a call, its container, the seconds until the container is ready, and the time.
    """

    def __init__(
        self,
        pools: Mapping[str, Pool],
        fleet: Fleet,
        agenda: Agenda,
        on_found: Callable[[Call, Container, float, float], None],
    ) -> None:
        self._pools = pools
        self._fleet = fleet
        self._agenda = agenda
        self._on_found = on_found
        self.waiting = 0  #: number of calls in all queues.
        self._serving = False  # whether an event at this instant will serve the queues
        fleet.on_room = self.wake

    def admit(self, call: Call, now: float) -> bool:
        """Finds a container for a call or queues it; returns False if its function rejects calls over a limit."""
        pool = call.pool
        # Calls are served in order: a new call does not overtake queued calls, even if room was freed at this instant.
        found = None if pool.waiting else self._fleet.acquire(call, now)
        if found is not None:
            self._on_found(call, *found, now)
            return True
        if pool.spec.overflow == "reject":
            return False
        # Calls wait in order of submission, not of arrival here: queueing delays differ, and must not change the order.
        heapq.heappush(pool.waiting, (call.submitted, call.number, call))
        self.waiting += 1
        return True

    def wake(self, now: float) -> None:
        """Schedules the serving of the queues at this instant, because room may have been freed."""
        if self.waiting and not self._serving:
            self._serving = True
            # The queues are served in the phase after END: another call may end at this instant, and its container must
            # be found whichever of the two calls ends first. With number -1, queued calls are served before calls that
            # arrive at this instant.
            self._agenda.add(now, ACQUIRE, -1, self._serve, None)

    def _serve(self, _: None, now: float) -> None:
        """Gives containers to queued calls in order of submission, until the room is used up.

        If the oldest call of a function does not fit, the function's later calls wait behind it (head-of-line
        blocking): they need the same resources, and would otherwise overtake it. Other functions may need less, and are
        still served.
        """
        self._serving = False  # room that is freed from now on needs another event
        waiting = [pool for pool in self._pools.values() if pool.waiting]
        while waiting:
            # The oldest call of all functions is served first, so that no function takes all shared room from another.
            pool = min(waiting, key=lambda pool: pool.waiting[0][:2])
            call = pool.waiting[0][2]
            gone = call.status != "pending"  # the call was cancelled while it waited
            found = None if gone else self._fleet.acquire(call, now)
            if found is not None:
                self._on_found(call, *found, now)
            if gone or found is not None:
                heapq.heappop(pool.waiting)
                self.waiting -= 1
            if not pool.waiting or not (gone or found is not None):
                waiting.remove(pool)

    def blocked(self) -> dict[str, int]:
        """Returns the number of waiting calls of each function that has waiting calls."""
        # Calls that were cancelled while they waited are still in the queue: `_serve` removes them.
        waiting = {name: sum(call.status == "pending" for *_, call in p.waiting) for name, p in self._pools.items()}
        return {name: number for name, number in waiting.items() if number}
