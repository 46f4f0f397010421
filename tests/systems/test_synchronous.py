"""The synchronous system: actors wait for the learner, and the learner for all actors."""

import numpy as np
import pytest

from stellaris.runtime.delays import Constant, LogNormal
from stellaris.systems import Budget, Synchronous
from tests.systems import tiny

JITTERY = tiny.deployment(LogNormal(0.01, 0.5), LogNormal(0.1, 0.5))


def test_there_is_a_barrier() -> None:
    """All actors start when a version is published, and the learner when the last of them has ended."""
    trace = tiny.run(Synchronous(tiny.PPO_CONFIG), JITTERY).trace
    submitted = trace.select("submitted", function="actor").time
    starts = np.unique(submitted)
    assert len(starts) == len(submitted) / tiny.WORKLOAD.actors
    assert set(starts) <= set(trace.select("published").time)
    ends = trace.select("completed", function="actor").time
    learners = trace.select("submitted", function="learner").time
    rounds = ends[: len(learners) * tiny.WORKLOAD.actors].reshape(-1, tiny.WORKLOAD.actors)
    np.testing.assert_array_equal(learners, rounds.max(axis=1))


def test_time_is_the_sum_of_its_parts() -> None:
    """16 steps of 10 ms at once, then 8 gradients of 100 ms, one after the other."""
    result = tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(Constant(0.01), Constant(0.1)))
    published = result.trace.select("published").time
    assert np.diff(published) == pytest.approx(0.16 + tiny.GRADIENTS_A_ROUND * 0.1)


def test_nothing_is_stale() -> None:
    """Every gradient is computed on the version that it is applied to, and all data is of the version before it."""
    result = tiny.run(Synchronous(tiny.PPO_CONFIG), JITTERY, budget=Budget(steps=32 * 6))
    staleness = result.trace.select("staleness").value
    assert len(staleness) >= 5 * tiny.GRADIENTS_A_ROUND
    assert not staleness.any()
    assert all(row.get("data_lag_max", 0.0) == 0.0 for row in result.history)
