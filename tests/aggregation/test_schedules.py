"""Aggregators against their models in plain Python, on any schedule of pushes, pops and time."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from tests.aggregation.aggregators import CASES, LEARNERS, LIKE, QUICK, close, compiled, gradient, weighted_mean


@functools.cache
def observer(name):
    """Size, overflow, the version at the head, readiness, and admission of every learner, under one jit."""
    functions = CASES[name].aggregator

    def observe(state, clock, round):
        admitted = [functions.admit(state, learner, clock) for learner in range(LEARNERS)]
        oldest = state.version[state.head]
        return state.count, state.overflow, oldest, functions.ready(state, clock, round), admitted

    return jax.jit(observe, compiler_options=QUICK)


class Machine(RuleBasedStateMachine):
    """Any interleaving of pushes, pops and time, on an aggregator under jit and on its model."""

    def __init__(self, name):
        super().__init__()
        self.functions, self.observe = compiled(name), observer(name)
        self.model, self.sequential = CASES[name].model(), CASES[name].sequential
        self.state = self.functions.init(LIKE)
        self.clock = self.round = self.number = self.dropped = 0

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
        self.dropped += int(update.dropped)
        assert (update.count, self.dropped) == (n, self.model.dropped)
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
