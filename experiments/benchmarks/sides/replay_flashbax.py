"""Times batches from flashbax's trajectory buffer, or from its prioritised buffer."""

import itertools
import sys

import flashbax
import jax
import jax.numpy as jnp

from experiments.benchmarks.sides.replaying import LOADS, Load, say, timed, trajectories

#: The number of rows of equal length into which the prioritised buffer's items are divided.
_ROWS = 1_000


def main(name: str) -> None:
    """Times the buffer's compiled `sample`."""
    load = LOADS[name]
    buffer, state = prioritised(load) if name == "weighted" else uniform(load)
    # Like our side, this side reuses the memory of the previous batch.
    sample = jax.jit(lambda state, key, before: buffer.sample(state, key), donate_argnums=2, keep_unused=True)
    key = jax.random.key(0)
    numbers = itertools.count()
    newest = [jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(buffer.sample, state, key))]

    def batch() -> None:
        turn = jax.random.fold_in(key, next(numbers))
        newest[0] = jax.block_until_ready(sample(state, turn, newest[0]))  # type: ignore[no-untyped-call]

    say(seconds=timed(batch))


def uniform(load: Load):  # type: ignore[no-untyped-def]
    """Returns a full trajectory buffer, with one row per trajectory."""
    buffer = flashbax.make_trajectory_buffer(
        add_batch_size=load.trajectories,
        sample_batch_size=load.batch,
        sample_sequence_length=load.window,
        period=1,
        min_length_time_axis=load.steps,
        max_length_time_axis=load.steps,
    )
    state = buffer.init({"x": jnp.zeros(load.shape, load.dtype)})
    add = jax.jit(buffer.add, donate_argnums=0)
    return buffer, add(state, {"x": trajectories(load, 0, load.trajectories)})


def prioritised(load: Load):  # type: ignore[no-untyped-def]
    """Returns a full prioritised buffer with sequences of one step, one for each trajectory of the load."""
    steps = load.trajectories // _ROWS
    buffer = flashbax.make_prioritised_trajectory_buffer(
        add_batch_size=_ROWS,
        sample_batch_size=load.batch,
        sample_sequence_length=1,
        period=1,
        min_length_time_axis=1,
        max_length_time_axis=steps,
    )
    state = buffer.init({"x": jnp.zeros((), jnp.float32)})
    add = jax.jit(buffer.add, donate_argnums=0)
    return buffer, add(state, {"x": trajectories(load, 0, load.trajectories).reshape(_ROWS, steps)})


if __name__ == "__main__":
    main(sys.argv[1])
