"""Classes that checkpoints may save. Each class declares its state: an undeclared attribute is an error.

**Values** (`register_value`) are made anew from their fields. **Parts** (`register_part`) belong to an object that
exists already, such as a platform with its deployment, threads and callbacks: their state is put back in place. A
checkpoint can name only registered classes, and none of their code runs when an instance is made anew.
"""

import builtins
import dataclasses
import functools
import sys
import types
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

#: Packages whose named tuples count as registered values: the classes of optimizer states belong to a library and
#: cannot be decorated, and making a named tuple runs no code.
NAMED_TUPLES_OF = ("optax", "stellaris")

C = TypeVar("C", bound=type[Any])
_VALUES: dict[str, type[Any]] = {}
_FIELDS: dict[type[Any], tuple[str, ...]] = {}
_ERRORS = {
    f"builtins.{name}": e for name, e in vars(builtins).items() if isinstance(e, type) and issubclass(e, Exception)
}


class Part(NamedTuple):
    """The declaration of a class of parts."""

    state: tuple[str, ...]  #: attributes that are saved and restored.
    rebuilt: tuple[
        str, ...
    ]  #: attributes that the constructor makes and a restore keeps; the state of parts among them is saved as well.
    steps: tuple[str, ...]  #: methods that saved events may refer to, as their handlers.


#: The declarations of parts, by class.
PARTS: dict[type[Any], Part] = {}


def register_value(cls: C) -> C:
    """Registers a class whose instances are data: checkpoints save their fields, and make them anew from the fields.

    No constructor runs when an instance is made anew. To register a library's class, call
    `register_value(library.State)`.

    Args:
      cls: a dataclass (decorate above `@dataclass`), a named tuple, a class with `__slots__`, or an exception.

    Returns:
      The class itself.

    Raises:
      TypeError: if `cls` is not a class, or its fields are not known.

    Example:
      >>> @register_value
      ... @dataclasses.dataclass
      ... class Loop:
      ...     round: int = 0
      >>> fields_of(Loop)
      ('round',)
    """
    _FIELDS[cls] = _names(cls)
    _VALUES[full_name(cls)] = cls
    return cls


def register_part(*state: str, rebuilt: Sequence[str] = (), steps: Sequence[str] = ()) -> Callable[[C], C]:
    """Registers a class whose instances exist before their state is restored.

    Declare every attribute as `state` (saved) or `rebuilt` (made by the constructor); any other attribute is an error
    on save. A class with methods `save_state()` and `restore_state(state)` declares no attributes: these methods decide
    what is saved.

    Args:
      *state: attributes that are saved and restored.
      rebuilt: attributes that the constructor makes, such as settings, callbacks and other parts.
      steps: methods that saved events may refer to, as their handlers.

    Returns:
      The decorator.

    Raises:
      TypeError: if a step is not a method of the class, or the attributes differ from its `__slots__`.

    Example:
      >>> @register_part("count", rebuilt=("limit",))
      ... class Counter:
      ...     def __init__(self, limit):
      ...         self.limit = limit
      ...         self.count = 0
      >>> PARTS[Counter].state
      ('count',)
    """

    def register(cls: C) -> C:
        for step in steps:
            if not isinstance(vars(cls).get(step), types.FunctionType):
                raise TypeError(f"{full_name(cls)} lacks the method {step!r}, which register_part names in steps")
        slots = _slots(cls)
        if slots is not None and set(slots) != {*state, *rebuilt}:
            differing = sorted({*slots} ^ {*state, *rebuilt})
            raise TypeError(f"{full_name(cls)}: name {differing} both in __slots__ and in register_part, or in neither")
        PARTS[cls] = Part(state, tuple(rebuilt), tuple(steps))
        return cls

    return register


def full_name(cls: type[Any]) -> str:
    """Returns the name by which checkpoints refer to a class.

    Example:
      >>> full_name(dict)
      'builtins.dict'
    """
    return f"{cls.__module__}.{cls.__qualname__}"


def fields_of(cls: type[Any]) -> tuple[str, ...] | None:
    """Returns the names of the fields of a value's class, or None for any other class."""
    # The class is looked up by name, as on loading: of two classes with the same name, only one would be made again.
    if value_class(full_name(cls)) is not cls:
        return None
    return _FIELDS[cls] if cls in _FIELDS else _names(cls)


