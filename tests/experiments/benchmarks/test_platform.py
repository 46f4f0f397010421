"""What the platform's benchmarks run, made small: the work is done; the figures are not judged here."""

import pytest

from experiments.benchmarks import platform

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def small(monkeypatch):
    for name, number in (("REQUESTS", 60), ("REPEATS", 1), ("LONG", 300)):
        monkeypatch.setattr(platform, name, number)


def test_ours_and_simfaas_are_given_the_same_load():
    row = platform._against_simfaas(5.0, 2.0, 5.0, body=lambda: platform.no_op, what="it")
    assert row.ratio > 0
    assert row.what == "invocations/s, arrivals 5.0/s of 2.0 s, kept 5 s, it, against SimFaaS"
    simulator = platform.simfaas(5.0, 2.0, 5.0, requests=60)
    assert simulator.max_time == 12.0


def test_actors_run_in_one_call_and_apart(monkeypatch):
    """Both ways are run to their ends; a few steps say nothing about their speed."""
    for name, few in {"ACTORS": 2, "FRAGMENT": 4, "REPEATS": 1}.items():
        monkeypatch.setattr(platform, name, few)
    assert platform._actors().ratio > 0


def test_long_traces_are_held_and_exported():
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
