"""Transfers between calls and the store: the time that they take, and the store's faults."""

import math
from collections.abc import Callable

from stellaris.runtime.engine.calls import Call
from stellaris.runtime.engine.clock import Clock
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.faults import OutageClock, StoreRefusedError
from stellaris.runtime.references import has_references
from stellaris.runtime.state.registry import register_part
from stellaris.runtime.store.store import Store
from stellaris.runtime.trace.trace import Trace


@register_part("_referring", rebuilt=("_clock", "_rows", "store", "_slow", "_slow_factor", "_refusing"))
class Transfers:
    """The store of one platform, and the transfers between the store and calls.

    Args:
      deployment: the deployment, for the store's limits and faults.
      seed: seed of the faults.
      clock: the platform's clock, for the times of `stored` and `published` events.
      trace: the event log.
      store: the class of the store, or a function that makes one.
    """

    def __init__(
        self, deployment: Deployment, seed: int, clock: Clock, trace: Trace, store: Callable[..., Store] = Store
    ) -> None:
        self._clock = clock
        self._rows = trace.newest
        self.store = store(keep=deployment.keep_versions, capacity=deployment.store_capacity, on_stored=self._stored)
        self._referring: set[int] = set()  # numbers of pending calls whose arguments refer to the store
        # The kinds of outages have separate streams, so that adding one kind leaves the other unchanged.
        faults = deployment.store_faults
        self._slow = None if faults is None else OutageClock(faults.slow, seed, "store/slow")
        self._slow_factor = 1.0 if faults is None else faults.slow_factor
        self._refusing = None if faults is None else OutageClock(faults.refuse, seed, "store/refuse")

    def pin(self, args: tuple[object, ...], number: int) -> None:
        """Keeps the fixed versions and objects among a call's arguments until the call ends.

        Raises:
          LookupError: if a version or object has been removed.
        """
        if has_references(args):
            self.store.pin(args, invocation=number)
            self._referring.add(number)

    def fetch(self, call: Call, now: float) -> float:
        """Resolves a call's arguments; returns the seconds to fetch the arguments and to send the result.

        Raises:
          LookupError: if a version that the arguments refer to is not in the store.
          StoreRefusedError: if the store refuses to answer.
        """
        args = call.args or ()
        transfer = call.pool.spec.transfer
        if call.number in self._referring:
            # The refusal comes before arguments are resolved, so that a call that is refused holds no versions.
            if self._refusing is not None and self._refusing.now(now):
                raise StoreRefusedError(f"the store refused to answer invocation {call.number} at {now:.6g} s")
            call.resolved = self.store.resolve(args, invocation=call.number, function=call.function)
            fetched = self.store.fetched(call.number)
            self._rows.append((now, "fetched", call.function, call.number, -1, fetched))
        else:
            call.resolved = args
        if transfer is None:
            return 0.0
        seconds: float = call.pool.latency.draw()
        # Sizes are needed only if bytes cost time; otherwise a program may leave out `upload`.
        if transfer.bandwidth < math.inf:
            download = call.nbytes + self.store.fetched(call.number)
            # The upload is declared before there is a result, because a call's duration is decided at its start.
            upload = call.program.uploads(self.store.plain(call.resolved))
            seconds += (download + upload) / transfer.bandwidth
        if self._slow is not None and self._slow.now(now):
            seconds *= self._slow_factor
        return seconds

    def release(self, number: int) -> None:
        """Ends a call's hold on versions and objects."""
        if number in self._referring:
            self._referring.discard(number)
            self.store.release(number)

    def _stored(self, name: str, version: int, nbytes: int) -> None:
        now = self._clock.now
        self._rows.append((now, "stored", name, -1, -1, nbytes))
        if name:  # objects are stored without a name, and not published
            self._rows.append((now, "published", name, -1, -1, version))
