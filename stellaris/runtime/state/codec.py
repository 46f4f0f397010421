"""Saves objects as a JSON tree and the bytes of their arrays, and restores them. The tree cannot name code to run.

None, booleans, strings and finite numbers stand for themselves. Every other object is a node `[kind, head, items]`:
`head` is plain data, such as a dtype, and `items` are the nodes of the objects within it. An object that occurs again
is `["again", number, []]`, with the number of its node in the order of writing, so that shared objects and cycles are
preserved. Apart from containers, arrays and other plain objects, there are nodes for

* values of registered classes, and named tuples of stellaris and optax (`stellaris.runtime.state.registry`);
* *parts*, which exist before they are restored: their state is put back in place, and other objects refer to them by
  name;
* *externals*, such as programs: they are not saved, and the caller passes them again under the same names;
* trees of a library's classes, such as some networks' parameters: only their leaves are saved, and the caller passes an
  example tree of the same structure again (`like`).

Pickles are not used, because a safe reader of pickles would be longer: `pickle.Unpickler` calls functions and sets
attributes, and even where imports are refused, an untrusted pickle could call the externals.
"""

import base64
import functools
import math
import operator
import types
from collections import Counter, deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from reprlib import repr as short
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.aggregation.gradient_queue import Layout
from stellaris.runtime.state import registry
from stellaris.runtime.state.registry import full_name

#: Numeric dtypes by name. All other dtypes are refused: an array of objects would have to be unpickled.
DTYPES: Mapping[str, np.dtype[Any]] = {
    name: np.dtype(name)
    for name in (
        *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "float16", "float32"),
        *("float64", "bfloat16", "float8_e4m3fn", "float8_e5m2", "complex64", "complex128"),
    )
}

#: Classes whose instances stand for themselves. `float` is not here, because JSON has neither NaN nor infinity.
_PLAIN = frozenset((type(None), bool, int, str))
#: The generators that a snapshot may name: NumPy's own. No other class is instantiated for a generator.
_BIT_GENERATORS = {
    cls.__name__: cls
    for cls in (np.random.PCG64, np.random.PCG64DXSM, np.random.MT19937, np.random.Philox, np.random.SFC64)
}
#: Largest pool of a seed sequence. NumPy mixes the pool in quadratic time, and a snapshot may be untrusted.
_LARGEST_POOL = 1024
#: Kinds of containers that are made empty and filled afterwards, so that a container may contain itself.
_EMPTY: Mapping[str, Callable[[Any], Any]] = {
    "list": lambda _: [],
    "dict": lambda _: {},
    "counter": lambda _: Counter(),
    "set": lambda _: set(),
    "deque": lambda maxlen: deque(maxlen=maxlen),
    "value": lambda head: object.__new__(_registered(head)),
}
_Node = tuple[str, Any, Iterable[tuple[Any, Any]]]

# Every aggregator's state holds a `Layout`. It is registered here, so that aggregators import nothing of the runtime.
registry.register_value(Layout)


class CheckpointError(RuntimeError):
    """Raised if an object cannot be saved or loaded, or if a checkpoint does not fit the platform or the run."""


@registry.register_value
class SavedError(RuntimeError):
    """Replaces an exception whose class is not registered, or whose arguments do not hold all of it.

    The text names the class, and gives the text of the exception.
    """


class Snapshot(NamedTuple):
    """Saved objects."""

    tree: Any  #: plain data, which JSON can hold.
    arrays: bytes | bytearray  #: the bytes of all arrays, one after another.


