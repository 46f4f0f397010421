"""Aggregators besides Stellaris' by hand and against loops: groups, what is dropped, and who is admitted."""

import functools
import math
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    apply_update,
    buffered,
    fully_asynchronous,
    synchronous,
)
from tests.aggregation.aggregators import CASES, LIKE, close, compiled, equal, gradient, jitted


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


def test_stale_synchronous_admission_by_hand():
    """A learner's pushes less the fewest of any: at most 2 to be admitted; what was lost was not pushed."""
    aggregator = compiled("stale synchronous, lead 2")
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
    lockstep = compiled("stale synchronous, lead 0")
    state = lockstep.push(lockstep.init(LIKE), gradient(1), 0, learner=1)
    assert [bool(lockstep.admit(state, i, 9)) for i in range(3)] == [True, False, True]


@pytest.mark.parametrize("name", ["synchronous", "stale synchronous, lead 2"])
@pytest.mark.parametrize("learner", [-1, 3, np.int64(7), jnp.int32(3)])
@pytest.mark.usefixtures("unchecked")
def test_a_learner_that_does_not_exist(name, learner):
    """It neither pushes nor is admitted; under jit too, as long as it is a number there."""
    aggregator = CASES[name].aggregator
    state = compiled(name).init(LIKE)
    for call in (
        lambda: aggregator.admit(state, learner, 1),
        lambda: aggregator.push(state, gradient(1), 0, learner=learner),
        lambda: jax.jit(functools.partial(aggregator.push, learner=learner))(state, gradient(1), 0),
    ):
        with pytest.raises(IndexError, match=f"learner={learner} does not exist: the 3 learners are numbered from 0"):
            call()


# ---- buffered aggregation -------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "rate", "arrivals", "want"),
    [
        ("buffered, 3", 0.3, [(6.0, 0), (4.0, 3), (6.0, 8)], 0.0),  # 1 - 0.3 * (6 + 4 / 2 + 6 / 3) / 3
        ("softsync, 3", 0.1, [(6.0, 0), (4.0, 2), (5.0, 5)], 0.7),  # 1 - 0.1 * (6 / 1 + 4 / 2 + 5 / 5) / 3
    ],
)
def test_a_group_by_hand(name, rate, arrivals, want):
    """Three gradients and their staleness through SGD; the fourth waits."""
    aggregator, sgd, params = compiled(name), optax.sgd(rate), jax.tree.map(jnp.ones_like, LIKE)
    state = aggregator.init(LIKE)
    for number, staleness in (*arrivals, (1000.0, 0)):
        assert bool(aggregator.ready(state, 10, 0)) == (number == 1000.0)
        tree = {"w": np.array([number, -number], np.float32), "b": np.float32(0)}
        state = aggregator.push(state, tree, 10 - staleness, learner=0)
    update, state = aggregator.pop(state, 10, 0)
    close(apply_update(sgd, update, params, sgd.init(params))[0], {"w": np.array([want, 2 - want]), "b": 1.0})
    assert (int(update.count), int(update.dropped), int(state.count)) == (3, 0, 1)
    assert update.staleness.tolist() == [staleness for _, staleness in arrivals] + [-1] * 3


@pytest.mark.parametrize("k", [1, 2, 5])
def test_a_buffered_server_is_fedbuffs(k):
    """A server that steps by the mean of `s(delta) * gradient` over each group, in Python's floats, at random times."""
    random, rate = np.random.default_rng(k), 0.3
    gradients = random.normal(size=(12 * k, 3))
    with jax.enable_x64(True):
        aggregator, sgd = jitted(buffered(k)), optax.sgd(rate)
        params = jnp.array([1.0, -2.0, 0.5])
        state, want = aggregator.init(params), params.tolist()
        for clock, group in enumerate(np.split(gradients, 12)):
            versions = [max(clock - int(age), 0) for age in random.integers(0, 9, k)]
            for row, version in zip(group, versions, strict=True):
                assert not aggregator.ready(state, clock, 0)
                state = aggregator.push(state, row, version)
            assert aggregator.ready(state, clock, 0)
            update, state = aggregator.pop(state, clock, 0)
            params, _ = apply_update(sgd, update, params, sgd.init(params))
            for j in range(3):
                weighted = [g[j] / math.sqrt(1 + clock - v) for g, v in zip(group.tolist(), versions, strict=True)]
                want[j] -= rate * math.fsum(weighted) / k
            np.testing.assert_allclose(params, want, rtol=1e-12)


