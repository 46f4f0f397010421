"""Versions, references, and what is kept for whom."""

import gc
import weakref

import numpy as np
import pytest

from stellaris.runtime import FunctionError, FunctionSpec, SimulatedPlatform, Store, Versioned
from stellaris.runtime.delays import Constant


def filled(versions: int, **options) -> Store:
    """A store whose `p` has `versions` versions, version `v` of value `10 v`."""
    store = Store(**options)
    for version in range(versions):
        assert store.publish("p", 10 * version) == version
    return store


def start(store: Store, *arguments, invocation: int = 0, function: str = "f") -> tuple:
    """What an invocation that starts now is given."""
    return store.resolve(arguments, invocation=invocation, function=function)


def test_versions_count_from_zero_name_by_name():
    """0, 1, 2, ... for each name; every publication is reported once."""
    seen = []
    store = Store(on_stored=lambda name, version, nbytes: seen.append((name, version)))
    assert store.newest("a") == -1
    assert [store.publish(name, name) for name in "aabab"] == [0, 1, 0, 2, 1]
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 1)]
    assert (store.newest("a"), store.newest("b"), store.value("b")) == (2, 1, "b")


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_few_stay(keep):
    """Of ten versions, the last `keep`; the values that are let go of are freed."""
    store, gone = Store(keep=keep), []
    for version in range(10):
        value = np.full(3, version)
        gone.append(weakref.ref(value))
        store.publish("p", value)
        assert store.versions("p") == tuple(range(max(version + 1 - keep, 0), version + 1))
    del value
    gc.collect()
    assert [reference() is not None for reference in gone] == [False] * (10 - keep) + [True] * keep


def test_references_stand_for_versions():
    """latest, at and lagged, beside values that pass through as they are; the very tree that was published."""
    store = filled(5, keep=5)
    other = object()
    got = start(store, 1.5, store.latest("p"), store.at("p", 3), store.lagged("p", 2), store.lagged("p", 0), other)
    assert got == (1.5, Versioned(4, 40), Versioned(3, 30), Versioned(2, 20), Versioned(4, 40), other)
    tree = {"w": np.zeros(2)}
    store.publish("q", tree)
    assert start(store, store.latest("q"))[0].value is tree


def test_lagged_starts_at_the_first_version_and_is_kept():
    """Lag 3 gives 0, 0, 0, 0, 1, 2, ...: the store keeps what the lag may need, of that name alone."""
    store = Store(keep=1)
    lagged, got = store.lagged("p", 3), []
    for version in range(7):
        store.publish("p", version)
        store.publish("q", version)
        got.append(start(store, lagged)[0].version)
        store.release(0)
    assert got == [0, 0, 0, 0, 1, 2, 3]
    assert (store.versions("p"), store.versions("q")) == ((3, 4, 5, 6), (6,))
    store.lagged("p", 1)  # a smaller lag does not shorten what a larger one needs
    store.publish("p", 7)
    assert start(store, lagged)[0] == Versioned(4, 4)


def test_what_an_invocation_holds_stays_until_it_ends():
    """A version goes when the last of its holders does, and only if it is old."""
    store = filled(1, keep=2)
    for invocation in (0, 1):
        start(store, store.latest("p"), store.latest("p"), invocation=invocation)
    for version in range(1, 5):
        store.publish("p", version)
    assert store.versions("p") == (0, 3, 4)
    store.release(0)
    assert store.versions("p") == (0, 3, 4)
    store.release(0)  # once is enough
    assert store.versions("p") == (0, 3, 4)
    store.release(1)
    assert store.versions("p") == (3, 4)
    start(store, store.latest("p"), invocation=2)
    store.release(2)
    assert store.versions("p") == (3, 4)


def test_pinned_versions_survive_until_their_invocation_starts():
    """A fixed version that a pending invocation refers to is there when it starts, and goes when it ends."""
    store = filled(1, keep=1)
    reference = store.at("p", 0)
    store.pin((reference, "value", store.latest("p")), invocation=7)
    store.publish("p", 10)
    store.publish("p", 20)
    assert store.versions("p") == (0, 2)
    assert start(store, reference, invocation=7) == (Versioned(0, 0),)
    assert store.versions("p") == (0, 2)
    store.release(7)
    assert store.versions("p") == (2,)


@pytest.mark.parametrize(
    ("slots", "versions"),
    [(1, [4]), (2, [4, 9]), (3, [4, 9, 3]), (4, [4, 9, 3, 0]), (6, [4, 9, 3, 0, 4, 4])],
)
def test_held_policies(slots, versions):
    """One's own, then the others' distinct ones, newest first, padded with one's own; ended ones do not count."""
    store = filled(1, keep=1)
    holders = {0: 0, 3: 1, 4: 2, 6: 3, 9: 4}  # version: invocation that holds it
    for version in range(10):
        if version in holders:
            start(store, store.latest("p"), invocation=holders[version])
        if version == 9:
            start(store, store.latest("p"), invocation=5)  # twice the same
        if version < 9:
            store.publish("p", 10 * (version + 1))
    store.release(3)
    start(store, store.latest("p"), invocation=6, function="another")
    store.publish("p", 100)
    start(store, store.latest("p"), invocation=7, function="another")
    store.pin((store.at("p", 10),), invocation=8)  # pending, not running
    got = start(store, store.held("p", slots=slots), store.at("p", 4), invocation=9)
    assert got == (tuple(Versioned(v, 10 * v) for v in versions), Versioned(4, 40))


