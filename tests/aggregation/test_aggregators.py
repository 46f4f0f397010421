"""Stellaris' aggregator by hand, its special cases, and the errors of all makers."""

import dataclasses
import functools
import inspect
import math
from random import Random

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from stellaris import (
    Aggregator,
    apply_update,
    buffered,
    exponential_weight,
    fully_asynchronous,
    polynomial_weight,
    softsync,
    stale_synchronous,
    staleness_aware,
    staleness_weight,
    synchronous,
)
from tests.aggregation.aggregators import (
    CASES,
    LEARNERS,
    LIKE,
    PARAMS,
    QUICK,
    close,
    compiled,
    equal,
    filled,
    gradient,
    jitted,
    weighted_mean,
)


@pytest.mark.parametrize(
    ("versions", "clock", "round", "ready"),
    [
        ([], 0, 0, False),  # nothing to apply
        ([0], 2, 0, True),  # staleness 2 <= 2
        ([0], 3, 0, False),
        ([0, 3], 3, 0, True),  # mean 1.5
        ([0, 2], 4, 0, False),  # mean 3
        ([2], 3, 1, True),  # staleness 1 <= 2 / 2
        ([1], 3, 1, False),
        ([0, 0, 0], 9, 0, True),  # full
        ([0, 0, 0, 0], 9, 9, True),  # more than full
        ([9], 9, 50, True),  # fresh is fresh enough in any round
        ([0, 14], 8, 0, False),  # mean 4: a version from the future is fresh, and makes up for no stale one
    ],
)
def test_ready_by_hand(versions, clock, round, ready):
    """Three learners, threshold 2 halving every round."""
    aggregator = staleness_aware(3, decay=0.5, max_staleness=2)
    assert bool(aggregator.ready(filled(aggregator, versions), clock, round)) is ready


def test_measured_threshold_by_hand():
    """Staleness 0 in round 1, then (3, 16, 4) and (5) in round 2: none until round 2 ends, then 16 / 2^k."""
    aggregator = jitted(staleness_aware(4, decay=0.5))

    def ready(state, staleness, round):
        return bool(aggregator.ready(aggregator.push(state, gradient(1), 0), staleness, round))

    def applied(state, group, round):
        for staleness in group:
            state = aggregator.push(state, gradient(1), 100 - staleness)
        return aggregator.pop(state, 100, round)[1]

    state = aggregator.init(LIKE)
    assert ready(state, 1000, 0)
    state = applied(state, [0], 1)
    assert ready(state, 1000, 2)  # nothing stale was seen yet
    state = applied(applied(state, [3, 16, 4], 2), [5], 2)
    assert ready(state, 1000, 2)  # the round still runs
    for seen in (state, applied(state, [99], 3)):  # what later rounds see changes nothing
        assert [ready(seen, s, 3) for s in (2, 3)] == [True, False]
        assert [ready(seen, s, 4) for s in (1, 2)] == [True, False]


def test_integer_threshold_measured_by_hand():
    """No bound until round 1, the first that is stale, is over; then from int((0 + 3 + 4 + 1) / 4) + 1 = 3: 2, 1, 1."""
    aggregator = compiled("integer, measured")

    def ready(state, staleness, round):
        return bool(aggregator.ready(aggregator.push(state, gradient(1), 0, learner=0), staleness, round))

    def applied(state, group, round):
        for staleness in group:
            state = aggregator.push(state, gradient(1), 100 - staleness, learner=0)
        return aggregator.pop(state, 100, round)[1]

    state = aggregator.init(LIKE)
    assert ready(state, 1000, 0)
    state = aggregator.pop(applied(state, [0, 0], 0), 1000, 0)[1]
    assert ready(state, 1000, 7)  # nothing stale was seen yet, nor anything at all in an empty group
    state = applied(applied(state, [0, 3, 4], 1), [1], 1)
    assert ready(state, 1000, 1)  # the round still runs
    for seen in (state, applied(state, [99], 2), applied(state, [1], 5)):  # what later rounds see changes nothing
        for round, threshold in ((2, 2), (3, 1), (4, 1), (60, 1)):
            assert [ready(seen, s, round) for s in (threshold, threshold + 1)] == [True, False]


