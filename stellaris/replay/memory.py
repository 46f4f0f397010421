"""Columns in the device's memory, or in the host's, pinned for it: what reads or writes them runs where they are."""

from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.experimental.compute_on import compute_on
from jax.sharding import SingleDeviceSharding

#: Where a table keeps its columns.
Memory: TypeAlias = Literal["device", "pinned_host"]


def zeros(shape: tuple[int, ...], dtype: Any, memory: Memory) -> jax.Array:
    """A column of zeros, made in a memory: it need not fit into the device's to be with the host."""
    if memory == "device":
        return jnp.zeros(shape, dtype)
    (device,) = jnp.zeros(()).devices()
    made: jax.Array = jax.device_put(np.zeros(shape, dtype), SingleDeviceSharding(device, memory_kind=memory))
    return made


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
