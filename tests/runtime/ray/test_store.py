"""The store of a cluster: versions as in any store, whose values are in Ray's as long as anybody holds them."""

import gc

import jax.numpy as jnp
import numpy as np
import pytest
import ray

from stellaris.runtime import StoreFullError
from stellaris.runtime.ray.packing import Kept, Packer, Unpacker
from stellaris.runtime.ray.store import RayStore
from tests.runtime.ray.processes import references
from tests.runtime.store.stores import bytes_of, gone, start

pytestmark = pytest.mark.slow


def seen(argument) -> object:
    """What a body sees of an argument: it crosses, and is fetched there."""
    return Unpacker().unpack(Packer().pack(argument, "it"))


def test_references_stand_for_what_they_do_in_any_store() -> None:
    """The latest, a fixed one, one that lags, those that others hold, and objects."""
    store = RayStore(keep=3)
    assert [store.publish("p", {"w": jnp.full(2, n)}) for n in range(3)] == [0, 1, 2]
    start(store, store.at("p", 0), invocation=7)  # another invocation works on the first
    one = store.put([1, 2])
    arguments = (store.latest("p"), store.at("p", 1), store.lagged("p", 2), store.held("p", slots=3), one)
    latest, at, lagged, held, unnamed = seen(start(store, *arguments))
    assert [(v.version, v.value["w"].tolist()) for v in (latest, at, lagged)] == [(2, [2, 2]), (1, [1, 1]), (0, [0, 0])]
    assert [peer.version for peer in held] == [2, 0, 2]
    assert unnamed == [1, 2]
    assert store.fetched(0) == 3 * 8 + 16


def test_a_value_is_told_as_it_was_published() -> None:
    """It is the same object: nothing is copied back."""
    store = RayStore()
    tree = {"w": jnp.zeros(3)}
    store.publish("p", tree)
    assert store.value("p") is tree
    with pytest.raises(LookupError):
        store.value("q")


def test_what_leaves_the_store_leaves_rays() -> None:
    """A version when newer ones have taken its place and nobody runs with it; an object when it is dropped."""
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
    """What does not fit leaves it, and Ray's store, as they were."""
    store = RayStore(capacity=100)
    store.publish("p", bytes_of(60))
    before = references()
    with pytest.raises(StoreFullError, match="'q'"):
        store.publish("q", bytes_of(50))
    gc.collect()
    assert references() == before
    assert (store.nbytes, store.newest("q")) == (60, -1)


def test_rays_own_limit_is_told_as_the_stores(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under the name of what did not fit."""

    def full(value):
        raise ray.exceptions.ObjectStoreFullError("it is full")

    monkeypatch.setattr(ray, "put", full)
    store = RayStore()
    for name, act in (("p", lambda: store.publish("p", bytes_of(7))), ("object", lambda: store.put(bytes_of(7)))):
        with pytest.raises(StoreFullError, match=rf"'{name}': its 7 bytes do not fit into Ray's object store"):
            act()
    assert store.nbytes == 0


def test_a_size_that_is_not_known_is_refused_before_anything_is_stored() -> None:
    """As in any store."""
    before = references()
    with pytest.raises(TypeError, match="unknown size"):
        RayStore().publish("p", object())
    assert references() == before


def test_a_kept_value_has_the_size_of_its_tree() -> None:
    """Which is what capacity, transfers and the trace count."""
    assert Kept({"w": np.zeros(3, np.float32)}, nbytes=12).nbytes == 12
    stored = []
    RayStore(on_stored=lambda *row: stored.append(row)).publish("p", {"w": np.zeros(3, np.float32)})
    assert stored == [("p", 0, 12)]
