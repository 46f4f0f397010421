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
    Update,
    apply_update,
    buffered,
    fully_asynchronous,
    polynomial_weight,
    softsync,
    stale_synchronous,
    staleness_weight,
    synchronous,
)
from tests.aggregation.aggregators import CASES, LIKE, QUICK, close, compiled, equal, gradient, jitted
from tests.aggregation.test_aggregators import alike


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


@pytest.mark.parametrize("group_size", [1, 4, 7])
def test_softsync_groups_by_hand(group_size):
    """Ready with one group, not before; room for two."""
    state = softsync(group_size).init(np.zeros((), np.float32))
    assert state.capacity == 2 * group_size
    ready = [bool(softsync(group_size).ready(state._replace(count=jnp.int32(k)), 0, 0)) for k in range(2 * group_size)]
    assert ready == [k >= group_size for k in range(2 * group_size)]


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


def test_stale_synchronous_default_capacity():
    """Documented: `2 * learners`."""
    assert stale_synchronous(1, 3).init(LIKE).capacity == 6


@pytest.mark.parametrize("name", ["synchronous", "stale synchronous, lead 2"])
@pytest.mark.parametrize("learner", [-1, 3, np.int64(7)])
@pytest.mark.usefixtures("unchecked")
def test_a_learner_that_does_not_exist(name, learner):
    """Under jit too, as long as it is a number there."""
    push, state = CASES[name].aggregator.push, compiled(name).init(LIKE)
    for function in (push, lambda *args, learner: jax.jit(functools.partial(push, learner=learner))(*args)):
        with pytest.raises(IndexError, match=f"learner={learner} does not exist: the 3 learners are numbered from 0"):
            function(state, gradient(1), 0, learner=learner)


@pytest.mark.parametrize("name", ["synchronous", "stale synchronous, lead 2"])
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
        with pytest.raises(IndexError, match="does not exist: the 3 learners"):
            call()


# ---- buffered aggregation -------------------------------------------------------------------------------------------


def test_buffered_by_hand():
    """Staleness 0, 3 and 8 through SGD at 0.3: 1 - 0.3 * (6 + 4 / 2 + 6 / 3) / 3 = 0; the fourth waits."""
    aggregator, sgd, params = compiled("buffered, 3"), optax.sgd(0.3), jax.tree.map(jnp.ones_like, LIKE)
    state = aggregator.init(LIKE)
    for number, version in ((6.0, 10), (4.0, 7), (6.0, 2), (1000.0, 10)):
        assert bool(aggregator.ready(state, 10, 0)) == (number == 1000.0)
        tree = {"w": np.array([number, -number], np.float32), "b": np.float32(0)}
        state = aggregator.push(state, tree, version, learner=0)
    update, state = aggregator.pop(state, 10, 0)
    close(apply_update(sgd, update, params, sgd.init(params))[0], {"w": np.array([0.0, 2.0]), "b": 1.0})
    assert (int(update.count), update.staleness.tolist(), int(update.dropped)) == (3, [0, 3, 8, -1, -1, -1], 0)
    assert int(state.count) == 1


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


def test_what_buffered_is_at_its_bounds():
    """One gradient without a weight is fully asynchronous; a weight of 1 / staleness is softsync: bit for bit."""
    alone = buffered(1, functools.partial(polynomial_weight, power=0.0), capacity=4)
    assert {float(update.scale) for update in alike(alone, fully_asynchronous(capacity=4), depth=1)} == {0.0, 1.0}
    over = buffered(3, functools.partial(staleness_weight, smoothness=1.0))
    assert over == softsync(3)
    assert hash(over) == hash(softsync(3))
    assert buffered(2, capacity=8) == buffered(2, polynomial_weight, capacity=8) != softsync(2, capacity=8)


def test_settings_of_a_buffer_are_swept():
    """By vmap over the power of its weight: a group of staleness 3 and 0 at powers 0, 1/2 and 1."""

    def popped(power):
        aggregator = buffered(2, functools.partial(polynomial_weight, power=power))
        state = aggregator.init(jnp.zeros(1))
        for number, version in ((4.0, 0), (1.0, 3)):
            state = aggregator.push(state, jnp.array([number]), version)
        update, _ = aggregator.pop(state, 3, 0)
        return update.gradient * update.scale

    got = jax.jit(jax.vmap(popped))(jnp.array([0.0, 0.5, 1.0]))
    np.testing.assert_allclose(got, [[2.5], [1.5], [1.0]], rtol=1e-6)


# ---- gradients that are dropped --------------------------------------------------------------------------------------


def test_dropping_by_hand():
    """From a staleness of 3 on: two are dropped before one is applied, and one behind it later; then there is none."""
    aggregator = compiled("dropping from 3")
    state = aggregator.init(LIKE)
    for number, version in ((1, 2), (2, 0), (3, 3), (4, 1)):
        state = aggregator.push(state, gradient(number), version, learner=0)
    assert [bool(aggregator.ready(state, clock, 0)) for clock in (3, 5, 6)] == [True, True, False]
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


@pytest.mark.parametrize("drop_from", [10**9, np.int64(2**31 - 1)])
def test_dropping_from_far_away_is_dropping_nothing(drop_from, unchecked):
    """Bit for bit what it is without a bound."""
    updates = alike(fully_asynchronous(capacity=5, drop_from=drop_from), fully_asynchronous(capacity=5), depth=1)
    assert {int(update.dropped) for update in updates} == {0}
    assert {int(update.count) for update in updates} == {0, 1}


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


