"""What a process holds, written as plain data: a tree that JSON can say, and arrays by name. `restoring` reads it.

A snapshot keeps what is one and the same object, and cycles. It holds no code, and no name in it is looked up except
among what is given or registered (`stellaris.runtime.state.registry`). It can say:

* None, booleans, numbers, strings, bytes; lists, tuples, dictionaries, sets, deques, counters; arrays of NumPy and JAX,
  random keys and generators, types of arrays, and structures of trees;
* values of registered classes, and named tuples of stellaris and optax;
* *parts*, which are there when it is read: their state is put back in place, and all else refers to them by name;
* *externals*, such as programs, which are given again when it is read, by the same names;
* trees of a library's own classes, such as some networks' parameters, of which one *like* them is given again: their
  leaves are saved.

Every object is a JSON object, whose keys say of which kind it is: `{"list": [1, 2]}`, `{"array": "state.x", "dtype":
"float32", "shape": [3], "on": "host"}`. What is met again has an `"id"`, and is `{"same": id}` from then on.
"""

import base64
import math
import types
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import jax
import numpy as np

from stellaris.runtime.state import arrays
from stellaris.runtime.state.registry import (
    error_class,
    fields_of,
    full_name,
    part_of,
    parts_within,
    register_value,
    undeclared,
)
from stellaris.types import NDArray

#: What JSON says by itself; finite numbers besides.
PLAIN = frozenset((type(None), bool, int, str))


class CheckpointError(RuntimeError):
    """Something cannot be saved, or does not fit what was saved."""


@register_value
class SavedError(RuntimeError):
    """Stands for an exception of a class that snapshots do not know; its text says which."""


class Snapshot(NamedTuple):
    """What was saved."""

    tree: Any  #: plain data, which JSON can say.
    arrays: dict[str, NDArray]  #: the larger ones, by name.


def take(
    value: Any,
    *,
    parts: Mapping[str, Any] | None = None,
    externals: Mapping[str, Any] | None = None,
    like: Mapping[str, Any] | None = None,
) -> Snapshot:
    """Takes a snapshot.

    Args:
      value: what is to be saved.
      parts: whose state is saved with it, and that of the parts within them; by name.
      externals: objects that are not saved, but given again when the snapshot is read; by name.
      like: trees, of which others that have the structure of one, or of a part of it, are saved as their leaves; by
        name.

    Returns:
      The snapshot; its arrays are not copies.

    Raises:
      CheckpointError: if something cannot be said as plain data; says where it is, and what.

    Example:
      >>> take({"rounds": [1, 2], "best": math.inf}).tree
      {'value': {'dict': {'rounds': {'list': [1, 2]}, 'best': {'float': 'inf'}}}, 'parts': {}}
    """
    writer = _Writer(parts or {}, externals or {}, like or {})
    try:
        return writer.snapshot(value)
    except ValueError as error:
        raise CheckpointError(f"{path(writer.way)}: {error}") from None
    except RecursionError:
        raise CheckpointError(f"{path(writer.way)[:200]}: it is nested too deeply") from None


def path(way: list[Any]) -> str:
    """The name of a place, from the keys, indices and names of fields that lead there.

    Example:
      >>> path(["platform.pools.actor", "live", 3, "state"])
      'platform.pools.actor.live[3].state'
    """
    return "".join(f".{key}" if isinstance(key, str) else f"[{key!r}]" for key in way).removeprefix(".")


def subtrees(like: Mapping[str, Any]) -> dict[str, Any]:
    """Trees by name, and the trees within them that are no leaves, by the places of the children that lead there.

    Example:
      >>> subtrees({"params": {"w": [1, 2], "b": 3}})
      {'params': {'w': [1, 2], 'b': 3}, 'params[1]': [1, 2]}
    """
    found: dict[str, Any] = {}

    def look(name: str, tree: Any) -> None:
        if not jax.tree_util.all_leaves([tree]):
            found[name] = tree
            for i, child in enumerate(jax.tree.leaves(tree, is_leaf=lambda node: node is not tree)):
                look(f"{name}[{i}]", child)

    for name, tree in like.items():
        look(name, tree)
    return found


