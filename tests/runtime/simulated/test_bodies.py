"""Bodies: where they run, in which batches, how long they take, and that they may hang."""

import threading
import time

import jax
import numpy as np
import pytest

from stellaris.runtime import Function, FunctionError, FunctionSpec, SimulatedPlatform, Transfer
from stellaris.runtime.delays import Constant, Measured
from tests.runtime.helpers import deploy, drain, spec


def recording(groups: list, **options) -> Function:
    """A function that doubles, and records the numbers of every batch."""

    def batched(contexts, arguments):
        groups.append([context.number for context in contexts])
        return [2 * x for (x,) in arguments]

    return Function(lambda context, x: 2 * x, batched=batched, **options)


@pytest.mark.parametrize(
    ("calls", "max_batch", "expected"),
    [
        ([(0.0, 1.0), (0.0, 1.0), (0.0, 1.0)], 64, [[0, 1, 2]]),
        ([(0.0, 1.0), (0.5, 1.0), (0.75, 1.0)], 64, [[0, 1, 2]]),  # at different instants
        ([(0.0, 1.0), (0.5, 1.0), (1.0, 1.0)], 64, [[0, 1], [2]]),  # the first is due before the third starts
        ([(0.0, 3.0), (0.0, 1.0), (2.0, 1.0)], 64, [[0, 1], [2]]),  # the second is due first
        ([(0.0, 3.0), (0.0, 1.0), (0.5, 2.0), (2.0, 2.0), (2.25, 1.0)], 64, [[0, 1, 2], [3, 4]]),
        ([(0.0, 1.0)] * 5, 2, [[0, 1], [2, 3], [4]]),
        ([(0.0, 1.0)] * 3, 1, [[0], [1], [2]]),
    ],
)
def test_batches_close_when_the_first_is_due_or_when_they_are_full(calls, max_batch, expected):
    groups = []
    function = recording(groups, max_batch=max_batch)
    with deploy(1.0) as platform:
        for at, work in calls:
            platform.invoke("f", function, 10 + len(groups), at=at, work=work)
        for number, invocation in enumerate(sorted(drain(platform), key=lambda i: i.number)):
            assert (invocation.number, invocation.result()) == (number, 20)
    assert groups == expected


@pytest.mark.parametrize(
    ("options", "max_batch", "expected"),
    [
        ({}, 64, [[0, 1, 2], [3]]),
        ({}, 2, [[0, 1], [2], [3]]),
        ({"timeout": 60.0}, 64, []),  # each alone: if one of a batch hung, the others would be late
    ],
)
def test_on_the_wall_clock_bodies_that_start_at_one_instant_share_a_call(options, max_batch, expected):
    groups = []
    function = recording(groups, max_batch=max_batch)
    with deploy(0.0, clock="wall", **options) as platform:
        for x in range(3):
            platform.invoke("f", function, x, at=0.02)
        assert sorted(done.result() for done in drain(platform)) == [0, 2, 4]
        platform.invoke("f", function, 3)
        assert platform.next_completion().result() == 6
    assert sorted(groups) == expected


def test_on_the_wall_clock_a_body_whose_time_counts_runs_alone():
    groups = []
    with SimulatedPlatform({"f": FunctionSpec(compute=Measured())}, clock="wall") as platform:
        for x in range(2):
            platform.invoke("f", recording(groups), x, at=0.02)
        assert len(drain(platform)) == 2
    assert groups == []


def test_batched_bodies_are_not_run_for_nothing():
    groups = []
    function = recording(groups)
    with deploy(1.0, timeout=2.0) as platform:
        for work in (1.0, 5.0, 1.0):
            platform.invoke("f", function, 1, work=work)
        assert [i.status for i in drain(platform)] == ["completed", "completed", "timed_out"]
        platform.invoke("f", function, 1)
        platform.next_completion(until=2.5)
    assert groups == [[0, 2]]


@pytest.mark.parametrize("batched", [None, lambda contexts, arguments: ["in a batch"] * len(contexts)])
def test_measured(batched):
    """At least the time that the body took, times the factor and the work; bodies run alone; errors still show."""

    def body(context):
        began = time.perf_counter()
        sum(range(20_000))
        return time.perf_counter() - began

    with deploy(Measured(100.0), cold_start=1.0) as platform:
        invocation = platform.invoke("f", Function(body, batched=batched, max_batch=1), work=3.0)
        assert platform.next_completion() is invocation
        assert invocation.finished - invocation.started >= 300 * invocation.result() > 0
        assert platform.now == invocation.finished
        platform.invoke("f", lambda context: 1 / 0)
        assert platform.next_completion().status == "failed"
    with deploy(Measured(0.0), transfer=Transfer(Constant(0.25), 1.0)) as platform:
        platform.invoke("f", Function(body, upload=0))
        assert platform.next_completion().finished == 0.25


