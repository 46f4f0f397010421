"""Configurations as plain data, so that a run's settings can be recorded, printed and compared."""

import contextlib
import dataclasses
import enum
import functools
import hashlib
import inspect
import json
import math
import re
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: Arrays with more elements than this are described by a digest.
_WRITTEN_OUT = 64
#: Kinds of values that hold no code.
_PLAIN = (type(None), bool, int, float, complex, str, bytes, np.ndarray, np.generic, jax.Array, types.ModuleType)
#: A memory address in a `repr`; it differs between processes, so it is removed.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def describe(value: Any) -> Any:
    """Describes a configuration as plain data for JSON; two configurations that behave alike have equal descriptions.

    Dataclasses and named tuples become mappings of their fields, with their class as `"type"`. Functions and classes
    become their full names; a closure adds its code and the values it captures. Infinities and NaN become strings.

    Args:
      value: any tree of settings, such as a system, a workload or a deployment.

    Returns:
      A tree of dictionaries, lists, strings, numbers, booleans and None.

    Example:
      >>> from stellaris.runtime.delays import LogNormal
      >>> describe({"compute": LogNormal(0.5, cv=0.1), "timeout": math.inf})
      {'compute': {'type': 'LogNormal', 'mean': 0.5, 'cv': 0.1}, 'timeout': 'inf'}
    """
    return _described(value, ())


def digest(value: Any) -> str:
    """A short name for a configuration: 16 hexadecimal digits of the SHA-256 of its description.

    Equal configurations have equal digests in any process. A digest serves as the hash of a configuration that holds
    mappings, and names the results that were computed with the configuration.

    Args:
      value: any tree of settings.

    Example:
      >>> digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
      True
    """
    return hashlib.sha256(json.dumps(describe(value), sort_keys=True).encode()).hexdigest()[:16]


def differences(one: Any, other: Any, name: str = "") -> Iterator[tuple[str, Any, Any]]:
    """Yields each difference between two descriptions: its dotted name, and both values (`"nothing"` if missing).

    Args:
      one: a description from `describe`, perhaps read from a file.
      other: a description from `describe`.
      name: prefix of every name.

    Example:
      >>> from stellaris import PPO
      >>> list(differences(describe(PPO()), describe(PPO(clip=0.1)), "algorithm"))
      [('algorithm.clip', 0.2, 0.1)]
    """
    if isinstance(one, Mapping) and isinstance(other, Mapping) and one.get("type") == other.get("type"):
        for key in sorted({*one, *other}):
            place = f"{name}.{key}" if name else str(key)
            yield from differences(one.get(key, "nothing"), other.get(key, "nothing"), place)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other):
        for i, (a, b) in enumerate(zip(one, other, strict=True)):
            yield from differences(a, b, f"{name}[{i}]")
    elif one != other or isinstance(one, bool) != isinstance(other, bool):
        yield name, one, other


def _described(value: Any, inside: tuple[int, ...]) -> Any:
    if value is None or isinstance(value, bool | int | str):
        return value.value if isinstance(value, enum.Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else str(value)
    if id(value) in inside:
        return "(itself)"
    of = functools.partial(_described, inside=(*inside, id(value)))
    return _array(value, of) if isinstance(value, np.ndarray | np.generic | jax.Array) else _compound(value, of)


def _compound(value: Any, of: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): of(item) for key, item in value.items()}
    if isinstance(value, type):
        return _name(value)
    if dataclasses.is_dataclass(value):
        return {"type": type(value).__name__, **{name: of(item) for name, item in _fields(value).items()}}
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = dict(zip(value._fields, value, strict=True))
        return {"type": type(value).__name__, **{name: of(item) for name, item in fields.items()}}
    if isinstance(value, Set):
        return sorted(map(of, value), key=repr)
    if isinstance(value, Sequence):
        return [of(item) for item in value]
    if isinstance(value, functools.partial):
        return {"type": "partial", "function": of(value.func), "args": of(value.args), "keywords": of(value.keywords)}
    if isinstance(value, types.MethodType):
        return {"type": "method", "name": value.__func__.__qualname__, "of": of(value.__self__)}
    if isinstance(value, types.FunctionType):
        return _function(value, of)
    if callable(value) and hasattr(value, "__qualname__"):
        wrapped = getattr(value, "__wrapped__", None)  # set by `jax.jit` and `functools.cache`
        return of(wrapped) if isinstance(wrapped, types.FunctionType) else _name(value)
    if isinstance(value, enum.Enum):
        return repr(value)
    if isinstance(value, np.random.Generator):
        return {"type": _name(type(value)), **of(value.bit_generator.state)}
    # A custom `__repr__` may leave out attributes, so they are always described. Slots of such an object may be caches,
    # as those of a path are.
    own = _attributes(value) if _ADDRESS.search(repr(value)) else _dictionary(value)
    return {"type": _name(type(value)), **of(own)} if own else _ADDRESS.sub("", repr(value))


def _fields(value: Any) -> dict[str, Any]:
    """Returns a dataclass's fields; one that is neither shown nor compared is a cache, and left out."""
    return {
        field.name: getattr(value, field.name) for field in dataclasses.fields(value) if field.repr or field.compare
    }


def _attributes(value: Any) -> dict[str, Any]:
    """Returns an object's attributes, in its dictionary and in the slots of its classes."""
    slots = [name for cls in type(value).__mro__ for name in _named_slots(cls) if hasattr(value, name)]
    return {name: getattr(value, name) for name in slots} | _dictionary(value)


def _dictionary(value: Any) -> dict[str, Any]:
    """Returns the attributes in an object's dictionary, without cached properties."""
    cached = {
        name for cls in type(value).__mro__ for name, x in vars(cls).items() if isinstance(x, functools.cached_property)
    }
    return {name: x for name, x in getattr(value, "__dict__", {}).items() if name not in cached}


