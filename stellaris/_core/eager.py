"""Compiles calls with function arguments once per function, instead of at every call outside of `jit`."""

import functools
import numbers
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

#: The number of compiled programs that are kept; the least recently used program is dropped first.
KEPT = 32


def call(function: Callable[..., Any], static: tuple[Any, ...], *arrays: Any) -> Any:
    """Calls `function(*static, *arrays)`, compiled if the caller is outside of `jit`.

    The function is compiled once per value of `static` and per shapes and dtypes of the arrays. Within a
    transformation it is called directly and becomes part of the caller's program. It is also called directly if
    `static` is not hashable or an argument is not an array.

    Args:
      function: a function defined at module level, so that it is the same object in every call.
      static: arguments compared by equality; functions compare by identity. Arrays that these functions capture are
        constants of the compiled program.
      *arrays: trees of arrays.
    """
    # If this call is within a `jit`, the new constant is a tracer. Static functions may then capture traced arrays,
    # which must not be kept in the cache.
    leaves = [jnp.zeros(()), *jax.tree.leaves(arrays)]
    if _hashable(static) and all(map(_concrete, leaves)):
        return _compiled(function, *static)(*arrays)
    return function(*static, *arrays)


# typed=True, because optax's transformations with and without extra arguments are equal as tuples.
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
