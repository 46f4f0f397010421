"""Stellaris with aggregators of the library's and of the caller's."""

from dataclasses import dataclass
from typing import Any

import pytest

from stellaris import gradient_queue, staleness_aware, staleness_weight
from stellaris.systems import Stellaris
from stellaris.systems import stellaris as loop
from tests.systems import tiny


class Pairs:
    """Means of two gradients: an aggregator that inherits from nothing."""

    def init(self, gradient_like: Any) -> Any:
        return gradient_queue.empty(gradient_like, 4, memory=())

    def push(self, state: Any, gradient: Any, version: Any, *, learner: Any = 0) -> Any:
        return gradient_queue.push(state, gradient, version, learner=learner)

    def ready(self, state: Any, clock: Any, round: Any) -> Any:
        return state.count >= 2

    def pop(self, state: Any, clock: Any, round: Any) -> Any:
        return gradient_queue.take(state, 2, clock, staleness_weight, "mean")

    def admit(self, state: Any, learner: Any, clock: Any) -> Any:
        return True


def test_an_aggregator_of_the_callers() -> None:
    """Any object with the five methods: it trains, and gradients are applied in pairs."""
    result = tiny.run(Stellaris(tiny.PPO_CONFIG, learners=2, aggregator=Pairs()), tiny.deployment())
    updates = len(result.trace.select("published").value) - 1
    assert updates > 4
    assert len(result.trace.select("staleness").value) in (2 * updates, 2 * updates + 1, 2 * updates + 2)


def test_an_aggregator_without_a_hash() -> None:
    """Refused at once: its functions are compiled once for each aggregator, which needs equality and a hash."""

    @dataclass
    class Changeable(Pairs):
        capacity: int = 4

    with pytest.raises(TypeError, match=r"Changeable\(capacity=4\) has no hash .*: make it a frozen dataclass"):
        Stellaris(learners=2, aggregator=Changeable())


def test_the_default_aggregator() -> None:
    """As documented: `staleness_aware(learners, decay=0.9)`, to the bit."""
    default, given = (
        tiny.run(Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=aggregator), tiny.deployment())
        for aggregator in (None, staleness_aware(3, decay=0.9))
    )
    assert default.history == given.history


def test_equal_aggregators_share_their_programs() -> None:
    """Made anew for every run, they compile nothing anew."""
    compiled = []
    for _ in range(2):
        aggregator = staleness_aware(3, decay=0.75, max_staleness=2.0)
        tiny.run(Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=aggregator), tiny.deployment())
        compiled.append([function._cache_size() for function in (loop._push, loop._ready, loop._pop)])
    assert compiled[0] == compiled[1]
