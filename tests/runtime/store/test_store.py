"""The store: versions, objects and the references to them."""

import math

import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.runtime import SimulatedPlatform, Store, Versioned
from stellaris.runtime.references import At, Held, Lagged
from tests.runtime.store.stores import filled, start


def test_versions_count_from_zero_name_by_name():
    """0, 1, 2, ... for each name; every publication is reported once."""
    seen = []
    store = Store(on_stored=lambda name, version, nbytes: seen.append((name, version)))
    assert store.newest("a") == -1
    assert [store.publish(name, name) for name in "aabab"] == [0, 1, 0, 2, 1]
    assert seen == [("a", 0), ("a", 1), ("b", 0), ("a", 2), ("b", 1)]
    assert (store.newest("a"), store.newest("b"), store.value("b")) == (2, 1, "b")


def test_references_stand_for_versions():
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


def test_a_lag_that_comes_too_late():
    """The version that it needs was removed; the store keeps enough of those that follow."""
    store = filled(5, keep=1)
    with pytest.raises(LookupError, match=r"'p' version 2 is not in the store, which keeps \(4,\)"):
        store.lagged("p", 2)
    for version in (5, 6):
        store.publish("p", version)
    assert start(store, store.lagged("p", 2))[0].version == 4


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
    store = filled(1)
    store.publish("q", 0)
    with pytest.raises(LookupError, match=r"held\('p'\): pass a reference to 'p' as well"):
        start(store, store.held("p", slots=2), store.latest("q"))


@pytest.mark.parametrize(
    ("look_up", "message"),
    [
        (lambda s: s.at("p", 0), r"'p' version 0 is not in the store, which keeps \(2, 3\)"),
        (lambda s: s.at("p", 4), r"'p' version 4 is not in the store"),
        (lambda s: s.at("p", -1), r"'p' version -1 is not in the store"),
        (lambda s: s.at("p", np.array(2**32 + 3)), r"'p' version 4294967299 is not in the store"),
        (lambda s: s.at("p", 2.5), r"'p' version 2.5 is not in the store"),
        (lambda s: s.at("q", 0), r"'q' was never published: the store knows \['p'\]"),
        (lambda s: s.value("q"), r"'q' was never published"),
        (lambda s: start(s, s.latest("q")), r"'q' was never published"),
        (lambda s: start(s, s.lagged("q", 1)), r"'q' was never published"),
    ],
)
def test_versions_that_are_not_there(look_up, message):
    with pytest.raises(LookupError, match=message):
        look_up(filled(4, keep=2))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Store(keep=0), "keep=0 is below 1"),
        (lambda: Store(keep=math.nan), "keep=nan is below 1"),
        (lambda: Store().publish("", 1.0), "name='' is reserved for objects"),
        (lambda: SimulatedPlatform({}, keep_versions=0), "keep_versions=0 is below 1"),
        (lambda: Store(capacity=math.nan), "capacity=nan is not positive"),
        (lambda: Store().lagged("p", -1), "lag=-1 is negative"),
        (lambda: Store().lagged("p", 1.5), r"lag=1\.5 is not a whole number"),
        (lambda: Store().held("p", slots=2.5), r"slots=2\.5 is not a whole number"),
        (lambda: Store().held("p", slots=0), "slots=0 is below 1"),
    ],
)
def test_arguments_out_of_range(unchecked, make, message):
    with pytest.raises((TypeError, ValueError), match=message):
        make()


@pytest.mark.parametrize("array", [np.array, np.int64, jnp.int32])
def test_numbers_of_versions_in_arrays(unchecked, array):
    store = filled(5, keep=5)
    assert store.at("p", array(3)) == At("p", 3)
    assert store.lagged("p", array(3)) == Lagged("p", 3)
    assert store.held("p", slots=array(3)) == Held("p", 3)
    for version, _ in start(store, store.at("p", array(3)), store.lagged("p", array(3))):
        assert type(version) is int


def test_dropping_what_is_not_there():
    store = Store()
    reference = Store().put(1)
    with pytest.raises(LookupError):
        store.drop(reference)
    store.drop(store.put(1))
    with pytest.raises(LookupError):
        store.drop(reference)
