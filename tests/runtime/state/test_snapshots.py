"""Snapshots: what can be said as plain data comes back as it was, and what cannot is refused by name."""

import dataclasses
import functools
import json
import math
import threading
from collections import Counter, OrderedDict, deque
from typing import Any, NamedTuple

import flax.linen as nn
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from stellaris import softsync, staleness_aware
from stellaris.runtime.state.arrays import DTYPES, FEW
from stellaris.runtime.state.registry import register_part, register_value
from stellaris.runtime.state.restoring import restore
from stellaris.runtime.state.snapshots import CheckpointError, SavedError, Snapshot, path, take
from stellaris.types import Versioned


@register_value
@dataclasses.dataclass(eq=False)
class Node:
    """Of a graph."""

    name: str
    next: Any = None

    @functools.cached_property
    def length(self) -> int:
        """Computed when it is asked for."""
        return len(self.name)


@register_value
class Pair(NamedTuple):
    """A named tuple of a user's."""

    x: Any
    y: Any


@register_value
class OwnError(ValueError):
    """An exception of a user's."""


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Layer:
    """A layer of somebody's network: it holds code besides."""

    weight: Any
    activation: Any

    def tree_flatten(self) -> Any:
        """As JAX asks for it."""
        return (self.weight,), self.activation

    @classmethod
    def tree_unflatten(cls, activation: Any, leaves: Any) -> Any:
        """As JAX asks for it."""
        return cls(*leaves, activation)


def through_json(snapshot: Snapshot) -> Snapshot:
    """As it is read from a file."""
    return snapshot._replace(tree=json.loads(json.dumps(snapshot.tree, allow_nan=False)))


def again(value: Any, **given: Any) -> Any:
    """What comes back."""
    return restore(through_json(take(value, **given)), **given)


def same(one: Any, other: Any) -> bool:
    """Whether both are of the same types and values, to the last bit; NaN is NaN."""
    if type(one) is not type(other):
        return False
    match one:
        case float():
            return math.copysign(1, one) == math.copysign(1, other) and (one == other or one != one != other)
        case np.ndarray() | np.generic() | jax.Array():
            if isinstance(one, jax.Array) and jnp.issubdtype(one.dtype, jax.dtypes.prng_key):
                assert jax.random.key_impl(one) == jax.random.key_impl(other)
                one, other = jax.random.key_data(one), jax.random.key_data(other)
            if isinstance(one, jax.Array) and one.weak_type != other.weak_type:
                return False
            one, other = np.asarray(one), np.asarray(other)
            return (one.dtype, one.shape, one.tobytes()) == (other.dtype, other.shape, other.tobytes())
        case dict():  # in the same order
            return [*map(same, one, other)] == [True] * len(one) == [*map(same, one.values(), other.values())]
        case list() | tuple() | deque():
            return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other)


# ---- what comes back ----

NUMBERS = [dtype for dtype in DTYPES.values() if dtype.isbuiltin == 1]  # the others are below
arrays = st.sampled_from(NUMBERS).flatmap(lambda d: hnp.arrays(d, hnp.array_shapes(min_dims=0, min_side=0, max_side=4)))
keys = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.binary()
leaves = keys | st.floats() | arrays | st.sampled_from([np.float32(1.1), np.int8(-3), np.bool_(True), np.complex64(1j)])
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(st.text(), inner)
        | st.lists(inner).map(lambda items: deque(items, maxlen=7))
        | st.sets(keys)
        | st.frozensets(keys)
        | st.tuples(inner, inner).map(lambda pair: Pair(*pair))
        | st.lists(st.text()).map(Counter)
    ),
    max_leaves=12,
)


@given(values)
@example(-math.nan)
@example([math.nan, -math.inf, -0.0])
@settings(max_examples=300, deadline=None)
def test_any_value_comes_back(value: Any) -> None:
    """Any nesting of what can be said."""
    assert same(again(value), value)


@given(values, st.integers(0, 10**6))
@settings(max_examples=100, deadline=None)
def test_what_is_one_object_is_one_again(value: Any, salt: int) -> None:
    """However often it is met, and wherever."""
    box = [value]
    one, (two, three), mapping = again([box, (box, box), {"k": box, salt: salt}])
    assert one is two is three is mapping["k"]
    assert same(one, box)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
