"""Bills: by hand, by use, of machines; and of a trace that grows."""

import math

import numpy as np
import pytest

from stellaris.runtime import Bill, FunctionSpec, Machine, PriceSheet, Rate, Resources, SimulatedPlatform, Split, Trace
from stellaris.runtime.costs.billing import Meter, bill
from stellaris.runtime.delays import Constant
from tests.runtime.costs.test_usage import FAULTS, RATES, SPECS, programs
from tests.runtime.helpers import drain, nothing


def test_a_bill_by_hand():
    trace = Trace()
    for time, event, function, invocation in [
        (0.0, "submitted", "actor", 0),
        (0.0, "submitted", "learner", 1),
        (1.0, "started", "actor", 0),
        (1.5, "started", "learner", 1),
        (2.0, "started", "free", 2),
        (2.0, "submitted", "actor", 3),
        (2.0, "submitted", "actor", 4),
        (3.0, "completed", "actor", 0),  # 2 s
        (3.0, "started", "actor", 3),
        (3.5, "failed", "actor", 3),  # 0.5 s
        (4.0, "started", "actor", 5),
        (4.25, "timed_out", "actor", 5),  # 0.25 s
        (5.0, "cancelled", "actor", 4),  # never ran
        (5.5, "cancelled", "learner", 1),  # 4 s
        (6.0, "started", "actor", 6),  # 2 s until 8
    ]:
        trace.append(time, event, function=function, invocation=invocation)
    sheet = PriceSheet(
        "hand",
        functions={"actor": Rate(per_second=2.0), "learner": Rate(per_second=0.5), "absent": Rate(per_second=7.0)},
        machines={"server": Machine(0.25)},
    )
    got = bill(trace, sheet, until=8.0)
    assert got.sheet == "hand"
    assert got.parts == {"actor": 9.5, "learner": 2.0, "absent": 0.0, "server": 2.0}
    assert got.total == 13.5


def test_the_platforms_bill_runs_up_to_now():
    spec = FunctionSpec(Constant(2.0), cold_start=Constant(1.0), queueing=Constant(0.5), timeout=3.0)
    with SimulatedPlatform({"f": spec}) as platform:
        prices = PriceSheet("p", functions={"f": Rate(per_second=1.0)}, machines={"vm": Machine(0.1)})
        platform.invoke("f", lambda context: None)  # runs from 1.5 to 3.5
        for until, used in [(1.0, 0.0), (1.5, 0.0), (2.0, 0.5), (3.0, 1.5)]:
            assert platform.next_completion(until=until) is None
            assert platform.bill(prices).parts == pytest.approx({"f": used, "vm": until / 10})
        assert platform.next_completion().finished == 3.5
        assert platform.bill(prices).total == pytest.approx(2.0 + 0.35)
        platform.invoke("f", lambda context: None, work=9.0)  # warm: runs from 4 to 7, where it is killed
        assert platform.next_completion().status == "timed_out"
        assert platform.bill(prices).total == pytest.approx(5.0 + 0.7)
        platform.invoke("f", lambda context: None)  # cold: runs from 8.5, cancelled at 9
        platform.next_completion(until=9.0)
    assert platform.bill(prices).total == pytest.approx(5.5 + 0.9)


def test_an_empty_run_costs_its_machines():
    sheet = PriceSheet("p", functions={"f": Rate(per_second=1.0)}, machines={"vm": Machine(0.5)}, source="somewhere")
    assert bill(Trace(), sheet, until=3.0).parts == {"f": 0.0, "vm": 1.5}
    assert bill(Trace(), PriceSheet("nothing"), until=3.0).total == 0


def test_a_bill_up_to_an_earlier_instant():
    """What starts later costs nothing yet; an instant that is none is refused."""
    trace = Trace()
    trace.append(3.0, "started", function="a", invocation=0)
    sheet = PriceSheet("p", functions={"a": Rate(per_second=0.5)}, machines={"vm": Machine(0.1)}, source="somewhere")
    assert bill(trace, sheet, until=2.0).parts == {"a": 0.0, "vm": 0.2}
    for until in (-5.0, math.nan, math.inf):
        with pytest.raises(ValueError, match=f"until={until} is"):
            bill(trace, sheet, until=until)


SHEETS = (
    PriceSheet("p", RATES, {"vm": Machine(0.3, runs=("a", "c"), places=3)}),
    PriceSheet("fine", {name: Rate(per_second=0.7, granularity=0.001, cold=True, idle=True) for name in "ab"}),
    PriceSheet("machines", machines={"vm": Machine(0.1, runs=("b", "absent"))}),
)


