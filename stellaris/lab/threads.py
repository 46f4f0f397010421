"""Computes blocks of runs at once: on a CPU one on each core."""

import math
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Generic, NamedTuple, TypeVar

import jax

Key = TypeVar("Key")
Result = TypeVar("Result")

#: The share of all cores that a container may use, as microseconds in each period; `max` without a limit.
_QUOTA = Path("/sys/fs/cgroup/cpu.max")


#: How XLA compiles programs that run at once on the cores of a CPU: matrices are multiplied on the program's thread. On
#: the pool of threads that all programs share, two programs on two cores took a sixth longer.
OPTIONS = {"xla_cpu_multi_thread_eigen": False}


def count(devices: int = 1) -> int:
    """Returns how many blocks are computed at once, where each of them uses so many devices.

    On a CPU these are as many as this process has cores: XLA computes one after the other what one thread has started,
    and at the same time what several threads have. Another device computes one block. So does a CPU while JAX is set to
    look for NaN or infinite numbers or not to compile: a context manager may have set that for this thread alone.
    """
    config: Any = jax.config
    if jax.default_backend() != "cpu" or config.jax_debug_nans or config.jax_debug_infs or config.jax_disable_jit:
        return 1
    return max(1, _cores() // devices)


def _cores() -> int:
    """Returns how many cores this process may use: as many as it is pinned to, or its container's quota if less.

    Not every system has either.
    """
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text().split()
        return min(cores, math.ceil(int(quota) / int(period)))
    except (OSError, ValueError):
        return cores


class _Ended(NamedTuple):
    key: Any
    result: Any
    error: BaseException | None


class Running(Generic[Key, Result]):
    """Calls that are computed at once on threads, at most so many; a single one is computed on the caller's thread.

    Other threads do not see the caller's context managers of JAX, so calls are of compiled programs. As a context
    manager it waits at its end for the calls that are running, also after an error or an interruption; a second
    interruption ends the wait, and leaves them to end by themselves.

    Example:
      >>> with Running(2) as running:
      ...     for number in (1, 2):
      ...         running.start(number, lambda number=number: number**2)
      ...     sorted(running.next() for _ in range(2))
      [(1, 1), (2, 4)]
    """

    def __init__(self, at_once: int) -> None:
        self._at_once = at_once
        self._ended: SimpleQueue[_Ended] = SimpleQueue()
        self._count = 0

    def __len__(self) -> int:
        """The number of calls whose results were not taken yet."""
        return self._count

    def __enter__(self) -> "Running[Key, Result]":
        return self

    def __exit__(self, *error: object) -> None:
        while self._count:
            self._ended.get()
            self._count -= 1

    @property
    def full(self) -> bool:
        """Whether a result must be taken before another call can start."""
        return self._count == self._at_once

    @property
    def ready(self) -> bool:
        """Whether `next` returns without waiting."""
        return not self._ended.empty()

    def start(self, key: Key, call: Callable[[], Result]) -> None:
        """Starts a call."""

        def run() -> None:
            try:
                self._ended.put(_Ended(key, call(), None))
            except BaseException as error:  # raised by `next`, on the caller's thread
                self._ended.put(_Ended(key, None, error))

        if self._at_once == 1:
            self._ended.put(_Ended(key, call(), None))
        else:
            # Not a pool of `concurrent.futures`: that refuses work as soon as the main thread has ended.
            threading.Thread(target=run, name="stellaris-lab").start()
        self._count += 1

    def next(self) -> tuple[Key, Result]:
        """Waits until a call has ended; returns its key and its result, or raises its error."""
        ended = self._ended.get()
        self._count -= 1
        if ended.error is not None:
            raise ended.error
        return ended.key, ended.result


def computed(calls: Iterator[tuple[Key, Callable[[], Result]]], at_once: int) -> Iterator[tuple[Key, Result]]:
    """Computes calls, at most so many at once, and yields each key with its result, in the order in which calls end.

    A call is taken from the iterator when it can start, on the caller's thread.
    """
    with Running[Key, Result](at_once) as running:
        while (following := next(calls, None)) is not None:
            running.start(*following)
            if running.full:
                yield running.next()
        while running:
            yield running.next()