def value_class(name: str) -> type[Any] | None:
    """Returns the class of values with this name, or None. The look-up imports nothing and runs no code."""
    if name in _VALUES:
        return _VALUES[name]
    module, _, last = name.rpartition(".")
    if module.partition(".")[0] not in NAMED_TUPLES_OF or not isinstance(sys.modules.get(module), types.ModuleType):
        return None
    # The attribute is read from `vars`, because `getattr` may make a lazy module import it.
    found = vars(sys.modules[module]).get(last)
    return found if isinstance(found, type) and _is_named_tuple(found) and full_name(found) == name else None


def error_class(name: str) -> type[Exception] | None:
    """Returns the exception with this name, if it is registered or built into Python; None otherwise."""
    registered = _VALUES.get(name)
    if registered is not None and issubclass(registered, Exception):
        return registered
    return _ERRORS.get(name)


def parts_within(wholes: Mapping[str, Any]) -> dict[str, Any]:
    """Returns parts, and the parts among their rebuilt attributes: each part once, under its shortest name.

    Args:
      wholes: parts by name.

    Raises:
      TypeError: if the class of a part is not registered.
    """
    for name, whole in wholes.items():
        if type(whole) not in PARTS:
            raise TypeError(f"{name} is a {full_name(type(whole))}: decorate its class with register_part")
    found: dict[str, Any] = {}
    seen: set[int] = set()
    ahead = deque(wholes.items())  # breadth first, so that names are short
    while ahead:
        name, value = ahead.popleft()
        declared = PARTS.get(type(value))
        if declared is not None and id(value) not in seen:
            assert name not in found
            seen.add(id(value))
            found[name] = value
            ahead += [(f"{name}.{attribute.lstrip('_')}", getattr(value, attribute)) for attribute in declared.rebuilt]
        elif type(value) is dict:
            ahead += [(f"{name}.{key}", item) for key, item in value.items()]
    return found


def attributes(value: Any, names: Sequence[str], rebuilt: Sequence[str] = ()) -> dict[str, Any]:
    """Returns the attributes of these names.

    Raises:
      ValueError: if an attribute is missing, or the object has another attribute that is neither rebuilt nor a cached
        property.
    """
    cls = type(value)
    for name in getattr(value, "__dict__", {}):
        cached = isinstance(getattr(cls, name, None), functools.cached_property)
        if name not in names and name not in rebuilt and not cached:
            remedy = "declare it as a field, or in register_part as state or rebuilt"
            raise ValueError(f"a {full_name(cls)} has an undeclared attribute {name!r}: {remedy}")
    for name in names:
        if not hasattr(value, name):
            raise ValueError(f"a {full_name(cls)} lacks the declared attribute {name!r}: set it before saving")
    return {name: getattr(value, name) for name in names}


def _names(cls: type[Any]) -> tuple[str, ...]:
    """Returns the names of a class's fields; raises a TypeError if an instance may hold more than its fields."""
    if not isinstance(cls, type):
        raise TypeError(f"register_value({cls!r}): expected a class")
    if _is_named_tuple(cls):
        fields: tuple[str, ...] = cls._fields
        return fields
    if issubclass(cls, Exception):
        return ("args",)
    names = tuple(f.name for f in dataclasses.fields(cls)) if dataclasses.is_dataclass(cls) else _slots(cls)
    if names is None:
        raise TypeError(f"{full_name(cls)} has unknown fields: make it a dataclass, @register_value above @dataclass")
    # `object.__new__` refuses classes that inherit built-in content, such as the items of a list.
    try:
        object.__new__(cls)
    except TypeError as error:
        raise TypeError(f"{full_name(cls)} has content apart from its fields, which would be lost: {error}") from None
    return names


def _is_named_tuple(cls: type[Any]) -> bool:
    """Returns whether an instance is a tuple with named fields, and nothing else."""
    return issubclass(cls, tuple) and isinstance(getattr(cls, "_fields", None), tuple) and cls.__dictoffset__ == 0


def _slots(cls: type[Any]) -> tuple[str, ...] | None:
    """Returns the names of all attributes that an instance can have; None if it can have any."""
    if cls.__dictoffset__:
        return None
    return tuple(name for base in reversed(cls.__mro__) for name in vars(base).get("__slots__", ()))
