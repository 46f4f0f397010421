"""Threads that compute blocks of runs: one for each core of a CPU."""

import contextlib
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import jax


def count(devices: int = 1) -> int:
    """Returns how many blocks are computed at once, where each of them uses so many devices.

    On a CPU these are as many as this process has cores: XLA computes one after the other what one thread has started,
    and at the same time what several threads have. Another device computes one block.
    """
    if jax.default_backend() != "cpu":
        return 1
    # A process that is pinned to some cores has only these. Not every system can say which.
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // devices)


@contextlib.contextmanager
def pool(most: int) -> Iterator[ThreadPoolExecutor]:
    """Yields threads. At the end, or after an error, what has not begun is dropped, and the rest is waited for.

    Threads do not see the caller's context managers of JAX, so they are given compiled programs.
    """
    threads = ThreadPoolExecutor(most, "stellaris-lab")
    try:
        yield threads
    finally:
        threads.shutdown(cancel_futures=True)
