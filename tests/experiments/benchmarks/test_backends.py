"""What the comparison of backends calls, on a simulated platform."""

import pytest

from experiments.benchmarks import backends
from stellaris.runtime import FunctionSpec, SimulatedPlatform
from stellaris.runtime.delays import Constant


@pytest.fixture
def platform():
    with SimulatedPlatform({"function": FunctionSpec(Constant(1.0), max_concurrency=8)}) as made:
        yield made


@pytest.mark.parametrize("at_once", [1, 4])
def test_calls(platform, at_once, monkeypatch):
    monkeypatch.setattr(backends, "CALLS", 20)
    assert backends._calls(platform, at_once) > 0
    assert len(platform.trace.invocations().number) == 20
    assert platform.next_completion() is None


def test_every_container_is_new_and_then_reads_the_version(platform):
    assert backends._new_containers(platform) > 0
    assert platform.trace.invocations().cold.sum() == backends.CONTAINERS
    assert backends._broadcast(platform) > 0
    assert len(platform.trace.invocations().number) == 2 * backends.CONTAINERS


def test_the_table(monkeypatch):
    """The median with the least and the most of three turns, and the ratio of the medians."""
    several = iter([1.0, 10.0, 3.0, 30.0, 2.0, 20.0])
    monkeypatch.setattr(backends, "MEASUREMENTS", (backends.Measurement("it", lambda _: next(several), ".0f"),))
    made = {name: lambda: SimulatedPlatform({"function": FunctionSpec(Constant(0.0))}) for name in ("Ray", "Dask")}
    monkeypatch.setattr(backends, "_started", lambda clusters: made)
    (row,) = backends.measure(lambda line: None, turns=3)
    assert (row.measured, row.against, row.ratio) == ("20 (10 to 30)", "2 (1 to 3)", 10.0)
