"""Objects of the store, who holds what, and how many bytes there are."""

import jax
import numpy as np
import pytest

from stellaris.runtime import FunctionSpec, SimulatedPlatform, Store, StoreFullError, Versioned
from stellaris.runtime.delays import Constant
from stellaris.runtime.references import size


def deploy(compute=1.0, *, store_capacity=float("inf"), keep_versions=2, **spec) -> SimulatedPlatform:
    """A platform with the one function `f`."""
    spec = FunctionSpec(Constant(compute), **spec)
    return SimulatedPlatform({"f": spec}, store_capacity=store_capacity, keep_versions=keep_versions)


def rows(platform: SimulatedPlatform, event: str) -> list[tuple]:
    """`(time, function, invocation, value)` of an event."""
    log = platform.trace.to_dataframe()
    log = log[log["event"] == event]
    return list(log[["time", "function", "invocation", "value"]].itertuples(index=False, name=None))


def bytes_of(n: int):
    """An array of so many bytes."""
    return np.zeros(n, np.uint8)


def gone(store: Store, reference) -> bool:
    """Whether an object has been removed."""
    try:
        store.resolve((reference,), invocation=10**6, function="probe")
    except LookupError:
        return True
    finally:
        store.release(10**6)
    return False


# ---- objects --------------------------------------------------------------------------------------------------------


def test_an_object_is_there_until_it_is_dropped():
    """However many come after it, and however many versions of names; its bytes count as long."""
    store = Store(keep=1)
    first, *others = [store.put(bytes_of(n)) for n in (100, 20, 3)]
    for _ in range(5):
        store.publish("p", bytes_of(1000))
    assert store.nbytes == 1123
    (value,) = store.resolve((first,), invocation=0, function="f")
    assert value.nbytes == 100  # the value itself, and no `Versioned`
    store.release(0)
    assert not gone(store, first)
    store.drop(first)
    assert gone(store, first)
    assert (store.nbytes, [gone(store, other) for other in others]) == (1023, [False, False])


def test_references_tell_objects_apart():
    """They are numbered through, whatever has been dropped; equal ones stand for the same object."""
    store = Store()
    a, b = store.put("a"), store.put("b")
    store.drop(a)
    store.drop(b)
    c = store.put("c")
    assert len({a, b, c}) == 3
    assert store.resolve((c, c), invocation=0, function="f") == ("c", "c")


def test_dropping_what_is_not_there():
    """It never was, or has been dropped."""
    store = Store()
    reference = Store().put(1)
    with pytest.raises(LookupError):
        store.drop(reference)
    store.drop(store.put(1))
    with pytest.raises(LookupError):
        store.drop(reference)


def test_objects_are_no_names():
    """Errors about names do not speak of them."""
    store = Store()
    store.put(1)
    with pytest.raises(LookupError, match=r"'p' was never published: the store knows \[\]"):
        store.value("p")


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


def test_objects_on_a_platform():
    """Dropped at once, it is there for the call that waits and the one that runs, and gone with the last."""
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


@pytest.mark.parametrize(
    ("spec", "body", "status"),
    [
        ({"timeout": 0.5}, lambda context, value: None, "timed_out"),
        ({}, lambda context, value: 1 / 0, "failed"),
    ],
)
def test_an_object_is_let_go_of_however_its_invocation_ends(spec, body, status):
    """And a retry finds it only while it is kept."""
    with deploy(1.0, **spec) as platform:
        kept, dropped = platform.store.put(bytes_of(10)), platform.store.put(bytes_of(5))
        platform.invoke("f", body, kept)
        platform.invoke("f", body, dropped)
        platform.store.drop(dropped)
        first, second = platform.next_completion(), platform.next_completion()
        assert [first.status, second.status, platform.store.nbytes] == [status, status, 10]
        if status == "timed_out":
            platform.retry(first)
            with pytest.raises(LookupError):
                platform.retry(second)


def test_closing_lets_go_of_objects():
    """Of what was pending and running."""
    with deploy(2.0, max_concurrency=1) as platform:
        reference = platform.store.put(bytes_of(10))
        for _ in range(2):
            platform.invoke("f", lambda context, value: None, reference)
        platform.store.drop(reference)
        platform.next_completion(until=1.0)
        assert platform.store.nbytes == 10
    assert platform.store.nbytes == 0


