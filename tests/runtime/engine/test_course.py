"""The course of a call: what a recorded run says of it, and what it does not."""

import math

from stellaris.runtime import FunctionSpec, Recording, SimulatedPlatform
from stellaris.runtime.delays import Exponential


def test_beyond_the_recording():
    deployment = {"f": FunctionSpec(Exponential(1.0))}

    def finished(calls, seed, replay=None):
        with SimulatedPlatform(deployment, seed=seed, replay=replay) as platform:
            for _ in range(calls):
                platform.invoke("f", lambda context: None)
            done = sorted(iter(platform.next_completion, None), key=lambda d: d.number)
        return [d.finished for d in done], platform.trace

    first, trace = finished(3, seed=1)
    second, _ = finished(5, seed=2, replay=Recording(trace))
    assert second[:3] == first
    assert second[3:] == finished(2, seed=2)[0]
    assert Recording(trace).get("f", 3) is None
    assert Recording(trace).get("g", 0) is None


def test_what_had_not_ended_is_not_replayed():
    with SimulatedPlatform({"f": FunctionSpec(Exponential(1.0))}) as platform:
        platform.invoke("f", lambda context: None)
        platform.invoke("f", lambda context: None, work=1e6)
        platform.next_completion()
        running = Recording(platform.trace)
    for replay in (running, Recording(platform.trace)):
        assert replay.get("f", 0).ending == "completed"
    assert running.get("f", 1) is None


def test_what_was_cancelled_goes_on():
    deployment = {"f": FunctionSpec(Exponential(1.0), cold_start=Exponential(1.0), max_concurrency=1)}

    def run(seed, replay=None, until=math.inf):
        with SimulatedPlatform(deployment, seed=seed, replay=replay) as platform:
            calls = [platform.invoke("f", lambda context: None, work=work) for work in (1.0, 50.0, 1.0)]
            while platform.next_completion(until=until):
                pass
        return calls, platform.trace

    first, trace = run(1, until=6.0)
    assert [call.status for call in first] == ["completed", "cancelled", "cancelled"]
    again, _ = run(2, Recording(trace))
    assert [call.started for call in again[:2]] == [call.started for call in first[:2]]
    assert again[0].finished == first[0].finished
    assert again[1].finished > 6.0
    assert again[2].started >= again[1].finished
    for cut in (5.0, 6.0):  # nor does it end before
        assert list(run(3, Recording(trace), until=cut)[1].rows()) == list(run(1, until=cut)[1].rows())
