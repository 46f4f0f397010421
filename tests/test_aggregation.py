"""Aggregators, against queues in plain Python; and optimizer steps, against loops."""

import functools
import math
from collections.abc import Callable
from typing import NamedTuple

import jax
import jax.numpy as jnp
import jaxtyping
import numpy as np
import optax
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from stellaris import (
    Aggregator,
    Update,
    apply_update,
    fully_asynchronous,
    scale_by_staleness,
    staleness_aware,
    staleness_weight,
    synchronous,
)

LEARNERS = 3
LIKE = {"w": jnp.zeros(2), "b": jnp.zeros(())}


def gradient(number):
    """A tree unlike that of any other small number; exact in float32."""
    return {"w": np.array([number, 1 - number], np.float32), "b": np.float32(number**2 % 7)}


def close(got, want, tolerance=1e-5):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=1e-6), got, want)


def equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


def jitted(aggregator):
    """The same with every function under jit."""
    return Aggregator(*map(jax.jit, aggregator))


def weighted_mean(weights, trees):
    """`sum(w g) / sum(w)`, leaf by leaf."""
    return jax.tree.map(lambda *g: sum(w * x for w, x in zip(weights, g, strict=True)) / sum(weights), *trees)


def filled(aggregator, versions, start=1):
    """A queue of gradients start, start + 1, ..., one for each version."""
    state = aggregator.init(LIKE)
    for number, version in enumerate(versions, start):
        state = aggregator.push(state, gradient(number), version, learner=number % LEARNERS)
    return state


# ---- models: each aggregator as its documentation tells it, over a list --------------------------------------------


class Model:
    """The queue that all aggregators share."""

    def __init__(self, capacity):
        self.capacity, self.items, self.overflow = capacity, [], False

    def push(self, number, version, learner):
        if len(self.items) < self.capacity:
            self.items.append((number, version))
            self.accepted(learner, version)
        else:
            self.overflow = True

    def pop(self, clock, round):
        """The numbers, stalenesses and weights of the gradients taken."""
        group = self.items[: self.size()]
        del self.items[: self.size()]
        staleness = [clock - version for _, version in group]
        self.applied(round, staleness)
        return [number for number, _ in group], staleness, [self.weight(s) for s in staleness]

    def accepted(self, learner, version): ...
    def applied(self, round, staleness): ...
    def admit(self, learner, clock):
        return True

    def weight(self, staleness):
        return 1.0


class FullyAsynchronous(Model):
    def ready(self, clock, round):
        return bool(self.items)

    def size(self):
        return 1


class Synchronous(Model):
    def __init__(self, n):
        super().__init__(capacity=n)
        self.last = {}

    def ready(self, clock, round):
        return len(self.items) == self.capacity

    def size(self):
        return self.capacity

    def accepted(self, learner, version):
        self.last[learner] = version

    def admit(self, learner, clock):
        return learner not in self.last or clock > self.last[learner]


class StalenessAware(Model):
    def __init__(self, full, capacity, decay, smoothness, max_staleness):
        super().__init__(capacity)
        self.full, self.decay, self.smoothness, self.max_staleness = full, decay, smoothness, max_staleness
        self.history = []

    def threshold(self, round):
        if self.max_staleness is not None:
            return self.max_staleness * self.decay**round if self.max_staleness < math.inf else math.inf
        first = min((k for k, staleness in self.history if staleness > 0), default=math.inf)
        if round <= first:
            return math.inf
        return max(staleness for k, staleness in self.history if k == first) * self.decay**round

    def ready(self, clock, round):
        n = len(self.items)
        total = sum(clock - version for _, version in self.items)
        return n >= self.full or (n > 0 and total / n <= self.threshold(round))

    def size(self):
        return len(self.items)

    def applied(self, round, staleness):
        self.history += [(round, s) for s in staleness]

    def weight(self, staleness):
        return max(staleness, 1) ** (-1 / self.smoothness)


class Case(NamedTuple):
    aggregator: Aggregator
    model: Callable[[], Model]
    sequential: bool = False


def aware(full, capacity=None, *, decay, smoothness, max_staleness, combine):
    aggregator = staleness_aware(
        full, capacity=capacity, decay=decay, smoothness=smoothness, max_staleness=max_staleness, combine=combine
    )
    model = functools.partial(StalenessAware, full, capacity or 2 * full, decay, smoothness, max_staleness)
    return Case(aggregator, model, combine == "sequential")


