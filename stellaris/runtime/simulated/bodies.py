"""Runs bodies in this process: on threads, in batches, or on the calling thread if the body is quick."""

import contextvars
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import jax

from stellaris.runtime.delays import Measured
from stellaris.runtime.engine.bodies import BodyRunner
from stellaris.runtime.engine.calls import BodyContext, Call
from stellaris.runtime.engine.execution import run_batch, run_body
from stellaris.runtime.engine.threads import Outcome, Settled, Task, Threads
from stellaris.runtime.functions import Function

#: Rough seconds of a hand-over to another thread and back. A body that takes less runs on the calling thread.
_HAND_OVER = 100e-6
#: Number of runs after which a body's average time is trusted. The first runs compile, and take longer.
_TRUSTED_AFTER = 8
#: The most programs whose average times are kept. A loop with a new program for every call would otherwise fill memory.
_REMEMBERED = 256
#: One of this many runs on the calling thread is timed: enough to notice that a body has become slow, and cheap.
_TIMED = 16

#: The task of a body that is deferred until its result is needed.
_LATER = "later"

#: Settings of JAX that change numbers, and that a context manager sets for one thread alone.
_SETTINGS = ("jax_enable_x64", "jax_default_matmul_precision")


class _Batch(NamedTuple):
    """Calls whose bodies will run in one shared call."""

    calls: list[Call]
    on_done: Callable[[Call], Any] | None


