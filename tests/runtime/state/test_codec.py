"""Snapshots: objects come back as they were, others are refused by name, and a stranger's tree runs no code."""

import contextlib
import copy
import dataclasses
import functools
import json
import math
import pickle
import threading
from collections import Counter, deque
from collections.abc import Iterator
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
from stellaris.runtime.state.codec import DTYPES, CheckpointError, Codec, SavedError, Snapshot
from stellaris.runtime.state.registry import register_part, register_value
from stellaris.types import Versioned

HERE = __name__
RAN: list[str] = []  # code of `Watched`, `WatchedError` and `Machine` that was run


@register_value
@dataclasses.dataclass(eq=False)
class Node:
    """A node of a graph."""

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
@dataclasses.dataclass
class Watched:
    """Records whatever code of it is run."""

    x: Any = 0
    y: Any = 0

    def __post_init__(self) -> None:
        RAN.append("__post_init__")

    def __setattr__(self, name: str, value: Any) -> None:
        RAN.append("__setattr__")
        object.__setattr__(self, name, value)

    def __setstate__(self, state: Any) -> None:
        RAN.append("__setstate__")


@register_value
class WatchedError(ValueError):
    """Records whatever code of it is run."""

    def __new__(cls, *args: Any) -> Any:
        RAN.append("__new__")
        return super().__new__(cls, *args)

    def __init__(self, *args: Any) -> None:
        RAN.append("__init__")


@register_value
class OpenError(OSError):
    """Has a constructor of its own."""

    def __init__(self, path: str) -> None:
        super().__init__(2, "cannot be opened", path)


@register_value
class CodedError(ValueError):
    """Has an attribute in addition to its arguments."""

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@register_value
class SlottedError(ValueError):
    """Has one in a slot."""

    __slots__ = ("code",)

    def __init__(self, code: int) -> None:
        super().__init__(f"code {code}")
        self.code = code


@register_value
class ToldError(ValueError):
    """Its text is not that of its arguments."""

    def __init__(self, text: str) -> None:
        self.told = text

    def __str__(self) -> str:
        return "told" if self.told else ""


class Unknown:
    """A class that nobody registered."""


@jax.tree_util.register_pytree_node_class
@dataclasses.dataclass
class Layer:
    """A layer of some library's network: it holds code as well as weights."""

    weight: Any
    activation: Any

    def tree_flatten(self) -> Any:
        """As JAX asks for it."""
        return (self.weight,), self.activation

    @classmethod
    def tree_unflatten(cls, activation: Any, leaves: Any) -> Any:
        """As JAX asks for it."""
        return cls(*leaves, activation)


@register_part("events", "rng", rebuilt=("counter", "owned", "made_of"), steps=("later",))
class Machine:
    """A part with parts."""

    def __init__(self, seed: int) -> None:
        self.events: list[Any] = []
        self.rng = np.random.default_rng(seed)
        self.counter = Tally()
        self.owned = {"more": Tally()}
        self.made_of = lambda: seed

    def later(self) -> str:
        """What an event does."""
        return "done"

    def danger(self) -> None:
        """A method that no event refers to."""
        RAN.append("danger")


