"""The simulated platform: containers, the order of events, bodies, and runs that repeat bit for bit."""

import functools
import gc
import threading
import time
import traceback
import weakref
from collections import defaultdict
from typing import NamedTuple

import jax
import numpy as np
import pytest

from stellaris.runtime import (
    Function,
    FunctionError,
    FunctionSpec,
    Machine,
    PriceSheet,
    Rate,
    SimulatedPlatform,
    Trace,
    Transfer,
)
from stellaris.runtime.delays import (
    Constant,
    Empirical,
    Exponential,
    Gamma,
    LogNormal,
    Measured,
    Mixture,
    Uniform,
)
from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.simulated import drivers


def deploy(compute=1.0, **spec) -> SimulatedPlatform:
    """A platform with the one function `f`; bare numbers are constant delays."""
    delays = {"compute": compute} | {name: spec.pop(name) for name in ("cold_start", "queueing") if name in spec}
    delays = {name: Constant(value) if isinstance(value, float) else value for name, value in delays.items()}
    return SimulatedPlatform({"f": FunctionSpec(**delays, **spec)})


SPEC = FunctionSpec(Constant(0.01))


def drain(platform: SimulatedPlatform) -> list:
    """Every invocation that is left, in the order in which they are handed out."""
    return list(iter(platform.next_completion, None))


def rows(platform: SimulatedPlatform) -> list[tuple]:
    """The whole trace, `(time, event, function, invocation, container, value)` a row."""
    return list(platform.trace.to_dataframe().itertuples(index=False, name=None))


def times(invocation) -> tuple:
    """When it was submitted, started and finished."""
    return invocation.submitted, invocation.started, invocation.finished


def nothing(context, *arguments):
    """A body that does nothing."""


# ---- containers -----------------------------------------------------------------------------------------------------


def test_cold_and_warm_starts():
    """The first call waits for its container, the next finds it; two at once need two."""
    with deploy(1.0, cold_start=0.25) as platform:
        for expected in [((0.0, 0.25, 1.25), True), ((1.25, 1.25, 2.25), False)]:
            invocation = platform.invoke("f", nothing)
            assert (invocation.status, invocation.started, invocation.finished) == ("pending", None, None)
            assert platform.next_completion() is invocation
            assert (times(invocation), invocation.cold) == expected
            assert (invocation.status, platform.now) == ("completed", invocation.finished)
        platform.invoke("f", nothing)
        platform.invoke("f", nothing)
        assert [(times(i), i.cold) for i in drain(platform)] == [
            ((2.25, 2.25, 3.25), False),
            ((2.25, 2.5, 3.5), True),
        ]
        assert platform.next_completion() is None


@pytest.mark.parametrize(
    ("keep_alive", "idle", "cold"),
    [
        (2.0, 1.5, False),
        (2.0, 2.0, False),  # for exactly as long as it is kept
        (2.0, 2.0 + 2**-20, True),
        (0.0, 0.0, False),  # freed and acquired at the same instant
        (0.0, 2**-20, True),
        (float("inf"), 1e9, False),
    ],
)
def test_keep_alive(keep_alive, idle, cold):
    """A container ends once it has been idle for longer than keep_alive, and then at that instant."""
    with deploy(1.0, keep_alive=keep_alive) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing, at=1.0 + idle)
        assert [i.cold for i in drain(platform)] == [True, cold]
        ended = platform.trace.select("container_ended").time.tolist()
        assert ended == ([1.0 + keep_alive] if cold else [])


def test_keep_alive_counts_from_the_last_use():
    """Every use starts the count anew: used at 0, 1.5 and 3 with 1 s kept, it lives until 5."""
    with deploy(1.0, keep_alive=1.0) as platform:
        for at in (0.0, 1.5, 3.0, 9.0):
            platform.invoke("f", nothing, at=at)
        assert [i.cold for i in drain(platform)] == [True, False, False, True]
        assert platform.trace.select("container_ended").time.tolist() == [5.0]


def test_the_newest_idle_container_is_reused():
    """The one created last, even where another one was freed later; so that the oldest expire."""
    with deploy(1.0, keep_alive=6.0) as platform:
        for work in (3.0, 1.0, 2.0):  # containers 0, 1, 2, freed at 3, 1 and 2
            platform.invoke("f", nothing, work=work)
        for at in (4.0, 4.5, 8.0, 8.5):
            platform.invoke("f", nothing, at=at)
        drain(platform)
        acquired = [(row[3], row[4]) for row in rows(platform) if row[1] == "acquired"]
        assert acquired == [(0, 0), (1, 1), (2, 2), (3, 2), (4, 1), (5, 2), (6, 1)]
        assert platform.trace.select("container_ended").time.tolist() == [9.0]


def test_max_concurrency():
    """What exceeds it waits, and gets the places that become free in order of submission."""
    with deploy(1.0, max_concurrency=2) as platform:
        for tag, work in enumerate([2.0, 1.0, 3.0, 1.0, 1.0]):
            platform.invoke("f", nothing, work=work, tag=tag)
        started = {i.tag: i.started for i in drain(platform)}
        assert started == {0: 0.0, 1: 0.0, 2: 1.0, 3: 2.0, 4: 3.0}
        assert len(platform.trace.select("container_created").time) == 2


def test_waiting_in_order_of_submission():
    """It is the time of submission that counts, not the order in which a schedule was written down."""
    with deploy(3.0, max_concurrency=1) as platform:
        for tag, at in [("first", 0.0), ("third", 2.0), ("second", 1.0)]:
            platform.invoke("f", nothing, at=at, tag=tag)
        assert [i.tag for i in drain(platform)] == ["first", "second", "third"]


def test_a_killed_invocation_gives_up_its_place():
    """Its container ends, and who waits gets a new one."""
    with deploy(1.0, max_concurrency=1, timeout=2.0, cold_start=0.5) as platform:
        for work in (9.0, 1.0):
            platform.invoke("f", nothing, work=work)
        assert [(i.status, i.cold, *times(i)) for i in drain(platform)] == [
            ("timed_out", True, 0.0, 0.5, 2.5),
            ("completed", True, 0.0, 3.0, 4.0),
        ]