@dataclass(frozen=True)
class Codec:
    """Takes snapshots and restores them, in the same process or another.

    Args:
      parts: objects by name, whose state is saved and put back in place, with the state of the parts within them.
      externals: objects by name, which are not saved: a snapshot refers to them by name.
      like: example trees by name. If a tree has the structure of an example or of an example's subtree, only its leaves
        are saved.

    Example:
      >>> snapshot = Codec().take({"rounds": (1, 2)})
      >>> snapshot.tree
      ['dict', None, ['state', ['dict', None, ['rounds', ['tuple', None, [1, 2]]]]]]
      >>> Codec().restore(snapshot)
      {'rounds': (1, 2)}
    """

    parts: Mapping[str, Any] = field(default_factory=dict)
    externals: Mapping[str, Any] = field(default_factory=dict)
    like: Mapping[str, Any] = field(default_factory=dict)

    def take(self, value: Any) -> Snapshot:
        """Returns a snapshot of a value and of the state of the parts.

        Raises:
          CheckpointError: if an object cannot be saved; the error names the object and the path to it.
        """
        writer = _Writer(self)
        try:
            return writer.snapshot(value)
        except ValueError as error:
            raise CheckpointError(f"{path(writer.way)}: {error}") from None
        except RecursionError:
            raise CheckpointError(f"{path(writer.way)[:200]}: it is nested too deeply; flatten it") from None

    def restore(self, snapshot: Snapshot) -> Any:
        """Returns the value of a snapshot, which may be untrusted, and puts the state of the parts back in place.

        Raises:
          CheckpointError: if the snapshot is invalid, or does not fit the parts, externals and example trees; the
            error says why. The parts are then unchanged, unless a part refuses its state.
        """
        try:
            value, changes = _Reader(self, snapshot.arrays).read(snapshot.tree)
            for change in changes:
                change()
        except Exception as error:
            # The reader's ValueErrors are whole sentences; other errors are unclear without the name of their class.
            name = "" if type(error) is ValueError else f"{type(error).__name__}: "
            raise CheckpointError(f"{name}{error}") from error
        return value


def path(way: Iterable[Any]) -> str:
    """Returns the path to an object as text, from the keys, indices and fields that lead to it; None adds nothing.

    Example:
      >>> path(["platform.pools.actor", "live", 3, "state", None])
      'platform.pools.actor.live[3].state'
    """
    steps = (f".{key}" if isinstance(key, str) else f"[{key!r}]" for key in way if key is not None)
    return "".join(steps).removeprefix(".")


def subtrees(like: Mapping[str, Any]) -> dict[str, Any]:
    """Returns trees and their subtrees by name; leaves do not count as subtrees.

    Example:
      >>> subtrees({"params": {"b": 3, "w": [1, 2]}})
      {'params': {'b': 3, 'w': [1, 2]}, 'params[1]': [1, 2]}
    """
    found: dict[str, Any] = {}
    ahead = [*like.items()]
    for name, tree in ahead:
        if not jax.tree_util.all_leaves([tree]):
            found[name] = tree
            # With `is_leaf` true for everything except the tree itself, the leaves are the tree's children.
            children = enumerate(jax.tree.leaves(tree, is_leaf=functools.partial(operator.is_not, tree)))
            ahead += [(f"{name}[{i}]", child) for i, child in children]
    return found


