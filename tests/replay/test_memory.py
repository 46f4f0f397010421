"""Columns in the host's memory give the same batches, and stay there."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import replay

SPEC = {"x": jax.ShapeDtypeStruct((3,), jnp.float32), "reward": jax.ShapeDtypeStruct((), jnp.float32)}
WINDOWS = {
    "x": replay.Window("x", 4, offset=-2, pad="head", value=-1.0),
    "return_to_go": replay.Window("reward", 3, return_to_go=0.9),
}


def filled(memory):
    """A table round which insertion has gone."""
    table = replay.init(SPEC, capacity=7, length=6, memory=memory)
    for i in range(4):
        noise = np.random.default_rng(i)
        columns = {name: noise.normal(size=(3, 6, *one.shape)).astype(np.float32) for name, one in SPEC.items()}
        table = replay.insert(table, columns, length=np.array([6, 2, 4]), version=i)
    return table


@pytest.mark.slow
def test_both_memories_give_the_same_batches():
    """In the device's memory, within a program, while the columns stay with the host."""
    gather = jax.jit(lambda table, drawn: replay.gather(table, drawn, WINDOWS, step=2))
    batches = []
    for memory in ("device", "pinned_host"):
        table = filled(memory)
        assert table.columns["x"].sharding.memory_kind == memory
        batches.append(gather(table, replay.select(table, jax.random.key(0), 16)))
        assert batches[-1].values["x"].sharding.memory_kind == "device"
    jax.tree.map(np.testing.assert_array_equal, *batches)
    assert 0 < batches[0].mask["x"].mean() < 1


def test_a_program_holds_no_column_of_the_host():
    """What crosses is a batch: a step with its batch has less on the device than a column of the table."""
    table = replay.init(SPEC, capacity=1_000, length=100, memory="pinned_host")
    drawn = replay.select(table, jax.random.key(0), 16)
    program = jax.jit(lambda table, drawn: replay.gather(table, drawn, WINDOWS)).lower(table, drawn).compile()
    assert program.memory_analysis().temp_size_in_bytes < table.columns["x"].nbytes / 10
