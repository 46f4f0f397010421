"""Containers: which are reused, how many there may be, prewarmed and provisioned ones, initialisation, expiry."""

import importlib.util
import sys
from collections import Counter

import numpy as np
import pytest

from stellaris.runtime import Faults, Function, FunctionSpec, PriceSheet, Rate, SimulatedPlatform, functions
from stellaris.runtime.delays import Constant, Exponential, Uniform
from stellaris.runtime.endings import ENDINGS

DELAYS = ("compute", "cold_start", "queueing", "initialisation")


def spec(compute=1.0, **others) -> FunctionSpec:
    """Of a function; bare numbers are constant delays."""
    given = {"compute": compute} | others
    return FunctionSpec(**{k: Constant(v) if k in DELAYS and isinstance(v, float) else v for k, v in given.items()})


def deploy(compute=1.0, **others) -> SimulatedPlatform:
    """A platform with the one function `f`."""
    return SimulatedPlatform({"f": spec(compute, **others)})


def drain(platform: SimulatedPlatform) -> list:
    """Every invocation that is left, in the order in which they are handed out."""
    return list(iter(platform.next_completion, None))


def happened(platform: SimulatedPlatform, event: str, function: str | None = None) -> list[float]:
    """When."""
    return platform.trace.select(event, function=function).time.tolist()


def nothing(context, *arguments):
    """A body that does nothing."""


# ---- reuse ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("reuse", "expected"),
    [
        ("newest", [2, 1, 0, 2]),
        ("most_recent", [0, 2, 1, 1]),  # the one used from 4.5 to 5.5 was container 1
        ("least_recent", [1, 2, 0, 1]),  # the one used from 4 to 5 was container 1
    ],
)
def test_reuse(reuse, expected):
    """Containers 0, 1 and 2 are freed at 3, 1 and 2: every rule takes another one."""
    with deploy(1.0, reuse=reuse) as platform:
        for work in (3.0, 1.0, 2.0):
            platform.invoke("f", nothing, work=work)
        for at in (4.0, 4.25, 4.5, 10.0):
            platform.invoke("f", nothing, at=at)
        done = sorted(drain(platform), key=lambda i: i.number)
        assert [i.container.number for i in done] == [0, 1, 2, *expected]
        assert [i.cold for i in done] == [True] * 3 + [False] * 4


def test_reuse_decides_what_expires():
    """A call a second, of two containers with 2 s kept: only the least recently used rule keeps both warm."""
    for reuse, ended in [("newest", [2.5]), ("most_recent", [2.5]), ("least_recent", [])]:
        with deploy(0.5, reuse=reuse, keep_alive=2.0) as platform:
            for at in (0.0, 0.0, 1.0, 2.0, 3.0, 4.0):
                platform.invoke("f", nothing, at=at)
            drain(platform)
            assert happened(platform, "container_ended") == ended


def test_rules_are_some_of_several(monkeypatch):
    """And an unknown one says so, where no type checker of the tests does so before."""
    source = importlib.util.spec_from_file_location("unchecked_functions", functions.__file__)
    unchecked = importlib.util.module_from_spec(source)
    monkeypatch.setitem(sys.modules, "unchecked_functions", unchecked)
    source.loader.exec_module(unchecked)
    with pytest.raises(ValueError, match="reuse='oldest' is none of newest, most_recent, least_recent"):
        unchecked.FunctionSpec(Constant(1.0), reuse="oldest")
    with pytest.raises(ValueError, match="overflow='drop' is none of queue, reject"):
        unchecked.FunctionSpec(Constant(1.0), overflow="drop")


