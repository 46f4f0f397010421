"""Containers of one function: which is reused, in which slot, and when they expire."""

import pytest

from stellaris.runtime import PriceSheet, Rate
from tests.runtime.helpers import deploy, drain, happened, nothing, times


def test_cold_and_warm_starts():
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
    with deploy(1.0, keep_alive=keep_alive) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing, at=1.0 + idle)
        assert [i.cold for i in drain(platform)] == [True, cold]
        ended = platform.trace.select("container_ended").time.tolist()
        assert ended == ([1.0 + keep_alive] if cold else [])


def test_slots():
    with deploy(1.0, keep_alive=0.0) as platform:
        for work in (4.0, 1.0, 4.0, 2.0):
            platform.invoke("f", lambda context: context.slot, work=work)
        platform.invoke("f", lambda context: context.slot, at=3.0, work=9.0)
        platform.invoke("f", lambda context: context.slot, at=3.5, work=9.0)
        platform.invoke("f", lambda context: context.slot, at=3.75, work=9.0)
        done = sorted(drain(platform), key=lambda i: i.number)
        assert [i.result() for i in done] == [0, 1, 2, 3, 1, 3, 4]


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


@pytest.mark.parametrize("reuse", ["newest", "most_recent", "least_recent"])
def test_provisioned_containers_are_preferred(reuse):
    """Whatever the rule among the others: container 0 is the oldest, and neither used last nor first."""
    with deploy(1.0, reuse=reuse, provisioned=1) as platform:
        for work in (2.0, 3.0, 1.0):  # containers 0, 1, 2 are freed at 2, 3, 1
            platform.invoke("f", nothing, work=work)
        platform.invoke("f", nothing, at=5.0)
        assert drain(platform)[-1].container.number == 0


def test_initialisation():
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


def test_each_container_expires_by_its_own_last_use():
    with deploy(0.25, keep_alive=2.0) as platform:
        platform.invoke("f", nothing)  # container 0, until 0.25
        platform.invoke("f", nothing)  # container 1, the newest, used again
        for at in (1.0, 2.0, 3.0):
            platform.invoke("f", nothing, at=at)
        platform.invoke("f", nothing, at=30.0)
        drain(platform)
        assert platform.trace.containers("container_ended", "f") == {0: 2.25, 1: 5.25}


def test_an_idle_container_expires_though_nothing_is_pending():
    with deploy(1.0, keep_alive=1.0) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        assert platform.next_completion(until=10.0) is None
        assert happened(platform, "container_ended") == [2.0]
        assert platform.bill(PriceSheet("p", {"f": Rate(per_second=1.0, idle=True)})).total == 2.0
