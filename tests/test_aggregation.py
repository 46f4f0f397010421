"""Aggregators, against queues in plain Python; and optimizer steps, against loops."""

import functools
import math
from collections import Counter
from collections.abc import Callable
from random import Random
from types import SimpleNamespace
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
    add_delay_compensation,
    apply_update,
    exponential_weight,
    fully_asynchronous,
    hinge_weight,
    polynomial_weight,
    scale_by_staleness,
    softsync,
    stale_synchronous,
    staleness_aware,
    staleness_weight,
    synchronous,
)

LEARNERS = 3
#: Without LLVM's optimizations, which would take longer than what they optimize.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
LIKE = {"w": jnp.zeros(2), "b": jnp.zeros(())}


def gradient(number):
    """A tree unlike that of any other small number; exact in float32."""
    return {"w": np.array([number, 1 - number], np.float32), "b": np.float32(number**2 % 7)}


def close(got, want, tolerance=1e-5):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=1e-6), got, want)


def equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


METHODS = ("init", "push", "ready", "pop", "admit")


def jitted(aggregator):
    """The same with every method under jit."""
    return SimpleNamespace(**{name: jax.jit(getattr(aggregator, name), compiler_options=QUICK) for name in METHODS})


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


class StaleSynchronous(FullyAsynchronous):
    def __init__(self, bound, learners, capacity):
        super().__init__(capacity)
        self.bound, self.pushes = bound, [0] * learners

    def accepted(self, learner, version):
        self.pushes[learner] += 1

    def admit(self, learner, clock):
        return self.pushes[learner] - min(self.pushes) <= self.bound


class Softsync(Model):
    def __init__(self, group, capacity):
        super().__init__(capacity)
        self.group = group

    def ready(self, clock, round):
        return len(self.items) >= self.group

    def size(self):
        return self.group

    def weight(self, staleness):
        return 1 / max(staleness, 1)


class StalenessAware(Model):
    def __init__(self, full, capacity, decay, smoothness, max_staleness, weight=None):
        super().__init__(capacity)
        self.full, self.decay, self.max_staleness = full, decay, max_staleness
        self.weight = weight or (lambda staleness: max(staleness, 1) ** (-1 / smoothness))
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


class IntegerThreshold(StalenessAware):
    """The threshold of the authors' demo; `max_staleness=None` until the first group that is stale at all."""

    def threshold(self, round):
        if self.max_staleness in (None, math.inf):
            return math.inf
        return min(max(int(self.max_staleness * self.decay ** (round - 1)) + 1, 1), self.max_staleness)

    def applied(self, round, staleness):
        if self.max_staleness is None and sum(staleness) > 0:
            self.max_staleness = int(sum(staleness) / len(staleness)) + 1


class Case(NamedTuple):
    aggregator: Aggregator
    model: Callable[[], Model]
    sequential: bool = False


def aware(full, capacity=None, *, decay, max_staleness, combine, smoothness=3.0, threshold="decay", weight=None):
    """Of `weight`, the first is given to the library, and the second, in Python's floats, to the model."""
    given, modelled = weight or (None, None)
    aggregator = staleness_aware(
        full,
        capacity=capacity,
        decay=decay,
        smoothness=smoothness,
        max_staleness=max_staleness,
        combine=combine,
        threshold=threshold,
        weight=given,
    )
    kind = {"decay": StalenessAware, "integer": IntegerThreshold}[threshold]
    model = functools.partial(kind, full, capacity or 2 * full, decay, smoothness, max_staleness, modelled)
    return Case(aggregator, model, combine == "sequential")


POLYNOMIAL = functools.partial(polynomial_weight, power=1.5), lambda staleness: (staleness + 1) ** -1.5
HINGE = (
    functools.partial(hinge_weight, slope=0.5, bound=2.0),
    lambda staleness: 1 if staleness <= 2 else 1 / (0.5 * (staleness - 2) + 1),
)
EXPONENTIAL = functools.partial(exponential_weight, rate=0.25), lambda staleness: math.exp(-0.25 * staleness)

