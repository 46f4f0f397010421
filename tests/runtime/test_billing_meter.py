"""The meter: bills of a trace that grows, against bills of the whole trace; and how much of it is looked at."""

import math
import sys
from fractions import Fraction

import numpy as np
import pytest

from stellaris.runtime import Bill, Machine, PriceSheet, Rate, Resources, SimulatedPlatform, Split, Trace
from stellaris.runtime.billing import Meter, bill
from stellaris.runtime.endings import ENDINGS, WASTED
from stellaris.runtime.usage import Spans
from tests.runtime.test_billing_use import FAULTS, RATES, SPECS, programs

SHEETS = (
    PriceSheet("p", RATES, {"vm": Machine(0.3, runs=("a", "c"), places=3)}),
    PriceSheet("fine", {name: Rate(per_second=0.7, granularity=0.001, cold=True, idle=True) for name in "ab"}),
    PriceSheet("machines", machines={"vm": Machine(0.1, runs=("b", "absent"))}),
)


def by_table(trace: Trace, prices: PriceSheet, until: float, functions) -> Bill:
    """The oracle: everything at once, from the table of all invocations, in NumPy and `math.fsum`."""
    table = trace.invocations()
    split, requests, seconds = {}, {}, {}
    for name in sorted({*prices.functions, *functions, *table.names}):
        mine = table.function == (table.names.index(name) if name in table.names else -2)
        ended, acquired = np.where(np.isnan(table.ended), until, table.ended)[mine], table.acquired[mine]
        started, ran = table.started[mine], ~np.isnan(table.started[mine])
        in_vain = np.isin(table.ending[mine], [ENDINGS.index(ending) for ending in WASTED])
        created, ready, gone = (trace.containers(f"container_{event}", name) for event in ("created", "ready", "ended"))
        taken = set(table.container[mine].tolist())
        made = [
            ready.get(number, gone.get(number, until)) - begin
            for number, begin in created.items()
            if number in ready or number not in taken
        ]
        cold = np.concatenate([(np.where(ran, started, ended) - acquired)[~np.isnan(acquired)], made])
        spans = ((ended - started)[ran & ~in_vain], cold[cold > 0], (ended - started)[ran & in_vain])
        busy, warming, wasted = (math.fsum(x.tolist()) for x in spans)
        alive = math.fsum(gone.get(number, until) - begin for number, begin in created.items())
        seconds[name] = Split(busy, max(alive - math.fsum((busy, warming, wasted)), 0.0), warming, wasted)
        rate, spec = prices.functions.get(name), functions.get(name)
        if rate is not None:
            resources = spec.resources if spec else Resources()
            costs = [math.fsum(_billed(x, rate.granularity).tolist()) * rate.usd_per_second(resources) for x in spans]
            standing = spec.provisioned * until * rate.provisioned_per_gb_second * resources.memory if spec else 0.0
            idle = (seconds[name].idle * rate.usd_per_second(resources) if rate.idle else 0.0) + standing
            split[name] = Split(costs[0], idle, costs[1] if rate.cold else 0.0, costs[2])
            requests[name] = int(ran.sum()) * rate.per_request
    for name, machine in prices.machines.items():
        of = [seconds[function] for function in machine.runs if function in seconds]
        part = {
            kind: math.fsum(getattr(s, kind) for s in of) * machine.per_second / machine.places
            for kind in ("busy", "cold", "wasted")
        }
        idle = until * machine.per_second - part["busy"] - part["cold"] - part["wasted"]
        split[name] = Split(part["busy"], idle, part["cold"], part["wasted"])
    in_order = {name: split[name] for name in (*prices.functions, *prices.machines)}
    return Bill(prices.name, in_order, {name: requests[name] for name in prices.functions}, seconds)


def _billed(spans: np.ndarray, granularity: float) -> np.ndarray:
    if not granularity:
        return spans
    units = spans / granularity
    whole = np.rint(units)
    return np.where(abs(units - whole) <= 1e-9 * (1 + units), whole, np.ceil(units)) * granularity


@pytest.mark.parametrize("seed", range(25))
def test_a_bill_in_between_is_the_bill_of_everything(seed: int) -> None:
    """To the last bit, at any instants, whoever was asked before: random calls, faults, endings and containers."""
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
            assert repr(got) == repr(by_table(platform.trace, sheet, platform.now, SPECS))


def test_the_work_does_not_grow(monkeypatch) -> None:
    """Rows are looked at once, however often and late the bill is asked for; and nothing that has ended is kept."""
    looked_at = 0
    rows = Trace.rows

    def counted(self, start=0):
        nonlocal looked_at
        for row in rows(self, start):
            looked_at += 1
            yield row

    monkeypatch.setattr(Trace, "rows", counted)
    for view in ("invocations", "containers", "select", "functions"):
        monkeypatch.setattr(Trace, view, lambda *args, **options: pytest.fail("a view of the whole trace"))
    trace = Trace()
    meter = Meter(PriceSheet("p", {"f": Rate(per_second=1.0, granularity=0.3)}))
    sizes, held = [], []
    for i in range(2000):
        trace.append(i, "container_created", function="f", container=i)
        trace.append(i, "acquired", function="f", invocation=i, container=i)
        trace.append(i + 0.1, "started", function="f", invocation=i, container=i)
        trace.append(i + 0.37, "completed", function="f", invocation=i, container=i)
        trace.append(i + 0.9, "container_ended", function="f", container=i)
        before = looked_at
        meter.read(trace.rows(meter.rows_read))
        meter.bill(until=i + 1.0)
        assert looked_at - before == 5
        held.append(_held(meter))
        sizes.append(looked_at)
    assert looked_at == len(trace) == 10_000
    assert max(held[1000:]) <= max(held[:1000])


def _held(meter: Meter) -> int:
    """Numbers that it keeps."""
    kept = 0
    for use in meter._uses.values():
        kept += sum(len(part) for part in vars(use).values() if isinstance(part, dict | set))
        kept += sum(len(s._sum) + len(s._rounded) for s in vars(use).values() if isinstance(s, Spans))
    return kept


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


def test_by_hand() -> None:
    """A call that waits, runs and ends, asked for at each stage; and a container that nobody asks for."""
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
    assert asked(until=4.0) == bill(trace, PriceSheet("p", meter._prices.functions), until=4.0)
