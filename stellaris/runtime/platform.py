"""The simulated serverless platform: invocations in containers, on a clock that jumps or one that is waited for."""

import copy
import heapq
import math
import os
from collections import Counter
from collections.abc import Callable, Mapping, Sequence, Set
from queue import Empty, SimpleQueue
from typing import Any

from stellaris.runtime.agenda import ACQUIRE, END, EXPIRE, START, Agenda
from stellaris.runtime.billing import Bill, PriceSheet, bill
from stellaris.runtime.bodies import Bodies
from stellaris.runtime.checkpoint import CheckpointError, closure_name
from stellaris.runtime.clock import VirtualClock, WallClock
from stellaris.runtime.containers import Fleet, Pool
from stellaris.runtime.delays import Measured
from stellaris.runtime.faults import Fate, Faults, Spells, StoreFaults, StoreRefusedError
from stellaris.runtime.functions import Container, Function, FunctionError, FunctionSpec, Invocation, Transfer
from stellaris.runtime.placement import NOWHERE, Cluster, Node, Placement
from stellaris.runtime.replay import Recorded, Replay
from stellaris.runtime.store import Store, has_references, size, values_among
from stellaris.runtime.trace import Trace

#: More events than this at one instant are a loop that costs no time.
_MAX_EVENTS_AT_ONE_INSTANT = 100_000
#: Rows that the trace takes over at a time.
_ROWS_AT_ONCE = 1 << 8
#: Bare callables whose `Function` is remembered.
_REMEMBERED = 256
#: Attributes that no checkpoint holds: threads, queues of theirs, and what a platform is made with.
_NOT_SAVED = ("_bodies", "_done", "_on_event", "_hang_after", "_programs")
#: Endings after which `retry` tries again: what raised would raise again.
RETRIABLE = ("timed_out", "crashed", "throttled", "lost")
#: Seconds that closing waits for bodies that run, once an exception has ended the `with` block: somebody waits.
_PATIENCE = 2.0