def test_an_idle_container_of_another_program_makes_room():
    """Of two idle ones, the place is that of the one unused for longest; the other keeps its state."""
    a, b, c = (Function(lambda context: context.state, init=lambda slot, key, name=name: name) for name in "abc")
    with deploy(1.0, max_concurrency=2, cold_start=0.5) as platform:
        platform.invoke("f", a, work=2.0)  # container 0, idle since 2.5
        platform.invoke("f", b, work=1.0)  # container 1, idle since 1.5
        platform.invoke("f", c, at=5.0)  # ends container 1
        platform.invoke("f", a, at=7.0)  # still warm
        platform.invoke("f", b, at=9.0)  # cold again: ends container 2, idle since 6.5
        done = sorted(drain(platform), key=lambda i: i.number)
        assert [(i.result(), i.container.number, i.cold, i.started) for i in done] == [
            ("a", 0, True, 0.5),
            ("b", 1, True, 0.5),
            ("c", 2, True, 5.5),
            ("a", 0, False, 7.0),
            ("b", 3, True, 9.5),
        ]
        assert happened(platform, "container_ended") == [5.0, 9.0]
        assert [i.slot for i in (done[2].container, done[4].container)] == [1, 1]  # the places that were freed


# ---- limits ---------------------------------------------------------------------------------------------------------


def test_the_platforms_limit_is_shared():
    """Two at once of both functions together; who waits goes on in order of submission, whichever its function."""
    with SimulatedPlatform({"a": spec(), "b": spec()}, max_concurrency=2) as platform:
        for name in "aabaabb":
            platform.invoke(name, nothing)
        done = sorted(drain(platform), key=lambda i: i.number)
        assert [i.started for i in done] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0]


def test_the_platforms_limit_counts_cold_starts_but_not_idle_containers():
    """A place is taken from the acquisition to the end."""
    with SimulatedPlatform({"a": spec(cold_start=1.0), "b": spec()}, max_concurrency=1) as platform:
        platform.invoke("a", nothing)  # made 0 - 1, runs 1 - 2
        platform.invoke("b", nothing, at=0.5)
        first, second = drain(platform)
        assert (first.started, second.started, second.cold) == (1.0, 2.0, True)
        assert happened(platform, "container_ended") == []  # a's is idle beside b's


def test_reserved_concurrency():
    """Of 3 places one is a's alone: others share 2, and a has no more than its own."""
    specs = {"a": spec(reserved_concurrency=1), "b": spec(), "c": spec()}
    with SimulatedPlatform(specs, max_concurrency=3) as platform:
        for name in "bbcaab":
            platform.invoke(name, nothing)
        started = {i.number: i.started for i in drain(platform)}
        assert started == {0: 0.0, 1: 0.0, 2: 1.0, 3: 0.0, 4: 1.0, 5: 1.0}


def test_reserved_concurrency_without_a_limit():
    """Is a limit of the function's own, and a warm container is waited for."""
    with SimulatedPlatform({"a": spec(reserved_concurrency=1, cold_start=0.5), "b": spec()}) as platform:
        for name in "aabb":
            platform.invoke(name, nothing)
        started = {i.number: (i.started, i.cold) for i in drain(platform)}
        assert started == {0: (0.5, True), 1: (1.5, False), 2: (0.0, True), 3: (0.0, True)}


@pytest.mark.parametrize(
    ("specs", "limit", "refused"),
    [
        ({"a": spec(reserved_concurrency=1), "b": spec(reserved_concurrency=1)}, 2, False),
        ({"a": spec(reserved_concurrency=2), "b": spec(reserved_concurrency=1)}, 2, True),
        ({"a": spec(reserved_concurrency=2), "b": spec()}, 2, True),  # b could never run
        ({"a": spec(reserved_concurrency=1), "b": spec()}, 2, False),
    ],
)
def test_reservations_that_exceed_the_limit(specs, limit, refused):
    """Are refused, also where they leave nothing for the others."""
    if refused:
        with pytest.raises(ValueError, match=f"max_concurrency={limit} is too small"):
            SimulatedPlatform(specs, max_concurrency=limit)
    else:
        with SimulatedPlatform(specs, max_concurrency=limit) as platform:
            platform.invoke("a", nothing)
            platform.invoke("b", nothing)
            assert [i.started for i in drain(platform)] == [0.0, 0.0]


def test_limits_below_one():
    """Nothing could ever run."""
    with pytest.raises(ValueError, match="max_concurrency=0 is below 1"):
        SimulatedPlatform({"f": spec()}, max_concurrency=0)
    with pytest.raises(ValueError, match="reserved_concurrency=0 is below 1"):
        deploy(reserved_concurrency=0)


