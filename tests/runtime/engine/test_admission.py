"""Admission: who waits, who is rejected, and who gets room next."""

from stellaris.runtime import Faults, PriceSheet, Rate, SimulatedPlatform
from tests.runtime.helpers import deploy, drain, happened, nothing, spec


def test_who_waits_is_not_overtaken_by_who_arrives_when_room_appears():
    """Order of submission: what waits since 0.5 comes before what is submitted at 1, though it was scheduled later."""
    with deploy(1.0, max_concurrency=1) as platform:
        for tag, at in [("first", 0.0), ("third", 1.0), ("second", 0.5)]:
            platform.invoke("f", nothing, at=at, tag=tag)
        assert [(i.tag, i.started) for i in drain(platform)] == [("first", 0.0), ("second", 1.0), ("third", 2.0)]


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
    faults = {"f": Faults(lose_containers_at=(0.5,))}
    with SimulatedPlatform({"f": spec(max_concurrency=1)}, faults=faults) as platform:
        platform.invoke("f", nothing)
        platform.invoke("f", nothing)
        assert [(i.status, i.started, i.finished) for i in drain(platform)] == [
            ("crashed", 0.0, 0.5),
            ("completed", 0.5, 1.5),
        ]


def test_who_waits_gets_the_prewarmed_container():
    with deploy(1.0, cold_start=2.0, max_concurrency=1) as platform:
        platform.prewarm("f")
        platform.invoke("f", nothing, at=0.5)
        done = platform.next_completion()
        assert (done.started, done.cold) == (2.0, False)
        assert happened(platform, "container_created") == [0.0]
