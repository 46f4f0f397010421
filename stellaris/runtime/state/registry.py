"""What may be saved: classes that name their state, so that it can be written down as plain data and read again.

Nothing is saved because it happens to be an attribute, and no class is found by its name unless it said so before:
whoever writes down what is read can name only these classes, and none of their code is run to make one again.

There are two kinds. **Values** (`register_value`) are made anew from their fields. **Parts** (`register_part`) belong to
what there is already, such as a platform with its deployment, threads and callbacks: their state is put back in place.
"""

import builtins
import dataclasses
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

#: Packages whose named tuples are values without being registered. Their fields are all there is of them, no code is
#: needed to make one, and the states of optimizers are of classes that nobody could decorate.
NAMED_TUPLES_OF = ("optax", "stellaris")

C = TypeVar("C", bound=type[Any])
_VALUES: dict[str, type[Any]] = {}
_PARTS: dict[type[Any], "Part"] = {}
_FIELDS: dict[type[Any], tuple[str, ...] | None] = {}  # of classes that were asked for
_ERRORS = {
    f"builtins.{name}": e for name, e in vars(builtins).items() if isinstance(e, type) and issubclass(e, Exception)
}


class Part(NamedTuple):
    """What a class of parts declares."""

    state: tuple[str, ...]  #: attributes that are saved, and set when they are restored.
    rebuilt: tuple[str, ...]  #: attributes that its constructor makes, and that stay: parts among them are parts, too.
    steps: tuple[str, ...]  #: methods that saved events refer to.


def register_value(cls: C) -> C:
    """Registers a class whose instances are data: they are saved, and made anew, by their fields.

    No constructor runs when they are made anew. A class of a library's can be registered as well:
    `register_value(library.State)`.

    Args:
      cls: a dataclass (decorate above `@dataclass`), a named tuple, a class with `__slots__`, or an exception.

    Returns:
      The class itself.

    Raises:
      TypeError: if it is none of these, so that its fields are not known.

    Example:
      >>> @register_value
      ... @dataclasses.dataclass
      ... class Loop:
      ...     round: int = 0
      >>> fields_of(Loop)
      ('round',)
    """
    _names(cls)
    _VALUES[full_name(cls)] = cls
    _FIELDS.clear()  # one of the same name may have been known before
    return cls


def register_part(*state: str, rebuilt: Sequence[str] = (), steps: Sequence[str] = ()) -> Callable[[C], C]:
    """Registers a class whose instances are there before their state is restored.

    Every attribute is either state or rebuilt, and of which kind is said here; one that is neither is an error when it
    is saved. A class with methods `save_state()` and `restore_state(state)` names no attributes: they decide.

    Args:
      *state: attributes that are saved and restored.
      rebuilt: attributes that its constructor makes, such as settings, callbacks and other parts.
      steps: methods that saved events may refer to.

    Returns:
      The decorator.

    Raises:
      TypeError: if a step is no method of the class, or the attributes are not those of its `__slots__`.

    Example:
      >>> @register_part("count", rebuilt=("limit",))
      ... class Counter:
      ...     def __init__(self, limit):
      ...         self.limit = limit
      ...         self.count = 0
      >>> part_of(Counter).state
      ('count',)
    """

    def register(cls: C) -> C:
        for step in steps:
            if not isinstance(vars(cls).get(step), types.FunctionType):
                raise TypeError(f"{full_name(cls)} has no method {step!r}")
        slots = _slots(cls)
        if slots is not None and set(slots) != {*state, *rebuilt}:
            raise TypeError(f"{full_name(cls)}: {sorted({*slots} ^ {*state, *rebuilt})} in its __slots__ or here alone")
        _PARTS[cls] = Part(state, tuple(rebuilt), tuple(steps))
        return cls

    return register


def full_name(cls: type[Any]) -> str:
    """The name under which a class is known.

    Example:
      >>> full_name(dict)
      'builtins.dict'
    """
    return f"{cls.__module__}.{cls.__qualname__}"


