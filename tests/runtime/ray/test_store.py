"""The store of a cluster: versions as in any store, whose values are in Ray's as long as anybody holds them."""

import gc

import pytest
import ray

from stellaris.runtime import StoreFullError
from stellaris.runtime.ray.packing import Packer, Unpacker
from stellaris.runtime.ray.store import RayStore
from tests.runtime.ray.processes import references
from tests.runtime.store.stores import bytes_of, gone, start

pytestmark = pytest.mark.slow


def seen(argument) -> object:
    """What a body sees of an argument: it crosses, and is fetched there."""
    return Unpacker().unpack(Packer().pack(argument, "it"))


def test_what_leaves_the_store_leaves_rays() -> None:
    store = RayStore(keep=1)
    before = references()
    store.publish("p", bytes_of(10))
    start(store, store.latest("p"), invocation=0)
    (first,) = references() - before
    store.publish("p", bytes_of(10))
    gc.collect()
    assert first in references()  # an invocation holds it
    store.release(0)
    gc.collect()
    assert first not in references()
    assert len(references() - before) == 1
    reference = store.put(bytes_of(10))
    assert len(references() - before) == 2
    store.drop(reference)
    assert gone(store, reference)
    gc.collect()
    assert len(references() - before) == 1


def test_its_own_capacity_counts_what_it_holds() -> None:
    store = RayStore(capacity=100)
    store.publish("p", bytes_of(60))
    before = references()
    with pytest.raises(StoreFullError, match="'q'"):
        store.publish("q", bytes_of(50))
    gc.collect()
    assert references() == before
    assert (store.nbytes, store.newest("q")) == (60, -1)


def test_rays_own_limit_is_told_as_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(value):
        raise ray.exceptions.ObjectStoreFullError("it is full")

    monkeypatch.setattr(ray, "put", full)
    store = RayStore()
    for name, act in (("p", lambda: store.publish("p", bytes_of(7))), ("object", lambda: store.put(bytes_of(7)))):
        with pytest.raises(StoreFullError, match=rf"'{name}': its 7 bytes do not fit into Ray's object store"):
            act()
    assert store.nbytes == 0
