"""Inserts, selects and collects over eight devices of one process or of several, for `test_sharded.py` to compare.

Its arguments: the process's number, how many there are, the coordinator's port, and where its results go.
"""

import sys

import jax
import jax.numpy as jnp
import numpy as np


def main(number, processes, port, out):
    """Writes what all have, and this process's part of each batch."""
    if processes > 1:
        jax.config.update("jax_cpu_collectives_implementation", "gloo")
        jax.distributed.initialize(f"127.0.0.1:{port}", processes, number)
    from stellaris.replay import Window, check, sharded

    over = sharded.Shards(jax.sharding.Mesh(np.array(jax.devices()), ("data",)))
    assert over.number == 8
    spec = {"frame": jax.ShapeDtypeStruct((2,), jnp.uint8), "reward": jax.ShapeDtypeStruct((), jnp.float32)}
    table = sharded.init(spec, capacity=32, length=6, over=over)
    rng = np.random.default_rng(0)
    mine = slice(number * 16 // processes, (number + 1) * 16 // processes)
    for i in range(3):
        rows = {
            "frame": rng.integers(0, 256, (16, 6, 2), np.uint8),
            "reward": rng.normal(size=(16, 6)).astype(np.float32),
        }
        if i:  # once the same NumPy arrays everywhere, then each process's own rows
            rows = {name: jax.make_array_from_process_local_data(over.sharding, x[mine]) for name, x in rows.items()}
        length = rng.integers(1, 7, 16).astype(np.int32)
        weight = rng.integers(0, 4, 16).astype(np.float32)
        table = sharded.insert(table, rows, length=length, weight=weight, version=i, over=over)
    found = {}
    for by, replace in [("uniform", True), ("weight", True), ("weight", False), ("top", True)]:
        drawn = sharded.select(table, jax.random.key(1), 16, by=by, replace=replace, over=over)
        check(drawn)
        steps = sharded.random_steps(table, drawn, jax.random.key(2), over=over)
        windows = {"frame": Window("frame", 3, offset=-1, value=9), "to go": Window("reward", 4, return_to_go=0.5)}
        batch = sharded.gather(table, drawn, windows, step=steps, over=over)
        for i, leaf in enumerate(jax.tree.leaves(batch)):
            parts = sorted(leaf.addressable_shards, key=lambda part: part.index[0].start)
            found[f"part {by} {replace} {i}"] = np.concatenate([np.asarray(part.data) for part in parts])
        found |= {f"all {by} {replace} row": np.asarray(drawn.row), f"all {by} {replace} step": np.asarray(steps)}
    table = sharded.update_weights(table, drawn.row, jnp.full(16, 5.0), over=over)
    again = sharded.select(table, jax.random.key(3), 16, by="weight", over=over)
    found["all changed"] = np.asarray(again.row)
    check(table)
    table = sharded.update_weights(table, jnp.array([32]), jnp.array([1.0]), over=over)
    try:
        check(table)
    except ValueError as error:
        found["all fault"] = np.array(str(error))
    np.savez(out, **found)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]), sys.argv[4])
