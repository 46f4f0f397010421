"""The arguments of invocations: values, and references that are resolved when the body starts."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from stellaris.runtime.state.registry import register_value


@register_value
@dataclass(frozen=True)
class Latest:
    """Refers to the version of `name` that is newest when the body starts."""

    name: str


@register_value
@dataclass(frozen=True)
class At:
    """Refers to one given version of `name`."""

    name: str
    version: int


@register_value
@dataclass(frozen=True)
class Lagged:
    """Refers to the version `lag` versions behind the newest when the body starts, but at the earliest to version 0."""

    name: str
    lag: int


@register_value
@dataclass(frozen=True)
class Held:
    """Refers to the versions that running invocations of the same function work on, as a tuple of length `slots`."""

    name: str
    slots: int


@register_value
@dataclass(frozen=True)
class Object:
    """Refers to a stored value without a name or versions."""

    number: int


Reference: TypeAlias = Latest | At | Lagged | Held | Object

_REFERENCES = (Latest, At, Lagged, Held, Object)


def size(tree: Any) -> int:
    """Counts the bytes of a tree.

    Args:
      tree: any tree of arrays, numbers, strings, bytes, and objects with an attribute `nbytes`. A Python number counts
        as 8 bytes, a string as its UTF-8 bytes.

    Returns:
      The sum over the leaves.

    Raises:
      TypeError: if the size of a leaf is unknown.

    Example:
      >>> import numpy as np
      >>> size({"w": np.zeros(3, np.float32), "version": 7})
      20
    """
    return sum(map(_leaf_size, jax.tree.leaves(tree)))


def _leaf_size(leaf: Any) -> int:
    nbytes = getattr(leaf, "nbytes", None)
    if nbytes is not None:
        return int(nbytes)
    if isinstance(leaf, bool | int | float | complex):
        return 8
    if isinstance(leaf, str):
        return len(leaf.encode())
    if isinstance(leaf, bytes | bytearray):
        return len(leaf)
    # An unknown size is an error: if it counted as 0, the transfer would silently be free.
    raise TypeError(
        f"a {type(leaf).__name__} is of unknown size: make it a tree of arrays, or give it an attribute `nbytes`"
    )


def has_references(arguments: tuple[object, ...]) -> bool:
    """Returns whether any argument is a reference."""
    return any(isinstance(argument, _REFERENCES) for argument in arguments)


def values_among(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """Returns the arguments that are passed by value."""
    return tuple(argument for argument in arguments if not isinstance(argument, _REFERENCES))