@register_part("count")
class Tally:
    """A part of a part, with slots."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


def through_json(snapshot: Snapshot) -> Snapshot:
    """The snapshot as it is read from a file."""
    return Snapshot(json.loads(json.dumps(snapshot.tree, allow_nan=False)), bytes(snapshot.arrays))


def again(value: Any, **given: Any) -> Any:
    """The value that comes back."""
    return Codec(**given).restore(through_json(Codec(**given).take(value)))


def same(one: Any, other: Any) -> bool:
    """Whether both have the same types and values, to the last bit; NaN equals NaN."""
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


arrays = hnp.arrays(np.float32, hnp.array_shapes(min_dims=0, min_side=0, max_side=4))
keys = st.none() | st.booleans() | st.integers() | st.text() | st.floats(allow_nan=False) | st.binary()
leaves = keys | st.floats() | arrays | st.sampled_from([np.float32(1.1), np.int8(-3), np.bool_(True), np.complex64(1j)])
values = st.recursive(
    leaves,
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.lists(inner).map(lambda items: deque(items, maxlen=7))
        | st.sets(keys)
        | st.frozensets(keys)
        | st.tuples(inner, inner).map(lambda pair: Pair(*pair))
        | st.lists(st.text()).map(Counter)
    ),
    max_leaves=12,
)


@pytest.mark.slow
@given(values)
@example([-math.nan, math.nan, -math.inf, -0.0])
@settings(max_examples=200, deadline=None)
def test_any_value_comes_back(value: Any) -> None:
    """Any nesting of plain values; and an object that occurs several times is one object again."""
    box = [value]
    one, (two, three), mapping = again([box, (box, box), {"k": box}])
    assert one is two is three is mapping["k"]
    assert same(one, box)


@pytest.mark.parametrize("dtype", DTYPES.values(), ids=DTYPES)
def test_arrays_of_every_dtype(dtype: Any) -> None:
    """On the host and on a device, and as scalars, with their shapes; arrays can be written to again."""
    for shape in ((), (3,), (0, 2), (2, 3)):
        host = np.arange(math.prod(shape)).reshape(shape).astype(dtype)
        assert same(again(host), host)
        again(host)[...] = 0
        with jax.enable_x64(True):
            assert same(again(jnp.asarray(host)), jnp.asarray(host))
    assert same(again(np.ones((), dtype)[()]), np.ones((), dtype)[()])
    assert again([dtype]) == [dtype]


def test_arrays_with_any_layout_and_weak_types() -> None:
    base = np.arange(12.0).reshape(3, 4)
    for array in (base[:, 1], base.T, base[::-2], np.broadcast_to(base[0], (3, 4)), np.asarray(jnp.arange(3))):
        loaded = again(array)
        assert same(loaded, np.array(array))
        loaded[0] = 7
    for weak in (jnp.asarray(2.0), jnp.asarray(3) * jnp.ones((), bool), jnp.broadcast_to(jnp.asarray(1j), (2, 3))):
        assert weak.weak_type
        assert same(again(weak), weak)


def test_float64_needs_x64() -> None:
    with jax.enable_x64(True):
        snapshot = Codec().take(jnp.asarray(1.5, jnp.float64))
    with pytest.raises(CheckpointError, match=r"an array has dtype float64: enable jax_enable_x64"):
        Codec().restore(snapshot)


@pytest.mark.parametrize("impl", ["threefry2x32", "rbg"])
def test_random_keys_go_on(impl: str) -> None:
    keys = jax.random.split(jax.random.key(3, impl=impl), 5)
    assert same(again(keys), keys)
    np.testing.assert_array_equal(jax.random.normal(again(keys[1])), jax.random.normal(keys[1]))


@pytest.mark.parametrize(
    "bits", [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]
)
def test_random_generators_go_on(bits: Any) -> None:
    rng = np.random.Generator(bits(5))
    rng.standard_normal(7), rng.integers(9, dtype=np.uint32)
    loaded = again({"rng": rng})["rng"]
    for draw in (lambda g: g.integers(2**32, size=5, dtype=np.uint32), lambda g: g.standard_normal(5)):
        assert draw(loaded).tolist() == draw(rng).tolist()


@pytest.mark.parametrize(
    "bits", [np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64]
)
def test_random_generators_spawn_as_before(bits: Any) -> None:
    """The next children, not those from before; two generators of one seed sequence go on sharing it."""
    seeds = np.random.SeedSequence([5, 2**70], spawn_key=(3,), pool_size=8)
    one, other = np.random.Generator(bits(seeds)), np.random.Generator(bits(seeds.spawn(2)[1]))
    pair = [one, np.random.Generator(bits(seeds)), other]
    loaded = again(pair)
    for rng, same_rng in zip(pair, loaded, strict=True):
        for child, same_child in zip(rng.spawn(2), same_rng.spawn(2), strict=True):
            assert child.integers(2**32, size=3).tolist() == same_child.integers(2**32, size=3).tolist()
    assert seeds.n_children_spawned == 6
    assert loaded[0].bit_generator.seed_seq is loaded[1].bit_generator.seed_seq
    assert loaded[0].bit_generator.seed_seq.n_children_spawned == 6


def test_a_random_generator_without_a_seed_sequence() -> None:
    """It goes on, and cannot spawn."""

    class Seeds(np.random.bit_generator.ISeedSequence):
        def generate_state(self, words: int, dtype: Any = np.uint32) -> Any:
            return np.arange(words, dtype=dtype)

    rng = np.random.Generator(np.random.PCG64(Seeds()))
    assert again(rng).random(3).tolist() == rng.random(3).tolist()


def test_cycles() -> None:
    first, second = Node("a"), Node("bc")
    first.next, second.next = second, [first, {"me": first}, deque()]
    second.next[2].append(second.next[2])
    assert second.length == 2
    loaded = again(first)
    assert loaded.next.next[0] is loaded is loaded.next.next[1]["me"]
    assert loaded.next.next[2][0] is loaded.next.next[2]
    assert (loaded.name, loaded.next.name, loaded.next.length) == ("a", "bc", 2)
    loop: list[Any] = [1]
    loop.append(Pair(2, loop))
    assert again(loop)[1].y[1].x == 2


def test_equal_sets_have_equal_trees() -> None:
    """In any order, because the order of a set of strings differs from one process to the next."""
    for kind in (set, frozenset):
        one, other = kind([0, 8]), kind([8, 0])
        assert [*one] != [*other]
        assert Codec().take(one) == Codec().take(other)


def test_networks_optimizers_and_queues() -> None:
    params = nn.Dense(3).init(jax.random.key(0), jnp.ones(2))
    schedule = optax.linear_schedule(1e-3, 0.0, 9)
    optimizer = optax.chain(
        optax.clip_by_global_norm(1.0),
        optax.inject_hyperparams(optax.adamw)(learning_rate=1e-3),
        optax.apply_if_finite(optax.masked(optax.sgd(schedule, momentum=0.9), {"params": True}), 3),
    )
    state = optimizer.init(params)
    queue = softsync(2).push(staleness_aware(3, decay=0.9).init(params), params, 4)
    for tree in (params, state, queue, Versioned(3, params)):
        loaded = again(tree)
        assert jax.tree.structure(loaded) == jax.tree.structure(tree)
        assert all(map(same, jax.tree.leaves(loaded), jax.tree.leaves(tree)))
    structure = jax.tree.structure({"a": (1, None, Pair(2, [3])), "b": {}})
    assert again({"s": structure})["s"] == structure


def test_exceptions_keep_their_text() -> None:
    """Python's and registered ones come back; any other becomes a `SavedError` that names it."""
    for error in (
        KeyError("x"),
        WatchedError("y", 3),
        ValueError(),
        OSError(2, "no such file"),
        FileNotFoundError(2, "No such file or directory", "data.h5"),
        PermissionError(1, "Operation not permitted", "from", None, "to"),
        OpenError("data.h5"),
        UnicodeEncodeError("ascii", "ä", 0, 1, "ordinal not in range"),
        ImportError("no module"),
    ):
        loaded = again(error)
        assert (type(loaded), loaded.args, str(loaded)) == (type(error), error.args, str(error))
        for name in ("errno", "strerror", "filename", "filename2", "encoding", "object", "start"):
            assert getattr(loaded, name, None) == getattr(error, name, None)
    for error, text in (
        (json.JSONDecodeError("bad", "doc", 1), "JSONDecodeError: bad: line 1 column 2 (char 1)"),
        (SystemExit(3), "SystemExit: 3"),
        (ValueError(object), "ValueError: <class 'object'>"),
        (CodedError(7), "CodedError: code 7"),
        (SlottedError(7), "SlottedError: code 7"),
        (ToldError("x"), "ToldError: told"),
        (SyntaxError("bad", ("x.py", 3, 1, "x =")), "SyntaxError: bad (x.py, line 3)"),
    ):
        loaded = again(again([error])[0])
        assert (type(loaded), str(loaded)) == (SavedError, text)