class SimulatedPlatform:
    """Runs functions as a serverless platform would, in virtual or in wall time.

    In virtual time everything that costs time is drawn from the functions' delays, bodies run on a pool of threads, and
    completions are handed out in the order `(time, phase, invocation number)`: the same seed gives the same run, bit
    for bit, whatever the threads or the machine's load. On the wall clock the same delays are really waited for.

    Args:
      functions: the deployment, by name.
      clock: `"virtual"` or `"wall"`.
      seed: of every draw; each function and purpose has a stream of its own.
      threads: that run bodies in virtual time; by default as many as there are processors. A body that has shown to
        take less than a hand-over between threads runs on the calling thread, unless its function has a time-out. On
        the wall clock every body that has started has a thread of its own: waiting for one must not look like running.
      keep_versions: how many of the newest versions of a name the store keeps beside those that are held.
      store_capacity: bytes that the store holds at most.
      nodes: machines that containers are placed on; without any there is room for everything.
      placement: which of the nodes with room gets a container, the first (`"pack"`) or the emptiest (`"spread"`).
      max_concurrency: invocations at once at most, of all functions together; None for no limit.
      faults: what goes wrong, by function.
      store_faults: what goes wrong with the store.
      replay: a recorded run, whose delays and faults its invocations meet instead.
      hang_after: seconds of real time after which a body that has not returned is given up on. Its invocation then ends
        by its time-out, or as `hung` if it has none.
      on_event: called with the platform after every event, to look and not to touch.

    Raises:
      LookupError: if there are faults for a function that is not deployed.
      TypeError: if a function's deployment is no `FunctionSpec`, its faults no `Faults`, or `replay` no `Replay`.
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
        replay: Replay | None = None,
        hang_after: float = 600.0,
        on_event: "Callable[[SimulatedPlatform], None] | None" = None,
    ) -> None:
        faults = dict(faults or {})
        for name, spec in functions.items():
            if not isinstance(spec, FunctionSpec):
                raise TypeError(f"functions={{{name!r}: {spec!r}}}: expected FunctionSpec(compute=...)")
        for name, fault in faults.items():
            if not isinstance(fault, Faults):
                raise TypeError(f"faults={{{name!r}: {fault!r}}}: expected Faults(...)")
        if replay is not None and not isinstance(replay, Replay):
            raise TypeError(f"replay={replay!r}: expected Replay(trace)")
        if not 0 <= seed < 2**63:
            raise ValueError(f"seed={seed}: expected 0 <= seed < 2**63")
        if keep_versions < 1:
            raise ValueError(f"keep_versions={keep_versions} is below 1: the newest version must stay")
        if not store_capacity > 0:
            raise ValueError(f"store_capacity={store_capacity} is not positive: bytes, or math.inf")
        if clock not in ("virtual", "wall"):
            raise ValueError(f"clock={clock!r} is neither 'virtual' nor 'wall'")
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads} is below 1: bodies need a thread to run on")
        if not hang_after > 0:
            raise ValueError(f"hang_after={hang_after} is not positive: no body could ever return")
        if max_concurrency is not None and max_concurrency < 1:
            raise ValueError(f"max_concurrency={max_concurrency} is below 1: nothing could ever run")
        if faults.keys() - functions.keys():
            unknown = sorted(faults.keys() - functions.keys())
            raise LookupError(f"faults={unknown}: no such function is deployed: the platform has {sorted(functions)}")
        if replay is not None and (faults or store_faults):
            raise ValueError("replay and faults: what goes wrong in a replay is what did in the recorded run")
        self._functions, self._seed, self._virtual = dict(functions), seed, clock == "virtual"
        self._clock: Any = VirtualClock() if self._virtual else WallClock()
        self._hang_after, self._on_event = hang_after, on_event
        self._agenda, self._invoked = Agenda(), 0
        self._pending: dict[int, Invocation] = {}
        self._replay, self._submitted = replay, Counter[str]()
        self._undelivered = 0  # messages under way whose invocation has ended
        self._referring: set[int] = set()  # pending invocations whose arguments refer to the store
        self._waiting, self._serving = 0, False  # invocations that wait for room; whether they will look for it
        self._done: SimpleQueue[Invocation] = SimpleQueue()
        self._programs: dict[Callable[..., Any], Function] = {}
        self._events_now = 0
        self._closed = False
        self.trace = Trace()
        self._rows = self.trace.newest
        self.store = Store(keep=keep_versions, capacity=store_capacity, on_stored=self._stored)
        count = (threads or os.cpu_count() or 1) if self._virtual else None
        self._bodies = Bodies(count, seed, batching=self._virtual, hang_after=hang_after)
        self._pools = {name: Pool(name, spec, seed) for name, spec in functions.items()}
        self._fates = {name: Fate(name, fault, seed) for name, fault in faults.items()}
        self._fleet = Fleet(
            *(self._pools, Cluster(nodes, placement), max_concurrency),
            agenda=self._agenda,
            trace=self.trace,
            seed=seed,
            lifetimes={name: fault.lifetime for name, fault in faults.items() if fault.lifetime is not None},
            on_room=self._wake,
            on_lost=self._crash,
        )
        self._slow = self._refusing = None
        if store_faults is not None:
            self._slow = (Spells(store_faults.slow, seed, "store/slow"), store_faults.slow_factor)
            self._refusing = Spells(store_faults.refuse, seed, "store/refuse")
        for name, fault in faults.items():
            for instant in fault.lose_containers_at:
                self._agenda.add(instant, EXPIRE, -1, self._lose_newest, name)
        self._fleet.provision(self.now)

    # ---- what a system calls ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the start."""
        seconds: float = self._clock.now
        return seconds

    @property
    def functions(self) -> Mapping[str, FunctionSpec]:
        """The deployment, by name."""
        return self._functions

    def invoke(
        self,
        name: str,
        function: Function | Callable[..., Any],
        *args: Any,
        at: float | None = None,
        work: float = 1.0,
        tag: Any = None,
    ) -> Invocation:
        """Submits one call; it starts when a container is there, during `next_completion`.

        Args:
          name: of the deployed function, which says what the call costs.
          function: the program, or its body.
          *args: values, or references of the store, which are resolved when the body starts.
          at: submit it at this instant instead of now. On the wall clock an instant that has passed is now.
          work: multiplies the drawn compute time.
          tag: the system's own, handed back with the completion.

        Returns:
          The pending invocation.

        Raises:
          LookupError: if no function of this name is deployed, or a fixed version is not in the store.
          TypeError: if `function` cannot be called, or an argument is of unknown size and its transfer costs time.
          ValueError: if `at` is past, `work` is negative, or sending the result costs time and the program does not
            declare its size.
          RuntimeError: if the platform is closed.
        """
        if name not in self._functions:
            raise LookupError(f"no function {name!r} is deployed: the platform has {sorted(self._functions)}")
        if not 0 <= work < math.inf:
            raise ValueError(f"function {name!r}: work={work} is negative or not finite")
        if at is not None:
            at = self._instant(name, at)
        if not isinstance(function, Function):
            function = self._program(function)
        return self._submit(name, function, args, at, work, tag)

    def prewarm(self, name: str, count: int = 1, *, at: float | None = None) -> None:
        """Makes containers ahead of the invocations that will want them, as far as there is room.

        Each takes a cold start, is then idle, and expires like any other. See `slots` for how many there may be.

        Args:
          name: of the function.
          count: of the containers.
          at: make them at this instant instead of now.

        Raises:
          LookupError: if no function of this name is deployed.
          ValueError: if `count` is below 1, or `at` is past.
        """
        if name not in self._functions:
            raise LookupError(f"no function {name!r} is deployed: the platform has {sorted(self._functions)}")
        if count < 1:
            raise ValueError(f"function {name!r}: count={count} is below 1")
        at = self.now if at is None else self._instant(name, at)
        self._pools[name].prewarmed += count
        for _ in range(count):
            self._agenda.add(at, ACQUIRE, -1, self._fleet.warm, self._pools[name])

    def slots(self, name: str, *, concurrent: int) -> int:
        """How many slots the containers of a function can have, as far as is known now: each is below that number.

        What bodies work on in slots, such as environments, is made for so many.

        Args:
          name: of the function.
          concurrent: invocations of it that there are at once, at most.

        Returns:
          Those that run at once, and those that are kept warm or were made ahead meanwhile; not more than the
          function's `max_concurrency`. On the wall clock a killed body keeps its slot until it ends, so a function with
          a time-out may need as many again.
        """
        spec, pool = self._functions[name], self._pools[name]
        most = math.inf if spec.max_concurrency is None else spec.max_concurrency
        slots = int(min(concurrent + spec.provisioned + pool.prewarmed, most))
        return slots if self._virtual or spec.timeout is None else 2 * slots

    def retry(self, invocation: Invocation, *, limit: int | None = None) -> Invocation:
        """Submits an invocation that did not complete anew, after a wait, as its function's `Retry` says.

        It is the same piece of work, under the same key: the first attempt may have had its effects, and its completion
        may yet arrive.

        Args:
          invocation: one that was handed out as timed out, crashed, throttled or lost.
          limit: attempts at most; by default the function's.

        Returns:
          The new pending invocation, with a new number, and one attempt more.

        Raises:
          FunctionError: if its body raised, which trying again does not mend, or it has used its attempts.
          LookupError: if it referred to a fixed version that the store keeps no longer.
          ValueError: if it has not ended, completed or was cancelled, or is another platform's.
        """
        self._check_own(invocation)
        i, policy = invocation, self._functions[invocation.function].retry
        if i.status in ("pending", "running", "completed", "cancelled"):
            raise ValueError(
                f"function {i.function!r}, invocation {i.number} is {i.status}: only what failed is retried"
            )
        if i.status not in RETRIABLE or i.attempt >= (policy.limit if limit is None else limit) or i.args is None:
            raise FunctionError(i) from i.error
        chance = self._pools[i.function].jitter.draw() if policy.jitter else 1.0
        wait = policy.wait(i.attempt + 1, chance=chance)
        at = self.now + wait if wait else None
        return self._submit(i.function, i.program, i.args, at, i.work, i.tag, attempt=i.attempt + 1, key=i.key)

    def cancel(self, invocation: Invocation) -> None:
        """Ends an invocation that is no longer wanted, and the container that it has; it is not handed out.

        What has ended already is left as it is.

        Args:
          invocation: a pending or running one.

        Raises:
          ValueError: if it is another platform's.
        """
        self._check_own(invocation)
        if invocation.number in self._pending:
            self._leave(invocation, "cancelled", self.now)

    def next_completion(self, *, until: float = math.inf) -> Invocation | None:
        """Moves time to the next invocation that ends, well or badly, and hands it out.

        A completion whose message was duplicated is handed out twice, the second time as another object with the same
        number and key.

        Args:
          until: an instant beyond which not to look.

        Returns:
          The invocation, or None if nothing is pending or nothing ends by `until`, which is then now.

        Raises:
          RuntimeError: if events at one instant never end, or what is pending waits for room that nothing will free.
          ValueError: if `until` is not a number.
        """
        if math.isnan(until):
            raise ValueError(f"until={until} is not a number: an instant in seconds, or math.inf")
        return self._next_virtual(until) if self._virtual else self._next_on_the_wall(until)

    def bill(self, prices: PriceSheet) -> Bill:
        """What the run has cost so far under a price sheet."""
        return bill(self.trace, prices, until=self.now, functions=self._functions)

    def close(self, *, patience: float = math.inf) -> None:
        """Ends everything: what is pending is cancelled, containers end, threads stop. Closing twice does nothing.

        Args:
          patience: seconds of real time for which bodies that run in virtual time are waited for, at most `hang_after`.
            A `with` block that an exception ends waits for two.
        """
        if self._closed:
            return
        self._closed = True
        now = self.now
        for invocation in list(self._pending.values()):
            self._finish(invocation, "cancelled", now)
        self._fleet.end_all(now)
        self._agenda.clear()
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
        self._settle()
        for container in self._pools[name].live.values():
            container.state, container.initialised = None, False

    def save_state(self, *, known: Set[int] = frozenset()) -> dict[str, Any]:
        """What `restore_state` needs to make another platform go on from here; see `checkpoint.Checkpoints`.

        Bodies that have started are run to their end.

        Args:
          known: identities of programs that need not be saved.

        Raises:
          CheckpointError: if the clock is the wall, or a pending invocation's program is a closure.
        """
        if not self._virtual:
            raise CheckpointError("clock='wall': only a run in virtual time can go on where it was saved")
        for invocation in self._pending.values():
            program = invocation.program
            for part in ("body", "init", "batched", "upload"):
                closure = closure_name(getattr(program, part))
                if closure is not None and id(program) not in known:
                    raise CheckpointError(
                        f"function {invocation.function!r}, invocation {invocation.number}: its {part} {closure} is a "
                        "closure and cannot be saved: make it a function of a module, or its program an external"
                    )
        self._settle()
        self.trace.settle()
        return {name: value for name, value in vars(self).items() if name not in _NOT_SAVED}

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes on where a platform was when it was saved.

        Raises:
          CheckpointError: if that had other functions, or another seed.
        """
        for name in ("_functions", "_seed"):
            if state[name] != getattr(self, name):
                what = name.lstrip("_")
                raise CheckpointError(f"{what}: the platform has {getattr(self, name)}, the checkpoint {state[name]}")
        vars(self).update(state)

    def _settle(self) -> None:
        """Runs the bodies that have started to their end."""
        for invocation in self._pending.values():
            if invocation.task is not None:
                self._bodies.settle(invocation)

    # ---- time ---------------------------------------------------------------------------------------------------

    def _next_virtual(self, until: float) -> Invocation | None:
        agenda, clock, on_event, pending = self._agenda, self._clock, self._on_event, self._pending
        bounded = until < math.inf
        if len(self._rows) > _ROWS_AT_ONCE:
            self.trace.settle()
        while pending or self._undelivered or (bounded and agenda):
            try:
                event = agenda.pop()
            except IndexError:
                break
            time = event[0]
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
            ended: Invocation | None = event[4](event[5], time)
            if on_event is not None:
                on_event(self)
            if ended is not None:
                return ended
        if bounded:
            clock.now = max(clock.now, until)
        elif pending or self._undelivered:
            raise self._deadlock()
        return None

    def _next_on_the_wall(self, until: float) -> Invocation | None:
        while self._pending or self._undelivered or until < math.inf:
            self._schedule_done_bodies()
            instant = self._agenda.next_time
            if instant == until == math.inf and not self._agenda:
                raise self._deadlock()  # what runs has its end in the agenda
            interruption = self._clock.reach(min(instant, until), self._done)
            if interruption is not None:
                self._schedule_end(interruption)
                continue
            if instant > until:
                return None
            time, _, _, _, handler, subject = self._agenda.pop()
            ended: Invocation | None = handler(subject, time)
            if self._on_event is not None:
                self._on_event(self)
            if ended is not None:
                return ended
        return None

    # ---- events -------------------------------------------------------------------------------------------------

    def _submit(
        self,
        name: str,
        program: Function,
        args: tuple[Any, ...],
        at: float | None,
        work: float,
        tag: Any,
        *,
        attempt: int = 1,
        key: int | None = None,
    ) -> Invocation:
        if self._closed:
            raise RuntimeError(f"invoke({name!r}) after close(): a platform runs once")
        number, now = self._invoked, self._clock.now
        pool = self._pools[name]
        nbytes = self._carried(name, pool.spec.transfer, program, args) if pool.spec.transfer is not None else 0
        if args and has_references(args):
            self.store.pin(args, invocation=number)
            self._referring.add(number)
        self._invoked += 1
        submitted = now if at is None else at
        key = number if key is None else key
        invocation = Invocation(number, name, program, args, work, tag, attempt, submitted, key, pool, nbytes)
        if name in self._fates:
            invocation.fate = self._fates[name].next_attempt()
        if self._replay is not None:
            invocation.recorded = self._replay.get(name, self._submitted[name])
            self._submitted[name] += 1
        self._pending[number] = invocation
        if at is None:
            looks = self._submitted_at(invocation, now)
            self._agenda.add(looks, ACQUIRE, number, self._acquire, invocation)
        else:
            self._agenda.add(at, ACQUIRE, number, self._arrive, invocation)
        return invocation

    def _arrive(self, invocation: Invocation, now: float) -> Invocation | None:
        """An invocation's time has come."""
        if invocation.number not in self._pending:
            return None  # cancelled before
        looks = self._submitted_at(invocation, now)
        if looks == now:
            return self._acquire(invocation, now)  # as its event would: it has the same time, phase and number
        self._agenda.add(looks, ACQUIRE, invocation.number, self._acquire, invocation)
        return None

    def _submitted_at(self, invocation: Invocation, now: float) -> float:
        """Notes that an invocation is submitted; returns when it looks for a container."""
        name, number, invocation.arrived = invocation.function, invocation.number, True
        self._rows.append((now, "submitted", name, number, -1, invocation.key))
        looks: float = now + invocation.pool.queueing.draw()
        recorded = invocation.recorded
        if recorded is not None and recorded.ending == "throttled":
            invocation.fate = frozenset({"throttle"})
            return recorded.later("ended", after="submitted", at=now)
        if recorded is not None:
            looks = recorded.later("acquired", after="submitted", at=now, otherwise=looks)
        return looks

    def _acquire(self, invocation: Invocation, now: float) -> Invocation | None:
        """Finds a container, and has the invocation start once it is there; otherwise it waits, or is rejected."""
        number, fate = invocation.number, invocation.fate
        if number not in self._pending:
            return None  # cancelled before
        if fate and "throttle" in fate:
            return self._refuse(invocation, now)
        pool: Pool = invocation.pool
        # Who has waited for longer comes first.
        found = None if pool.waiting else self._fleet.acquire(invocation, now)
        if found is not None:
            self._take(invocation, *found, now)
            return None
        if pool.spec.overflow == "reject":
            return self._refuse(invocation, now)
        heapq.heappush(pool.waiting, (invocation.submitted, number, invocation))
        self._waiting += 1
        return None

    def _take(self, invocation: Invocation, container: Container, wait: float, now: float) -> None:
        """Has an invocation start once its container is there."""
        number, recorded, start = invocation.number, invocation.recorded, now + wait
        invocation.container = container
        self._rows.append((now, "acquired", invocation.function, number, container.number, invocation.cold))
        if recorded is not None and math.isnan(recorded.started) and recorded.ending != "cancelled":
            start = recorded.later("ended", after="acquired", at=now)  # it crashed before it started
            self._end_at(start, invocation, recorded.ending)
        elif recorded is not None:
            start = recorded.later("started", after="acquired", at=now, otherwise=start)
        self._agenda.add(start, START, number, self._start, invocation)

    def _wake(self, now: float) -> None:
        """There may be room: those that wait look for it, once what ends at this instant has ended."""
        if self._waiting and not self._serving:
            self._serving = True
            self._agenda.add(now, ACQUIRE, -1, self._serve, None)

    def _serve(self, _: None, now: float) -> None:
        """Starts queued invocations in order of submission, as far as there is room.

        If a function's oldest one does not fit, that function's later ones wait, too (head-of-line blocking); other
        functions are still served.
        """
        self._serving = False
        waiting = [pool for pool in self._pools.values() if pool.waiting]
        while waiting:
            pool = min(waiting, key=lambda pool: pool.waiting[0][:2])
            invocation = pool.waiting[0][2]
            gone = invocation.number not in self._pending
            found = None if gone or not self._fleet.may_have_room(pool) else self._fleet.acquire(invocation, now)
            if found is not None:
                self._take(invocation, *found, now)
            if gone or found is not None:
                heapq.heappop(pool.waiting)
                self._waiting -= 1
            if not pool.waiting or not (gone or found is not None):
                waiting.remove(pool)

    def _refuse(self, invocation: Invocation, now: float) -> Invocation | None:
        """An attempt is throttled."""
        self._finish(invocation, "throttled", now)
        return invocation

    def _start(self, invocation: Invocation, now: float) -> None:
        """Snapshots the arguments, draws the duration, and sends the body off."""
        name, number, container = invocation.function, invocation.number, invocation.container
        if number not in self._pending:
            return  # cancelled, or its container lost, before it started
        assert container is not None
        spec, fate, transfer = invocation.pool.spec, invocation.fate or (), 0.0
        invocation.status, invocation.started = "running", now
        self._rows.append((now, "started", name, number, container.number, 0.0))
        slow_down = 1.0 if container.place is NOWHERE else self._fleet.begin(container)
        if "crash_before" in fate:
            self._end_at(now, invocation, "crashed")
            return
        try:
            if invocation.args or spec.transfer is not None:
                transfer = self._fetch(invocation, spec, now)
        except (LookupError, StoreRefusedError) as error:
            invocation.error = error
            self._end_at(now, invocation, "failed" if isinstance(error, LookupError) else "crashed")
            return
        recorded = invocation.recorded
        if recorded is not None and recorded.ending != "cancelled":
            self._repeat(invocation, recorded, spec, now)
            return
        if "straggle" in fate:
            slow_down *= self._fates[name].straggler_factor()
        if not isinstance(spec.compute, Measured):
            duration = transfer + invocation.work * invocation.pool.compute.draw() * slow_down
        elif self._virtual:
            duration = transfer + spec.compute.factor * invocation.work * self._bodies.measure(invocation) * slow_down
        else:
            duration = transfer  # and then as long as it takes
        ending = "completed"
        if "crash_during" in fate:
            duration, ending = duration * self._fates[name].moment(), "crashed"
        if spec.timeout is not None and duration > spec.timeout:
            duration, ending = spec.timeout, "timed_out"
        if ending != "completed":
            # It will be killed: what it would have computed is never seen, so it is not computed.
            invocation.task = None
            self._end_at(now + duration, invocation, ending)
            return
        due = now + duration
        if recorded is not None:
            due = recorded.later("ended", after="started", at=now, otherwise=due)
        self._run(invocation, spec, due, now)

    def _repeat(self, invocation: Invocation, recorded: Recorded, spec: FunctionSpec, now: float) -> None:
        """Has an invocation end as it did in the recorded run."""
        due = recorded.later("ended", after="started", at=now)
        if recorded.ending in ("completed", "failed", "lost"):
            self._run(invocation, spec, due, now)
        else:
            self._end_at(due, invocation, recorded.ending)

    def _run(self, invocation: Invocation, spec: FunctionSpec, due: float, now: float) -> None:
        """Sends a body off that is to complete."""
        invocation.finished = due  # on the wall clock its body may take longer
        if self._virtual:
            if invocation.task is None:
                self._bodies.start(invocation, trusted=spec.timeout is None)
            self._complete_at(due, invocation)
        else:
            self._bodies.start(invocation, trusted=False, on_done=lambda: self._done.put(invocation))
            limit, ending = (self._hang_after, "hung") if spec.timeout is None else (spec.timeout, "timed_out")
            self._end_at(max(now + limit, due), invocation, ending)

    def _fetch(self, invocation: Invocation, spec: FunctionSpec, now: float) -> float:
        """Resolves an invocation's arguments; returns the seconds to fetch them and to send its result."""
        number, args = invocation.number, invocation.args or ()
        if number in self._referring:
            if self._refusing is not None and self._refusing.now(now):
                raise StoreRefusedError(f"the store refused to answer invocation {number} at {now:.6g} s")
            invocation.resolved = self.store.resolve(args, invocation=number, function=invocation.function)
            fetched = self.store.fetched(number)
            self._rows.append((now, "fetched", invocation.function, number, -1, fetched))
        else:
            invocation.resolved = args
        if spec.transfer is None:
            return 0.0
        seconds: float = invocation.pool.latency.draw()
        if spec.transfer.bandwidth < math.inf:
            download = invocation.nbytes + self.store.fetched(number)
            upload = invocation.program.uploads(invocation.resolved)
            seconds += (download + upload) / spec.transfer.bandwidth
        if self._slow is not None and self._slow[0].now(now):
            seconds *= self._slow[1]
        return seconds

    def _complete(self, invocation: Invocation, now: float) -> Invocation | None:
        """An invocation is due: its body has returned, or raised, or hangs; then its message may be lost."""
        if invocation.number not in self._pending:
            return None  # killed already
        status, fate, limit = "completed", invocation.fate, invocation.pool.spec.timeout
        outcome = self._bodies.finish(invocation)
        if outcome is not None:
            invocation.value, invocation.error = outcome
            status = "completed" if invocation.error is None else "failed"
        elif limit is not None and invocation.started is not None:
            self._end_at(invocation.started + limit, invocation, "timed_out")
            return None
        else:
            status = "hung"
        if status == "completed" and (fate or invocation.recorded is not None):
            if fate and "crash_after" in fate:
                return self._end((invocation, "crashed"), now)
            noticed, again = self._messages(invocation, now)
            if again is not None:
                twin = copy.copy(invocation)
                twin.status, twin.finished, twin.args, twin.resolved, twin.task = "completed", now, None, None, None
                self._deliver_at(again, twin, "redelivered")
            if noticed is not None:
                self._deliver_at(noticed, invocation, "noticed")
                self._end((invocation, "lost"), now)
                return None
        self._leave(invocation, status, now)
        return invocation

    def _end(self, ending: tuple[Invocation, str], now: float) -> Invocation | None:
        """Hands out an invocation that ends, and frees its container."""
        invocation, status = ending
        if invocation.number not in self._pending:
            return None  # killed already, or completed before its time-out
        self._leave(invocation, status, now)
        return invocation

    def _leave(self, invocation: Invocation, status: str, now: float) -> None:
        """An invocation ends, and its container is free or ends with it."""
        container = invocation.container
        dies = status in ("timed_out", "crashed", "hung", "cancelled")
        if dies and container is not None and invocation.status == "running":
            container.occupied = not self._bodies.drop(invocation)
        self._finish(invocation, status, now)
        if container is not None:
            self._fleet.release(container, now, started=invocation.started is not None, dies=dies)

    def _messages(self, invocation: Invocation, now: float) -> tuple[float | None, float | None]:
        """When the loss of an invocation's message will be noticed, and when its duplicate comes."""
        fate, name, recorded = invocation.fate or (), invocation.function, invocation.recorded
        if recorded is not None:
            times = (recorded.later(event, after="ended", at=now) for event in ("noticed", "redelivered"))
            noticed, again = (None if math.isnan(time) else time for time in times)
            return noticed, again
        again = now + self._fates[name].duplicate_after() if "duplicate" in fate else None
        noticed = now + self._fates[name].notice_after() if "lose" in fate else None
        return noticed, again

    def _finish(self, invocation: Invocation, status: str, now: float) -> None:
        """The one place where an invocation ends."""
        number = invocation.number
        del self._pending[number]
        invocation.status, invocation.finished = status, now
        invocation.resolved = invocation.task = None
        if status != "completed":
            invocation.value = None
            if status not in RETRIABLE:
                invocation.args = None
        else:
            invocation.args = None
        if number in self._referring:
            self._referring.discard(number)
            self.store.release(number)
        if invocation.arrived:
            container = invocation.container
            number_there = -1 if container is None else container.number
            self._rows.append((now, status, invocation.function, number, number_there, 0.0))

    def _deliver(self, message: tuple[Invocation, str], now: float) -> Invocation:
        """Hands out what ended before: a duplicate, or an invocation whose message was lost."""
        invocation, event = message
        self._undelivered -= 1
        self._rows.append((now, event, invocation.function, invocation.number, -1, 0.0))
        return invocation

    def _complete_at(self, time: float, invocation: Invocation) -> None:
        self._agenda.add(time, END, invocation.number, self._complete, invocation)

    def _end_at(self, time: float, invocation: Invocation, status: str) -> None:
        self._agenda.add(time, END, invocation.number, self._end, (invocation, status))

    def _deliver_at(self, time: float, invocation: Invocation, event: str) -> None:
        self._undelivered += 1
        self._agenda.add(time, END, invocation.number, self._deliver, (invocation, event))

    def _deadlock(self) -> RuntimeError:
        waiting = {name: len(pool.waiting) for name, pool in self._pools.items() if pool.waiting}
        return RuntimeError(f"invocations of {waiting} wait for room that nothing will ever free: raise a limit")

    def _crash(self, invocation: Invocation, now: float) -> Invocation | None:
        return self._end((invocation, "crashed"), now)

    def _lose_newest(self, name: str, now: float) -> Invocation | None:
        live = self._pools[name].live
        return self._fleet.lose(live[max(live)], now) if live else None

    # ---- arguments ----------------------------------------------------------------------------------------------

    def _instant(self, name: str, at: float) -> float:
        """When something is to happen that was asked for; on the wall clock what has passed is now."""
        now = self.now
        if not (now if self._virtual else 0.0) <= at < math.inf:
            raise ValueError(f"function {name!r}: at={at} is past (now is {now:.6g}) or not finite")
        return max(at, now)

    def _check_own(self, invocation: Invocation) -> None:
        if invocation.pool is not self._pools.get(invocation.function):
            raise ValueError(
                f"function {invocation.function!r}, invocation {invocation.number} belongs to another platform"
            )

    def _carried(self, name: str, transfer: Transfer, program: Function, args: tuple[Any, ...]) -> int:
        """Bytes of the arguments that are passed by value, if carrying them costs time."""
        if math.isinf(transfer.bandwidth):
            return 0
        if program.upload is None:
            raise ValueError(
                f"function {name!r} has {transfer}: say how many bytes its program returns, "
                "as in Function(body, upload=4096)"
            )
        try:
            return size(values_among(args))
        except TypeError as error:
            raise TypeError(f"function {name!r} has {transfer}, and among its arguments {error}") from None

    # ---- bodies -------------------------------------------------------------------------------------------------

    def _program(self, body: Callable[..., Any]) -> Function:
        """The program of a bare body; the same one for the same body, as long as there are not too many."""
        program = self._programs.get(body)
        if program is None:
            if len(self._programs) >= _REMEMBERED:
                self._programs.clear()
            program = self._programs[body] = Function(body)
        return program

    def _schedule_done_bodies(self) -> None:
        while True:
            try:
                self._schedule_end(self._done.get_nowait())
            except Empty:
                return

    def _schedule_end(self, invocation: Invocation) -> None:
        """On the wall clock an invocation ends when its delay is over and its body is done."""
        container = invocation.container
        if container is not None and container.occupied and invocation.number not in self._pending:
            self._fleet.vacate(container)  # it was killed before, and its body has ended only now
        if invocation.number not in self._pending or invocation.finished is None:
            return
        due, compute = invocation.finished, self._functions[invocation.function].compute
        if isinstance(compute, Measured):
            due += compute.factor * invocation.work * invocation.task[0].seconds
        self._complete_at(max(self.now, due), invocation)

    def _stored(self, name: str, version: int, nbytes: int) -> None:
        self._rows.append((self.now, "stored", name, -1, -1, nbytes))
        if name:
            self._rows.append((self.now, "published", name, -1, -1, version))


def _standstill(instant: float) -> RuntimeError:
    return RuntimeError(
        f"more than {_MAX_EVENTS_AT_ONE_INSTANT} events at {instant} s: invocations that cost no time "
        "invoke one another; give a function a compute time above 0"
    )