# Decays are powers of two, so that a mean which equals its threshold does so in any precision.
CASES = {
    "fully asynchronous": Case(fully_asynchronous(capacity=4), functools.partial(FullyAsynchronous, 4)),
    "fully asynchronous, capacity 1": Case(fully_asynchronous(capacity=1), functools.partial(FullyAsynchronous, 1)),
    "synchronous": Case(synchronous(LEARNERS), functools.partial(Synchronous, LEARNERS)),
    "stale synchronous, bound 0": Case(
        stale_synchronous(0, LEARNERS, capacity=1), functools.partial(StaleSynchronous, 0, LEARNERS, 1)
    ),
    "stale synchronous, bound 2": Case(
        stale_synchronous(2, LEARNERS, capacity=5), functools.partial(StaleSynchronous, 2, LEARNERS, 5)
    ),
    "softsync, 1": Case(softsync(1, capacity=3), functools.partial(Softsync, 1, 3)),
    "softsync, 3": Case(softsync(3), functools.partial(Softsync, 3, 6)),
    "softsync, 2 of 5 learners": Case(softsync(2, learners=5), functools.partial(Softsync, 2, 4)),
    "softsync, 1 of 3 learners": Case(softsync(1, learners=3, capacity=3), functools.partial(Softsync, 3, 3)),
    "measured, mean": aware(4, 5, decay=0.5, max_staleness=None, combine="mean"),
    "measured, sequential": aware(3, decay=1.0, smoothness=1.0, max_staleness=None, combine="sequential"),
    "threshold 4, mean": aware(3, 3, decay=0.5, smoothness=0.5, max_staleness=4, combine="mean"),
    "threshold 4, sequential": aware(4, decay=0.5, smoothness=3, max_staleness=4.0, combine="sequential"),
    "threshold 0": aware(3, 7, decay=1.0, max_staleness=0, combine="mean"),
    "no threshold": aware(2, decay=0.5, smoothness=math.inf, max_staleness=math.inf, combine="sequential"),
    "polynomial": aware(3, 4, decay=0.5, max_staleness=3, combine="mean", weight=POLYNOMIAL),
    "hinge": aware(3, decay=0.5, max_staleness=None, combine="mean", weight=HINGE),
    "exponential": aware(4, decay=1.0, max_staleness=2, combine="sequential", weight=EXPONENTIAL),
    "integer, measured": aware(4, 6, decay=0.5, max_staleness=None, combine="mean", threshold="integer"),
    "integer, measured, sequential": aware(
        3, decay=1.0, max_staleness=None, combine="sequential", threshold="integer", weight=POLYNOMIAL
    ),
    "integer 5": aware(5, decay=0.5, max_staleness=5, combine="mean", threshold="integer"),
    "integer, none": aware(2, decay=0.5, max_staleness=math.inf, combine="mean", threshold="integer"),
}
#: One of each kind, where a check compiles anew.
KINDS = [
    "fully asynchronous",
    "synchronous",
    "stale synchronous, bound 2",
    "softsync, 2 of 5 learners",
    "measured, mean",
    "threshold 4, sequential",
    "integer, measured",
]


@functools.cache
def compiled(name):
    """The case's aggregator, compiled once for all tests."""
    return jitted(CASES[name].aggregator)


def oldest(state):
    """What a queue shows of itself: size, overflow, and the version at its head."""
    return state.count, state.overflow, state.version[state.head]


@functools.cache
def observer(name):
    """`oldest`, readiness, and admission of every learner, under one jit."""
    functions = CASES[name].aggregator

    def observe(state, clock, round):
        admitted = [functions.admit(state, learner, clock) for learner in range(LEARNERS)]
        return *oldest(state), functions.ready(state, clock, round), admitted

    return jax.jit(observe, compiler_options=QUICK)


class Machine(RuleBasedStateMachine):
    """Any interleaving of pushes, pops and time, on an aggregator under jit and on its model."""

    def __init__(self, name):
        super().__init__()
        self.functions, self.observe = compiled(name), observer(name)
        self.model, self.sequential = CASES[name].model(), CASES[name].sequential
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
        update = jax.device_get(update)
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
        got = jax.device_get(self.observe(self.state, self.clock, self.round))
        count, overflow, version, ready, admitted = got
        assert self.state.capacity == self.model.capacity
        assert (count, overflow) == (len(self.model.items), self.model.overflow)
        assert not self.model.items or version == self.model.items[0][1]
        assert ready == self.model.ready(self.clock, self.round)
        assert admitted == [self.model.admit(learner, self.clock) for learner in range(LEARNERS)]


@pytest.mark.parametrize("name", CASES)
def test_any_schedule_matches_the_model(name):
    """Order, wrap-around, overflow, readiness, threshold, weights and admission, whatever the schedule."""
    limits = settings(max_examples=10, stateful_step_count=24, deadline=None, derandomize=True)
    run_state_machine_as_test(functools.partial(Machine, name), settings=limits)


class Step(NamedTuple):
    """One step of a schedule: perhaps a push, then time, then perhaps a pop."""

    push: bool
    version: int
    learner: int
    clock: int
    round: int
    pop: bool


