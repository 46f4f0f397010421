"""Bodies that hang, raise, or are quick; batches of which some fail; the keys that they get."""

import gc
import subprocess
import sys
import threading
import time
import traceback

import jax
import pytest

from stellaris.runtime import Faults, Function, FunctionError, FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant, Measured


def deploy(compute=1.0, *, clock="virtual", threads=None, hang_after=600.0, seed=0, **spec) -> SimulatedPlatform:
    """A platform with the one function `f`."""
    spec = FunctionSpec(Constant(compute) if isinstance(compute, float) else compute, **spec)
    return SimulatedPlatform({"f": spec}, clock=clock, threads=threads, hang_after=hang_after, seed=seed)


def drain(platform: SimulatedPlatform) -> list:
    """Every invocation that is left, in the order in which they are handed out."""
    return list(iter(platform.next_completion, None))


@pytest.fixture
def blocked():
    """A body that does not return before the test ends."""
    event = threading.Event()
    yield lambda context, *arguments: event.wait(60.0)
    event.set()


# ---- bodies that hang -----------------------------------------------------------------------------------------------


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


def test_threads_that_hang_are_replaced(blocked):
    """With one thread, and three bodies that never come back, the fourth still runs."""
    with deploy(1.0, hang_after=0.1, threads=1) as platform:
        for _ in range(3):
            platform.invoke("f", blocked)
            assert platform.next_completion().status == "hung"
        platform.invoke("f", lambda context: "fine")
        assert platform.next_completion().result() == "fine"


def test_a_slow_body_does_not_hang():
    """Returning within the patience is soon enough."""
    with deploy(1.0, hang_after=30.0) as platform:
        platform.invoke("f", lambda context: time.sleep(0.2) or "late")
        assert platform.next_completion().result() == "late"


def test_a_batch_that_hangs(blocked):
    """All of it does, and is waited for once."""
    function = Function(lambda context: None, batched=lambda contexts, arguments: blocked(None))
    with deploy(1.0, hang_after=0.3) as platform:
        for _ in range(4):
            platform.invoke("f", function)
        began = time.monotonic()
        assert [(i.status, i.finished) for i in drain(platform)] == [("hung", 1.0)] * 4
        assert time.monotonic() - began < 1.0  # not four times 0.3 s


@pytest.mark.parametrize(("timeout", "ending"), [(None, ("hung", 0.0)), (2.0, ("timed_out", 2.0))])
def test_a_measured_body_that_hangs(blocked, timeout, ending):
    """Ends the same ways."""
    with deploy(Measured(), hang_after=0.2, timeout=timeout) as platform:
        platform.invoke("f", blocked)
        done = platform.next_completion()
        assert (done.status, done.finished) == ending


@pytest.mark.parametrize(("timeout", "status"), [(None, "hung"), (0.3, "timed_out")])
def test_a_body_that_hangs_on_the_wall_clock(blocked, timeout, status):
    """Is given up on after its time-out, or else after `hang_after`; its container ends."""
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
    """Waiting for a thread does not count as running: the second is quick, and completes first."""
    with deploy(0.01, clock="wall", hang_after=0.3, timeout=timeout, threads=1) as platform:
        platform.invoke("f", blocked)
        platform.invoke("f", lambda context: "fine")
        first, second = drain(platform)
        assert (first.number, first.result()) == (1, "fine")
        assert (second.number, second.status) == (0, "timed_out" if timeout else "hung")


def test_bodies_that_run_at_once_on_the_wall_clock_do_not_wait_for_threads():
    """Four that wait for each other, on a platform that is told of one thread."""
    together = threading.Barrier(4)
    with deploy(0.0, clock="wall", timeout=30.0, threads=1) as platform:
        for _ in range(4):
            platform.invoke("f", lambda context: together.wait(20.0))
        assert [done.status for done in drain(platform)] == ["completed"] * 4


def test_a_killed_body_keeps_its_slot_on_the_wall_clock_until_it_ends():
    """The next container has another one, the one after the end of the first body has the first slot again."""
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
    """Its container is lost while it runs on its thread; another one starts in its slot at the same instant."""
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


def test_threads_end_with_a_platform_that_nobody_closes():
    """Once it is collected."""
    before = set(threading.enumerate())
    platforms = [deploy(0.01, threads=2) for _ in range(5)]
    for platform in platforms:
        platform.invoke("f", slow)
        platform.next_completion()
    started = set(threading.enumerate()) - before
    assert len(started) == 5
    del platform
    platforms.clear()
    gc.collect()
    for thread in started:
        thread.join(20.0)
    assert not [thread for thread in started if thread.is_alive()]


