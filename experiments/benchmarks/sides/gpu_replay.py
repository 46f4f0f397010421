"""Times batches of windows on an accelerator, from a table in its memory or in the host's, and copies of as many bytes.

One side prints the seconds per batch, per copy within the device's memory, and per copy from pinned host memory.
"""

import itertools
import sys
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.sides.replaying import LOADS, Load, say, timed, trajectories
from stellaris import replay
from stellaris.replay.memory import Memory

_CHUNK = 500
#: Number of different batches of bytes that the copies use in turn, so that they do not stay in the cache.
_PLACES = 16


def main(name: str, memory: Memory) -> None:
    """Times batches from a full table, and the copies that bound them."""
    load = LOADS[name]
    spec = {"x": jax.ShapeDtypeStruct(load.shape, load.dtype)}  # type: ignore[no-untyped-call]
    table = replay.init(spec, capacity=load.trajectories, length=load.steps, memory=memory)
    for first in range(0, load.trajectories, _CHUNK):
        table = replay.insert(table, {"x": trajectories(load, first, _CHUNK)})
    replay.check(table)
    windows = {"x": replay.Window("x", load.window)}

    @jax.jit
    def batch(table: replay.Table, number: jax.Array) -> replay.Gathered:
        key, other = jax.random.split(jax.random.fold_in(jax.random.key(0), number))
        drawn = replay.select(table, key, load.batch)
        start = jnp.minimum(replay.random_steps(table, drawn, other), load.steps - load.window)
        return replay.gather(table, drawn, windows, step=start)

    numbers = itertools.count()
    found = {"batch": timed(lambda: _done(batch(table, next(numbers)))), "device": timed(_within(load))}
    if memory != "device":
        found["host"] = timed(_from_host(load))
    say(**found)


def _within(load: Load) -> Callable[[], Any]:
    """Returns a function that copies the bytes of a batch within the device's memory."""
    places = [jnp.full(load.nbytes, place, jnp.uint8) for place in range(_PLACES)]
    copy = jax.jit(lambda x: x ^ jnp.uint8(1))  # a copy alone could be elided
    turn = itertools.count()
    return lambda: _done(copy(places[next(turn) % _PLACES]))


def _from_host(load: Load) -> Callable[[], Any]:
    """Returns a function that copies the bytes of a batch from pinned host memory to the device."""
    (device,) = jnp.zeros(()).devices()
    pinned, there = (jax.sharding.SingleDeviceSharding(device, memory_kind=kind) for kind in ("pinned_host", "device"))
    places = [jax.device_put(np.full(load.nbytes, place, np.uint8), pinned) for place in range(_PLACES)]
    turn = itertools.count()
    return lambda: _done(jax.device_put(places[next(turn) % _PLACES], there))


def _done(values: Any) -> Any:
    return jax.block_until_ready(values)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])  # type: ignore[arg-type]
