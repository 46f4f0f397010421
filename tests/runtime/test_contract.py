"""What every platform keeps, whoever moves its clock: nothing here asks what a real cluster could not answer."""

import itertools
import time
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from stellaris.runtime import Function, FunctionError, FunctionSpec, RayPlatform, Retry, SimulatedPlatform
from stellaris.runtime.contract import Platform
from stellaris.runtime.delays import Constant
from stellaris.runtime.endings import ENDINGS

#: By name, what makes a platform of a deployment.
PLATFORMS: dict[str, Callable[..., Platform]] = {
    "virtual time": lambda functions: SimulatedPlatform(functions, threads=2),
    "wall time": lambda functions: SimulatedPlatform(functions, clock="wall"),
    "cluster": RayPlatform,
}
DEPLOYMENT = {
    "quick": FunctionSpec(Constant(0.0), max_concurrency=2),
    "slow": FunctionSpec(Constant(0.05)),
    "single": FunctionSpec(Constant(0.0), max_concurrency=1),
    "killed": FunctionSpec(Constant(1.0), timeout=0.1, retry=Retry(limit=2)),
}


@pytest.fixture(params=[pytest.param(name) for name in PLATFORMS])
def platform(request: pytest.FixtureRequest) -> Iterator[Platform]:
    """One of every kind."""
    if request.param == "cluster":
        request.getfixturevalue("ray_on_this_machine")
    made = PLATFORMS[request.param](DEPLOYMENT)
    yield made
    made.close()


def warm(platform: Platform, **functions: int) -> None:
    """Has so many containers made of functions: how long that takes is for no test to say."""
    for name, count in functions.items():
        for _ in range(count):
            platform.invoke(name, lambda context: None)
    drain(platform)


def drain(platform: Platform) -> list:
    """Every invocation that is left, in the order in which they are handed out."""
    return list(iter(platform.next_completion, None))


def test_it_is_a_platform(platform: Platform) -> None:
    """By the protocol's own check."""
    assert isinstance(platform, Platform)


def test_each_invocation_is_handed_out_once_with_its_result(platform: Platform) -> None:
    """With the system's tag, and a number and key of its own."""
    asked = [platform.invoke("quick", lambda context, x: x * x, x, tag=f"square of {x}") for x in range(20)]
    done = drain(platform)
    assert sorted(i.number for i in done) == [i.number for i in asked] == list(range(20))
    assert {i.tag: i.result() for i in done} == {f"square of {x}": x * x for x in range(20)}
    assert [i.key for i in asked] == list(range(20))
    assert platform.next_completion() is None


def test_a_body_that_raises_fails_its_own_invocation(platform: Platform) -> None:
    """And is named by the error, with the body's exception as its cause."""
    platform.invoke("quick", lambda context, x: 1 // x, 0)
    platform.invoke("quick", lambda context, x: 1 // x, 1)
    by_number = {i.number: i for i in drain(platform)}
    assert (by_number[0].status, by_number[1].result()) == ("failed", 1)
    with pytest.raises(FunctionError, match=r"function 'quick', invocation 0 \(attempt 1\) failed") as error:
        by_number[0].result()
    assert isinstance(error.value.__cause__, ZeroDivisionError)


def test_completions_come_in_the_order_of_their_ends(platform: Platform) -> None:
    """Of what takes 0.5, 0.1 and 0.3 s at once."""
    warm(platform, slow=3)
    for work in (10.0, 2.0, 6.0):
        platform.invoke("slow", lambda context: None, work=work, tag=work)
    done = drain(platform)
    assert [i.tag for i in done] == [2.0, 6.0, 10.0]
    assert all(i.submitted <= i.started <= i.finished <= platform.now for i in done)
    assert all(a.finished <= b.finished for a, b in itertools.pairwise(done))


def test_until_bounds_how_long_is_waited(platform: Platform) -> None:
    """Nothing ends before it; what was pending is handed out later."""
    platform.invoke("slow", lambda context: "late", work=4.0)
    assert platform.next_completion(until=platform.now + 0.05) is None
    assert platform.now >= 0.05
    assert platform.next_completion().result() == "late"


def test_references_are_resolved_when_the_body_starts(platform: Platform) -> None:
    """After queueing: what was published in the meantime is the latest; a fixed version is what it was."""
    store = platform.store
    for n in range(3):
        store.publish("policy", np.full(2, n))

    def body(context, *versions):
        return [(version.version, version.value.tolist()) for version in versions]

    references = (store.latest("policy"), store.at("policy", 1), store.lagged("policy", 1))
    waits = platform.invoke("single", body, *references, at=platform.now + 0.02)
    store.publish("policy", np.full(2, 3))
    drain(platform)
    assert waits.result() == [(3, [3, 3]), (1, [1, 1]), (2, [2, 2])]


def test_held_are_the_versions_that_others_run_with(platform: Platform) -> None:
    """One's own first, then the others'; padded with one's own."""
    warm(platform, slow=2)
    store = platform.store
    versions = []
    for n in range(2):
        store.publish("policy", n)
        call = platform.invoke(
            "slow",
            lambda context, own, held: [peer.version for peer in held],
            store.latest("policy"),
            store.held("policy", slots=3),
            work=20.0,  # the second starts while the first runs, on a machine that is busy, too
        )
        versions.append(call)
        platform.next_completion(until=platform.now + 0.05)
    drain(platform)
    assert [call.result() for call in versions] == [[0, 0, 0], [1, 0, 1]]


def test_a_container_keeps_its_state_and_its_slot(platform: Platform) -> None:
    """From one invocation to the next; `init` makes it once."""

    def init(slot, key):
        return [f"made for slot {slot}"]

    def count(context):
        context.state.append(context.number)
        return context.state, context.slot

    program = Function(count, init=init)
    seen = []
    for _ in range(3):
        platform.invoke("single", program)
        seen.append(platform.next_completion().result())
    assert seen[-1] == (["made for slot 0", 0, 1, 2], 0)


def test_those_that_run_at_once_have_slots_of_their_own(platform: Platform) -> None:
    """Below the number that `slots` tells."""
    for _ in range(4):
        platform.invoke("slow", lambda context: context.slot)
    assert sorted(i.result() for i in drain(platform)) == [0, 1, 2, 3]
    assert platform.slots("slow", concurrent=4) >= 4


def test_a_limit_on_concurrency_holds(platform: Platform) -> None:
    """Two bodies of a function of one container never overlap: by the clock of the machine that they run on."""

    def body(context):
        began = time.monotonic()
        time.sleep(0.01)
        return began, time.monotonic()

    for _ in range(4):
        platform.invoke("single", body)
    spans = sorted(i.result() for i in drain(platform))
    assert len(spans) == 4
    assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))


