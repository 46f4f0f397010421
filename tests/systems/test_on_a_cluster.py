"""Every system runs on a Ray cluster as it does in simulation: the same loops, trace and history, in real time."""

import math
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import numpy as np
import pytest

from stellaris import IMPACT, IMPALA, PPO
from stellaris.replay import Episodes
from stellaris.runtime import FunctionSpec, RayPlatform, SimulatedPlatform
from stellaris.runtime.delays import Constant, Measured
from stellaris.runtime.endings import ENDINGS
from stellaris.scheduling.rules import Stepped
from stellaris.systems import (
    AsynchronousActors,
    Budget,
    CentralInference,
    CircularReplay,
    DataParallel,
    MinionsRL,
    Result,
    Stellaris,
    Synchronous,
    System,
    train,
)
from tests.systems import tiny

pytestmark = pytest.mark.slow

ALGORITHM = PPO(learning_rate=1e-2, epochs=1, minibatch_size=16)
#: Each function has one container, so that a run has three at most: the workload's actors take turns in theirs.
SYSTEMS: dict[str, System] = {
    "synchronous": Synchronous(ALGORITHM),
    "asynchronous actors": AsynchronousActors(IMPALA(learning_rate=1e-2, minibatch_size=2)),
    "impact": CircularReplay(IMPACT(learning_rate=1e-2, epochs=1, minibatch_size=16), passes=2),
    "data-parallel": DataParallel(ALGORITHM, learners=2),
    "central inference": CentralInference(ALGORITHM),
    "minionsrl": MinionsRL(ALGORITHM, scheduler=Stepped(first=2, change=-1, every=1)),
    "stellaris": Stellaris(ALGORITHM, learners=1),
}
ASYNCHRONOUS = ("asynchronous actors", "impact", "stellaris")
ROUNDS = 3
#: Steps of a fragment.
FRAGMENT = 16


def functions(system: System) -> dict[str, FunctionSpec]:
    """One container of each; one actor where each has a container of its own."""
    return {name: FunctionSpec(Measured(), max_concurrency=1) for name in system.functions}


def run(system: System, platform) -> Result:
    actors = 1 if isinstance(system, CentralInference) else 2
    fragment = 4 if actors == 1 else FRAGMENT
    workload = replace(tiny.WORKLOAD, actors=actors, fragment=fragment)
    if actors == 1:
        system = replace(system, algorithm=replace(system.algorithm, minibatch_size=4))
    budget = Budget(steps=ROUNDS * actors * fragment)
    episodes = Episodes(length=500)
    options = {"prices": tiny.PRICES[:1], "on_fragment": episodes.add}
    result = train(system, workload, platform=platform, budget=budget, **options)
    assert len(episodes) == len(result.trace.select("episode").value)  # what actors deliver makes whole episodes
    return result


# Environments silence this when they are made, which Python does for all threads at once, or for none.
@pytest.mark.filterwarnings("ignore:.*precision lowered")
def test_every_system_runs(ray_on_this_machine: None) -> None:
    """To its budget, with the history's columns of simulation, and all that it did in the trace.

    Two at a time, because a run waits for one process after the other to start.
    """
    with ThreadPoolExecutor(2) as pool:
        results = pool.map(lambda system: run(system, RayPlatform(functions(system))), SYSTEMS.values())
        for name, result in zip(SYSTEMS, results, strict=True):
            look_at(name, result)


def look_at(name: str, result: Result) -> None:
    system = SYSTEMS[name]
    drawn = {name: replace(spec, compute=Constant(0.01)) for name, spec in functions(system).items()}
    simulated = run(system, SimulatedPlatform(drawn))
    assert columns(result) == columns(simulated)
    first, last = result.history[0], result.history[-1]
    assert last["steps"] >= simulated.history[-1]["steps"] > 0
    assert last["gradients"] > 0
    assert last["seconds"] > first["seconds"] > 0
    assert all(math.isfinite(row["policy_loss"]) for row in result.history if "policy_loss" in row)
    assert last["cost_demo"] == pytest.approx(0.01 * last["seconds"])
    consistent(result)
    lags = any(row.get("lag_mean", 0.0) > 0 for row in result.history)
    if name in ASYNCHRONOUS:
        assert sampled_on(result)
    if name not in ("impact", "stellaris"):
        # One learner takes a batch when the batch before has been learned from, so that its lag does not depend on the
        # real durations. The others take it once it is whole, perhaps before the next version is published.
        assert lags == (name in ASYNCHRONOUS)
    if name == "stellaris":
        stale(result)


def sampled_on(result: Result) -> bool:
    """Returns whether an actor was asked for a second fragment before the first gradient was applied.

    The loop's order alone decides this.
    """
    rows = [*result.trace.rows()]
    applied = next(i for i, (_, event, *_) in enumerate(rows) if event == "staleness")
    return sum((event, function) == ("submitted", "actor") for _, event, function, *_ in rows[:applied]) > 2


def columns(result: Result) -> set[str]:
    """The history's, but those of single policy lags, and of episodes, which end when they do."""
    found = {name for row in result.history for name in row}
    return {name for name in found if not re.match(r"lag\d|.*(return|length|lost)", name)}


def stale(result: Result) -> None:
    """Each gradient is as stale as versions were published since its learner started."""
    trace = result.trace
    newest = np.searchsorted(trace.select("published").time, trace.invocations().started, side="right") - 1
    applied = trace.select("staleness")
    assert len(applied.value) >= 2
    assert len(set(applied.invocation.tolist())) == len(applied.invocation)  # each once
    at = np.searchsorted(trace.select("published").time, applied.time, side="right") - 1
    assert (at - newest[applied.invocation]).tolist() == applied.value.tolist()


def consistent(result: Result) -> None:
    events: dict[int, list[str]] = {}
    for _, event, _, invocation, _, _ in result.trace.rows():
        if event in ("submitted", *ENDINGS):
            events.setdefault(invocation, []).append(event)
    assert all(life[0] == "submitted" and len(life) == 2 for life in events.values())
    assert not any(life[1] in ("failed", "crashed", "timed_out") for life in events.values())
    versions = result.trace.select("published").value
    assert versions.tolist() == list(range(len(versions)))
    for column in ("seconds", "steps", "version", "gradients"):
        assert np.all(np.diff([row[column] for row in result.history]) >= 0)
