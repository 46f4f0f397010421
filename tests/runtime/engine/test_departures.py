"""How calls end: by themselves, by a time-out, or cancelled; and what they leave behind."""

import gc
import threading
import weakref

import numpy as np
import pytest

from stellaris.runtime import (
    Faults,
    Function,
    FunctionError,
    FunctionSpec,
    PriceSheet,
    Rate,
    SimulatedPlatform,
    Transfer,
)
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import deploy, drain, handed_out, nothing, times


def test_a_killed_invocation_gives_up_its_place():
    with deploy(1.0, max_concurrency=1, timeout=2.0, cold_start=0.5) as platform:
        for work in (9.0, 1.0):
            platform.invoke("f", nothing, work=work)
        assert [(i.status, i.cold, *times(i)) for i in drain(platform)] == [
            ("timed_out", True, 0.0, 0.5, 2.5),
            ("completed", True, 0.0, 3.0, 4.0),
        ]


def test_timeout():
    """Killed that long after the start, with its container; its body has no effect; result() says so."""
    ran = []
    with deploy(2.0, timeout=1.0, cold_start=0.5) as platform:
        killed = platform.invoke("f", lambda context: ran.append("killed"), tag="t")
        assert platform.next_completion() is killed
        assert (killed.status, *times(killed), killed.error) == ("timed_out", 0.0, 0.5, 1.5, None)
        with pytest.raises(FunctionError, match=r"function 'f', invocation 0 \(attempt 1\) timed out at 1.5 s$"):
            killed.result()
        assert platform.trace.select("container_ended").time.tolist() == [1.5]
        assert platform.bill(PriceSheet("p", functions={"f": Rate(per_second=1.0)})).total == 1.0
        platform.invoke("f", lambda context: ran.append("ran"), work=0.5)  # takes exactly as long as it may
        assert (platform.next_completion().status, platform.now) == ("completed", 3.0)
    assert ran == ["ran"]


def test_timeout_includes_the_transfer():
    with deploy(1.0, timeout=1.5, transfer=Transfer(Constant(1.0), 1.0)) as platform:
        platform.invoke("f", Function(nothing, upload=0))
        assert (platform.next_completion().status, platform.now) == ("timed_out", 1.5)


@pytest.mark.slow
def test_arguments_are_let_go_of():
    with deploy() as platform:
        for body in (nothing, lambda context, x: 1 / 0):
            value = np.zeros(3)
            gone = weakref.ref(value)
            invocation = platform.invoke("f", body, value)
            del value
            assert gone() is not None
            platform.next_completion()
            if invocation.error:
                invocation.error.__traceback__ = None
            gc.collect()
            assert gone() is None


@pytest.mark.parametrize("limits", [{"timeout": 100.0}, {"hang_after": 100.0}])
def test_results_are_let_go_of_before_the_limit_on_the_wall_clock(limits):
    """The event that would end a hanging call stays in the agenda, without the result."""
    with deploy(0.0, clock="wall", **limits) as platform:
        platform.invoke("f", lambda context: np.zeros(3))
        gone = weakref.ref(platform.next_completion().result())
        gc.collect()
        assert gone() is None


def test_cancel():
    """What waits, starts or runs ends with its container, and is not handed out; what has ended is left alone."""
    with deploy(2.0, cold_start=0.5, max_concurrency=2) as platform:
        running, other, waiting = (platform.invoke("f", lambda context: "value") for _ in range(3))
        later = platform.invoke("f", lambda context: None, at=50.0)
        platform.next_completion(until=1.0)
        for invocation in (running, later):
            platform.cancel(invocation)
        assert (running.status, running.finished) == ("cancelled", 1.0)
        assert [(d.number, d.status, d.started) for d in drain(platform)] == [
            (1, "completed", 0.5),
            (2, "completed", 1.5),  # in a new container, at once
        ]
        platform.cancel(other)
        assert (other.status, other.result(), waiting.result()) == ("completed", "value", "value")
        assert platform.trace.select("cancelled").invocation.tolist() == [0]  # 3 was never submitted


def test_who_waited_is_cancelled():
    with deploy(2.0, max_concurrency=1) as platform:
        _, gone, last = (platform.invoke("f", lambda context: None) for _ in range(3))
        platform.next_completion(until=1.0)
        platform.cancel(gone)
        assert handed_out(platform) == [(0, "completed", 2.0), (2, "completed", 4.0)]
        assert last.cold is False


def test_a_killed_body_keeps_its_slot_on_the_wall_clock_until_it_ends():
    gate, ended = threading.Event(), threading.Event()

    def waits(context):
        gate.wait(60.0)
        ended.set()
        return context.slot

    with deploy(0.0, clock="wall", timeout=0.3, max_concurrency=1, keep_alive=0.0) as platform:
        platform.invoke("f", waits)
        killed = platform.next_completion()
        assert (killed.status, killed.container.slot) == ("timed_out", 0)
        platform.invoke("f", lambda context: context.slot)
        assert platform.next_completion().result() == 1
        gate.set()
        assert ended.wait(60.0)
        while killed.container.occupied:  # the message of its end is on the way
            platform.next_completion(until=platform.now + 0.01)
        platform.invoke("f", lambda context: context.slot)  # in a new container
        assert platform.next_completion().result() == 0


def test_a_killed_body_has_ended_in_virtual_time_before_its_slot_is_given_away():
    log, begun, gate = [], threading.Event(), threading.Event()

    def first(context):
        log.append(("begins", context.slot))
        begun.set()
        gate.wait(0.2)  # long enough for the second to begin, if it may
        log.append(("ends", context.slot))

    def second(context):
        log.append(("next", context.slot))

    faults = {"f": Faults(lose_containers_at=(1.0,))}
    spec = FunctionSpec(Constant(5.0), max_concurrency=1, timeout=100.0)
    with SimulatedPlatform({"f": spec}, faults=faults, threads=2) as platform:
        platform.invoke("f", first)
        platform.invoke("f", second)
        lost = platform.next_completion()
        assert (lost.status, lost.finished) == ("crashed", 1.0)
        assert platform.next_completion().status == "completed"
    assert begun.is_set()
    assert log == [("begins", 0), ("ends", 0), ("next", 0)]
