"""Bills by use: rates by hand, machines and what they did, seconds that agree with the trace; prices and testbeds."""

import math
import re
from collections import defaultdict

import numpy as np
import pytest

from stellaris.runtime import (
    Faults,
    Function,
    FunctionSpec,
    Machine,
    PriceSheet,
    Rate,
    Resources,
    SimulatedPlatform,
    Split,
    Trace,
)
from stellaris.runtime.billing import bill
from stellaris.runtime.delays import Constant, Exponential, Uniform
from stellaris.runtime.endings import ENDINGS, WASTED
from stellaris.runtime.prices import catalogue, machine, rate
from stellaris.runtime.testbeds import LEARNERS_PER_GPU, minionsrl_azure, stellaris_gpu, stellaris_hpc


def drain(platform: SimulatedPlatform) -> list:
    """Every invocation that is left, in the order in which they are handed out."""
    return list(iter(platform.next_completion, None))


def nothing(context, *arguments):
    """A body that does nothing."""


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


# ---- rates ----------------------------------------------------------------------------------------------------------


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


def test_resources_need_a_deployment():
    """Without one there are none, and only the second has its price."""
    assert priced(run_of((0.0, 2.0)), until=9.0, per_second=1.0, per_gb_second=5.0).busy == 2.0


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
    """Spans are rounded up to a multiple; multiples are not."""
    got = priced(run_of(span), until=9.0, per_second=10.0, granularity=granularity)
    assert got.busy == pytest.approx(10.0 * billed, rel=1e-12)


def test_granularity_rounds_every_span_by_itself():
    """Cold starts, and what was wasted, too; idle time is no span of anybody's. The seconds are not rounded."""
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
    """Everything that started, however it ended; what was rejected, cancelled or still waits did not."""
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
    """Cold starts of calls, of prewarmed containers and of those that nobody got; idle until the end of time."""
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


@pytest.mark.parametrize(
    "name", ["per_second", "per_gb_second", "per_vcpu_second", "per_gpu_slot_second", "per_request", "granularity"]
)
@pytest.mark.parametrize("price", [-1.0, math.inf, math.nan])
def test_rates_that_are_none(name, price):
    """Neither negative nor without end."""
    with pytest.raises(ValueError, match=f"{name}={price}: a price is finite and not negative"):
        Rate(**{name: price})


# ---- machines -------------------------------------------------------------------------------------------------------


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


def test_a_machine_has_a_place():
    """Half of one is enough."""
    assert Machine(1.0, places=0.5).places == 0.5
    for places in (0.0, -1.0, math.nan):
        with pytest.raises(ValueError, match=f"places={places} is not positive"):
            Machine(1.0, places=places)


# ---- at random ------------------------------------------------------------------------------------------------------

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


def test_the_random_runs_are_varied():
    """Every kind of second and of ending is among them."""
    seconds, endings = np.zeros(4), defaultdict(int)
    for seed in range(50):
        *_, platform = random_run(seed)
        table = platform.trace.invocations()
        for code in table.ending:
            endings[ENDINGS[code]] += 1
        seconds += np.sum([platform.bill(PriceSheet("p")).seconds[name] for name in SPECS], axis=0)
    assert {"completed", "failed", "timed_out", "crashed", "throttled", "lost"} <= {
        e for e in endings if endings[e] > 20
    }
    assert (seconds > 100).all()


# ---- prices and testbeds --------------------------------------------------------------------------------------------


def test_every_price_has_a_source_and_a_date():
    """And a region; dates are dates."""
    assert set(catalogue()) == {"aws_lambda", "aws_lambda_provisioned", "azure_aci", "aws_ec2", "azure_vm"}
    for entry in catalogue().values():
        assert len(entry["source"]) > 10
        assert entry["region"]
        assert re.fullmatch(r"(after |before )?20(2[0-6])-(0[1-9]|1[0-2])(-\d\d)?", entry["dated"])