def test_who_waits_is_not_overtaken_by_who_arrives_when_room_appears():
    """Order of submission: what waits since 0.5 comes before what is submitted at 1, though it was scheduled later."""
    with deploy(1.0, max_concurrency=1) as platform:
        for tag, at in [("first", 0.0), ("third", 1.0), ("second", 0.5)]:
            platform.invoke("f", nothing, at=at, tag=tag)
        assert [(i.tag, i.started) for i in drain(platform)] == [("first", 0.0), ("second", 1.0), ("third", 2.0)]


def test_who_waits_for_the_platforms_limit_goes_on_in_order_of_submission():
    """Also across functions, and whatever the order in which a schedule was written down."""
    with SimulatedPlatform({"a": spec(), "b": spec()}, max_concurrency=1) as platform:
        for name, at, tag in [("a", 0.0, "first"), ("b", 0.75, "third"), ("a", 0.25, "second")]:
            platform.invoke(name, nothing, at=at, tag=tag)
        assert [i.tag for i in drain(platform)] == ["first", "second", "third"]


def test_overflow_reject():
    """What finds no room ends at once, as throttled; it never ran, had no container, and costs nothing."""
    with deploy(1.0, max_concurrency=1, overflow="reject", queueing=0.25) as platform:
        platform.invoke("f", nothing, work=2.0)  # runs 0.25 - 2.25
        platform.invoke("f", nothing, at=1.0)
        platform.invoke("f", nothing, at=2.0)  # looks at 2.25, when there is room
        done = drain(platform)
        assert [(i.number, i.status, i.started, i.finished) for i in done] == [
            (1, "throttled", None, 1.25),
            (0, "completed", 0.25, 2.25),
            (2, "completed", 2.25, 3.25),
        ]
        rejected = done[0]
        assert rejected.container is None
        assert happened(platform, "throttled") == [1.25]
        rate = Rate(per_second=1.0, per_request=10.0, granularity=1.0, cold=True)
        bill = platform.bill(PriceSheet("p", {"f": rate}))
        assert (bill.split["f"].busy, bill.requests["f"], bill.split["f"].wasted) == (3.0, 20.0, 0.0)
        again = platform.retry(rejected)
        assert platform.next_completion() is again
        assert (again.status, again.attempt) == ("completed", 2)


def test_overflow_reject_at_the_platforms_limit():
    """One function's calls are rejected, the other's wait."""
    specs = {"a": spec(overflow="reject"), "b": spec()}
    with SimulatedPlatform(specs, max_concurrency=1) as platform:
        for name in "bab":
            platform.invoke(name, nothing)
        assert [(i.number, i.status, i.finished) for i in drain(platform)] == [
            (1, "throttled", 0.0),
            (0, "completed", 1.0),
            (2, "completed", 2.0),
        ]


def test_a_lost_container_leaves_room():
    """Who waits is woken when the container of a running call is lost, and gets one of its own."""
    faults = {"f": Faults(lose_containers_at=(0.5,))}
    with SimulatedPlatform({"f": spec(max_concurrency=1)}, faults=faults) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing)
        assert [(i.status, i.started, i.finished) for i in drain(platform)] == [
            ("crashed", 0.0, 0.5),
            ("completed", 0.5, 1.5),
        ]


# ---- prewarmed ------------------------------------------------------------------------------------------------------


def test_prewarm():
    """It takes a cold start; who comes too early makes one of its own, who comes later finds it warm."""
    with deploy(1.0, cold_start=2.0) as platform:
        platform.prewarm("f", 2)
        for at in (1.0, 2.0, 2.5):
            platform.invoke("f", nothing, at=at)
        done = {i.number: (i.started, i.cold) for i in drain(platform)}
        assert done == {0: (3.0, True), 1: (2.0, False), 2: (2.5, False)}
        assert happened(platform, "container_created") == [0.0, 0.0, 1.0]
        assert happened(platform, "container_ready") == [2.0, 2.0]