def test_measured_bodies_can_be_killed():
    with deploy(Measured(1e12), timeout=2.0) as platform:
        platform.invoke("f", lambda context: sum(range(1000)))
        assert (platform.next_completion().status, platform.now) == ("timed_out", 2.0)


def test_a_body_that_hangs_ends_by_its_timeout(blocked):
    """In virtual time: when it would have been killed, with its container; who waits gets a new one."""
    with deploy(1.0, timeout=3.0, hang_after=0.2, cold_start=Constant(0.5), max_concurrency=1) as platform:
        platform.invoke("f", blocked)
        platform.invoke("f", lambda context: "fine")
        began = time.monotonic()
        hangs, other = drain(platform)
        assert 0.2 <= time.monotonic() - began < 10.0
        assert (hangs.status, hangs.started, hangs.finished) == ("timed_out", 0.5, 3.5)
        assert (other.result(), other.started, other.cold) == ("fine", 4.0, True)
        with pytest.raises(FunctionError, match=r"timed out at 3.5 s"):
            hangs.result()
        assert platform.trace.select("timed_out").time.tolist() == [3.5]
        assert platform.trace.select("hung").time.tolist() == []
        assert platform.trace.select("container_ended").time.tolist() == [3.5]


def test_a_body_that_hangs_without_a_timeout(blocked):
    """Ends as hung when it would have completed; its container ends, too, and trying again is of no use."""
    with deploy(1.0, hang_after=0.2) as platform:
        platform.invoke("f", blocked)
        hangs = platform.next_completion()
        assert (hangs.status, hangs.finished, hangs.value) == ("hung", 1.0, None)
        with pytest.raises(FunctionError, match=r"invocation 0 \(attempt 1\) hung at 1 s$"):
            hangs.result()
        with pytest.raises(FunctionError):
            platform.retry(hangs)
        assert platform.trace.select("container_ended").time.tolist() == [1.0]
        platform.invoke("f", lambda context: "fine")
        assert platform.next_completion().result() == "fine"


def test_a_batch_that_hangs(blocked):
    function = Function(lambda context: None, batched=lambda contexts, arguments: blocked(None))
    with deploy(1.0, hang_after=0.6) as platform:
        for _ in range(4):
            platform.invoke("f", function)
        began = time.monotonic()
        assert [(i.status, i.finished) for i in drain(platform)] == [("hung", 1.0)] * 4
        assert time.monotonic() - began < 2.0  # not four times 0.6 s


@pytest.mark.parametrize(("timeout", "ending"), [(None, ("hung", 0.0)), (2.0, ("timed_out", 2.0))])
def test_a_measured_body_that_hangs(blocked, timeout, ending):
    with deploy(Measured(), hang_after=0.2, timeout=timeout) as platform:
        platform.invoke("f", blocked)
        done = platform.next_completion()
        assert (done.status, done.finished) == ending


@pytest.mark.parametrize(("timeout", "status"), [(None, "hung"), (0.3, "timed_out")])
def test_a_body_that_hangs_on_the_wall_clock(blocked, timeout, status):
    limit = timeout or 0.4
    with deploy(0.01, clock="wall", hang_after=0.4, timeout=timeout, threads=2) as platform:
        platform.invoke("f", blocked)
        done = platform.next_completion()
        assert done.status == status
        assert limit <= done.finished - done.started < limit + 5.0
        platform.invoke("f", lambda context: "fine")
        done = platform.next_completion()
        assert (done.result(), done.cold) == ("fine", True)


@pytest.mark.parametrize("timeout", [None, 0.3])
def test_a_body_that_hangs_on_the_wall_clock_delays_no_other(blocked, timeout):
    with deploy(0.01, clock="wall", hang_after=0.3, timeout=timeout, threads=1) as platform:
        platform.invoke("f", blocked)
        platform.invoke("f", lambda context: "fine")
        first, second = drain(platform)
        assert (first.number, first.result()) == (1, "fine")
        assert (second.number, second.status) == (0, "timed_out" if timeout else "hung")


