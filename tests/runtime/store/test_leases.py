"""Leases: what an invocation holds stays until it ends."""

import pytest

from stellaris.runtime import Store, Versioned
from stellaris.runtime.store.leases import Leases
from tests.runtime.store.stores import bytes_of, filled, gone, start


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


@pytest.mark.parametrize("pinned", [True, False])
def test_an_object_that_is_held_outlives_its_drop(pinned):
    """By pending invocations and by running ones, until the last of them ends."""
    store = Store()
    reference = store.put(bytes_of(10))
    for invocation in (0, 1):
        if pinned:
            store.pin((reference,), invocation=invocation)
        else:
            store.resolve((reference, reference), invocation=invocation, function="f")
    store.drop(reference)
    assert store.nbytes == 10
    store.release(1)
    assert (store.nbytes, gone(store, reference)) == (10, False)
    if pinned:  # what was pinned is held on when it is resolved
        store.resolve((reference,), invocation=0, function="f")
        assert store.nbytes == 10
    store.release(0)
    assert (store.nbytes, gone(store, reference)) == (0, True)


def test_a_second_drop_does_not_take_an_object_from_who_holds_it():
    """Its owner has let go of it: there is nothing more to drop, and the invocation keeps it."""
    store = Store()
    reference = store.put(bytes_of(10))
    store.pin((reference,), invocation=0)
    store.drop(reference)
    with pytest.raises(LookupError):
        store.drop(reference)
    assert store.resolve((reference,), invocation=0, function="f")[0].nbytes == 10
    store.release(0)
    assert store.nbytes == 0


def test_entries_are_held_as_often_as_they_were_taken():
    """By hand: two invocations hold version 3, one of them twice; the last to let go frees it."""
    leases = Leases()
    entry = ("policy", 3)
    leases.pin([entry, entry], invocation=0)
    lease, pinned = leases.start(1, "learner")
    assert pinned == []
    leases.fetch(lease, entry)
    assert leases.end(0) == []
    assert leases.is_held(entry)
    assert leases.end(1) == [entry]
    assert not leases.is_held(entry)
    assert leases.end(1) == []  # it held nothing any more


def test_what_others_work_on():
    """The first version of each name that a running invocation refers to, by function, until it ends."""
    leases = Leases()
    for invocation, version in [(0, 1), (1, 2), (2, 2)]:
        lease, _ = leases.start(invocation, "learner")
        leases.work_on(lease, "policy", version)
        leases.work_on(lease, "policy", 9)  # not the first
    assert leases.worked_on("learner", "policy") == {1, 2}
    assert leases.worked_on("actor", "policy") == leases.worked_on("learner", "q") == set()
    leases.end(1)
    assert leases.worked_on("learner", "policy") == {1, 2}
    leases.end(2)
    assert leases.worked_on("learner", "policy") == {1}