def _named_slots(cls: type) -> Sequence[str]:
    slots = vars(cls).get("__slots__", ())
    return (slots,) if isinstance(slots, str) else tuple(slots)


def _function(function: types.FunctionType, of: Any) -> Any:
    """Describes a function by its name; a closure or lambda also by its code's digest, defaults and captured values."""
    if function.__closure__ is None and "<" not in function.__qualname__:
        return _name(function)
    return {
        "type": "function",
        "name": _name(function),
        "code": _code(function.__code__),
        "defaults": of(function.__defaults__),
        "keywords": of(function.__kwdefaults__),
        "closure": of(_captured(function)),
    }


def _captured(function: types.FunctionType) -> dict[str, Any]:
    """Returns the values that a closure captures, by name."""
    captured = {}
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        with contextlib.suppress(ValueError):  # raised for a cell without a value yet
            captured[name] = cell.cell_contents
    return captured


def methods(value: Any) -> str:
    """Returns a digest of the code of a value, and of all objects, classes and functions in it.

    The code of a class is its methods and constants, and the functions and constants of their module that these name.
    """
    seen: set[types.FunctionType] = set()
    held = [*_objects(value, {})]
    classes = dict.fromkeys(one if isinstance(one, type) else type(one) for one in held)
    written = [  # no dictionary, because classes that a function makes may share a name
        (_name(of), name, _written(one, seen))
        for cls in classes
        for of in cls.__mro__
        if of.__module__ != "builtins"
        for name, one in sorted(vars(of).items())
        if callable(one) or not name.startswith("__")
    ]
    return digest([written, [_written(one, seen) for one in held if isinstance(one, types.FunctionType)]])


def _objects(value: Any, met: dict[int, Any]) -> Iterator[Any]:
    """Yields a value and everything in it, each once: fields, attributes, items, and values that functions capture."""
    if isinstance(value, _PLAIN) or id(value) in met:
        return
    met[id(value)] = value  # which keeps it, so that no other object gets its address
    yield value
    for one in _contents(value):
        yield from _objects(one, met)


def _contents(value: Any) -> Iterable[Any]:
    if isinstance(value, Mapping):
        return value.values()
    if isinstance(value, Set):
        return sorted(value, key=repr)
    if isinstance(value, type):
        return ()
    if isinstance(value, Sequence):
        return value
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, types.MethodType):
        return value.__self__, value.__func__
    if isinstance(value, types.FunctionType):
        return _captured(value).values()
    if callable(value) and hasattr(value, "__wrapped__"):  # set by `jax.jit` and `functools.cache`
        return (value.__wrapped__,)
    return (_fields(value) if dataclasses.is_dataclass(value) else _attributes(value)).values()


def _written(value: Any, seen: set[types.FunctionType]) -> Any:
    """Returns what an edit of the code that makes a value may change; None for a value that is not followed.

    Of a function, or of what wraps one, it is the code, the defaults, the captured values, and the functions and
    constants of its module that it names. A constant is returned unchanged.
    """
    if isinstance(value, property | functools.cached_property | functools.partial):
        names = ("fget", "fset", "fdel", "func", "args", "keywords")
        return [_written(getattr(value, name, None), seen) for name in names]
    if callable(value) or isinstance(value, staticmethod | classmethod):
        value = inspect.unwrap(value)
    if not isinstance(value, types.FunctionType):
        constant = isinstance(value, bool | int | float | str | tuple | np.ndarray | np.generic | jax.Array)
        return value if constant else None
    if value in seen:
        return _name(value)
    seen.add(value)
    own = {name: value.__globals__[name] for name in sorted(_names(value.__code__)) if name in value.__globals__}
    return {
        "code": _code(value.__code__),
        "defaults": [value.__defaults__, value.__kwdefaults__],
        "closure": _captured(value),
        "uses": {name: _written(one, seen) for name, one in own.items() if _is_of(value.__module__, one)},
    }


def _names(code: types.CodeType) -> set[str]:
    """The names in a function's code, including that of nested functions."""
    nested = (_names(constant) for constant in code.co_consts if isinstance(constant, types.CodeType))
    return {*code.co_names}.union(*nested)


def _is_of(module: str, value: Any) -> bool:
    """Whether a module's global is a constant, or a function that the module defines."""
    return not callable(value) or getattr(value, "__module__", module) == module


def _code(code: types.CodeType) -> str:
    """A digest of the bytecode, including that of nested functions."""
    constants = [_constant(constant) for constant in code.co_consts]
    return hashlib.sha256(code.co_code + repr((constants, code.co_names)).encode()).hexdigest()[:16]


def _constant(constant: Any) -> Any:
    if isinstance(constant, types.CodeType):
        return _code(constant)
    # A set is sorted, because its iteration order differs between processes.
    return sorted(constant, key=repr) if isinstance(constant, frozenset) else constant


def _name(value: Any) -> str:
    return f"{value.__module__}.{value.__qualname__}"


def _array(value: Any, of: Any) -> Any:
    """Describes an array by its shape, type and numbers, or their digest; a single number as itself."""
    if isinstance(value, jax.Array) and jnp.issubdtype(value.dtype, jax.dtypes.prng_key):
        return {"type": "keys", "of": str(jax.random.key_impl(value)), "data": of(jax.random.key_data(value))}
    array = np.asarray(value)
    if array.ndim == 0:
        return of(array.item())
    kind = {"type": "array", "shape": list(array.shape), "dtype": str(array.dtype)}
    if array.dtype == object or array.size <= _WRITTEN_OUT:
        return kind | {"values": of(array.tolist())}
    return kind | {"sha256": hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]}