@pytest.mark.slow
@pytest.mark.parametrize("combine", ["mean", "sequential"])
@pytest.mark.parametrize(
    ("options", "staleness"),
    [({"weight": functools.partial(exponential_weight, rate=100.0)}, [3, 1]), ({"smoothness": 0.01}, [60, 10**6])],
)
def test_weights_that_underflow(options, staleness, combine):
    """Every weight 0: scale 0, finite everywhere, and a step of nothing; no NaN on the way, under jit or without."""
    aggregator, adam = staleness_aware(2, decay=0.5, combine=combine, **options), optax.adam(0.1)
    compiled_step = jax.jit(functools.partial(apply_update, adam), compiler_options=QUICK)
    push = jax.jit(aggregator.push)
    state = aggregator.init(LIKE)
    for s in staleness:
        state = push(state, gradient(5), 10**6 - s)
    with jax.debug_nans(True):
        for pop in (aggregator.pop, jax.jit(aggregator.pop)):
            update, _ = pop(state, 10**6, 0)
            assert not np.any(update.scale)
            assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(update.gradient))
            params, _ = compiled_step(update, PARAMS, adam.init(PARAMS))
            equal(params, PARAMS)


def test_weights_about_to_underflow():
    """Through the smallest float32 the mean of a group is that of its gradients, or all zero where its scale is."""
    aggregator = jitted(
        staleness_aware(2, capacity=2, decay=0.5, weight=functools.partial(exponential_weight, rate=0.5))
    )
    state, seen = filled(aggregator, [0, 0]), set()
    for clock in range(160, 230, 2):
        update = aggregator.pop(state, clock, 0)[0]
        want = weighted_mean([1, 1], [gradient(1), gradient(2)] if update.scale else [gradient(0), gradient(0)])
        assert update.scale <= math.exp(-79)
        if update.scale:
            close(update.gradient, want)
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(update.gradient))
        seen.add(bool(update.scale))
    assert seen == {True, False}


@pytest.mark.slow
@pytest.mark.parametrize("name", [name for name in CASES if CASES[name].model().capacity >= 3])
def test_without_staleness_it_is_synchronous(name):
    """Fresh gradients weigh exactly 1, by every weight: the same update, bit for bit, as synchronous descent's."""
    aggregator, plain = compiled(name), compiled("synchronous")
    update = aggregator.pop(filled(aggregator, [4, 4, 4]), 4, 0)[0]
    n = int(update.count)
    if CASES[name].sequential:
        equal(update.scale[:n], np.ones(n))
        equal(
            [jax.tree.map(lambda g, i=i: g[i], update.gradient) for i in range(n)], list(map(gradient, range(1, n + 1)))
        )
    elif n == 3:
        equal(update._replace(staleness=update.staleness[:3]), plain.pop(filled(plain, [4, 4, 4]), 4, 0)[0])
    assert np.all(update.scale[:n] if update.scale.ndim else update.scale == 1.0)


def alike(first, second, *, depth):
    """Two aggregators agree bit for bit on 40 random steps, with up to `depth` gradients in the queue; the updates."""
    pair, random, updates = tuple(map(jitted, (first, second))), Random(depth), []
    states = [aggregator.init(LIKE) for aggregator in pair]
    for clock in range(5, 45):
        for _ in range(random.randrange(depth + 1)):
            number, version, learner = random.randrange(99), clock - random.randrange(5), random.randrange(LEARNERS)
            states = [a.push(s, gradient(number), version, learner=learner) for a, s in zip(pair, states, strict=True)]
        equal(*(a.ready(s, clock, 0) for a, s in zip(pair, states, strict=True)))
        for learner in range(LEARNERS):
            equal(*(a.admit(s, learner, clock) for a, s in zip(pair, states, strict=True)))
        (update, one), (other, two) = (a.pop(s, clock, 0) for a, s in zip(pair, states, strict=True))
        equal(update, other)
        equal(one._replace(memory=()), two._replace(memory=()))
        states = [one, two]
        updates.append(jax.device_get(update))
    return updates


