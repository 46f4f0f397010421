"""The simulated serverless platform: the contract's methods, over the life of calls and a driver of time."""

import math
import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from stellaris.configuration import described
from stellaris.runtime.billing import Bill, Meters
from stellaris.runtime.contract import Platform
from stellaris.runtime.functions import Function, FunctionSpec, Invocation
from stellaris.runtime.price_sheets import PriceSheet
from stellaris.runtime.resources import Node
from stellaris.runtime.simulated import arguments
from stellaris.runtime.simulated.bodies import Bodies
from stellaris.runtime.simulated.clock import Clock, VirtualClock, WallClock
from stellaris.runtime.simulated.deployment import Deployment
from stellaris.runtime.simulated.drivers import VirtualTime, WallTime
from stellaris.runtime.simulated.faults import Faults, StoreFaults
from stellaris.runtime.simulated.lifecycle import Lifecycle
from stellaris.runtime.simulated.placement import Placement
from stellaris.runtime.simulated.recorded import Recording
from stellaris.runtime.snapshots import CheckpointError
from stellaris.runtime.store import Store
from stellaris.runtime.trace import Trace
from stellaris.saved import part

#: Seconds to wait for running bodies when an exception has ended the `with` block, because the user waits to see it.
_PATIENCE = 2.0


@part(
    rebuilt=(
        "_deployment",
        "_seed",
        "_replay",
        "_programs",
        "_closed",
        "_bodies",
        "_clock",
        "_life",
        "_meters",
        "_time",
    )
)
class SimulatedPlatform(Platform):
    """Runs functions as a serverless platform would, in virtual or in wall time.

    In virtual time all durations are drawn from the functions' delays, bodies run on a pool of threads, and completions
    are handed out in the order `(time, phase, invocation number)`: the same seed gives the same run, bit for bit,
    whatever the number of threads or the load of the machine. On the wall clock the same delays are really waited for.

    Args:
      functions: the deployment, by name.
      clock: `"virtual"` or `"wall"`.
      seed: of every draw; each function and purpose has a stream of its own.
      threads: how many bodies run at once in virtual time; by default as many as there are processors. A body whose
        earlier runs took less time than a hand-over between threads runs on the calling thread, unless its function has
        a time-out. On the wall clock every body has a thread of its own, because to wait for a thread would take time
        that no delay accounts for; bodies of one program that start at the same instant, and have no time-out, share a
        call, and a thread.
      keep_versions: how many of the newest versions of a name the store keeps, beside those that invocations hold.
      store_capacity: the most bytes that the store holds.
      nodes: machines on which containers are placed; without any there is room for everything.
      placement: which of the nodes with room gets a container, the first (`"pack"`) or the emptiest (`"spread"`).
      max_concurrency: the most invocations at once, of all functions together; None for no limit.
      faults: what goes wrong, by function.
      store_faults: what goes wrong with the store.
      replay: a recorded run, whose delays and endings its invocations repeat.
      hang_after: seconds of real time after which a body that has not returned is given up on. Its invocation then ends
        at its time-out, or as `hung` if it has none.
      on_event: called with the platform after every event; it may look at everything, but change nothing.

    Raises:
      LookupError: if there are faults for a function that is not deployed.
      TypeError: if a function's deployment is no `FunctionSpec`, its faults no `Faults`, or `replay` no `Recording`.
      ValueError: if an argument is out of its range.

    Example:
      Two calls in a row: the first waits 0.3 s for its container, the second finds it warm.

      >>> from stellaris.runtime.delays import Constant
      >>> spec = FunctionSpec(compute=Constant(1.0), cold_start=Constant(0.3))
      >>> with SimulatedPlatform({"double": spec}) as platform:
      ...     for x in (1, 2):
      ...         _ = platform.invoke("double", lambda context, x: 2 * x, x)
      ...         done = platform.next_completion()
      ...         print(done.result(), done.cold, round(platform.now, 3))
      2 True 1.3
      4 False 2.3
    """

    def __init__(
        self,
        functions: Mapping[str, FunctionSpec],
        *,
        clock: str = "virtual",
        seed: int = 0,
        threads: int | None = None,
        keep_versions: int = 2,
        store_capacity: float = math.inf,
        nodes: Sequence[Node] = (),
        placement: Placement = "pack",
        max_concurrency: int | None = None,
        faults: Mapping[str, Faults] | None = None,
        store_faults: StoreFaults | None = None,
        replay: Recording | None = None,
        hang_after: float = 600.0,
        on_event: "Callable[[SimulatedPlatform], None] | None" = None,
    ) -> None:
        self._deployment = Deployment(
            functions=dict(functions),
            nodes=tuple(nodes),
            placement=placement,
            max_concurrency=max_concurrency,
            keep_versions=keep_versions,
            store_capacity=store_capacity,
            faults=dict(faults or {}),
            store_faults=store_faults,
        )
        arguments.check_options(
            clock=clock,
            seed=seed,
            threads=threads,
            hang_after=hang_after,
            replay=replay,
            faulty=bool(faults or store_faults),
        )
        self._seed = seed
        self._replay = replay
        self._programs = arguments.Programs()
        self._closed = False
        virtual = clock == "virtual"
        count = (threads or os.cpu_count() or 1) if virtual else None
        self._bodies = Bodies(count, seed, virtual=virtual, hang_after=hang_after)
        self._clock: Clock = VirtualClock() if virtual else WallClock()
        self._life = Lifecycle(self._deployment, replay, seed, self._clock, self._bodies, hang_after)
        self._meters = Meters(self._life.trace, self._deployment.functions)
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
        at = self.now if at is None else arguments.instant(name, at, self._clock)
        self._life.fleet.warm_at(at, pool, count)

    def slots(self, name: str, *, concurrent: int) -> int:
        pool = arguments.deployed(name, self._life.pools)
        spec = pool.spec
        most = math.inf if spec.max_concurrency is None else spec.max_concurrency
        slots = int(min(concurrent + spec.provisioned + pool.prewarmed, most))
        return slots if self._clock.virtual or spec.timeout is None else 2 * slots

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

    def __enter__(self) -> "SimulatedPlatform":
        return self

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        self.close(patience=math.inf if kind is None else _PATIENCE)

    # ---- checkpoints --------------------------------------------------------------------------------------------

    def reinitialise(self, name: str) -> None:
        """Has every container of a function make its state anew before its next body, as if it were a new one.

        Args:
          name: of the function.
        """
        self._life.settle()
        for container in self._life.pools[name].live.values():
            container.state = None
            container.initialised = False

    @property
    def configuration(self) -> Mapping[str, Any]:
        """All that decides what happens on it, as plain data: where this is another, a run cannot go on."""
        configuration: dict[str, Any] = described(self._deployment)
        return configuration | {
            "clock": "virtual" if self._clock.virtual else "wall",
            "seed": self._seed,
            "replay": None if self._replay is None else self._replay.digest,
        }

    def settle(self) -> None:
        """Runs bodies that have started to their end, so that what they will deliver can be saved.

        Raises:
          CheckpointError: if the clock is the wall.
        """
        if not self._clock.virtual:
            raise CheckpointError("clock='wall': only a run in virtual time can go on where it was saved")
        self._life.settle()
