"""Each invariant on a course of events written by hand: a sound one passes, and one event that is wrong is named."""

import math
from types import SimpleNamespace
from typing import Any

import pytest

from experiments.simtest.invariants import Checker, ViolationError
from experiments.simtest.scenarios import ALGORITHM, PRICES, WORKLOAD, Scenario, scenario
from stellaris import fully_asynchronous, staleness_aware
from stellaris.runtime import FunctionSpec, Node, Resources, Trace
from stellaris.runtime.delays import Constant
from stellaris.systems import Budget, Stellaris, Synchronous, train

Row = tuple[Any, ...]


def checker(**more):
    """For two learners, kept for ten seconds, that run three seconds at most, on a platform without limits."""
    learner = FunctionSpec(Constant(1.0), **{"keep_alive": 10.0, "timeout": 3.0, **more.pop("learner", {})})
    functions = {"actor": FunctionSpec(Constant(1.0)), "learner": learner, "parameter": FunctionSpec(Constant(0.1))}
    aggregator = staleness_aware(2, decay=0.5, max_staleness=1.0)
    system = more.pop("system", Stellaris(ALGORITHM, learners=2, aggregator=aggregator))
    options = {"max_concurrency": None, "nodes": (), **more}
    return Checker(Scenario(3, system, WORKLOAD, functions, options, Budget(steps=100)))


def follow(checker, *rows):
    """Shows it the rows `(time, event, function, invocation, container, value)`, of which the last may be left out."""
    trace, left_out = Trace(), ("", -1, -1, 0.0)
    for row in rows:
        time, event, function, invocation, container, value = row + left_out[len(row) - 2 :]
        trace.append(time, event, function=function, invocation=invocation, container=container, value=value)
    checker(SimpleNamespace(trace=trace))
    return checker


def submitted(number, function="learner", at=0.0):
    """An invocation whose key is its number."""
    return [(at, "submitted", function, number, -1, number)]


def running(number, container, slot=0, function="learner"):
    """An invocation that starts at once in a new container."""
    return [
        *submitted(number, function),
        (0.0, "container_created", function, -1, container, slot),
        (0.0, "acquired", function, number, container, 1.0),
        (0.0, "started", function, number, container),
    ]


PUBLISHED = [(0.0, "published", "", -1, -1, 0.0)]
DONE = [*PUBLISHED, *running(0, 0), (1.0, "completed", "learner", 0, 0)]
PUSHED, STALE, DROPPED = ((1.0, event, "", 0) for event in ("pushed", "staleness", "dropped_gradient"))
QUEUED = [*DONE, PUSHED]
DROPPED_TWICE = "gradient 0 was dropped without being queued, or twice"
ENDED = (2.0, "container_ended", "learner", -1, 0)
AGAIN = [*submitted(1, at=1.0), (1.0, "acquired", "learner", 1, 0, 0.0)]