def test_prewarm_at_an_instant():
    """Not before."""
    with deploy(1.0, cold_start=2.0) as platform:
        platform.prewarm("f", at=5.0)
        platform.invoke("f", nothing, at=8.0)
        done = platform.next_completion()
        assert (done.started, done.cold) == (8.0, False)
        assert (happened(platform, "container_created"), happened(platform, "container_ready")) == ([5.0], [7.0])


def test_prewarmed_containers_expire():
    """Counted from when they are ready."""
    with deploy(1.0, cold_start=2.0, keep_alive=3.0) as platform:
        platform.prewarm("f")
        platform.invoke("f", nothing, at=5.5)
        assert platform.next_completion().cold
        assert happened(platform, "container_ended") == [5.0]


def test_who_waits_gets_the_prewarmed_container():
    """At the limit, a call waits for the one that is being made."""
    with deploy(1.0, cold_start=2.0, max_concurrency=1) as platform:
        platform.prewarm("f")
        platform.invoke("f", nothing, at=0.5)
        done = platform.next_completion()
        assert (done.started, done.cold) == (2.0, False)
        assert happened(platform, "container_created") == [0.0]


def test_slots():
    """As many as run at once, and as are kept warm or were made ahead; a limit bounds them."""
    deployment = {
        "free": spec(),
        "warm": spec(provisioned=3),
        "limited": spec(max_concurrency=4),
        "killed": spec(timeout=9.0),
    }
    for clock, killed in (("virtual", 5), ("wall", 10)):
        with SimulatedPlatform(deployment, clock=clock) as platform:
            slots = {name: platform.slots(name, concurrent=5) for name in deployment}
            assert slots == {"free": 5, "warm": 8, "limited": 4, "killed": killed}
            platform.prewarm("free", 7)
            platform.prewarm("limited", 7)
            assert platform.slots("free", concurrent=5) == 12
            assert platform.slots("limited", concurrent=5) == 4


@pytest.mark.parametrize("seed", range(20))
def test_no_container_has_a_slot_beyond_those_that_were_told(seed):
    """However many were made ahead, fail or expire."""
    rng = np.random.default_rng(seed)
    deployment = {
        "f": spec(Exponential(1.0), keep_alive=float(rng.choice([0.5, 5.0])), provisioned=int(rng.integers(3)))
    }
    faults = {"f": Faults(crash_during=0.2, lose=0.1, lifetime=Exponential(5.0))}
    with SimulatedPlatform(deployment, seed=seed, faults=faults) as platform:
        platform.prewarm("f", int(rng.integers(1, 5)))
        platform.prewarm("f", 2, at=3.0)
        most = platform.slots("f", concurrent=3)
        seen = set()
        for _ in range(3):
            platform.invoke("f", lambda context: None)
        for _ in range(100):
            done = platform.next_completion()
            seen.add(done.container.slot)
            platform.invoke("f", lambda context: None)
        assert max(seen) < most


def test_prewarming_leaves_no_containers_behind():
    """A call and a prewarming a second, for 2,000 s, of containers that stay for 5: what is kept does not grow."""
    with deploy(0.5, keep_alive=5.0) as platform:
        kept = []
        for second in range(2000):
            platform.prewarm("f", at=float(second))
            platform.invoke("f", nothing, at=float(second))
            while platform.next_completion(until=second + 0.75):
                pass
            pool = platform._life.pools["f"]
            kept.append(sum(map(len, pool._warm.values())))
        assert len(pool.live) < 10
        assert max(kept) < 150


def test_prewarming_beyond_the_limit_does_nothing():
    """Neither more than the limit, nor while the one that there may be runs."""
    with deploy(1.0, cold_start=0.5, max_concurrency=2) as platform:
        platform.prewarm("f", 5)
        platform.invoke("f", nothing, at=1.0)
        drain(platform)
        assert happened(platform, "container_created") == [0.0, 0.0]
    with deploy(4.0, max_concurrency=1) as platform:
        platform.prewarm("f", at=1.0)
        platform.invoke("f", nothing)
        assert platform.next_completion().finished == 4.0
        assert happened(platform, "container_created") == [0.0]