# ---- gradients that are dropped --------------------------------------------------------------------------------------


def test_dropping_by_hand():
    """From a staleness of 3 on: two are dropped before one is applied, and one behind it later; then there is none."""
    aggregator = compiled("dropping from 3")
    state = aggregator.init(LIKE)
    for number, version in ((1, 2), (2, 0), (3, 3), (4, 1)):
        state = aggregator.push(state, gradient(number), version, learner=0)
    assert [bool(aggregator.ready(state, clock, 0)) for clock in (3, 5, 6)] == [True, True, True]  # at 6: it is full
    update, state = aggregator.pop(state, 5, 0)  # staleness 3 and 5, then 2
    close(update.gradient, gradient(3))
    assert (int(update.dropped), int(update.count), float(update.scale)) == (2, 1, 1.0)
    assert update.staleness.tolist() == [2, -1, -1, -1]
    assert not aggregator.ready(state, 6, 0)
    state = aggregator.push(state, gradient(5), 6, learner=0)
    assert aggregator.ready(state, 6, 0)  # behind one that is too stale
    state = aggregator.push(state, gradient(6), 0, learner=0)
    update, state = aggregator.pop(state, 6, 0)
    close(update.gradient, gradient(5))
    assert (int(update.dropped), int(state.count)) == (1, 1)
    update, state = aggregator.pop(state, 6, 0)  # nothing is fresh enough
    assert (int(update.dropped), int(update.count), float(update.scale), int(state.count)) == (1, 0, 0.0, 0)
    equal(update.gradient, jax.tree.map(np.zeros_like, gradient(0)))
    assert update.staleness.tolist() == [-1] * 4
    update, state = aggregator.pop(state, 6, 0)
    assert (int(update.dropped), int(update.count), int(state.count)) == (0, 0, 0)
    assert not aggregator.ready(state, 6, 0)


def arrivals(random, workers, steps):
    """The order in which workers deliver: some are much slower than others."""
    speed = [random.choice((1.0, 3.0, 20.0)) for _ in range(workers)]
    due = [(random.expovariate(1 / s), i) for i, s in enumerate(speed)]
    for _ in range(steps):
        time, worker = min(due)
        due[worker] = time + random.expovariate(1 / speed[worker]), worker
        yield worker


def ringmaster(order, workers, bound, rate, start, slope):
    """The server's loop: what arrives is applied if fewer than R updates came since, and else ignored.

    Each worker goes on from the newest parameters; only what is applied advances the counter.
    """
    x, k, ignored = list(start), 0, 0
    begun = [(0, list(start))] * workers
    for worker in order:
        then, point = begun[worker]
        if k - then < bound:
            x = [a - rate * slope(b) for a, b in zip(x, point, strict=True)]
            k += 1
        else:
            ignored += 1
        begun[worker] = k, list(x)
    return x, k, ignored


@pytest.mark.slow
@pytest.mark.parametrize("bound", [1, 2, 4, None])
def test_a_dropping_server_is_ringmasters(bound):
    """Random arrivals of seven workers: the same parameters, as many updates, and as many that were ignored."""
    workers, rate, start = 7, 0.02, (1.0, -2.0, 0.5)
    slope = lambda a: 2.0 * a + math.sin(3.0 * a)  # noqa: E731
    with jax.enable_x64(True):
        aggregator = jitted(fully_asynchronous(capacity=workers, drop_from=bound))
        sgd, total = optax.sgd(rate), 0
        for seed in range(3):
            order = list(arrivals(Random(seed), workers, 80))
            x, k, ignored = ringmaster(order, workers, bound or math.inf, rate, start, slope)
            params, clock, dropped = np.array(start), 0, 0
            state, begun = aggregator.init(params), [(0, params)] * workers
            for worker in order:
                then, point = begun[worker]
                state = aggregator.push(state, np.array([slope(a) for a in point.tolist()]), then, learner=worker)
                ready = bool(aggregator.ready(state, clock, 0))
                update, state = aggregator.pop(state, clock, 0)
                assert ready == bool(update.count)
                params = np.asarray(apply_update(sgd, update, params, sgd.init(params))[0])
                clock, dropped = clock + int(update.count), dropped + int(update.dropped)
                begun[worker] = clock, params
            assert (clock, dropped) == (k, ignored)
            np.testing.assert_allclose(params, x, rtol=1e-12)
            total += ignored
    assert (total > 0) == (bound is not None)
