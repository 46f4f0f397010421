"""A snapshot from a stranger: what does not make sense is refused by name, and no code of anybody's is run."""

import base64
import contextlib
import copy
import dataclasses
import json
import math
import pickle
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stellaris.runtime.state.registry import register_part, register_value
from stellaris.runtime.state.restoring import restore
from stellaris.runtime.state.snapshots import CheckpointError, Snapshot, take

HERE = __name__
RAN: list[str] = []


@register_value
@dataclasses.dataclass
class Watched:
    """Takes note of everything that is run of it."""

    x: Any = 0
    y: Any = 0

    def __post_init__(self) -> None:
        RAN.append("__post_init__")

    def __setattr__(self, name: str, value: Any) -> None:
        RAN.append("__setattr__")
        object.__setattr__(self, name, value)

    def __reduce__(self) -> Any:
        RAN.append("__reduce__")
        return Watched, ()

    def __setstate__(self, state: Any) -> None:
        RAN.append("__setstate__")


@register_value
class WatchedError(ValueError):
    """Likewise."""

    def __new__(cls, *args: Any) -> Any:
        RAN.append("__new__")
        return super().__new__(cls, *args)

    def __init__(self, *args: Any) -> None:
        RAN.append("__init__")


@dataclasses.dataclass
class Unregistered:
    """A class that nobody registered."""

    x: int = 0


@register_part("x", "y", steps=("step",))
class Platform:
    """A part."""

    def __init__(self) -> None:
        self.x: Any = 1
        self.y: Any = 2

    def step(self) -> None:
        """What events refer to."""

    def danger(self) -> None:
        """What no event refers to."""
        RAN.append("danger")


@pytest.fixture(autouse=True)
def nothing_ran() -> Any:
    """Nor during a test, whatever it restores."""
    RAN.clear()
    yield
    assert RAN == []


def said(node: Any, *, state: Any = None, **arrays: Any) -> Snapshot:
    """A snapshot that says this."""
    parts = {"platform": {"class": f"{HERE}.Platform", "state": state}} if state is not None else {}
    return Snapshot(json.loads(json.dumps({"value": node, "parts": parts})), arrays)


def test_making_runs_no_code() -> None:
    """No constructor, no hook of pickle's, no `__setattr__`."""
    watched, error = Watched(x=[1], y=2), WatchedError("text")
    snapshot = take([watched, error])
    RAN.clear()
    loaded, failure = restore(snapshot)
    assert RAN == []
    assert (loaded.x, loaded.y, failure.args) == ([1], 2, ("text",))


class Payload:
    """What runs when it is unpickled."""

    def __reduce__(self) -> Any:
        return RAN.append, ("unpickled",)


X = {"array": "x", "dtype": "float32", "shape": [2], "on": "host"}
N = {"numbers": "AAAAAAAAAAA=", "dtype": "float32", "shape": [2], "on": "host"}
FINE = np.zeros(2, np.float32)
PICKLE = pickle.dumps(Payload())


