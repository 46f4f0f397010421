"""Who gets a container next: calls that find room start at once, and the others wait in order of submission."""

import heapq
from collections.abc import Callable, Mapping

from stellaris.runtime.simulated.agenda import ACQUIRE, Agenda
from stellaris.runtime.simulated.calls import Call, Container
from stellaris.runtime.simulated.containers import Pool
from stellaris.runtime.simulated.fleet import Fleet
from stellaris.saved import part


@part("waiting", "_serving", rebuilt=("_pools", "_fleet", "_agenda", "_on_found"), steps=("_serve",))
class Admission:
    """The queues of calls that wait for room.

    Args:
      pools: by function; each keeps its own queue.
      fleet: which finds room.
      agenda: where it is put down to look for room.
      on_found: called with a call, its container, the seconds until that is ready, and the time.
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
        self.waiting = 0  #: calls in all queues.
        self._serving = False  # whether it is put down to look for room at this instant
        fleet.on_room = self.wake

    def admit(self, call: Call, now: float) -> bool:
        """Finds a container for a call, or has it wait; False if its function rejects what does not find room."""
        pool = call.pool
        # Who has waited for longer comes first, even if there is room again at this very instant.
        found = None if pool.waiting else self._fleet.acquire(call, now)
        if found is not None:
            self._on_found(call, *found, now)
            return True
        if pool.spec.overflow == "reject":
            return False
        heapq.heappush(pool.waiting, (call.submitted, call.number, call))
        self.waiting += 1
        return True

    def wake(self, now: float) -> None:
        """There may be room: those that wait look for it.

        Once everything that ends at this instant has ended, and not at once: a container that another call frees at
        the same instant must count, too, whichever of both ends first.
        """
        if self.waiting and not self._serving:
            self._serving = True
            self._agenda.add(now, ACQUIRE, -1, self._serve, None)

    def _serve(self, _: None, now: float) -> None:
        """Starts queued calls in order of submission, as far as there is room.

        If a function's oldest one does not fit, that function's later ones wait, too (head-of-line blocking); other
        functions are still served.
        """
        self._serving = False
        waiting = [pool for pool in self._pools.values() if pool.waiting]
        while waiting:
            pool = min(waiting, key=lambda pool: pool.waiting[0][:2])
            call = pool.waiting[0][2]
            gone = call.status != "pending"  # it was cancelled while it waited
            found = None if gone or not self._fleet.may_have_room(pool) else self._fleet.acquire(call, now)
            if found is not None:
                self._on_found(call, *found, now)
            if gone or found is not None:
                heapq.heappop(pool.waiting)
                self.waiting -= 1
            if not pool.waiting or not (gone or found is not None):
                waiting.remove(pool)

    def blocked(self) -> dict[str, int]:
        """How many calls wait, by function, where any do."""
        return {name: len(pool.waiting) for name, pool in self._pools.items() if pool.waiting}
