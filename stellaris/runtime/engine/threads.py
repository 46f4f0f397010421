"""Threads that start tasks in order, and never keep the interpreter from exiting."""

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
    """Work for a thread: the body of one invocation, or those of a batch."""

    __slots__ = ("abandoned", "finished", "on_done", "outcomes", "seconds", "size", "work")

    def __init__(
        self, work: Callable[[], Sequence[Outcome]], on_done: Callable[[], None] | None = None, *, size: int = 1
    ) -> None:
        self.work: Callable[[], Sequence[Outcome]] | None = work  #: None once it is done, to free what it refers to.
        self.on_done = on_done
        self.size = size
        self.outcomes: Sequence[Outcome] = ()
        self.seconds = 0.0  #: of real time that it took.
        self.abandoned = False  #: whether it was given up on.
        self.finished = threading.Lock()  #: released when it is done.
        self.finished.acquire()

    def run(self) -> None:
        """Does the work."""
        assert self.work is not None
        began = time.perf_counter()
        try:
            self.outcomes = self.work()
        except BaseException as error:  # also SystemExit, which is to end the body and not the thread
            self.outcomes = [(None, error)] * self.size
        self.seconds = time.perf_counter() - began
        self.work = None
        self.finished.release()  # before `on_done`: who is told of the end must find the outcomes
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
    """Threads that start tasks in order. Unlike those of `concurrent.futures` they do not keep Python from exiting.

    Args:
      count: how many tasks run at once; a task that is given up on does not count. None for a new thread per task.
    """

    def __init__(self, count: int | None) -> None:
        self._count = count
        self._threads: list[threading.Thread] = []
        self._tasks: SimpleQueue[Task | None] = SimpleQueue()
        # The threads refer to the queue only, so that a platform that nobody closes is collected and its threads end.
        weakref.finalize(self, _dismiss, self._tasks, self._threads).atexit = False

    def submit(self, task: Task) -> None:
        """Runs a task when a thread is free, after those submitted before."""
        if self._count is None:
            threading.Thread(target=task.run, name="stellaris", daemon=True).start()
            return
        if len(self._threads) < self._count:
            self.start()
        self._tasks.put(task)

    def start(self) -> None:
        """Adds a thread."""
        thread = threading.Thread(target=_serve, args=(self._tasks,), name="stellaris", daemon=True)
        self._threads.append(thread)
        thread.start()

    def close(self, patience: float) -> None:
        """Ends the threads: tasks that have not begun are dropped, and running ones are waited for, for so long."""
        try:
            while True:
                self._tasks.get_nowait()
        except Empty:
            _dismiss(self._tasks, self._threads)
        until = time.monotonic() + patience
        for thread in self._threads:
            if thread.is_alive():  # it is not if an interruption came while it was being started
                thread.join(max(until - time.monotonic(), 0.0))


def _dismiss(tasks: "SimpleQueue[Task | None]", threads: Sequence[threading.Thread]) -> None:
    """Has every thread end when it has nothing else to do."""
    for _ in threads:
        tasks.put(None)


def _serve(tasks: "SimpleQueue[Task | None]") -> None:
    while (task := tasks.get()) is not None:
        task.run()
        del task  # so that nothing it refers to is kept while the thread waits
