"""A run's environments: made anew as often as is asked, each time with seeds of their own, and closed."""

import numpy as np

from stellaris.systems.environments import Environments
from tests.systems import tiny

SLOTS = np.arange(3, dtype=np.int32)


def made(seed: int = 0) -> Environments:
    """Three of CartPole."""
    return Environments(tiny.WORKLOAD, slots=3, seed=seed, threads=1)


def test_a_restart_has_seeds_of_its_own() -> None:
    """The same ones for the same run and number; others than the start's and than other restarts'."""
    one, other = made(), made()
    first = one.reset(SLOTS)
    np.testing.assert_array_equal(first, other.reset(SLOTS))
    one.restart(1)
    again = one.reset(SLOTS)
    assert np.abs(again - first).min() > 0
    other.restart(1)
    np.testing.assert_array_equal(again, other.reset(SLOTS))
    other.restart(2)
    assert np.abs(other.reset(SLOTS) - again).min() > 0


def test_it_is_a_vector_environment() -> None:
    """Any slots; and what was made before a restart is closed."""
    env = made()
    env.reset(SLOTS)
    step = env.step(SLOTS[[2, 0]], np.array([0, 1]))
    assert step.observation.shape == (2, 4)
    before = env._env
    env.restart(1)
    assert before._pool is None  # type: ignore[attr-defined]
    env.close()
    assert env._env._pool is None  # type: ignore[attr-defined]
