"""Makes again what a snapshot says; what it says wrongly is refused, and where.

A snapshot may come from a stranger. Classes are found among registered ones alone, and made without running a line of
theirs; parts, methods and externals are found among those that are there. See `snapshots`.
"""

import base64
import functools
from collections import Counter, deque
from collections.abc import Callable, Mapping
from typing import Any

import jax
import numpy as np

from stellaris.runtime.state import arrays
from stellaris.runtime.state.registry import error_class, fields_of, full_name, part_of, parts_within, value_class
from stellaris.runtime.state.snapshots import PLAIN, CheckpointError, Snapshot, path, subtrees


def restore(
    snapshot: Snapshot,
    *,
    parts: Mapping[str, Any] | None = None,
    externals: Mapping[str, Any] | None = None,
    like: Mapping[str, Any] | None = None,
) -> Any:
    """Makes again what a snapshot says, and puts the state of parts back in place.

    Args:
      snapshot: perhaps a stranger's.
      parts: those that are there: of the same names and classes as when it was taken.
      externals: what was not saved, by the same names.
      like: trees of the structures that were given when it was taken, by the same names.

    Returns:
      The value that was saved.

    Raises:
      CheckpointError: if it does not fit what is there, or does not make sense; says where, and what. Parts are then as
        they were, unless one of them refuses its state.

    Example:
      >>> import math
      >>> from stellaris.runtime.state.snapshots import take
      >>> restore(take({"rounds": [1, 2], "best": math.inf}))
      {'rounds': [1, 2], 'best': inf}
    """
    reader = _Reader(snapshot, parts or {}, externals or {}, like or {})
    try:
        return reader.restored()
    except ValueError as error:
        raise CheckpointError(f"{path(reader.way)}: {error}") from error
    except Exception as error:
        raise CheckpointError(f"{path(reader.way)[:200]}: {type(error).__name__}: {error}") from error


