"""Columns in the device's memory, or in the host's, pinned for it: what reads or writes them runs where they are."""

from collections.abc import Callable
from typing import Literal, TypeAlias

import jax
from jax.experimental.compute_on import compute_on

#: Where a table keeps its columns.
Memory: TypeAlias = Literal["device", "pinned_host"]


def place(column: jax.Array, memory: Memory) -> jax.Array:
    """A column, moved to a memory."""
    return column if memory == "device" else jax.device_put(column, jax.memory.Space.Host)


def where_it_is(function: Callable[..., jax.Array], column: jax.Array, *others: jax.Array) -> jax.Array:
    """`function(column, *others)`, computed by the host if that has the column; the result is there, too.

    Args:
      function: of arrays in one memory.
      column: which stays where it is.
      *others: which are moved there.
    """
    if jax.typeof(column).memory_space != jax.memory.Space.Host:
        return function(column, *others)
    moved = jax.device_put(others, jax.memory.Space.Host)
    with compute_on("device_host"):
        found: jax.Array = jax.jit(function)(column, *moved)
    return found
