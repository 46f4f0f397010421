"""What is measured on a cluster, as it goes into a simulation."""

import numpy as np
import pytest

from experiments.cluster import vs_simulation as comparison
from experiments.cluster.on_cluster import contenders
from experiments.tasks.presets import tuned
from stellaris.runtime import FunctionSpec, SimulatedPlatform, Trace
from stellaris.runtime.delays import Constant
from stellaris.systems import Budget, train

WORKLOAD = tuned("CartPole-v1").workload


def call(trace, name, number, times, computed):
    """The rows of an invocation: submitted, started and completed at these times."""
    submitted, started, completed = times
    trace.append(submitted, "submitted", function=name, invocation=number)
    trace.append(started, "started", function=name, invocation=number)
    trace.append(completed, "computed", function=name, invocation=number, value=computed)
    trace.append(completed, "completed", function=name, invocation=number)


def test_delays_of_a_trace_by_hand():
    """Compute per unit of work; transfer is what is left; a submission follows the completion that was handled last."""
    trace = Trace()
    call(trace, "actor", 0, (0.0, 0.0, 1.0), computed=9.0)  # before what counts
    call(trace, "actor", 1, (1.5, 1.6, 2.6), computed=0.8)
    call(trace, "learner", 2, (2.7, 2.7, 3.0), computed=0.3)
    found = comparison._delays(trace, {"actor": 4.0, "learner": 1.0, "parameter": 1.0}, since=1.0)
    assert {*found} == {"actor", "learner"}
    assert found["actor"].compute == [pytest.approx(0.2)]
    assert found["actor"].transfer == [pytest.approx(0.2)]
    assert found["actor"].before == [pytest.approx(0.5)]
    assert found["learner"].compute == [pytest.approx(0.3)]
    assert found["learner"].transfer == [pytest.approx(0.0)]
    assert found["learner"].before == [pytest.approx(0.1)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["stellaris", "asynchronous actors"])
def test_work_is_what_systems_ask_for(name):
    """As a unit of work takes a second, an invocation of a simulated run takes its units in seconds."""
    (row,) = (row for row in contenders("CartPole-v1", actors=2, learners=2) if row.name == name)
    work = comparison._work(row, WORKLOAD)
    functions = {function: FunctionSpec(Constant(1.0)) for function in row.functions}
    budget = Budget(steps=2 * WORKLOAD.actors * WORKLOAD.fragment)
    calls = train(row.system, WORKLOAD, platform=SimulatedPlatform(functions), budget=budget).trace.invocations()
    completed = np.isfinite(calls.ended) & np.isfinite(calls.started)
    for function, units in work.items():
        if function in row.functions:
            mine = completed & (calls.function == calls.names.index(function))
            assert mine.any()
            # What is cancelled at the end takes less.
            assert np.median((calls.ended - calls.started)[mine]) == pytest.approx(units)


def test_distance_of_distributions():
    """The share that would have to move: of 0, 0, 1, 1 and 0, 1, 1, 2 a quarter."""
    assert comparison._distance(np.array([0, 0, 1, 1]), np.array([0, 1, 1, 2])) == pytest.approx(0.25)
