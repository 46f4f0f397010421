"""Threads that start tasks in order, and keep the interpreter from exiting for a few seconds at most."""

import atexit
import os
import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

#: Seconds for which the interpreter waits at exit for tasks that are running. A thread that computes with JAX after the
#: interpreter has ended aborts the process. A body that hangs must not hang the exit as well.
_PATIENCE = 5.0

#: The value and the error of a body.
Outcome: TypeAlias = tuple[Any, BaseException | None]


class Settled(NamedTuple):
    """An outcome for which no task needs to be awaited. A checkpoint can save an outcome, but not a task."""

    value: Any
    error: BaseException | None


class Task:
    """The work of a thread: the body of one invocation, or a batch of bodies."""

    __slots__ = ("abandoned", "finished", "on_done", "outcomes", "seconds", "size", "work")

    def __init__(
        self, work: Callable[[], Sequence[Outcome]], on_done: Callable[[], None] | None = None, *, size: int = 1
    ) -> None:
        self.work: Callable[[], Sequence[Outcome]] | None = work  #: None once done, to free the arguments.
        self.on_done = on_done
        self.size = size
        self.outcomes: Sequence[Outcome] = ()
        self.seconds = 0.0  #: real time that the work took.
        self.abandoned = False  #: whether a call of `wait` has timed out.
        # This is a lock and not an `Event`, because every task makes one, and an `Event` takes several times as long.
        self.finished = threading.Lock()  #: released when the work is done.
        self.finished.acquire()

    def run(self) -> None:
        """Does the work."""
        assert self.work is not None
        began = time.perf_counter()
        try:
            self.outcomes = self.work()
        except BaseException as error:  # including SystemExit, which should end the body and not the thread
            self.outcomes = [(None, error)] * self.size
        self.seconds = time.perf_counter() - began
        self.work = None
        _running.discard(self)
        self.finished.release()  # before `on_done`, whose receiver expects to find the outcomes
        if self.on_done is not None:
            self.on_done()

    def wait(self, seconds: float) -> bool:
        """Waits for the work; returns whether it finished within `seconds` of real time."""
        if _ending.is_set() and self.work is not None and self not in _running:
            self.run()  # no thread will
        # A task that was given up on is never waited for again, because a hanging body would use up the seconds again.
        finished = not self.abandoned and self.finished.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        if finished:
            self.finished.release()  # for the other calls of a batch, which wait for the same task
        self.abandoned = not finished
        return finished


#: The tasks that are running, on threads of all platforms.
_running: set[Task] = set()
#: Set when the interpreter exits: from then on, the threads of a pool begin no task.
_ending = threading.Event()
#: Held by a thread that begins a task, so that the exit either waits for the task or keeps it from beginning.
_beginning = threading.Lock()


# JAX's own function at exit, which clears its devices, was registered before this one and runs after it.
@atexit.register
def _wait_for_running() -> None:
    """Waits until the running tasks are done, or the patience ends."""
    with _beginning:
        _ending.set()
    until = time.monotonic() + _PATIENCE
    while _running and time.monotonic() < until:
        time.sleep(0.001)


def _in_child() -> None:
    """Forgets the parent's threads, which a forked process does not have."""
    global _beginning
    _running.clear()
    _beginning = threading.Lock()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_in_child)


class Threads:
    """A pool of threads that starts tasks in order. Unlike `concurrent.futures`, it lets Python exit if one hangs.

    Args:
      count: the most tasks that run at once, not counting tasks that were given up on; None for a new thread per task.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        # The threads refer to the queue and not to this object, so that a platform that was never closed can be garbage
        # collected; its threads then end. `atexit` is off, because daemon threads end by themselves at exit.
        weakref.finalize(self, _dismiss, self._tasks, self._threads).atexit = False

    def submit(self, task: Task) -> None:
        """Runs a task when a thread is free, after the tasks submitted before it."""
        if self._count is None:
            _running.add(task)
            try:
                threading.Thread(target=task.run, name="stellaris", daemon=True).start()
            except BaseException:  # a process may have too many threads; the exit must not wait for the task
                _running.discard(task)
                raise
            return
        if len(self._threads) < self._count:
            self.start()  # threads start on demand, because most platforms need fewer than `count`
        self._tasks.put(task)

    def start(self) -> None:
        """Adds a thread."""
        thread = threading.Thread(target=_serve, args=(self._tasks,), name="stellaris", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self, patience: float) -> None:
        """Ends the threads: drops tasks that have not begun, and waits up to `patience` seconds for the others."""
        try:
            while True:
                # Tasks are dropped before threads are dismissed, because a thread ends only when it takes a None from
                # the queue, and the None is behind all tasks.
                self._tasks.get_nowait()
        except Empty:
            _dismiss(self._tasks, self._threads)
        # All threads share one deadline, so that the number of threads does not multiply the wait.
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread.is_alive():  # `join` would raise for a thread whose start was interrupted
                thread.join(max(until - time.monotonic(), 0.0))


def _dismiss(tasks: "SimpleQueue[Task | None]", threads: Sequence[threading.Thread]) -> None:
    """Ends every thread once its other tasks are done."""
    for _ in threads:
        tasks.put(None)


def _serve(tasks: "SimpleQueue[Task | None]") -> None:
    while (task := tasks.get()) is not None:
        with _beginning:
            if _ending.is_set():
                return
            _running.add(task)
        task.run()
        del task  # so that a waiting thread does not keep the task's references alive