def test_what_is_killed_can_be_tried_again(platform: Platform) -> None:
    """Under the same key, with one attempt more, up to the function's limit; its first attempt is not handed out."""
    platform.invoke("killed", lambda context, x: (context.attempt, x), 7, tag="work")
    killed = platform.next_completion()
    assert (killed.status, killed.attempt, killed.tag) == ("timed_out", 1, "work")
    again = platform.retry(killed)
    assert (again.number, again.key, again.attempt, again.tag) == (1, 0, 2, "work")
    assert platform.next_completion() is again
    with pytest.raises(FunctionError, match=r"invocation 1 \(attempt 2\) timed out"):
        platform.retry(again)


def test_what_is_cancelled_is_not_handed_out(platform: Platform) -> None:
    """Whether it waits or runs; what has ended stays as it is."""
    warm(platform, quick=1, slow=1)
    waits = platform.invoke("slow", lambda context: None, at=platform.now + 0.05)
    runs = platform.invoke("slow", lambda context: None, work=20.0)
    done = platform.invoke("quick", lambda context: "done")
    assert platform.next_completion() is done
    for invocation in (waits, runs, done):
        platform.cancel(invocation)
    assert platform.next_completion() is None
    assert [i.status for i in (waits, runs, done)] == ["cancelled", "cancelled", "completed"]


def test_what_did_not_fail_is_not_retried(platform: Platform) -> None:
    """Nor what belongs to another platform."""
    done = platform.invoke("quick", lambda context: None)
    platform.next_completion()
    with pytest.raises(ValueError, match="only what failed is retried"):
        platform.retry(done)
    with SimulatedPlatform(DEPLOYMENT) as other:
        theirs = other.invoke("quick", lambda context: None)
        with pytest.raises(ValueError, match="belongs to another platform"):
            platform.cancel(theirs)


def test_the_trace_tells_each_life_in_order(platform: Platform) -> None:
    """Submitted, acquired, started, and one ending, at times that do not go back."""
    for x in (0, 1, 2):
        platform.invoke("slow", lambda context, x: 1 // x, x)
    platform.cancel(platform.invoke("slow", lambda context: None))
    drain(platform)
    lives: dict[int, list[tuple[float, str]]] = {}
    for instant, event, _, invocation, _, _ in platform.trace.rows():
        if invocation >= 0:
            lives.setdefault(invocation, []).append((instant, event))
    assert sorted(lives) == [0, 1, 2, 3]
    for number, life in lives.items():
        times, events = zip(*life, strict=True)
        assert list(times) == sorted(times)
        assert [event for event in events if event in ENDINGS] == [events[-1]]
        if number < 3:
            assert events[:3] == ("submitted", "acquired", "started")
    table = platform.trace.invocations()
    endings = [ENDINGS[code] for code in table.ending]
    assert endings == ["failed", "completed", "completed", "cancelled"]


def test_what_is_not_deployed_is_named(platform: Platform) -> None:
    """With what is."""
    for call in (
        lambda: platform.invoke("other", lambda context: None),
        lambda: platform.prewarm("other"),
        lambda: platform.slots("other", concurrent=1),
    ):
        with pytest.raises(LookupError, match=r"no function 'other' is deployed: the platform has \['killed', 'quick'"):
            call()


def test_a_platform_runs_once(platform: Platform) -> None:
    """Closing cancels what is pending; closing again does nothing; nothing is invoked any more."""
    pending = platform.invoke("slow", lambda context: None)
    platform.close()
    platform.close()
    assert pending.status == "cancelled"
    with pytest.raises(RuntimeError, match="after close"):
        platform.invoke("slow", lambda context: None)
