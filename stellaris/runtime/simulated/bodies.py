"""Where bodies run: on threads, in batches, or on the calling thread if that is quicker than to hand them over."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import jax

from stellaris.runtime.delays import Measured
from stellaris.runtime.engine.calls import BodyContext, Call, Container
from stellaris.runtime.engine.execution import run_batch, run_body
from stellaris.runtime.engine.threads import Outcome, Settled, Task, Threads
from stellaris.runtime.functions import Function, FunctionSpec

#: Seconds that a hand-over to another thread and back costs, roughly: quicker bodies are not handed over.
_HAND_OVER = 100e-6
#: Runs after which a body's average time is trusted.
_TRUSTED_AFTER = 8
#: Programs whose average times are kept.
_REMEMBERED = 256
#: Of the runs on the calling thread, one in so many is timed, so that a body that has become slow is noticed.
_TIMED = 16

#: The task of a body that has been put off until its result is needed.
_LATER = "later"


class ContainerLostError(RuntimeError):
    """A container ended while a body ran in it, or before it was made: the body may have had its effects, or not."""


class BodyRunner(Protocol):
    """Where bodies run, as the life of calls sees it; `Bodies` says what each method does."""

    def start(self, call: Call, *, trusted: bool, on_done: Callable[[Call], Any] | None = None) -> None:
        """Has a body run."""

    def start_batches(self) -> None:
        """Nothing else starts at this instant."""

    def finish(self, call: Call) -> Outcome | None:
        """What a body returned and raised; a `ContainerLostError` if its container was lost."""

    def returned(self, call: Call) -> float:
        """A body has returned; seconds that its call is to take beside those that were drawn."""

    def measure(self, call: Call) -> float:
        """Runs a body now and alone; returns its real seconds."""

    def settle(self, call: Call) -> None:
        """Runs a body to its end."""

    def drop(self, call: Call) -> bool:
        """A call was killed; whether its body does not run any more."""

    def make(self, container: Container, spec: FunctionSpec, on_made: Callable[[Container], Any]) -> None:
        """Begins to make a container that is more than a place in this process, which is then `starting`."""

    def made(self, container: Container) -> BaseException | None:
        """Why a container could not be made, if so."""

    def end(self, container: Container) -> None:
        """Ends a container, and whatever runs in it."""

    def lost_nodes(self) -> Sequence[int]:
        """Nodes that are not there any more, by their places among the deployment's."""

    def close(self, patience: float) -> None:
        """Ends what bodies run on."""


class _Batch(NamedTuple):
    """Calls whose bodies are to run in one."""

    calls: list[Call]
    on_done: Callable[[Call], Any] | None