class _Reader:
    """Reads one snapshot; what does not make sense is a ValueError at the place that `way` leads to."""

    def __init__(
        self, snapshot: Snapshot, parts: Mapping[str, Any], externals: Mapping[str, Any], like: Mapping[str, Any]
    ) -> None:
        self.way: list[Any] = []
        self._tree, self._arrays = snapshot
        self._parts = parts_within(parts)
        self._externals = externals
        self._like = subtrees(like)
        self._ids: set[int] = set()  # those that are taken
        self._made: dict[int, Any] = {}  # by id

    def restored(self) -> Any:
        tree = _keys(self._tree, ("value", "parts"))
        value = self._within("state", tree["value"])
        states = _keys(tree["parts"], self._parts)
        # All are read before one is changed.
        ready = [self._prepared(name, part, states[name]) for name, part in self._parts.items()]
        for put_back in ready:
            put_back()
        return value

    def _prepared(self, name: str, part: Any, node: Any) -> Callable[[], None]:
        """Reads the state of a part; returns what puts it back."""
        self.way[:] = [name]
        node, declared = _keys(node, ("class", "state")), part_of(type(part))
        assert declared is not None
        if node["class"] != full_name(type(part)):
            raise ValueError(f"it is a {_short(node['class'])}, and what is there a {full_name(type(part))!r}")
        if hasattr(part, "restore_state"):
            return functools.partial(part.restore_state, self._node(node["state"]))
        state = self._fields(node["state"], declared.state)

        def put_back() -> None:
            for attribute, value in state.items():
                setattr(part, attribute, value)

        return put_back

    def _within(self, key: Any, node: Any) -> Any:
        self.way.append(key)
        value = self._node(node)
        self.way.pop()
        return value

    def _node(self, node: Any) -> Any:
        kind = type(node)
        if kind in PLAIN or kind is float:
            return node
        if kind is not dict:
            raise ValueError(f"{_short(node)} stands where an object is said")
        read = _READERS.get(frozenset(node) - {"id"})
        if read is None:
            raise ValueError(f"{_short(node)} says nothing that a snapshot can say")
        if "id" not in node:
            return read(self, node)
        number = node["id"]
        if type(number) is not int or number in self._ids:
            raise ValueError(f"id {_short(number)} is no number, or another's")
        self._ids.add(number)
        value = read(self, node)
        self._made[number] = value
        return value

    def _begun(self, node: Mapping[str, Any], value: Any) -> Any:
        """Notes an object before what is in it is read, which may refer to it."""
        if "id" in node:
            self._made[node["id"]] = value
        return value

    # ---- what is there already ----------------------------------------------------------------------------------

    def _external(self, node: Mapping[str, Any]) -> Any:
        name = node["external"]
        if name not in self._externals:
            raise ValueError(f"externals lacks {_short(name)}, which was one when this was saved")
        return self._externals[name]

    def _step(self, node: Mapping[str, Any]) -> Any:
        owner, step = _found(self._parts, node["of"], "part"), node["step"]
        declared = part_of(type(owner))
        if declared is None or step not in declared.steps:
            raise ValueError(f"{_short(step)} is no step of a {full_name(type(owner))}")
        return getattr(owner, step)

    def _alike(self, node: Mapping[str, Any]) -> Any:
        structure: Any = jax.tree.structure(_found(self._like, node["like"], "tree"))
        leaves = self._items(node["leaves"])
        if len(leaves) != structure.num_leaves:
            raise ValueError(f"{len(leaves)} leaves, and {node['like']!r} has {structure.num_leaves}")
        return jax.tree.unflatten(structure, leaves)

    # ---- collections --------------------------------------------------------------------------------------------

    def _list(self, node: Mapping[str, Any]) -> Any:
        value: list[Any] = self._begun(node, [])
        value.extend(self._items(node["list"]))
        return value

    def _set(self, node: Mapping[str, Any]) -> Any:
        value: set[Any] = self._begun(node, set())
        value.update(self._items(node["set"]))
        return value

    def _deque(self, node: Mapping[str, Any]) -> Any:
        value: deque[Any] = self._begun(node, deque(maxlen=node["maxlen"]))
        value.extend(self._items(node["deque"]))
        return value

    def _dict(self, node: Mapping[str, Any]) -> Any:
        value: dict[str, Any] = self._begun(node, {})
        if type(node["dict"]) is not dict:
            raise ValueError(f"{_short(node['dict'])} is no object")
        for key, item in node["dict"].items():
            value[key] = self._within(key, item)
        return value

    def _mapping(self, node: Mapping[str, Any], value: dict[Any, Any], pairs: Any) -> Any:
        self._begun(node, value)
        for i, pair in enumerate(_listed(pairs)):
            if len(_listed(pair)) != 2:
                raise ValueError(f"{_short(pair)} is no pair of a key and a value")
            key = self._within(i, pair[0])
            value[key] = self._within(key, pair[1])
        return value

    def _items(self, nodes: Any) -> list[Any]:
        if set(map(type, _listed(nodes))) <= PLAIN:
            return list(nodes)
        return [self._within(i, node) for i, node in enumerate(nodes)]

    # ---- values of registered classes ---------------------------------------------------------------------------

    def _saved(self, node: Mapping[str, Any]) -> Any:
        name = node["saved"]
        cls = value_class(name) if type(name) is str else None
        names = None if cls is None else fields_of(cls)
        if cls is None or names is None or issubclass(cls, Exception):
            raise ValueError(f"{_short(name)} is no class that is registered with stellaris.runtime.saved")
        if issubclass(cls, tuple):
            return tuple.__new__(cls, self._fields(node["fields"], names).values())
        value = self._begun(node, object.__new__(cls))
        for name, item in self._fields(node["fields"], names).items():
            object.__setattr__(value, name, item)
        return value

    def _fields(self, nodes: Any, names: tuple[str, ...]) -> dict[str, Any]:
        nodes = _keys(nodes, names)
        return {name: self._within(name, nodes[name]) for name in names}

    def _error(self, node: Mapping[str, Any]) -> Any:
        name = node["error"]
        cls = error_class(name) if type(name) is str else None
        if cls is None:
            raise ValueError(f"{_short(name)} is no exception that is registered with stellaris.runtime.saved")
        # Of the next class that is Python's own, so that no other code is run.
        own = next(base for base in cls.__mro__ if base.__module__ == "builtins")
        return own.__new__(cls, *self._items(node["args"]))

    # ---- numbers ------------------------------------------------------------------------------------------------

    def _float(self, node: Mapping[str, Any]) -> float:
        if node["float"] not in ("inf", "-inf", "nan", "-nan"):
            raise ValueError(f"{_short(node['float'])} is none of inf, -inf, nan and -nan")
        return float(node["float"])

    def _generator(self, node: Mapping[str, Any]) -> Any:
        bits = _found(arrays.BIT_GENERATORS, node["generator"], "bit generator")(0)
        bits.state = self._within("state", node["state"])
        return np.random.Generator(bits)