def test_a_sound_course():
    """Containers are made, used twice and ended; a gradient is queued and applied."""
    course = [
        *QUEUED,
        *AGAIN,
        (1.0, "started", "learner", 1, 0),
        (1.5, "staleness", "", 0, -1, 0.0),
        *submitted(2, "parameter", at=1.5),
        (1.5, "published", "", -1, -1, 1.0),
        (2.0, "timed_out", "learner", 1, 0),
        ENDED,
    ]
    seen = follow(checker(), *course)
    assert (seen.applied, seen.pushed, seen.version) == ({0}, {}, 1)
    assert not seen.live["learner"]


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([(2.0, "submitted", "actor", 0, -1, 0), (1.0, "published")], r"time went back to 1\.0"),
        ([*submitted(0), *submitted(0)], "invocation 0 was submitted twice"),
        # Containers.
        ([*running(0, 0), *running(1, 1, slot=0)], "two live containers of learner have slot 0"),
        ([*running(0, 0), (1.0, "container_ended", "learner", -1, 0)], "ended while it was busy with invocation 0"),
        ([*running(0, 0), *submitted(1), (0.0, "acquired", "learner", 1, 0)], "container 0 was given away"),
        (
            [*DONE, ENDED, *submitted(1, at=2.0), (2.0, "acquired", "learner", 1, 0)],
            "container 0 was reused after its end",
        ),
        ([*DONE, *submitted(1, "actor", at=1.0), (1.0, "acquired", "actor", 1, 0)], "is another function's"),
        ([*DONE, *submitted(1, at=1.0), (1.0, "acquired", "learner", 1, 0, 1.0)], "container 0 was not new"),
        ([*DONE, *submitted(1, at=12.0), (12.0, "acquired", "learner", 1, 0)], "reused after it had expired"),
        ([*running(0, 0), (1.0, "crashed", "learner", 0, 0)], "container 0 survived its invocation's crash"),
        # Invocations.
        ([*DONE, *AGAIN, (1.0, "acquired", "learner", 1, 0)], "invocation 1 got two containers"),
        ([*submitted(0), (0.0, "started", "learner", 0)], "invocation 0 started without a container"),
        ([*running(0, 0), (1.0, "started", "learner", 0, 0)], "invocation 0 started twice"),
        ([*DONE, (1.0, "lost", "learner", 0, 0)], "invocation 0 ended twice: completed and lost"),
        ([*submitted(0), (1.0, "completed", "learner", 0)], "invocation 0 completed before it started"),
        ([*running(0, 0), (3.1, "completed", "learner", 0, 0)], "invocation 0 ran longer than its time limit"),
        # Learning.
        ([*PUBLISHED, (1.0, "published", "", -1, -1, 2.0)], "version 2 was published after 0"),
        ([*submitted(0, "actor"), (1.0, "sampled", "", 0), (1.0, "sampled", "", 0)], "fragment 0 was delivered twice"),
        ([*QUEUED, PUSHED], "gradient 0 was queued twice"),
        ([*QUEUED, STALE, PUSHED], "gradient 0 was queued twice"),
        ([*QUEUED, STALE, STALE], "gradient 0 was applied without being queued, or twice"),
        ([*QUEUED, (1.0, "staleness", "", 0, -1, 1.0)], "gradient 0 has staleness 0, not 1"),
        ([*QUEUED, (1.0, "staleness", "", 0, -1, -1.0)], r"staleness -1\.0 is negative"),
        ([*QUEUED, DROPPED], "gradient 0 of staleness 0 was dropped"),  # by one that drops nothing
        ([*DONE, DROPPED], DROPPED_TWICE),
        ([*QUEUED, STALE, DROPPED], DROPPED_TWICE),
    ],
    ids=lambda x: x if isinstance(x, str) else "rows",
)
def test_an_event_that_is_wrong(rows, message):
    with pytest.raises(ViolationError, match=message) as error:
        follow(checker(), *rows)
    assert str(error.value).startswith("seed 3, at ")


def taken(event, staleness):
    """A gradient so many versions old leaves the queue."""
    versions = [(1.0, "published", "", -1, -1, float(version)) for version in range(1, staleness + 1)]
    return [*QUEUED, *versions, (1.0, event, "", 0, -1, staleness if event == "staleness" else 1.0)]


def test_what_is_too_stale_is_dropped_and_nothing_else():
    """From a staleness of 2 on, each once; what was dropped is not queued again, and is not among what is left."""

    def dropping():
        return checker(system=Stellaris(ALGORITHM, learners=2, aggregator=fully_asynchronous(capacity=2, drop_from=2)))

    for event, staleness in (("staleness", 1), ("dropped_gradient", 2), ("dropped_gradient", 3)):
        seen = follow(dropping(), *taken(event, staleness))
        assert (seen.applied, seen.pushed) == ({0}, {})
    for rows, message in (
        (taken("dropped_gradient", 1), "gradient 0 of staleness 1 was dropped"),
        (taken("staleness", 2), "gradient 0 of staleness 2 was not dropped"),
        ([*taken("dropped_gradient", 2), DROPPED], DROPPED_TWICE),
        (
            [*taken("dropped_gradient", 2), (1.0, "staleness", "", 0, -1, 1.0)],
            "gradient 0 was applied without being queued, or twice",
        ),
        ([*taken("dropped_gradient", 2), PUSHED], "gradient 0 was queued twice"),
    ):
        with pytest.raises(ViolationError, match=message):
            follow(dropping(), *rows)


def applied(staleness, learners):
    """A gradient so many versions old is applied alone, while so many learners run."""
    versions = [(1.0, "published", "", -1, -1, float(version)) for version in range(1, staleness + 1)]
    more = [row for i in range(learners) for row in submitted(10 + i)]
    return [*more, *QUEUED, *versions, (1.0, "staleness", "", 0, -1, staleness), *submitted(5, "parameter", at=1.0)]