@pytest.mark.parametrize("shape", [(), (3,), (0, 2), (2, 3), (3, 2000)])
def test_arrays_of_every_type(dtype: Any, shape: tuple[int, ...]) -> None:
    """On the host and on a device, and as scalars, with their shapes."""
    host = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
    assert same(again(host), host)
    assert len(take(host).arrays) == (host.nbytes > FEW)
    with jax.enable_x64(True):
        device = jnp.asarray(host)
        assert device.dtype == dtype
        assert same(again(device), device)
    scalar = np.ones((), dtype)[()]
    assert same(again(scalar), scalar)


def test_arrays_that_lie_in_memory_differently() -> None:
    """Slices, transposed and read-only ones: the same numbers, contiguous, and to be written to."""
    base = np.arange(12.0).reshape(3, 4)
    for array in (base[:, 1], base.T, base[::-2], np.broadcast_to(base[0], (3, 4)), np.asarray(jnp.arange(3))):
        loaded = again(array)
        assert same(loaded, np.array(array))
        loaded[0] = 7


def test_larger_arrays_have_names() -> None:
    """Those of the places where they are met first."""
    large, more = np.arange(1000.0), jnp.arange(2000)
    snapshot = take({"a": [large, {"b/c": more}], "d": large, "b|c": np.arange(3)})
    assert {name: array.shape for name, array in snapshot.arrays.items()} == {
        "state.a[0]": (1000,),
        "state.a[1].b|c": (2000,),
    }
    state = take([{"x/y": large, "x|y": more}]).arrays
    assert [*state] == ["state[0].x|y", "state[0].x|y'"]


def test_weak_types_come_back() -> None:
    """They decide on the type of what is computed from them."""
    weak = jnp.asarray(2.0)
    assert weak.weak_type
    assert same(again(weak), weak)
    assert (again(weak) * jnp.ones(2, jnp.bfloat16)).dtype == jnp.bfloat16


def test_float64_needs_x64() -> None:
    """It would be rounded without a word."""
    with jax.enable_x64(True):
        snapshot = take(jnp.asarray(1.5, jnp.float64))
    with pytest.raises(CheckpointError, match=r"state: its dtype is float64, which JAX holds only with jax_enable_x64"):
        restore(snapshot)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys_go_on(impl: str) -> None:
    """One, and many."""
    keys = jax.random.split(jax.random.key(3, impl=impl), 5)
    assert same(again(keys), keys)
    np.testing.assert_array_equal(jax.random.normal(again(keys[1])), jax.random.normal(keys[1]))


@pytest.mark.parametrize(
    "bits", [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]
)
def test_random_generators_go_on(bits: Any) -> None:
    """With the very number that would have come next."""
    rng = np.random.Generator(bits(5))
    rng.standard_normal(7), rng.integers(9, dtype=np.uint32)
    loaded = again({"rng": rng})["rng"]
    assert (
        loaded.integers(2**32, size=5, dtype=np.uint32).tolist()
        == rng.integers(2**32, size=5, dtype=np.uint32).tolist()
    )
    assert loaded.standard_normal(5).tolist() == rng.standard_normal(5).tolist()


def test_cycles_and_registered_classes() -> None:
    """Objects are made before what is in them; what can be computed again is not saved."""
    first, second = Node("a"), Node("bc")
    first.next, second.next = second, [first, {"me": first}]
    assert second.length == 2
    loaded = again(first)
    assert type(loaded) is Node
    assert loaded.next.next[0] is loaded is loaded.next.next[1]["me"]
    assert (loaded.name, loaded.next.name, loaded.next.length) == ("a", "bc", 2)
    loop: list[Any] = [1]
    loop.append((2, loop))
    assert again(loop)[1][1][1][0] == 2


def test_networks_optimizers_and_queues() -> None:
    """Parameters of flax, states of optax, the queue of an aggregator: their structure and every leaf."""
    params = nn.Dense(3).init(jax.random.key(0), jnp.ones(2))
    schedule = optax.linear_schedule(1e-3, 0.0, 9)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3),
        optax.apply_if_finite(optax.masked(optax.sgd(schedule, momentum=0.9), {"params": True}), 3),
    )
    state = optimizer.init(params)
    queue = staleness_aware(3, decay=0.9).init(params)
    queue = softsync(2).push(queue, params, 4)
    for tree in (params, state, queue, Versioned(3, params)):
        loaded = again(tree)
        assert jax.tree.structure(loaded) == jax.tree.structure(tree)
        assert all(map(same, jax.tree.leaves(loaded), jax.tree.leaves(tree)))
    updates, _ = optimizer.update(params, again(state), params)
    assert all(map(same, jax.tree.leaves(updates), jax.tree.leaves(optimizer.update(params, state, params)[0])))


