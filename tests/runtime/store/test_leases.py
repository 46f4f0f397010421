"""Leases: what an invocation holds stays until it ends."""

import pytest

from stellaris.runtime import Store
from tests.runtime.store.stores import bytes_of, filled, start


def test_what_an_invocation_holds_stays_until_it_ends():
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


def test_a_second_drop_does_not_take_an_object_from_who_holds_it():
    store = Store()
    reference = store.put(bytes_of(10))
    store.pin((reference,), invocation=0)
    store.drop(reference)
    with pytest.raises(LookupError):
        store.drop(reference)
    assert store.resolve((reference,), invocation=0, function="f")[0].nbytes == 10
    store.release(0)
    assert store.nbytes == 0