_READERS: dict[frozenset[str], Callable[[_Reader, Mapping[str, Any]], Any]] = {
    frozenset({"same"}): lambda reader, node: _found(reader._made, node["same"], "object"),
    frozenset({"external"}): _Reader._external,
    frozenset({"part"}): lambda reader, node: _found(reader._parts, node["part"], "part"),
    frozenset({"step", "of"}): _Reader._step,
    frozenset({"like", "leaves"}): _Reader._alike,
    frozenset({"list"}): _Reader._list,
    frozenset({"tuple"}): lambda reader, node: tuple(reader._items(node["tuple"])),
    frozenset({"set"}): _Reader._set,
    frozenset({"frozenset"}): lambda reader, node: frozenset(reader._items(node["frozenset"])),
    frozenset({"deque", "maxlen"}): _Reader._deque,
    frozenset({"dict"}): _Reader._dict,
    frozenset({"map"}): lambda reader, node: reader._mapping(node, {}, node["map"]),
    frozenset({"counter"}): lambda reader, node: reader._mapping(node, Counter(), node["counter"]),
    frozenset({"saved", "fields"}): _Reader._saved,
    frozenset({"error", "args"}): _Reader._error,
    frozenset({"float"}): _Reader._float,
    frozenset({"bytes"}): lambda reader, node: base64.b64decode(node["bytes"], validate=True),
    frozenset({"scalar", "dtype"}): lambda reader, node: arrays.read_scalar(
        reader._items(node["scalar"]), node["dtype"]
    ),
    **dict.fromkeys(arrays.NODES, lambda reader, node: arrays.read(node, reader._arrays)),
    frozenset({"key", "data"}): lambda reader, node: arrays.read_key(node, reader._arrays),
    frozenset({"generator", "state"}): _Reader._generator,
    frozenset({"dtype"}): lambda reader, node: arrays.dtype_named(node["dtype"]),
    frozenset({"structure"}): lambda reader, node: jax.tree.structure(reader._within("structure", node["structure"])),
}


def _found(among: Mapping[Any, Any], name: Any, what: str) -> Any:
    if type(name) not in (str, int) or name not in among:
        raise ValueError(f"there is no {what} {_short(name)}")
    return among[name]


def _keys(node: Any, keys: Any) -> Any:
    if type(node) is not dict:
        raise ValueError(f"{_short(node)} is no object")
    missing, more = sorted({*keys} - node.keys()), sorted(node.keys() - {*keys})
    if missing or more:
        raise ValueError(f"it lacks {missing}, and has {more} besides")
    return node


def _listed(node: Any) -> Any:
    if type(node) is not list:
        raise ValueError(f"{_short(node)} is no list")
    return node


def _short(node: Any) -> str:
    text = repr(node)
    return text if len(text) <= 80 else f"{text[:77]}..."
