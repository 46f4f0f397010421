"""Columns in device memory or in pinned host memory, and computation where they are stored."""

import inspect
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
    """Makes a column of zeros. A host column may exceed the device's memory, because it is never on the device."""
    if memory == "device":
        return jnp.zeros(shape, dtype)
    (device,) = jnp.zeros(()).devices()
    made: jax.Array = jax.device_put(np.zeros(shape, dtype), SingleDeviceSharding(device, memory_kind=memory))
    return made


def run_where_stored(function: Callable[..., jax.Array], column: jax.Array, *others: jax.Array) -> jax.Array:
    """Computes `function(column, *others)` on the host if `column` is in host memory; the result stays there.

    Args:
      function: a function of arrays that are all in the same memory.
      column: the column, which stays in its memory.
      *others: arrays that are moved to the column's memory.
    """
    if jax.typeof(column).memory_space != jax.memory.Space.Host:
        return function(column, *others)
    moved = jax.device_put(others, jax.memory.Space.Host)
    found: jax.Array = _on_host(jax.jit(function))(column, *moved)
    return found


def _on_host(function: Callable[..., jax.Array]) -> Callable[..., jax.Array]:
    """Returns a function that the host computes, from host memory to host memory."""
    if "out_memory_spaces" in inspect.signature(compute_on).parameters:  # JAX 0.11 made a decorator of it
        decorator: Any = compute_on
        decorated: Callable[..., jax.Array] = decorator(
            function, compute_type="device_host", out_memory_spaces=jax.memory.Space.Host
        )
        return decorated

    def within(*arguments: jax.Array) -> jax.Array:
        with compute_on("device_host"):
            return function(*arguments)

    return within