@pytest.mark.parametrize("threads", [1, 4])
@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_a_body_cannot_drive_its_platform(threads, clock):
    """Its invocations would have the time at which its thread happens to run; another platform's it may drive."""
    deployed = {name: FunctionSpec(Constant(0.001)) for name in ("outer", "inner")}
    with SimulatedPlatform(deployed, threads=threads, clock=clock) as platform:
        earlier = platform.invoke("outer", lambda context: None)
        ways = {
            "invoke": lambda: platform.invoke("inner", own),
            "next_completion": platform.next_completion,
            "prewarm": lambda: platform.prewarm("inner"),
            "retry": lambda: platform.retry(earlier),
            "cancel": lambda: platform.cancel(earlier),
            "store": lambda: platform.store.publish("x", 1),
            "close": platform.close,
        }
        assert platform.next_completion() is earlier

        def own(context, method):
            return ways[method]()

        def another(context):
            with SimulatedPlatform(deployed) as other:
                other.invoke("inner", lambda context: 7)
                return other.next_completion().result()

        for method in ways:
            for _ in range(12):  # quick bodies run on the calling thread after some runs
                call = platform.invoke("outer", own, method)
                assert platform.next_completion() is call
                with pytest.raises(
                    FunctionError, match=rf"platform\.{method} in a body: only the loop that runs the platform"
                ):
                    call.result()
        call = platform.invoke("outer", another)
        assert platform.next_completion().result() == 7
        assert platform.trace.invocations().names == ("outer",)


def pass_time(platform: SimulatedPlatform, seconds: float) -> None:
    """Lets the wall clock advance at once, as if the loop had computed something else."""
    platform._clock._start -= seconds


@pytest.mark.parametrize("timeout", [5.0, None])
def test_a_body_that_returns_in_time_while_the_loop_is_busy(timeout):
    """Its limit passes before the loop takes note of the return; the limits are those of the body, not of the loop."""
    gate = threading.Event()
    with SimulatedPlatform({"f": spec(0.01, timeout=timeout)}, clock="wall", hang_after=5.0) as platform:
        first = platform.invoke("f", lambda context: 7)
        second = platform.invoke("f", lambda context: gate.wait(60.0))
        assert platform.next_completion() is first
        gate.set()
        while platform._life.returned.empty():
            pass  # the body returns now
        pass_time(platform, 60.0)
        assert platform.next_completion() is second
        assert (second.status, second.value) == ("completed", True)
        assert second.finished < 60.0


def test_a_body_that_starts_late_has_its_whole_time():
    with SimulatedPlatform({"f": spec(0.01, timeout=5.0, max_concurrency=1)}, clock="wall") as platform:
        for _ in range(4):
            platform.invoke("f", lambda context: 7)
        ended = []
        for _ in range(4):
            pass_time(platform, 60.0)
            ended.append(platform.next_completion())
        assert [done.status for done in ended] == ["completed"] * 4
        assert ended[0].started > 60.0


def test_settings_of_the_loop_s_thread_do_not_reach_bodies():
    """Quick bodies run on the calling thread after some runs, and must do what they do on others."""
    with deploy(1.0) as platform, np.errstate(over="raise"):
        for _ in range(40):
            platform.invoke("f", lambda context: np.geterr()["over"])
            assert platform.next_completion().result() == "warn"


def test_jax_s_settings_of_the_loop_s_thread_do_not_reach_bodies():
    """Within and without the context manager, and on whichever thread a body happens to run, it computes the same."""
    add = jax.jit(lambda x: x + 0.1)
    with deploy(1.0) as platform:
        for i in range(60):
            with jax.enable_x64(i % 20 > 10):
                platform.invoke("f", lambda context: add(np.float64(1.0)).dtype)
                assert platform.next_completion().result() == np.float32
        jax.config.update("jax_enable_x64", True)
        try:
            platform.invoke("f", lambda context: add(np.float64(1.0)).dtype)
            assert platform.next_completion().result() == np.float64
        finally:
            jax.config.update("jax_enable_x64", False)


class Stopped(BaseException):
    """As `trio.Cancelled` or `pytest.exit`'s error."""


def test_any_exception_ends_its_call_on_every_thread():
    def body(context, stops):
        if stops:
            raise Stopped

    with deploy(1.0) as platform:
        for i in range(40):
            platform.invoke("f", body, i in (3, 30))
            done = platform.next_completion()
            assert done.status == ("failed" if i in (3, 30) else "completed")


def test_a_loop_goes_on_after_ctrl_c(monkeypatch):
    with deploy(1.0) as platform:
        call = platform.invoke("f", lambda context: 7)

        def interrupted(call):
            raise KeyboardInterrupt

        with monkeypatch.context() as patch:
            patch.setattr(platform._bodies, "finish", interrupted)
            with pytest.raises(KeyboardInterrupt):
                platform.next_completion()
        assert platform.next_completion() is call
        assert (call.result(), platform.now) == (7, 1.0)