class _Writer:
    """Writes one snapshot; what it cannot say is a ValueError at the place that `way` leads to."""

    def __init__(self, parts: Mapping[str, Any], externals: Mapping[str, Any], like: Mapping[str, Any]) -> None:
        self.way: list[Any] = []
        self._arrays: dict[str, NDArray] = {}
        self._parts = parts_within(parts)
        self._part_names = {id(part): name for name, part in self._parts.items()}
        self._externals = {id(external): name for name, external in externals.items()}
        self._like: dict[str, Any] = {name: jax.tree.structure(tree) for name, tree in subtrees(like).items()}
        self._nodes: dict[int, tuple[dict[str, Any], Any]] = {}  # by identity, with what has it: so none is used again
        self._unfinished: set[int] = set()  # of those that cannot be made before what is in them
        self._ids = 0

    def snapshot(self, value: Any) -> Snapshot:
        tree = {"value": self._within("state", value), "parts": {}}
        for name, part in self._parts.items():
            self.way[:] = [name]
            tree["parts"][name] = {"class": full_name(type(part)), "state": self._state(part)}
        return Snapshot(tree, self._arrays)

    def _state(self, part: Any) -> Any:
        declared = part_of(type(part))
        assert declared is not None
        if hasattr(part, "save_state"):
            return self._node(part.save_state())
        for name in undeclared(part, (*declared.state, *declared.rebuilt)):
            raise ValueError(f"the attribute {name!r} of {full_name(type(part))} is neither state nor rebuilt")
        return {name: self._within(name, getattr(part, name)) for name in declared.state}

    def _within(self, key: Any, value: Any) -> Any:
        self.way.append(key)
        node = self._node(value)
        self.way.pop()
        return node

    def _node(self, value: Any) -> Any:
        kind = type(value)
        if kind in PLAIN:
            return value
        if kind is float:
            if math.isfinite(value):
                return value
            sign = "-" if math.copysign(1, value) < 0 else ""  # of NaN too, whose sign str() forgets and float() takes
            return {"float": sign + str(abs(value))}
        number = id(value)
        if number in self._externals:
            return {"external": self._externals[number]}
        if number in self._part_names:
            return {"part": self._part_names[number]}
        if number in self._nodes:
            return self._again(number, kind)
        node: dict[str, Any] = {}
        self._nodes[number] = node, value
        if issubclass(kind, tuple | frozenset):
            self._unfinished.add(number)
        node.update(self._written(value))
        self._unfinished.discard(number)
        return node

    def _again(self, number: int, kind: type[Any]) -> Any:
        """Refers to an object that has a node already."""
        if number in self._unfinished:
            raise ValueError(f"a {kind.__name__} that is within itself: have a list or a dictionary hold it")
        node = self._nodes[number][0]
        if "id" not in node:
            self._ids += 1
            node["id"] = self._ids
        return {"same": node["id"]}

    def _written(self, value: Any) -> dict[str, Any]:
        kind = type(value)
        if kind in _WRITERS:
            return _WRITERS[kind](self, value)
        fields = fields_of(kind)
        if isinstance(value, BaseException):
            return _error(value)
        if fields is not None:
            return self._fields(value, fields)
        if isinstance(value, jax.Array):
            return arrays.written(value, self._keep)
        if isinstance(value, np.generic):
            return arrays.written_scalar(value, self._node)
        if isinstance(value, np.dtype):
            return {"dtype": arrays.name_of(value)}
        if isinstance(value, types.MethodType) and id(value.__self__) in self._part_names:
            declared = part_of(type(value.__self__))
            if declared is not None and value.__name__ in declared.steps:
                return {"step": value.__name__, "of": self._part_names[id(value.__self__)]}
        return self._leaves(value)

    def _fields(self, value: Any, names: tuple[str, ...]) -> dict[str, Any]:
        kind = full_name(type(value))
        for name in undeclared(value, names):
            raise ValueError(f"a {kind} has an attribute {name!r}, which is no field of its class")
        for name in names:
            if not hasattr(value, name):
                raise ValueError(f"a {kind} lacks its field {name!r}")
        return {"saved": kind, "fields": {name: self._within(name, getattr(value, name)) for name in names}}

    def _leaves(self, value: Any) -> dict[str, Any]:
        """A tree of a library's own classes."""
        leaves, structure = jax.tree.flatten(value)
        for name, known in self._like.items():
            if structure == known:
                return {"like": name, "leaves": self._items(leaves)}
        if callable(value) and hasattr(value, "__qualname__"):
            name = f"{value.__module__}.{value.__qualname__}"
            raise ValueError(f"{name} is code, which is not saved: give it again by name, in `externals`")
        kind = full_name(type(value))
        raise ValueError(f"a {kind} cannot be saved: if it is data, register its class with stellaris.runtime.saved")

    def _items(self, value: Any) -> list[Any]:
        if set(map(type, value)) <= PLAIN:
            return list(value)
        return [self._within(i, item) for i, item in enumerate(value)]

    def _dict(self, value: dict[Any, Any]) -> dict[str, Any]:
        if set(map(type, value)) <= {str}:
            return {"dict": {key: self._within(key, item) for key, item in value.items()}}
        return {"map": self._pairs(value)}

    def _pairs(self, value: Mapping[Any, Any]) -> list[Any]:
        return [[self._within(key, key), self._within(key, item)] for key, item in value.items()]

    def _keep(self, array: NDArray) -> str:
        name = path(self.way).replace("/", "|")  # which would be a folder's
        while name in self._arrays:
            name += "'"
        self._arrays[name] = array
        return name

    def _generator(self, value: np.random.Generator) -> dict[str, Any]:
        bits = value.bit_generator
        if arrays.BIT_GENERATORS.get(type(bits).__name__) is not type(bits):
            raise ValueError(f"a random generator over {full_name(type(bits))} cannot be saved: NumPy's own can")
        return {"generator": type(bits).__name__, "state": self._within("state", bits.state)}

    def _structure(self, value: Any) -> dict[str, Any]:
        tree = value.unflatten(range(value.num_leaves))
        if jax.tree.structure(tree) != value:
            raise ValueError(f"the structure of a tree, {value}, which its own leaves do not give again")
        return {"structure": self._within("structure", tree)}