class Bodies(BodyRunner):
    """Runs the bodies of invocations between their start and the time at which their completion is handed out.

    No result depends on the thread or on the real time at which a body runs, because the arguments were resolved when
    the invocation started.

    Args:
      threads: the most bodies that run at once; None for no limit.
      seed: seed of the contexts' keys.
      virtual: whether time is virtual. In virtual time, all bodies with the same `batched` that start before the first
        of them is due share a call; on the wall clock, only bodies that start at the same instant share a call.
      hang_after: seconds of real time after which a body that has not returned is given up on.
    """

    def __init__(self, threads: int | None, seed: int, *, virtual: bool, hang_after: float) -> None:
        self._threads = Threads(threads)
        self._seed = seed
        self._virtual = virtual
        self._hang_after = hang_after
        # Making a key starts JAX, which takes a second. In virtual time the key is made for the first body; on the wall
        # clock that second would count as the body's.
        self._root_key = None if virtual else jax.random.key(seed)
        self._hung = False  # whether a body was ever given up on
        self._here = threading.local()  # its `body` is True while the thread runs a body of this platform
        self._open: dict[Any, _Batch] = {}  # batches that can still be joined, by their shared callable
        self._pace: dict[Any, tuple[int, float]] = {}  # number of runs and average seconds, by code
        # JAX's settings on other threads, when they were last looked up, and settings here that differed.
        self._elsewhere: tuple[Any, ...] | None = None
        self._only_here: tuple[Any, ...] | None = None

    def start(self, call: Call, *, trusted: bool, on_done: Callable[[Call], Any] | None = None) -> None:
        """Hands a body to a thread, adds it to a batch, or defers it until its completion is due.

        Args:
          call: a call with resolved arguments.
          trusted: whether the body may run on the calling thread and, on the wall clock, in a batch. False if the
            function has a time-out: a body that hangs would block the calling thread, or delay the others in its batch.
          on_done: on the wall clock, called with `call` on the body's thread after the body has returned.
        """
        program = call.program
        # In virtual time even a body with a time-out joins a batch: its end is drawn, so a slow body delays no other.
        if program.batched is not None and (self._virtual or trusted):
            batch = self._open.setdefault(program.batched, _Batch([], on_done))
            batch.calls.append(call)
            call.task = _LATER
            if len(batch.calls) >= program.max_batch:
                # In virtual time a batch runs when it is full or when one of its calls must end. Neither depends on
                # real time, so batches, and with them results, do not depend on the machine's load.
                self._run_open(program.batched)
            return
        runs, average = self._pace.get(_code(program), (0, 0.0))
        if not (self._virtual and trusted and runs >= _TRUSTED_AFTER and average < _HAND_OVER):
            context = self._context(call)
            arguments = call.resolved
            done = None if on_done is None else lambda: on_done(call)
            task = Task(lambda: [self._run(program, context, arguments)], done)
            call.task = (task, 0)
            self._threads.submit(task)
        else:
            call.task = _LATER

    def inside(self) -> bool:
        """Whether the calling thread runs one of these bodies."""
        inside: bool = getattr(self._here, "body", False)
        return inside

    def _run(self, program: Function, context: BodyContext, arguments: tuple[Any, ...]) -> Outcome:
        self._here.body = True
        try:
            return run_body(program, context, arguments)
        finally:
            self._here.body = False

    def _run_batch(
        self, programs: list[Function], contexts: list[BodyContext], arguments: list[tuple[Any, ...]]
    ) -> list[Outcome]:
        self._here.body = True
        try:
            return run_batch(programs, contexts, arguments)
        finally:
            self._here.body = False

    def start_batches(self) -> None:
        """Runs the open batches; called on the wall clock when nothing else starts at this instant."""
        while self._open:
            self._run_open(next(iter(self._open)))

    def finish(self, call: Call) -> Outcome | None:
        """Waits for a body; returns its value and its error, or None if it hangs."""
        settled: Any = call.task
        if isinstance(settled, Settled):
            return settled
        program = call.program
        if self._open and call.task is _LATER and call in self._waiting(program):
            self._run_open(program.batched)
        if call.task is _LATER and not self._as_elsewhere():
            context, arguments = self._context(call), call.resolved
            call.task = (Task(lambda: [self._run(program, context, arguments)]), 0)
            self._threads.submit(call.task[0])
        if call.task is _LATER:
            # The context is empty, as on a new thread, so that NumPy's `errstate` around the loop does not reach bodies
            # that happen to run here.
            here = contextvars.Context()
            if call.number % _TIMED:
                return here.run(self._run, program, self._context(call), call.resolved)
            began = time.perf_counter()
            outcome = here.run(self._run, program, self._context(call), call.resolved)
            self._note(program, time.perf_counter() - began)
            return outcome
        task: Task = call.task[0]
        if not task.wait(self._hang_after):
            self._replace_thread()
            return None
        if program.batched is None and task.seconds:  # the time of a batch is not the time of one body
            self._note(program, task.seconds)
        place: int = call.task[1]
        return task.outcomes[place]

    def returned(self, call: Call) -> float:
        """Returns the seconds that a `Measured` body adds to its call on the wall clock: its scaled real time."""
        compute = call.pool.spec.compute
        if not isinstance(compute, Measured):
            return 0.0
        seconds: float = compute.factor * call.work * call.task[0].seconds
        return seconds

    def measure(self, call: Call) -> float:
        """Runs a body at once and alone; returns the real seconds until the arrays that it returns are computed."""
        program = call.program
        context = self._context(call)
        arguments = call.resolved

        def work() -> Sequence[Outcome]:
            value, error = self._run(program, context, arguments)
            # JAX returns before an array is computed, and the time of computing it belongs to the body.
            return [(jax.block_until_ready(value), error)]  # type: ignore[no-untyped-call]

        task = Task(work)
        call.task = (task, 0)
        # The body runs on a thread and not here, so that a body that hangs does not hang the run.
        self._threads.submit(task)
        task.wait(self._hang_after)
        # If the body hangs, the time is 0; `finish` then finds the task abandoned, and the call ends as a hanging call.
        return task.seconds

    def settle(self, call: Call) -> None:
        """Runs a body to its end and keeps the outcome for `finish`.

        Raises:
          RuntimeError: if the body hangs.
        """
        outcome = self.finish(call)
        if outcome is None:
            raise RuntimeError(
                f"function {call.function!r}, invocation {call.number} hangs: its outcome cannot be saved; give the "
                "function a time-out"
            )
        call.task = Settled(*outcome)

    def drop(self, call: Call) -> bool:
        """Drops the body of a killed call if it has not begun; returns whether the body no longer runs."""
        # In virtual time a running body is waited for: another call can get its slot at this very instant, and two
        # bodies in one slot would race. On the wall clock waiting would take time, so the slot stays occupied instead.
        if call in (waiting := self._waiting(call.program)):
            waiting.remove(call)
            return True
        if call.task is None or call.task is _LATER or isinstance(call.task, Settled):
            return True
        task: Task = call.task[0]
        if task.abandoned:
            return False
        if task.wait(self._hang_after if self._virtual else 0.0):
            return True
        self._replace_thread()
        return False

    def _replace_thread(self) -> None:
        """Adds a thread in place of the thread that a hanging body keeps, if the number of threads is limited."""
        self._hung = True
        if self._virtual:
            self._threads.start()

    def close(self, patience: float) -> None:
        """Ends the threads.

        Args:
          patience: seconds to wait for running bodies in virtual time, unless a body has hung.
        """
        self._open.clear()
        # Running bodies are awaited only in virtual time: on the wall clock they may take long, and their calls have
        # ended. If a body hangs, no body is awaited, because the hanging body would use up all the patience.
        waits = self._virtual and not self._hung
        self._threads.close(min(patience, self._hang_after, threading.TIMEOUT_MAX) if waits else 0.0)

    def _waiting(self, program: Function) -> list[Call]:
        """Returns the calls of a program's open batch."""
        batch = self._open.get(program.batched)
        return [] if batch is None else batch.calls

    def _run_open(self, batched: Any) -> None:
        """Runs an open batch on a thread."""
        calls, on_done = self._open.pop(batched)
        if not calls:
            return  # all calls of the batch were killed
        contexts = [self._context(call) for call in calls]
        arguments = [call.resolved for call in calls]
        programs = [call.program for call in calls]

        def all_done() -> None:
            if on_done is not None:
                for call in calls:
                    on_done(call)

        task = Task(lambda: self._run_batch(programs, contexts, arguments), all_done, size=len(calls))
        for place, call in enumerate(calls):
            call.task = (task, place)
        self._threads.submit(task)

    def _as_elsewhere(self) -> bool:
        """Whether JAX has the same settings here as on other threads, which a context manager does not reach."""
        here = _settings()
        if here not in (self._elsewhere, self._only_here):
            # They may have changed for all threads.
            found: list[tuple[Any, ...]] = []
            thread = threading.Thread(target=lambda: found.append(_settings()), daemon=True)
            thread.start()
            thread.join()
            (self._elsewhere,) = found
            self._only_here = here
        return here == self._elsewhere

    def _note(self, program: Function, seconds: float) -> None:
        code = _code(program)
        runs, average = self._pace.get(code, (0, 0.0))
        if not runs and len(self._pace) >= _REMEMBERED:
            self._pace.clear()
        runs += 1
        # The average is over the last few runs, so that the first runs, which compile, are soon forgotten.
        self._pace[code] = runs, average + (seconds - average) / min(runs, _TRUSTED_AFTER)

    def _context(self, call: Call) -> BodyContext:
        if self._root_key is None:
            self._root_key = jax.random.key(self._seed)
        assert call.container is not None
        started = call.started or 0.0
        return BodyContext(call.container, self._root_key, call.number, call.attempt, started)


def _settings() -> tuple[Any, ...]:
    """Returns JAX's settings on this thread."""
    return tuple(getattr(jax.config, name) for name in _SETTINGS)


def _code(program: Function) -> Any:
    """Returns the key of a body's average time: its code object, which all lambdas made by one loop share."""
    return getattr(program.body, "__code__", id(program.body))