def test_functions_have_limits_and_containers_of_their_own():
    """Neither shares places, containers or slots with another."""
    spec = FunctionSpec(Constant(1.0), max_concurrency=1)
    with SimulatedPlatform({"a": spec, "b": spec}) as platform:
        body = nothing
        for name in "abab":
            platform.invoke(name, body)
        assert [(i.function, i.started, i.cold) for i in drain(platform)] == [
            ("a", 0.0, True),
            ("b", 0.0, True),
            ("a", 1.0, False),
            ("b", 1.0, False),
        ]


def test_slots():
    """A new container takes the smallest free slot; live ones of a function never share one."""
    with deploy(1.0, keep_alive=0.0) as platform:
        for work in (4.0, 1.0, 4.0, 2.0):
            platform.invoke("f", lambda context: context.slot, work=work)
        platform.invoke("f", lambda context: context.slot, at=3.0, work=9.0)
        platform.invoke("f", lambda context: context.slot, at=3.5, work=9.0)
        platform.invoke("f", lambda context: context.slot, at=3.75, work=9.0)
        done = sorted(drain(platform), key=lambda i: i.number)
        assert [i.result() for i in done] == [0, 1, 2, 3, 1, 3, 4]


def test_container_state():
    """`init` runs once a container, with its slot and a key; the state goes from one of its calls to the next."""
    made, keys = [], []

    def init(slot, key):
        made.append(slot)
        keys.append(jax.random.key_data(key).tolist())
        return [f"slot {slot}"]

    def body(context, x):
        context.state = [*context.state, x]
        return context.state

    function = Function(body, init=init)
    with deploy(1.0) as platform:
        for x in (0, 1):
            platform.invoke("f", function, x)
        drain(platform)
        for x in (2, 3):
            platform.invoke("f", function, x)
        results = [i.result() for i in drain(platform)]
        assert results == [["slot 1", 1, 2], ["slot 0", 0, 3]]  # the newest container first
        assert sorted(made) == [0, 1]
        assert keys[0] != keys[1]
        container = platform.invoke("f", function, 4)
        drain(platform)
    assert container.container.state is None  # let go of when it ended


def test_a_new_container_starts_anew():
    """State ends with its container: after it expired, and after it was killed."""
    function = Function(lambda context: context.state.append(context.number) or list(context.state), init=lambda *_: [])
    with deploy(1.0, keep_alive=1.0, timeout=2.0) as platform:
        for at, work in [(0.0, 1.0), (1.5, 1.0), (9.0, 1.0), (10.0, 5.0), (20.0, 1.0)]:
            platform.invoke("f", function, at=at, work=work)
        done = drain(platform)
        assert [i.status for i in done] == [*["completed"] * 3, "timed_out", "completed"]
        assert [i.result() for i in done if i.status == "completed"] == [[0], [0, 1], [2], [4]]


def test_an_init_that_raises():
    """The invocation fails with its error, and the container's next one tries again."""
    attempts = []

    def init(slot, key):
        attempts.append(slot)
        if len(attempts) == 1:
            raise OSError("out of luck")
        return "made"

    function = Function(lambda context: context.state, init=init)
    with deploy(1.0, max_concurrency=1) as platform:
        for _ in range(3):
            platform.invoke("f", function)
        first, *rest = drain(platform)
        assert (first.status, str(first.error)) == ("failed", "out of luck")
        assert [i.result() for i in rest] == ["made", "made"]
    assert attempts == [0, 0]


def test_containers_belong_to_the_program_that_made_their_state():
    """Another program gets a container of its own, and the place of an idle one where there is no other."""
    a, b = (Function(lambda context: context.state, init=lambda slot, key, name=name: (name, slot)) for name in "ab")
    for limit, expected in [(None, [("a", 0), ("b", 1), ("a", 0)]), (1, [("a", 0), ("b", 0), ("a", 0)])]:
        with deploy(1.0, max_concurrency=limit) as platform:
            results = []
            for function in (a, b, a):
                platform.invoke("f", function)
                results.append(platform.next_completion().result())
            assert results == expected
            assert len(platform.trace.select("container_created").time) == (2 if limit is None else 3)
            assert len(platform.trace.select("container_ended").time) == (0 if limit is None else 2)


# ---- how long things take -------------------------------------------------------------------------------------------


def test_queueing_delay():
    """Between submission and the search for a container; a warm one is looked for after it."""
    with deploy(1.0, queueing=0.5, cold_start=2.0) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing, at=3.25)  # looks at 3.75, when the first one's container is free since 3.5
        assert [(times(i), i.cold) for i in drain(platform)] == [
            ((0.0, 2.5, 3.5), True),
            ((3.25, 3.75, 4.75), False),
        ]


@pytest.mark.parametrize(
    ("arguments", "seconds"),
    [
        ((), 0.5),
        ((1.0, "text", True, None), 0.52),  # numbers have 8 bytes, texts as many as in UTF-8
        ((np.zeros(1000, np.float32),), 4.5),
        (({"a": np.zeros(500, np.uint8), "b": [np.zeros((5, 100))]}, np.zeros(1000, bool)), 6.0),
    ],
)
def test_transfer(arguments, seconds):
    """latency + bytes / bandwidth before the work, which alone is multiplied by `work`."""
    transfer = Transfer(latency=Constant(0.5), bandwidth=1000.0)
    for work in (0.0, 1.0, 2.5):
        with deploy(2.0, transfer=transfer) as platform:
            platform.invoke("f", Function(nothing, upload=0), *arguments, work=work)
            assert platform.next_completion().finished == pytest.approx(seconds + 2.0 * work)