class Seen(NamedTuple):
    """What a step shows; `scale` and `gradient` per gradient if sequential, and all zero without a pop."""

    count: int
    overflow: bool
    ready: bool
    admitted: list[bool]
    popped: int
    staleness: list[int]
    scale: float | np.ndarray
    gradient: np.ndarray


#: The gradients of the numbers below 30 as vectors of three.
VECTORS = np.array([[*gradient(number)["w"], gradient(number)["b"]] for number in range(30)])


def modelled(name, random, steps):
    """A random schedule of one model, and what it shows: some pop at once, others let the queue overflow."""
    model, (_, _, sequential), eager = CASES[name].model(), CASES[name], random.choice((0.2, 0.8))
    clock = round = 0
    schedule, seen = [], []
    for number in range(steps):
        push, version, learner = random.random() < 0.75, max(clock - random.randrange(10), 0), random.randrange(3)
        if push:
            model.push(number, version, learner)
        clock, round = clock + random.choice((0, 0, 1, 3)), round + (random.random() < 0.1)
        ready = model.ready(clock, round)
        pop = random.random() < (eager if ready else 0.05)
        numbers, staleness, weights = model.pop(clock, round) if pop else ([], [], [])
        rows = [VECTORS[number] for number in numbers]
        n, beyond = len(numbers), model.capacity - len(numbers)
        if sequential:
            scale, mean = np.array(weights + [0.0] * beyond), np.array(rows + [np.zeros(3)] * beyond)
        else:
            scale, mean = sum(weights) / max(n, 1), np.array(weights) @ rows / sum(weights) if n else np.zeros(3)
        admitted = [model.admit(learner, clock) for learner in range(LEARNERS)]
        schedule.append(Step(push, version, learner, clock, round, pop))
        seen.append(Seen(len(model.items), model.overflow, ready, admitted, n, staleness + [-1] * beyond, scale, mean))
    return schedule, seen


@pytest.mark.parametrize(
    "name", [name for name in CASES if name not in ("fully asynchronous, capacity 1", "no threshold")]
)
def test_many_schedules_at_once_match_the_model(name):
    """200 random schedules of 30 steps each, as one program: a scan over the steps, under vmap over the queues."""
    functions, random = CASES[name].aggregator, Random(name)
    schedules, wanted = zip(*(modelled(name, random, 30) for _ in range(200)), strict=True)
    steps, want = (
        type(rows[0][0])(*(np.array([[row[i] for row in run] for run in rows]) for i in range(len(rows[0][0]))))
        for rows in (schedules, wanted)
    )

    def one(state, x):
        step, g = x
        pushed = functions.push(state, g, step.version, learner=step.learner)
        state = jax.tree.map(functools.partial(jnp.where, step.push), pushed, state)
        ready = functions.ready(state, step.clock, step.round)
        update, popped = functions.pop(state, step.clock, step.round)
        state = jax.tree.map(functools.partial(jnp.where, step.pop), popped, state)
        admitted = jnp.stack([jnp.asarray(functions.admit(state, i, step.clock)) for i in range(LEARNERS)])
        update = jax.tree.map(lambda x: jnp.where(step.pop, x, jnp.zeros_like(x)), update)
        staleness = jnp.where(step.pop, update.staleness, -1)
        return state, Seen(
            state.count, state.overflow, ready, admitted, update.count, staleness, update.scale, update.gradient
        )

    state = functions.init(jnp.zeros(3))
    run = jax.vmap(lambda steps: jax.lax.scan(one, state, (steps, VECTORS))[1])
    got = jax.jit(run, compiler_options=QUICK)(steps)
    for field in Seen._fields:
        np.testing.assert_allclose(getattr(got, field), getattr(want, field), rtol=1e-5, atol=1e-5, err_msg=field)
    assert want.ready.mean() > 0.05
    assert want.overflow.any()


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


def test_integer_threshold_measured_by_hand():
    """None while all is fresh; int((0 + 3 + 4) / 3) + 1 = 3 at once, in the same round; then 3, 3, 2, 1, 1, ..."""
    aggregator = compiled("integer, measured")

    def ready(state, staleness, round):
        return bool(aggregator.ready(aggregator.push(state, gradient(1), 0, learner=0), staleness, round))

    def applied(state, group, round):
        for staleness in group:
            state = aggregator.push(state, gradient(1), 100 - staleness, learner=0)
        return aggregator.pop(state, 100, round)[1]

    state = aggregator.init(LIKE)
    assert ready(state, 1000, 0)
    state = aggregator.pop(applied(state, [0, 0], 1), 1000, 1)[1]
    assert ready(state, 1000, 7)  # nothing stale was seen yet, nor anything at all in an empty group
    state = applied(state, [0, 3, 4], 1)
    for seen in (state, applied(state, [99], 1), applied(state, [1], 5)):  # what comes later changes nothing
        for round, threshold in ((0, 3), (1, 3), (2, 2), (3, 1), (4, 1), (60, 1)):
            assert [ready(seen, s, round) for s in (threshold, threshold + 1)] == [True, False]


