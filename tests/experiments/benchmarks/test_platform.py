"""What the platform's benchmarks run, made small: the work is done; the figures are not judged here."""

import itertools

import numpy as np
import pytest

from experiments.benchmarks import platform
from stellaris.runtime import SimulatedPlatform
from stellaris.runtime.trace.trace import Trace

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """A glance instead of a measurement."""
    for name, number in (("REQUESTS", 60), ("REPEATS", 1), ("LONG", 300)):
        monkeypatch.setattr(platform, name, number)


def test_every_request_is_run(monkeypatch):
    """Submitted in parts or at once, and each with a body of its own, as it is asked for."""
    made, invoked, invoke = itertools.count(), [], SimulatedPlatform.invoke

    def counted(self, function, body, *arguments, **options):
        invoked.append(options["at"])
        return invoke(self, function, body, *arguments, **options)

    monkeypatch.setattr(SimulatedPlatform, "invoke", counted)

    def body():
        next(made)
        return lambda context: None

    for at_once in (7, 60):
        invoked.clear()
        assert platform._open_loop(0.9, 2.0, 10.0, 0, body, at_once) > 0
        assert len(invoked) == 60
        assert invoked == sorted(invoked)
        assert np.mean(np.diff(invoked)) == pytest.approx(1 / 0.9, rel=0.5)
    assert next(made) == 120


def test_ours_and_simfaas_are_given_the_same_load():
    """A ratio of requests per second, each of as many requests."""
    row = platform._against_simfaas(5.0, 2.0, 5.0, body=lambda: platform.no_op, what="it")
    assert row.ratio > 0
    assert row.what == "invocations/s, arrivals 5.0/s of 2.0 s, kept 5 s, it, against SimFaaS"
    simulator = platform.simfaas(5.0, 2.0, 5.0, requests=60)
    assert simulator.max_time == 12.0


def test_functions_are_kept_busy():
    """As many at a time as are said: whenever one ends, another is submitted."""
    with platform._kept_busy(5) as busy:
        platform._follow(busy, 20)
        trace = busy.trace
        assert len(trace.select("submitted").value) == 25
        assert len(trace.select("completed").value) == 20
    assert platform._closed_loop(5, 20, 0) > 0


def test_actors_run_in_one_call_and_apart(monkeypatch):
    """Both ways are run to their ends; a few steps say nothing about their speed."""
    for name, few in {"ACTORS": 2, "FRAGMENT": 4, "REPEATS": 1}.items():
        monkeypatch.setattr(platform, name, few)
    assert platform._actors().ratio > 0


def test_a_trace_of_so_many():
    """All of them complete."""
    trace = platform._trace_of(300)
    assert isinstance(trace, Trace)
    assert len(trace.select("completed").value) == 300


def test_long_traces_are_held_and_exported():
    """Memory and seconds, each against its limit."""
    memory, export = platform._long_trace()
    assert memory.what.startswith("memory of a trace of 300 invocations")
    assert export.ratio == pytest.approx(float(export.measured.split()[0]) / 30, abs=0.1)


def test_the_scenario_of_both_clocks():
    """In virtual time: all 24 end, in order, after at most three actors at a time."""
    end, ends = platform._scenario("virtual")
    numbers, times = zip(*ends, strict=True)
    assert sorted(numbers) == list(range(24))
    assert list(times) == sorted(times)
    assert 24 * 0.15 < end < 30


def test_order_is_compared_where_it_is_certain(monkeypatch):
    """Of three pairs of neighbours two are more than 50 ms apart, and one of these changes places."""
    runs = {
        "virtual": (2.0, [(0, 0.1), (1, 0.2), (2, 0.21), (3, 2.0)]),
        "wall": (3.0, [(1, 0.1), (0, 0.2), (2, 0.3), (3, 3.0)]),
    }
    monkeypatch.setattr(platform, "_scenario", runs.__getitem__)
    time, order = platform._wall_clock()
    assert time.ratio == 1.5
    assert (order.measured, order.against, order.ratio) == ("1", "2", 0.5)


def test_trees_are_taken_apart(monkeypatch):
    """The stack of two trees, and the two."""
    monkeypatch.setattr(platform, "TOGETHER", 2)
    first, second = platform._unstacked({"a": np.array([[1, 2], [3, 4]])})
    np.testing.assert_array_equal(first["a"], [1, 2])
    np.testing.assert_array_equal(second["a"], [3, 4])