def test_each_version_is_transferred_once():
    """One version of 800 bytes, however often it is referred to, and however many slots of `held` it fills."""
    with deploy(0.0, transfer=Transfer(Constant(0.0), bandwidth=100.0)) as platform:
        store, program = platform.store, Function(nothing, upload=0)
        store.publish("p", {"w": np.zeros(100)})
        latest, held = store.latest("p"), store.held("p", slots=8)
        for arguments in [(latest,), (latest, latest), (latest, held), (held, latest, store.at("p", 0))]:
            began = platform.now
            platform.invoke("f", program, *arguments)
            assert platform.next_completion().finished - began == 8.0


def test_the_versions_that_others_hold_are_transferred():
    """A learner that starts beside two on other versions fetches three: of 100, 200 and 400 bytes."""
    with deploy(100.0, transfer=Transfer(Constant(0.0), bandwidth=100.0)) as platform:
        store, program = platform.store, Function(nothing, upload=0)
        calls = []
        for n, at in ((100, 0.0), (200, 10.0), (400, 20.0)):
            assert platform.next_completion(until=at) is None
            store.publish("p", np.zeros(n, np.uint8))
            calls.append(platform.invoke("f", program, store.latest("p"), store.held("p", slots=4)))
        drain(platform)
        assert [call.finished - call.started for call in calls] == pytest.approx([101.0, 103.0, 107.0])


@pytest.mark.parametrize(("upload", "seconds"), [(0, 1.0), (50, 1.5), (lambda x, y: x.nbytes * y, 4.0)])
def test_the_result_is_transferred_too(upload, seconds):
    """It has the size that the program declares: a number, or a function of the resolved arguments."""
    with deploy(0.0, transfer=Transfer(Constant(0.0), bandwidth=100.0)) as platform:
        platform.invoke("f", Function(nothing, upload=upload), platform.store.put(np.zeros(92, np.uint8)), 3)
        expected = seconds if not callable(upload) else 1.0 + 92 * 3 / 100
        assert platform.next_completion().finished == pytest.approx(expected)


def test_what_is_of_unknown_size_is_refused():
    """At `invoke`: it would be carried for nothing. Where bytes cost no time, nobody asks."""
    with deploy(0.0, transfer=Transfer(Constant(0.0), bandwidth=100.0)) as platform:
        with pytest.raises(ValueError, match=r"function 'f' has Transfer.*say how many bytes its program returns"):
            platform.invoke("f", nothing, np.zeros(3))
        with pytest.raises(TypeError, match=r"function 'f' has Transfer.* a object is of unknown size"):
            platform.invoke("f", Function(nothing, upload=0), [np.zeros(3), object()])
        assert drain(platform) == []
    for transfer in (None, Transfer(Constant(0.0), float("inf"))):
        with deploy(0.0, transfer=transfer) as platform:
            platform.invoke("f", nothing, object())
            assert platform.next_completion().status == "completed"


def test_a_latency_cannot_be_measured():
    """It is refused at once, not when it is drawn."""
    with pytest.raises(ValueError, match=r"latency=Measured\(\)"):
        Transfer(latency=Measured(), bandwidth=1.0)


def test_an_infinite_bandwidth_leaves_the_latency():
    """As its error message says."""
    with deploy(1.0, transfer=Transfer(Constant(0.25), bandwidth=float("inf"))) as platform:
        platform.invoke("f", nothing, np.zeros(10**6))
        assert platform.next_completion().finished == 1.25


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
    """Fetching the arguments is part of the invocation."""
    with deploy(1.0, timeout=1.5, transfer=Transfer(Constant(1.0), 1.0)) as platform:
        platform.invoke("f", Function(nothing, upload=0))
        assert (platform.next_completion().status, platform.now) == ("timed_out", 1.5)


def test_retry():
    """The same work, tag and arguments under a new number, as one attempt more, up to the limit."""

    def body(context, x, version):
        return context.attempt, x, version.value

    with deploy(2.0, timeout=1.0) as platform:
        platform.store.publish("p", "value")
        killed = platform.invoke("f", body, 7, platform.store.latest("p"), tag="mine", work=0.75)
        with pytest.raises(ValueError, match="invocation 0 is pending: only what failed is retried"):
            platform.retry(killed)
        for attempt in (1, 2, 3):
            assert platform.next_completion() is killed
            assert (killed.attempt, killed.number, killed.status) == (attempt, attempt - 1, "timed_out")
            assert (killed.tag, killed.work, killed.submitted) == ("mine", 0.75, attempt - 1.0)
            if attempt < 3:
                killed = platform.retry(killed, limit=3)
        with pytest.raises(FunctionError, match=r"invocation 2 \(attempt 3\) timed out"):
            platform.retry(killed, limit=3)
        assert platform.next_completion() is None
        killed.work = 0.5
        again = platform.retry(killed)  # five attempts unless said otherwise
        assert platform.next_completion() is again
        assert again.result() == (4, 7, "value")
        with pytest.raises(ValueError, match="invocation 3 is completed: only what failed is retried"):
            platform.retry(again)


def test_no_attempt_is_left_at_a_limit_of_zero():
    """Zero is a limit, and not the default."""
    with deploy(2.0, timeout=1.0) as platform:
        platform.invoke("f", nothing)
        killed = platform.next_completion()
        with pytest.raises(FunctionError, match=r"invocation 0 \(attempt 1\) timed out"):
            platform.retry(killed, limit=0)
        assert platform.next_completion() is None


