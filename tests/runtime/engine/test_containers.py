"""Containers of one function: which is reused, in which slot, and when they expire."""

import pytest

from stellaris.runtime import Function, FunctionSpec, PriceSheet, Rate, SimulatedPlatform
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import deploy, drain, happened, nothing, rows, times


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