def test_held_needs_a_version_of_ones_own():
    """Nothing says which version an invocation works on, unless it refers to one."""
    store = filled(1)
    store.publish("q", 0)
    with pytest.raises(LookupError, match=r"held\('p'\) needs a reference to 'p' beside it"):
        start(store, store.held("p", slots=2), store.latest("q"))


@pytest.mark.parametrize(
    ("look_up", "message"),
    [
        (lambda s: s.at("p", 0), r"'p' version 0 is not in the store, which keeps \(2, 3\)"),
        (lambda s: s.at("p", 4), r"'p' version 4 is not in the store"),
        (lambda s: s.at("p", -1), r"'p' version -1 is not in the store"),
        (lambda s: s.at("q", 0), r"'q' was never published: the store knows \['p'\]"),
        (lambda s: s.value("q"), r"'q' was never published"),
        (lambda s: start(s, s.latest("q")), r"'q' was never published"),
        (lambda s: start(s, s.lagged("q", 1)), r"'q' was never published"),
    ],
)
def test_versions_that_are_not_there(look_up, message):
    """The name, the version and what there is instead are named."""
    with pytest.raises(LookupError, match=message):
        look_up(filled(4, keep=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Store(keep=0), "keep=0 is below 1"),
        (lambda: SimulatedPlatform({}, keep_versions=0), "keep_versions=0 is below 1"),
        (lambda: Store().lagged("p", -1), "lag=-1 is negative"),
        (lambda: Store().held("p", slots=0), "slots=0 is below 1"),
    ],
)
def test_arguments_out_of_range(make, message):
    """Found at once."""
    with pytest.raises(ValueError, match=message):
        make()


# ---- on the platform ------------------------------------------------------------------------------------------------


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


def test_references_are_resolved_after_waiting_for_a_place():
    """The second of two waits a second for the only container, and sees what was published meanwhile."""
    with held_platform(max_concurrency=1) as platform:
        platform.store.publish("p", 0.0)
        for _ in range(2):
            platform.invoke("f", given, platform.store.latest("p"))
        publish_at(platform, [0.5])
        assert [platform.next_completion().result()[0].version for _ in range(2)] == [0, 1]


def test_fixed_versions_are_kept_for_a_pending_invocation():
    """A version that an invocation names is there when it starts, however much is published before."""
    with held_platform(queueing=Constant(2.0)) as platform:
        platform.store.publish("p", 0.0)
        pending = platform.invoke("f", given, platform.store.at("p", 0))
        publish_at(platform, [0.5, 1.0, 1.5, 2.5])
        assert platform.store.versions("p") == (0, 4)
        assert platform.next_completion() is pending
        assert pending.result() == (Versioned(0, 0.0),)
        assert platform.store.versions("p") == (4,)


def test_an_invocation_that_fails_at_its_start_holds_nothing():
    """What was kept for it goes with it."""
    with held_platform() as platform:
        platform.store.publish("p", 0.0)
        platform.invoke("f", given, platform.store.at("p", 0), platform.store.latest("nothing"), at=1.0)
        publish_at(platform, [0.5])
        assert platform.store.versions("p") == (0, 1)
        assert platform.next_completion().status == "failed"
        assert platform.store.versions("p") == (1,)


def test_running_invocations_hold_what_they_were_given():
    """From the start to the end; however they end."""
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
    """An old reference is refused at submission."""
    with held_platform() as platform:
        platform.store.publish("p", 0)
        old = platform.store.at("p", 0)
        platform.store.publish("p", 1)
        with pytest.raises(LookupError, match=r"'p' version 0 is not in the store, which keeps \(1,\)"):
            platform.invoke("f", given, old)
        assert platform.next_completion() is None


def test_a_name_that_is_not_published_when_the_body_starts():
    """The invocation fails at its start, costs no compute time, and frees its container."""
    with held_platform(cold_start=Constant(0.5)) as platform:
        platform.invoke("f", given, platform.store.latest("nothing"))
        done = platform.next_completion()
        assert (done.status, done.started, done.finished) == ("failed", 0.5, 0.5)
        with pytest.raises(FunctionError, match=r"invocation 0 .* failed at 0.5 s: LookupError: 'nothing' was never"):
            done.result()
        assert isinstance(done.error, LookupError)
        platform.invoke("f", given)
        assert not platform.next_completion().cold


def test_held_on_the_platform():
    """At its start each learner sees what the learners that run hold; actors, and learners that ended, do not count."""
    specs = {"learner": FunctionSpec(Constant(2.0)), "actor": FunctionSpec(Constant(9.0))}
    with SimulatedPlatform(specs, keep_versions=1) as platform:
        latest, held = platform.store.latest("p"), platform.store.held("p", slots=3)
        seen = []
        for second in range(5):
            platform.store.publish("p", second)
            if second == 1:
                platform.invoke("actor", given, latest)
            else:
                platform.invoke("learner", given, latest, held)
            while (done := platform.next_completion(until=second + 1.0)) is not None:
                seen.append([peer.version for peer in done.result()[1]])
        # Learners start at 0, 2, 3 and 4; the first ends at 2, before the second starts, that one before the last.
        assert seen == [[0, 0, 0], [2, 2, 2], [3, 2, 3]]
        assert [peer.version for peer in platform.next_completion().result()[1]] == [4, 3, 4]