def test_invocations_of_another_platform():
    """Neither cancels one's own of the same number, nor is tried again here."""
    with deploy(2.0) as platform, deploy(2.0, timeout=1.0) as other:
        own = platform.invoke("f", nothing)
        theirs = other.invoke("f", nothing)
        for call in (platform.cancel, platform.retry):
            with pytest.raises(ValueError, match="function 'f', invocation 0 belongs to another platform"):
                call(theirs)
        assert other.next_completion() is theirs
        with pytest.raises(ValueError, match="belongs to another platform"):
            platform.retry(theirs)
        assert platform.next_completion() is own
        platform.cancel(own)  # has ended: left as it is
        assert own.status == "completed"


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: SimulatedPlatform({"f": 1.0}), TypeError, r"functions=\{'f': 1.0\}: expected FunctionSpec"),
        (lambda: SimulatedPlatform({}, replay=Trace()), TypeError, r"replay=.*: expected Recording\(trace\)"),
        (lambda: SimulatedPlatform({"f": SPEC}, faults={"f": 0.1}), TypeError, r"faults=\{'f': 0.1\}: expected Faults"),
        (lambda: SimulatedPlatform({}, seed=-1), ValueError, "seed=-1 is below 0"),
        (lambda: SimulatedPlatform({}, seed=2**31), ValueError, r"seed=2147483648 is not below 2\*\*31"),
        (lambda: SimulatedPlatform({}, seed=1.5), TypeError, r"seed=1\.5 is not a whole number"),
        (lambda: SimulatedPlatform({}, store_capacity=0), ValueError, "store_capacity=0 is not positive"),
        (lambda: FunctionSpec(Constant(1.0), transfer=Constant(1.0)), TypeError, r"transfer=.*: expected Transfer\("),
        (lambda: FunctionSpec(Constant(1.0), resources=4), TypeError, r"resources=4: expected Resources\("),
        (lambda: FunctionSpec(Constant(1.0), retry=3), TypeError, r"retry=3: expected Retry\("),
        (lambda: Function(3), TypeError, "body=3 cannot be called"),
        (lambda: Function(nothing, upload=-1), ValueError, "upload=-1 is negative"),
    ],
)
def test_arguments_of_another_kind(unchecked, make, error, message):
    """Are named at once, with what is expected."""
    with pytest.raises(error, match=message):
        make()


def test_what_is_to_happen_now_on_the_wall_clock():
    """An instant that has passed since it was looked up is now; there was none before the start."""
    with SimulatedPlatform({"f": SPEC}, clock="wall") as platform:
        platform.invoke("f", nothing, at=platform.now)
        platform.prewarm("f", at=platform.now)
        assert platform.next_completion(until=platform.now + 60.0).status == "completed"
        with pytest.raises(ValueError, match=r"at=-1\.0 is past"):
            platform.invoke("f", nothing, at=-1.0)


def test_until_is_a_number():
    """No comparison with NaN holds: it would not bound anything."""
    with deploy() as platform, pytest.raises(ValueError, match="until=nan is not a number"):
        platform.next_completion(until=float("nan"))


def test_a_body_that_raised_is_not_retried():
    """Trying again does not mend it: its own exception is shown."""
    with deploy() as platform:
        platform.invoke("f", lambda context: 1 / 0)
        with pytest.raises(FunctionError, match="ZeroDivisionError") as error:
            platform.retry(platform.next_completion())
        assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_a_body_that_raises():
    """The invocation fails when it would have ended; the cause and its traceback come with the error."""

    def deep_inside():
        raise KeyError("the reason")

    def faulty(context):
        deep_inside()

    with deploy(1.0) as platform:
        platform.invoke("f", nothing)
        failed = platform.invoke("f", faulty)
        drain(platform)
        assert (failed.status, failed.finished) == ("failed", 1.0)
        with pytest.raises(
            FunctionError, match=r"'f', invocation 1 \(attempt 1\) failed at 1 s: KeyError: 'the re"
        ) as e:
            failed.result()
        assert e.value.invocation is failed
        assert e.value.__cause__ is failed.error
        assert isinstance(failed.error, KeyError)
        frames = [frame.name for frame in traceback.extract_tb(failed.error.__traceback__)]
        assert frames[-2:] == ["faulty", "deep_inside"]
        platform.invoke("f", nothing)
        assert not platform.next_completion().cold  # the container lives on


def test_results_are_not_there_before_the_end():
    """Asking for one says how far the invocation is."""
    with deploy(1.0, cold_start=1.0) as platform:
        invocation = platform.invoke("f", lambda context: "value")
        for until, status in [(0.5, "pending"), (1.5, "running")]:
            assert platform.next_completion(until=until) is None
            assert invocation.status == status
            with pytest.raises(FunctionError, match=f"invocation 0 .attempt 1. {status}"):
                invocation.result()
        platform.next_completion()
        assert invocation.result() == "value"


def test_arguments_are_let_go_of():
    """What a completed or failed invocation was given can be freed while the invocation is kept."""
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


# ---- the order of events --------------------------------------------------------------------------------------------


def test_a_completion_comes_before_an_acquisition():
    """A container freed at an instant can be acquired at that instant, also by what the completion causes."""
    with deploy(1.0, keep_alive=0.0) as platform:
        platform.invoke("f", nothing, at=1.0)
        platform.invoke("f", nothing)
        assert [platform.next_completion().number, platform.now] == [1, 1.0]
        platform.invoke("f", nothing, tag="caused")
        assert [(i.number, i.cold, i.started) for i in drain(platform)] == [(0, False, 1.0), (2, True, 1.0)]


def test_a_completion_comes_before_a_start():
    """What is published because of a completion is seen by every start of the same instant."""
    specs = {"f": FunctionSpec(Constant(1.0)), "slow": FunctionSpec(Constant(1.0), cold_start=Constant(1.0))}
    with SimulatedPlatform(specs) as platform:
        platform.store.publish("p", "old")
        started = platform.invoke("slow", lambda context, p: p.value, platform.store.latest("p"))
        ended = platform.invoke("f", nothing)
        assert platform.next_completion() is ended
        assert (platform.now, started.started) == (1.0, None)
        platform.store.publish("p", "new")
        assert platform.next_completion() is started
        assert (started.started, started.result()) == (1.0, "new")