def test_exceptions_keep_their_notes() -> None:
    """Such as the one that says where in a container an error was raised."""
    for error in (ValueError("x"), SystemExit(3)):
        error.add_note("In the container: line 3")
        assert again(error).__notes__ == error.__notes__
    assert again(again([error])[0]).__notes__ == error.__notes__


def test_trees_of_a_librarys_classes() -> None:
    """Their leaves are saved, in parameters and in states made from them; everything else they hold is given again."""
    like = {"network": {"layers": [Layer(jnp.zeros(2), jnp.tanh), Layer(jnp.zeros(3), jnp.sin)]}}
    params = [Layer(jnp.ones(2), jnp.tanh), Layer(jnp.ones(3), jnp.sin)]
    state = (optax.adam(1e-3).init(params), staleness_aware(2, decay=1.0).init(params), params[0])
    loaded = again(state, like=like)
    assert jax.tree.structure(loaded) == jax.tree.structure(state)
    assert all(map(same, jax.tree.leaves(loaded), jax.tree.leaves(state)))
    with pytest.raises(CheckpointError, match=r"state\[1\]: a \S+\.Layer cannot be saved"):
        Codec(like={"first": params[0], "leaf": 3}).take([1, params[1]])


def test_parts_are_restored_in_place() -> None:
    machine = Machine(0)
    machine.events += [(1.0, machine.later, machine.counter), machine]
    machine.counter.count = 7
    machine.owned["more"].count = 9
    machine.rng.random(3)
    snapshot = through_json(Codec({"machine": machine}).take({"m": machine, "c": machine.counter}))
    expected = machine.rng.random()

    fresh = Machine(1)
    counter, more, made_of = fresh.counter, fresh.owned["more"], fresh.made_of
    assert Codec({"machine": fresh}).restore(snapshot) == {"m": fresh, "c": counter}
    assert fresh.counter is counter
    assert (counter.count, more.count, fresh.made_of, fresh.rng.random()) == (7, 9, made_of, expected)
    assert fresh.events == [(1.0, fresh.later, counter), fresh]