class _Writer:
    """Writes one snapshot. Raises a ValueError for an object that cannot be saved; `way` is then the path to it."""

    def __init__(self, codec: Codec) -> None:
        self.way: list[Any] = []
        self._parts = registry.parts_within(codec.parts)
        self._given = {id(part): ("part", name) for name, part in self._parts.items()}
        self._given |= {id(external): ("external", name) for name, external in codec.externals.items()}
        self._like: dict[str, Any] = {name: jax.tree.structure(tree) for name, tree in subtrees(codec.like).items()}
        self._arrays = bytearray()
        # Numbers of nodes and their objects, by identity. Keeping the objects alive keeps their identities unique.
        self._numbers: dict[int, tuple[int, Any]] = {}
        self._unfinished: set[int] = set()  # numbers of immutable objects whose items are being written

    def snapshot(self, value: Any) -> Snapshot:
        states = {"state": value}
        for name, part in self._parts.items():
            self.way[:] = [name]
            declared = registry.PARTS[type(part)]
            saves = hasattr(part, "save_state")
            states[name] = part.save_state() if saves else registry.attributes(part, declared.state, declared.rebuilt)
        self.way.clear()
        return Snapshot(self._node(states), self._arrays)

    def _within(self, key: Any, value: Any) -> Any:
        self.way.append(key)
        node = self._node(value)
        self.way.pop()
        return node

    def _node(self, value: Any) -> Any:
        if type(value) in _PLAIN or (type(value) is float and math.isfinite(value)):
            return value
        if id(value) in self._numbers:
            number, _ = self._numbers[id(value)]
            if number in self._unfinished:
                raise ValueError(f"a {full_name(type(value))} contains itself: make it a list or a dictionary")
            return ["again", number, []]
        # The object is numbered before its items, as in the reader, so that the items can refer to the object.
        number = len(self._numbers)
        self._numbers[id(value)] = number, value
        kind, head, items = self._split(value)
        if kind not in _EMPTY:
            self._unfinished.add(number)
        nodes = [self._within(key, item) for key, item in items]
        self._unfinished.discard(number)
        return [kind, head, nodes]

    def _split(self, value: Any) -> _Node:
        """Returns the kind of an object, its plain data, and the pairs of keys and items within it."""
        if id(value) in self._given:
            return *self._given[id(value)], ()
        cls = type(value)
        # An instance of a subclass is not split here, because it may hold more than its items.
        if cls in _SPLIT:
            return _SPLIT[cls](value)
        if isinstance(value, BaseException):
            return _split_error(value)
        fields = registry.fields_of(cls)
        if fields is not None:
            kind = "named tuple" if issubclass(cls, tuple) else "value"
            return kind, [full_name(cls), *fields], registry.attributes(value, fields).items()
        if cls is np.ndarray:
            offset, dtype = len(self._arrays), _name_of(value.dtype)
            self._arrays += value.tobytes()
            return "array", [dtype, list(value.shape), offset], ()
        if isinstance(value, np.generic):
            return "scalar", None, [(None, np.asarray(value))]
        if isinstance(value, np.dtype):
            return "dtype", _name_of(value), ()
        if isinstance(value, jax.Array):
            if jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
                return "key", str(jax.random.key_impl(value)), [(None, np.asarray(jax.random.key_data(value)))]
            return "device", value.weak_type, [(None, np.asarray(value))]
        if isinstance(value, types.MethodType):
            kind, name = self._given.get(id(value.__self__), ("", ""))
            if kind == "part" and value.__name__ in registry.PARTS[type(value.__self__)].steps:
                return "step", [name, value.__name__], ()
        return self._split_tree(value)

    def _split_tree(self, value: Any) -> _Node:
        """Splits a tree of a library's own classes."""
        leaves, structure = jax.tree.flatten(value)
        for name, known in self._like.items():
            if structure == known:
                return "like", name, enumerate(leaves)
        if callable(value) and hasattr(value, "__qualname__"):
            code = f"{value.__module__}.{value.__qualname__}"
            raise ValueError(f"{code} is code, which is not saved: pass it by name, in `externals`")
        remedy = "if it is data, decorate its class with stellaris.runtime.register_value"
        raise ValueError(f"a {full_name(type(value))} cannot be saved: {remedy}")


def _split_mapping(value: Mapping[Any, Any]) -> Iterable[tuple[Any, Any]]:
    return [(key, each) for key, item in value.items() for each in (key, item)]


def _split_error(value: BaseException) -> _Node:
    notes = [note for note in getattr(value, "__notes__", ()) if type(note) is str]
    # The arguments of an OSError lack its file names.
    args = OSError.__reduce__(value)[1] if isinstance(value, OSError) else value.args
    if _comes_back(value, args):
        return "error", [full_name(type(value)), *notes], enumerate(args)
    return "error", [full_name(SavedError), *notes], [(0, f"{type(value).__name__}: {value}")]


def _comes_back(value: BaseException, args: Any) -> bool:
    """Returns whether an exception that is made anew from its arguments has the same class, text and attributes.

    The interpreter's hints, such as the name of an AttributeError, do not count as attributes: they are dropped.
    """
    cls = type(value)
    # An argument of an exception may be any object, such as a file; the text is enough to say what failed.
    if registry.error_class(full_name(cls)) is not cls or not _PLAIN.issuperset(map(type, args)):
        return False
    own = [vars(base) for base in cls.__mro__ if base.__module__ != "builtins"]
    slots = [name for names in own for name, x in names.items() if isinstance(x, types.MemberDescriptorType)]
    if vars(value).keys() - {"__notes__"} or any(hasattr(value, name) for name in slots):
        return False
    try:
        return str(_made_error(cls, args)) == str(value)
    except Exception:  # a class's own text may need what its constructor sets
        return False


def _made_error(cls: type[BaseException], args: Iterable[Any]) -> BaseException:
    """Makes an exception by its nearest built-in base class, so that no other code is run."""
    base: Any = next(base for base in cls.__mro__ if base.__module__ == "builtins")
    error: BaseException = base.__new__(cls, *args)
    base.__init__(error, *args)
    return error


def _split_generator(value: np.random.Generator) -> _Node:
    bits = value.bit_generator
    if type(bits) not in _BIT_GENERATORS.values():
        raise ValueError(f"a random generator over {full_name(type(bits))} cannot be saved: use NumPy's, such as PCG64")
    # Without a SeedSequence, a generator cannot spawn others.
    seeds = [("seed_seq", bits.seed_seq)] if type(bits.seed_seq) is np.random.SeedSequence else []
    return "generator", type(bits).__name__, [("state", bits.state), *seeds]


