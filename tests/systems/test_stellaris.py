"""Stellaris with aggregators of the library's and of the caller's, and what becomes of gradients that are dropped."""

from typing import Any

import pytest

from stellaris import fully_asynchronous, staleness_aware, staleness_weight
from stellaris.aggregation import gradient_queue
from stellaris.runtime import Faults, SimulatedPlatform
from stellaris.runtime.delays import Constant, LogNormal
from stellaris.systems import Budget, Result, StalenessControl, Stellaris, train
from tests.systems import tiny


class Pairs:
    """Means of two gradients: an aggregator that inherits from nothing."""

    def init(self, gradient_like: Any) -> Any:
        return gradient_queue.empty(gradient_like, 4, memory=())

    def push(self, state: Any, gradient: Any, version: Any, *, learner: Any = 0) -> Any:
        return gradient_queue.push(state, gradient, version)

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


def test_the_default_aggregator() -> None:
    """As documented: `staleness_aware(learners, decay=0.9)`, to the bit."""
    default, given = (
        tiny.run(Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=aggregator), tiny.deployment())
        for aggregator in (None, staleness_aware(3, decay=0.9))
    )
    assert default.history == given.history


def fates(result: Result, drop_from: float) -> dict[str, list[int]]:
    """Follows every gradient of a run: applied once or dropped once or left, and at which staleness; by invocation."""
    newest, version, waiting = -1, {}, set()
    seen: dict[str, list[int]] = {"staleness": [], "dropped_gradient": []}
    for _, event, function, invocation, _, value in result.trace.rows():
        if event == "published":
            newest = int(value)
        elif event == "started":
            version[invocation] = newest
        elif event == "pushed":
            waiting.add(invocation)
        elif event in seen:
            waiting.remove(invocation)  # once, and only what is queued
            age = newest - version[invocation]
            assert (function, value) == ("learner", float(age) if event == "staleness" else 1.0)
            assert (age >= drop_from) == (event == "dropped_gradient")
            seen[event].append(age)
    assert len(waiting) == result.trace.select("queued").value.sum()
    assert len(seen["staleness"]) - newest in (0, 1)  # the last may be under way; what is dropped makes no version
    return seen


def assert_accounted_for(result: Result) -> None:
    """Whatever was sampled was learned from, waits, was a reset, or was discarded or lost."""
    trace = result.trace
    sums = {
        name: trace.select(name).value.sum()
        for name in ("sampled", "learned", "waiting", "reset", "discarded", "lost_steps")
    }
    assert sums.pop("sampled") == sum(sums.values())
    assert sums["learned"] > 0


SLOW_UPDATES = tiny.deployment(LogNormal(0.01, 0.5), LogNormal(0.1, 0.5), LogNormal(0.5, 0.5))
QUICK_UPDATES = tiny.deployment(LogNormal(0.01, 0.5), LogNormal(0.1, 0.5), LogNormal(0.05, 0.5))


@pytest.mark.parametrize(
    ("drop_from", "capacity", "functions", "pace"),
    [
        (1, 3, QUICK_UPDATES, 1),  # no room for more than the learners' gradients, all of which may be too stale
        (1, 6, SLOW_UPDATES, 1),  # the queue fills with stale ones during an update
        (2, 6, SLOW_UPDATES, 3),
        (2, 3, QUICK_UPDATES, 0),  # actors wait for every gradient of a batch
        (1, 3, SLOW_UPDATES, 0),
    ],
)
def test_gradients_are_dropped(drop_from: int, capacity: int, functions: Any, pace: int) -> None:
    """Every gradient is applied once or dropped once, by its staleness; every step is accounted for; none stalls it."""
    aggregator = fully_asynchronous(capacity=capacity, drop_from=drop_from)
    system = Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=aggregator, control=StalenessControl(pace=pace))
    result = tiny.run(system, functions, budget=Budget(steps=32 * 8))
    seen = fates(result, drop_from)
    assert min(map(len, seen.values())) > 5
    assert_accounted_for(result)
    discarded = result.trace.select("discarded")
    assert discarded.value.sum() > 0  # of batches of which some gradients were dropped
    taken, dropped = (set(result.trace.select(event).time) for event in ("staleness", "dropped_gradient"))
    assert set(discarded.time) <= taken | dropped
    assert result.history[-1]["steps"] >= 32 * 8
    column = [row.get("gradients_dropped", 0.0) for row in result.history]
    assert column == sorted(column)
    assert column[-1] == len(seen["dropped_gradient"])
    assert result.history[-1]["discarded"] == discarded.value.sum()
    assert result.history[-1]["gradients"] == len(seen["staleness"])
    if drop_from == 1:  # nothing that is applied then is stale, so that the queue is emptied of all there is at times
        assert result.history[-1]["staleness_max"] == 0
        assert dropped - taken


class Nothing(Pairs):
    """Is ready, and then takes nothing out of the queue."""

    def ready(self, state: Any, clock: Any, round: Any) -> Any:
        return state.count > 0

    def pop(self, state: Any, clock: Any, round: Any) -> Any:
        return gradient_queue.take(state, 0, clock, staleness_weight, "mean")


class Nobody(Pairs):
    """Admits no learner."""

    def admit(self, state: Any, learner: Any, clock: Any) -> Any:
        return False


@pytest.mark.parametrize("control", [StalenessControl(), StalenessControl(pace=1)])
@pytest.mark.parametrize(
    ("aggregator", "message"),
    [
        (Nothing(), r"deadlock at 0\.36 s: .*Nothing.* takes nothing out of its"),  # when its queue is full
        (Nobody(), r"deadlock at 0\.16 s: .*Nobody.* admits none of learners=2"),
    ],
)
def test_a_run_that_is_stuck(aggregator: Any, message: str, control: StalenessControl) -> None:
    """It does not end as if it were done; nor do actors use its budget up, where nothing keeps them."""
    system = Stellaris(tiny.PPO_CONFIG, learners=2, aggregator=aggregator, control=control)
    with pytest.raises(RuntimeError, match=message):
        tiny.run(system, tiny.deployment(), budget=Budget(steps=10_000))


def test_what_came_twice_is_no_dropped_gradient() -> None:
    """Completions that are delivered again are let go of, too; no history counts them among gradients."""
    faults = {name: Faults(duplicate=0.5, duplicate_after=Constant(0.05)) for name in QUICK_UPDATES}
    platform = SimulatedPlatform(QUICK_UPDATES, threads=1, faults=faults)
    result = train(
        Stellaris(tiny.PPO_CONFIG, learners=3), tiny.WORKLOAD, platform=platform, budget=Budget(steps=32 * 4)
    )
    assert len(result.trace.select("dropped").time) > 5
    assert not any("gradients_dropped" in row for row in result.history)