# Decays are powers of two, so that a mean which equals its threshold does so in any precision.
CASES = {
    "fully asynchronous": Case(fully_asynchronous(capacity=4), functools.partial(FullyAsynchronous, 4)),
    "fully asynchronous, capacity 1": Case(fully_asynchronous(capacity=1), functools.partial(FullyAsynchronous, 1)),
    "synchronous": Case(synchronous(LEARNERS), functools.partial(Synchronous, LEARNERS)),
    "measured, mean": aware(4, 5, decay=0.5, smoothness=3.0, max_staleness=None, combine="mean"),
    "measured, sequential": aware(3, decay=1.0, smoothness=1.0, max_staleness=None, combine="sequential"),
    "threshold 4, mean": aware(3, 3, decay=0.5, smoothness=0.5, max_staleness=4, combine="mean"),
    "threshold 4, sequential": aware(4, decay=0.5, smoothness=3, max_staleness=4.0, combine="sequential"),
    "threshold 0": aware(3, 7, decay=1.0, smoothness=3.0, max_staleness=0, combine="mean"),
    "no threshold": aware(2, decay=0.5, smoothness=math.inf, max_staleness=math.inf, combine="sequential"),
}


@functools.cache
def compiled(name):
    """The case's aggregator, compiled once for all tests."""
    return jitted(CASES[name].aggregator)


class Machine(RuleBasedStateMachine):
    """Any interleaving of pushes, pops and time, on an aggregator under jit and on its model."""

    def __init__(self, name):
        super().__init__()
        self.functions, self.model, self.sequential = compiled(name), CASES[name].model(), CASES[name].sequential
        self.state = self.functions.init(LIKE)
        self.clock = self.round = self.number = 0

    @rule(lag=st.integers(0, 9), learner=st.integers(0, LEARNERS - 1))
    def push(self, lag, learner):
        self.number, version = self.number + 1, max(self.clock - lag, 0)
        self.state = self.functions.push(self.state, gradient(self.number), version, learner=learner)
        self.model.push(self.number, version, learner)

    @rule(clock=st.integers(0, 3), round=st.integers(0, 1))
    def pass_time(self, clock, round):
        self.clock, self.round = self.clock + clock, self.round + round

    @rule()
    def pop_anyway(self):
        """A system that would stall pops whatever there is, perhaps nothing."""
        self.pop()

    @precondition(lambda self: self.model.ready(self.clock, self.round))
    @rule()
    def pop_when_ready(self):
        self.pop()

    def pop(self):
        update, self.state = self.functions.pop(self.state, self.clock, self.round)
        numbers, staleness, weights = self.model.pop(self.clock, self.round)
        n, beyond = len(numbers), self.model.capacity - len(numbers)
        assert update.count == n
        assert update.staleness.tolist() == staleness + [-1] * beyond
        assert update.scale.dtype == jnp.float32
        trees = [gradient(number) for number in numbers]
        nothing = jax.tree.map(np.zeros_like, gradient(0))
        if self.sequential:
            close(update.scale, np.array(weights + [0.0] * beyond))
            close(update.gradient, jax.tree.map(lambda *x: np.stack(x), *trees, *[nothing] * beyond))
        else:
            close(update.scale, sum(weights) / max(n, 1))
            close(update.gradient, weighted_mean(weights, trees) if n else nothing)

    @invariant()
    def agrees(self):
        assert self.state.capacity == self.model.capacity
        assert self.state.count == len(self.model.items)
        assert not self.model.items or np.asarray(self.state.version)[int(self.state.head)] == self.model.items[0][1]
        assert self.state.overflow == self.model.overflow
        assert self.functions.ready(self.state, self.clock, self.round) == self.model.ready(self.clock, self.round)
        for learner in range(LEARNERS):
            admitted = self.functions.admit(self.state, learner, self.clock)
            assert admitted == self.model.admit(learner, self.clock)


@pytest.mark.parametrize("name", CASES)
def test_any_schedule_matches_the_model(name):
    """Order, wrap-around, overflow, readiness, threshold, weights and admission, whatever the schedule."""
    limits = settings(max_examples=25, stateful_step_count=30, deadline=None, derandomize=True)
    run_state_machine_as_test(functools.partial(Machine, name), settings=limits)


# ---- when ----------------------------------------------------------------------------------------------------------


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