def test_prewarming_at_the_limit_does_not_end_a_warm_container():
    """One that is warm already is as good as the new one, and there at once."""
    with deploy(1.0, cold_start=5.0, max_concurrency=1) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        platform.prewarm("f")
        platform.invoke("f", nothing, at=6.5)
        done = platform.next_completion()
        assert (done.started, done.cold) == (6.5, False)
        assert happened(platform, "container_created") == [0.0]


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        (("g",), LookupError, r"no function 'g' is deployed: the platform has \['f'\]"),
        (("f", 0), ValueError, "function 'f': count=0 is below 1"),
    ],
)
def test_prewarming_what_is_not_there(arguments, error, message):
    """Is refused."""
    with deploy() as platform, pytest.raises(error, match=message):
        platform.prewarm(*arguments)


def test_prewarming_in_the_past():
    """Is refused, and now is not past."""
    with deploy() as platform:
        platform.next_completion(until=2.0)
        with pytest.raises(ValueError, match=r"at=1.5 is past \(now is 2\)"):
            platform.prewarm("f", at=1.5)
        platform.prewarm("f", at=2.0)


# ---- provisioned ----------------------------------------------------------------------------------------------------


def test_provisioned_containers_are_there_from_the_start_and_stay():
    """Ready at 0 in spite of the cold start, warm after any time; a third at once is made, and expires."""
    with deploy(1.0, cold_start=2.0, keep_alive=1.0, provisioned=2) as platform:
        assert happened(platform, "container_ready") == [0.0, 0.0]
        for at in (50.0, 50.0, 50.0, 90.0, 90.0, 90.0):
            platform.invoke("f", nothing, at=at)
        done = sorted(drain(platform), key=lambda i: i.number)
        assert [i.started for i in done] == [50.0, 50.0, 52.0, 90.0, 90.0, 92.0]
        assert [i.cold for i in done] == [False, False, True] * 2
        assert happened(platform, "container_ended") == [54.0]


def test_a_provisioned_container_that_was_killed_is_replaced():
    """At once; the new one takes its cold start, and who waits gets it warm, as does who comes much later."""
    with deploy(1.0, cold_start=0.5, keep_alive=1.0, provisioned=1, max_concurrency=1, timeout=2.0) as platform:
        for at, work in [(0.0, 9.0), (1.0, 1.0), (50.0, 1.0)]:
            platform.invoke("f", nothing, at=at, work=work)
        assert [(i.status, i.started, i.cold) for i in drain(platform)] == [
            ("timed_out", 0.0, False),
            ("completed", 2.5, False),
            ("completed", 50.0, False),
        ]
        assert happened(platform, "container_created") == [0.0, 2.0]
        assert happened(platform, "container_ready") == [0.0, 2.5]
        assert happened(platform, "container_ended") == [2.0]
    assert happened(platform, "container_created") == [0.0, 2.0]  # the end of the platform is no loss
    assert happened(platform, "container_ended") == [2.0, 51.0]


@pytest.mark.parametrize("reuse", ["newest", "most_recent", "least_recent"])
def test_provisioned_containers_are_preferred(reuse):
    """Whatever the rule among the others: container 0 is the oldest, and neither used last nor first."""
    with deploy(1.0, reuse=reuse, provisioned=1) as platform:
        for work in (2.0, 3.0, 1.0):  # containers 0, 1, 2 are freed at 2, 3, 1
            platform.invoke("f", nothing, work=work)
        platform.invoke("f", nothing, at=5.0)
        assert drain(platform)[-1].container.number == 0


def test_a_provisioned_container_that_nobody_used_yet_is_preferred():
    """The replacement of one that was killed, too: it is paid for."""
    with deploy(1.0, provisioned=1, timeout=2.0) as platform:
        platform.invoke("f", nothing, work=9.0)  # kills container 0 at 2; container 2 takes its place
        platform.invoke("f", nothing)  # container 1, idle from 1 on
        last = platform.invoke("f", nothing, at=5.0)
        drain(platform)
        assert happened(platform, "container_created") == [0.0, 0.0, 2.0]
        assert (last.container.number, last.container.provisioned) == (2, True)


