"""Aggregators to test, each with its model: what its documentation says, over a list in plain Python."""

import functools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from stellaris import (
    Aggregator,
    buffered,
    exponential_weight,
    fully_asynchronous,
    hinge_weight,
    polynomial_weight,
    softsync,
    stale_synchronous,
    staleness_aware,
    synchronous,
)

LEARNERS = 3
#: Without LLVM's optimizations, which would take longer than what they optimize.
QUICK = {"xla_backend_optimization_level": 0, "xla_llvm_disable_expensive_passes": True}
#: The structure of all gradients, and parameters for them.
LIKE = {"w": jnp.zeros(2), "b": jnp.zeros(())}
PARAMS = {"w": jnp.array([1.0, -2.0]), "b": jnp.float32(3.0)}
OPTIMIZERS = {
    "sgd": optax.sgd(0.1),
    "momentum": optax.sgd(0.1, momentum=0.9),
    "adam": optax.adam(0.1),
    "rmsprop": optax.rmsprop(0.1),
}
METHODS = ("init", "push", "ready", "pop", "admit")


def gradient(number):
    """A tree unlike that of any other small number; exact in float32."""
    return {"w": np.array([number, 1 - number], np.float32), "b": np.float32(number**2 % 7)}


def close(got, want, tolerance=1e-5):
    jax.tree.map(functools.partial(np.testing.assert_allclose, rtol=tolerance, atol=1e-6), got, want)


def equal(got, want):
    jax.tree.map(np.testing.assert_array_equal, got, want)


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


class Model:
    """The queue that all aggregators share."""

    def __init__(self, capacity):
        self.capacity, self.items, self.overflow, self.dropped = capacity, [], False, 0

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


class Dropping(FullyAsynchronous):
    """Those from a staleness on leave the queue when a fresher one is popped, or when there is none; or it is full."""

    def __init__(self, drop_from, capacity):
        super().__init__(capacity)
        self.drop_from = drop_from

    def ready(self, clock, round):
        fresh = any(clock - version < self.drop_from for _, version in self.items)
        return fresh or len(self.items) == self.capacity

    def pop(self, clock, round):
        while self.items and clock - self.items[0][1] >= self.drop_from:
            self.items.pop(0)
            self.dropped += 1
        return super().pop(clock, round)


class Buffered(Model):
    def __init__(self, group, capacity, weight):
        super().__init__(capacity)
        self.group, self.weight = group, weight

    def ready(self, clock, round):
        return len(self.items) >= self.group

    def size(self):
        return self.group


class Softsync(Buffered):
    def __init__(self, group, capacity):
        super().__init__(group, capacity, lambda staleness: 1 / max(staleness, 1))


class StalenessAware(Model):
    def __init__(self, full, capacity, decay, smoothness, max_staleness, weight=None):
        super().__init__(capacity)
        self.group_size, self.decay, self.max_staleness = full, decay, max_staleness
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
        return n >= self.group_size or (n > 0 and total / n <= self.threshold(round))

    def size(self):
        return len(self.items)

    def applied(self, round, staleness):
        self.history += [(round, s) for s in staleness]


class IntegerThreshold(StalenessAware):
    """The threshold of the authors' demo; `max_staleness=None` for the mean of the first round that is stale at all."""

    def threshold(self, round):
        start = self.max_staleness
        if start is None:
            first = min((k for k, staleness in self.history if staleness > 0), default=math.inf)
            start = math.inf
            if round > first:
                of = [staleness for k, staleness in self.history if k == first]
                start = int(sum(of) / len(of)) + 1
        if start == math.inf:
            return math.inf
        return min(max(int(start * self.decay ** (round - 1)) + 1, 1), start)


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
    kind = {"decay": StalenessAware, "demo": IntegerThreshold}[threshold]
    model = functools.partial(kind, full, capacity or 2 * full, decay, smoothness, max_staleness, modelled)
    return Case(aggregator, model, combine == "sequential")


