"""The simulated serverless platform: invocations in containers, on a clock that jumps or one that is waited for."""

import heapq
import itertools
import math
import os
import time
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris.runtime.billing import Bill, PriceSheet, bill
from stellaris.runtime.clock import VirtualClock, WallClock
from stellaris.runtime.delays import Delay, Measured
from stellaris.runtime.functions import Container, Context, Function, FunctionError, FunctionSpec, Invocation
from stellaris.runtime.store import Store
from stellaris.runtime.trace import Trace

#: Phases of an instant, in order. What ends is handed out before anything starts, and a container ends last of all.
_END, _ACQUIRE, _START, _EXPIRE = range(4)
#: More events than this at one instant are a loop that costs no time.
_MAX_EVENTS_AT_ONE_INSTANT = 100_000


class _Event(NamedTuple):
    time: float
    phase: int
    number: int  # the invocation's, or for _EXPIRE the container's
    serial: int  # events that tie in all else keep their order
    subject: Any


class SimulatedPlatform:
    """Runs functions as a serverless platform would, in virtual or in wall time.

    In virtual time everything that costs time is drawn from the functions' delays, bodies run on a pool of threads, and
    completions are handed out in the order `(time, phase, invocation number)`: the same seed gives the same run, bit
    for bit, whatever the threads or the machine's load. On the wall clock the same delays are really waited for.

    Args:
      functions: the deployment, by name.
      clock: `"virtual"` or `"wall"`.
      seed: of every draw; each function and purpose has a stream of its own.
      threads: that run bodies; by default as many as there are processors.
      keep_versions: how many of the newest versions of a name the store keeps beside those that are held.

    Raises:
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
    ) -> None:
        if clock not in ("virtual", "wall"):
            raise ValueError(f"clock={clock!r} is neither 'virtual' nor 'wall'")
        if threads is not None and threads < 1:
            raise ValueError(f"threads={threads} is below 1: bodies need a thread to run on")
        self._functions = dict(functions)
        self._virtual = clock == "virtual"
        self._clock = VirtualClock() if self._virtual else WallClock()
        self._seed, self._root_key = seed, jax.random.key(seed)
        self._pool = ThreadPoolExecutor(threads or os.cpu_count() or 1, thread_name_prefix="stellaris")
        self._streams: dict[tuple[str, str], np.random.Generator] = {}
        self._programs: dict[Callable[..., Any], Function] = {}
        self._events: list[_Event] = []
        self._serial, self._numbers, self._containers = itertools.count(), itertools.count(), itertools.count()
        self._live: dict[str, dict[int, Container]] = {name: {} for name in functions}
        self._idle: dict[str, list[tuple[int, Container]]] = {name: [] for name in functions}
        self._free_slots: dict[str, list[int]] = {name: [] for name in functions}
        self._waiting: dict[str, list[tuple[float, int, Invocation]]] = {name: [] for name in functions}
        self._open: dict[Function, list[Invocation]] = {}
        self._pending: dict[int, Invocation] = {}
        self._done: SimpleQueue[Invocation] = SimpleQueue()
        self._instant, self._events_now = -1.0, 0
        self._closed = False
        self.trace = Trace()
        self.store = Store(
            keep=keep_versions,
            on_publish=lambda name, version: self.trace.append(self.now, "published", function=name, value=version),
        )

    # ---- what a system calls ------------------------------------------------------------------------------------

    @property
    def now(self) -> float:
        """Seconds since the start."""
        return self._clock.now

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
          at: submit it at this instant instead of now.
          work: multiplies the drawn compute time.
          tag: the system's own, handed back with the completion.

        Returns:
          The pending invocation.

        Raises:
          LookupError: if no function of this name is deployed, or a fixed version is not in the store.
          ValueError: if `at` is past, or `work` is negative.
          RuntimeError: if the platform is closed.
        """
        if name not in self._functions:
            raise LookupError(f"no function {name!r} is deployed: the platform has {sorted(self._functions)}")
        if not 0 <= work < math.inf:
            raise ValueError(f"work={work} is negative or not finite")
        if at is not None and not self.now <= at < math.inf:
            raise ValueError(f"at={at} is past (now is {self.now:.6g}) or not finite")
        if not isinstance(function, Function):
            function = self._programs.setdefault(function, Function(function))
        return self._submit(name, function, args, self.now if at is None else at, work, tag, attempt=1)

    def retry(self, invocation: Invocation, *, limit: int = 5) -> Invocation:
        """Submits an invocation that was killed anew: same work, same tag, a new number, one attempt more.

        Args:
          invocation: one that was handed out and did not complete.
          limit: attempts at most.

        Returns:
          The new pending invocation.

        Raises:
          FunctionError: if its body raised, which trying again does not mend, or it has used its attempts.
        """
        if invocation.status != "timed_out" or invocation.attempt >= limit or invocation.args is None:
            raise FunctionError(invocation) from invocation.error
        i = invocation
        return self._submit(i.function, i.program, i.args or (), self.now, i.work, i.tag, attempt=i.attempt + 1)

    def next_completion(self, *, until: float = math.inf) -> Invocation | None:
        """Moves time to the next invocation that ends, well or badly, and hands it out.

        Args:
          until: an instant beyond which not to look.

        Returns:
          The invocation, or None if nothing is pending or nothing ends by `until`, which is then now.

        Raises:
          RuntimeError: if events at one instant never end.
        """
        while self._pending:
            self._schedule_done_bodies()
            instant = self._events[0].time if self._events else math.inf
            interruption = self._clock.reach(min(instant, until), self._done)
            if interruption is not None:
                self._schedule_end(interruption)
                continue
            if instant > until:
                return None
            event = heapq.heappop(self._events)
            self._guard_against_standstill(event.time)
            ended = self._handle(event)
            if ended is not None:
                return ended
        return None

    def bill(self, prices: PriceSheet) -> Bill:
        """What the run has cost so far under a price sheet."""
        return bill(self.trace, prices, until=self.now)

    def close(self) -> None:
        """Ends everything: what is pending is cancelled, containers end, threads stop. Closing twice does nothing."""
        if self._closed:
            return
        self._closed = True
        now = self.now
        for invocation in list(self._pending.values()):
            self._finish(invocation, "cancelled", now)
        for containers in self._live.values():
            for container in list(containers.values()):
                self._end_container(container, now)
        self._events.clear()
        self._open.clear()
        self._pool.shutdown(wait=self._virtual, cancel_futures=True)

    def __enter__(self) -> "SimulatedPlatform":
        return self

    def __exit__(self, *exception: object) -> None:
        self.close()

    # ---- events -------------------------------------------------------------------------------------------------

    def _submit(
        self, name: str, program: Function, args: tuple[Any, ...], at: float, work: float, tag: Any, *, attempt: int
    ) -> Invocation:
        if self._closed:
            raise RuntimeError(f"invoke({name!r}) after close(): a platform runs once")
        number = next(self._numbers)
        self.store.pin(args, invocation=number)
        invocation = Invocation(number, name, program, args, work, tag, attempt, submitted=at)
        self._pending[number] = invocation
        self.trace.append(at, "submitted", function=name, invocation=number)
        self._push(at + self._draw(name, "queueing", self._functions[name].queueing), _ACQUIRE, number, invocation)
        return invocation

    def _handle(self, event: _Event) -> Invocation | None:
        if event.phase == _END:
            return self._end(event.subject, event.time)
        if event.phase == _ACQUIRE:
            self._acquire(event.subject, event.time)
        elif event.phase == _START:
            self._start(event.subject, event.time)
        else:
            container, idle_since = event.subject
            if container.alive and container.idle_since == idle_since:
                self._end_container(container, event.time)
        return None

    def _acquire(self, invocation: Invocation, now: float) -> None:
        """Finds a container: the newest idle one, or a new one; otherwise the invocation waits."""
        name, spec = invocation.function, self._functions[invocation.function]
        container, start = self._newest_idle(name, invocation.program), now
        if container is None:
            if spec.max_concurrency is not None and len(self._live[name]) >= spec.max_concurrency:
                unused = self._newest_idle(name, None)
                if unused is None:
                    heapq.heappush(self._waiting[name], (invocation.submitted, invocation.number, invocation))
                    return
                self._end_container(unused, now)  # its state is another program's; its place is needed
            container = self._create_container(invocation, now)
            invocation.cold = True
            start = now + self._draw(name, "cold_start", spec.cold_start)
        container.idle_since = None
        invocation.container = container
        self.trace.append(
            now,
            "acquired",
            function=name,
            invocation=invocation.number,
            container=container.number,
            value=invocation.cold,
        )
        self._push(start, _START, invocation.number, invocation)

    def _start(self, invocation: Invocation, now: float) -> None:
        """Snapshots the arguments, draws the duration, and sends the body off."""
        name, spec = invocation.function, self._functions[invocation.function]
        invocation.status, invocation.started = "running", now
        self.trace.append(
            now, "started", function=name, invocation=invocation.number, container=_number(invocation.container)
        )
        try:
            invocation.resolved = self.store.resolve(invocation.args or (), invocation=invocation.number, function=name)
        except LookupError as error:
            invocation.error = error
            self._push(now, _END, invocation.number, (invocation, "failed"))
            return
        transfer = self._transfer_time(name, spec, invocation.resolved)
        if isinstance(spec.compute, Measured) and not self._virtual:
            duration = transfer  # and then as long as it takes
        elif isinstance(spec.compute, Measured):
            duration = transfer + spec.compute.factor * invocation.work * self._run_and_measure(invocation, now)
        else:
            duration = transfer + invocation.work * self._draw(name, "compute", spec.compute)
        if spec.timeout is not None and duration > spec.timeout:
            # It will be killed: what it would have computed is never seen, so it is not computed.
            invocation.future = None
            self._push(now + spec.timeout, _END, invocation.number, (invocation, "timed_out"))
            return
        invocation.finished = now + duration  # due; on the wall clock its body may take longer
        if invocation.future is None:
            self._dispatch(invocation, now)
        if self._virtual:
            self._push(now + duration, _END, invocation.number, (invocation, "completed"))
        elif spec.timeout is not None:
            self._push(now + spec.timeout, _END, invocation.number, (invocation, "timed_out"))

    def _end(self, ending: tuple[Invocation, str], now: float) -> Invocation | None:
        """Hands out an invocation that ends, and frees its container."""
        invocation, status = ending
        if invocation.number not in self._pending:
            return None  # killed already, or completed before its time-out
        if status == "completed":
            status = self._collect(invocation)
        self._finish(invocation, status, now)
        container = invocation.container
        assert container is not None
        if status == "timed_out":
            self._end_container(container, now)
        else:
            self._free_container(container, now)
        name = invocation.function
        if self._waiting[name]:
            _, number, waiting = heapq.heappop(self._waiting[name])
            self._push(now, _ACQUIRE, number, waiting)
        return invocation

    def _finish(self, invocation: Invocation, status: str, now: float) -> None:
        """The one place where an invocation ends."""
        del self._pending[invocation.number]
        invocation.status, invocation.finished = status, now
        invocation.resolved = invocation.future = None
        if status != "timed_out":
            invocation.args = None
        self.store.release(invocation.number)
        self.trace.append(
            now,
            status,
            function=invocation.function,
            invocation=invocation.number,
            container=_number(invocation.container),
        )

    # ---- bodies -------------------------------------------------------------------------------------------------

    def _dispatch(self, invocation: Invocation, now: float) -> None:
        """Runs a body at once, or leaves it in its function's open group until a completion is due."""
        program = invocation.program
        if program.batched is None or not self._virtual:
            context = self._context(invocation, now)
            invocation.future = self._pool.submit(_run, program, context, invocation.resolved or ())
            if not self._virtual:
                invocation.future.add_done_callback(lambda future: self._done.put(invocation))
            return
        group = self._open.setdefault(program, [])
        group.append(invocation)
        if len(group) >= program.max_batch:
            self._close_group(program)

    def _close_group(self, program: Function) -> None:
        group = self._open.pop(program)
        contexts = [self._context(invocation, invocation.started or 0.0) for invocation in group]
        arguments = [invocation.resolved or () for invocation in group]
        results = self._pool.submit(_run_batched, program, contexts, arguments)
        for i, invocation in enumerate(group):
            invocation.future = _Nth(results, i)

    def _collect(self, invocation: Invocation) -> str:
        """Waits for a body whose completion is due, and keeps what it returned or raised."""
        if invocation.future is None:
            self._close_group(invocation.program)
        assert invocation.future is not None
        try:
            invocation.value = invocation.future.result()
        except Exception as error:
            invocation.error = error
            return "failed"
        return "completed"

    def _run_and_measure(self, invocation: Invocation, now: float) -> float:
        """Runs a body now and alone, and returns the seconds it took."""
        began = time.perf_counter()
        arguments = invocation.resolved or ()
        invocation.future = self._pool.submit(_run, invocation.program, self._context(invocation, now), arguments)
        error = invocation.future.exception()
        if error is None:
            jax.block_until_ready(invocation.future.result())  # type: ignore[no-untyped-call]
        return time.perf_counter() - began

    def _schedule_done_bodies(self) -> None:
        while not self._virtual:
            try:
                self._schedule_end(self._done.get_nowait())
            except Empty:
                return

    def _schedule_end(self, invocation: Invocation) -> None:
        """On the wall clock an invocation ends when its delay is over and its body is done."""
        due = max(self.now, invocation.finished or 0.0)
        compute = self._functions[invocation.function].compute
        if isinstance(compute, Measured) and invocation.started is not None:
            took = self.now - invocation.started
            due = max(due, (invocation.finished or 0.0) + compute.factor * invocation.work * took)
        self._push(due, _END, invocation.number, (invocation, "completed"))

    def _context(self, invocation: Invocation, now: float) -> Context:
        assert invocation.container is not None
        return Context(invocation.container, self._root_key, invocation.number, invocation.attempt, now)

    # ---- containers ---------------------------------------------------------------------------------------------

    def _create_container(self, invocation: Invocation, now: float) -> Container:
        name = invocation.function
        free, live = self._free_slots[name], self._live[name]
        slot = heapq.heappop(free) if free else len(live)
        container = Container(next(self._containers), name, slot, invocation.program)
        live[container.number] = container
        self.trace.append(now, "container_created", function=name, container=container.number, value=slot)
        return container

    def _newest_idle(self, name: str, program: Function | None) -> Container | None:
        """Takes the newest idle container whose state this program made (any container, for None)."""
        idle = self._idle[name]
        for i, (_, container) in enumerate(idle):
            if program is None or container.program.init is program.init:
                del idle[i]
                return container
        return None

    def _free_container(self, container: Container, now: float) -> None:
        container.idle_since = now
        idle = self._idle[container.function]
        idle.append((-container.number, container))
        idle.sort(key=lambda entry: entry[0])  # newest created first
        keep_alive = self._functions[container.function].keep_alive
        if math.isfinite(keep_alive):
            self._push(now + keep_alive, _EXPIRE, container.number, (container, now))

    def _end_container(self, container: Container, now: float) -> None:
        container.alive, container.state = False, None
        name = container.function
        self._idle[name] = [entry for entry in self._idle[name] if entry[1] is not container]
        del self._live[name][container.number]
        heapq.heappush(self._free_slots[name], container.slot)
        self.trace.append(now, "container_ended", function=name, container=container.number, value=container.slot)

    # ---- draws --------------------------------------------------------------------------------------------------

    def _draw(self, function: str, purpose: str, delay: Delay) -> float:
        stream = self._streams.get((function, purpose))
        if stream is None:
            name = zlib.crc32(f"{function}/{purpose}".encode())
            stream = self._streams[function, purpose] = np.random.default_rng([self._seed, name])
        seconds = delay.sample(stream)
        if not 0 <= seconds < math.inf:
            raise ValueError(f"function {function!r}: its {purpose} {delay!r} drew {seconds}, which is no duration")
        return seconds

    def _transfer_time(self, name: str, spec: FunctionSpec, arguments: tuple[Any, ...]) -> float:
        if spec.transfer is None:
            return 0.0
        size = sum(getattr(leaf, "nbytes", 0) for leaf in jax.tree.leaves(arguments))
        return self._draw(name, "transfer", spec.transfer.latency) + size / spec.transfer.bandwidth

    def _push(self, time: float, phase: int, number: int, subject: Any) -> None:
        heapq.heappush(self._events, _Event(time, phase, number, next(self._serial), subject))

    def _guard_against_standstill(self, instant: float) -> None:
        if instant != self._instant:
            self._instant, self._events_now = instant, 0
        self._events_now += 1
        if self._events_now > _MAX_EVENTS_AT_ONE_INSTANT:
            raise RuntimeError(
                f"more than {_MAX_EVENTS_AT_ONE_INSTANT} events at {instant} s: invocations that cost no time "
                "invoke one another; give a function a compute time above 0"
            )


class _Nth(Future[Any]):
    """One invocation's part of a batched body's results."""

    def __init__(self, results: "Future[Any]", index: int) -> None:
        super().__init__()
        self._results, self._index = results, index

    def result(self, timeout: float | None = None) -> Any:
        return self._results.result(timeout)[self._index]


def _run(program: Function, context: Context, arguments: tuple[Any, ...]) -> Any:
    _initialise(program, context)
    return program.body(context, *arguments)


def _run_batched(program: Function, contexts: list[Context], arguments: list[tuple[Any, ...]]) -> Any:
    assert program.batched is not None
    for context in contexts:
        _initialise(program, context)
    results = program.batched(contexts, arguments)
    if len(results) != len(contexts):
        raise ValueError(f"batched returned {len(results)} results for {len(contexts)} invocations")
    return results


def _initialise(program: Function, context: Context) -> None:
    if not context.container.initialised:
        if program.init is not None:
            context.state = program.init(context.slot, context.key)
        context.container.initialised = True


def _number(container: Container | None) -> int:
    return -1 if container is None else container.number