# ---- bytes and capacity ---------------------------------------------------------------------------------------------


def test_bytes():
    """Those of what is there now: arrays, 4 for the text, 8 for the number."""
    store = Store(keep=2)
    sizes = []
    for n in (1, 10, 100, 1000):
        store.publish("p", {"a": bytes_of(n), "b": [np.zeros(n, np.float32), "text", 3]})
        sizes.append(store.nbytes)
    assert sizes == [17, 79, 574, 5524]
    store.lagged("p", 2)
    store.publish("p", bytes_of(7))
    assert store.nbytes == 5531  # three stay from now on
    store.resolve((store.lagged("p", 2),), invocation=0, function="f")
    store.publish("p", bytes_of(8))
    assert (store.nbytes, store.versions("p")) == (5539, (2, 3, 4, 5))
    store.release(0)
    assert (store.nbytes, store.versions("p")) == (5027, (3, 4, 5))


def test_capacity_counts_what_goes():
    """The version that a new one replaces makes room; one that is held does not."""
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
    """The next version has the number that the refused one would have had; nothing is evicted, nothing reported."""
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


def test_a_dropped_object_makes_room():
    """At once if nobody holds it, else when the last one ends."""
    with deploy(1.0, store_capacity=100) as platform:
        a, b = platform.store.put(bytes_of(50)), platform.store.put(bytes_of(50))
        platform.invoke("f", lambda context, value: None, b)
        for reference, fits in [(a, True), (b, False)]:
            platform.store.drop(reference)
            if fits:
                platform.store.put(bytes_of(50))
        with pytest.raises(StoreFullError):
            platform.store.put(bytes_of(1))
        platform.next_completion()
        platform.store.put(bytes_of(50))


@pytest.mark.parametrize("capacity", [0, -1.0, float("nan")])
def test_a_capacity_that_is_none(capacity):
    """Is refused."""
    with pytest.raises(ValueError, match=f"capacity={capacity} is not positive"):
        Store(capacity=capacity)


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


# ---- in the trace ---------------------------------------------------------------------------------------------------


def test_what_was_stored_and_fetched_is_in_the_trace():
    """Bytes of versions and objects when they are stored, and of all references of a call when it starts."""
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


def test_what_held_stands_for_is_fetched_too():
    """Each version once: what fills the other slots is no second copy."""
    with deploy(2.0) as platform:
        store = platform.store
        for n in (10, 1000):
            store.publish("p", bytes_of(n))
            platform.invoke("f", lambda context, *values: None, store.latest("p"), store.held("p", slots=3))
            platform.next_completion(until=platform.now + 0.5)
        # The first fetches its own version, the second its own and the first's.
        assert [row[3] for row in rows(platform, "fetched")] == [10.0, 1010.0]


def test_references_among_values():
    """Objects and versions take their places; everything else stays where it is."""
    store = Store()
    store.publish("p", "policy")
    reference = store.put("object")
    got = store.resolve((1, reference, store.latest("p"), "x"), invocation=0, function="f")
    assert got == (1, "object", Versioned(0, "policy"), "x")


class Parcel:
    """Says how large it is."""

    nbytes = 33


def test_size():
    """Of every leaf; what is of unknown size is an error, and no 0."""
    tree = {"a": [np.zeros(5, np.float32), jax.numpy.zeros(3, jax.numpy.int8)], "b": (True, 2, 3.0, "größe", b"ab")}
    assert size(tree) == 20 + 3 + 3 * 8 + 7 + 2
    assert size(None) == size(()) == 0
    assert size([Parcel(), np.float64(1)]) == 41
    for unknown in (object(), {1, 2}, [1, lambda: None]):
        with pytest.raises(TypeError, match=r"is of unknown size: make it a tree of arrays, or give it an attribute"):
            size(unknown)


@pytest.mark.parametrize("store_it", [lambda store, x: store.publish("p", x), lambda store, x: store.put(x)])
def test_what_is_of_unknown_size_is_not_stored(store_it):
    """And the store stays as it was."""
    store = Store()
    with pytest.raises(TypeError, match="a object is of unknown size"):
        store_it(store, {"w": np.zeros(3), "what": object()})
    assert (store.nbytes, store.newest("p"), store.versions("p")) == (0, -1, ())
