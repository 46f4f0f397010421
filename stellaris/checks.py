"""Errors of the pure functions, raised while they are traced: which argument, what it is, what was expected.

None stands for an argument that was left out, and passes every check. So does a number that is itself traced, such as a
setting that is swept by `vmap`: what it is will be known too late.
"""

import math
import operator
from collections.abc import Iterator
from typing import Any

import jax
import jax.numpy as jnp

from stellaris.types import Array, Tree


def floats(**arrays: Array | None) -> None:
    """Raises a TypeError unless every array holds floating-point numbers."""
    for name, array in arrays.items():
        if array is not None and not jnp.issubdtype(jnp.result_type(array), jnp.floating):
            raise TypeError(f"{name} has dtype {jnp.result_type(array)}: expected floating point")


def same_shape(first: Array, of: str, **arrays: Array | None) -> None:
    """Raises a ValueError unless every array has the shape of `first`, the argument called `of`."""
    for name, array in arrays.items():
        if array is not None and jnp.shape(array) != jnp.shape(first):
            raise ValueError(f"{name} has shape {jnp.shape(array)}: expected {of}'s {jnp.shape(first)}")


def same_structure(first: Tree, of: str, **trees: Tree) -> None:
    """Raises a ValueError unless every tree has the structure of `first`, the argument called `of`."""
    expected: Any = jax.tree.structure(first)
    for name, tree in trees.items():
        structure: Any = jax.tree.structure(tree)
        if structure != expected:
            raise ValueError(f"{name} has structure {structure}: expected {of}'s {expected}")


def known(**numbers: Any) -> Iterator[tuple[str, Any]]:
    """The numbers that can be looked at: neither left out nor traced."""
    return ((name, x) for name, x in numbers.items() if x is not None and not isinstance(x, jax.core.Tracer))


def positive(**numbers: Any) -> None:
    """Raises a ValueError unless every number is above zero."""
    for name, number in known(**numbers):
        if not number > 0:
            raise ValueError(f"{name}={number} is not positive")


def not_negative(**numbers: Any) -> None:
    """Raises a ValueError unless every number is zero or above."""
    for name, number in known(**numbers):
        if not number >= 0:
            raise ValueError(f"{name}={number} is negative or not a number")


def finite(**numbers: Any) -> None:
    """Raises a ValueError unless every number is finite."""
    for name, number in known(**numbers):
        if not math.isfinite(number):
            raise ValueError(f"{name}={number} is not finite")


def between_zero_and_one(**numbers: Any) -> None:
    """Raises a ValueError unless every number lies in [0, 1]."""
    for name, number in known(**numbers):
        if not 0.0 <= number <= 1.0:
            raise ValueError(f"{name}={number} lies outside [0, 1]")


def whole(*, at_least: int, **numbers: Any) -> None:
    """Raises a TypeError unless every number is of a whole type, and a ValueError unless it is at least so much."""
    for name, number in numbers.items():
        try:
            operator.index(number)
        except TypeError:
            raise TypeError(f"{name}={number!r} is not a whole number: pass an int") from None
        if number < at_least:
            raise ValueError(f"{name}={number} is below {at_least}")


def seed(**seeds: Any) -> None:
    """Raises unless every seed is whole and in [0, 2**31): what all libraries beneath take."""
    whole(at_least=0, **seeds)
    for name, number in seeds.items():
        if number >= 2**31:
            raise ValueError(f"{name}={number} is not below 2**31")