def test_an_acquisition_comes_before_a_start():
    """Even where the invocation that starts has the lower number."""
    with deploy(1.0, cold_start=1.0) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing, at=1.0)
        drain(platform)
        order = [(row[1], row[3]) for row in rows(platform) if row[0] == 1.0 and row[1] in ("acquired", "started")]
        assert order == [("acquired", 1), ("started", 0)]


def test_what_costs_no_time_is_handed_out_before_the_next_start():
    """Each of four starts of one instant sees what the completion before it published."""
    with deploy(0.0) as platform:
        platform.store.publish("p", 0)
        for _ in range(4):
            platform.invoke("f", lambda context, p: p.version, platform.store.latest("p"))
        seen = []
        while (done := platform.next_completion()) is not None:
            seen.append((done.number, done.result()))
            platform.store.publish("p", 0)
        assert seen == [(0, 0), (1, 1), (2, 2), (3, 3)]
        assert platform.now == 0.0


@pytest.mark.parametrize("order", [(0.0, 1.0, 2.0), (2.0, 0.0, 1.0), (1.0, 2.0, 0.0)])
def test_ties_go_by_number(order):
    """Completions of one instant are handed out in order of invocation number, whenever they started."""
    with deploy(1.0) as platform:
        for at in order:
            platform.invoke("f", nothing, at=at, work=4.0 - at)
        done = drain(platform)
        assert [i.number for i in done] == [0, 1, 2]
        assert {i.finished for i in done} == {4.0}


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
        with pytest.raises(RuntimeError, match=f"more than {limit} events at 0.0 s: invocations that cost no time"):
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


# ---- batched bodies -------------------------------------------------------------------------------------------------


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
    """Never by time; results go to those that they belong to."""
    groups = []
    function = recording(groups, max_batch=max_batch)
    with deploy(1.0) as platform:
        for at, work in calls:
            platform.invoke("f", function, 10 + len(groups), at=at, work=work)
        for number, invocation in enumerate(sorted(drain(platform), key=lambda i: i.number)):
            assert (invocation.number, invocation.result()) == (number, 20)
    assert groups == expected


def test_every_invocation_gets_its_own_result():
    """In a batch whose members end in another order than they started."""
    with deploy(1.0) as platform:
        function = recording([])
        for x, work in [(1, 3.0), (2, 1.0), (3, 2.0)]:
            platform.invoke("f", function, x, work=work)
        assert [i.result() for i in drain(platform)] == [4, 6, 2]


def test_different_programs_do_not_share_a_batch():
    """Alike bodies are those of one Function."""
    groups = []
    programs = recording(groups), recording(groups)
    with deploy(1.0) as platform:
        for i in range(4):
            platform.invoke("f", programs[i % 2], i)
        assert [i.result() for i in drain(platform)] == [0, 2, 4, 6]
    assert groups == [[0, 2], [1, 3]]


def test_batched_bodies_are_not_run_for_nothing():
    """Killed and cancelled invocations are in no batch."""
    groups = []
    function = recording(groups)
    with deploy(1.0, timeout=2.0) as platform:
        for work in (1.0, 5.0, 1.0):
            platform.invoke("f", function, 1, work=work)
        assert [i.status for i in drain(platform)] == ["completed", "completed", "timed_out"]
        platform.invoke("f", function, 1)
        platform.next_completion(until=2.5)
    assert groups == [[0, 2]]


def test_batched_state():
    """Containers of a batch are initialised once and keep their own state."""

    def body(context, x):
        context.state += x
        return context.state, context.slot, context.attempt, context.now

    def batched(contexts, arguments):
        return [body(context, *args) for context, args in zip(contexts, arguments, strict=True)]

    function = Function(body, init=lambda slot, key: 100 * (slot + 1), batched=batched)
    with deploy(1.0) as platform:
        for x in (1, 2):
            platform.invoke("f", function, x, at=x / 4)
        drain(platform)
        for x in (10, 20):
            platform.invoke("f", function, x)
        assert [i.result() for i in drain(platform)] == [(212, 1, 1, 1.5), (121, 0, 1, 1.5)]


@pytest.mark.parametrize(
    ("batched", "message"),
    [
        (lambda contexts, arguments: [1 / 0 for _ in contexts], "ZeroDivisionError"),
        (lambda contexts, arguments: [0], "ValueError: batched returned 1 results for 2 invocations"),
    ],
)
def test_a_batch_that_fails(batched, message):
    """All of its invocations fail with its error."""
    with deploy(1.0) as platform:
        for _ in range(2):
            platform.invoke("f", Function(nothing, batched=batched))
        function = Function(nothing, batched=batched)
        for _ in range(2):
            platform.invoke("f", function)
        done = drain(platform)[2:]
        assert [i.status for i in done] == ["failed", "failed"]
        for invocation in done:
            with pytest.raises(FunctionError, match=f"invocation {invocation.number} .*{message}"):
                invocation.result()


# ---- measured durations, keys, closing, and what is refused ---------------------------------------------------------


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
    """A factor that makes any body slower than its timeout."""
    with deploy(Measured(1e12), timeout=2.0) as platform:
        platform.invoke("f", lambda context: sum(range(1000)))
        assert (platform.next_completion().status, platform.now) == ("timed_out", 2.0)


def test_context():
    """A body knows its number, attempt and start, and has a key of its own that the seed decides."""

    def body(context):
        return context.number, context.attempt, context.now, jax.random.key_data(context.key).tolist()

    keys = {}
    for seed in (0, 0, 1):
        with SimulatedPlatform({"f": FunctionSpec(Constant(1.0), queueing=Constant(0.5))}, seed=seed) as platform:
            for _ in range(3):
                platform.invoke("f", body)
            results = [i.result() for i in drain(platform)]
        assert [result[:3] for result in results] == [(0, 1, 0.5), (1, 1, 0.5), (2, 1, 0.5)]
        drawn = [tuple(result[3]) for result in results]
        assert len(set(drawn)) == 3
        assert keys.setdefault(seed, drawn) == drawn
    assert set(keys[0]).isdisjoint(keys[1])


