"""Traces to begin tests with."""

from stellaris.runtime import Faults, FunctionSpec, SimulatedPlatform, Trace
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import nothing


def by_hand() -> Trace:
    """Six rows of two functions, and one of none."""
    trace = Trace()
    trace.append(0.0, "submitted", function="b", invocation=0)
    trace.append(0.5, "started", function="b", invocation=0, container=3)
    trace.append(1.0, "started", function="a", invocation=1, container=4)
    trace.append(1.5, "episode", value=-2.5)
    trace.append(2.5, "completed", function="b", invocation=0, container=3)
    trace.append(3.0, "started", function="b", invocation=2, container=3)
    return trace


def recorded_run() -> Trace:
    """Cold and warm starts, a retry, a crash, a rejection, and what the end cancels."""
    specs = {
        "b": FunctionSpec(Constant(1.0), Constant(0.5), max_concurrency=1, timeout=2.0),
        "a": FunctionSpec(Constant(1.0), max_concurrency=1, overflow="reject"),
    }
    with SimulatedPlatform(specs, faults={"a": Faults(at={0: ("crash_during",)})}, seed=3) as platform:
        platform.invoke("b", nothing, work=9.0)  # 0: cold, runs 0.5 - 2.5, killed
        platform.invoke("a", nothing, at=1.0)  # 1: crashes between 1 and 2
        platform.invoke("a", nothing, at=1.0)  # 2: rejected
        killed = [platform.next_completion() for _ in range(3)][-1]
        platform.retry(killed)  # 3: cold, runs 3 - 5, killed
        platform.invoke("b", nothing, at=3.5)  # 4: cold again, from 5 on; runs 5.5 - 6.5
        platform.invoke("b", nothing, at=4.0)  # 5: warm, runs 6.5 - 7.5, cancelled at 7
        platform.invoke("b", nothing, at=4.25)  # 6: waits for ever
        platform.invoke("b", nothing, at=50.0)  # 7: never submitted
        while platform.next_completion(until=7.0) is not None:
            pass
    return platform.trace