POLYNOMIAL = functools.partial(polynomial_weight, power=1.5), lambda staleness: (staleness + 1) ** -1.5
HINGE = (
    functools.partial(hinge_weight, slope=0.5, tolerance=2.0),
    lambda staleness: 1 if staleness <= 2 else 1 / (0.5 * (staleness - 2) + 1),
)
EXPONENTIAL = functools.partial(exponential_weight, rate=0.25), lambda staleness: math.exp(-0.25 * staleness)
# Decays are powers of two, so that a mean which equals its threshold does so in any precision.
CASES = {
    "fully asynchronous": Case(fully_asynchronous(capacity=4), functools.partial(FullyAsynchronous, 4)),
    "fully asynchronous, capacity 1": Case(fully_asynchronous(capacity=1), functools.partial(FullyAsynchronous, 1)),
    "dropping from 3": Case(fully_asynchronous(capacity=4, drop_from=3), functools.partial(Dropping, 3, 4)),
    "buffered, 3": Case(buffered(3), functools.partial(Buffered, 3, 6, lambda s: (s + 1) ** -0.5)),
    "synchronous": Case(synchronous(LEARNERS), functools.partial(Synchronous, LEARNERS)),
    "stale synchronous, lead 0": Case(
        stale_synchronous(0, LEARNERS, capacity=1), functools.partial(StaleSynchronous, 0, LEARNERS, 1)
    ),
    "stale synchronous, lead 2": Case(
        stale_synchronous(2, LEARNERS, capacity=5), functools.partial(StaleSynchronous, 2, LEARNERS, 5)
    ),
    "softsync, 1": Case(softsync(1, capacity=3), functools.partial(Softsync, 1, 3)),
    "softsync, 3": Case(softsync(3), functools.partial(Softsync, 3, 6)),
    "softsync, 2": Case(softsync(2), functools.partial(Softsync, 2, 4)),
    "softsync, 3, no spare room": Case(softsync(3, capacity=3), functools.partial(Softsync, 3, 3)),
    "measured, mean": aware(4, 5, decay=0.5, max_staleness=None, combine="mean"),
    "measured, sequential": aware(3, decay=1.0, smoothness=1.0, max_staleness=None, combine="sequential"),
    "threshold 4, mean": aware(3, 3, decay=0.5, smoothness=0.5, max_staleness=4, combine="mean"),
    "threshold 4, sequential": aware(4, decay=0.5, smoothness=3, max_staleness=4.0, combine="sequential"),
    "threshold 0": aware(3, 7, decay=1.0, max_staleness=0, combine="mean"),
    "no threshold": aware(2, decay=0.5, smoothness=math.inf, max_staleness=math.inf, combine="sequential"),
    "polynomial": aware(3, 4, decay=0.5, max_staleness=3, combine="mean", weight=POLYNOMIAL),
    "hinge": aware(3, decay=0.5, max_staleness=None, combine="mean", weight=HINGE),
    "exponential": aware(4, decay=1.0, max_staleness=2, combine="sequential", weight=EXPONENTIAL),
    "integer, measured": aware(4, 6, decay=0.5, max_staleness=None, combine="mean", threshold="demo"),
    "integer, measured, sequential": aware(
        3, decay=1.0, max_staleness=None, combine="sequential", threshold="demo", weight=POLYNOMIAL
    ),
    "integer 5": aware(5, decay=0.5, max_staleness=5, combine="mean", threshold="demo"),
    "integer, none": aware(2, decay=0.5, max_staleness=math.inf, combine="mean", threshold="demo"),
}
#: One of each kind, where a check compiles anew.
KINDS = [
    "fully asynchronous",
    "dropping from 3",
    "buffered, 3",
    "synchronous",
    "stale synchronous, lead 2",
    "softsync, 2",
    "measured, mean",
    "threshold 4, sequential",
    "integer, measured",
]


@functools.cache
def compiled(name):
    """The case's aggregator, compiled once for all tests."""
    return jitted(CASES[name].aggregator)
