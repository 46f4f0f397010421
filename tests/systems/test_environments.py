"""A run's environments: made anew as often as is asked, each time with seeds of their own, and closed."""

import pickle

import numpy as np
import pytest

from stellaris.systems.environments import Environments
from tests.systems import tiny

SLOTS = np.arange(3, dtype=np.int32)


def made(seed: int = 0, *, slots: int = 3, grows: bool = False) -> Environments:
    """Three of CartPole, or more."""
    return Environments(tiny.WORKLOAD, slots=slots, seed=seed, threads=1, grows=grows)


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
    (before,) = env._blocks.values()
    env.restart(1)
    assert before._pool is None  # type: ignore[attr-defined]
    env.close()
    assert env._blocks[0]._pool is None  # type: ignore[attr-defined]


def test_those_that_nobody_uses_are_not_made() -> None:
    """With the slots the blocks double; each slot has the seed that it has where all are made at once."""
    growing, whole = made(slots=11, grows=True), made(slots=11)
    everything = whole.reset(np.arange(11, dtype=np.int32))
    sizes = []
    for slot in (0, 2, 3, 4, 10):
        np.testing.assert_array_equal(growing.reset(np.array([slot])), everything[[slot]])
        sizes.append(len(growing._blocks))
    assert sizes == [1, 2, 2, 3, 4]  # the blocks of 0, 2, 4 to 7, and 8 to 10


def test_in_another_process_each_is_made_when_it_is_used() -> None:
    """With the seed that it has here; what was made here does not go there."""
    here = made(slots=5)
    everything = here.reset(np.arange(5, dtype=np.int32))
    there = pickle.loads(pickle.dumps(here))
    assert there._blocks == {}
    assert there.spec == here.spec
    for slot in (3, 1):
        np.testing.assert_array_equal(there.reset(np.array([slot], np.int32)), everything[[slot]])
    assert sorted(there._blocks) == [1, 3]
    there.close()
    with pytest.raises(IndexError, match="is closed"):
        there.reset(np.array([0], np.int32))


def test_blocks_are_stepped_as_one() -> None:
    """Slots of several blocks, in any order."""
    growing, whole = made(slots=6, grows=True), made(slots=6)
    slots = np.array([5, 0, 3, 1], np.int32)
    action = np.array([1, 0, 0, 1])
    for env in (growing, whole):
        env.reset(np.arange(6, dtype=np.int32))
    for _ in range(12):
        for one, other in zip(growing.step(slots, action), whole.step(slots, action), strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(IndexError, match="was made with slots=6"):
        growing.step(np.array([6]), np.array([0]))


def test_what_is_closed_stays_closed() -> None:
    """A body that was late would otherwise make environments that nobody closes."""
    growing = made(slots=4, grows=True)
    growing.close()
    for slot in (0, 3):
        with pytest.raises(IndexError, match="is closed"):
            growing.reset(np.array([slot], np.int32))
