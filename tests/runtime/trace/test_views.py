"""The table of invocations."""

import math

import numpy as np

from stellaris.runtime import Trace
from stellaris.runtime.endings import ENDINGS
from tests.runtime.trace.traces import recorded_run


def test_invocations():
    table = recorded_run().invocations()
    assert table.names == ("b", "a")
    assert table.number.tolist() == [0, 1, 2, 3, 4, 5, 6]
    assert [table.names[i] for i in table.function] == ["b", "a", "a", "b", "b", "b", "b"]
    assert table.key.tolist() == [0, 1, 2, 0, 4, 5, 6]
    assert table.submitted.tolist() == [0.0, 1.0, 1.0, 2.5, 3.5, 4.0, 4.25]
    np.testing.assert_array_equal(table.acquired, [0.0, 1.0, math.nan, 2.5, 5.0, 6.5, math.nan])
    assert table.cold.tolist() == [True, True, False, True, True, False, False]
    np.testing.assert_array_equal(table.started, [0.5, 1.0, math.nan, 3.0, 5.5, 6.5, math.nan])
    crashed = table.ended[1]
    assert 1.0 < crashed < 2.0
    assert table.ended.tolist() == [2.5, crashed, 1.0, 5.0, 6.5, 7.0, 7.0]
    endings = ["timed_out", "crashed", "throttled", "timed_out", "completed", "cancelled", "cancelled"]
    assert [ENDINGS[code] for code in table.ending] == endings
    assert table.container.tolist() == [0, 1, -1, 2, 3, 3, -1]


def test_invocations_that_have_not_ended():
    trace = Trace()
    trace.append(0.0, "submitted", function="f", invocation=0, value=0)
    trace.append(0.5, "submitted", function="f", invocation=2, value=0)
    trace.append(1.0, "acquired", function="f", invocation=2, container=7, value=1)
    trace.append(1.0, "submitted", function="g", invocation=5, value=5)
    trace.append(1.0, "acquired", function="g", invocation=5, container=8, value=0)
    trace.append(1.0, "started", function="g", invocation=5, container=8)
    trace.append(1.0, "fetched", function="g", invocation=5, value=100)
    table = trace.invocations()
    assert table.number.tolist() == [0, 2, 5]
    assert table.function.tolist() == [0, 0, 1]
    assert table.key.tolist() == [0, 0, 5]
    assert table.container.tolist() == [-1, 7, 8]
    assert table.cold.tolist() == [False, True, False]
    assert table.ending.tolist() == [-1, -1, -1]
    np.testing.assert_array_equal(table.acquired, [math.nan, 1.0, 1.0])
    np.testing.assert_array_equal(table.started, [math.nan, math.nan, 1.0])
    assert np.isnan(table.ended).all()