@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_an_exception_does_not_wait_for_bodies_that_run(blocked, clock):
    """A `with` block that is interrupted is left after some two seconds."""
    begun = threading.Event()

    def body(context):
        begun.set()
        blocked(context)

    def interrupted():
        with deploy(1.0, clock=clock, timeout=50.0) as platform:
            platform.invoke("f", body)
            platform.next_completion(until=0.05)
            assert begun.wait(20.0)
            raise KeyboardInterrupt

    began = time.monotonic()
    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert time.monotonic() - began < 10.0


def test_the_pace_of_a_lambda_in_a_loop_is_known():
    """It is new at every call, and as quick as before: it need not be handed over to a thread."""
    with deploy(1.0, threads=1) as platform:
        threads_of = []
        for _ in range(20):
            platform.invoke("f", lambda context: threading.get_ident())
            threads_of.append(platform.next_completion().result())
    assert threads_of[0] != threading.get_ident()
    assert threads_of[-1] == threading.get_ident()


@pytest.mark.parametrize("clock", ["virtual", "wall"])
@pytest.mark.parametrize("closed", [True, False])
def test_a_process_ends_in_spite_of_bodies_that_hang(clock, closed):
    """Promptly, whether the platform is closed or not."""
    program = f"""
import threading, time
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant
platform = SimulatedPlatform({{"f": FunctionSpec(Constant(0.01))}}, clock={clock!r}, hang_after=0.2, threads=2)
platform.invoke("f", lambda context: threading.Event().wait())
print(platform.next_completion().status)
platform.invoke("f", lambda context: threading.Event().wait())
print(platform.next_completion().status, flush=True)
began = time.monotonic()
if {closed}:
    platform.close()
print(time.monotonic() - began < 5.0)
"""
    got = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False)
    assert (got.returncode, got.stdout.split(), got.stderr) == (0, ["hung", "hung", "True"], "")


# ---- batches of which some fail -------------------------------------------------------------------------------------


def test_results_that_are_exceptions_fail_alone():
    """Each with its own; the others of the batch complete, and the containers live on."""

    def batched(contexts, arguments):
        return [ValueError(f"bad {x}") if x % 2 else 10 * x for (x,) in arguments]

    function = Function(lambda context, x: None, batched=batched)
    with deploy(1.0) as platform:
        for x in range(5):
            platform.invoke("f", function, x)
        done = drain(platform)
        assert [i.status for i in done] == ["completed", "failed", "completed", "failed", "completed"]
        assert [i.result() for i in done if i.status == "completed"] == [0, 20, 40]
        assert [str(i.error) for i in done if i.status == "failed"] == ["bad 1", "bad 3"]
        with pytest.raises(FunctionError, match="failed at 1 s: ValueError: bad 3") as error:
            done[3].result()
        assert error.value.__cause__ is done[3].error
        assert platform.trace.select("container_ended").time.tolist() == []


def test_an_init_that_raises_in_a_batch_fails_its_own_invocation():
    """The others are handed to the batch, in order, with their own arguments; the container tries again later."""
    tried, calls = [], []

    def init(slot, key):
        tried.append(slot)
        if slot == 1 and tried.count(1) == 1:
            raise OSError("out of luck")
        return f"slot {slot}"

    def batched(contexts, arguments):
        calls.append([(context.state, x) for context, (x,) in zip(contexts, arguments, strict=True)])
        return [f"{context.state}: {x}" for context, (x,) in zip(contexts, arguments, strict=True)]

    function = Function(lambda context, x: None, init=init, batched=batched)
    with deploy(1.0) as platform:
        for x in "abc":
            platform.invoke("f", function, x)
        first, second, third = drain(platform)
        assert (first.result(), second.status, third.result()) == ("slot 0: a", "failed", "slot 2: c")
        assert (type(second.error), str(second.error)) == (OSError, "out of luck")
        assert calls == [[("slot 0", "a"), ("slot 2", "c")]]
        for x in "def":
            platform.invoke("f", function, x)
        assert sorted(i.result() for i in drain(platform)) == ["slot 0: f", "slot 1: e", "slot 2: d"]
        assert sorted(tried) == [0, 1, 1, 2]