def test_structures_of_trees() -> None:
    """As values of their own, static parts of what JAX compiles."""
    structure = jax.tree.structure({"a": (1, None, Pair(2, [3])), "b": {}})
    assert again({"s": structure})["s"] == structure


def test_exceptions_keep_their_text() -> None:
    """Python's and registered ones come back; for another one stands one that names it."""
    for error in (KeyError("x"), OwnError("y", 3), ValueError(), OSError(2, "no such file")):
        loaded = again(error)
        assert (type(loaded), loaded.args, str(loaded)) == (type(error), error.args, str(error))
    loaded = again([json.JSONDecodeError("bad", "doc", 1)])[0]
    assert type(loaded) is SavedError
    assert str(loaded) == "JSONDecodeError: bad: line 1 column 2 (char 1)"
    assert str(again(SystemExit(3))) == "SystemExit: 3"
    assert str(again(ValueError(object))) == "ValueError: <class 'object'>"
    assert str(again(loaded)) == str(loaded)


# ---- what is given again ----


def test_externals_are_given_again() -> None:
    """By name, and are the very objects that were given; one that is not is missed."""
    with threading.Lock() as _:
        lock = threading.Lock()
    state = {"lock": lock, "both": [lock, print]}
    snapshot = take(state, externals={"the lock": lock, "print": print})
    other = threading.Lock()
    loaded = restore(snapshot, externals={"the lock": other, "print": len})
    assert loaded == {"lock": other, "both": [other, len]}
    with pytest.raises(CheckpointError, match=r"state\.lock: externals lacks 'the lock', which was one"):
        restore(snapshot, externals={"print": print})


def test_trees_of_unknown_classes_are_like_given_ones() -> None:
    """Their leaves are saved, in parameters and in what is made of them; what else they hold is given again."""
    given = {"network": {"layers": [Layer(jnp.zeros(2), jnp.tanh), Layer(jnp.zeros(3), jnp.sin)]}}
    params = [Layer(jnp.ones(2), jnp.tanh), Layer(jnp.ones(3), jnp.sin)]
    state = (optax.adam(1e-3).init(params), staleness_aware(2, decay=1.0).init(params), params[0])
    loaded = again(state, like=given)
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    assert all(map(same, jax.tree.leaves(loaded), jax.tree.leaves(state)))
    with pytest.raises(CheckpointError, match=r"state\[1\]: a tests\.runtime\.test_snapshots\.Layer cannot be saved"):
        take([1, params[1]], like={"first": params[0], "leaf": 3})


# ---- parts ----


@register_part("events", "rng", rebuilt=("counter", "owned", "made_of"), steps=("later",))
class Machine:
    """What is there before its state is restored."""

    def __init__(self, seed: int) -> None:
        self.events: list[Any] = []
        self.rng = np.random.default_rng(seed)
        self.counter = Tally()
        self.owned = {"log": Log()}
        self.made_of = lambda: seed

    def later(self) -> str:
        """What an event does."""
        return "done"

    def never(self) -> None:
        """What no event does."""


