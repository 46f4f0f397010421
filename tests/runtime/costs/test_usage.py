"""What functions used: exact sums, and seconds that agree with the trace."""

import math
import sys
from collections import defaultdict
from fractions import Fraction

import numpy as np
import pytest

from stellaris.runtime import Faults, Function, FunctionSpec, Machine, PriceSheet, Rate, SimulatedPlatform, Split, Trace
from stellaris.runtime.costs.usage import Spans
from stellaris.runtime.delays import Constant, Exponential, Uniform
from stellaris.runtime.endings import ENDINGS, WASTED
from tests.runtime.helpers import nothing


@pytest.mark.parametrize("seed", range(100))
def test_sums_are_exact(seed: int) -> None:
    """Of any numbers in any order: the parts add up to what fractions do, and the total is that, rounded once."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.0, 5.0, 150.0])
    size = rng.integers(0, 40)
    numbers = (rng.choice([-1.0, 1.0], size) * 10.0 ** rng.uniform(-scale, scale, size)).tolist()
    spans = Spans(0.0)
    for i, number in enumerate(numbers):
        spans.add(number)
        assert sum(map(Fraction, spans._sum)) == sum(map(Fraction, numbers[: i + 1]))
    assert spans.total() == math.fsum(numbers)
    half = Spans(0.0)
    for number in numbers[::2]:
        half.add(number)
    assert half.total(numbers[1::2]) == math.fsum(numbers)
    assert len(spans._sum) <= 1 + (sys.float_info.max_exp - sys.float_info.min_exp) // sys.float_info.mant_dig + 1


SPECS = {
    "a": FunctionSpec(
        Exponential(1.0), Uniform(0.0, 1.0), keep_alive=1.0, timeout=2.0, max_concurrency=3, provisioned=1
    ),
    "b": FunctionSpec(Uniform(0.0, 2.0), Constant(0.5), keep_alive=0.5, initialisation=Exponential(0.5)),
    "c": FunctionSpec(Exponential(1.0), Exponential(0.5), overflow="reject", max_concurrency=2, reuse="least_recent"),
}


FAULTS = {
    "a": Faults(crash_before=0.05, crash_during=0.1, crash_after=0.05, lifetime=Exponential(8.0)),
    "b": Faults(lose=0.1, duplicate=0.1, throttle=0.1, straggle=0.1, lose_containers_at=(1.0, 2.0, 5.0)),
    "c": Faults(crash_during=0.2, lifetime=Exponential(4.0)),
}


RATES = {
    "a": Rate(per_second=1.3, per_request=0.1, cold=True, granularity=0.1),
    "b": Rate(per_gb_second=2.0, per_second=0.1, idle=True, provisioned_per_gb_second=1.0),
    "c": Rate(per_request=0.7),
}


def walked(trace: Trace, until: float) -> tuple[dict[str, dict[str, float]], dict[str, int]]:
    """Seconds of every function's containers, summed up row by row; and how many calls started."""
    seconds, started = defaultdict(lambda: dict.fromkeys(Split._fields, 0.0)), defaultdict(int)
    doing: dict[int, tuple[str, str, float]] = {}  # of a container: its function, what it does, and since when

    def change(number: int, now: float, what: str | None, was: str | None = None) -> None:
        function, before, since = doing.pop(number)
        seconds[function][was or before] += now - since
        if what is not None:
            doing[number] = function, what, now

    for row in trace.to_dataframe().itertuples():
        if row.event == "container_created":
            doing[row.container] = row.function, "cold", row.time
        elif row.event == "container_ready":
            change(row.container, row.time, "idle")
        elif row.event == "started":
            change(row.container, row.time, "busy")
            started[row.function] += 1
        elif row.event == "container_ended":
            change(row.container, row.time, None)
        elif row.event in ENDINGS and row.container >= 0:
            running = doing[row.container][1] == "busy"
            change(row.container, row.time, "idle", "wasted" if running and row.event in WASTED else None)
    for number in list(doing):
        change(number, until, None)
    return seconds, started


def programs() -> list[Function]:
    """Two whose containers differ, and one that fails."""
    return [Function(nothing), Function(nothing, init=lambda *_: 1), Function(lambda context: 1 / 0)]


def random_run(seed: int):
    """A platform after 60 calls of three functions with all kinds of endings; hands it out half-way as well."""
    rng = np.random.default_rng(seed)
    kinds = programs()
    with SimulatedPlatform(SPECS, seed=seed, faults=FAULTS, max_concurrency=6) as platform:
        for _ in range(60):
            program = kinds[rng.choice(3, p=[0.45, 0.45, 0.1])]
            platform.invoke(str(rng.choice(list(SPECS))), program, at=float(rng.uniform(0, 15)))
        for _ in range(4):
            platform.prewarm(str(rng.choice(list(SPECS))), at=float(rng.uniform(0, 15)))
        for until in (0.25, 4.0, 9.0, math.inf):
            while platform.next_completion(until=until) is not None:
                pass
            yield platform
    yield platform


@pytest.mark.parametrize("seed", range(50))
def test_seconds_agree_with_the_trace(seed):
    """Of every kind, at any moment, with an independent sum over the trace's rows; and the bill is the sum of parts."""
    sheet = PriceSheet("p", RATES, {"vm": Machine(0.3, runs=("a", "c"), places=3)})
    for platform in random_run(seed):
        got = platform.bill(sheet)
        seconds, started = walked(platform.trace, platform.now)
        for name in SPECS:
            assert got.seconds[name]._asdict() == pytest.approx(seconds[name], abs=1e-9)
            assert min(got.seconds[name]) >= 0
            assert got.requests[name] == pytest.approx(started[name] * RATES[name].per_request)
        assert got.split["c"] == Split(0.0, 0.0, 0.0, 0.0)
        assert got.split["b"] == pytest.approx([0.1 * got.seconds["b"][i] * (i != 2) for i in range(4)])
        a = got.split["a"]
        # Each of at most 130 spans is rounded up by less than a tenth of a second.
        assert 1.3 * got.seconds["a"].busy - 1e-9 <= a.busy <= 1.3 * (got.seconds["a"].busy + 0.1 * started["a"])
        assert a.idle == 0.0
        assert sum(got.split["vm"]) == pytest.approx(0.3 * platform.now)
        assert got.split["vm"].wasted == pytest.approx(0.1 * (got.seconds["a"].wasted + got.seconds["c"].wasted))
        assert got.total == math.fsum(got.parts.values())
        assert got.total == pytest.approx(sum(map(sum, got.split.values())) + sum(got.requests.values()))