def test_rates_of_services():
    """A second of Lambda with 1.769 GB is rounded up to a millisecond; a container instance is billed idle as well."""
    spec = FunctionSpec(Constant(1.0), resources=Resources(memory=2.0))
    with SimulatedPlatform({"f": spec}) as platform:
        platform.invoke("f", nothing, work=0.0101)
        platform.next_completion()
        got = platform.bill(PriceSheet("p", {"f": rate("aws_lambda")}))
        assert got.total == pytest.approx(2.0 * 0.011 * 0.0000166667 + 0.2e-6)
    assert rate("aws_lambda_provisioned").per_gb_second < rate("aws_lambda").per_gb_second
    aci = rate("azure_aci")
    assert (aci.granularity, aci.cold, aci.idle) == (1.0, True, True)
    assert aci.usd_per_second(Resources(memory=1.0)) * 3600 == pytest.approx(0.00445, rel=1e-4)
    assert aci.usd_per_second(Resources(vcpus=1.0)) * 3600 == pytest.approx(0.0405)
    assert aci.usd_per_second(Resources(gpu_slots=1)) * 3600 == pytest.approx(3.06)


def test_machines_by_the_hour():
    """Become machines by the second, with what they run."""
    vm = machine("azure_vm", "Standard_E16-8s_v5", runs=("actor",), places=8)
    assert (vm.per_second, vm.runs, vm.places) == (1.008 / 3600, ("actor",), 8)
    for provider in ("aws_ec2", "azure_vm"):
        for kind, price in catalogue()[provider]["per_hour"].items():
            assert machine(provider, kind).per_second * 3600 == pytest.approx(price)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: rate("gcp"), "service='gcp': there are the rates of aws_lambda, aws_lambda_provisioned, azure_aci"),
        (lambda: rate("aws_ec2"), "service='aws_ec2': there are the rates of"),
        (lambda: machine("aws_lambda", "x"), "provider='aws_lambda': there are the machines of aws_ec2, azure_vm"),
        (lambda: machine("azure_vm", "p3.2xlarge"), "kind='p3.2xlarge': of azure_vm there are Standard_NC6s_v3"),
    ],
)
def test_prices_that_nobody_looked_up(call, message):
    """Say what there is."""
    with pytest.raises(LookupError, match=message):
        call()


@pytest.mark.parametrize(
    ("testbed", "nodes", "cores", "gpus", "an_hour"),
    [
        (stellaris_gpu, 3, 128, 2, 4.896 + 2 * 3.06),
        (stellaris_hpc, 7, 960, 16, 5 * 7.20 + 2 * 24.48),
        (minionsrl_azure, 5, 32, 1, 3.06 + 4 * 1.008),
    ],
)
def test_testbeds(testbed, nodes, cores, gpus, an_hour):
    """Cores are those of the machines without a GPU; machines of a kind cost together; learners share the GPUs."""
    bed = testbed()
    assert len(bed.nodes) == len({node.name for node in bed.nodes}) == nodes
    assert sorted({node.name.rpartition("-")[0] for node in bed.nodes}) == sorted(bed.machines)
    assert sum(node.vcpus for node in bed.nodes if not node.gpus) == cores
    assert sum(node.gpus for node in bed.nodes) == gpus
    assert sum(m.per_second for m in bed.machines.values()) * 3600 == pytest.approx(an_hour)
    assert bed.source
    for kind, vm in bed.machines.items():
        alike = [node for node in bed.nodes if node.name.startswith(kind)]
        assert {node.slots_per_gpu for node in alike} == {LEARNERS_PER_GPU}
        gpus_there, cores_there = sum(node.gpus for node in alike), sum(node.vcpus for node in alike)
        assert (vm.runs, vm.places) == ((("learner",), gpus_there * 4) if gpus_there else (("actor",), cores_there))


@pytest.mark.parametrize("testbed", [stellaris_gpu, stellaris_hpc, minionsrl_azure])
def test_machines_of_a_full_testbed_are_busy_and_no_more(testbed):
    """Every place is used for a second: no machine is busier than it can be, and none is idle."""
    bed = testbed()
    learners = sum(node.gpus for node in bed.nodes) * LEARNERS_PER_GPU
    actors = int(sum(node.vcpus for node in bed.nodes if not node.gpus))
    trace = Trace()
    for number in range(learners + actors):
        function = "learner" if number < learners else "actor"
        trace.append(0.0, "started", function=function, invocation=number)
        trace.append(1.0, "completed", function=function, invocation=number)
    got = bill(trace, PriceSheet("p", machines=bed.machines), until=1.0)
    for split, vm in zip(got.split.values(), bed.machines.values(), strict=True):
        assert split == pytest.approx(Split(vm.per_second, 0.0, 0.0, 0.0), abs=1e-12)
