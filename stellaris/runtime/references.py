"""What an invocation's arguments may be: values, and references that are resolved when its body starts."""

from dataclasses import dataclass
from typing import Any, TypeAlias

import jax

from stellaris.runtime.state.registry import register_value


@register_value
@dataclass(frozen=True)
class Latest:
    """The newest version when the body starts."""

    name: str


@register_value
@dataclass(frozen=True)
class At:
    """One given version."""

    name: str
    version: int


@register_value
@dataclass(frozen=True)
class Lagged:
    """The version `lag` before the newest when the body starts (the first, while there are fewer)."""

    name: str
    lag: int


@register_value
@dataclass(frozen=True)
class Held:
    """The versions that the running invocations of the same function work on, as a tuple of length `slots`."""

    name: str
    slots: int


@register_value
@dataclass(frozen=True)
class Object:
    """A value without a name or versions."""

    number: int


Reference: TypeAlias = Latest | At | Lagged | Held | Object

_REFERENCES = (Latest, At, Lagged, Held, Object)


def size(tree: Any) -> int:
    """Bytes of a tree: the sum over its leaves.

    Args:
      tree: any tree of arrays, numbers, texts, bytes, and objects with an attribute `nbytes`. A Python number counts 8
        bytes, a text as many as it has in UTF-8.

    Returns:
      The number of bytes.

    Raises:
      TypeError: if the size of a leaf is not known: counting it as nothing would make its transfer free.

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
    raise TypeError(
        f"a {type(leaf).__name__} is of unknown size: make it a tree of arrays, or give it an attribute `nbytes`"
    )


def has_references(arguments: tuple[object, ...]) -> bool:
    """Whether any argument is a reference."""
    return any(isinstance(argument, _REFERENCES) for argument in arguments)


def values_among(arguments: tuple[object, ...]) -> tuple[object, ...]:
    """The arguments that are passed by value."""
    return tuple(argument for argument in arguments if not isinstance(argument, _REFERENCES))
