"""Functions: deployments and programs that are refused, and results before the end."""

import importlib.util
import math
import sys

import pytest

from stellaris.runtime import Function, FunctionError, FunctionSpec, Retry, SimulatedPlatform, Transfer, functions
from stellaris.runtime.delays import Constant, Measured
from tests.runtime.helpers import deploy, nothing, spec


def test_a_latency_cannot_be_measured():
    """It is refused at once, not when it is drawn."""
    with pytest.raises(ValueError, match=r"latency=Measured\(\)"):
        Transfer(latency=Measured(), bandwidth=1.0)


def test_results_are_not_there_before_the_end():
    """Asking for one says how far the invocation is."""
    with deploy(1.0, cold_start=1.0) as platform:
        invocation = platform.invoke("f", lambda context: "value")
        for until, status in [(0.5, "pending"), (1.5, "running")]:
            assert platform.next_completion(until=until) is None
            assert invocation.status == status
            with pytest.raises(FunctionError, match=f"invocation 0 .attempt 1. {status}"):
                invocation.result()
        platform.next_completion()
        assert invocation.result() == "value"


def test_rules_are_some_of_several(monkeypatch):
    """And an unknown one says so, where no type checker of the tests does so before."""
    source = importlib.util.spec_from_file_location("unchecked_functions", functions.__file__)
    unchecked = importlib.util.module_from_spec(source)
    monkeypatch.setitem(sys.modules, "unchecked_functions", unchecked)
    source.loader.exec_module(unchecked)
    with pytest.raises(ValueError, match="reuse='oldest' is unknown: choose one of newest, most_recent, least_recent"):
        unchecked.FunctionSpec(Constant(1.0), reuse="oldest")
    with pytest.raises(ValueError, match="overflow='drop' is unknown: choose one of queue, reject"):
        unchecked.FunctionSpec(Constant(1.0), overflow="drop")


@pytest.mark.parametrize(
    ("policy", "attempt", "seconds"),
    [
        (Retry(first=1.0, factor=1.01), 300, 1.01**298),
        (Retry(first=1.0, factor=1.01), 10_000, 60.0),
        (Retry(first=1.0, factor=1e9), 101, 60.0),
        (Retry(first=0.0, factor=1e9), 101, 0.0),
        (Retry(first=1e-300, factor=1e9, maximum=1e300), 101, 1e300),
        (Retry(first=1.0, factor=1.0), 10_000, 1.0),
        (Retry(first=0.5, factor=2.0, jitter=0.5), 3, 1.0),
    ],
)
def test_waits_grow_up_to_their_maximum(policy, attempt, seconds):
    """However many attempts that takes, and whatever their power would overflow to."""
    assert policy.wait(attempt) == pytest.approx(seconds)


def test_limits_below_one():
    """Nothing could ever run."""
    with pytest.raises(ValueError, match="max_concurrency=0 is below 1"):
        SimulatedPlatform({"f": spec()}, max_concurrency=0)
    with pytest.raises(ValueError, match="reserved_concurrency=0 is below 1"):
        deploy(reserved_concurrency=0)


@pytest.mark.parametrize(("provisioned", "limit"), [(-1, None), (3, 2)])
def test_how_many_may_be_provisioned(provisioned, limit):
    """Between none and the limit."""
    with pytest.raises(ValueError, match=f"provisioned={provisioned} is not between 0 and max_concurrency="):
        deploy(provisioned=provisioned, max_concurrency=limit)


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FunctionSpec(Constant(1.0), transfer=Constant(1.0)), TypeError, r"transfer=.*: expected Transfer\("),
        (lambda: FunctionSpec(Constant(1.0), resources=4), TypeError, r"resources=4: expected Resources\("),
        (lambda: FunctionSpec(Constant(1.0), retry=3), TypeError, r"retry=3: expected Retry\("),
        (lambda: Function(3), TypeError, "body=3 cannot be called"),
        (lambda: Function(nothing, upload=-1), ValueError, "upload=-1 is negative"),
        (lambda: Function(nothing, max_batch=math.nan), ValueError, "max_batch=nan is below 1"),
        (lambda: Retry(limit=math.nan), ValueError, "limit=nan is below 1"),
        (lambda: FunctionSpec(Constant(1.0), max_concurrency=math.nan), ValueError, "max_concurrency=nan is below 1"),
        (lambda: FunctionSpec(Constant(1.0), reserved_concurrency=math.nan), ValueError, "reserved_concurrency=nan is"),
    ],
)
def test_arguments_of_another_kind(unchecked, make, error, message):
    """Are named at once, with what is expected."""
    with pytest.raises(error, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: FunctionSpec(Constant(1.0), cold_start=Measured()), ValueError, "only a compute time can be meas"),
        (lambda: FunctionSpec(Constant(1.0), queueing=Measured()), ValueError, "only a compute time can be meas"),
        (lambda: FunctionSpec(Constant(1.0), keep_alive=-1.0), ValueError, "keep_alive=-1.0 is negative"),
        (lambda: FunctionSpec(Constant(1.0), max_concurrency=0), ValueError, "max_concurrency=0 is below 1"),
        (lambda: FunctionSpec(Constant(1.0), timeout=0.0), ValueError, "timeout=0.0 is not positive"),
        (lambda: Transfer(Constant(0.1), 0.0), ValueError, "bandwidth=0.0 is not positive"),
        (lambda: Function(nothing, max_batch=0), ValueError, "max_batch=0 is below 1"),
        (lambda: Retry(limit=0), ValueError, r"limit=0"),
        (lambda: Retry(first=-1.0), ValueError, r"first=-1\.0"),
        (lambda: Retry(factor=0.5), ValueError, r"factor=0\.5"),
        (lambda: Retry(jitter=2.0), ValueError, r"jitter=2\.0"),
    ],
)
def test_what_is_refused(make, error, message):
    """At once: the argument, its value, and what it should be."""
    with pytest.raises(error, match=message):
        make()