class Bodies:
    """Runs the bodies of invocations between their start and the time at which their completion is handed out.

    Which thread a body runs on, and when, changes no result: its arguments were resolved at its start.

    Args:
      threads: how many bodies run at once; None to run every body that has started.
      seed: of the contexts' keys.
      virtual: whether time is. Then bodies of one program run in one call until the first of them is due; on the wall
        clock those do that start at the same instant.
      hang_after: seconds of real time after which a body that has not returned is given up on.
    """

    def __init__(self, threads: int | None, seed: int, *, virtual: bool, hang_after: float) -> None:
        self._threads = Threads(threads)
        self._seed = seed
        self._virtual = virtual
        self._hang_after = hang_after
        self._root_key: jax.Array | None = None  # made for the first body
        self._hung = False  # whether a body was ever given up on
        self._open: dict[Any, _Batch] = {}  # that may still be joined, by the callable that runs them
        self._pace: dict[Any, tuple[int, float]] = {}  # number of runs, and average seconds, by code

    def start(self, call: Call, *, trusted: bool, on_done: Callable[[Call], Any] | None = None) -> None:
        """Hands a body to a thread, or puts it off until its completion is due: in its program's batch, or alone.

        Args:
          call: with resolved arguments.
          trusted: whether it may take others' time: if its body has always been quick, that of the calling thread, and
            on the wall clock that of a batch. Not if it has a time-out: if it hung, nobody would be left to notice, or
            others would be late with it.
          on_done: on the wall clock, called with it on the body's thread, after the body.
        """
        program = call.program
        if program.batched is not None and (self._virtual or trusted):
            batch = self._open.setdefault(program.batched, _Batch([], on_done))
            batch.calls.append(call)
            call.task = _LATER
            if len(batch.calls) >= program.max_batch:
                # By size, and otherwise when the first completion is due, but in virtual time never by real time: so
                # batches, and with them results, do not depend on the machine's load.
                self._run_open(program.batched)
            return
        runs, average = self._pace.get(_code(program), (0, 0.0))
        if not (self._virtual and trusted and runs >= _TRUSTED_AFTER and average < _HAND_OVER):
            context = self._context(call)
            arguments = call.resolved or ()
            done = None if on_done is None else lambda: on_done(call)
            task = Task(lambda: [run_body(program, context, arguments)], done)
            call.task = (task, 0)
            self._threads.submit(task)
        else:
            call.task = _LATER

    def start_batches(self) -> None:
        """On the wall clock: nothing else starts at this instant, so the bodies that wait for others run now."""
        while self._open:
            self._run_open(next(iter(self._open)))

    def finish(self, call: Call) -> Outcome | None:
        """What a body returned and raised, waiting for it; None if it hangs."""
        settled: Any = call.task
        if isinstance(settled, Settled):
            return settled
        program = call.program
        if self._open and call.task is _LATER and call in self._waiting(program):
            self._run_open(program.batched)
        if call.task is _LATER:
            if call.number % _TIMED:
                return run_body(program, self._context(call), call.resolved or ())
            began = time.perf_counter()
            outcome = run_body(program, self._context(call), call.resolved or ())
            self._note(program, time.perf_counter() - began)
            return outcome
        task: Task = call.task[0]
        if not task.wait(self._hang_after):
            self._replace_thread()
            return None
        if program.batched is None and task.seconds:
            self._note(program, task.seconds)
        place: int = call.task[1]
        return task.outcomes[place]

    def returned(self, call: Call) -> float:
        """Seconds that a call is to take by what its body took, where that counts, on the wall clock."""
        compute = call.pool.spec.compute
        if not isinstance(compute, Measured):
            return 0.0
        seconds: float = compute.factor * call.work * call.task[0].seconds
        return seconds

    def make(self, container: Container, spec: FunctionSpec, on_made: Callable[[Container], Any]) -> None:
        """Nothing is to be made: a container is a place in this process."""

    def made(self, container: Container) -> None:
        """Nothing can go wrong with that."""

    def end(self, container: Container) -> None:
        """Nothing is to be ended: `drop` has ended the body that ran there."""

    def lost_nodes(self) -> Sequence[int]:
        """None: simulated machines stay."""
        return ()

    def measure(self, call: Call) -> float:
        """Runs a body now and alone; returns its real seconds, until the arrays that it returns are computed."""
        program = call.program
        context = self._context(call)
        arguments = call.resolved or ()

        def work() -> Sequence[Outcome]:
            value, error = run_body(program, context, arguments)
            return [(jax.block_until_ready(value), error)]  # type: ignore[no-untyped-call]

        task = Task(work)
        call.task = (task, 0)
        self._threads.submit(task)
        task.wait(self._hang_after)
        return task.seconds

    def settle(self, call: Call) -> None:
        """Runs a body to its end, and keeps the outcome for `finish`.

        Raises:
          RuntimeError: if it hangs.
        """
        outcome = self.finish(call)
        if outcome is None:
            raise RuntimeError(f"function {call.function!r}, invocation {call.number} hangs")
        call.task = Settled(*outcome)

    def drop(self, call: Call) -> bool:
        """A call was killed: its body is not run if it has not begun.

        In virtual time a body that runs is waited for: its slot can be given away at this very instant, and two bodies
        in one slot would race. On the wall clock waiting would take time, so its slot stays occupied instead.

        Returns:
          Whether its body does not run any more. If it does, its slot must not be given away.
        """
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
        """A body hangs, and keeps its thread: another takes the thread's place, where their number is limited."""
        self._hung = True
        if self._virtual:
            self._threads.start()

    def close(self, patience: float) -> None:
        """Ends the threads.

        Args:
          patience: seconds for which bodies that run are waited for in virtual time, unless one of them hangs.
        """
        self._open.clear()
        waits = self._virtual and not self._hung
        self._threads.close(min(patience, self._hang_after, threading.TIMEOUT_MAX) if waits else 0.0)

    def _waiting(self, program: Function) -> list[Call]:
        """The calls of a program's open batch."""
        batch = self._open.get(program.batched)
        return [] if batch is None else batch.calls

    def _run_open(self, batched: Any) -> None:
        """Runs an open batch on a thread: the calls of all programs that run in the same call."""
        calls, on_done = self._open.pop(batched)
        if not calls:
            return  # all of them were killed
        contexts = [self._context(call) for call in calls]
        arguments = [call.resolved or () for call in calls]
        programs = [call.program for call in calls]

        def all_done() -> None:
            if on_done is not None:
                for call in calls:
                    on_done(call)

        task = Task(lambda: run_batch(programs, contexts, arguments), all_done, size=len(calls))
        for place, call in enumerate(calls):
            call.task = (task, place)
        self._threads.submit(task)

    def _note(self, program: Function, seconds: float) -> None:
        code = _code(program)
        runs, average = self._pace.get(code, (0, 0.0))
        if not runs and len(self._pace) >= _REMEMBERED:
            self._pace.clear()
        runs += 1
        # An average over the last few runs: the first ones compile, and should soon be forgotten.
        self._pace[code] = runs, average + (seconds - average) / min(runs, _TRUSTED_AFTER)

    def _context(self, call: Call) -> BodyContext:
        if self._root_key is None:
            self._root_key = jax.random.key(self._seed)
        assert call.container is not None
        started = call.started or 0.0
        return BodyContext(call.container, self._root_key, call.number, call.attempt, started)


def _code(program: Function) -> Any:
    """By what a body's average time is kept: its code, which lambdas that are made anew in a loop have in common."""
    return getattr(program.body, "__code__", program.body)
