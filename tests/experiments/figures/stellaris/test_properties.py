"""The paper's table of properties, each entry shown in a trace."""

from dataclasses import replace

import numpy as np
import pytest

from experiments.figures.stellaris.properties import PROPERTIES
from stellaris import IMPALA
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import LogNormal
from stellaris.systems import Budget, DataParallel, train
from tests.systems import tiny

_RESULTS = {}


def result(entry, algorithm=tiny.PPO_CONFIG):
    """A run of the system; what is reserved is provisioned, and what is serverless starts on demand."""
    system = entry.system(algorithm)
    if isinstance(system, DataParallel):
        system = replace(system, learners=2)  # a batch has two trajectories
    if system not in _RESULTS:
        platform = SimulatedPlatform(deployment(system), seed=3)
        _RESULTS[system] = train(
            system, tiny.WORKLOAD, platform=platform, budget=Budget(steps=32 * 8), prices=tiny.PRICES
        )
    return _RESULTS[system]


def deployment(system):
    means = {"actor": 0.001, "learner": 0.02, "parameter": 0.005, "inference": 0.001, "all_reduce": 1e-6}
    places = {"actor": tiny.WORKLOAD.actors, "learner": system.learners}
    return {
        name: FunctionSpec(
            LogNormal(means[name], 0.5),
            keep_alive=0.01,
            provisioned=0 if name in system.serverless else places.get(name, 1),
        )
        for name in (*system.functions, *(() if "parameter" in system.functions else ("parameter",)))
    }


@pytest.mark.slow
@pytest.mark.parametrize("framework", PROPERTIES)
def test_asynchronous_learners(framework):
    """Learners that compute at the same time on different versions leave stale gradients behind; others never do."""
    trace = result(PROPERTIES[framework]).trace
    table = trace.invocations()
    learners = table.function == table.names.index("learner")
    started, ended = table.started[learners], table.ended[learners]
    published = np.unique(trace.select("published").time)
    overtaken = sum(np.any((published > start) & (published < end)) for start, end in zip(started, ended, strict=True))
    assert (overtaken > 0) == PROPERTIES[framework].asynchronous_learners
    assert bool(trace.select("staleness").value.any()) == PROPERTIES[framework].asynchronous_learners


@pytest.mark.slow
@pytest.mark.parametrize("framework", PROPERTIES)
def test_scalable_actors(framework):
    """The number of actors' containers changes while it learns, or stays what it is from the start to the end."""
    trace = result(PROPERTIES[framework]).trace
    made = trace.select("container_created", function="actor").time
    ended = trace.select("container_ended", function="actor").time
    finish = trace.select("round").time[-1]
    assert bool(np.any(made > 0) and np.any(ended < finish)) == PROPERTIES[framework].scalable_actors


@pytest.mark.slow
@pytest.mark.parametrize("framework", PROPERTIES)
def test_on_and_off_policy(framework):
    """Every system takes both kinds of algorithm; which data it has tells where the paper counts one kind only.

    A framework of both has data of the newest version. Of the other two SRL, whose actors are asynchronous, has only
    older data once there are two versions, and MinionsRL never any.
    """
    entry = PROPERTIES[framework]
    for algorithm in (tiny.PPO_CONFIG, IMPALA(minibatch_size=2)):
        rows = [row for row in result(entry, algorithm).history if "lag_oldest" in row]
        stale = {row["lag_oldest"] > 0 for row in rows[2:]}  # at the start there is one version only
        assert False in stale if entry.on_and_off_policy else len(stale) == 1
        assert rows[-1]["gradients"] > 0


@pytest.mark.slow
@pytest.mark.parametrize("framework", PROPERTIES)
def test_serverless(framework):
    """What is reserved is there from the start to the end; what is serverless starts cold, and is there when used."""
    entry = PROPERTIES[framework]
    trace = result(entry).trace
    table = trace.invocations()
    cold = {name for name in table.names if np.any(table.cold[table.function == table.names.index(name)])}
    system = entry.system
    assert (cold == set(system.functions)) == entry.serverless
    assert bool(cold) == entry.serverless