def test_integer_threshold_given_by_hand():
    """5, halving: rounds 0 and 1 at 5, then int(2.5) + 1 = 3, int(1.25) + 1 = 2 and 1; a group's mean counts."""
    aggregator = compiled("integer 5")
    state = aggregator.push(aggregator.init(LIKE), gradient(1), 0, learner=0)
    for round, threshold in ((0, 5), (1, 5), (2, 3), (3, 2), (4, 1), (50, 1)):
        assert [bool(aggregator.ready(state, s, round)) for s in (threshold, threshold + 1)] == [True, False]
    pair = aggregator.push(state, gradient(2), 1, learner=0)  # staleness 3 and 2: 2.5
    assert [bool(aggregator.ready(pair, 3, round)) for round in (2, 3)] == [True, False]


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


@pytest.mark.parametrize("name", KINDS)
def test_a_donated_state(name):
    """A new state may be donated to push and to pop, as the queue of a large policy has to be."""
    functions, (aggregator, _, _) = compiled(name), CASES[name]
    push, pop = (jax.jit(f, donate_argnums=0, compiler_options=QUICK) for f in (aggregator.push, aggregator.pop))
    empty, kept = aggregator.init(LIKE), aggregator.init(LIKE)
    state = push(push(empty, gradient(5), 0, learner=0), gradient(6), 2, learner=1)
    kept = functions.push(functions.push(kept, gradient(5), 0, learner=0), gradient(6), 2, learner=1)
    equal(state, kept)
    got = pop(state, 3, 0)
    equal(got, functions.pop(kept, 3, 0))
    assert empty.rows.is_deleted()
    assert state.rows.is_deleted()


def random_schedule(name, state, random, steps):
    """Pushes and pops of the case's compiled functions, from any state: the state, and all that was seen."""
    functions, seen = compiled(name), []
    for _ in range(steps):
        state = functions.push(state, gradient(random.randrange(99)), random.randrange(20), learner=random.randrange(3))
        seen.append([functions.ready(state, 20, 1), *(functions.admit(state, i, 12) for i in range(LEARNERS))])
        if random.random() < 0.4:
            update, state = functions.pop(state, 20, random.randrange(3))
            seen.append(update)
    return state, jax.device_get(seen)


@pytest.mark.parametrize("name", CASES)
def test_a_state_goes_through_a_checkpoint(name, tmp_path):
    """A queue in use, saved as NumPy's arrays and loaded, goes on as if nothing had happened, bit for bit."""
    functions = compiled(name)
    state, _ = random_schedule(name, functions.init(LIKE), Random(1), 15)
    leaves, structure = jax.tree.flatten(state)
    np.savez(tmp_path / "state.npz", *map(np.asarray, leaves))
    with np.load(tmp_path / "state.npz") as file:
        loaded = jax.tree.unflatten(structure, [jnp.asarray(file[f"arr_{i}"]) for i in range(len(leaves))])
    equal(loaded, state)
    equal(random_schedule(name, loaded, Random(2), 15), random_schedule(name, state, Random(2), 15))


MIXED = {"x": np.ones(2), "y": np.ones(3, jnp.bfloat16), "z": np.float32(1), "h": np.ones((1, 2), np.float16)}


@pytest.mark.parametrize("x64", [False, True])
@pytest.mark.parametrize("name", CASES)
def test_the_state_keeps_its_types(name, x64):
    """No push or pop changes a shape, a dtype or a weak type, with float64 or without: the state can be a carry."""
    with jax.enable_x64(x64):
        aggregator, (scalar, like) = CASES[name].aggregator, (jnp.int32(3), jax.tree.map(jnp.asarray, MIXED))

        def types(tree):
            return jax.tree.map(lambda x: (x.shape, x.dtype, x.weak_type), tree)

        state = jax.eval_shape(aggregator.init, like)
        pushed = jax.eval_shape(functools.partial(aggregator.push, learner=1), state, like, scalar)
        update, popped = jax.eval_shape(aggregator.pop, state, scalar, scalar)
        assert types(pushed) == types(popped) == types(state)
        assert jax.tree.map(lambda x: x.dtype, update.gradient) == jax.tree.map(lambda x: x.dtype, like)
        assert state.rows.dtype == (jnp.float64 if x64 else jnp.float32)
        assert {state.version.dtype, state.head.dtype, state.count.dtype, update.staleness.dtype} == {
            jnp.dtype("int32")
        }
        ready, admitted = (jax.eval_shape(f, state, scalar, scalar) for f in (aggregator.ready, aggregator.admit))
        assert [(x.shape, x.dtype) for x in (ready, admitted)] == [((), jnp.bool_)] * 2


