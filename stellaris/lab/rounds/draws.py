"""The durations that a simulated platform draws for a function, as tables that a compiled program reads."""

from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.lab.statistics import wide
from stellaris.runtime.delays import Constant, Delay, Stream
from stellaris.runtime.engine.containers import Pool
from stellaris.runtime.functions import FunctionSpec
from stellaris.types import Array, NDArray


class Draws(NamedTuple):
    """Seconds, float64, each in the order in which the platform draws it; one number if all are equal."""

    queueing: Array  #: by invocation: before it looks for a container.
    cold_start: Array  #: by container: to make it.
    initialisation: Array  #: by container: to load its program.
    latency: Array  #: by started invocation: of its transfers.
    compute: Array  #: by started invocation: for one unit of work.


def draws_of(name: str, spec: FunctionSpec, seed: int, count: int) -> Draws:
    """Draws the durations of a function's first `count` invocations, as a platform with this seed does."""
    pool = Pool(name, spec, seed)
    latency = Constant(0.0) if spec.transfer is None else spec.transfer.latency
    return Draws(
        _table(pool.queueing, spec.queueing, count),
        _table(pool.cold_start, spec.cold_start, count),
        _table(pool.initialisation, spec.initialisation, count),
        _table(pool.latency, latency, count),
        _table(pool.compute, spec.compute, count),
    )


def _table(stream: Stream, delay: Delay, count: int) -> NDArray:
    return np.array([stream.draw() for _ in range(1 if isinstance(delay, Constant) else count)])


@wide
def drawn(table: Array, index: jax.Array) -> jax.Array:
    """Reads a table at indices of any shape. Indices past its end belong to unused places."""
    return jnp.take(jnp.asarray(table), index, mode="clip")