def test_a_provisioned_container_of_another_program_passes_its_place_on():
    """At the limit its place is needed: the new one is provisioned, and does not expire either."""
    a, b = (Function(lambda context: context.state, init=lambda slot, key, name=name: name) for name in "ab")
    with deploy(1.0, provisioned=1, max_concurrency=1, keep_alive=1.0) as platform:
        for program, at in [(a, 0.0), (b, 5.0), (b, 50.0)]:
            platform.invoke("f", program, at=at)
        assert [(i.result(), i.cold) for i in drain(platform)] == [("a", False), ("b", True), ("b", False)]
        assert happened(platform, "container_ended") == [5.0]


@pytest.mark.parametrize(("provisioned", "limit"), [(-1, None), (3, 2)])
def test_how_many_may_be_provisioned(provisioned, limit):
    """Between none and the limit."""
    with pytest.raises(ValueError, match=f"provisioned={provisioned} is not between 0 and max_concurrency="):
        deploy(provisioned=provisioned, max_concurrency=limit)


# ---- initialisation and expiry --------------------------------------------------------------------------------------


def test_initialisation():
    """Comes after the cold start, of new containers alone, whoever has them made; the trace says how long it took."""
    with deploy(1.0, cold_start=0.5, initialisation=0.25, provisioned=1) as platform:
        platform.invoke("f", nothing)  # provisioned: initialised before
        platform.invoke("f", nothing)
        platform.prewarm("f", at=1.5)
        platform.invoke("f", nothing, at=10.0)
        done = sorted(drain(platform), key=lambda i: i.number)
        assert [(i.started, i.cold) for i in done] == [(0.0, False), (0.75, True), (10.0, False)]
        rows = platform.trace.select("initialisation")
        assert (rows.time.tolist(), rows.value.tolist()) == ([0.0, 1.5], [0.25, 0.25])
        assert platform.trace.containers("initialisation", "f") == {1: 0.0, 2: 1.5}
        assert happened(platform, "container_ready") == [0.0, 2.25]


def test_no_initialisation_leaves_no_rows():
    """The default."""
    with deploy(1.0, cold_start=0.5) as platform:
        platform.invoke("f", nothing)
        assert platform.next_completion().started == 0.5
        assert happened(platform, "initialisation") == []


def test_a_container_that_is_used_when_it_would_expire():
    """It lives on, and its time counts from its last use: 1 s kept, used until 1 and from 1.5 to 9.5."""
    with deploy(1.0, keep_alive=1.0) as platform:
        for at, work in [(0.0, 1.0), (1.5, 8.0), (20.0, 1.0)]:
            platform.invoke("f", nothing, at=at, work=work)
        assert [i.cold for i in drain(platform)] == [True, False, True]
        assert happened(platform, "container_ended") == [10.5]


def test_each_container_expires_by_its_own_last_use():
    """Two containers, one used often: it is looked at when the first use would have let it expire, and then again."""
    with deploy(0.25, keep_alive=2.0) as platform:
        platform.invoke("f", nothing)  # container 0, until 0.25
        platform.invoke("f", nothing)  # container 1, the newest, used again
        for at in (1.0, 2.0, 3.0):
            platform.invoke("f", nothing, at=at)
        platform.invoke("f", nothing, at=30.0)
        drain(platform)
        assert platform.trace.containers("container_ended", "f") == {0: 2.25, 1: 5.25}


def test_an_idle_container_expires_though_nothing_is_pending():
    """By `until` it has ended, and is billed no longer."""
    with deploy(1.0, keep_alive=1.0) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        assert platform.next_completion(until=10.0) is None
        assert happened(platform, "container_ended") == [2.0]
        assert platform.bill(PriceSheet("p", {"f": Rate(per_second=1.0, idle=True)})).total == 2.0


# ---- at random ------------------------------------------------------------------------------------------------------

