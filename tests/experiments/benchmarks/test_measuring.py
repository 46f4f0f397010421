"""Measuring: both sides alike, with a clock that is made up."""

import itertools
from types import SimpleNamespace

import pytest

from experiments.benchmarks import measuring

pytestmark = pytest.mark.slow


@pytest.fixture
def clock(monkeypatch):
    """Seconds that pass only where a side says so."""
    now = [0.0]
    monkeypatch.setattr(measuring, "time", SimpleNamespace(perf_counter=lambda: now[0]))

    def side(seconds, calls):
        each = itertools.cycle(seconds)

        def call():
            calls.append(1)
            now[0] += next(each)

        return call

    return side


def test_a_fast_side_is_called_as_often_as_fills_a_measurement(clock):
    """By hand: 3 + 3 calls to know how long one takes, then 25 measurements of 10 ms."""
    fast, slow = [], []
    times = measuring.interleaved({"fast": clock([2**-10], fast), "slow": clock([1.0], slow)})
    assert times == {"fast": 2**-10, "slow": 1.0}
    assert len(fast) == 6 + 25 * 10  # 10 ms hold ten calls of 2**-10 s
    assert len(slow) == 6 + 25 * 1


def test_one_slow_measurement_does_not_count(clock):
    assert measuring.interleaved({"it": clock([1.0] * 6 + [17.0] + [1.0] * 24, [])}) == {"it": 1.0}
