"""A run's environments: made anew as often as is asked, each time with seeds of their own, and closed."""

import pickle
from dataclasses import replace

import numpy as np
import pytest

from stellaris.lab import CartPole
from stellaris.systems import Workload
from stellaris.systems.environments import Environments
from tests.systems import tiny

SLOTS = np.arange(3, dtype=np.int32)


def made(
    seed: int = 0, *, slots: int = 3, grows: bool = False, spare: int = 0, workload: Workload = tiny.WORKLOAD
) -> Environments:
    return Environments(workload, slots=slots, seed=seed, threads=1, grows=grows, spare=spare)


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


def test_in_another_process_each_is_made_when_it_is_used() -> None:
    """With the seed that it has here; what was made here does not go there."""
    here = made(slots=5)
    everything = here.reset(np.arange(5, dtype=np.int32))
    there = pickle.loads(pickle.dumps(here))
    assert there.spec == here.spec
    for slot in (3, 1):
        np.testing.assert_array_equal(there.reset(np.array([slot], np.int32)), everything[[slot]])
    there.close()
    for slot in (0, 3):  # a body that is late would otherwise make environments that nobody closes
        with pytest.raises(IndexError, match="is closed"):
            there.reset(np.array([slot], np.int32))


def test_blocks_are_stepped_as_one() -> None:
    """Slots of several blocks, in any order: each has the seed that it has where all are made at once."""
    growing, whole = made(slots=6, grows=True), made(slots=6)
    slots = np.array([5, 0, 3, 1], np.int32)
    action = np.array([1, 0, 0, 1])
    everything = whole.reset(np.arange(6, dtype=np.int32))
    for slot in (0, 2, 3, 1, 4, 5):
        np.testing.assert_array_equal(growing.reset(np.array([slot])), everything[[slot]])
    for _ in range(12):
        for one, other in zip(growing.step(slots, action), whole.step(slots, action), strict=True):
            np.testing.assert_array_equal(one, other)
    with pytest.raises(IndexError, match="was made with slots=6"):
        growing.step(np.array([6]), np.array([0]))


@pytest.mark.parametrize("grows", [False, True])
def test_spare_environments_follow_the_others(grows: bool) -> None:
    """In the slots after theirs, with the seeds that they have where all are made at once."""
    spared, whole = made(slots=3, grows=grows, spare=4), made(slots=7)
    everything = whole.reset(np.arange(7, dtype=np.int32))
    for slots in ([0, 2], [6], [5, 1, 3, 4]):
        np.testing.assert_array_equal(spared.reset(np.array(slots, np.int32)), everything[slots])
    with pytest.raises(IndexError, match="was made with slots=7"):
        spared.reset(np.array([7], np.int32))


IN_JAX = replace(tiny.WORKLOAD, environment=CartPole(), restart=True)


@pytest.mark.parametrize("workload", [tiny.WORKLOAD, IN_JAX], ids=["gymnasium", "restart"])
def test_runs_of_consecutive_seeds_have_different_episodes(workload: Workload) -> None:
    """Otherwise the actors of a run would play the episodes of their neighbours in the next run."""
    runs = [made(seed, workload=workload).reset(SLOTS) for seed in range(3)]
    starts = {tuple(row) for run in runs for row in run.tolist()}
    assert len(starts) == 9


def test_slots_of_the_largest_seed_follow_it() -> None:
    """Of an environment in JAX, whose slots count on from the run's seed: in blocks as where all are made at once."""
    workload = replace(tiny.WORKLOAD, environment=CartPole())
    growing, whole = (made(2**31 - 1, grows=grows, workload=workload) for grows in (True, False))
    np.testing.assert_array_equal(growing.reset(SLOTS), whole.reset(SLOTS))
