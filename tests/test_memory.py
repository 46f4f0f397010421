"""Sequences and the loop over them, against loops by hand."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.memory import Sequences, unroll
from stellaris.types import Trajectory

T, B, F, H = 7, 3, 2, 4


def cell(weights, memory, x):
    """A small recurrent step whose memory is a tree."""
    h = jnp.tanh(x @ weights["in"] + memory["h"] @ weights["out"])
    return {"h": h, "steps": memory["steps"] + 1}, h.sum(axis=-1)


@pytest.fixture
def problem():
    keys = jax.random.split(jax.random.key(0), 5)
    weights = {"in": jax.random.normal(keys[0], (F, H)), "out": jax.random.normal(keys[1], (H, H))}
    memory = {"h": jax.random.normal(keys[2], (B, H)), "steps": jnp.arange(B)}
    initial = {"h": jnp.full(H, 0.25), "steps": jnp.int32(0)}
    x = jax.random.normal(keys[3], (T, B, F))
    reset = np.zeros((T, B), bool)
    reset[3, 0] = reset[0, 1] = reset[1, 1] = reset[6, 1] = True
    return weights, memory, initial, x, reset


def by_hand(weights, memory, initial, x, reset):
    """Runs each episode separately: a plain loop that takes one environment at a time."""
    rows = []
    for b in range(B):
        m, outputs = jax.tree.map(lambda leaf, b=b: leaf[b], memory), []
        for t in range(T):
            if reset[t, b]:
                m = initial
            m, y = cell(weights, m, x[t, b])
            outputs.append(y)
        rows.append((m, jnp.stack(outputs)))
    after = jax.tree.map(lambda *leaves: jnp.stack(leaves), *[m for m, _ in rows])
    return after, jnp.stack([outputs for _, outputs in rows], axis=1)


@pytest.mark.slow
def test_a_scan_with_resets_is_each_episode_by_itself(problem):
    weights, memory, initial, x, reset = problem
    after, outputs = unroll(lambda m, x: cell(weights, m, x), memory, x, reset, initial=initial)
    expected, by_step = by_hand(weights, memory, initial, x, reset)
    np.testing.assert_allclose(outputs, by_step, rtol=1e-5)
    np.testing.assert_allclose(after["h"], expected["h"], rtol=1e-5)
    assert after["steps"].tolist() == expected["steps"].tolist() == [4, 1, 9]


@pytest.mark.slow
def test_gradients_through_time_are_those_of_the_unrolled_loop(problem):
    weights, memory, initial, x, reset = problem

    def loss(run):
        return lambda weights, h, x: jnp.sum(jnp.square(run(weights, memory | {"h": h}, initial, x, reset)[1]))

    def scanned(weights, memory, initial, x, reset):
        return unroll(lambda m, x: cell(weights, m, x), memory, x, reset, initial=initial)

    found = jax.grad(loss(scanned), argnums=(0, 1, 2))(weights, memory["h"], x)
    expected = jax.grad(loss(by_hand), argnums=(0, 1, 2))(weights, memory["h"], x)
    jax.tree.map(lambda one, other: np.testing.assert_allclose(one, other, rtol=2e-4, atol=1e-5), found, expected)
    assert not np.any(found[1][1])  # environment 1 resets at once: its first memory does not matter
    assert np.all(found[1][0] != 0)


def test_sequences_of_a_trajectory_reset_after_a_step_that_only_reset():
    valid = np.array([[True, False], [False, True], [True, False]])
    zeros = np.zeros((3, 2), np.float32)
    observation, memory = np.arange(8).reshape(4, 2), np.ones((1, 2, H))
    trajectory = Trajectory(
        observation, zeros, zeros, zeros > 0, valid, zeros, np.zeros((4, 2)), zeros.astype(np.int32), memory
    )
    sequences = Sequences.of(trajectory)
    assert sequences.reset.T.tolist() == [[False, False, True, False], [False, True, False, True]]
    assert sequences.before_the_last.observation.tolist() == observation[:-1].tolist()
    assert sequences.before_the_last.memory is memory


def test_a_step_that_changes_its_memory_is_refused(problem):
    _, memory, initial, x, reset = problem
    with pytest.raises(TypeError, match=r"the memory after a step is \{'h': 'float32\[3, 8\]'.*expected"):
        unroll(lambda m, x: (m | {"h": jnp.zeros((B, 2 * H))}, x), memory, x, reset, initial=initial)
