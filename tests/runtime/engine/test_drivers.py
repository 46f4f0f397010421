"""Drivers of time: bounds, standstills and deadlocks; and the wall clock."""

import math
import time

import pytest

from stellaris.runtime import Faults, Node, Resources, SimulatedPlatform
from stellaris.runtime.delays import Constant, Measured
from stellaris.runtime.engine import drivers
from tests.runtime.helpers import deploy, drain, nothing, spec, times


def test_until():
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


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_deadlock_is_an_error(clock):
    """A provisioned container holds the room for which another function waits, and never ends."""
    specs = {
        "a": spec(0.01, provisioned=1, resources=Resources(memory=3.0)),
        "b": spec(0.01, resources=Resources(memory=2.0)),
    }
    nodes = [Node("small", memory=4.0, vcpus=8.0)]
    with SimulatedPlatform(specs, clock=clock, nodes=nodes, hang_after=0.2) as platform:
        platform.invoke("a", nothing)
        platform.invoke("b", nothing)
        cancelled = platform.invoke("b", nothing)
        assert platform.next_completion().function == "a"
        platform.cancel(cancelled)  # is not named below, although it has not left the queue
        with pytest.raises(RuntimeError, match=r"deadlock: invocations of \{'b': 1\} wait for room that nothing will"):
            platform.next_completion()


def test_replaced_containers_do_not_hide_a_deadlock(monkeypatch):
    """Containers that are lost and replaced for ever keep the agenda full, while another function waits for room."""
    monkeypatch.setattr(drivers, "_MAX_EVENTS_IN_VAIN", 100)
    specs = {
        "a": spec(1.0, provisioned=1, resources=Resources(memory=3.0)),
        "b": spec(1.0, resources=Resources(memory=2.0)),
    }
    faults = {"a": Faults(lifetime=Constant(0.01))}
    with SimulatedPlatform(specs, nodes=[Node("small", memory=4.0)], faults=faults) as platform:
        platform.invoke("a", nothing, at=9.0)  # crashes after 900 replacements, in which `b` had no room
        platform.invoke("b", nothing)
        assert platform.next_completion().status == "crashed"
        assert platform.next_completion(until=20.0) is None  # a bound is kept
        with pytest.raises(RuntimeError, match=r"deadlock: invocations of \{'b': 1\} wait for room that nothing will"):
            platform.next_completion()


def test_wall_clock_order_and_lower_bounds():
    with deploy(0.01, cold_start=0.01, clock="wall") as platform:
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


def test_wall_clock_measured():
    def body(context):
        began = time.perf_counter()
        sum(range(100_000))
        return time.perf_counter() - began

    with deploy(Measured(3.0), clock="wall") as platform:
        invocation = platform.invoke("f", body, work=4.0)
        assert platform.next_completion(until=1.0) is invocation
        assert invocation.finished >= invocation.started + 12 * invocation.result()
        assert platform.now >= invocation.finished


def test_a_measured_body_that_returned_does_not_hang():
    """Its time is scaled, and ends long after a body that has not returned would be given up on."""

    def body(context):
        began = time.perf_counter()
        while time.perf_counter() < began + 0.002:
            pass

    with deploy(Measured(400.0), clock="wall", hang_after=0.5) as platform:
        platform.invoke("f", body)
        done = platform.next_completion()
        assert done.status == "completed"
        assert done.finished >= 0.8


@pytest.mark.parametrize("limits", [{"timeout": 1e12}, {"hang_after": 1e12}, {"hang_after": math.inf}])
def test_a_limit_may_be_later_than_a_thread_can_wait(limits):
    with deploy(0.0, clock="wall", **limits) as platform:
        platform.invoke("f", lambda context: time.sleep(0.05))
        assert platform.next_completion().status == "completed"