def _split_seeds(value: np.random.SeedSequence) -> _Node:
    if value.pool_size > _LARGEST_POOL:
        raise ValueError(
            f"a SeedSequence with pool_size={value.pool_size} cannot be saved: use at most {_LARGEST_POOL}"
        )
    names = ("entropy", "spawn_key", "pool_size", "n_children_spawned")
    return "seeds", None, [(name, getattr(value, name)) for name in names]


def _split_structure(value: Any) -> _Node:
    tree = value.unflatten(range(value.num_leaves))
    if jax.tree.structure(tree) != value:
        raise ValueError(f"{value} cannot be saved: a tree made from this structure gets a different one")
    return "structure", None, [("structure", tree)]


def _name_of(dtype: np.dtype[Any]) -> str:
    if DTYPES.get(dtype.name) != dtype:
        raise ValueError(f"an array of {dtype!r} cannot be saved: convert it to a numeric dtype")
    return dtype.name


_SPLIT: Mapping[type[Any], Callable[[Any], _Node]] = {
    list: lambda value: ("list", None, enumerate(value)),
    tuple: lambda value: ("tuple", None, enumerate(value)),
    dict: lambda value: ("dict", None, _split_mapping(value)),
    Counter: lambda value: ("counter", None, _split_mapping(value)),
    # Sets are sorted, because the order of a set of strings differs from one process to the next.
    set: lambda value: ("set", None, enumerate(sorted(value, key=repr))),
    frozenset: lambda value: ("frozenset", None, enumerate(sorted(value, key=repr))),
    deque: lambda value: ("deque", value.maxlen, enumerate(value)),
    bytes: lambda value: ("bytes", base64.b64encode(value).decode(), ()),
    # Finite floats stand for themselves, so only infinities and NaN are written here. `str` omits the sign of NaN, so
    # the sign is written separately; `float` reads it.
    float: lambda value: ("float", ("-" if math.copysign(1, value) < 0 else "") + str(abs(value)), ()),
    np.random.Generator: _split_generator,
    np.random.SeedSequence: _split_seeds,
    jax.tree_util.PyTreeDef: _split_structure,
}


