"""Tests of the platform contract, for the authors of platforms. They need only pytest."""

import itertools
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import pytest

from stellaris.runtime import Function, FunctionError, FunctionSpec, Invocation, Retry, SimulatedPlatform, Transfer
from stellaris.runtime.contract import Platform
from stellaris.runtime.delays import Constant
from stellaris.runtime.endings import ENDINGS

#: The functions that are deployed in every test.
FUNCTIONS: Mapping[str, FunctionSpec] = {
    "quick": FunctionSpec(Constant(0.0), max_concurrency=2),
    "slow": FunctionSpec(Constant(0.05)),
    "single": FunctionSpec(Constant(0.0), max_concurrency=1),
    "killed": FunctionSpec(Constant(1.0), timeout=0.1, retry=Retry(limit=2)),
    "sends": FunctionSpec(Constant(0.0), transfer=Transfer(Constant(0.0), bandwidth=1e9)),
}


class PlatformContract:
    """The tests that every platform passes; subclass it in a test module, and pytest runs them.

    Write `make`; the class's name must begin with `Test`. The tests demand nothing that a real cluster could not do,
    and take a few seconds of the platform's time. For detailed assertion messages call
    `pytest.register_assert_rewrite("stellaris.testing")` in your `conftest.py`.

    Example:
      >>> class TestSimulatedPlatform(PlatformContract):
      ...     def make(self, functions):
      ...         return SimulatedPlatform(functions)
    """

    def make(self, functions: Mapping[str, FunctionSpec]) -> Platform:
        """Returns a new platform.

        Args:
          functions: the specification of each function to deploy, by name.
        """
        raise NotImplementedError(f"{type(self).__name__} has no method make: write it, and return a new platform")

    @pytest.fixture
    def platform(self) -> Iterator[Platform]:
        """A platform with `FUNCTIONS`, closed after the test."""
        made = self.make(FUNCTIONS)
        yield made
        made.close()

    def test_it_is_a_platform(self, platform: Platform) -> None:
        """It has every method and property of the protocol."""
        assert isinstance(platform, Platform)

    def test_each_invocation_is_handed_out_once_with_its_result(self, platform: Platform) -> None:
        """Invocations are numbered from 0 and keep the system's tag; the key of a first attempt is its number."""
        asked = [platform.invoke("quick", lambda context, x: x * x, x, tag=f"square of {x}") for x in range(20)]
        done = drain(platform)
        assert sorted(i.number for i in done) == [i.number for i in asked] == list(range(20))
        assert {i.tag: i.result() for i in done} == {f"square of {x}": x * x for x in range(20)}
        assert [i.key for i in asked] == list(range(20))
        assert platform.next_completion() is None

    def test_a_body_that_raises_fails_its_own_invocation(self, platform: Platform) -> None:
        """The error names the invocation and has the body's exception as its cause; other invocations complete."""
        platform.invoke("quick", lambda context, x: 1 // x, 0)
        platform.invoke("quick", lambda context, x: 1 // x, 1)
        by_number = {i.number: i for i in drain(platform)}
        assert (by_number[0].status, by_number[1].result()) == ("failed", 1)
        with pytest.raises(FunctionError, match=r"function 'quick', invocation 0 \(attempt 1\) failed") as error:
            by_number[0].result()
        assert isinstance(error.value.__cause__, ZeroDivisionError)

    def test_completions_come_in_the_order_of_their_ends(self, platform: Platform) -> None:
        """Invocations that start together and take 0.5, 0.1 and 0.3 s are handed out in the order in which they end."""
        warm(platform, slow=3)
        for work in (10.0, 2.0, 6.0):
            platform.invoke("slow", lambda context: None, work=work, tag=work)
        done = drain(platform)
        assert [i.tag for i in done] == [2.0, 6.0, 10.0]
        for i in done:
            assert i.started is not None
            assert i.finished is not None
            assert i.submitted <= i.started <= i.finished <= platform.now
        ends = [i.finished or 0.0 for i in done]
        assert ends == sorted(ends)

    def test_until_bounds_how_long_is_waited(self, platform: Platform) -> None:
        """If nothing ends before `until`, None is returned; a later call hands out the pending invocation."""
        platform.invoke("slow", lambda context: "late", work=4.0)
        assert platform.next_completion(until=platform.now + 0.05) is None
        assert platform.now >= 0.05
        assert next_of(platform).result() == "late"

    def test_references_are_resolved_when_the_body_starts(self, platform: Platform) -> None:
        """`latest` gives the newest version at the body's start, not at `invoke`; a fixed version stays the same."""
        store = platform.store
        for n in range(3):
            store.publish("policy", np.full(2, n))

        def body(context: Any, *versions: Any) -> list[Any]:
            return [(version.version, version.value.tolist()) for version in versions]

        references = (store.latest("policy"), store.at("policy", 1), store.lagged("policy", 1))
        # Late enough that the next version is published before it starts, even on a busy machine.
        waits = platform.invoke("single", body, *references, at=platform.now + 0.2)
        store.publish("policy", np.full(2, 3))
        drain(platform)
        assert waits.result() == [(3, [3, 3]), (1, [1, 1]), (2, [2, 2])]

    def test_the_size_of_a_result_may_depend_on_the_values(self, platform: Platform) -> None:
        """`Function.upload` gets what the body gets: values in place of references."""
        store, seen = platform.store, []
        store.publish("policy", {"w": np.zeros(3)})

        def upload(newest: Any, held: Any, data: Any, scale: float) -> int:
            seen.append((newest.version, newest.value["w"].shape, held[1].value["w"].shape, data["x"].shape, scale))
            return int(newest.value["w"].nbytes)

        references = (store.latest("policy"), store.held("policy", slots=2), store.put({"x": np.zeros(5)}))
        platform.invoke("sends", Function(lambda context, *args: len(args), upload=upload), *references, 0.5)
        assert next_of(platform).result() == 4
        assert seen == [(0, (3,), (3,), (5,), 0.5)]

    def test_held_are_the_versions_that_others_run_with(self, platform: Platform) -> None:
        """`held` lists the invocation's own version, then other invocations' versions; padding repeats the first."""
        warm(platform, slow=2)
        store = platform.store
        calls = []
        for n in range(2):
            store.publish("policy", n)
            call = platform.invoke(
                "slow",
                lambda context, own, held: [peer.version for peer in held],
                store.latest("policy"),
                store.held("policy", slots=3),
                work=20.0,  # so long that the second starts while the first runs, even on a busy machine
            )
            calls.append(call)
            platform.next_completion(until=platform.now + 0.05)
        drain(platform)
        assert [call.result() for call in calls] == [[0, 0, 0], [1, 0, 1]]

    def test_a_container_keeps_its_state_and_its_slot(self, platform: Platform) -> None:
        """`init` makes the state once, and each body finds it as the previous body left it."""

        def init(slot: int, key: Any) -> list[Any]:
            return [f"made for slot {slot}"]

        def count(context: Any) -> Any:
            context.state.append(context.number)
            return context.state, context.slot

        program = Function(count, init=init)
        seen = []
        for _ in range(3):
            platform.invoke("single", program)
            seen.append(next_of(platform).result())
        assert seen[-1] == (["made for slot 0", 0, 1, 2], 0)

    def test_bodies_that_run_at_once_have_different_slots(self, platform: Platform) -> None:
        """Every slot's number is below `platform.slots(...)`."""
        for _ in range(4):
            platform.invoke("slow", lambda context: context.slot)
        assert sorted(i.result() for i in drain(platform)) == [0, 1, 2, 3]
        assert platform.slots("slow", concurrent=4) >= 4

    def test_a_limit_on_concurrency_holds(self, platform: Platform) -> None:
        """Two bodies of a function with one container never overlap, by the machine's clock."""

        def body(context: Any) -> tuple[float, float]:
            began = time.monotonic()
            time.sleep(0.01)
            return began, time.monotonic()

        for _ in range(4):
            platform.invoke("single", body)
        spans = sorted(i.result() for i in drain(platform))
        assert len(spans) == 4
        assert all(before[1] <= after[0] for before, after in itertools.pairwise(spans))

    def test_a_killed_invocation_can_be_retried(self, platform: Platform) -> None:
        """A retry has the same key and the next attempt's number, and respects the function's limit."""
        platform.invoke("killed", lambda context, x: (context.attempt, x), 7, tag="work")
        killed = next_of(platform)
        assert (killed.status, killed.attempt, killed.tag) == ("timed_out", 1, "work")
        again = platform.retry(killed)
        assert (again.number, again.key, again.attempt, again.tag) == (1, 0, 2, "work")
        assert platform.next_completion() is again
        with pytest.raises(FunctionError, match=r"invocation 1 \(attempt 2\) timed out"):
            platform.retry(again)

    def test_a_cancelled_invocation_is_not_handed_out(self, platform: Platform) -> None:
        """Pending and running invocations end as cancelled; one that has completed stays as it is."""
        warm(platform, quick=1, slow=1)
        # So far ahead that it is pending until it is cancelled, even on a busy machine.
        waits = platform.invoke("slow", lambda context: None, at=platform.now + 20.0)
        runs = platform.invoke("slow", lambda context: None, work=20.0)
        done = platform.invoke("quick", lambda context: "done")
        assert platform.next_completion() is done
        for invocation in (waits, runs, done):
            platform.cancel(invocation)
        assert platform.next_completion() is None
        assert [i.status for i in (waits, runs, done)] == ["cancelled", "cancelled", "completed"]

    def test_only_failures_are_retried(self, platform: Platform) -> None:
        """`retry` refuses a completed invocation, and `cancel` refuses an invocation of another platform."""
        done = platform.invoke("quick", lambda context: None)
        platform.next_completion()
        with pytest.raises(ValueError, match="retry only a call that failed"):
            platform.retry(done)
        with SimulatedPlatform(FUNCTIONS) as other:
            theirs = other.invoke("quick", lambda context: None)
            with pytest.raises(ValueError, match="belongs to another platform"):
                platform.cancel(theirs)

    def test_the_trace_tells_each_life_in_order(self, platform: Platform) -> None:
        """An invocation is submitted, acquired and started, and ends once, at times that do not decrease."""
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

    def test_an_unknown_function_is_refused_by_name(self, platform: Platform) -> None:
        """The error lists the deployed functions."""
        calls: tuple[Callable[[], Any], ...] = (
            lambda: platform.invoke("other", lambda context: None),
            lambda: platform.prewarm("other"),
            lambda: platform.slots("other", concurrent=1),
        )
        for call in calls:
            with pytest.raises(LookupError, match=r"no function 'other' is deployed: the platform has \['killed', 'q"):
                call()

    def test_a_platform_runs_once(self, platform: Platform) -> None:
        """`close` cancels pending invocations, a second `close` does nothing, and `invoke` after `close` raises."""
        pending = platform.invoke("slow", lambda context: None)
        platform.close()
        platform.close()
        assert pending.status == "cancelled"
        with pytest.raises(RuntimeError, match="after close"):
            platform.invoke("slow", lambda context: None)


def warm(platform: Platform, **functions: int) -> None:
    """Starts containers of functions, so that no test depends on the time of a cold start."""
    for name, count in functions.items():
        for _ in range(count):
            platform.invoke(name, lambda context: None)
    drain(platform)


def drain(platform: Platform) -> list[Invocation]:
    """Returns the remaining invocations in the order in which they are handed out."""
    return list(iter(platform.next_completion, None))


def next_of(platform: Platform) -> Invocation:
    """Returns the next invocation that is handed out; fails if none is pending."""
    done = platform.next_completion()
    assert done is not None
    return done