SPECS = {
    "limited": FunctionSpec(
        Exponential(1.0), Uniform(0.0, 1.0), keep_alive=0.5, max_concurrency=2, timeout=2.0, provisioned=1
    ),
    "reserved": FunctionSpec(Exponential(1.0), reserved_concurrency=2, keep_alive=0.0, reuse="least_recent"),
    "shared": FunctionSpec(Uniform(0.0, 2.0), Constant(0.25), keep_alive=1.0, reuse="most_recent", timeout=1.5),
    "rejecting": FunctionSpec(Exponential(0.5), Constant(0.25), overflow="reject"),
}
SHARED = 2  # of 4 places, 2 are reserved


def random_run(seed: int) -> tuple[SimulatedPlatform, list]:
    """80 calls of four functions and three programs, in bursts, with crashes and prewarmed containers."""
    rng = np.random.default_rng(seed)
    faults = {name: Faults(crash_during=0.1, crash_before=0.05, lifetime=Exponential(6.0)) for name in SPECS}
    programs = [Function(nothing), Function(nothing, init=lambda *_: 1), Function(nothing, init=lambda *_: 2)]
    submitted = []
    with SimulatedPlatform(SPECS, seed=seed, max_concurrency=4, faults=faults) as platform:
        for _ in range(40):
            name, at = rng.choice(list(SPECS)), rng.choice([0.0, rng.integers(8), rng.uniform(0, 8)])
            submitted.append(platform.invoke(str(name), programs[rng.integers(3)], at=float(at)))
        for name in ("limited", "shared"):
            platform.prewarm(name, 2, at=float(rng.uniform(0, 8)))
        while (done := platform.next_completion()) is not None:
            if len(submitted) < 80:
                submitted.append(platform.invoke(done.function, programs[rng.integers(3)]))
    return platform, submitted


@pytest.mark.parametrize("seed", range(30))
def test_limits_hold_and_nobody_waits_for_nothing(seed):
    """Read off the trace: never more than there may be; and when time goes on, who waits has no room."""
    platform, submitted = random_run(seed)
    assert len(submitted) == 80
    assert {i.status for i in submitted} <= {*ENDINGS} - {"cancelled"}
    log = platform.trace.to_dataframe()
    busy, waiting, state = Counter(), Counter(), {name: {} for name in SPECS}
    for _, rows in log.groupby("time", sort=False):
        for row in rows.itertuples():
            name, number = row.function, row.container
            if row.event == "submitted":
                waiting[name] += 1
            elif row.event == "acquired":
                waiting[name] -= 1
                busy[name] += 1
                state[name][number] = "busy"
            elif row.event in ENDINGS:
                if number < 0:
                    waiting[name] -= 1
                else:
                    busy[name] -= 1
                    state[name][number] = "idle"
            elif row.event == "container_created":
                state[name][number] = "made"
            elif row.event == "container_ready":
                state[name][number] = "idle"
            elif row.event == "container_ended":
                del state[name][number]
            shared = busy.total() - busy["reserved"]
            assert shared <= SHARED
            assert busy["reserved"] <= 2
            assert len(state["limited"]) <= 2
        assert waiting["rejecting"] == 0
        full = shared == SHARED
        assert not waiting["shared"] or full
        assert not waiting["reserved"] or busy["reserved"] == 2
        assert (
            not waiting["limited"] or full or (len(state["limited"]) == 2 and "idle" not in state["limited"].values())
        )
    assert waiting.total() == busy.total() == 0


def test_the_random_runs_are_varied():
    """They wait, are rejected, killed and crash, and prewarmed containers are used."""
    endings, waited, events = Counter(), 0, Counter()
    for seed in range(30):
        platform, submitted = random_run(seed)
        endings.update(i.status for i in submitted)
        table = platform.trace.invocations()
        waited += int((table.acquired > table.submitted).sum())
        events.update(platform.trace.to_dataframe()["event"])
    assert min(endings[status] for status in ("completed", "throttled", "timed_out", "crashed")) > 50
    assert waited > 300
    assert events["container_lost"] > 30