class _Reader:
    """Reads one snapshot. If the snapshot is invalid, any exception may be raised, but no part is changed."""

    def __init__(self, codec: Codec, arrays: bytes | bytearray) -> None:
        self._arrays = memoryview(arrays)
        self._parts = registry.parts_within(codec.parts)
        self._externals = codec.externals
        self._like = subtrees(codec.like)
        self._made: list[Any] = []  # objects by the numbers of their nodes

    def read(self, tree: Any) -> tuple[Any, list[Callable[[], None]]]:
        """Returns the value, and functions that put the states of the parts back in place."""
        states = self._node(tree)
        _check_names("the parts", states, ("state", *self._parts))
        # All states are checked before the first part is changed, so that no platform is half restored.
        changes: list[Callable[[], None]] = []
        for name, part in self._parts.items():
            if hasattr(part, "restore_state"):
                changes.append(functools.partial(part.restore_state, states[name]))
            else:
                _check_names(name, states[name], registry.PARTS[type(part)].state)
                changes += [functools.partial(setattr, part, key, item) for key, item in states[name].items()]
        return states["state"], changes

    def _node(self, node: Any) -> Any:
        if type(node) in _PLAIN or type(node) is float:
            return node
        if type(node) is not list or len(node) != 3 or type(node[2]) is not list:
            raise ValueError(f"{short(node)} is not a node")
        kind, head, nodes = node
        if kind == "again":
            if self._made[head] is _UNFINISHED:
                raise ValueError(f"node {head} contains itself: the snapshot is damaged")
            return self._made[head]
        number = len(self._made)
        self._made.append(_EMPTY[kind](head) if kind in _EMPTY else _UNFINISHED)
        items = [self._node(item) for item in nodes]
        if kind in _EMPTY:
            _fill(self._made[number], head, items)
        else:
            self._made[number] = self._make(kind, head, items)
        return self._made[number]

    def _make(self, kind: Any, head: Any, items: list[Any]) -> Any:
        match kind, head, items:
            case "external", str(name), []:
                if name not in self._externals:
                    raise ValueError(f"externals lacks {name!r}: pass it, as when the snapshot was taken")
                return self._externals[name]
            case "part", str(name), []:
                return self._parts[name]
            case "step", [str(name), str(step)], [] if step in registry.PARTS[type(self._parts[name])].steps:
                return getattr(self._parts[name], step)
            case "like", str(name), _:
                return jax.tree.unflatten(jax.tree.structure(self._like[name]), items)
            case "tuple", None, _:
                return tuple(items)
            case "named tuple", _, _:
                cls = _registered(head, tuples=True)
                return tuple.__new__(cls, [item for item, _ in zip(items, head[1:], strict=True)])
            case "frozenset", None, _:
                return frozenset(items)
            case "error", [str(name), *notes], _:
                known = registry.error_class(name)
                if known is None:
                    raise ValueError(f"{name!r} is not a registered exception")
                error = _made_error(known, items)
                for note in notes:
                    BaseException.add_note(error, note)
                return error
            case "bytes", str(text), []:
                return base64.b64decode(text, validate=True)
            case "float", "inf" | "-inf" | "nan" | "-nan", []:
                return float(head)
            case "array", [str(dtype), list(shape), int(offset)], []:
                content = self._arrays[offset : offset + math.prod(shape) * DTYPES[dtype].itemsize]
                # `reshape` raises if the bytes do not fill the shape, so a wrong shape allocates nothing. The array is
                # copied, so that it can be written to and does not keep the bytes of all other arrays in memory.
                return np.frombuffer(content, DTYPES[dtype]).reshape(shape).copy()
            case "scalar", None, [np.ndarray(shape=()) as array]:
                return array[()]
            case "dtype", str(name), []:
                return DTYPES[name]
            case "key", str(name), [np.ndarray() as array]:
                return jax.random.wrap_key_data(jnp.array(array), impl=name)
            case "device", bool(weak), [np.ndarray() as array]:
                value: Any = jnp.array(array)  # a copy: `asarray` may share memory with the array
                if value.dtype != array.dtype:
                    raise ValueError(f"an array has dtype {array.dtype}: enable jax_enable_x64, as when it was saved")
                if weak:
                    make, (*parts, kinds) = (
                        value.__reduce__()
                    )  # pickle is JAX's only way to make weak arrays of any dtype
                    value = make(*parts, kinds | {"weak_type": True})
                return value
            case "generator", str(name), [dict(state)] | [dict(state), np.random.SeedSequence()]:
                bits: Any = _BIT_GENERATORS[name](*items[1:] or [0])
                bits.state = state
                return np.random.Generator(bits)
            case "seeds", None, [entropy, tuple(key), int(pool), int(spawned)] if pool <= _LARGEST_POOL:
                return np.random.SeedSequence(entropy, spawn_key=key, pool_size=pool, n_children_spawned=spawned)
            case "structure", None, [tree]:
                return jax.tree.structure(tree)
        raise ValueError(f"unknown node {short(kind)} with {short(head)} and {len(items)} items")


_UNFINISHED = object()  # stands for an immutable object while its items are read


def _fill(value: Any, head: Any, items: list[Any]) -> None:
    if isinstance(value, list | deque):
        value.extend(items)
    elif isinstance(value, set):
        value.update(items)
    elif isinstance(value, dict):
        # `dict.update` sets the counts of a `Counter`, whose own `update` would add to them.
        dict.update(value, zip(items[::2], items[1::2], strict=True))
    else:
        for name, item in zip(head[1:], items, strict=True):
            # `setattr` would raise on a frozen dataclass, and may run the `__setattr__` of other classes.
            object.__setattr__(value, name, item)


def _registered(head: Any, *, tuples: bool = False) -> type[Any]:
    """Returns the class of a value whose node has this head: the class's name, and the names of its fields."""
    name, *fields = head
    cls = registry.value_class(name)
    if cls is None or issubclass(cls, Exception) or issubclass(cls, tuple) != tuples:
        raise ValueError(f"{short(name)} is not a class that is registered with stellaris.runtime.register_value")
    if tuple(fields) != registry.fields_of(cls):
        raise ValueError(f"{name} has the fields {registry.fields_of(cls)}, but {short(tuple(fields))} were saved")
    return cls


def _check_names(where: str, saved: Any, expected: Iterable[str]) -> None:
    if type(saved) is not dict or saved.keys() != {*expected}:
        raise ValueError(f"the state of {where} should have {sorted(expected)}, but {short(saved)} was saved")
