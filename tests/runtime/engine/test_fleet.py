"""The fleet: limits on containers, those that are prewarmed or provisioned, and those that make room."""

import contextlib
from collections import Counter

import numpy as np
import pytest

from stellaris.runtime import Faults, Function, FunctionSpec, Node, Resources, SimulatedPlatform
from stellaris.runtime.delays import Constant, Exponential, Uniform
from stellaris.runtime.endings import ENDINGS
from tests.runtime.helpers import deploy, drain, happened, nothing, spec


def test_max_concurrency():
    with deploy(1.0, max_concurrency=2) as platform:
        for tag, work in enumerate([2.0, 1.0, 3.0, 1.0, 1.0]):
            platform.invoke("f", nothing, work=work, tag=tag)
        started = {i.tag: i.started for i in drain(platform)}
        assert started == {0: 0.0, 1: 0.0, 2: 1.0, 3: 2.0, 4: 3.0}
        assert len(platform.trace.select("container_created").time) == 2


def test_an_idle_container_of_another_program_makes_room():
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


def test_the_platforms_limit_is_shared():
    with SimulatedPlatform({"a": spec(), "b": spec()}, max_concurrency=2) as platform:
        for name in "aabaabb":
            platform.invoke(name, nothing)
        done = sorted(drain(platform), key=lambda i: i.number)
        assert [i.started for i in done] == [0.0, 0.0, 1.0, 1.0, 2.0, 2.0, 3.0]


def test_the_platforms_limit_counts_cold_starts_but_not_idle_containers():
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
    with SimulatedPlatform({"a": spec(reserved_concurrency=1, cold_start=0.5), "b": spec()}) as platform:
        for name in "aabb":
            platform.invoke(name, nothing)
        started = {i.number: (i.started, i.cold) for i in drain(platform)}
        assert started == {0: (0.5, True), 1: (1.5, False), 2: (0.0, True), 3: (0.0, True)}


@pytest.mark.parametrize(("a", "b", "refused"), [(1, 1, False), (2, 1, True), (2, None, True), (1, None, False)])
def test_reservations_that_exceed_the_limit(a, b, refused):
    """Nothing may be left for a function that reserves nothing."""
    specs = {"a": spec(reserved_concurrency=a), "b": spec(reserved_concurrency=b)}
    with pytest.raises(ValueError, match="max_concurrency=2 is too small") if refused else contextlib.nullcontext():
        SimulatedPlatform(specs, max_concurrency=2).close()


def test_prewarm():
    with deploy(1.0, cold_start=2.0) as platform:
        platform.prewarm("f", 2)
        for at in (1.0, 2.0, 2.5):
            platform.invoke("f", nothing, at=at)
        done = {i.number: (i.started, i.cold) for i in drain(platform)}
        assert done == {0: (3.0, True), 1: (2.0, False), 2: (2.5, False)}
        assert happened(platform, "container_created") == [0.0, 0.0, 1.0]
        assert happened(platform, "container_ready") == [2.0, 2.0]


def test_prewarm_at_an_instant():
    """Expiry counts from when they are ready."""
    with deploy(1.0, cold_start=2.0, keep_alive=3.0) as platform:
        platform.prewarm("f", at=5.0)
        platform.prewarm("f", at=20.0)
        platform.invoke("f", nothing, at=8.0)
        done = platform.next_completion()
        assert (done.started, done.cold) == (8.0, False)
        platform.next_completion(until=30.0)
        assert happened(platform, "container_created") == [5.0, 20.0]
        assert happened(platform, "container_ready") == [7.0, 22.0]
        assert happened(platform, "container_ended") == [12.0, 25.0]


def test_slots():
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


def test_slots_of_several_programs():
    """One invocation at a time, and a container for each program: the bound is told the sum."""
    with deploy(1.0) as platform:
        for name in "ab":
            platform.invoke("f", Function(lambda context: context.slot, init=lambda slot, key, name=name: name))
            assert platform.next_completion().result() < platform.slots("f", concurrent=2)
        assert len(platform.trace.select("container_created").time) == 2 > platform.slots("f", concurrent=1)


def test_prewarming_beyond_the_limit_does_nothing():
    with deploy(1.0, cold_start=0.5, max_concurrency=2) as platform:
        platform.prewarm("f", 5)
        platform.invoke("f", nothing, at=1.0)
        drain(platform)
        assert happened(platform, "container_created") == [0.0, 0.0]


def test_prewarming_at_the_limit_does_not_end_a_warm_container():
    with deploy(1.0, cold_start=5.0, max_concurrency=1) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        platform.prewarm("f")
        platform.invoke("f", nothing, at=6.5)
        done = platform.next_completion()
        assert (done.started, done.cold) == (6.5, False)
        assert happened(platform, "container_created") == [0.0]


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


def test_a_provisioned_container_of_another_program_passes_its_place_on():
    a, b = (Function(lambda context: context.state, init=lambda slot, key, name=name: name) for name in "ab")
    with deploy(1.0, provisioned=1, max_concurrency=1, keep_alive=1.0) as platform:
        for program, at in [(a, 0.0), (b, 5.0), (b, 50.0)]:
            platform.invoke("f", program, at=at)
        assert [(i.result(), i.cold) for i in drain(platform)] == [("a", False), ("b", True), ("b", False)]
        assert happened(platform, "container_ended") == [5.0]


def test_a_provisioned_container_gives_way_on_a_full_node():
    """To another program of its own function alone; the new one is provisioned in its place."""
    programs = [Function(lambda context: context.state, init=lambda slot, key, name=name: name) for name in "abc"]
    whole = Resources(memory=1.0)
    deployed = {
        "f": FunctionSpec(Constant(1.0), provisioned=1, resources=whole),
        "g": FunctionSpec(Constant(1.0), resources=whole),
    }
    with SimulatedPlatform(deployed, nodes=[Node("n", memory=1.0)]) as platform:
        for program in programs:
            platform.invoke("f", program)
            assert platform.next_completion().cold == (program is not programs[0])
        assert len(platform.trace.select("container_created").time) == 3
        platform.invoke("g", nothing)
        with pytest.raises(RuntimeError, match=r"deadlock: invocations of \{'g': 1\} wait"):
            platform.next_completion()


def test_idle_containers_make_room_those_unused_for_longest_first():
    """f's containers 0 and 1 are idle since 2 and 1: g's first ends 1 alone, its second 0 as well."""
    half = Resources(memory=2.0)
    specs = {"f": spec(resources=half), "g": spec(2.0, resources=half, cold_start=0.5)}
    with SimulatedPlatform(specs, nodes=[Node("n", memory=4.0)]) as platform:
        for work in (2.0, 1.0):
            platform.invoke("f", nothing, work=work)
        for at in (5.0, 6.0):
            platform.invoke("g", nothing, at=at)
        assert [i.started for i in drain(platform)][2:] == [5.5, 6.5]
        assert platform.trace.containers("container_ended", "f") == {1: 5.0, 0: 6.0}


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


@pytest.mark.slow
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