def test_threshold_zero_means_fresh_or_full():
    """max_staleness=0 on a random schedule: a group is all fresh, or full."""
    functions, random = compiled("threshold 0"), np.random.default_rng(0)
    state, clock, seen = functions.init(LIKE), 0, set()
    for number in range(60):
        state = functions.push(state, gradient(number), max(clock - int(random.integers(3)), 0), learner=0)
        if functions.ready(state, clock, 0):
            update, state = functions.pop(state, clock, 0)
            fresh, full = int(update.staleness.max()) == 0, int(update.count) == 3
            assert fresh or full
            seen.add((fresh, full))
            clock += 1
    assert {(True, False), (False, True)} <= seen


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


# ---- the queue -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", CASES)
def test_overflow_changes_nothing_else(name):
    """A push into a full queue is lost, and said so for good."""
    aggregator, capacity = compiled(name), CASES[name].model().capacity
    # Half-way round the ring, so that the next slot is one that is taken.
    state = aggregator.pop(filled(aggregator, [0, 0][:capacity]), 1, 0)[1]
    for number in range(capacity - int(state.count)):
        state = aggregator.push(state, gradient(number), 1, learner=0)
    lost = aggregator.push(state, gradient(99), 99, learner=1)
    assert not state.overflow
    assert lost.overflow
    equal(lost._replace(overflow=state.overflow), state)
    assert aggregator.pop(lost, 1, 0)[1].overflow


@pytest.mark.parametrize("name", CASES)
def test_slots_not_taken_never_leak(name):
    """A gradient that was not a number leaves nothing behind once it is popped."""
    aggregator = compiled(name)
    poison = jax.tree.map(lambda x: x + np.float32("nan"), gradient(1))
    update, state = aggregator.pop(aggregator.push(aggregator.init(LIKE), poison, 0, learner=0), 1, 0)
    assert np.isnan(update.gradient["w"]).any()
    update, _ = aggregator.pop(aggregator.push(state, gradient(5), 0, learner=1), 0, 0)
    first = jax.tree.map(lambda g: g[0], update.gradient) if CASES[name].sequential else update.gradient
    equal(first, gradient(5))
    assert all(np.isfinite(g).all() for g in jax.tree.leaves(update.gradient))


@pytest.mark.parametrize("name", ["fully asynchronous", "synchronous", "measured, mean"])
def test_a_donated_state(name):
    """A new state may be donated to push, as the queue of a large policy has to be."""
    push = jax.jit(CASES[name].aggregator.push, donate_argnums=0)
    empty = CASES[name].aggregator.init(LIKE)
    state = push(push(empty, gradient(5), 0, learner=0), gradient(5), 0, learner=0)
    assert (int(state.count), bool(state.overflow)) == (2, False)
    assert empty.gradient["w"].is_deleted()


def test_a_batch_of_queues():
    """vmap over states: three queues with versions of their own, each ready and popped as it would be alone."""
    functions = compiled("threshold 4, mean")
    queues = [filled(functions, versions) for versions in ((0, 7), (5, 5), (1, 0))]
    batch = jax.tree.map(lambda *x: jnp.stack(x), *queues)
    push, ready, pop = (
        jax.jit(jax.vmap(f, in_axes=(0, None, None))) for f in CASES["threshold 4, mean"].aggregator[1:4]
    )
    close(ready(batch, 7, 0), np.array([True, True, False]))  # means 3.5, 2 and 6.5
    for got, alone in (
        (pop(batch, 7, 0), [functions.pop(queue, 7, 0) for queue in queues]),
        (push(batch, gradient(9), 7), [functions.push(queue, gradient(9), 7, learner=0) for queue in queues]),
    ):
        close(got, jax.tree.map(lambda *x: jnp.stack(x), *alone))


@pytest.mark.parametrize("combine", ["mean", "sequential"])
def test_dtypes_are_kept(combine):
    """Gradients, parameters and optimizer states keep their dtypes, and the state its own: also float64's."""
    aggregator = staleness_aware(2, decay=0.5, combine=combine)
    with jax.enable_x64(True):
        params = {"x": jnp.ones(2, jnp.float64), "y": jnp.ones(3, jnp.bfloat16), "z": jnp.ones((), jnp.float32)}
        optimizer = optax.adam(0.1)
        opt_state = optimizer.init(params)
        empty = aggregator.init(params)

        @jax.jit
        def push_pop_apply(state):
            update, state = aggregator.pop(aggregator.push(state, params, 0), 8, 0)
            return update, state, apply_update(optimizer, update, params, opt_state)

        update, state, stepped = push_pop_apply(empty)
        for got, want in ((state, empty), (stepped, (params, opt_state))):
            assert jax.tree.map(lambda x: x.dtype, got) == jax.tree.map(lambda x: x.dtype, want)
        exact = update.gradient["x"] if combine == "mean" else update.gradient["x"][0]
    np.testing.assert_array_equal(exact, np.ones(2))