_WRITERS: dict[type[Any], Callable[[_Writer, Any], dict[str, Any]]] = {
    list: lambda writer, value: {"list": writer._items(value)},
    tuple: lambda writer, value: {"tuple": writer._items(value)},
    # In an order that does not depend on the hashes of strings, which differ from one process to the next.
    set: lambda writer, value: {"set": writer._items(sorted(value, key=repr))},
    frozenset: lambda writer, value: {"frozenset": writer._items(sorted(value, key=repr))},
    deque: lambda writer, value: {"deque": writer._items(value), "maxlen": value.maxlen},
    dict: _Writer._dict,
    Counter: lambda writer, value: {"counter": writer._pairs(value)},
    bytes: lambda writer, value: {"bytes": base64.b64encode(value).decode()},
    np.ndarray: lambda writer, value: arrays.written(value, writer._keep),
    np.random.Generator: _Writer._generator,
    type(jax.tree.structure(0)): _Writer._structure,
}


def _error(error: BaseException) -> dict[str, Any]:
    name, arguments = full_name(type(error)), list(error.args)
    if error_class(name) is not type(error) or not set(map(type, arguments)) <= PLAIN:
        name, arguments = full_name(SavedError), [f"{type(error).__name__}: {error}"]
    return {"error": name, "args": arguments}