def test_close():
    """What is pending is cancelled, containers end, once; nothing is handed out or accepted afterwards."""
    platform = deploy(1.0, cold_start=0.5, max_concurrency=2)
    invocations = [platform.invoke("f", nothing, at=at) for at in (0.0, 0.0, 1.75, 9.0)]
    waiting = platform.invoke("f", nothing, at=1.8)
    invocations[1].work = 4.0
    while platform.next_completion(until=2.0):
        pass
    assert [i.status for i in invocations] == ["completed", "running", "running", "pending"]
    for _ in range(2):
        platform.close()
        assert [i.status for i in invocations] == ["completed", *["cancelled"] * 3]
        assert waiting.status == "cancelled"
        log = rows(platform)
        assert sorted(row[3] for row in log if row[1] == "cancelled") == [1, 2, 4]  # 3 was never submitted
        assert [row[0] for row in log if row[1] in ("cancelled", "container_ended")] == [2.0] * 5
    assert platform.next_completion() is None
    assert platform.now == 2.0
    with pytest.raises(FunctionError, match=r"invocation 2 \(attempt 1\) cancelled at 2 s"):
        invocations[2].result()
    with pytest.raises(RuntimeError, match=r"invoke\('f'\) after close\(\)"):
        platform.invoke("f", nothing)


def test_leaving_the_context_closes():
    """Also by an exception; and the threads end."""
    platform = deploy(1.0)
    invocation = platform.invoke("f", nothing)
    with pytest.raises(ZeroDivisionError), platform:
        raise ZeroDivisionError
    assert invocation.status == "cancelled"
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("stellaris")]


def test_retrying_after_close():
    """A closed platform takes nothing, however it is asked."""
    with deploy(2.0, timeout=1.0) as platform:
        platform.invoke("f", nothing)
        killed = platform.next_completion()
    with pytest.raises(RuntimeError, match=r"after close\(\)"):
        platform.retry(killed)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda p: p.invoke("g", nothing), LookupError, r"no function 'g' is deployed: the platform has \['f'\]"),
        (lambda p: p.invoke("f", nothing, at=0.5), ValueError, r"at=0.5 is past \(now is 1\)"),
        (lambda p: p.invoke("f", nothing, at=float("inf")), ValueError, "at=inf is past .* or not finite"),
        (lambda p: p.invoke("f", nothing, at=float("nan")), ValueError, "at=nan is past .* or not finite"),
        (lambda p: p.invoke("f", nothing, work=-1.0), ValueError, "work=-1.0 is negative or not finite"),
        (lambda p: p.invoke("f", nothing, work=float("inf")), ValueError, "work=inf is negative or not finite"),
        (lambda p: p.invoke("f", nothing, work=float("nan")), ValueError, "work=nan is negative or not finite"),
        (lambda p: SimulatedPlatform({}, clock="sundial"), ValueError, "clock='sundial' is neither 'virtual' nor"),
        (lambda p: SimulatedPlatform({}, threads=0), ValueError, "threads=0 is below 1"),
        (lambda p: FunctionSpec(Constant(1.0), cold_start=Measured()), ValueError, "only a compute time can be meas"),
        (lambda p: FunctionSpec(Constant(1.0), queueing=Measured()), ValueError, "only a compute time can be meas"),
        (lambda p: FunctionSpec(Constant(1.0), keep_alive=-1.0), ValueError, "keep_alive=-1.0 is negative"),
        (lambda p: FunctionSpec(Constant(1.0), max_concurrency=0), ValueError, "max_concurrency=0 is below 1"),
        (lambda p: FunctionSpec(Constant(1.0), timeout=0.0), ValueError, "timeout=0.0 is not positive"),
        (lambda p: Transfer(Constant(0.1), 0.0), ValueError, "bandwidth=0.0 is not positive"),
        (lambda p: Function(nothing, max_batch=0), ValueError, "max_batch=0 is below 1"),
    ],
)
def test_what_is_refused(call, error, message):
    """At once, and without a trace: the argument, its value, and what it should be."""
    with deploy(1.0) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        before = len(platform.trace)
        with pytest.raises(error, match=message):
            call(platform)
        assert len(platform.trace) == before
        assert platform.next_completion() is None


def test_a_delay_that_draws_no_duration():
    """A distribution of one's own is checked when it is drawn from."""

    class Broken:
        def sample(self, rng, n):
            return np.full(n, -1.0)

    with deploy(Broken()) as platform:
        platform.invoke("f", nothing)
        with pytest.raises(ValueError, match=r"function 'f': its compute .* drew -1.0, which is no duration"):
            platform.next_completion()


# ---- the wall clock -------------------------------------------------------------------------------------------------


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


# ---- runs that repeat bit for bit -----------------------------------------------------------------------------------


class Run(NamedTuple):
    """What a random program left behind."""

    specs: dict
    rows: list  #: of the trace.
    outcomes: list  #: what the system was handed, in order.
    bills: list  #: `(now, parts, rows so far)`, one during the run and one after it.


PRICES = PriceSheet(
    "random",
    functions={"actor": Rate(per_second=2.0), "learner": Rate(per_second=3.0), "parameter": Rate(per_second=5.0)},
    machines={"vm": Machine(0.25)},
)


