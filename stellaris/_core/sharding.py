"""Arrays on a mesh with explicit shardings, where JAX does not choose the sharding of a result that is ambiguous."""

import math
from collections.abc import Iterable
from typing import Any

import jax
import jax.numpy as jnp
from jax.sharding import AxisType, NamedSharding

#: JAX has no types for these.
_reshard: Any = jax.sharding.reshard
_P: Any = jax.sharding.PartitionSpec


def replicated(x: Any) -> jax.Array:
    """Returns an array that each device holds whole, so that it may be flattened or sorted.

    On other meshes, and without one, it returns the array as it is: there JAX chooses the shardings.
    """
    x = jnp.asarray(x)
    sharding = _explicit(x)
    whole: jax.Array = x if sharding is None else _reshard(x, NamedSharding(sharding.mesh, _P()))
    return whole


def beside(x: jax.Array, others: Iterable[Any]) -> jax.Array:
    """Places an array, whole, on the devices of the explicit mesh on which one of the others is, if one is."""
    for other in others:
        if isinstance(other, jax.Array) and not isinstance(other, jax.core.Tracer):
            mesh = getattr(other.sharding, "mesh", None)
            if mesh is not None and AxisType.Explicit in mesh.axis_types:
                x = jax.device_put(x, NamedSharding(mesh, _P()))
                break
    return x


def split_like(x: jax.Array, other: jax.Array) -> jax.Array:
    """Splits an array over the mesh as another one of the same shape, on a mesh with explicit shardings."""
    sharding = _explicit(other)
    split: jax.Array = x if sharding is None else _reshard(x, sharding)
    return split


def merged(x: Any, axes: int) -> jax.Array:
    """Merges the first `axes` axes of an array; the result is split as these axes are together."""
    x = jnp.asarray(x)
    shape = math.prod(x.shape[:axes]), *x.shape[axes:]
    sharding = _explicit(x)
    if sharding is None:
        return jnp.reshape(x, shape)
    spec = sharding.spec
    return jax.lax.reshape(x, shape, out_sharding=_named(sharding, _names(spec[:axes]) or None, *spec[axes:]))


def taken(x: Any, indices: Any, axis: int) -> jax.Array:
    """Returns the items at `indices` along an axis, and zeros beyond its end; on each device all items are whole."""
    x = jnp.asarray(x)
    sharding = _explicit(x)
    if sharding is None:
        return jnp.take(x, indices, axis=axis, mode="fill", fill_value=0)
    spec = [*sharding.spec, *[None] * (x.ndim - len(sharding.spec))]
    at = (*[slice(None)] * axis, replicated(indices))
    spec[axis : axis + 1] = [None] * jnp.ndim(indices)
    items: jax.Array = x.at[at].get(mode="fill", fill_value=0, out_sharding=_named(sharding, *spec))
    return items


def _explicit(x: jax.Array) -> Any:
    """Returns the sharding of an array if it is explicit and splits the array, else None."""
    sharding = jax.typeof(x).sharding
    kinds = dict(zip(sharding.mesh.axis_names, sharding.mesh.axis_types, strict=True))
    return sharding if any(kinds[name] == AxisType.Explicit for name in _names(sharding.spec)) else None


def _named(sharding: Any, *parts: Any) -> NamedSharding:
    return NamedSharding(sharding.mesh, _P(*parts))


def _names(parts: Iterable[Any]) -> tuple[str, ...]:
    """Returns the mesh axes over which several axes are split."""
    return tuple(name for part in parts if part is not None for name in (part if isinstance(part, tuple) else (part,)))