@pytest.mark.parametrize("seed", range(25))
def test_a_bill_in_between_is_the_bill_of_everything(seed: int) -> None:
    rng, order = np.random.default_rng(seed), np.random.default_rng([seed, 1])
    instants = order.uniform(0.0, 25.0, order.integers(0, 12)).tolist()
    with SimulatedPlatform(SPECS, seed=seed, threads=1, faults=FAULTS, max_concurrency=6) as platform:
        meters = [Meter(sheet, functions=platform.functions) for sheet in SHEETS]
        for _ in range(40):
            program = programs()[rng.choice(3, p=[0.45, 0.45, 0.1])]
            platform.invoke(str(rng.choice(list(SPECS))), program, at=float(rng.uniform(0, 15)))
        for _ in range(4):
            platform.prewarm(str(rng.choice(list(SPECS))), at=float(rng.uniform(0, 15)))
        for until in [*sorted(instants), math.inf]:
            while platform.next_completion(until=until) is not None:
                _agree(meters, platform, order)
            _agree(meters, platform, order)
    _agree(meters, platform, order, everybody=True)


def _agree(meters, platform: SimulatedPlatform, order: np.random.Generator, *, everybody: bool = False) -> None:
    for meter, sheet in zip(meters, SHEETS, strict=True):
        if everybody or order.random() < 0.1:
            meter.read(platform.trace.rows(meter.rows_read))
            got = meter.bill(until=platform.now)
            assert repr(got) == repr(platform.bill(sheet))  # which looks at every row anew


def test_by_hand() -> None:
    trace = Trace()

    def asked(*, until: float) -> Bill:
        meter.read(trace.rows(meter.rows_read))
        return meter.bill(until=until)

    meter = Meter(PriceSheet("p", {"f": Rate(per_second=1.0, cold=True, granularity=1.0)}))
    trace.append(0.0, "container_created", function="f", container=0)
    trace.append(0.0, "acquired", function="f", invocation=0, container=0, value=1)
    trace.append(0.5, "container_created", function="f", container=1)
    assert asked(until=1.0).seconds["f"] == Split(0.0, 0.0, 1.0 + 0.5, 0.0)
    trace.append(1.5, "started", function="f", invocation=0, container=0)
    assert asked(until=2.0).seconds["f"] == Split(0.5, 0.0, 1.5 + 1.5, 0.0)
    assert asked(until=2.25).split["f"] == Split(1.0, 0.0, 2.0 + 2.0, 0.0)
    trace.append(2.5, "container_ready", function="f", container=1)
    trace.append(3.0, "crashed", function="f", invocation=0, container=0)
    trace.append(3.0, "container_ended", function="f", container=0)
    assert asked(until=4.0).seconds["f"] == Split(0.0, 1.5, 1.5 + 2.0, 1.5)


def run_of(*spans: tuple[float, float]) -> Trace:
    """One call of `f` after another."""
    trace = Trace()
    for number, (begin, end) in enumerate(spans):
        trace.append(begin, "started", function="f", invocation=number)
        trace.append(end, "completed", function="f", invocation=number)
    return trace


def priced(trace: Trace, *, until: float, functions=None, **prices: float) -> Split:
    """What `f` costs."""
    return bill(trace, PriceSheet("p", {"f": Rate(**prices)}), until=until, functions=functions).split["f"]


@pytest.mark.parametrize(
    ("prices", "expected"),
    [
        ({"per_second": 1.0}, 1.5),
        ({"per_gb_second": 2.0}, 12.0),  # of 4 GB
        ({"per_vcpu_second": 3.0}, 2.25),  # of half a processor
        ({"per_gpu_slot_second": 5.0}, 15.0),  # of 2 slots
        ({"per_second": 1.0, "per_gb_second": 2.0, "per_vcpu_second": 3.0, "per_gpu_slot_second": 5.0}, 30.75),
    ],
)
def test_prices_by_resource(prices, expected):
    """1.5 s of 4 GB, half a processor and 2 GPU slots."""
    resources = Resources(memory=4.0, vcpus=0.5, gpu_slots=2)
    spec = FunctionSpec(Constant(1.5), resources=resources)
    assert priced(run_of((0.5, 2.0)), until=9.0, functions={"f": spec}, **prices) == Split(expected, 0.0, 0.0, 0.0)
    assert Rate(**prices).usd_per_second(resources) == expected / 1.5


@pytest.mark.parametrize(
    ("granularity", "span", "billed"),
    [
        (0.0, (0.0, 1.3), 1.3),
        (1.0, (0.0, 1.3), 2.0),
        (1.0, (0.0, 3.0), 3.0),  # an exact multiple
        (1.0, (0.0, 3.001), 4.0),
        (0.5, (0.25, 1.5), 1.5),
        (0.1, (0.1, 0.4), 0.3),  # 0.30000000000000004 but for rounding three tenths
        (0.001, (0.0, 0.0014), 0.002),
        (1.0, (2.0, 2.0), 0.0),
    ],
)
def test_granularity(granularity, span, billed):
    got = priced(run_of(span), until=9.0, per_second=10.0, granularity=granularity)
    assert got.busy == pytest.approx(10.0 * billed, rel=1e-12)