def test_an_undeclared_attribute_is_an_error() -> None:
    machine, node = Machine(0), Node("a")
    machine.more = node.more = 3  # type: ignore[attr-defined]
    with pytest.raises(CheckpointError, match=r"^machine: a \S+\.Machine has an undeclared attribute 'more': declare"):
        Codec({"machine": machine}).take(None)
    with pytest.raises(CheckpointError, match=r"^state\[0\]: a \S+\.Node has an undeclared attribute 'more'"):
        Codec().take([node])


def _within_itself() -> Any:
    inner: list[Any] = []
    inner.append((inner,))
    return inner[0]


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (lambda: 0, r"tests\.\S+\.<lambda> is code, which is not saved: pass it by name, in `externals`"),
        (Machine(0).later, r"Machine\.later is code"),
        (functools.partial(print, 1), r"a functools\.partial cannot be saved"),
        (threading.Lock(), r"a _thread\.lock cannot be saved: if it is data, decorate its class with stellaris"),
        (Unknown(), r"a \S+\.Unknown cannot be saved"),
        (Tally(), r"a \S+\.Tally cannot be saved"),  # a part that does not exist before it is restored
        (1j, r"a builtins\.complex cannot be saved"),
        (np.random.SeedSequence(0, pool_size=2000), r"a SeedSequence with pool_size=2000 cannot be saved: use at most"),
        (np.array([print]), r"an array of dtype\('O'\) cannot be saved"),
        (np.array([(1, 2.0)], "i4,f8"), r"an array of dtype\(\[.* cannot be saved"),
        (np.arange(3.0).astype(">f8"), r"an array of dtype\('>f8'\) cannot be saved"),
        (np.ma.masked_array([1], [True]), r"a numpy\.ma\S*\.MaskedArray cannot be saved"),
        (_within_itself(), r"a builtins\.tuple contains itself: make it a list or a dictionary"),
    ],
    ids=lambda x: type(x).__name__,
)
def test_what_cannot_be_saved_is_refused(value: Any, message: str) -> None:
    with pytest.raises(CheckpointError, match=r"^state\.a\[1\].*" + message):
        Codec().take({"a": [3, value]})


@pytest.fixture(autouse=True)
def nothing_ran() -> Iterator[None]:
    """No code is run by whatever a test restores."""
    RAN.clear()
    yield
    RAN.clear()


def test_restoring_runs_no_code() -> None:
    snapshot = Codec().take([Watched(x=[1], y=2), WatchedError("text")])
    RAN.clear()
    loaded, error = Codec().restore(snapshot)
    assert (RAN, loaded.x, loaded.y, error.args) == ([], [1], 2, ("text",))


W = f"{HERE}.Watched"


