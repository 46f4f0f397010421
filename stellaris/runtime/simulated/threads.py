"""Threads that run tasks in order, and never keep the interpreter from ending."""

import threading
import time
import weakref
from collections.abc import Callable, Sequence
from queue import Empty, SimpleQueue
from typing import Any, NamedTuple, TypeAlias

#: What a body returned, and what it raised.
Outcome: TypeAlias = tuple[Any, BaseException | None]


class Settled(NamedTuple):
    """An outcome that no task is needed for any more, so that it can be saved."""

    value: Any
    error: BaseException | None


class Task:
    """The bodies of one call on a thread: one invocation's, or those of a batch."""

    __slots__ = ("abandoned", "finished", "on_done", "outcomes", "seconds", "size", "work")

    def __init__(
        self, work: Callable[[], Sequence[Outcome]], on_done: Callable[[], None] | None = None, *, size: int = 1
    ) -> None:
        self.work: Callable[[], Sequence[Outcome]] | None = work
        self.on_done, self.size = on_done, size
        self.outcomes: Sequence[Outcome] = ()
        self.seconds, self.abandoned = 0.0, False
        self.finished = threading.Lock()
        self.finished.acquire()

    def run(self) -> None:
        """Does the work."""
        assert self.work is not None
        began = time.perf_counter()
        try:
            self.outcomes = self.work()
        except BaseException as error:  # SystemExit, for one: it ends the body, not the thread
            self.outcomes = [(None, error)] * self.size
        self.seconds = time.perf_counter() - began
        self.work = None
        self.finished.release()
        if self.on_done is not None:
            self.on_done()

    def wait(self, seconds: float) -> bool:
        """Whether it finishes within so many seconds of real time."""
        finished = not self.abandoned and self.finished.acquire(timeout=min(seconds, threading.TIMEOUT_MAX))
        if finished:
            self.finished.release()
        self.abandoned = not finished
        return finished


class Threads:
    """Threads that run tasks in order, and never keep the interpreter from ending, as those of `concurrent.futures` do.

    Args:
      count: how many run at once; one that is given up on is replaced. None for a thread of its own for every task.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        # The threads refer to the queue alone: a platform that nobody closes is collected, and its threads then end.
        weakref.finalize(self, _dismiss, self._tasks, self._threads).atexit = False

    def submit(self, task: Task) -> None:
        """Runs a task as soon as a thread is free."""
        if self._count is None:
            threading.Thread(target=task.run, name="stellaris", daemon=True).start()
            return
        if len(self._threads) < self._count:
            self.start()
        self._tasks.put(task)

    def start(self) -> None:
        """One thread more."""
        thread = threading.Thread(target=_serve, args=(self._tasks,), name="stellaris", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self, patience: float) -> None:
        """Ends the threads; what has not begun is not run, and what runs is waited for for so many seconds."""
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            _dismiss(self._tasks, self._threads)
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread.is_alive():  # an interruption may have come while it was started
                thread.join(max(until - time.monotonic(), 0.0))


def _dismiss(tasks: "SimpleQueue[Task | None]", threads: Sequence[threading.Thread]) -> None:
    """Has as many threads end as there are, each once it has nothing to do."""
    for _ in threads:
        tasks.put(None)


def _serve(tasks: "SimpleQueue[Task | None]") -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # nothing is held while waiting