def random_specs(rng) -> dict:
    """A deployment; durations on a grid, so that events tie, and others, so that they do not."""

    def delay():
        return [
            Constant(float(rng.choice([0.0, 0.25, 0.5, 1.0]))),
            Empirical((0.0, 0.5, 0.5, 2.0)),
            Mixture((Constant(0.5), Exponential(3.0)), (0.8, 0.2)),
            Exponential(0.7),
            LogNormal(1.0, 1.0),
            Gamma(0.5, 0.5),
            Uniform(0.0, 2.0),
        ][rng.choice(7, p=[0.3, 0.25, 0.15, 0.1, 0.1, 0.05, 0.05])]

    return {
        name: FunctionSpec(
            compute=delay(),
            cold_start=delay(),
            keep_alive=float(rng.choice([0.0, 0.5, 1.5, np.inf])),
            max_concurrency=limits[rng.integers(len(limits))],
            timeout=[None, None, 0.5, 1.5][rng.integers(4)],
            queueing=Constant(0.0) if rng.random() < 0.5 else delay(),
            transfer=None if rng.random() < 0.5 else Transfer(delay(), bandwidth=float(rng.choice([16.0, 1e3]))),
        )
        for name, limits in [("actor", (None, 1, 2, 4)), ("learner", (None, 1, 3)), ("parameter", (1,))]
    }


def random_functions(rng, batched: bool) -> dict:
    """Programs with state, references, and errors now and then."""

    def act(context, version, scale):
        context.state = (31 * context.state + context.number + version.version) % 1_000_003
        return context.state, context.slot, context.now, float(version.value.sum()) * scale

    def learn(context, version, held):
        if context.number % 5 == 3:
            raise ValueError(f"number {context.number}")
        return context.attempt, version.version, tuple(peer.version for peer in held)

    together = {
        "batched": lambda contexts, arguments: [act(c, *args) for c, args in zip(contexts, arguments, strict=True)],
        "max_batch": int(rng.integers(1, 6)),
    }
    return {
        "actor": Function(act, init=lambda slot, key: 1000 * slot, upload=7, **(together if batched else {})),
        "learner": Function(learn, upload=lambda version, held: version.value.nbytes * len(held)),
        "parameter": Function(lambda context, version: version.value + 1.0, upload=24),
    }


def random_run(seed: int, *, threads: int = 2, batched: bool = True) -> Run:
    """A small system that decides by its own generator and by what it is handed; the seed says everything else."""
    rng = np.random.default_rng(seed)
    specs = random_specs(rng)
    programs = random_functions(rng, batched)
    outcomes, bills = [], []
    with SimulatedPlatform(specs, seed=seed, threads=threads, keep_versions=int(rng.integers(1, 4))) as platform:
        store = platform.store
        store.publish("policy", np.zeros(3))
        submitted = handed = 0

        def invoke():
            name = str(rng.choice(["actor", "actor", "learner", "parameter"]))
            own = [store.latest("policy"), store.lagged("policy", 2), store.at("policy", store.newest("policy"))]
            arguments = (own[rng.choice(3, p=[0.6, 0.2, 0.2])],)
            if name == "actor":
                arguments += (float(rng.random()),)
            elif name == "learner":
                arguments = (store.held("policy", slots=int(rng.integers(1, 4))), *arguments)[::-1]
            later = platform.now + float(rng.choice([0.25, 1.0, 2.5])) if rng.random() < 0.3 else None
            platform.invoke(name, programs[name], *arguments, at=later, work=float(rng.choice([0.0, 1.0, 1.0, 2.0])))

        for _ in range(int(rng.integers(3, 8))):
            invoke()
            submitted += 1
        end = int(rng.integers(20, 60))
        while handed < submitted and handed < end:
            done = platform.next_completion(until=platform.now + (0.5 if rng.random() < 0.2 else np.inf))
            if done is None:
                outcomes.append(("none", platform.now))
                continue
            handed += 1
            if handed == 10:
                bills.append((platform.now, dict(platform.bill(PRICES).parts), len(platform.trace)))
            value = done.result() if done.status == "completed" else str(done.error)
            outcomes.append((done.number, done.function, done.status, done.attempt, platform.now, repr(value)))
            if done.status == "completed" and done.function == "parameter":
                store.publish("policy", value)
            if done.status == "timed_out" and done.attempt < 3:
                try:
                    platform.retry(done)
                    submitted += 1
                except LookupError:  # the fixed version it was given is kept no longer
                    outcomes.append(("gone", done.number))
            reaction = done.number + (value[0] if done.function == "actor" and done.status == "completed" else 0)
            for _ in range(reaction % 3 if submitted < 45 else 0):
                invoke()
                submitted += 1
    bills.append((platform.now, dict(platform.bill(PRICES).parts), len(platform.trace)))
    return Run(specs, rows(platform), outcomes, bills)


SEEDS = range(150)
first_run = functools.cache(random_run)


@pytest.mark.parametrize("seed", SEEDS)
def test_runs_repeat(seed):
    """The whole trace and all that the system saw: run again, on other numbers of threads, and without batching."""
    first = first_run(seed)
    again = [random_run(seed)] if seed % 5 == 0 else []
    for other in (*again, random_run(seed, threads=1), random_run(seed, threads=3, batched=False)):
        assert other.rows == first.rows
        assert other.outcomes == first.outcomes
        assert other.bills == first.bills


def test_random_runs_differ_and_are_varied():
    """The seeds are worth running: no two alike; all endings, warm and cold starts, retries and ties occur."""
    runs = [first_run(seed) for seed in SEEDS]
    assert len({str(run.rows) for run in runs}) == len(SEEDS)
    counts = defaultdict(int)
    for run in runs:
        for row in run.rows:
            counts[row[1] if row[1] != "acquired" else f"acquired {row[5]:.0f}"] += 1
        for outcome in run.outcomes:
            counts["retried"] += len(outcome) > 3 and outcome[3] > 1
        ends = [row[0] for row in run.rows if row[1] in ENDINGS[:3]]
        counts["ties"] += len(ends) - len(set(ends))
    for event in (
        *("completed", "failed", "timed_out", "cancelled"),
        "acquired 0",
        "acquired 1",
        "container_ended",
        "published",
        "retried",
        "ties",
    ):
        assert counts[event] >= 100, (event, counts[event])