def test_a_batch_of_which_no_container_could_be_made():
    """Is not called at all."""
    calls = []

    def init(slot, key):
        raise OSError(f"slot {slot}")

    function = Function(lambda context: None, init=init, batched=lambda *arguments: calls.append(arguments))
    with deploy(1.0) as platform:
        for _ in range(2):
            platform.invoke("f", function)
        assert [str(i.error) for i in drain(platform)] == ["slot 0", "slot 1"]
    assert calls == []


# ---- where bodies run, and with what --------------------------------------------------------------------------------


@pytest.mark.parametrize(("timeout", "at_home"), [(None, True), (5.0, False)])
def test_quick_bodies_run_on_the_calling_thread(timeout, at_home):
    """Once they have shown to be quick; not where a time-out says that they may hang. What they return is the same."""
    with deploy(1.0, timeout=timeout) as platform:
        threads = []
        for x in range(60):
            platform.invoke("f", quick, x)
            thread, value = platform.next_completion().result()
            threads.append(thread)
            assert value == x
        home = threading.get_ident()
        assert home not in threads[:8]
        # An interruption may have made a run look slow: at least one of the later ones is trusted.
        assert (home in threads[8:]) is at_home
        platform.invoke("f", lambda context: threading.get_ident())  # another program is not
        assert platform.next_completion().result() != home


def quick(context, x):
    """A body that takes a microsecond."""
    return threading.get_ident(), x


def test_slow_bodies_run_on_a_thread():
    """However often they have run."""
    with deploy(1.0) as platform:
        for _ in range(12):
            platform.invoke("f", slow)
            assert platform.next_completion().result() != threading.get_ident()


def slow(context):
    """A body that takes longer than to hand it over."""
    time.sleep(0.002)
    return threading.get_ident()


@pytest.mark.parametrize("runs", [1, 40])
@pytest.mark.parametrize("clock", ["virtual", "wall"])
def test_exceptions_keep_their_traceback(runs, clock):
    """On a thread of the platform's, and on the calling one."""

    def deep_inside():
        raise KeyError("the reason")

    def faulty(context, last):
        if last:
            deep_inside()

    with deploy(0.001, clock=clock) as platform:
        for run in range(runs):
            platform.invoke("f", faulty, run == runs - 1)
            failed = platform.next_completion()
        assert failed.status == "failed"
        frames = [frame.name for frame in traceback.extract_tb(failed.error.__traceback__)]
        assert frames[-2:] == ["faulty", "deep_inside"]
        with pytest.raises(FunctionError, match="KeyError: 'the reason'") as error:
            failed.result()
        assert error.value.__cause__ is failed.error


def test_an_exception_of_a_batch_keeps_its_traceback():
    """It fails all of the batch."""

    def batched(contexts, arguments):
        raise KeyError("the reason")

    with deploy(1.0) as platform:
        for _ in range(2):
            platform.invoke("f", Function(lambda context: None, batched=batched))
        for failed in drain(platform):
            assert [frame.name for frame in traceback.extract_tb(failed.error.__traceback__)][-1] == "batched"


@pytest.mark.parametrize("batch", [False, True])
def test_init_has_a_key_of_its_own(batch):
    """No container's is that of an invocation, or of another container; they depend on the seed, and on it alone."""

    def init(slot, key):
        return tuple(jax.random.key_data(key).tolist())

    def body(context):
        return context.state, tuple(jax.random.key_data(context.key).tolist())

    def batched(contexts, arguments):
        return [body(context) for context in contexts]

    def keys(seed: int) -> list:
        with deploy(1.0, seed=seed, keep_alive=0.0) as platform:
            function = Function(body, init=init, batched=batched if batch else None)
            for at in (0.0, 0.0, 5.0, 5.0):
                platform.invoke("f", function, at=at)
            return [i.result() for i in drain(platform)]

    drawn = keys(0)
    assert len({key for pair in drawn for key in pair}) == 8
    assert keys(0) == drawn
    assert not {key for pair in keys(1) for key in pair} & {key for pair in drawn for key in pair}


def test_a_containers_key_does_not_depend_on_its_first_invocation():
    """The state of container 0 is the same whichever call comes first to it."""

    def init(slot, key):
        return jax.random.key_data(key).tolist()

    function = Function(lambda context: context.state, init=init)
    states = []
    for before in (0, 1):
        with SimulatedPlatform({"f": FunctionSpec(Constant(1.0)), "g": FunctionSpec(Constant(1.0))}) as platform:
            for _ in range(before):
                platform.invoke("g", lambda context: None, at=5.0)
            states.append(platform.invoke("f", function))
            drain(platform)
    assert states[0].number != states[1].number
    assert states[0].result() == states[1].result()