def test_the_threshold_allows_what_is_fresh_or_full_or_last():
    """Its limit is 1 in round 0: a gradient two versions old, with another learner on its way, has to wait."""
    follow(checker(), *applied(1, learners=1))
    follow(checker(), *applied(2, learners=0))
    follow(checker(system=Synchronous(ALGORITHM)), *applied(2, learners=1))
    with pytest.raises(
        ViolationError, match=r"a group of staleness \[2\.0\] was applied in round 0: the threshold is 1"
    ):
        follow(checker(), *applied(2, learners=1))
    left = [*PUBLISHED, *running(0, 0), *running(1, 1, slot=1), PUSHED, (1.0, "pushed", "", 1)]
    with pytest.raises(ViolationError, match="the queue was left with 1 gradients"):
        follow(checker(), *left, STALE, *submitted(5, "parameter", at=1.0))


LARGE = Resources(memory=2.0, vcpus=1.0, gpu_slots=1)


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ({"learner": {"max_concurrency": 1}}, "learner has 2 containers"),
        ({"learner": {"reserved_concurrency": 1}}, "learner runs 2 at once"),
        ({"max_concurrency": 1}, "2 unreserved invocations run at once"),
        ({"nodes": (Node("n", memory=3.0, vcpus=9.0, gpus=2),)}, r"containers use 4\.0 memory, the nodes have 3\.0"),
        ({"nodes": (Node("n", memory=9.0, vcpus=1.0, gpus=2),)}, r"containers use 2\.0 vcpus, the nodes have 1\.0"),
        ({"nodes": (Node("n", memory=9.0, vcpus=9.0, gpus=1),)}, "containers use 2 GPU slots, the nodes have 1"),
    ],
)
def test_limits(more, message):
    options = {**more, "learner": {"resources": LARGE, **more.get("learner", {})}}
    limited = follow(checker(**options), *running(0, 0))
    assert limited.busy["learner"] == 1
    with pytest.raises(ViolationError, match=message):
        follow(checker(**options), *running(0, 0), *running(1, 1, slot=1))


# ---- the end --------------------------------------------------------------------------------------------------------


class End:
    def __init__(self, seed):
        plan = scenario(seed)
        self.checker = Checker(plan)
        platform = plan.platform(on_event=self.checker)
        result = train(plan.system, plan.workload, platform=platform, budget=plan.budget, prices=PRICES, seed=seed)
        self.checker(platform)
        self.trace, self.bills, self.history = result.trace, dict(result.bill), [dict(row) for row in result.history]

    def finish(self):
        self.checker.finish(self.trace, self.bills, self.history)

    def call(self, function):
        calls = self.checker.calls.values()
        return next(call for call in calls if (call.function, call.ending) == (function, "completed"))

    def change(self, function, ending, ended):
        """Changes how the first completed invocation ended."""
        call = self.call(function)
        call.ending, call.ended = ending, ended

    def bill(self, sheet, more, parts):
        """Raises a bill's total, and replaces some of its parts."""
        bill = self.bills[sheet]
        self.bills[sheet] = SimpleNamespace(total=bill.total + more, parts={**bill.parts, **parts})


#: One change to a run, by the error that it causes.
CHANGES = {
    "invocation 0 never ended": lambda end: end.change("actor", "", math.nan),
    "containers outlived the platform": lambda end: end.checker.live["actor"].add(0),
    "the run stopped at 0 steps and .*: a deadlock": lambda end: end.history[-1].update(steps=0.0, seconds=0.0),
    "gradients should be left": lambda end: end.checker.pushed.update({10**6: 10**6}),
    "steps were sampled, and .* accounted for": lambda end: end.trace.append(end.checker.now, "sampled", value=1.0),
    r"the result of actor \d+ was lost": lambda end: end.checker.delivered.remove(end.call("actor").key),
    r"the result of learner \d+ was lost": lambda end: end.checker.applied.remove(end.call("learner").key),
    r"parameter \d+ was given up on": lambda end: end.change("parameter", "crashed", -math.inf),
    "actor costs .*, not": lambda end: end.bill("by use", 1, {"actor": end.bills["by use"].parts["actor"] + 1}),
    "bill and parts differ": lambda end: end.bill("machines", 1, {}),
    "vm costs": lambda end: end.bill("machines", -end.bills["machines"].total, {"vm": 0.0}),
}


@pytest.mark.slow
@pytest.mark.parametrize("message", CHANGES)
def test_what_a_run_leaves(message):
    end = End(1)
    end.finish()
    CHANGES[message](end)
    with pytest.raises(ViolationError, match=message):
        end.finish()