@pytest.mark.parametrize("seed", SEEDS)
def test_invariants(seed):
    """What every trace obeys, read from the trace alone."""
    run = first_run(seed)
    closing = run.bills[-1][0]
    submitted, acquired, started, ended = {}, {}, {}, {}
    live = {name: {} for name in run.specs}  # container: slot
    idle = {name: {} for name in run.specs}  # container: since when
    created, busy, version, last_end = set(), {}, -1, 0.0
    for now, event, function, number, container, value in run.rows:
        if event == "submitted":
            assert number not in submitted
            submitted[number] = now
        elif event == "container_created":
            slots = set(live[function].values())
            assert value == min(set(range(len(slots) + 1)) - slots)
            assert container not in live[function]
            live[function][container] = value
            created.add(container)
            limit = run.specs[function].max_concurrency
            assert limit is None or len(live[function]) <= limit
        elif event == "acquired":
            assert number not in acquired
            assert container in live[function]
            assert container not in busy
            assert now >= submitted[number]
            if value:
                assert container in created  # made for this invocation
                assert not idle[function]
            else:
                assert container == max(idle[function])
                assert now <= idle[function].pop(container) + run.specs[function].keep_alive
            created.discard(container)
            acquired[number], busy[container] = (now, container), number
        elif event == "started":
            assert number not in started
            assert (now >= acquired[number][0], container) == (True, acquired[number][1])
            started[number] = now
        elif event in ENDINGS:
            assert number not in ended
            ended[number] = event
            if event == "cancelled":
                assert now == closing
                busy.pop(container, None)
                continue
            assert now >= max(started[number], last_end)  # time never goes back
            last_end = now
            assert busy.pop(container) == number
            limit = run.specs[function].timeout
            assert limit is None or now <= started[number] + limit
            assert event != "timed_out" or now == started[number] + limit
            if event != "timed_out":
                idle[function][container] = now
        elif event == "container_ended":
            assert container not in busy
            since = idle[function].pop(container, None)
            assert since is None or now in (since + run.specs[function].keep_alive, closing)
            assert live[function].pop(container) == value
        elif event == "published":
            assert value == version + 1
            version = value
        else:
            assert event in ("stored", "fetched")
    assert set(ended) == set(submitted)
    assert not any(live.values())


@pytest.mark.parametrize("seed", SEEDS)
def test_bills(seed):
    """The sum of its parts, and the integral over time of what ran: a walk through the events, in plain Python."""
    run = first_run(seed)
    for now, parts, length in run.bills:
        expected = dict.fromkeys(PRICES.functions, 0.0) | {"vm": 0.25 * now}
        running, before = dict.fromkeys(PRICES.functions, 0), 0.0
        began = set()
        changes = [row for row in run.rows[:length] if row[1] == "started" or row[1] in ENDINGS]
        for at, event, function, number, *_ in [*sorted(changes, key=lambda row: row[0]), (now, "", "", -1)]:
            for name in running:
                expected[name] += PRICES.functions[name].per_second * running[name] * (at - before)
            before = at
            if event == "started":
                began.add(number)
                running[function] += 1
            elif number in began:
                running[function] -= 1
        assert parts == pytest.approx(expected, rel=1e-9, abs=1e-9)


# ---- streams of random numbers --------------------------------------------------------------------------------------


def durations(*, seed: int = 0, **changes) -> dict:
    """Open-loop arrivals of two functions: `{function: [(queued, cold start, computed) of each invocation]}`."""
    specs = {
        name: {"compute": Exponential(1.0), "cold_start": Exponential(1.0), "queueing": Exponential(1.0)}
        for name in "ab"
    }
    for place, delay in changes.items():
        function, purpose = place.split("_", 1)
        specs[function][purpose] = delay
    with SimulatedPlatform({name: FunctionSpec(**spec) for name, spec in specs.items()}, seed=seed) as platform:
        submitted = [platform.invoke("ab"[i % 2], nothing) for i in range(60)]
        drain(platform)
        acquired = dict(zip(*platform.trace.select("acquired")[1::-1], strict=True))
    return {
        name: [
            (acquired[i.number] - i.submitted, i.started - acquired[i.number], i.finished - i.started)
            for i in submitted
            if i.function == name
        ]
        for name in "ab"
    }


@pytest.mark.parametrize("purpose", ["compute", "cold_start", "queueing"])
@pytest.mark.parametrize(
    "delay", [Constant(0.5), Gamma(1.0, 0.3), Mixture((Exponential(1.0),) * 2, (0.5, 0.5))], ids=str
)
def test_every_distribution_has_a_stream_of_its_own(purpose, delay):
    """Changing one of `a` leaves b's draws as they were, to the last bit."""
    before, after = durations(), durations(**{f"a_{purpose}": delay})
    assert after["b"] == before["b"]
    assert after["a"] != before["a"]


def test_purposes_have_streams_of_their_own():
    """A function's other draws stay the same set when one of its distributions changes."""
    before = durations()["a"]
    after = durations(a_queueing=Constant(0.0), a_cold_start=Constant(0.0))["a"]
    np.testing.assert_allclose(*(sorted(computed for *_, computed in d) for d in (before, after)), rtol=1e-9)


def test_streams_differ():
    """Functions, purposes and seeds draw different numbers from equal distributions."""
    columns = [
        column for seed in (0, 1) for calls in durations(seed=seed).values() for column in zip(*calls, strict=True)
    ]
    # Cold starts are mostly zero: containers are reused. Compare what was queued and computed.
    drawn = [sorted(column) for i, column in enumerate(columns) if i % 3 != 1]
    assert len({round(column[-1], 9) for column in drawn}) == len(drawn) == 8


def test_draws_are_the_same_in_every_process():
    """Numbers of a run that was once made: seeds, names and purposes alone decide."""
    first = {name: calls[0] for name, calls in durations(seed=5).items()}
    np.testing.assert_allclose(first["a"], [0.28630940456771564, 0.5382696394426987, 1.6559866963609475], rtol=1e-9)
    np.testing.assert_allclose(first["b"], [0.9899695848214382, 1.3518789557214284, 0.9424255677061386], rtol=1e-9)