@register_part("count")
class Tally:
    """A part of it."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


@register_part()
class Log:
    """A part that says itself what its state is."""

    def __init__(self) -> None:
        self.lines: list[str] = []

    def save_state(self) -> Any:
        """Its lines as one text."""
        return "|".join(self.lines)

    def restore_state(self, text: str) -> None:
        """In place."""
        self.lines[:] = text.split("|")


def test_parts_are_restored_in_place() -> None:
    """Their state, not their settings; what refers to them refers to those that are there."""
    machine = Machine(0)
    machine.events += [(1.0, machine.later, machine.counter), machine]
    machine.counter.count = 7
    machine.owned["log"].lines += ["a", "b"]
    machine.rng.random(3)
    snapshot = through_json(take({"m": machine, "c": machine.counter}, parts={"machine": machine}))
    expected = machine.rng.random()
    assert set(snapshot.tree["parts"]) == {"machine", "machine.counter", "machine.owned.log"}

    fresh = Machine(1)
    counter, lines, made_of = fresh.counter, fresh.owned["log"].lines, fresh.made_of
    assert restore(snapshot, parts={"machine": fresh}) == {"m": fresh, "c": counter}
    assert fresh.counter is counter
    assert (counter.count, lines, fresh.made_of, fresh.rng.random()) == (7, ["a", "b"], made_of, expected)
    assert fresh.events == [(1.0, fresh.later, counter), fresh]


def test_an_attribute_that_nobody_declared_is_an_error() -> None:
    """So that none is forgotten, and none saved by accident."""
    machine = Machine(0)
    machine.more = 3  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"^machine: the attribute 'more' of .*\.Machine is neither state nor"):
        take(None, parts={"machine": machine})
    node = Node("a")
    node.more = 3  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"state\[0\]: a .*\.Node has an attribute 'more', which is no field"):
        take([node])


def test_a_part_that_nothing_holds_is_refused() -> None:
    """It could not be restored in place."""
    with pytest.raises(CheckpointError, match=r"state: a .*\.Tally cannot be saved"):
        take(Tally(), parts={"machine": Machine(0)})


# ---- what cannot be said ----


class Unknown:
    """A class that nobody registered."""


@register_value
@dataclasses.dataclass(slots=True)
class Unset:
    """With a field that nobody set."""

    x: int = dataclasses.field(init=False)


def _within_itself() -> Any:
    inner: list[Any] = []
    inner.append((inner,))
    return inner[0]


def _deep() -> Any:
    nested: list[Any] = []
    for _ in range(100_000):
        nested = [nested]
    return nested


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 0, r"state\.a\[1\]: tests\.\S+\.<lambda> is code, which is not saved: give it again by name, in `ext"),
        (print, r"builtins\.print is code"),
        (dict, r"builtins\.dict is code"),
        ([].append, r"builtins\.\S*append is code|is code"),
        (Machine(0).later, r"Machine\.later is code"),
        (functools.partial(print, 1), r"a functools\.partial cannot be saved"),
        (math, r"a builtins\.module cannot be saved"),
        (threading.Lock(), r"a _thread\.lock cannot be saved: if it is data, register its class with stellaris\.runt"),
        (Unknown(), r"state\.a\[1\]: a tests\.runtime\.test_snapshots\.Unknown cannot be saved"),
        (Unset(), r"state\.a\[1\]: a \S+\.Unset lacks its field 'x'"),
        (OrderedDict(a=1), r"a collections\.OrderedDict cannot be saved"),
        (1j, r"a builtins\.complex cannot be saved"),
        (np.array(["text"]), r"an array of dtype\('<U4'\) cannot be saved: one of numbers can"),
        (np.array([print]), r"an array of dtype\('O'\) cannot be saved"),
        (np.array([(1, 2.0)], "i4,f8"), r"an array of dtype\(\[.* cannot be saved"),
        (np.arange(3.0).astype(">f8"), r"an array of dtype\('>f8'\) cannot be saved"),
        (np.datetime64("2026-01-01"), r"an array of dtype\('<M8\[D\]'\) cannot be saved"),
        (np.ma.masked_array([1], [True]), r"a numpy\.ma\S*\.MaskedArray cannot be saved"),
        (np.dtype("O"), r"an array of dtype\('O'\) cannot be saved"),
        (_within_itself(), r"a tuple that is within itself: have a list or a dictionary hold it"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_cannot_be_said_is_refused(value: Any, message: str) -> None:
    """By its place, by what it is, and with what to do."""
    with pytest.raises(CheckpointError, match=message) as error:
        take({"a": [3, value]})
    assert str(error.value).startswith("state.a[1]")


def test_what_is_nested_too_deeply_is_refused() -> None:
    """And no crash."""
    with pytest.raises(CheckpointError, match=r"state\[0\]\[0\].*: it is nested too deeply"):
        take(_deep())


def test_places_have_names() -> None:
    """Of fields and keys; in brackets what is no text."""
    assert path(["state", "loop", "work", 3, "data", ("a", 1), "x"]) == "state.loop.work[3].data[('a', 1)].x"