def test_granularity_rounds_every_span_by_itself():
    spec = FunctionSpec(Constant(1.25), Constant(0.25), initialisation=Constant(0.5), timeout=2.5)
    rate = Rate(per_second=1.0, granularity=1.0, cold=True, idle=True)
    with SimulatedPlatform({"f": spec}) as platform:
        for at, work in [(0.0, 1.0), (3.5, 1.0), (6.0, 9.0)]:  # 0.75 - 2; 3.5 - 4.75; 6 - 8.5, killed
            platform.invoke("f", nothing, at=at, work=work)
        drain(platform)
        got = platform.bill(PriceSheet("p", {"f": rate}))
        assert got.seconds["f"] == Split(2.5, 2.75, 0.75, 2.5)
        assert got.split["f"] == Split(4.0, 2.75, 1.0, 3.0)


def test_requests():
    spec = FunctionSpec(Constant(1.0), timeout=2.0, max_concurrency=1, overflow="reject", cold_start=Constant(0.5))
    with SimulatedPlatform({"f": spec}) as platform:
        platform.invoke("f", nothing)  # completes
        platform.invoke("f", nothing)  # rejected
        platform.invoke("f", lambda context: 1 / 0, at=2.0)  # fails
        platform.invoke("f", nothing, at=4.0, work=9.0)  # killed at 6
        platform.invoke("f", nothing, at=7.0, work=1.5)  # cold: starts at 7.5
        platform.invoke("f", nothing, at=20.0)
        platform.next_completion()
        for _ in range(3):
            platform.next_completion()
        prices = PriceSheet("p", {"f": Rate(per_request=0.25)})
        assert platform.bill(prices).requests == {"f": 0.75}
        platform.next_completion(until=7.25)
        assert platform.bill(prices).requests == {"f": 0.75}
        platform.next_completion(until=8.0)
    got = platform.bill(prices)
    assert (got.requests, got.total) == ({"f": 1.0}, 1.0)


def test_cold_and_idle():
    spec = FunctionSpec(Constant(1.0), Constant(2.0), initialisation=Constant(0.5), keep_alive=4.0)
    with SimulatedPlatform({"f": spec}) as platform:
        platform.invoke("f", nothing)  # cold 0 - 2.5, busy to 3.5, idle to 7.5
        platform.prewarm("f", at=1.0)  # cold 1 - 3.5, idle to 7.5
        platform.prewarm("f", at=8.0)  # cold 8 - 10.5, idle from then
        platform.invoke("f", nothing, at=10.25)  # cold 10.25 -
        platform.next_completion()
        platform.next_completion(until=7.0)
        got = platform.bill(PriceSheet("p", {"f": Rate(per_second=1.0)}))
        assert got.seconds["f"] == Split(1.0, 3.5 + 3.5, 2.5 + 2.5, 0.0)
        assert got.split["f"] == Split(1.0, 0.0, 0.0, 0.0)
        platform.next_completion(until=9.0)
        assert platform.bill(PriceSheet("p")).seconds["f"] == Split(1.0, 8.0, 6.0, 0.0)
        platform.next_completion(until=11.0)
        got = platform.bill(PriceSheet("p", {"f": Rate(per_second=2.0, cold=True)}))
        assert got.seconds["f"] == Split(1.0, 8.5, 8.25, 0.0)
        assert got.split["f"] == Split(2.0, 0.0, 16.5, 0.0)
        got = platform.bill(PriceSheet("p", {"f": Rate(per_second=2.0, idle=True)}))
        assert got.split["f"] == Split(2.0, 17.0, 0.0, 0.0)


def test_provisioned():
    """By the clock, by memory, and besides what is run: 2 containers of 4 GB for 10 s."""
    spec = FunctionSpec(Constant(1.0), resources=Resources(memory=4.0), provisioned=2)
    with SimulatedPlatform({"f": spec}) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        platform.next_completion(until=10.0)
        got = platform.bill(PriceSheet("p", {"f": Rate(provisioned_per_gb_second=0.5, per_gb_second=1.0)}))
        assert got.split["f"] == Split(4.0, 40.0, 0.0, 0.0)
        assert got.seconds["f"] == Split(1.0, 19.0, 0.0, 0.0)


def test_a_machine_costs_the_same_whatever_it_does():
    """10 s at 3 a second; of two places, one ran 2 s, was made for 1 s, and wasted 4 s; the rest is idle."""
    spec = FunctionSpec(Constant(2.0), Constant(1.0), timeout=4.0)
    with SimulatedPlatform({"f": spec, "other": spec}) as platform:
        platform.invoke("f", nothing)
        platform.next_completion()
        platform.invoke("f", nothing, work=9.0)
        platform.invoke("other", nothing)
        drain(platform)
        platform.next_completion(until=10.0)
        vm = Machine(3.0, runs=("f", "absent"), places=2)
        got = platform.bill(PriceSheet("p", machines={"vm": vm, "empty": Machine(1.0)}))
        assert got.split == {"vm": Split(3.0, 30.0 - 3.0 - 1.5 - 6.0, 1.5, 6.0), "empty": Split(0.0, 10.0, 0.0, 0.0)}
        assert got.parts == {"vm": 30.0, "empty": 10.0}
        assert (got.requests, got.total) == ({}, 40.0)
