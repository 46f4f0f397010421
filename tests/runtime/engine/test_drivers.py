"""Drivers of time: bounds, standstills and deadlocks; and the wall clock."""

import threading
import time

import pytest

from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant, Measured, Uniform
from stellaris.runtime.engine import drivers
from tests.runtime.helpers import deploy, drain, nothing, times


def test_until_is_a_number():
    """No comparison with NaN holds: it would not bound anything."""
    with deploy() as platform, pytest.raises(ValueError, match="until=nan is not a number"):
        platform.next_completion(until=float("nan"))


def test_until():
    """Nothing ends by then: None, and then is now. What ends exactly then is handed out."""
    with deploy(1.0, cold_start=0.5) as platform:
        invocation = platform.invoke("f", nothing)
        assert [platform.next_completion(until=t) for t in (0.25, 0.75, 1.25)] == [None] * 3
        assert (platform.now, invocation.status) == (1.25, "running")
        assert platform.next_completion(until=0.5) is None
        assert platform.now == 1.25  # never back
        assert platform.next_completion(until=1.5) is invocation
        platform.invoke("f", nothing, at=5.0)
        assert platform.next_completion(until=4.0) is None
        platform.invoke("f", nothing)
        assert [times(i) for i in drain(platform)] == [(4.0, 4.0, 5.0), (5.0, 5.0, 6.0)]


@pytest.mark.parametrize("limit", [999, 1000])
def test_a_standstill_is_an_error(monkeypatch, limit):
    """As many events at one instant as the limit pass, one more raises: a loop that costs no time would never end."""
    assert drivers._MAX_EVENTS_AT_ONE_INSTANT == 100_000
    monkeypatch.setattr(drivers, "_MAX_EVENTS_AT_ONE_INSTANT", limit)
    with deploy(1.0) as platform:
        unknown = platform.store.latest("nothing")  # fails at its start: three events each
        for _ in range(333):
            platform.invoke("f", nothing, unknown)
            assert platform.next_completion().finished == 0.0
        platform.invoke("f", nothing, unknown)
        with pytest.raises(RuntimeError, match=f"more than {limit} events at 0.0 s: invocations that take no time"):
            platform.next_completion()


def test_many_events_at_different_instants_are_none(monkeypatch):
    """They are counted anew at every instant."""
    monkeypatch.setattr(drivers, "_MAX_EVENTS_AT_ONE_INSTANT", 100)
    with deploy(1.0, max_concurrency=1) as platform:
        unknown = platform.store.latest("nothing")
        for second in range(1, 4):
            for _ in range(30):
                platform.invoke("f", nothing, unknown)
                platform.next_completion()
            platform.invoke("f", nothing)
            assert platform.next_completion().finished == second


def on_the_wall(**specs) -> SimulatedPlatform:
    """Some functions, in real time."""
    return SimulatedPlatform(specs, clock="wall", threads=2)


def test_wall_clock_order_and_lower_bounds():
    """The same delays are really waited for, and completions come in order of time."""
    with on_the_wall(f=FunctionSpec(Constant(0.01), cold_start=Constant(0.01))) as platform:
        platform.store.publish("p", "value")
        for work in (4.0, 2.0, 0.0):
            platform.invoke("f", lambda context, p: p.value, platform.store.latest("p"), work=work)
        done = drain(platform)
        finished = [i.finished for i in done]
        assert finished == sorted(finished)
        assert sorted(i.number for i in done) == [0, 1, 2]
        for invocation in done:
            assert invocation.result() == "value"
            assert invocation.started >= 0.01
            assert invocation.finished >= invocation.started + 0.01 * invocation.work
        assert platform.now >= finished[-1] >= 0.05


def test_wall_clock_until_and_timeout():
    """A body that takes longer than its delay is waited for; one that hangs is killed, and stays killed."""
    gate = threading.Event()
    with on_the_wall(f=FunctionSpec(Constant(0.0), timeout=0.03), g=FunctionSpec(Constant(0.0))) as platform:
        hanging = platform.invoke("f", lambda context: gate.wait(5.0))
        assert platform.next_completion(until=0.01) is None
        assert platform.now >= 0.01
        assert platform.next_completion() is hanging
        assert hanging.status == "timed_out"
        assert hanging.finished >= hanging.started + 0.03
        slow = platform.invoke("g", lambda context: gate.wait(5.0))
        assert platform.next_completion(until=platform.now + 0.01) is None
        gate.set()
        assert platform.next_completion() is slow
        assert (slow.result(), hanging.status) == (True, "timed_out")


def test_wall_clock_measured():
    """The factor and the work make a body last as many times longer than it takes."""

    def body(context):
        began = time.perf_counter()
        sum(range(100_000))
        return time.perf_counter() - began

    with on_the_wall(f=FunctionSpec(Measured(3.0))) as platform:
        invocation = platform.invoke("f", body, work=4.0)
        assert platform.next_completion(until=1.0) is invocation
        assert invocation.finished >= invocation.started + 12 * invocation.result()
        assert platform.now >= invocation.finished


@pytest.mark.parametrize("compute", [Constant(0.0), Measured(1.0)], ids=str)
def test_wall_clock_results(compute):
    """Bodies that end, and bodies that raise, are handed out, whether their time is drawn or measured."""
    with on_the_wall(f=FunctionSpec(compute)) as platform:
        for x in (1, 0):
            platform.invoke("f", lambda context, x: 1 // x, x)
        done = [platform.next_completion(until=1.0) for _ in range(2)]
        assert sorted(i.status for i in done if i) == ["completed", "failed"]


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_deadlock_is_an_error(clock):
    """Nothing can ever end that would make room: said so, not waited for."""
    specs = {name: FunctionSpec(Uniform(0.0, 0.01), max_concurrency=1) for name in "ab"}
    with SimulatedPlatform(specs, clock=clock, hang_after=0.2) as platform:
        platform.invoke("a", lambda context: None)
        platform._life.admission._serving = True  # as if nobody were ever woken
        platform.invoke("a", lambda context: None)
        assert platform.next_completion().number == 0
        with pytest.raises(RuntimeError, match=r"invocations of \{'a': 1\} wait for room that nothing will ever free"):
            platform.next_completion()
