"""Deliveries: each piece of work once, whatever crashes, is lost or comes twice."""

from collections import Counter
from typing import Any

import numpy as np
import pytest

from stellaris.runtime import Faults, FunctionError, FunctionSpec, Retry, SimulatedPlatform
from stellaris.runtime.delays import Constant, Exponential
from stellaris.systems import Deliveries
from stellaris.systems.deliveries import Handled


@pytest.mark.parametrize("seed", range(30))
def test_handled_is_a_set(seed: int) -> None:
    """Whatever the order; what it keeps is what is above the first that is missing."""
    keys = np.random.default_rng(seed).permutation(41)[: seed + 11].tolist()
    handled = Handled()
    for i, key in enumerate(keys):
        handled.add(key)
        seen = set(keys[: i + 1])
        assert {key for key in range(42) if key in handled} == seen
        assert len(handled.above) == sum(key > min({*range(42)} - seen) for key in seen)


def platform(retry: Retry | None = None, **options: Any) -> SimulatedPlatform:
    spec = FunctionSpec(Constant(1.0), retry=retry or Retry())
    return SimulatedPlatform({"f": spec}, threads=1, **options)


@pytest.mark.parametrize("seed", range(20))
def test_each_piece_of_work_comes_once(seed: int) -> None:
    faults = Faults(
        crash_before=0.1, crash_during=0.1, crash_after=0.1, lose=0.2, duplicate=0.2, notice_after=Exponential(3.0)
    )
    with platform(Retry(limit=99), faults={"f": faults}, seed=seed) as p:
        deliveries = Deliveries(p)
        for i in range(40):
            p.invoke("f", lambda context, x: x, i, tag=i, at=0.3 * i)
        came = [(done.tag, done.result()) for done in iter(deliveries.next, None)]
        endings = Counter(event for _, event, *_ in p.trace.rows())
    assert sorted(came) == [(i, i) for i in range(40)]
    assert endings["crashed"] > 0
    assert deliveries.retries == {}
    assert deliveries.handled.above == set()


def test_a_duplicate_is_dropped_and_noted() -> None:
    with platform(faults={"f": Faults(at={0: ("duplicate",)})}) as p:
        deliveries = Deliveries(p)
        first = p.invoke("f", lambda context: "once")
        done = deliveries.next()
        assert done is first
        assert deliveries.next() is None
        assert p.trace.select("dropped").invocation.tolist() == [first.number]


def test_work_that_arrives_after_it_was_given_up_on_is_not_done_twice() -> None:
    """Its message was lost, noticed, and tried again; then the first one's duplicate comes: the retry is cancelled."""
    slow = Retry(limit=5, first=100.0)
    faults = Faults(at={0: ("lose", "duplicate")}, notice_after=Constant(1.0), duplicate_after=Constant(5.0))
    with platform(slow, faults={"f": faults}) as p:
        deliveries = Deliveries(p)
        p.invoke("f", lambda context: context.attempt)
        done = deliveries.next()
        assert done is not None
        assert (done.result(), p.now) == (1, 6.0)
        assert deliveries.next() is None
        events = [event for _, event, *_ in p.trace.rows()]
        assert [events.count(event) for event in ("lost", "redelivered", "started", "cancelled")] == [1, 1, 1, 0]


def test_attempts_are_used_up() -> None:
    with platform(Retry(limit=2), faults={"f": Faults(crash_during=1.0)}) as p:
        deliveries = Deliveries(p)
        p.invoke("f", lambda context: None)
        with pytest.raises(FunctionError, match=r"function 'f', invocation 1 \(attempt 2\) crashed"):
            deliveries.next()


def test_a_body_that_raised_is_handed_out() -> None:
    """Trying again would not mend it: whoever waits for it finds out by its result."""
    with platform() as p:
        p.invoke("f", lambda context: 1 / 0)
        done = Deliveries(p).next()
        assert done is not None
        assert done.status == "failed"
        with pytest.raises(FunctionError, match="division by zero"):
            done.result()


def test_until() -> None:
    with platform() as p:
        deliveries = Deliveries(p)
        p.invoke("f", lambda context: None)
        assert deliveries.next(until=0.5) is None
        assert p.now == 0.5
        assert deliveries.next(until=2.0) is not None
