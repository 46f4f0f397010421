"""Recordings: another run meets the same schedule."""

import math

import numpy as np
import pytest

from stellaris import softsync
from stellaris.runtime import Faults, FunctionSpec, Recording, SimulatedPlatform
from stellaris.runtime.delays import Exponential, Gamma, LogNormal
from stellaris.runtime.endings import ENDINGS
from stellaris.systems import Budget, Stellaris, train
from tests.systems import tiny

SCHEDULE = ("submitted", "acquired", "started", "published", "noticed", "redelivered", *ENDINGS)


DEPLOYMENT = tiny.deployment(
    LogNormal(0.01, 0.5), Gamma(0.1, 1.0), LogNormal(0.02, 0.5), cold_start=LogNormal(0.3, 0.5), timeout=0.6
)


FAULTS = Faults(
    crash_during=0.1, crash_before=0.05, lose=0.1, duplicate=0.1, throttle=0.1, notice_after=Exponential(0.3)
)


def run(system, seed=0, **options):
    """A run of a few rounds."""
    platform = SimulatedPlatform(DEPLOYMENT, seed=seed, threads=1, **options)
    return train(system, tiny.WORKLOAD, platform=platform, budget=Budget(steps=32 * 6), prices=tiny.PRICES)


def schedule(trace):
    """What happened when, to whom, and with which version."""
    return [(row[:4], row[5]) for row in trace.rows() if row[1] in SCHEDULE]


@pytest.fixture(scope="module")
def recorded():
    """A run with everything that can happen."""
    result = run(Stellaris(tiny.PPO_CONFIG, learners=3), faults=dict.fromkeys(DEPLOYMENT, FAULTS))
    for event in ("completed", "crashed", "lost", "throttled", "redelivered", "noticed"):
        assert len(result.trace.select(event).time), event
    return result


@pytest.mark.slow
def test_the_same_system_is_the_same_run(recorded):
    """Bit for bit, also with another seed of the platform, whose delays would be others: actions do not hang on it."""
    again = run(Stellaris(tiny.PPO_CONFIG, learners=3), replay=Recording(recorded.trace))
    assert schedule(again.trace) == schedule(recorded.trace)
    assert repr(again.history) == repr(recorded.history)
    other = run(Stellaris(tiny.PPO_CONFIG, learners=3), seed=5, replay=Recording(recorded.trace))
    assert schedule(other.trace) == schedule(recorded.trace)
    assert repr(other.history) == repr(recorded.history)
    assert schedule(run(Stellaris(tiny.PPO_CONFIG, learners=3), seed=5).trace) != schedule(recorded.trace)


def test_a_call_that_was_withdrawn_keeps_its_place():
    """It was cancelled before its instant, so no other call of the function repeats it."""
    replay, ends = None, []
    for seed in (1, 2):
        with SimulatedPlatform({"f": FunctionSpec(Exponential(1.0))}, seed=seed, replay=replay) as platform:
            gone = platform.invoke("f", lambda context: 0, at=5.0)
            platform.invoke("f", lambda context: 1)
            platform.cancel(gone)
            platform.invoke("f", lambda context: 2)
            ends.append({call.number: call.finished for call in iter(platform.next_completion, None)})
            assert platform.trace.select("withdrawn").invocation.tolist() == [0]
            assert platform.trace.invocations().number.tolist() == [1, 2]
            replay = Recording(platform.trace)
    assert ends[0] == ends[1]
    assert set(ends[0]) == {1, 2}


@pytest.mark.slow
def test_another_loss_meets_the_same_schedule(recorded):
    other = run(Stellaris(tiny.PPO_CONFIG, learners=3, rho=math.inf), replay=Recording(recorded.trace))
    assert schedule(other.trace) == schedule(recorded.trace)
    assert other.history[-1]["kl"] != recorded.history[-1]["kl"]


@pytest.mark.slow
def test_another_aggregator_meets_the_same_delays(recorded):
    """The n-th invocation of a function waits and computes as long as the n-th did, whenever it is submitted."""
    other = run(Stellaris(tiny.PPO_CONFIG, learners=3, aggregator=softsync(2)), replay=Recording(recorded.trace))
    assert schedule(other.trace) != schedule(recorded.trace)
    before, after = recorded.trace.invocations(), other.trace.invocations()
    compared = 0
    for name in DEPLOYMENT:
        one, two = (np.flatnonzero(table.function == table.names.index(name))[:200] for table in (before, after))
        for i, j in zip(one, two, strict=False):
            if ENDINGS[before.ending[i]] == "cancelled" or ENDINGS[after.ending[j]] == "cancelled":
                continue
            assert ENDINGS[before.ending[i]] == ENDINGS[after.ending[j]]
            for begin, end in (("started", "ended"), ("acquired", "started")):
                a, b = (getattr(t, end)[k] - getattr(t, begin)[k] for t, k in ((before, i), (after, j)))
                np.testing.assert_allclose(a, b, rtol=1e-9, atol=1e-12)
            compared += 1
    assert compared > 60


@pytest.mark.slow
def test_a_replay_has_no_faults_of_its_own(recorded):
    with pytest.raises(ValueError, match="replay and faults"):
        SimulatedPlatform(DEPLOYMENT, replay=Recording(recorded.trace), faults={"actor": FAULTS})
