"""Clocks: virtual time stands until it is set, wall time passes and can be interrupted."""

import time
from queue import SimpleQueue
from typing import Any

from stellaris.runtime.engine.clock import Clock, VirtualClock, WallClock


def test_virtual_time_stands() -> None:
    """Until its driver sets it."""
    clock = VirtualClock()
    assert isinstance(clock, Clock)
    assert (clock.virtual, clock.now) == (True, 0.0)
    clock.now = 3.5
    assert clock.now == 3.5


def test_wall_time_passes() -> None:
    """From 0 on, at the pace of the machine's own clock."""
    before = time.monotonic()
    clock = WallClock()
    assert isinstance(clock, Clock)
    assert not clock.virtual
    first = clock.now
    assert clock.reach(first + 0.002, SimpleQueue()) is None
    assert first + 0.002 <= clock.now <= time.monotonic() - before


def test_waiting_is_interrupted() -> None:
    """By what is in the queue, even if the instant never comes; an instant that has passed is not waited for."""
    clock = WallClock()
    interruptions: SimpleQueue[Any] = SimpleQueue()
    interruptions.put("one")
    interruptions.put("two")
    assert clock.reach(float("inf"), interruptions) == "one"
    assert clock.reach(-1.0, interruptions) is None
    assert interruptions.get_nowait() == "two"
