"""Calls outside of `jit` that are given functions: compiled once for each function, instead of at every call."""

import functools
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: Functions whose compiled programs are kept: those used last.
KEPT = 32


def call(function: Callable[..., Any], static: tuple[Any, ...], *arrays: Any) -> Any:
    """`function(*static, *arrays)`, compiled if it is called outside of `jit`.

    It is compiled once for each `static` and for the shapes and types of the arrays. Inside of a transformation the
    function is simply called, so that it becomes a part of the caller's program. It is also simply called if `static`
    is not hashable or an argument is not an array.

    Args:
      function: of the module's, so that it is the same at every call.
      static: what is compared by equality, functions by identity. Whatever they close over is a constant of the
        compiled program.
      *arrays: trees.
    """
    # Within a `jit` even constants are traced. What is static may then close over traced arrays, and must not be kept.
    leaves = [jnp.zeros(()), *jax.tree.leaves(arrays)]
    if _hashable(static) and all(map(_concrete, leaves)):
        return _compiled(function, *static)(*arrays)
    return function(*static, *arrays)


# Typed, because optax's transformations with and without extra arguments are equal as tuples.
@functools.lru_cache(maxsize=KEPT, typed=True)
def _compiled(function: Callable[..., Any], *static: Any) -> Callable[..., Any]:
    return jax.jit(functools.partial(function, *static))


def _concrete(leaf: Any) -> bool:
    array = isinstance(leaf, jax.Array | np.ndarray | np.generic | numbers.Number)
    return array and not isinstance(leaf, jax.core.Tracer)


def _hashable(static: tuple[Any, ...]) -> bool:
    try:
        hash(static)
    except TypeError:
        return False
    return True
