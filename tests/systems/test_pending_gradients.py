"""The aggregator's queue and the tasks of its gradients stay together."""

from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris import fully_asynchronous, staleness_aware
from stellaris.systems.pending_gradients import Computed, PendingGradients
from stellaris.systems.programs import Learned

AGGREGATOR = fully_asynchronous(capacity=4, drop_from=3)


def test_what_is_popped_is_what_was_pushed() -> None:
    """Each gradient leaves with its own task, oldest first, whether it is applied or dropped."""
    pending = PendingGradients(AGGREGATOR.init(jnp.zeros(1)))
    assert not pending
    popped, clock = [], 0
    rng = np.random.default_rng(0)
    for number in range(60):
        version = max(0, clock - int(rng.integers(6)))
        task: Any = (number, version)
        pending.push(AGGREGATOR, Learned(jnp.array([float(number)]), version, {}), Computed(number, task), 0)
        assert len(pending) == int(pending.queue.count)
        while pending and (len(pending) == pending.capacity or rng.random() < 0.3):
            update, dropped, applied = pending.pop(AGGREGATOR, clock, 0)
            for computed, staleness in applied:
                assert staleness == clock - computed.task[1] < 3
                assert update.gradient[0] == computed.invocation
            assert all(clock - one.task[1] >= 3 for one in dropped)
            popped += [one.invocation for one in [*dropped, *(one for one, _ in applied)]]
            assert len(pending) == int(pending.queue.count)
            clock += len(applied)
    assert popped == sorted(popped) == [*range(len(popped))]
    assert len(popped) > 40


def test_a_sequential_update_has_rows_for_few_gradients() -> None:
    """The update of a queue that is mostly empty is much smaller than the queue, and holds every gradient."""
    aggregator = staleness_aware(40, decay=0.9, combine="sequential")
    pending = PendingGradients(aggregator.init(jnp.zeros(2)))
    assert pending.capacity == 80
    for count, rows in ((3, 16), (17, 32), (80, 80)):
        for number in range(1, count + 1):
            task: Any = None
            pending.push(aggregator, Learned(jnp.full(2, float(number)), number, {}), Computed(number, task), 0)
        update, _, applied = pending.pop(aggregator, 90, 0)
        numbers, empty = [*range(1, count + 1)], [0] * (rows - count)
        assert update.gradient.tolist() == [[n, n] for n in [*numbers, *empty]]
        assert update.staleness.tolist() == [90 - n for n in numbers] + [-1 for _ in empty]
        assert len(update.scale) == rows
        assert [one.invocation for one, _ in applied] == numbers
        assert not pending


@dataclass(frozen=True)
class Branching:
    """An aggregator that asks in Python what is known only when it runs."""

    where: str

    def init(self, gradient_like):
        return AGGREGATOR.init(gradient_like)

    def push(self, state, gradient, version, *, learner=0):
        if self.where == "push" and version < 3:
            return state
        return AGGREGATOR.push(state, gradient, version)

    def ready(self, state, clock, round):
        return bool(state.count > 0) if self.where == "ready" else state.count > 0

    def pop(self, state, clock, round):
        return AGGREGATOR.pop(state, int(clock) if self.where == "pop" else clock, round)


@pytest.mark.parametrize("where", ["push", "ready", "pop"])
def test_a_branch_of_python_is_refused_by_name(where) -> None:
    def apply_one(aggregator: Any) -> None:
        task: Any = None
        pending = PendingGradients(aggregator.init(jnp.zeros(1)))
        pending.push(aggregator, Learned(jnp.ones(1), 3, {}), Computed(0, task), 0)
        assert pending.ready(aggregator, 3, 0)
        pending.pop(aggregator, 3, 0)

    message = rf"aggregator=Branching\(where='{where}'\): `{where}` is compiled, .* write jnp\.where"
    with pytest.raises(TypeError, match=message) as failure:
        apply_one(Branching(where))
    assert isinstance(failure.value.__cause__, jax.errors.ConcretizationTypeError)
