"""Times batches from this library's table."""

import functools
import itertools
import sys

import jax
import jax.numpy as jnp
import numpy as np

from experiments.benchmarks.sides.replaying import LOADS, Load, say, timed, trajectories
from stellaris import replay
from stellaris.replay.selection import By

#: Trajectories per insertion.
_CHUNK = 500


def table_of(load: Load) -> replay.Table:
    """Returns a full table."""
    spec = {"x": jax.ShapeDtypeStruct(load.shape, load.dtype)}  # type: ignore[no-untyped-call]
    table = replay.init(spec, capacity=load.trajectories, length=load.steps)
    chunk = min(_CHUNK, load.trajectories) if load.steps > 1 else load.trajectories
    weights = np.random.default_rng(0).uniform(0.5, 1.5, load.trajectories).astype(np.float32)
    for first in range(0, load.trajectories, chunk):
        columns = {"x": trajectories(load, first, chunk)}
        table = replay.insert(table, columns, weight=weights[first : first + chunk])
    replay.check(table)
    return table


def main(name: str) -> None:
    """Times batches, plain copies and, for the weighted table, changes of weights.

    A batch is selected and gathered in one compiled call, as in a training step.
    """
    load = LOADS[name]
    table = table_of(load)
    windows = {"x": replay.Window("x", load.window)}
    by: By = "weight" if name == "weighted" else "uniform"

    # The call donates the previous batch's memory: the operating system would clear new memory page by page, which
    # takes longer than filling it.
    @functools.partial(jax.jit, donate_argnums=2, keep_unused=True)
    def batch(table: replay.Table, number: jax.Array, before: replay.Gathered) -> replay.Gathered:
        del before
        key, other = jax.random.split(jax.random.fold_in(jax.random.key(0), number))
        drawn = replay.select(table, key, load.batch, by=by)
        start = jnp.minimum(replay.random_steps(table, drawn, other), load.steps - load.window)
        return replay.gather(table, drawn, windows, step=start)

    numbers = itertools.count()
    newest = [jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), jax.eval_shape(batch, table, 0, None))]

    def next_batch() -> None:
        newest[0] = jax.block_until_ready(batch(table, next(numbers), newest[0]))  # type: ignore[no-untyped-call]

    found = {"seconds": timed(next_batch), "copy": timed(copies(load)), "gathered": timed(gathered(load))}
    if name == "weighted":
        found |= changes(table)
    say(**found)


def copies(load: Load):  # type: ignore[no-untyped-def]
    """Returns a function that copies the bytes of a batch from one of many places: a lower bound on a batch's time."""
    places = max(2, (1 << 29) // load.nbytes)
    source = np.ones((places, load.nbytes), np.uint8)
    target = np.empty(load.nbytes, np.uint8)
    turn = itertools.count()
    return lambda: np.copyto(target, source[next(turn) % places])


def gathered(load: Load):  # type: ignore[no-untyped-def]
    """Returns a function that uses NumPy to copy windows from random places of an array as large as the table."""
    whole = np.ones(load.trajectories * load.steps * load.nbytes // (load.batch * load.window), np.uint8)
    size = load.nbytes // load.batch
    places = np.random.default_rng(0).integers(0, len(whole) - size, (200, load.batch))
    windows = [[whole[place : place + size] for place in batch] for batch in places]
    target = np.empty(load.nbytes, np.uint8)
    turn = itertools.count()
    return lambda: np.concatenate(windows[next(turn) % len(windows)], out=target)


def changes(table: replay.Table) -> dict[str, list[float]]:
    """Times new weights for a thousand trajectories, and for all trajectories."""
    holder = [table]
    rows = jnp.asarray(np.random.default_rng(1).integers(0, table.capacity, 1_000), jnp.int32)
    some = jnp.ones(1_000)
    every = jnp.ones(table.capacity)

    def few() -> None:
        holder[0] = replay.update_weights(holder[0], rows, some)
        jax.block_until_ready(holder[0].weights)  # type: ignore[no-untyped-call]

    def all_of_them() -> None:
        holder[0] = replay.reweigh(holder[0], every)
        jax.block_until_ready(holder[0].weights)  # type: ignore[no-untyped-call]

    return {"update": timed(few), "rebuild": timed(all_of_them)}


if __name__ == "__main__":
    main(sys.argv[1])