@pytest.mark.parametrize(
    ("node", "message"),
    [
        # Names of classes and of functions.
        ({"saved": "os.system", "fields": {}}, r"'os\.system' is no class that is registered with stellaris\.runtime"),
        ({"saved": "builtins.eval", "fields": {"x": "1"}}, r"'builtins\.eval' is no class"),
        ({"saved": "subprocess.Popen", "fields": {"args": "ls"}}, r"'subprocess\.Popen' is no class"),
        ({"saved": "antigravity.Anything", "fields": {}}, r"'antigravity\.Anything' is no class"),  # not imported
        ({"saved": "stellaris.lab.Anything", "fields": {}}, r"'stellaris\.lab\.Anything' is no class"),
        ({"saved": f"{HERE}.Unregistered", "fields": {"x": 1}}, r"Unregistered' is no class"),
        ({"saved": f"{HERE}.Watched.__class__", "fields": {}}, r"is no class"),
        ({"saved": f"{HERE}.Platform", "fields": {"x": 1, "y": 2}}, r"Platform' is no class"),
        ({"saved": f"{HERE}.WatchedError", "fields": {"args": []}}, r"WatchedError' is no class"),
        ({"saved": ["list"], "fields": {}}, r"\['list'\] is no class"),
        ({"error": "builtins.SystemExit", "args": [1]}, r"'builtins\.SystemExit' is no exception"),
        ({"error": "os.system", "args": ["ls"]}, r"'os\.system' is no exception"),
        ({"error": f"{HERE}.Watched", "args": []}, r"Watched' is no exception"),
        # Fields.
        ({"saved": f"{HERE}.Watched", "fields": {"x": 1}}, r"it lacks \['y'\], and has \[\] besides"),
        ({"saved": f"{HERE}.Watched", "fields": {"x": 1, "y": 2, "__class__": 3}}, r"has \['__class__'\] besides"),
        ({"saved": f"{HERE}.Watched", "fields": [1, 2]}, r"\[1, 2\] is no object"),
        ({"saved": "stellaris.types.Versioned", "fields": {"version": 1}}, r"it lacks \['value'\]"),
        # Methods, parts and externals.
        ({"step": "danger", "of": "platform"}, r"'danger' is no step of a \S+Platform"),
        ({"step": "__init__", "of": "platform"}, r"'__init__' is no step"),
        ({"step": "step", "of": "other"}, r"there is no part 'other'"),
        ({"step": "step", "of": {"list": []}}, r"there is no part \{'list'"),
        ({"part": "platform.x"}, r"there is no part 'platform\.x'"),
        ({"external": "os"}, r"externals lacks 'os'"),
        ({"external": {"dict": {}}}, r"TypeError"),
        ({"like": "nobody", "leaves": []}, r"there is no tree 'nobody'"),
        ({"like": "tree", "leaves": [1]}, r"1 leaves, and 'tree' has 2"),
        # Kinds of nodes.
        ({}, r"\{\} says nothing"),
        ({"pickle": base64.b64encode(PICKLE).decode()}, r"\{'pickle': .* says nothing that a snapshot can say"),
        ({"list": [], "tuple": []}, r"says nothing"),
        ({"list": [], "more": 1}, r"says nothing"),
        ([1, 2], r"\[1, 2\] stands where an object is said"),
        ({"list": {"0": 1}}, r"is no list"),
        ({"list": "abc"}, r"'abc' is no list"),
        ({"dict": [["a", 1]]}, r"is no object"),
        ({"map": [["a", 1, 2]]}, r"is no pair"),
        ({"map": [[{"list": []}, 1]]}, r"TypeError: unhashable type: 'list'"),
        ({"set": [{"dict": {}}]}, r"TypeError: unhashable type"),
        ({"deque": [], "maxlen": -1}, r"maxlen must be non-negative"),
        ({"float": "1e400"}, r"'1e400' is none of inf, -inf, nan and -nan"),
        ({"bytes": "not base 64"}, r"base64"),
        ({"bytes": 3}, r"TypeError"),
        # References.
        ({"same": 1}, r"there is no object 1"),
        ({"same": "1"}, r"there is no object '1'"),
        ({"list": [{"id": 1, "list": []}, {"id": 1, "list": []}]}, r"a\[1\]: id 1 is no number, or another's"),
        ({"id": "a", "list": []}, r"id 'a' is no number"),
        ({"id": True, "list": []}, r"id True is no number"),
        ({"id": 1, "tuple": [{"same": 1}]}, r"there is no object 1"),
        # Arrays and numbers.
        (X | {"dtype": "float64"}, r"its array is of float32 and shape \(2,\), and should be of float64 and \(2,\)"),
        (X | {"dtype": "object"}, r"dtype 'object' is none of numbers"),
        (X | {"dtype": "O"}, r"dtype 'O' is none of numbers"),
        (X | {"dtype": ["f4"]}, r"is none of numbers"),
        (X | {"shape": [3]}, r"and should be of float32 and \(3,\)"),
        (X | {"shape": 2}, r"TypeError"),
        (X | {"array": "y"}, r"there is no array 'y'"),
        (X | {"array": None}, r"there is no array None"),
        (X | {"numbers": ""}, r"says nothing"),
        (N | {"numbers": "AAAA"}, r"buffer size must be a multiple of element size"),
        (N | {"numbers": "AAAAAAAAAAAAAAAA"}, r"cannot reshape"),
        (N | {"numbers": "not base 64"}, r"base64"),
        (N | {"numbers": "", "shape": [2]}, r"cannot reshape array of size 0"),
        (N | {"dtype": "object"}, r"dtype 'object' is none of numbers"),
        (X | {"on": "disk"}, r"'disk' is no place of an array"),
        (X | {"array": "objects"}, r"its array is of object"),
        ({"dtype": "O"}, r"dtype 'O' is none of numbers"),
        ({"scalar": ["1"], "dtype": "float32"}, r"\['1'\] is no number"),
        ({"scalar": [1, 2, 3], "dtype": "float32"}, r"is no number"),
        ({"scalar": [1e9], "dtype": "U"}, r"dtype 'U' is none of numbers"),
        ({"key": "os", "data": X | {"on": "device"}}, r"os"),
        ({"key": "threefry2x32", "data": 3}, r"3 is no array"),
        ({"generator": "eval", "state": {"dict": {}}}, r"there is no bit generator 'eval'"),
        ({"generator": "PCG64", "state": {"dict": {"bit_generator": "MT19937"}}}, r"PCG64"),
        ({"generator": "PCG64", "state": 3}, r"TypeError"),
        ({"structure": {"external": "none"}}, r"externals lacks 'none'"),
    ],
    ids=lambda x: x if isinstance(x, str) else json.dumps(x)[:40],
)
def test_what_makes_no_sense_is_refused(node: Any, message: str) -> None:
    """With its place; the part is as it was."""
    there = Platform()
    objects = np.array([Payload()], object)
    snapshot = said({"dict": {"a": node}}, state={"x": 5, "y": 6}, x=FINE, objects=objects)
    with pytest.raises(CheckpointError, match=message) as error:
        restore(snapshot, parts={"platform": there}, like={"tree": [1, 2]})
    assert str(error.value).startswith("state.a")
    assert (there.x, there.y) == (1, 2)


