"""The versions that a store keeps, their bytes, and its capacity."""

import gc
import weakref

import numpy as np
import pytest

from stellaris.runtime import Store, StoreFullError
from tests.runtime.store.stores import bytes_of, gone


@pytest.mark.parametrize("keep", [1, 2, 5])
def test_the_newest_few_stay(keep):
    store, gone = Store(keep=keep), []
    for version in range(10):
        value = np.full(3, version)
        gone.append(weakref.ref(value))
        store.publish("p", value)
        assert store.versions("p") == tuple(range(max(version + 1 - keep, 0), version + 1))
    del value
    gc.collect()
    assert [reference() is not None for reference in gone] == [False] * (10 - keep) + [True] * keep


def test_capacity_counts_what_goes():
    store = Store(keep=1, capacity=100)
    assert [store.publish("p", bytes_of(n)) for n in (60, 100, 40)] == [0, 1, 2]
    assert store.publish("q", bytes_of(60)) == 0  # just fits
    store.resolve((store.latest("p"),), invocation=0, function="f")
    with pytest.raises(StoreFullError):
        store.publish("p", bytes_of(1))
    store.release(0)
    assert store.publish("p", bytes_of(1)) == 3
    assert store.nbytes == 61


@pytest.mark.parametrize("what", ["publish", "publish new", "put"])
def test_a_full_store_stays_as_it_was(what):
    stored = []
    store = Store(keep=1, capacity=100, on_stored=lambda *row: stored.append(row))
    reference = store.put(bytes_of(30))
    store.publish("p", bytes_of(50))
    calls = {
        "publish": lambda n: store.publish("p", bytes_of(n)),
        "publish new": lambda n: store.publish("new", bytes_of(n)),
        "put": lambda n: store.put(bytes_of(n)),
    }
    before = stored.copy()
    for _ in range(2):
        with pytest.raises(StoreFullError, match="its 71 bytes do not fit into capacity=100: the store holds 80"):
            calls[what](71)
    assert (store.nbytes, store.versions("p"), store.versions("new")) == (80, (0,), ())
    assert (store.newest("p"), store.newest("new")) == (0, -1)
    assert store.value("p").nbytes == 50
    assert stored == before
    assert not gone(store, reference)
    with pytest.raises(LookupError):
        store.value("new")
    got = calls[what](20)
    assert stored[-1] == {"publish": ("p", 1, 20), "publish new": ("new", 0, 20), "put": ("", 1, 20)}[what]
    assert got == {"publish": 1, "publish new": 0}.get(what, got)
    assert store.nbytes == {"publish": 50}.get(what, 100)


@pytest.mark.parametrize("seed", range(20))
def test_bytes_are_those_of_what_is_there(seed):
    """After any sequence of calls, by a model of its own: reference counts by hand, and everything goes in the end."""
    rng = np.random.default_rng(seed)
    store, refused = Store(keep=2, capacity=250), 0
    objects, versions, running = {}, {"p": {}, "q": {}}, {}
    number = 0

    def model() -> int:
        """Bytes of what has an owner, is among the newest two, or is held."""
        held = [key for keys in running.values() for key in keys]
        total = sum(n for reference, (n, owned) in objects.items() if owned or reference in held)
        for name, sizes in versions.items():
            total += sum(n for v, n in sizes.items() if v > max(sizes) - 2 or (name, v) in held)
        return total

    for _ in range(200):
        action, n = rng.integers(5), int(rng.integers(1, 60))
        name = str(rng.choice(["p", "q"]))
        if action == 0:
            try:
                objects[store.put(bytes_of(n))] = n, True
            except StoreFullError:
                refused += 1
        elif action == 1:
            try:
                versions[name][store.publish(name, bytes_of(n))] = n
            except StoreFullError:
                refused += 1
        elif action == 2:
            owned = [reference for reference, (_, mine) in objects.items() if mine]
            if owned:
                reference = owned[rng.integers(len(owned))]
                store.drop(reference)
                objects[reference] = objects[reference][0], False
        elif action == 3:
            owned = [reference for reference, (_, mine) in objects.items() if mine]
            arguments = tuple(owned[i] for i in rng.choice(len(owned), min(2, len(owned)), replace=False))
            fixed = tuple(store.at(name, v) for v in store.versions(name)[:1])
            pinned = rng.random() < 0.5
            if pinned:
                store.pin((*arguments, *fixed), invocation=number)
            if not pinned or rng.random() < 0.7:
                store.resolve((*arguments, *fixed), invocation=number, function="f")
            running[number] = [*arguments, *[(name, at.version) for at in fixed]]
            number += 1
        elif running:
            ends = list(running)[rng.integers(len(running))]
            store.release(ends)
            del running[ends]
        assert store.nbytes == model()
        assert store.nbytes <= 250
    for ends in running:
        store.release(ends)
    running.clear()
    for reference, (_, owned) in objects.items():
        if owned:
            store.drop(reference)
    objects.clear()
    assert store.nbytes == model()
    assert refused > 0


@pytest.mark.parametrize("store_it", [lambda store, x: store.publish("p", x), lambda store, x: store.put(x)])
def test_what_is_of_unknown_size_is_not_stored(store_it):
    store = Store()
    with pytest.raises(TypeError, match="a object is of unknown size"):
        store_it(store, {"w": np.zeros(3), "what": object()})
    assert (store.nbytes, store.newest("p"), store.versions("p")) == (0, -1, ())
