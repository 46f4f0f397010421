"""Transfers: what calls fetch from the store, when, what they hold, and how long it takes."""

import numpy as np
import pytest

from stellaris.runtime import (
    Function,
    FunctionError,
    FunctionSpec,
    Outages,
    SimulatedPlatform,
    StoreFaults,
    Transfer,
    Versioned,
)
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import deploy, drain, nothing
from tests.runtime.store.stores import bytes_of


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
    with deploy(0.0, transfer=Transfer(Constant(0.0), bandwidth=100.0)) as platform:
        platform.invoke("f", Function(nothing, upload=upload), platform.store.put(np.zeros(92, np.uint8)), 3)
        expected = seconds if not callable(upload) else 1.0 + 92 * 3 / 100
        assert platform.next_completion().finished == pytest.approx(expected)


@pytest.mark.parametrize("upload", [-5, float("nan"), float("inf")])
def test_a_result_of_no_size_is_refused(unchecked, upload):
    with deploy(1.0, transfer=Transfer(Constant(0.0), bandwidth=100.0)) as platform:
        platform.invoke("f", Function(nothing, upload=lambda: upload))
        with pytest.raises(ValueError, match=rf"upload\(\)={upload} is negative or not finite"):
            platform.next_completion()
        assert platform.now == 0.0
        with pytest.raises(RuntimeError, match=r"deadlock: invocations \[0\] lack an event .*: an error lost it"):
            platform.next_completion()


def test_a_store_that_is_slow():
    """Transfers that start from 1 s until 4 s take ten times as long; computing does not."""
    store = StoreFaults(slow=Outages(at=((1.0, 4.0),)), slow_factor=10.0)
    spec = FunctionSpec(Constant(2.0), transfer=Transfer(Constant(0.1), bandwidth=800.0))
    with SimulatedPlatform({"f": spec}, store_faults=store) as platform:
        for at in (0.0, 1.0, 3.99, 4.0):
            platform.invoke("f", Function(nothing, upload=0), np.zeros(10), at=at)
        done = sorted(drain(platform), key=lambda d: d.number)
        assert [d.finished - d.started for d in done] == pytest.approx([2.2, 4.0, 4.0, 2.2])


def test_an_infinite_bandwidth_leaves_the_latency():
    with deploy(1.0, transfer=Transfer(Constant(0.25), bandwidth=float("inf"))) as platform:
        platform.invoke("f", nothing, np.zeros(10**6))
        assert platform.next_completion().finished == 1.25


def held_platform(**spec) -> SimulatedPlatform:
    """A platform whose `f` takes a second, and whose store keeps only the newest version."""
    return SimulatedPlatform({"f": FunctionSpec(Constant(1.0), **spec)}, keep_versions=1)


def given(context, *arguments):
    """A body that returns what it was given."""
    del context
    return arguments


def publish_at(platform: SimulatedPlatform, instants) -> None:
    """Publishes the present instant as a new version of `p` at each of the instants."""
    for instant in instants:
        assert platform.next_completion(until=instant) is None
        platform.store.publish("p", platform.now)


@pytest.mark.parametrize("wait", [{"queueing": Constant(2.0)}, {"cold_start": Constant(2.0)}])
def test_references_are_resolved_when_the_body_starts(wait):
    """Neither at submission nor when the container is acquired, and not later: 2 s after it was asked for."""
    with held_platform(**wait) as platform:
        store = platform.store
        store.publish("p", 0.0)
        platform.invoke("f", given, store.latest("p"), store.lagged("p", 1))
        publish_at(platform, [0.5, 1.5, 2.5, 2.75])
        assert platform.next_completion().result() == (Versioned(2, 1.5), Versioned(1, 0.5))


def test_an_invocation_that_fails_at_its_start_holds_nothing():
    with held_platform() as platform:
        platform.store.publish("p", 0.0)
        platform.invoke("f", given, platform.store.at("p", 0), platform.store.latest("nothing"), at=1.0)
        publish_at(platform, [0.5])
        assert platform.store.versions("p") == (0, 1)
        assert platform.next_completion().status == "failed"
        assert platform.store.versions("p") == (1,)


