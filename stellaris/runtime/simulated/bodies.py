"""Where bodies run: on threads, several alike in one call, or at once where that is quicker than to hand them over."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import jax

from stellaris.runtime.functions import Function
from stellaris.runtime.simulated.calls import BodyContext, Call
from stellaris.runtime.simulated.threads import Outcome, Settled, Task, Threads

#: Seconds that a hand-over between threads and back costs, roughly: quicker bodies are not handed over.
_HAND_OVER = 100e-6
#: Runs after which a body's pace is trusted, and programs whose pace is remembered.
_TRUSTED_AFTER, _REMEMBERED = 8, 256

#: Of the quick ones, every so many-th is timed again.
_LOOK_AT = 16
#: The keys of containers are folded from this number, which no invocation has.
_CONTAINERS = 2**32 - 1

#: The task of a body that is left until it is needed.
_LATER = "later"


class Bodies:
    """Runs the bodies of invocations that have started, some time before their completion is handed out.

    Which thread a body runs on, and when, changes no result.

    Args:
      threads: how many bodies run at once; None for all that have started.
      seed: of the contexts' keys.
      batching: whether alike bodies run in one call: in virtual time they do.
      hang_after: seconds of real time after which a body that has not returned is given up on.
    """

    def __init__(self, threads: int | None, seed: int, *, batching: bool, hang_after: float) -> None:
        self._threads, self._seed, self._batching, self._hang_after = Threads(threads), seed, batching, hang_after
        self._root_key: jax.Array | None = None
        self._hung = False
        self._open: dict[Function, list[Call]] = {}  # groups that may still be joined
        self._pace: dict[Any, tuple[int, float]] = {}  # runs, and seconds on average, by code

    def start(self, call: Call, *, trusted: bool, on_done: Callable[[], None] | None = None) -> None:
        """Has a body run on a thread, or leaves it until its completion is due: in its program's open group, or alone.

        Args:
          call: whose arguments are resolved.
          trusted: whether its body, if it has always been quick, may run on the thread that asks for it. It may not
            hang there: nobody would be left to notice.
          on_done: called on the body's thread, after it.
        """
        program = call.program
        if self._batching and program.batched is not None:
            group = self._open.setdefault(program, [])
            group.append(call)
            call.task = _LATER
            if len(group) >= program.max_batch:
                self._close(program)
            return
        runs, average = self._pace.get(_code(program), (0, 0.0))
        if not (trusted and runs >= _TRUSTED_AFTER and average < _HAND_OVER):
            context, arguments = self._context(call), call.resolved or ()
            task = Task(lambda: [_run(program, context, arguments)], on_done)
            call.task = (task, 0)
            self._threads.submit(task)
        else:
            call.task = _LATER

    def finish(self, call: Call) -> Outcome | None:
        """What a body returned, and what it raised; None if it hangs."""
        settled: Any = call.task
        if isinstance(settled, Settled):
            return settled
        program = call.program
        if self._open and call.task is _LATER and call in self._open.get(program, ()):
            self._close(program)
        if call.task is _LATER:
            if call.number % _LOOK_AT:
                return _run(program, self._context(call), call.resolved or ())
            began = time.perf_counter()
            outcome = _run(program, self._context(call), call.resolved or ())
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

    def measure(self, call: Call) -> float:
        """Runs a body now and alone; returns the seconds that it took, the computation of its arrays included."""
        program, context, arguments = call.program, self._context(call), call.resolved or ()

        def work() -> Sequence[Outcome]:
            value, error = _run(program, context, arguments)
            return [(jax.block_until_ready(value), error)]  # type: ignore[no-untyped-call]

        task = Task(work)
        call.task = (task, 0)
        self._threads.submit(task)
        task.wait(self._hang_after)
        return task.seconds

    def settle(self, call: Call) -> None:
        """Runs a body that has started to its end, and keeps what it returned.

        Raises:
          RuntimeError: if it hangs.
        """
        outcome = self.finish(call)
        if outcome is None:
            raise RuntimeError(f"function {call.function!r}, invocation {call.number} hangs")
        call.task = Settled(*outcome)

    def drop(self, call: Call) -> bool:
        """A call was killed: what has not begun need not.

        In virtual time a body that runs is waited for: its slot is given away at this instant, and two bodies in one
        slot would race. On the wall clock time goes on, so it is not.

        Returns:
          Whether nothing of it runs any more. If something does, its slot is not to be given away.
        """
        group = self._open.get(call.program, [])
        if call in group:
            group.remove(call)
            return True
        if call.task is None or call.task is _LATER or isinstance(call.task, Settled):
            return True
        task: Task = call.task[0]
        if task.abandoned:
            return False
        if task.wait(self._hang_after if self._batching else 0.0):
            return True
        self._replace_thread()
        return False

    def _replace_thread(self) -> None:
        self._hung = True
        if self._batching:
            self._threads.start()

    def close(self, patience: float) -> None:
        """Ends the threads.

        Args:
          patience: seconds for which bodies that run are waited for in virtual time, unless one of them hangs.
        """
        self._open.clear()
        waits = self._batching and not self._hung
        self._threads.close(min(patience, self._hang_after, threading.TIMEOUT_MAX) if waits else 0.0)

    def _close(self, program: Function) -> None:
        group = self._open.pop(program)
        contexts = [self._context(call) for call in group]
        arguments = [call.resolved or () for call in group]
        task = Task(lambda: _run_batched(program, contexts, arguments), size=len(group))
        for place, call in enumerate(group):
            call.task = (task, place)
        self._threads.submit(task)

    def _note(self, program: Function, seconds: float) -> None:
        code = _code(program)
        runs, average = self._pace.get(code, (0, 0.0))
        if not runs and len(self._pace) >= _REMEMBERED:
            self._pace.clear()
        runs += 1
        # The first runs are often slow, and soon forgotten.
        self._pace[code] = runs, average + (seconds - average) / min(runs, _TRUSTED_AFTER)

    def _context(self, call: Call) -> BodyContext:
        if self._root_key is None:
            self._root_key = jax.random.key(self._seed)
        assert call.container is not None
        started = call.started or 0.0
        return BodyContext(call.container, self._root_key, call.number, call.attempt, started)


def _code(program: Function) -> Any:
    """What bodies have in common that are made anew for every call, as a lambda in a loop is: they are as quick."""
    return getattr(program.body, "__code__", program.body)


def _run(program: Function, context: BodyContext, arguments: tuple[Any, ...]) -> Outcome:
    try:
        if not context.container.initialised:
            _initialise(program, context)
        return program.body(context, *arguments), None
    except Exception as error:
        return None, error


def _run_batched(program: Function, contexts: list[BodyContext], arguments: list[tuple[Any, ...]]) -> list[Outcome]:
    assert program.batched is not None
    outcomes: list[Outcome] = [(None, None)] * len(contexts)
    ready = []
    for i, context in enumerate(contexts):
        try:
            _initialise(program, context)
            ready.append(i)
        except Exception as error:
            outcomes[i] = None, error
    if not ready:
        return outcomes
    try:
        results = program.batched([contexts[i] for i in ready], [arguments[i] for i in ready])
        if len(results) != len(ready):
            raise ValueError(f"batched returned {len(results)} results for {len(ready)} invocations")
    except Exception as error:
        results = [error] * len(ready)
    for i, result in zip(ready, results, strict=True):
        outcomes[i] = (None, result) if isinstance(result, BaseException) else (result, None)
    return outcomes


def _initialise(program: Function, context: BodyContext) -> None:
    container = context.container
    if not container.initialised:
        if program.init is not None:
            # A key of its own: the first body's must not repeat what `init` drew.
            keys = jax.random.fold_in(context.root_key, _CONTAINERS)
            container.state = program.init(container.slot, jax.random.fold_in(keys, container.number))
        container.initialised = True