def fields_of(cls: type[Any]) -> tuple[str, ...] | None:
    """Names of the fields of a value's class; None if it is not known."""
    if cls not in _FIELDS:
        _FIELDS[cls] = _names(cls) if value_class(full_name(cls)) is cls else None
    return _FIELDS[cls]


def value_class(name: str) -> type[Any] | None:
    """The class of values that is known under a name, or None. Nothing is imported, and no code is run."""
    if name in _VALUES:
        return _VALUES[name]
    module, _, last = name.rpartition(".")
    if module.partition(".")[0] not in NAMED_TUPLES_OF or not isinstance(sys.modules.get(module), types.ModuleType):
        return None
    found = vars(sys.modules[module]).get(last)
    return found if isinstance(found, type) and _is_named_tuple(found) and full_name(found) == name else None


def error_class(name: str) -> type[Exception] | None:
    """The class of exceptions that is known under a name: Python's own, or a registered one."""
    registered = _VALUES.get(name)
    if registered is not None and issubclass(registered, Exception):
        return registered
    return _ERRORS.get(name)


def part_of(cls: type[Any]) -> Part | None:
    """What a class of parts declares, or None if it is none."""
    return _PARTS.get(cls)


def parts_within(wholes: Mapping[str, Any]) -> dict[str, Any]:
    """Parts by name, and those among what they have rebuilt: each once, named by the way that leads there.

    Args:
      wholes: parts by name.

    Raises:
      TypeError: if one is no part.
    """
    for name, whole in wholes.items():
        if type(whole) not in _PARTS:
            raise TypeError(
                f"{name} is a {full_name(type(whole))}, which does not say what its state is: see `register_part`"
            )
    found: dict[str, Any] = {}
    seen: set[int] = set()
    ahead = deque(wholes.items())  # what is near comes first, so that names are short
    while ahead:
        name, value = ahead.popleft()
        declared = _PARTS.get(type(value))
        if declared is not None and id(value) not in seen:
            assert name not in found
            seen.add(id(value))
            found[name] = value
            ahead += [(f"{name}.{attribute.lstrip('_')}", getattr(value, attribute)) for attribute in declared.rebuilt]
        elif type(value) is dict:
            ahead += [(f"{name}.{key}", item) for key, item in value.items()]
    return found


def undeclared(value: Any, names: Sequence[str]) -> list[str]:
    """Attributes that an object has beside these, except those that it can compute again."""
    attributes: dict[str, Any] = getattr(value, "__dict__", {})
    cls = type(value)
    return [
        name
        for name in attributes
        if name not in names and not isinstance(getattr(cls, name, None), functools.cached_property)
    ]


def _names(cls: type[Any]) -> tuple[str, ...]:
    """Names of the fields, which are all there is of an instance.

    Raises:
      TypeError: if they are not known.
    """
    if not isinstance(cls, type):
        raise TypeError(f"register_value({cls!r}): expected a class")
    if _is_named_tuple(cls):
        fields: tuple[str, ...] = cls._fields
        return fields
    if issubclass(cls, Exception):
        return ("args",)
    names = tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else _slots(cls)
    if names is None:
        raise TypeError(
            f"{full_name(cls)} does not say what its fields are: make it a dataclass, @register_value above @dataclass"
        )
    try:
        object.__new__(cls)
    except TypeError as error:
        raise TypeError(f"{full_name(cls)} is more than its fields: {error}") from None
    return names


def _is_named_tuple(cls: type[Any]) -> bool:
    """Whether an instance is a tuple with named fields, and nothing else."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple) and cls.__dictoffset__ == 0


def _slots(cls: type[Any]) -> tuple[str, ...] | None:
    """Names of all the attributes that an instance can have; None if it can have any."""
    if cls.__dictoffset__:
        return None
    return tuple(name for base in reversed(cls.__mro__) for name in vars(base).get("__slots__", ()))
