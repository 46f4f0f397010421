"""Softsync, stale synchronous and synchronous aggregation by hand: groups, and who is admitted."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import apply_update, softsync, stale_synchronous, synchronous
from tests.aggregators import CASES, LIKE, close, compiled, gradient, jitted


def test_synchronous_admission_by_hand():
    """A learner starts once the clock has passed the version of its last gradient; the first time, at once."""
    aggregator = jitted(synchronous(2))
    state = aggregator.init(LIKE)
    assert [bool(aggregator.admit(state, i, 0)) for i in (0, 1)] == [True, True]
    state = aggregator.push(state, gradient(1), 0, learner=1)
    assert [bool(aggregator.admit(state, i, 0)) for i in (0, 1)] == [True, False]
    assert not aggregator.ready(state, 0, 0)
    state = aggregator.push(state, gradient(3), 0, learner=0)
    assert [bool(aggregator.admit(state, i, 0)) for i in (0, 1)] == [False, False]
    assert aggregator.ready(state, 0, 0)
    update, state = aggregator.pop(state, 0, 0)
    close(update.gradient, {"w": np.array([2.0, -1.0]), "b": 1.5})  # the mean of (1, 0; 1) and (3, -2; 2)
    assert [bool(aggregator.admit(state, i, 1)) for i in (0, 1)] == [True, True]


@pytest.mark.parametrize(
    ("n", "learners", "group"),
    [(1, 8, 8), (2, 8, 4), (3, 8, 2), (4, 8, 2), (5, 8, 1), (8, 8, 1), (3, 7, 2), (4, 30, 7), (1, 1, 1), (5, None, 5)],
)
def test_softsync_groups_by_hand(n, learners, group):
    """Groups of `floor(learners / n)`, or of n; ready with one group, not before; room for two."""
    aggregator = softsync(n, learners=learners)
    state = aggregator.init(np.zeros((), np.float32))
    assert state.capacity == 2 * group
    ready = [bool(aggregator.ready(state._replace(count=jnp.int32(k)), 0, 0)) for k in range(2 * group + 1)]
    assert ready == [k >= group for k in range(2 * group + 1)]


def test_softsync_by_hand():
    """Staleness 0, 2 and 5 through SGD at 0.1: 1 - 0.1 * (6 / 1 + 4 / 2 + 5 / 5) / 3 = 0.7; the fourth waits."""
    aggregator, sgd, params = jitted(softsync(3)), optax.sgd(0.1), np.array([1.0, 2.0], np.float32)
    state = aggregator.init(params)
    for number, version in ((6.0, 10), (4.0, 8), (5.0, 5), (1000.0, 10)):
        state = aggregator.push(state, np.array([number, -number], np.float32), version, learner=0)
    update, state = aggregator.pop(state, 10, 0)
    close(apply_update(sgd, update, params, sgd.init(params))[0], [0.7, 2.3])
    update, state = aggregator.pop(state, 14, 0)  # a group of one where it is popped early: 1000 / 4 / 1
    close(update.gradient * update.scale, [250.0, -250.0])
    assert state.count == 0


def test_stale_synchronous_admission_by_hand():
    """A learner's pushes less the fewest of any: at most 2 to be admitted; what was lost was not pushed."""
    aggregator = compiled("stale synchronous, bound 2")
    state = aggregator.init(LIKE)
    for learner, want in (
        (0, [True, True, True]),  # pushes 1 0 0
        (0, [True, True, True]),  # 2 0 0
        (0, [False, True, True]),  # 3 0 0: learner 0 is three ahead
        (1, [False, True, True]),  # 3 1 0: of the slowest, not of the next
        (2, [True, True, True]),  # 3 1 1
        (2, [True, True, True]),  # the queue holds five: lost, still 3 1 1
    ):
        state = aggregator.push(state, gradient(1), 0, learner=learner)
        assert [bool(aggregator.admit(state, i, 0)) for i in range(3)] == want
    assert state.memory.tolist() == [3, 1, 1]
    state = aggregator.pop(state, 1, 0)[1]
    assert state.memory.tolist() == [3, 1, 1]  # a pop is not a push
    lockstep = compiled("stale synchronous, bound 0")
    state = lockstep.push(lockstep.init(LIKE), gradient(1), 0, learner=1)
    assert [bool(lockstep.admit(state, i, 9)) for i in range(3)] == [True, False, True]


def test_stale_synchronous_default_capacity():
    """Documented: `2 * learners`."""
    assert stale_synchronous(1, 3).init(LIKE).capacity == 6


@pytest.mark.parametrize("name", ["synchronous", "stale synchronous, bound 2"])
@pytest.mark.parametrize("learner", [-1, 3, np.int64(7)])
@pytest.mark.usefixtures("unchecked")
def test_a_learner_that_does_not_exist(name, learner):
    """Under jit too, as long as it is a number there."""
    push, state = CASES[name].aggregator.push, compiled(name).init(LIKE)
    for function in (push, lambda *args, learner: jax.jit(functools.partial(push, learner=learner))(*args)):
        with pytest.raises(IndexError, match=f"learner={learner} is none of the 3 learners.*numbered from 0"):
            function(state, gradient(1), 0, learner=learner)


@pytest.mark.parametrize("name", ["synchronous", "stale synchronous, bound 2"])
@pytest.mark.parametrize("learner", [3, jnp.int32(3), jnp.int32(-1)])
@pytest.mark.usefixtures("unchecked")
def test_a_learner_that_does_not_exist_is_never_admitted(name, learner):
    """A number in an array, which JAX would cut off or wrap, is a number, too."""
    aggregator = CASES[name].aggregator
    state = aggregator.init(LIKE)
    for call in (
        lambda: aggregator.admit(state, learner, 1),
        lambda: aggregator.push(state, gradient(1), 0, learner=learner),
    ):
        with pytest.raises(IndexError, match="is none of the 3 learners"):
            call()
