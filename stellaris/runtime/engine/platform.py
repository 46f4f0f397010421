"""The base class of platforms: the methods of the contract, on top of the engine's calls, containers and time."""

import math
from collections.abc import Callable, Mapping
from typing import Any, Self

from stellaris._core import checks
from stellaris.runtime.contract import Platform
from stellaris.runtime.costs.billing import Bill, Meters
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.runtime.engine import arguments
from stellaris.runtime.engine.bodies import BodyRunner
from stellaris.runtime.engine.clock import Clock, VirtualClock, WallClock
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.drivers import VirtualTime, WallTime
from stellaris.runtime.engine.lifecycle import Lifecycle
from stellaris.runtime.engine.recorded import Recording
from stellaris.runtime.functions import Function, FunctionSpec, Invocation
from stellaris.runtime.store.store import Store
from stellaris.runtime.trace.trace import Trace

#: Seconds to wait for running bodies when an exception has ended the `with` block: few, because the user is waiting for
#: the traceback.
_PATIENCE = 2.0


class EnginePlatform(Platform):
    """The base class of platforms: the engine provides limits, queues, containers, retries, the trace and bills.

    `SimulatedPlatform`, `RayPlatform` and `DaskPlatform` are subclasses. To write another one, subclass `BodyRunner`,
    which runs the bodies, and this class, whose `__init__` is given a body runner; or, if containers are in other
    processes, `MessageBodies` and `ClusterPlatform`. All methods of the contract are inherited; override `close` (and
    call the inherited `close`) if the platform has other resources to release, and `slots` if a killed body may keep
    running in its slot. `stellaris.testing.PlatformContract` then tests the platform.

    Args:
      deployment: the functions and nodes, and the faults to simulate.
      clock: a `VirtualClock` or a `WallClock`.
      bodies: the body runner, which runs the body of every call that has started.
      seed: seed of every draw.
      replay: a recorded run to repeat, or None.
      hang_after: seconds of real time after which the engine gives up on a body that has not returned.
      store: the class of the store of versions, or a function that makes one.
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
        # The trace is the only record: bills are computed from it, so they cannot disagree with it.
        self._meters = Meters(self._life.trace, deployment.functions)
        self._time = self._driver(None if on_event is None else lambda: on_event(self))

    def _driver(self, on_event: Callable[[], None] | None) -> VirtualTime | WallTime:
        """Returns the driver that moves the clock."""
        # The clock's type decides, and not `virtual`, because each driver uses methods that only its clock has.
        if isinstance(self._clock, VirtualClock):
            return VirtualTime(self._life, self._clock, on_event)
        assert isinstance(self._clock, WallClock)
        return WallTime(self._life, self._clock, on_event)

    # ---- the methods of the contract ----------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """The seconds since the start of the run."""
        return self._clock.now

    @property
    def store(self) -> Store:
        """The store of published versions and objects that arguments can refer to."""
        self._check_outside("store")
        return self._life.transfers.store

    @property
    def trace(self) -> Trace:
        """The log of everything that happened; systems add events to it."""
        return self._life.trace

    @property
    def deployment(self) -> Deployment:
        """The deployed functions, the nodes and the faults."""
        return self._deployment

    @property
    def functions(self) -> Mapping[str, FunctionSpec]:
        """The deployed functions, by name."""
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
        self._check_outside("invoke")
        if not 0 <= work < math.inf:
            raise ValueError(f"function {name!r}: work={work} is negative or not finite: give a factor of 0 or more")
        if at is not None:
            at = arguments.instant(name, at, self._clock)
        if not isinstance(function, Function):
            function = self._programs.of(function)
        # Bytes are counted now, so that an argument of unknown size is refused here and not when the call starts.
        transfer = pool.spec.transfer
        nbytes = 0 if transfer is None else arguments.carried(name, transfer, function, args)
        # `close` is checked last, so that a wrong argument is reported even on a closed platform.
        if self._closed:
            raise arguments.closed_error(name)
        return self._life.submit(pool, function, args, at, work, tag, nbytes)

    def prewarm(self, name: str, count: int = 1, *, at: float | None = None) -> None:
        pool = arguments.deployed(name, self._life.pools)
        self._check_outside("prewarm")
        if count < 1:
            raise ValueError(f"function {name!r}: count={count} is below 1: give the number of containers")
        checks.whole(at_least=1, count=count)
        at = self.now if at is None else arguments.instant(name, at, self._clock)
        # `next_completion` would make the containers even now, and nothing would end them.
        if self._closed:
            raise arguments.closed_error(name, "prewarm")
        self._life.fleet.warm_at(at, pool, count)

    def slots(self, name: str, *, concurrent: int) -> int:
        pool = arguments.deployed(name, self._life.pools)
        spec = pool.spec
        # A new container takes the lowest free slot, so slots stay below the most containers that live at once.
        most = math.inf if spec.max_concurrency is None else spec.max_concurrency
        return int(min(concurrent + spec.provisioned + pool.prewarmed, most))

    def retry(self, invocation: Invocation, *, limit: int | None = None) -> Invocation:
        call = arguments.own(invocation, self._life.pools)
        self._check_outside("retry")
        policy = call.pool.spec.retry
        args = arguments.again(call, policy.limit if limit is None else limit)
        if self._closed:
            raise arguments.closed_error(call.function)
        # The jitter is drawn only if needed, and after all checks, so that a refused retry leaves the stream unchanged.
        chance = call.pool.jitter.draw() if policy.jitter else 1.0
        wait = policy.wait(call.attempt + 1, chance=chance)
        return self._life.submit(
            call.pool,
            call.program,
            args,
            # None stands for now: with None, the call skips the event of its arrival.
            self.now + wait if wait else None,
            call.work,
            call.tag,
            call.nbytes,
            attempt=call.attempt + 1,
            key=call.key,
        )

    def cancel(self, invocation: Invocation) -> None:
        call = arguments.own(invocation, self._life.pools)
        self._check_outside("cancel")
        if call.number in self._life.departures.pending:
            self._life.departures.end(call, "cancelled", self.now)

    def next_completion(self, *, until: float = math.inf) -> Invocation | None:
        # NaN is refused, because it compares false with every time, as if there were no bound.
        if math.isnan(until):
            raise ValueError(f"until={until} is not a number: give an instant in seconds, or math.inf")
        self._check_outside("next_completion")
        return self._time.next(until)

    def _check_outside(self, name: str) -> None:
        # Bodies run on threads, at real times that differ from run to run: an invocation by a body would have a virtual
        # time by chance, possibly before the body's own end, and a version that a body published would be read by
        # chance.
        if self._bodies.inside():
            raise RuntimeError(
                f"platform.{name} in a body: only the loop that runs the platform may use it; return what is to be "
                "done, and let the loop do it once the body has completed"
            )

    def bill(self, prices: PriceSheet) -> Bill:
        return self._meters.bill(prices, until=self.now)

    def close(self, *, patience: float = math.inf) -> None:
        if self._closed:
            return
        self._check_outside("close")
        self._closed = True
        # Calls end before bodies: a body that returns later then finds its call cancelled, and its result is dropped.
        self._life.end_all()
        self._bodies.close(patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.close(patience=math.inf if kind is None else _PATIENCE)
