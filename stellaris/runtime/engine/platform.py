"""A platform as a life of calls and a driver of time: the contract's methods, whoever runs the bodies."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

from stellaris._core import checks
from stellaris.runtime.contract import Platform
from stellaris.runtime.costs.billing import Bill, Meters
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.runtime.engine import arguments
from stellaris.runtime.engine.clock import Clock, VirtualClock, WallClock
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.drivers import VirtualTime, WallTime
from stellaris.runtime.engine.lifecycle import Lifecycle
from stellaris.runtime.engine.recorded import Recording
from stellaris.runtime.functions import Function, FunctionSpec, Invocation
from stellaris.runtime.simulated.bodies import BodyRunner
from stellaris.runtime.store.store import Store
from stellaris.runtime.trace.trace import Trace

#: Seconds to wait for running bodies when an exception has ended the `with` block, because the user waits to see it.
_PATIENCE = 2.0


class EventPlatform(Platform):
    """What `SimulatedPlatform` and `RayPlatform` have in common: all but where bodies run, and where versions are.

    Args:
      deployment: what costs time, and what goes wrong.
      clock: virtual or wall time.
      bodies: which run once a call has started.
      seed: of every draw.
      replay: a recorded run, or None.
      hang_after: seconds of real time after which a body that has not returned is given up on.
      store: what makes the store of versions.
      on_event: called with the platform after every event, or None.
    """

    def __init__(
        self,
        deployment: Deployment,
        clock: Clock,
        bodies: BodyRunner,
        *,
        seed: int,
        replay: Recording | None = None,
        hang_after: float,
        store: Callable[..., Store] = Store,
        on_event: Callable[[Any], None] | None = None,
    ) -> None:
        self._deployment = deployment
        self._programs = arguments.Programs()
        self._closed = False
        self._bodies = bodies
        self._clock = clock
        self._life = Lifecycle(deployment, replay, seed, clock, bodies, hang_after, store)
        self._meters = Meters(self._life.trace, deployment.functions)
        self._time = self._driver(None if on_event is None else lambda: on_event(self))

    def _driver(self, on_event: Callable[[], None] | None) -> VirtualTime | WallTime:
        """Who moves the clock."""
        if isinstance(self._clock, VirtualClock):
            return VirtualTime(self._life, self._clock, on_event)
        assert isinstance(self._clock, WallClock)
        return WallTime(self._life, self._clock, on_event)

    # ---- what a system calls ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._clock.now

    @property
    def store(self) -> Store:
        """Published versions, and objects, which arguments refer to."""
        return self._life.transfers.store

    @property
    def trace(self) -> Trace:
        """The record of everything that happened, to which systems add what they did."""
        return self._life.trace

    @property
    def deployment(self) -> Deployment:
        """What is deployed, on which machines, and with which faults."""
        return self._deployment

    @property
    def functions(self) -> Mapping[str, FunctionSpec]:
        """What is deployed, by name."""
        return self._deployment.functions

    def invoke(
        self,
        name: str,
        function: Function | Callable[..., Any],
        *args: Any,
        at: float | None = None,
        work: float = 1.0,
        tag: Any = None,
    ) -> Invocation:
        pool = arguments.deployed(name, self._life.pools)
        if not 0 <= work < math.inf:
            raise ValueError(f"function {name!r}: work={work} is negative or not finite")
        if at is not None:
            at = arguments.instant(name, at, self._clock)
        if not isinstance(function, Function):
            function = self._programs.of(function)
        transfer = pool.spec.transfer
        nbytes = 0 if transfer is None else arguments.carried(name, transfer, function, args)
        if self._closed:
            raise arguments.closed_error(name)
        return self._life.submit(pool, function, args, at, work, tag, nbytes)

    def prewarm(self, name: str, count: int = 1, *, at: float | None = None) -> None:
        pool = arguments.deployed(name, self._life.pools)
        if count < 1:
            raise ValueError(f"function {name!r}: count={count} is below 1")
        checks.whole(at_least=1, count=count)
        at = self.now if at is None else arguments.instant(name, at, self._clock)
        self._life.fleet.warm_at(at, pool, count)

    def slots(self, name: str, *, concurrent: int) -> int:
        pool = arguments.deployed(name, self._life.pools)
        spec = pool.spec
        most = math.inf if spec.max_concurrency is None else spec.max_concurrency
        return int(min(concurrent + spec.provisioned + pool.prewarmed, most))

    def retry(self, invocation: Invocation, *, limit: int | None = None) -> Invocation:
        call = arguments.own(invocation, self._life.pools)
        policy = call.pool.spec.retry
        args = arguments.again(call, policy.limit if limit is None else limit)
        if self._closed:
            raise arguments.closed_error(call.function)
        chance = call.pool.jitter.draw() if policy.jitter else 1.0
        wait = policy.wait(call.attempt + 1, chance=chance)
        return self._life.submit(
            call.pool,
            call.program,
            args,
            self.now + wait if wait else None,
            call.work,
            call.tag,
            call.nbytes,
            attempt=call.attempt + 1,
            key=call.key,
        )

    def cancel(self, invocation: Invocation) -> None:
        call = arguments.own(invocation, self._life.pools)
        if call.number in self._life.departures.pending:
            self._life.departures.end(call, "cancelled", self.now)

    def next_completion(self, *, until: float = math.inf) -> Invocation | None:
        if math.isnan(until):
            raise ValueError(f"until={until} is not a number: an instant in seconds, or math.inf")
        return self._time.next(until)

    def bill(self, prices: PriceSheet) -> Bill:
        return self._meters.bill(prices, until=self.now)

    def close(self, *, patience: float = math.inf) -> None:
        if self._closed:
            return
        self._closed = True
        self._life.end_all()
        self._bodies.close(patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.close(patience=math.inf if kind is None else _PATIENCE)