OFF = {"decay": 1.0, "smoothness": math.inf, "max_staleness": math.inf}


@pytest.mark.slow
@pytest.mark.parametrize(
    ("first", "second", "depth", "scales"),
    [
        (staleness_aware(1, capacity=4, **OFF), fully_asynchronous(capacity=4), 1, {1.0}),
        (softsync(1), staleness_aware(1, **OFF | {"smoothness": 1.0}), 1, {1.0, 0.5, 0.25}),
        (
            buffered(1, functools.partial(polynomial_weight, power=0.0), capacity=4),
            fully_asynchronous(capacity=4),
            1,
            {0.0, 1.0},
        ),
        (fully_asynchronous(capacity=5, drop_from=10**9), fully_asynchronous(capacity=5), 1, {0.0, 1.0}),
        (stale_synchronous(10**9, LEARNERS, capacity=5), fully_asynchronous(capacity=5), 3, {1.0}),
        (staleness_aware(3, **OFF), staleness_aware(3, **OFF, weight=lambda s: jnp.ones(s.shape)), 3, {1.0}),
        (
            staleness_aware(3, decay=0.5, max_staleness=2),
            staleness_aware(3, decay=0.5, max_staleness=2, smoothness=1.0, weight=staleness_weight),
            3,
            {1.0},
        ),
    ],
    ids=[
        "fully asynchronous",
        "softsync 1",
        "buffered 1",
        "dropping late",
        "unbounded",
        "weights off",
        "weight for smoothness",
    ],
)
def test_special_cases_are_each_other(first, second, depth, scales):
    """Two ways to say the same: readiness, admission, update and queue agree bit for bit."""
    updates = alike(first, second, depth=depth)
    assert scales <= {round(float(update.scale), 4) for update in updates}


AWARE = functools.partial(staleness_aware, group_size=2, decay=0.5)
AHEAD = functools.partial(stale_synchronous, max_lead=1, learners=2)
ASYNCHRONOUS = functools.partial(fully_asynchronous, capacity=2)


