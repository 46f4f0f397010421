"""Aggregators against their models in plain Python, on any schedule of pushes, pops and time."""

import functools
from random import Random
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.aggregation.aggregators import CASES, LEARNERS, LIKE, QUICK, close, compiled, gradient, weighted_mean


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


@pytest.mark.slow
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