@pytest.mark.parametrize(
    ("tree", "message"),
    [
        (None, r"None is no object"),
        ({"value": 1}, r"it lacks \['parts'\]"),
        ({"value": 1, "parts": {}}, r"it lacks \['platform'\]"),
        ({"value": 1, "parts": {"platform": {}, "more": {}}}, r"has \['more'\] besides"),
        (
            {"value": 1, "parts": {"platform": {"class": "os.system", "state": {}}}},
            r"it is a 'os\.system', and what is",
        ),
        ({"value": 1, "parts": {"platform": {"class": f"{HERE}.Platform", "state": {"x": 3}}}}, r"it lacks \['y'\]"),
        ({"value": 1, "parts": {"platform": {"class": f"{HERE}.Platform", "state": [3]}}}, r"\[3\] is no object"),
        (
            {"value": 1, "parts": {"platform": {"class": f"{HERE}.Platform", "state": {"x": 3, "y": {}}}}},
            r"platform\.y: \{\} says nothing",
        ),
    ],
)
def test_parts_that_do_not_fit_are_refused(tree: Any, message: str) -> None:
    """Nothing is put back before everything is read."""
    there = Platform()
    with pytest.raises(CheckpointError, match=message):
        restore(Snapshot(tree, {}), parts={"platform": there})
    assert (there.x, there.y) == (1, 2)


def test_what_is_nested_too_deeply_is_refused() -> None:
    """And no crash."""
    node: Any = {"list": []}
    for _ in range(100_000):
        node = {"list": [node]}
    with pytest.raises(CheckpointError, match=r"RecursionError"):
        restore(Snapshot({"value": node, "parts": {}}, {}))


SOUND = take(
    {
        "list": [1, 2.5, "x", (None, True)],
        "map": {1: np.float32(2), (1, 2): math.inf},
        "rng": np.random.default_rng(0),
        "key": jax.random.key(1),
        "array": jnp.arange(3.0),
        "larger": np.arange(3000.0),
        "empty": np.zeros((0, 2)),
        "watched": Watched(1, [2]),
        "error": KeyError("x"),
    }
)


def _places(node: Any, way: tuple[Any, ...] = ()) -> Any:
    yield way
    if isinstance(node, dict | list):
        for key in node if isinstance(node, dict) else range(len(node)):
            yield from _places(node[key], (*way, key))


PLACES = [*_places(SOUND.tree)]
junk = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3) | st.sampled_from(["os.system", "O"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["list", "saved", "id", "x"]), inner),
    max_leaves=4,
)


@given(st.sampled_from(PLACES), junk)
@settings(max_examples=300, deadline=None)
def test_whatever_is_put_in_its_place(way: tuple[Any, ...], other: Any) -> None:
    """Another value, or a CheckpointError; never another error, and nothing is run."""
    tree = copy.deepcopy(SOUND.tree)
    if not way:
        tree = other
    else:
        inner = tree
        for key in way[:-1]:
            inner = inner[key]
        inner[way[-1]] = other
    with contextlib.suppress(CheckpointError):
        restore(Snapshot(tree, SOUND.arrays))
    assert RAN == []
