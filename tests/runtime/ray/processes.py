"""Looking at processes and at Ray's object store from outside."""

import contextlib
import os
import signal
import time
from ipaddress import IPv4Address, IPv6Address, ip_address

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


def references() -> set[str]:
    """The objects that this process refers to, by the numbers that Ray gives them."""
    return set(ray._private.worker.global_worker.core_worker.get_all_reference_counts())


def listening(pid: int) -> list[IPv4Address | IPv6Address]:
    """The addresses at which a process accepts connections."""
    sockets = set()
    try:
        for name in os.listdir(f"/proc/{pid}/fd"):
            with contextlib.suppress(FileNotFoundError):
                sockets.add(os.readlink(f"/proc/{pid}/fd/{name}"))
    except FileNotFoundError:
        return []  # it has ended
    found: list[IPv4Address | IPv6Address] = []
    for version in ("tcp", "tcp6"):
        with open(f"/proc/net/{version}") as file:
            rows = [line.split() for line in file.readlines()[1:]]
        # Of each row the second is the address, in words of the machine's order; the fourth is the state, which is 0A
        # for listening; and the tenth is the socket's number.
        for row in rows:
            if row[3] == "0A" and f"socket:[{row[9]}]" in sockets:
                address = row[1].split(":")[0]
                words = [bytes.fromhex(address[i : i + 8])[::-1] for i in range(0, len(address), 8)]
                found.append(_plain(ip_address(b"".join(words))))
    return found


def _plain(address: IPv4Address | IPv6Address) -> IPv4Address | IPv6Address:
    """An address of IPv4 as such, where it is written as one of IPv6."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address
