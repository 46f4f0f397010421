"""Looking at processes and at Ray's object store from outside."""

import os
import signal
import time

import ray


def kill(pid: int) -> None:
    """Kills a process, which has no time to say so."""
    os.kill(pid, signal.SIGKILL)
    assert gone(pid)


def gone(pid: int, *, within: float = 20.0) -> bool:
    """Whether a process ends before so many seconds are over; its parent need not have noticed."""
    until = time.monotonic() + within
    while time.monotonic() < until:
        try:
            with open(f"/proc/{pid}/stat") as file:
                state = file.read().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def children(pid: int) -> set[int]:
    """All that a process has started, and what these have."""
    parents: dict[int, int] = {}
    for name in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{name}/stat") as file:
                parents[int(name)] = int(file.read().rpartition(")")[2].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def references() -> set[str]:
    """The objects that this process refers to, by the numbers that Ray gives them."""
    return set(ray._private.worker.global_worker.core_worker.get_all_reference_counts())