@pytest.mark.parametrize(
    ("node", "message"),
    [
        # Classes and functions.
        (["value", ["os.system"], []], r"'os\.system' is not a class that is registered with stellaris\.runtime"),
        (["value", [f"{HERE}.Unknown"], []], r"is not a class"),
        (["value", [f"{HERE}.Machine", "events"], [1]], r"is not a class"),
        (["value", [f"{HERE}.Pair", "x", "y"], [1, 2]], r"is not a class"),
        (["value", [["list"]], []], r"unhashable"),
        (["error", ["builtins.SystemExit"], [1]], r"'builtins\.SystemExit' is not a registered exception"),
        # Fields.
        (["value", [W, "x"], [1]], r"Watched has the fields \('x', 'y'\), but \('x',\) were saved"),
        (["value", [W, "x", "y", "__class__"], [1, 2, 3]], r"has the fields"),
        (["value", [W, "x", "y"], [1]], r"zip"),
        (["named tuple", [f"{HERE}.Pair", "y", "x"], [1, 2]], r"has the fields"),
        # Methods, parts and externals.
        (["step", ["machine", "danger"], []], r"unknown node 'step' with \['machine', 'danger'\]"),
        (["part", "machine.events", []], r"KeyError"),
        (["external", "os", []], r"externals lacks 'os'"),
        (["like", "nobody", []], r"KeyError: 'nobody'"),
        (["like", "tree", [1]], r"Too few leaves"),
        # Kinds of nodes.
        ([], r"\[\] is not a node"),
        (["pickle", pickle.dumps(3, 0).decode(), []], r"unknown node 'pickle'"),
        (["dict", None, [["list", None, []], 1]], r"unhashable type: 'list'"),
        (["deque", -1, []], r"maxlen must be non-negative"),
        (["bytes", "not base 64", []], r"base64"),
        (["again", 99, []], r"IndexError"),
        (["tuple", None, [["again", 2, []]]], r"node 2 contains itself"),
        # Arrays and numbers.
        (["array", ["object", [2], 0], []], r"KeyError: 'object'"),
        (["array", ["float32", [10**12], 0], []], r"cannot reshape"),
        (["array", ["float32", [2], 4], []], r"cannot reshape"),
        (["generator", "eval", [["dict", None, []]]], r"KeyError: 'eval'"),
        (["generator", "PCG64", [["dict", None, ["bit_generator", "MT19937"]]]], r"PCG64"),
        (["generator", "PCG64", [["dict", None, []], 3]], r"unknown node 'generator'"),
        (["seeds", None, [0, ["tuple", None, []], 10**12, 0]], r"unknown node 'seeds'"),
        (["seeds", None, [0, ["tuple", None, []], 1, 0]], r"pool"),
    ],
    ids=lambda x: x if isinstance(x, str) else json.dumps(x)[:40],
)
def test_nonsense_is_refused(node: Any, message: str) -> None:
    machine = Machine(0)
    codec = Codec({"machine": machine}, like={"tree": [1, 2]})
    snapshot = through_json(codec.take(None))
    machine.events = [5]
    snapshot.tree[2][1] = ["dict", None, ["a", node]]
    with pytest.raises(CheckpointError, match=message):
        codec.restore(snapshot._replace(arrays=bytes(8)))
    assert RAN == []
    assert machine.events == [5]


@pytest.mark.parametrize(
    ("name", "node", "message"),
    [
        ("machine.counter", None, r"the state of the parts should have .*'machine\.counter'"),
        ("more", 1, r"the state of the parts should have"),
        ("machine.counter", ["dict", None, []], r"machine\.counter should have \['count'\], but {} was sav"),
        ("machine.counter", ["list", None, ["count"]], r"should have \['count'\]"),
    ],
)
def test_states_that_do_not_fit_are_refused(name: str, node: Any, message: str) -> None:
    machine = Machine(0)
    codec = Codec({"machine": machine})
    snapshot = through_json(codec.take(None))
    machine.events = [5]
    items = snapshot.tree[2]
    if name in items:
        del items[items.index(name) : items.index(name) + 2]
    if node is not None:
        items += [name, node]
    with pytest.raises(CheckpointError, match=message):
        codec.restore(snapshot)
    assert machine.events == [5]


def test_deep_nesting_is_refused() -> None:
    nested: list[Any] = []
    node: Any = ["tuple", None, []]
    for _ in range(100_000):
        nested, node = [nested], ["tuple", None, [node]]
    with pytest.raises(CheckpointError, match=r"state\[0\]\[0\].*: it is nested too deeply"):
        Codec().take(nested)
    with pytest.raises(CheckpointError, match=r"RecursionError"):
        Codec().restore(Snapshot(["set", None, [node]], b""))


SOUND = through_json(
    Codec().take(
        {
            "list": [1, 2.5, "x", (None, True)],
            "map": {1: np.float32(2), (1, 2): math.inf},
            "rng": np.random.default_rng(0),
            "key": jax.random.key(1),
            "array": jnp.arange(3.0),
            "empty": np.zeros((0, 2)),
            "watched": Watched(1, [2]),
            "error": KeyError("x"),
        }
    )
)


def _places(node: Any, way: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield way
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from _places(node[key], (*way, key))


junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["os.system", "O"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["list", "again", "x"]), inner),
    max_leaves=4,
)


@given(st.sampled_from([*_places(SOUND.tree)][1:]), junk)
@settings(max_examples=200, deadline=None)
def test_junk_in_any_place(way: tuple[Any, ...], other: Any) -> None:
    """Gives another value or a CheckpointError, never another error, and nothing is run."""
    RAN.clear()
    tree = copy.deepcopy(SOUND.tree)
    inner = tree
    for key in way[:-1]:
        inner = inner[key]
    inner[way[-1]] = other
    with contextlib.suppress(CheckpointError):
        Codec().restore(SOUND._replace(tree=tree))
    assert RAN == []
