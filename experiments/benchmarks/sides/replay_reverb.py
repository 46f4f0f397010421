"""Times batches from a local Reverb server, through its dataset client."""

import sys

import numpy as np
import reverb
import tensorflow as tf

from experiments.benchmarks.sides.replaying import LOADS, Load, say, timed, trajectories


def main(name: str, workers: str, in_flight: str) -> None:
    """Times batches of a trajectory dataset.

    An item is a window, and the windows of a trajectory do not overlap. Reverb therefore sends only windows, not whole
    trajectories whose larger part would be discarded.
    """
    load = LOADS[name]
    dtype = tf.as_dtype(load.dtype)
    table = reverb.Table(
        name="windows",
        sampler=reverb.selectors.Uniform(),
        remover=reverb.selectors.Fifo(),
        max_size=load.trajectories * (load.steps // load.window),
        rate_limiter=reverb.rate_limiters.MinSize(1),
        signature={"x": tf.TensorSpec((load.window, *load.shape), dtype)},
    )
    server = reverb.Server([table])
    fill(reverb.Client(f"localhost:{server.port}"), load)
    dataset = reverb.TrajectoryDataset.from_table_signature(
        f"localhost:{server.port}",
        table="windows",
        num_workers_per_iterator=int(workers),
        max_in_flight_samples_per_worker=int(in_flight),
    )
    batches = iter(dataset.batch(load.batch).prefetch(2))
    say(seconds=timed(lambda: next(batches).data["x"].numpy()))


def fill(client: reverb.Client, load: Load) -> None:
    """Writes all windows, each as one chunk, so that sampling a window fetches one chunk."""
    with client.trajectory_writer(num_keep_alive_refs=load.window) as writer:
        writer.configure(("x",), num_keep_alive_refs=load.window, max_chunk_length=load.window)
        for first in range(0, load.trajectories, 100):
            for trajectory in trajectories(load, first, min(100, load.trajectories - first)):
                for i, step in enumerate(np.asarray(trajectory)):
                    writer.append({"x": step})
                    if (i + 1) % load.window == 0:
                        writer.create_item("windows", 1.0, {"x": writer.history["x"][-load.window :]})
                writer.flush(block_until_num_items=200)
    assert client.server_info()["windows"].current_size == load.trajectories * (load.steps // load.window)


if __name__ == "__main__":
    main(*sys.argv[1:])