# ---- weights and steps ---------------------------------------------------------------------------------------------

OPTIMIZERS = {"sgd": optax.sgd(0.1), "momentum": optax.sgd(0.1, momentum=0.9), "adam": optax.adam(0.1)}
PARAMS = {"w": jnp.array([1.0, -2.0]), "b": jnp.float32(3.0)}
GRADIENTS = [gradient(number) for number in range(1, 5)]
STALENESS = [8, 0, 3, 27]


@functools.cache
def group(combine, smoothness=3.0):
    """GRADIENTS of STALENESS, popped together from a ring that has wrapped round."""
    aggregator = jitted(staleness_aware(4, capacity=5, decay=0.5, smoothness=smoothness, combine=combine))
    state = aggregator.pop(filled(aggregator, [0, 0, 0]), 0, 0)[1]
    for tree, staleness in zip(GRADIENTS, STALENESS, strict=True):
        state = aggregator.push(state, tree, 30 - staleness)
    return aggregator.pop(state, 30, 0)[0]


def by_loop(optimizer, gradients, scales):
    """Each gradient through the optimizer, and each step times its scale."""
    params, opt_state = PARAMS, optimizer.init(PARAMS)
    for tree, scale in zip(gradients, scales, strict=True):
        updates, opt_state = optimizer.update(tree, opt_state, params)
        params = jax.tree.map(lambda p, u, scale=scale: p + scale * u, params, updates)
    return params, opt_state


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_mean_is_one_step_of_the_weighted_mean(optimizer):
    """`gradient = sum(w g) / sum(w)`, `scale = sum(w) / n`, for weights 1/2, 1, 3^(-1/3), 1/3."""
    weights = [1 / 2, 1, 3 ** (-1 / 3), 1 / 3]
    update = group("mean")
    assert update.scale.shape == ()
    got = jax.jit(functools.partial(apply_update, optimizer))(update, PARAMS, optimizer.init(PARAMS))
    close(got, by_loop(optimizer, [weighted_mean(weights, GRADIENTS)], [np.mean(weights)]))


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_sequential_is_one_step_each(optimizer):
    """Oldest first, each with its own scale; slots beyond the count do not step, nor age the optimizer."""
    update = group("sequential")
    assert update.scale.shape == (5,)
    got = jax.jit(functools.partial(apply_update, optimizer))(update, PARAMS, optimizer.init(PARAMS))
    close(got, by_loop(optimizer, GRADIENTS, [1 / 2, 1, 3 ** (-1 / 3), 1 / 3]))


@pytest.mark.parametrize("smoothness", [1.0, 3.0])
def test_sequential_is_scale_by_staleness_in_a_chain(smoothness):
    """The aggregator's weight on the step and the transformation's after Adam are the same thing."""
    chain = optax.chain(optax.scale_by_adam(), scale_by_staleness(smoothness), optax.scale(-0.1))
    params, opt_state = PARAMS, chain.init(PARAMS)
    for tree, staleness in zip(GRADIENTS, STALENESS, strict=True):
        updates, opt_state = chain.update(tree, opt_state, params, staleness=jnp.int32(staleness))
        params = optax.apply_updates(params, updates)
    adam = optax.adam(0.1)
    close(apply_update(adam, group("sequential", smoothness), PARAMS, adam.init(PARAMS))[0], params)


@pytest.mark.parametrize("combine", ["mean", "sequential"])
def test_staleness_eight_at_smoothness_three_goes_half_as_far_under_adam(combine):
    """The weight is a factor on the step: on the gradient, Adam would cancel it. Adam's state does not see it."""
    aggregator, adam = staleness_aware(2, decay=0.5, smoothness=3.0, combine=combine), optax.adam(0.1)
    state = aggregator.push(aggregator.init(LIKE), gradient(5), 0)

    @jax.jit
    def stepped(staleness):
        params, opt_state = apply_update(adam, aggregator.pop(state, staleness, 0)[0], PARAMS, adam.init(PARAMS))
        return jax.tree.map(jnp.subtract, params, PARAMS), opt_state

    (whole, fresh), (half, stale) = stepped(0), stepped(8)
    assert abs(whole["w"][0]) > 0.09
    close(half, jax.tree.map(lambda x: x / 2, whole))
    equal(stale, fresh)


