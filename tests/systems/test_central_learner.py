"""One central learner: with actors that wait for it, and with actors that do not."""

from typing import Any

import jax
import numpy as np
import pytest

from stellaris import IMPACT, IMPALA
from stellaris.runtime.delays import Constant, LogNormal, Mixture
from stellaris.systems import AsynchronousActors, Budget, StalenessControl, Synchronous
from tests.systems import tiny

JITTERY = tiny.deployment(LogNormal(0.01, 0.5), LogNormal(0.1, 0.5))


def test_time_is_the_sum_of_its_parts() -> None:
    """16 steps of 10 ms at once, then 8 gradients of 100 ms, one after the other."""
    result = tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(Constant(0.01), Constant(0.1)))
    published = result.trace.select("published").time
    assert np.diff(published) == pytest.approx(0.16 + tiny.GRADIENTS_A_ROUND * 0.1)


def test_actors_do_not_wait_for_the_learner() -> None:
    """While it learns, actors sample: on the wall of virtual time both overlap, and data comes late."""
    result = tiny.run(AsynchronousActors(tiny.PPO_CONFIG), JITTERY, budget=Budget(steps=32 * 6))
    table = result.trace.invocations()
    actors, learners = (
        [(start, end) for start, end in zip(table.started[of], table.ended[of], strict=True) if not np.isnan(start)]
        for of in (table.function == table.names.index(name) for name in ("actor", "learner"))
    )
    overlapping = [a for a in actors for b in learners if a[0] < b[1] and b[0] < a[1]]
    assert len(overlapping) > 3
    assert max(row.get("lag_oldest", 0) for row in result.history) >= 1
    assert not result.trace.select("staleness").value.any()  # one learner: its gradients are never stale


@pytest.mark.parametrize("pace", [0, 1, 3])
def test_the_pace_bounds_the_lag(pace: int) -> None:
    """Where rollouts take equally long: nothing is older than that many versions, a version being a batch."""
    functions = tiny.deployment(Constant(0.001), Constant(0.1))
    system = AsynchronousActors(tiny.PPO_CONFIG, control=StalenessControl(pace=pace))
    result = tiny.run(system, functions, budget=Budget(steps=32 * 10))
    assert max(row.get("lag_oldest", 0) for row in result.history) == pace
    assert "discarded" not in result.history[-1]


@pytest.mark.slow
def test_a_slow_rollout_may_be_overtaken() -> None:
    """So that the pace alone is no bound on its age; throwing away what is too old is one, and is counted."""
    slow = Mixture((Constant(0.001), Constant(0.2)), (0.9, 0.1))
    functions = tiny.deployment(slow, Constant(0.001))
    budget = Budget(steps=32 * 40)

    def lag(control: StalenessControl) -> tuple[float, float]:
        rows = tiny.run(AsynchronousActors(tiny.PPO_CONFIG, control=control), functions, budget=budget).history
        return max(row.get("lag_oldest", 0) for row in rows), rows[-1].get("discarded", 0)

    paced, discarded = lag(StalenessControl(pace=1))
    assert (paced, discarded) > (1, 0)
    bounded, discarded = lag(StalenessControl(pace=1, discard=1))
    assert bounded <= 1
    assert discarded > 0


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [tiny.PPO_CONFIG, IMPALA(minibatch_size=2), IMPACT(epochs=2, minibatch_size=8)])
def test_in_step_it_is_the_synchronous_system(algorithm: Any) -> None:
    """With pace 0, bit for bit, for any delays: it is the same loop."""
    asynchronous = AsynchronousActors(algorithm, control=StalenessControl(pace=0))
    one, other = (tiny.run(s, JITTERY, budget=Budget(steps=32 * 5)) for s in (asynchronous, Synchronous(algorithm)))
    jax.tree.map(np.testing.assert_array_equal, one.policy, other.policy)
    assert one.history == other.history
    assert one.history[-1]["version"] >= 4