@pytest.mark.parametrize("name", KINDS)
def test_nothing_is_compiled_twice(name):
    """Fifty rounds with other clocks, versions and learners: one trace of each function."""
    traces, optimizer = Counter(), optax.sgd(0.1)

    def counted(function):
        def traced(*args, **kwargs):
            traces[function] += 1
            return function(*args, **kwargs)

        return jax.jit(traced, compiler_options=QUICK)

    aggregator, apply = CASES[name].aggregator, functools.partial(apply_update, optimizer)
    methods = [getattr(aggregator, name) for name in METHODS]
    init, push, ready, pop, admit, step = map(counted, (*methods, apply))
    state, params, opt_state = init(LIKE), LIKE, optimizer.init(LIKE)
    for number in range(50):
        clock = np.int32(number)
        state = push(state, gradient(number), np.int32(max(number - number % 5, 0)), learner=np.int32(number % 3))
        if admit(state, np.int32(number % 3), clock) or ready(state, clock, np.int32(number // 4)):
            update, state = pop(state, clock, np.int32(number // 4))
            params, opt_state = step(update, params, opt_state)
        ready(state, clock, np.int32(number // 4))
    assert list(traces.values()) == [1] * 6


def test_a_mean_of_bfloat16_is_accumulated_in_float32():
    """16 gradients, 2000 numbers each, weighted: within one bfloat16 rounding, 2^-8, of the mean in float64."""
    aggregator, random = staleness_aware(16, decay=0.5, smoothness=2.0), np.random.default_rng(0)
    gradients = jnp.asarray(random.uniform(1, 2, (16, 2000)), jnp.bfloat16)
    versions = random.integers(0, 20, 16)
    state, _ = jax.lax.scan(
        lambda s, x: (aggregator.push(s, *x), None), aggregator.init(gradients[0]), (gradients, versions)
    )
    update, _ = jax.jit(aggregator.pop)(state, 20, 0)
    assert update.gradient.dtype == jnp.bfloat16
    weights = np.maximum(20 - versions, 1.0) ** -0.5
    mean = np.average(np.asarray(gradients, np.float64), axis=0, weights=weights)
    assert np.max(np.abs(np.asarray(update.gradient, np.float64) - mean) / mean) < 2**-8 * 1.001
    np.testing.assert_allclose(update.scale, weights.mean(), rtol=1e-6)


def test_a_mean_of_float64_is_one():
    """Weights, scales and means in double precision where it is enabled."""
    with jax.enable_x64(True):
        aggregator = jitted(softsync(3))
        state = aggregator.init(jnp.zeros(1))
        for number, version in ((1 + 2**-40, 0), (2.0, 2), (-5.0, 3)):
            state = aggregator.push(state, np.array([number]), version)
        update, _ = aggregator.pop(state, 3, 0)
        np.testing.assert_allclose(update.gradient, ((1 + 2**-40) / 3 + 2 - 5) / (1 / 3 + 2), rtol=1e-14)
        np.testing.assert_allclose(update.scale, (1 / 3 + 2) / 3, rtol=1e-14)
        assert update.gradient.dtype == update.scale.dtype == jnp.float64


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


def test_a_batch_of_queues():
    """vmap over states: three queues with versions of their own, each ready and popped as it would be alone."""
    functions = compiled("threshold 4, mean")
    queues = [filled(functions, versions) for versions in ((0, 7), (5, 5), (1, 0))]
    batch = jax.tree.map(lambda *x: jnp.stack(x), *queues)
    aggregator = CASES["threshold 4, mean"].aggregator
    push, ready, pop = (
        jax.jit(jax.vmap(f, in_axes=(0, None, None))) for f in (aggregator.push, aggregator.ready, aggregator.pop)
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

OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.1),
    "rmsprop": optax.rmsprop(0.1),
}
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


@functools.cache
def alone(combine):
    """One gradient, to be popped at any clock."""
    aggregator = jitted(staleness_aware(2, decay=0.5, smoothness=3.0, combine=combine))
    return aggregator, filled(aggregator, [0], start=5)


@pytest.mark.parametrize("combine", ["mean", "sequential"])
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_staleness_eight_at_smoothness_three_goes_half_as_far(optimizer, combine):
    """The weight is a factor on the step: on the gradient, Adam would cancel it. No optimizer's state sees it."""
    aggregator, state = alone(combine)
    apply = jax.jit(functools.partial(apply_update, optimizer))
    params, opt_state = apply(aggregator.pop(state, 0, 0)[0], PARAMS, optimizer.init(PARAMS))  # a state with a past
    (whole, fresh), (half, stale) = (apply(aggregator.pop(state, s, 0)[0], params, opt_state) for s in (0, 8))
    whole, half = (jax.tree.map(jnp.subtract, moved, params) for moved in (whole, half))
    assert abs(whole["w"][0]) > 0.05
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


@pytest.mark.parametrize(
    ("first", "second", "depth", "scales"),
    [
        (staleness_aware(1, capacity=4, **OFF), fully_asynchronous(capacity=4), 1, {1.0}),
        (softsync(1), staleness_aware(1, **OFF | {"smoothness": 1.0}), 1, {1.0, 0.5, 0.25}),
        (softsync(3, learners=3), softsync(1), 2, {1.0, 0.5, 0.25}),
        (stale_synchronous(10**9, LEARNERS, capacity=5), fully_asynchronous(capacity=5), 3, {1.0}),
        (staleness_aware(3, **OFF), staleness_aware(3, **OFF, weight=lambda s: jnp.ones(s.shape)), 3, {1.0}),
        (
            staleness_aware(3, decay=0.5, max_staleness=2),
            staleness_aware(3, decay=0.5, max_staleness=2, smoothness=1.0, weight=staleness_weight),
            3,
            {1.0},
        ),
    ],
    ids=["fully asynchronous", "softsync 1", "n-softsync", "unbounded", "weights off", "weight for smoothness"],
)
def test_special_cases_are_each_other(first, second, depth, scales):
    """Two ways to say the same: readiness, admission, update and queue agree bit for bit."""
    updates = alike(first, second, depth=depth)
    assert scales <= {round(float(update.scale), 4) for update in updates}


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


@pytest.fixture
def no_hook(monkeypatch):
    """Without the run-time type checks, as a user calls it."""
    monkeypatch.setattr(jaxtyping.config, "jaxtyping_disable", True)


@pytest.mark.parametrize(
    ("make", "arguments", "message"),
    [
        (staleness_aware, {"full": 0}, "full=0 is not a positive whole number"),
        (staleness_aware, {"full": 2.5}, r"full=2\.5 is not a positive whole number"),
        (staleness_aware, {"full": 4, "capacity": 3}, "capacity=3 is below full=4"),
        (staleness_aware, {"decay": 0.0}, r"decay=0\.0 lies outside \(0, 1\]"),
        (staleness_aware, {"decay": 1.5}, r"decay=1\.5 lies outside \(0, 1\]"),
        (staleness_aware, {"decay": math.nan}, r"decay=nan lies outside \(0, 1\]"),
        (staleness_aware, {"smoothness": 0.0}, r"smoothness=0\.0 is not positive"),
        (staleness_aware, {"max_staleness": -1}, "max_staleness=-1 is negative"),
        (staleness_aware, {"max_staleness": math.nan}, "max_staleness=nan is negative"),
        (staleness_aware, {"combine": "sum"}, "combine='sum' is neither 'mean' nor 'sequential'"),
        (staleness_aware, {"threshold": "int"}, "threshold='int' is neither 'decay' nor 'integer'"),
        (fully_asynchronous, {"capacity": 0}, "capacity=0 is not a positive whole number"),
        (synchronous, {"n": 0}, "n=0 is not a positive whole number"),
        (synchronous, {"n": -2}, "n=-2 is not a positive whole number"),
        (softsync, {"n": 0}, "n=0 is not a positive whole number"),
        (softsync, {"n": 1.5}, r"n=1\.5 is not a positive whole number"),
        (softsync, {"n": 0, "learners": 4}, "n=0 is not a positive whole number"),
        (softsync, {"n": 3, "learners": 2}, "learners=2 is below n=3"),
        (softsync, {"n": 3, "capacity": 2}, "capacity=2 is below n=3"),
        (softsync, {"n": 1, "learners": 3, "capacity": 2}, "capacity=2 is below"),
        (stale_synchronous, {"bound": -1}, "bound=-1 is negative"),
        (stale_synchronous, {"learners": 0}, "learners=0 is not a positive whole number"),
        (stale_synchronous, {"learners": 1.5}, r"learners=1\.5 is not a positive whole number"),
        (stale_synchronous, {"capacity": 0}, "capacity=0 is not a positive whole number"),
    ],
)
@pytest.mark.usefixtures("no_hook")
def test_errors(make, arguments, message):
    """An error names the argument and its value."""
    defaults = {staleness_aware: {"full": 2, "decay": 0.5}, stale_synchronous: {"bound": 1, "learners": 2}}
    with pytest.raises(ValueError, match=message):
        make(**(defaults.get(make, {}) | arguments))


@pytest.mark.parametrize("name", ["synchronous", "stale synchronous, bound 2"])
@pytest.mark.parametrize("learner", [-1, 3, np.int64(7)])
@pytest.mark.usefixtures("no_hook")
def test_a_learner_that_does_not_exist(name, learner):
    """Under jit too, as long as it is a number there."""
    push, state = CASES[name].aggregator.push, compiled(name).init(LIKE)
    for function in (push, lambda *args, learner: jax.jit(functools.partial(push, learner=learner))(*args)):
        with pytest.raises(IndexError, match=f"learner={learner} is none of the 3 learners.*numbered from 0"):
            function(state, gradient(1), 0, learner=learner)


@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("wrap", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.usefixtures("no_hook")
def test_errors_at_a_push(name, wrap):
    """Gradients unlike those announced and versions that are not whole name the leaf, what it is, what is expected."""
    aggregator = CASES[name].aggregator
    state, push, good = compiled(name).init(LIKE), wrap(aggregator.push), gradient(1)
    for bad, message in (
        ({"w": good["w"]}, r"gradient has structure PyTreeDef\({'w': \*}\): expected gradient_like's .*'b': \*"),
        ([good["b"], good["w"]], "gradient has structure .*: expected gradient_like's"),
        (good | {"w": np.ones(3, np.float32)}, r"gradient\['w'\] has shape \(3,\): expected \(2,\)"),
        (good | {"b": np.ones(1, np.float32)}, r"gradient\['b'\] has shape \(1,\): expected \(\)"),
    ):
        with pytest.raises(ValueError, match=message):
            push(state, bad, 0)
    with pytest.raises(TypeError, match=r"version=.* has dtype float32: expected a whole number"):
        push(state, good, 0.5)
    for leaf, dtype in ((np.ones(2, np.int32), "int32"), (np.ones(2, bool), "bool")):
        with pytest.raises(TypeError, match=rf"gradient_like\['w'\] has dtype {dtype}: expected floating point"):
            wrap(aggregator.init)(good | {"w": leaf})


@pytest.mark.parametrize("name", ["synchronous", "stale synchronous, bound 2"])
@pytest.mark.parametrize("learner", [3, jnp.int32(3), jnp.int32(-1)])
@pytest.mark.usefixtures("no_hook")
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


@pytest.mark.usefixtures("no_hook")
def test_settings_that_are_no_numbers():
    """The error names the setting; so it does for a version that never was."""
    for message, make in {
        "decay='0.9' is not a number": lambda: staleness_aware(2, decay="0.9"),
        "max_staleness='4' is not a number": lambda: staleness_aware(2, decay=0.9, max_staleness="4"),
        "smoothness=None is not a number": lambda: staleness_aware(2, decay=0.9, smoothness=None),
        "weight=0.5 is not a function": lambda: staleness_aware(2, decay=0.9, weight=0.5),
        "bound='1' is not a number": lambda: stale_synchronous("1", learners=2),
    }.items():
        with pytest.raises(TypeError, match=f"^{message}"):
            make()
    for value in ("2", None, [2], 2.0):
        with pytest.raises(ValueError, match=r"^n=.* is not a positive whole number"):
            synchronous(value)
    with pytest.raises(ValueError, match=r"^threshold=\['decay'\] is neither"):
        staleness_aware(2, decay=0.9, threshold=["decay"])
    aggregator = fully_asynchronous(capacity=2)
    with pytest.raises(ValueError, match="version=-1 is negative"):
        aggregator.push(aggregator.init(LIKE), gradient(1), -1)


# ---- optimizers that take more than a gradient ----------------------------------------------------------------------


@pytest.mark.parametrize("combine", ["mean", "sequential"])
@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize("optimizer", [optax.adam(0.1), optax.sgd(0.1, momentum=0.9)], ids=["adam", "momentum"])
def test_a_group_of_none_changes_nothing(combine, run, optimizer):
    """Popped from an empty queue and applied: parameters, moments and counts are those of before, to the bit."""
    aggregator = staleness_aware(2, decay=0.5, combine=combine)
    before = gradient(1), optimizer.init(gradient(1))
    before = apply_update(optimizer, aggregator.pop(filled(aggregator, [0, 0]), 1, 0)[0], *before)
    update, _ = aggregator.pop(aggregator.init(LIKE), 1, 0)
    after = run(functools.partial(apply_update, optimizer))(update, *before)
    equal(after, before)
    jax.tree.map(lambda x, y: x.dtype == jnp.asarray(y).dtype, after, before)


@pytest.mark.parametrize("run", [lambda f: f, jax.jit], ids=["eager", "jit"])
def test_scale_by_staleness_in_the_optimizer(run):
    """Where the aggregator does not weigh, the optimizer may: each gradient by its own staleness, a group by the mean.

    Staleness 8 and 1 at smoothness 3 weigh 1/2 and 1; gradients 2 and 4 at a rate of 1/2.
    """
    optimizer = optax.chain(optax.sgd(0.5), scale_by_staleness(3.0))
    for combine, expected in (("mean", 10.0 - 0.5 * 3.0 * 0.75), ("sequential", 10.0 - 0.5 * (2.0 * 0.5 + 4.0 * 1.0))):
        aggregator = staleness_aware(2, decay=1.0, smoothness=math.inf, combine=combine)
        state = aggregator.init(jnp.zeros(1))
        for number, version in ((2.0, 0), (4.0, 7)):
            state = aggregator.push(state, jnp.array([number]), version)
        update, _ = aggregator.pop(state, 8, 0)
        got, _ = run(functools.partial(apply_update, optimizer))(
            update, jnp.array([10.0]), optimizer.init(jnp.zeros(1))
        )
        np.testing.assert_allclose(got, [expected], rtol=1e-6)
    own, _ = apply_update(optimizer, update, jnp.array([10.0]), optimizer.init(jnp.zeros(1)), staleness=jnp.full(4, 8))
    np.testing.assert_allclose(own, [10.0 - 0.5 * 6.0 * 0.5], rtol=1e-6)  # the caller's own


def test_delay_compensation_in_the_optimizer():
    """One gradient at a time, `params_then` its own: g + g^2 (now - then) / 2, at a rate of 1/2."""
    optimizer, now = optax.chain(add_delay_compensation(0.5), optax.sgd(0.5)), jnp.array([1.5])
    mean = Update(jnp.array([2.0]), jnp.float32(1.0), jnp.int32(1), jnp.array([1], jnp.int32))
    got, _ = apply_update(optimizer, mean, now, optimizer.init(now), params_then=jnp.array([1.0]))
    np.testing.assert_allclose(got, [1.5 - 0.5 * (2.0 + 0.5 * 4.0 * 0.5)], rtol=1e-6)
    each = Update(jnp.array([[2.0], [1.0], [0.0]]), jnp.array([1.0, 1.0, 0.0]), jnp.int32(2), jnp.array([1, 2, -1]))
    got, _ = apply_update(optimizer, each, now, optimizer.init(now), params_then=jnp.array([[1.0], [0.5], [9.0]]))
    # first as above, to 0; then g = 1 at 0, computed at 1/2: 1 - 1/2 * 1/2
    np.testing.assert_allclose(got, [0.0 - 0.5 * 0.75], rtol=1e-6)
    with pytest.raises(
        ValueError, match=r"params_then has shape \(1,\): expected \[3, \.\.\.\], a row for each gradient"
    ):
        apply_update(optimizer, each, now, optimizer.init(now), params_then=now)


def test_an_argument_that_is_no_array():
    """Optax's line searches are given functions; then the update is not compiled, and the same."""

    def step(updates, state, params=None, *, value_fn, **extra):
        return jax.tree.map(lambda g: -value_fn(params) * g, updates), state

    optimizer = optax.GradientTransformationExtraArgs(lambda params: optax.EmptyState(), step)
    mean = Update(jnp.array([2.0]), jnp.float32(0.5), jnp.int32(1), jnp.array([1], jnp.int32))
    got, _ = apply_update(optimizer, mean, jnp.array([3.0]), optax.EmptyState(), value_fn=lambda p: p[0])
    np.testing.assert_array_equal(got, [3.0 - 0.5 * 3.0 * 2.0])


def test_transformations_equal_as_tuples_are_told_apart():
    """Optax's two kinds are tuples of two functions: one passes extra arguments on, the other takes none."""
    seen = []

    def step(updates, state, params=None, **extra):
        seen.append(sorted(extra))
        return updates, state

    mean = Update(jnp.array([2.0]), jnp.float32(0.5), jnp.int32(1), jnp.array([1], jnp.int32))
    for kind in (optax.GradientTransformation, optax.GradientTransformationExtraArgs):
        apply_update(kind(optax.identity().init, step), mean, jnp.zeros(1), optax.EmptyState())
    assert seen == [[], ["staleness"]]
