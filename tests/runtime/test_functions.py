"""Functions: deployments and programs that are refused, and results before the end."""

import math

import pytest

from stellaris.runtime import Function, FunctionError, FunctionSpec, Retry, Transfer
from stellaris.runtime.delays import Constant
from tests.runtime.helpers import deploy, nothing, spec


def test_results_are_not_there_before_the_end():
    with deploy(1.0, cold_start=1.0) as platform:
        invocation = platform.invoke("f", lambda context: "value")
        for until, status in [(0.5, "pending"), (1.5, "running")]:
            assert platform.next_completion(until=until) is None
            assert invocation.status == status
            with pytest.raises(FunctionError, match=f"invocation 0 .attempt 1. {status}"):
                invocation.result()
        platform.next_completion()
        assert invocation.result() == "value"


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
    assert policy.wait(attempt) == pytest.approx(seconds)


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
        (lambda: Retry(limit=2.5), TypeError, r"limit=2\.5 is not a whole number"),
        (lambda: Function(nothing, max_batch=1.5), TypeError, r"max_batch=1\.5 is not a whole number"),
        (lambda: FunctionSpec(Constant(1.0), provisioned=1.5), TypeError, r"provisioned=1\.5 is not a whole number"),
        (lambda: FunctionSpec(Constant(1.0), max_concurrency=1.5), TypeError, r"max_concurrency=1\.5 is not a whole"),
        (lambda: FunctionSpec(Constant(1.0), reserved_concurrency=1.5), TypeError, r"reserved_concurrency=1\.5 is not"),
        (lambda: spec(reuse="oldest"), ValueError, "reuse='oldest' is unknown: choose one of newest, most_recent, l"),
        (lambda: spec(overflow="drop"), ValueError, "overflow='drop' is unknown: choose one of queue, reject"),
        (lambda: spec(provisioned=-1), ValueError, "provisioned=-1 is not between 0 and max_concurrency="),
        (lambda: spec(provisioned=3, max_concurrency=2), ValueError, "provisioned=3 is not between 0 and max_concurr"),
        (lambda: FunctionSpec(Constant(1.0), max_concurrency=math.nan), ValueError, "max_concurrency=nan is below 1"),
        (lambda: FunctionSpec(Constant(1.0), reserved_concurrency=math.nan), ValueError, "reserved_concurrency=nan is"),
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
def test_what_is_refused(unchecked, make, error, message):
    with pytest.raises(error, match=message):
        make()