@pytest.mark.parametrize(
    ("error", "make", "arguments", "message"),
    [
        (ValueError, AWARE, {"group_size": 0}, "group_size=0 is not a positive whole number"),
        (
            ValueError,
            staleness_aware,
            {"group_size": 4, "decay": 0.5, "capacity": 3},
            "capacity=3 is below group_size=4",
        ),
        (ValueError, AWARE, {"decay": 0.0}, r"decay=0\.0 lies outside \(0, 1\]"),
        (ValueError, AWARE, {"decay": 1.5}, r"decay=1\.5 lies outside \(0, 1\]"),
        (ValueError, AWARE, {"decay": math.nan}, r"decay=nan lies outside \(0, 1\]"),
        (TypeError, AWARE, {"decay": "0.9"}, "decay='0.9' is not a number"),
        (ValueError, AWARE, {"smoothness": 0.0}, r"smoothness=0\.0 is not positive"),
        (TypeError, AWARE, {"smoothness": None}, "smoothness=None is not a number"),
        (ValueError, AWARE, {"max_staleness": -1}, "max_staleness=-1 is negative"),
        (ValueError, AWARE, {"max_staleness": math.nan}, "max_staleness=nan is negative"),
        (TypeError, AWARE, {"max_staleness": "4"}, "max_staleness='4' is not a number"),
        (ValueError, AWARE, {"combine": "sum"}, "combine='sum' is neither 'mean' nor 'sequential'"),
        (ValueError, AWARE, {"threshold": "int"}, "threshold='int' is neither 'decay' nor 'demo'"),
        (ValueError, AWARE, {"threshold": ["decay"]}, r"threshold=\['decay'\] is neither"),
        (TypeError, AWARE, {"weight": 0.5}, r"weight=0\.5 is not a function of staleness"),
        (ValueError, synchronous, {"group_size": -2}, "group_size=-2 is not a positive whole number"),
        (ValueError, synchronous, {"group_size": "2"}, "group_size='2' is not a positive whole number"),
        (ValueError, synchronous, {"group_size": None}, "group_size=None is not a positive whole number"),
        (ValueError, synchronous, {"group_size": 2.0}, r"group_size=2\.0 is not a positive whole number"),
        (ValueError, softsync, {"group_size": 1.5}, r"group_size=1\.5 is not a positive whole number"),
        (ValueError, softsync, {"group_size": 3, "capacity": 2}, "capacity=2 is below group_size=3"),
        (ValueError, buffered, {"group_size": 0}, "group_size=0 is not a positive whole number"),
        (ValueError, buffered, {"group_size": 3, "capacity": 2}, "capacity=2 is below group_size=3: the queue could"),
        (TypeError, buffered, {"group_size": 2, "weight": 0.5}, r"weight=0\.5 is not a function of staleness"),
        (ValueError, AHEAD, {"max_lead": -1}, "max_lead=-1 is negative"),
        (TypeError, AHEAD, {"max_lead": "1"}, "max_lead='1' is not a number"),
        (ValueError, AHEAD, {"learners": 1.5}, r"learners=1\.5 is not a positive whole number"),
        (ValueError, AHEAD, {"capacity": 0}, "capacity=0 is not a positive whole number"),
        (ValueError, ASYNCHRONOUS, {"capacity": 0}, "capacity=0 is not a positive whole number"),
        (ValueError, ASYNCHRONOUS, {"drop_from": 0}, "drop_from=0 is not positive"),
        (ValueError, ASYNCHRONOUS, {"drop_from": math.nan}, "drop_from=nan is not positive"),
        (TypeError, ASYNCHRONOUS, {"drop_from": 2.5}, "drop_from has dtype float32: expected int"),
        (TypeError, ASYNCHRONOUS, {"drop_from": math.inf}, "drop_from has dtype float32"),
        (TypeError, ASYNCHRONOUS, {"drop_from": "2"}, "drop_from='2' is not a number"),
        (TypeError, ASYNCHRONOUS, {"drop_from": np.ones(2, int)}, r"drop_from has shape \(2,\)"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_settings_out_of_their_range(error, make, arguments, message):
    """Found when the aggregator is made; the error names the argument and its value."""
    with pytest.raises(error, match=f"^{message}"):
        make(**arguments)


@pytest.mark.parametrize(
    ("error", "make", "changes", "message"),
    [
        (ValueError, AWARE, {"group_size": 0}, "group_size=0 is not a positive whole number"),
        (ValueError, AWARE, {"capacity": 1}, "capacity=1 is below group_size=2"),
        (ValueError, AWARE, {"decay": 1.5}, r"decay=1\.5 lies outside \(0, 1\]"),
        (ValueError, AWARE, {"smoothness": -3.0}, r"smoothness=-3\.0 is not positive"),
        (ValueError, AWARE, {"max_staleness": math.nan}, "max_staleness=nan is negative"),
        (ValueError, AWARE, {"combine": "sum"}, "combine='sum' is neither 'mean' nor 'sequential'"),
        (ValueError, AWARE, {"threshold": "int"}, "threshold='int' is neither 'decay' nor 'demo'"),
        (ValueError, functools.partial(softsync, 2), {"group_size": 5}, "capacity=4 is below group_size=5"),
        (ValueError, functools.partial(synchronous, 2), {"group_size": 0}, "group_size=0 is not a positive"),
        (ValueError, AHEAD, {"max_lead": -1}, "max_lead=-1 is negative"),
        (ValueError, AHEAD, {"max_lead": 1.0}, r"max_lead=1\.0 is not a whole number"),
        (ValueError, AHEAD, {"learners": 0}, "learners=0 is not a positive whole number"),
        (ValueError, AHEAD, {"capacity": 0}, "capacity=0 is not a positive whole number"),
        (ValueError, ASYNCHRONOUS, {"capacity": 0}, "capacity=0 is not a positive whole number"),
        (ValueError, ASYNCHRONOUS, {"drop_from": 0}, "drop_from=0 is not positive"),
        (TypeError, ASYNCHRONOUS, {"drop_from": 2.5}, "drop_from has dtype float32"),
    ],
)
@pytest.mark.usefixtures("unchecked")
def test_a_setting_is_not_replaced_by_one_out_of_its_range(error, make, changes, message):
    with pytest.raises(error, match=f"^{message}"):
        dataclasses.replace(make(), **changes)


@pytest.mark.parametrize("make", [AWARE, AHEAD, ASYNCHRONOUS, functools.partial(synchronous, 2)])
def test_versions_and_rounds_are_whole(make, unchecked):
    """A fraction would change staleness and the threshold without a word."""
    aggregator = make()
    state = aggregator.push(aggregator.init(LIKE), gradient(1), 0, learner=0)
    with pytest.raises(TypeError, match=r"^version=0\.5 has dtype float32: expected a whole number"):
        aggregator.push(state, gradient(1), 0.5, learner=1)
    with pytest.raises(TypeError, match=r"^clock=1\.5 has dtype float32: expected a whole number"):
        aggregator.pop(state, 1.5, 0)


def test_rounds_of_a_threshold_are_whole(unchecked):
    aggregator = AWARE()
    state = aggregator.push(aggregator.init(LIKE), gradient(1), 0)
    for method in (aggregator.ready, aggregator.pop):
        with pytest.raises(TypeError, match=r"^round=0\.5 has dtype float32: expected a whole number"):
            method(state, 0, 0.5)


@pytest.mark.parametrize("make", [AWARE, AHEAD, ASYNCHRONOUS, functools.partial(synchronous, 2)])
def test_a_pair_in_place_of_a_state(make, unchecked):
    """`pop` returns the update and the state; to pass both on is a likely mistake."""
    aggregator = make()
    pair = aggregator.pop(aggregator.push(aggregator.init(LIKE), gradient(1), 0, learner=0), 0, 0)
    with pytest.raises(TypeError, match=r"^state is a tuple: expected what init or push returned, or the second value"):
        aggregator.push(pair, gradient(1), 0, learner=0)


@pytest.mark.parametrize(
    "aggregator", [synchronous(2), stale_synchronous(1, 2), fully_asynchronous(capacity=4, drop_from=3)], ids=repr
)
def test_a_restored_state_of_numpy_arrays(aggregator):
    state = aggregator.push(aggregator.init(LIKE), gradient(1), 0, learner=0)
    restored = jax.tree.map(np.asarray, state)
    admitted = [
        jax.vmap(lambda learner, of=of: aggregator.admit(of, learner, 1))(jnp.arange(2)) for of in (state, restored)
    ]
    ready = [jax.jit(lambda clock, of=of: aggregator.ready(of, clock, 0))(jnp.int32(1)) for of in (state, restored)]
    assert (admitted[0] == admitted[1]).all()
    assert ready[0] == ready[1]


def test_the_sum_of_large_ages_does_not_wrap():
    aggregator = staleness_aware(8, decay=1.0, max_staleness=10.0)
    state = aggregator.init(LIKE)
    for i in range(4):
        state = aggregator.push(state, gradient(i), 0)
    assert not aggregator.ready(state, 2**30, 0)


def test_a_version_that_never_was(unchecked):
    aggregator = fully_asynchronous(capacity=2)
    with pytest.raises(ValueError, match="version=-1 is negative"):
        aggregator.push(aggregator.init(LIKE), gradient(1), -1)


@pytest.mark.parametrize(
    "aggregator",
    [softsync(2), synchronous(3), stale_synchronous(2, learners=3), staleness_aware(3, decay=0.9)],
    ids=repr,
)
def test_help_on_a_method(aggregator):
    """An aggregator's methods have the protocol's docstrings."""
    for method in ("init", "push", "ready", "pop", "admit"):
        assert inspect.getdoc(getattr(aggregator, method)) == inspect.getdoc(getattr(Aggregator, method))