@pytest.mark.parametrize("bound", [1, 2, 5])
def test_a_queue_of_a_dropping_server_is_looked_at_in_order(bound):
    """Where several arrive at once, popping while it is ready is the server's loop, one after the other."""
    functions = jitted(fully_asynchronous(capacity=6, drop_from=bound))
    for seed in range(4):
        random, clock, k, ignored, dropped = Random(seed), 9, 9, 0, 0
        state = functions.init(np.float32(0))
        for _ in range(20):
            versions = [max(clock - random.randrange(8), 0) for _ in range(random.randrange(7))]
            for version in versions:
                state = functions.push(state, np.float32(1), version, learner=0)
            applied = []
            while functions.ready(state, clock, 0):
                update, state = functions.pop(state, clock, 0)
                applied += update.staleness[: int(update.count)].tolist()
                clock, dropped = clock + 1, dropped + int(update.dropped)
            update, state = functions.pop(state, clock, 0)
            dropped += int(update.dropped)
            assert (int(update.count), int(state.count)) == (0, 0)
            want = []
            for version in versions:
                if k - version < bound:
                    want.append(k - version)
                    k += 1
                else:
                    ignored += 1
            assert (applied, clock, dropped) == (want, k, ignored)
        assert ignored > 0


def test_bounds_of_dropping_are_swept():
    """By a stack of aggregators, and by closure: of staleness 5, 2 and 0 at bounds 1, 3 and 9."""

    def popped(aggregator):
        state = aggregator.init(jnp.zeros(1))
        for version in (0, 3, 5):
            state = aggregator.push(state, jnp.ones(1), version)
        update, state = aggregator.pop(state, 5, 0)
        return update.dropped, update.staleness[0], state.count

    made = [fully_asynchronous(capacity=3, drop_from=bound) for bound in (1, 3, 9)]
    stack = jax.tree.map(lambda *numbers: jnp.stack(numbers), *made)
    want = [[2, 1, 0], [0, 2, 5], [0, 1, 2]]
    assert [x.tolist() for x in jax.jit(jax.vmap(popped), compiler_options=QUICK)(stack)] == want
    closure = jax.vmap(lambda bound: popped(fully_asynchronous(capacity=3, drop_from=bound)))
    assert [x.tolist() for x in closure(jnp.array([1, 3, 9]))] == want


def test_what_was_dropped_changes_no_step():
    """The field is a count for the caller: an update is applied as if it were not there, one of none not at all."""
    sgd, params = optax.sgd(0.1, momentum=0.9), jnp.ones(2)
    apply = jax.jit(functools.partial(apply_update, sgd))
    for count in (0, 1):
        some = Update(jnp.ones(2) * count, jnp.float32(count), jnp.int32(count), jnp.array([0 if count else -1, -1]))
        assert some.dropped == 0
        plain, after = (apply(update, params, sgd.init(params)) for update in (some, some._replace(dropped=7)))
        equal(plain, after)
        assert np.any(plain[0] != params) == bool(count)


@pytest.mark.parametrize(
    ("error", "make", "message"),
    [
        (ValueError, lambda: buffered(0), "group_size=0 is not a positive whole number"),
        (ValueError, lambda: buffered(1.5), r"group_size=1\.5 is not a positive whole number"),
        (ValueError, lambda: buffered(3, capacity=2), "capacity=2 is below group_size=3: the queue could never fill"),
        (TypeError, lambda: buffered(2, 0.5), r"weight=0\.5 is not a function of staleness"),
        (ValueError, lambda: fully_asynchronous(capacity=2, drop_from=0), "drop_from=0 is not positive"),
        (ValueError, lambda: fully_asynchronous(capacity=2, drop_from=-3), "drop_from=-3 is not positive"),
        (ValueError, lambda: fully_asynchronous(capacity=2, drop_from=math.nan), "drop_from=nan is not positive"),
        (TypeError, lambda: fully_asynchronous(capacity=2, drop_from=2.5), "drop_from has dtype float32: expected int"),
        (TypeError, lambda: fully_asynchronous(capacity=2, drop_from=math.inf), "drop_from has dtype float32"),
        (TypeError, lambda: fully_asynchronous(capacity=2, drop_from="2"), "drop_from='2' is not a number"),
        (TypeError, lambda: fully_asynchronous(capacity=2, drop_from=np.ones(2, int)), r"drop_from has shape \(2,\)"),
        (ValueError, lambda: fully_asynchronous(capacity=0, drop_from=2), "capacity=0 is not a positive whole number"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_errors_of_buffers_and_bounds(error, make, message):
    """Found when the aggregator is made, by the argument's name."""
    with pytest.raises(error, match=f"^{message}"):
        make()


def test_bounds_compare_by_value(unchecked):
    """NumPy's and JAX's numbers become Python's; another bound is another aggregator."""
    made = [fully_asynchronous(capacity=2, drop_from=number) for number in (3, np.int32(3), jnp.int32(3))]
    assert len(set(made)) == 1
    assert repr(made[2]) == "fully_asynchronous(capacity=2, drop_from=3)"
    assert made[0] != fully_asynchronous(capacity=2, drop_from=4)
    assert made[0] != fully_asynchronous(capacity=2)