@pytest.mark.parametrize("smoothness", [1.0, math.inf])
def test_smoothness_one_is_one_over_staleness_and_infinity_ignores_it(smoothness):
    """A gradient alone scales its step by `1 / max(staleness, 1)`, or by 1; the gradient itself stays as it is."""
    aggregator = jitted(staleness_aware(2, decay=0.5, smoothness=smoothness))
    for staleness in (0, 1, 2, 7, 100):
        update, _ = aggregator.pop(filled(aggregator, [0]), staleness, 0)
        np.testing.assert_allclose(update.scale, 1 / max(staleness, 1) if smoothness == 1.0 else 1.0, rtol=1e-6)
        close(update.gradient, gradient(1), 1e-6)


def test_without_staleness_it_is_synchronous():
    """Fresh gradients weigh exactly 1: the same update, bit for bit, as synchronous descent's."""
    aware, plain = jitted(staleness_aware(3, capacity=3, decay=0.5)), compiled("synchronous")
    updates = [aggregator.pop(filled(aggregator, [4, 4, 4]), 4, 0)[0] for aggregator in (aware, plain)]
    equal(*updates)
    assert updates[0].scale == 1.0


def test_groups_of_one_without_weights_are_fully_asynchronous():
    """Readiness, update and queue agree bit for bit at every push and pop."""
    aware = staleness_aware(1, capacity=4, decay=1.0, smoothness=math.inf, max_staleness=0)
    pair = jitted(aware), compiled("fully asynchronous")
    states = [aggregator.init(LIKE) for aggregator in pair]
    for number in range(5):
        states = [a.push(s, gradient(number), number // 2, learner=0) for a, s in zip(pair, states, strict=True)]
        equal(*(a.ready(s, number, 0) for a, s in zip(pair, states, strict=True)))
        updates, states = zip(*(a.pop(s, number, 0) for a, s in zip(pair, states, strict=True)), strict=True)
        equal(*updates)
        equal(*(s._replace(memory=()) for s in states))
        assert (int(updates[0].count), float(updates[0].scale)) == (1, 1.0)


def test_applying_by_hand():
    """SGD at 0.1: 1 - 0.5 * 0.1 * 2 = 0.9; two of three stacked steps: 0.9 - 1 * 0.1 * 4 = 0.5."""
    sgd, params, staleness = optax.sgd(0.1), np.array([1.0], np.float32), jnp.array([8, 0, -1])
    one = Update(jnp.array([2.0]), jnp.float32(0.5), jnp.int32(1), staleness)
    two = Update(jnp.array([[2.0], [4.0], [9.0]]), jnp.array([0.5, 1.0, 0.0]), jnp.int32(2), staleness)
    close(apply_update(sgd, one, params, sgd.init(params))[0], [0.9])
    close(apply_update(sgd, two, params, sgd.init(params))[0], [0.5])


def test_weights_match_the_public_function():
    """The scales of a sequential group are `staleness_weight`'s."""
    np.testing.assert_array_equal(group("sequential").scale[:4], staleness_weight(jnp.array(STALENESS)))


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (staleness_aware, {"full": 0}, "full=0 is not a positive whole number"),
        (staleness_aware, {"full": 2.5}, r"full=2\.5 is not a positive whole number"),
        (staleness_aware, {"full": 4, "capacity": 3}, "capacity=3 is below full=4"),
        (staleness_aware, {"decay": 0.0}, r"decay=0\.0 lies outside \(0, 1\]"),
        (staleness_aware, {"decay": 1.5}, r"decay=1\.5 lies outside \(0, 1\]"),
        (staleness_aware, {"smoothness": 0.0}, r"smoothness=0\.0 is not positive"),
        (staleness_aware, {"max_staleness": -1}, "max_staleness=-1 is negative"),
        (staleness_aware, {"max_staleness": math.nan}, "max_staleness=nan is negative"),
        (staleness_aware, {"combine": "sum"}, "combine='sum' is neither 'mean' nor 'sequential'"),
        (fully_asynchronous, {"capacity": 0}, "capacity=0 is not a positive whole number"),
        (synchronous, {"n": 0}, "n=0 is not a positive whole number"),
        (synchronous, {"n": -2}, "n=-2 is not a positive whole number"),
    ],
)
def test_errors(make, arguments, message, monkeypatch):
    """Without the run-time type checks, as a user calls it, an error names the argument and its value."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)
    defaults = {"full": 2, "decay": 0.5} if make is staleness_aware else {}
    with pytest.raises(ValueError, match=message):
        make(**(defaults | arguments))