def test_running_invocations_hold_what_they_were_given():
    for body, timeout in ((given, None), (lambda context, version: 1 / 0, None), (given, 0.75)):
        with held_platform(timeout=timeout) as platform:
            platform.store.publish("p", 0.0)
            platform.invoke("f", body, platform.store.latest("p"))
            publish_at(platform, [0.25, 0.5])
            assert platform.store.versions("p") == (0, 2)
            platform.next_completion()
            assert platform.store.versions("p") == (2,)
    with held_platform() as platform:
        platform.store.publish("p", 0.0)
        platform.invoke("f", given, platform.store.latest("p"))
        publish_at(platform, [0.25])
    assert platform.store.versions("p") == (1,)  # closed


def test_a_version_that_is_gone_is_an_error_when_it_is_asked_for():
    with held_platform() as platform:
        platform.store.publish("p", 0)
        old = platform.store.at("p", 0)
        platform.store.publish("p", 1)
        with pytest.raises(LookupError, match=r"'p' version 0 is not in the store, which keeps \(1,\)"):
            platform.invoke("f", given, old)
        assert platform.next_completion() is None


def test_a_name_that_is_not_published_when_the_body_starts():
    with held_platform(cold_start=Constant(0.5)) as platform:
        platform.invoke("f", given, platform.store.latest("nothing"))
        done = platform.next_completion()
        assert (done.status, done.started, done.finished) == ("failed", 0.5, 0.5)
        with pytest.raises(FunctionError, match=r"invocation 0 .* failed at 0.5 s: LookupError: 'nothing' was never"):
            done.result()
        assert isinstance(done.error, LookupError)
        platform.invoke("f", given)
        assert not platform.next_completion().cold


def rows(platform: SimulatedPlatform, event: str) -> list[tuple]:
    """`(time, function, invocation, value)` of an event."""
    log = platform.trace.to_dataframe()
    log = log[log["event"] == event]
    return list(log[["time", "function", "invocation", "value"]].itertuples(index=False, name=None))


def test_objects_on_a_platform():
    with deploy(2.0, max_concurrency=1) as platform:
        reference = platform.store.put({"x": bytes_of(40)})
        for _ in range(2):
            platform.invoke("f", lambda context, value: value["x"].nbytes, reference)
        platform.store.drop(reference)
        assert [platform.next_completion().result(), platform.store.nbytes] == [40, 40]
        assert platform.next_completion(until=3.0) is None
        assert platform.store.nbytes == 40
        assert [platform.next_completion().result(), platform.store.nbytes] == [40, 0]
        with pytest.raises(LookupError):
            platform.invoke("f", lambda context, value: value, reference)
        assert platform.next_completion() is None


def test_what_was_stored_and_fetched_is_in_the_trace():
    with deploy(1.0, cold_start=Constant(0.5)) as platform:
        store = platform.store
        store.publish("p", bytes_of(100))
        reference = store.put(bytes_of(30))
        platform.invoke("f", lambda context, *values: None, store.latest("p"), reference, bytes_of(7), reference)
        platform.invoke("f", lambda context, *values: None, bytes_of(7))  # fetches nothing
        platform.next_completion(until=0.25)
        store.publish("p", bytes_of(200))
        assert store.fetched(0) == 0
        platform.next_completion(until=1.0)
        assert store.fetched(0) == 230  # the object once
        platform.next_completion()
        assert store.fetched(0) == 0
        assert rows(platform, "stored") == [(0.0, "p", -1, 100.0), (0.0, "", -1, 30.0), (0.25, "p", -1, 200.0)]
        assert rows(platform, "published") == [(0.0, "p", -1, 0.0), (0.25, "p", -1, 1.0)]  # objects are not published
        assert rows(platform, "fetched") == [(0.5, "f", 0, 230.0)]
