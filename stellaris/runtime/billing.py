"""Price sheets, and the bill of a trace."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

import numpy as np

from stellaris.runtime.endings import ENDINGS, WASTED
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.placement import Resources
from stellaris.runtime.trace import Trace
from stellaris.runtime.views import Invocations
from stellaris.types import NDArray


@dataclass(frozen=True)
class Rate:
    """What a function's use costs, in USD.

    Billed are the seconds from an invocation's start to its end, however it ends. The prices of memory, processors and
    GPU slots are multiplied by the function's `resources`.

    Args:
      per_second: of one invocation.
      per_gb_second: of its memory.
      per_vcpu_second: of its processors.
      per_gpu_slot_second: of its GPU slots.
      per_request: of every invocation that started.
      granularity: seconds to a multiple of which every billed span is rounded up; 0 for none.
      cold: whether the seconds that a new container takes to be made and initialised are billed as well.
      idle: whether idle containers are billed like busy ones.
      provisioned_per_gb_second: of the memory of provisioned containers, by the clock, besides.

    Raises:
      ValueError: if a price is negative.

    Example:
      >>> lambda_1gb = Rate(per_gb_second=0.0000166667, per_request=0.2e-6, granularity=0.001)
    """

    per_second: float = 0.0
    per_gb_second: float = 0.0
    per_vcpu_second: float = 0.0
    per_gpu_slot_second: float = 0.0
    per_request: float = 0.0
    granularity: float = 0.0
    cold: bool = False
    idle: bool = False
    provisioned_per_gb_second: float = 0.0

    def __post_init__(self) -> None:
        for item in fields(self):
            if not 0 <= getattr(self, item.name) < math.inf:
                raise ValueError(f"{item.name}={getattr(self, item.name)}: a price is finite and not negative")

    def a_second(self, resources: Resources) -> float:
        """USD for a second of a container with these resources."""
        return (
            self.per_second
            + self.per_gb_second * resources.memory
            + self.per_vcpu_second * resources.vcpus
            + self.per_gpu_slot_second * resources.gpu_slots
        )


@dataclass(frozen=True)
class Machine:
    """A reserved machine, which costs the same busy or idle.

    Args:
      per_second: USD for a second of wall time.
      runs: functions whose invocations run on it; they say what it was busy with.
      places: how many of them run at once when it is fully used.

    Raises:
      ValueError: if the price is negative, or there is no place.

    Example:
      >>> v100 = Machine(3.06 / 3600, runs=("learner",), places=4)
    """

    per_second: float
    runs: Sequence[str] = ()
    places: float = 1

    def __post_init__(self) -> None:
        if not 0 <= self.per_second < math.inf:
            raise ValueError(f"per_second={self.per_second}: a price is finite and not negative")
        if not self.places > 0:
            raise ValueError(f"places={self.places} is not positive")


@dataclass(frozen=True)
class PriceSheet:
    """What resources cost.

    Args:
      name: of the sheet.
      functions: the rate of a function's use, by function; a function that is not listed is free.
      machines: reserved ones, by name.
      source: where the prices come from.
      date: of the source.

    Raises:
      ValueError: if a machine has a function's name.

    Example:
      >>> sheet = PriceSheet("lambda", {"actor": Rate(per_second=1.67e-5)}, source="AWS Lambda, 1 GB")
    """

    name: str
    functions: Mapping[str, Rate] = field(default_factory=dict)
    machines: Mapping[str, Machine] = field(default_factory=dict)
    source: str = ""
    date: str = ""

    def __post_init__(self) -> None:
        both = self.functions.keys() & self.machines.keys()
        if both:
            raise ValueError(f"price sheet {self.name!r}: {sorted(both)} are functions and machines at once")


class Split(NamedTuple):
    """An amount (USD, or seconds) by what was done in the meantime."""

    busy: float  #: running, from start to end.
    idle: float  #: warm, without an invocation; for a machine, all that is not busy.
    cold: float  #: being made and initialised.
    wasted: float  #: running for nothing: what failed, crashed, was killed, or whose result was lost.

    @property
    def total(self) -> float:
        """The sum."""
        return math.fsum(self)


@dataclass(frozen=True)
class Bill:
    """What a run cost, in USD, in total and by function or machine."""

    sheet: str
    split: Mapping[str, Split]  #: USD for time, by function or machine.
    requests: Mapping[str, float]  #: USD for requests, by function.
    seconds: Mapping[str, Split]  #: container seconds, by function, before rounding.

    @property
    def parts(self) -> Mapping[str, float]:
        """USD by function or machine."""
        return {name: split.total + self.requests.get(name, 0.0) for name, split in self.split.items()}

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return math.fsum(self.parts.values())


def bill(
    trace: Trace, prices: PriceSheet, *, until: float, functions: Mapping[str, FunctionSpec] | None = None
) -> Bill:
    """The bill of a trace: functions by use, reserved machines by the clock.

    Args:
      trace: of the run.
      prices: the sheet.
      until: the run's end in seconds; what still runs is billed up to here.
      functions: the deployment, for resources and provisioned containers; without it there are none.

    Returns:
      The bill. The sum of its parts is the sum over the trace's invocations and containers.

    Example:
      >>> trace = Trace()
      >>> trace.append(1.0, "started", function="actor", invocation=0)
      >>> trace.append(3.0, "completed", function="actor", invocation=0)
      >>> sheet = PriceSheet("demo", {"actor": Rate(per_second=0.5)}, {"server": Machine(0.1)})
      >>> bill(trace, sheet, until=10.0).parts
      {'actor': 1.0, 'server': 1.0}
    """
    table, deployed = trace.invocations(), dict(functions or {})
    names = {*prices.functions, *deployed, *table.names}
    used = {name: _Use(trace, table, name, until) for name in sorted(names)}
    split: dict[str, Split] = {}
    requests: dict[str, float] = {}
    for name, rate in prices.functions.items():
        use, spec = used[name], deployed.get(name)
        resources = spec.resources if spec else Resources()
        standing = (spec.provisioned if spec else 0) * until * rate.provisioned_per_gb_second * resources.memory
        split[name] = use.cost(rate, rate.a_second(resources), standing)
        requests[name] = use.started * rate.per_request
    for name, machine in prices.machines.items():
        seconds = [used[function].seconds for function in machine.runs if function in used]
        busy, cold, wasted = (
            math.fsum(getattr(s, kind) for s in seconds) * machine.per_second / machine.places
            for kind in ("busy", "cold", "wasted")
        )
        split[name] = Split(busy, until * machine.per_second - busy - cold - wasted, cold, wasted)
    return Bill(prices.name, split, requests, {name: use.seconds for name, use in used.items()})


class _Use:
    """What a function's containers did, in seconds."""

    def __init__(self, trace: Trace, table: Invocations, name: str, until: float) -> None:
        mine = table.function == (table.names.index(name) if name in table.names else -2)
        ended = np.where(np.isnan(table.ended), until, table.ended)[mine]
        acquired, started = table.acquired[mine], table.started[mine]
        ran = ~np.isnan(started)
        wasted = np.isin(table.ending[mine], [ENDINGS.index(ending) for ending in WASTED])
        self.started = int(ran.sum())
        self.busy, self.wasted = (ended - started)[ran & ~wasted], (ended - started)[ran & wasted]
        # Those that still wait for their container, or never got beyond it, were cold all the time.
        waits = (np.where(ran, started, ended) - acquired)[~np.isnan(acquired)]
        self.cold = np.concatenate([waits[waits > 0], _warmed(trace, name, until, table.container[mine])])
        alive = math.fsum(_lives(trace, name, until))
        seconds = [math.fsum(spans.tolist()) for spans in (self.busy, self.cold, self.wasted)]
        # A trace that was written by hand may have no containers.
        idle = max(alive - math.fsum(seconds), 0.0)
        self.seconds = Split(seconds[0], idle, seconds[1], seconds[2])

    def cost(self, rate: Rate, a_second: float, standing: float) -> Split:
        """In USD."""

        def billed(spans: NDArray) -> float:
            if rate.granularity:
                units = spans / rate.granularity
                whole = np.rint(units)
                # What is a multiple but for the rounding of floats is not rounded up.
                spans = np.where(abs(units - whole) <= 1e-9 * (1 + units), whole, np.ceil(units)) * rate.granularity
            return math.fsum(spans.tolist()) * a_second

        return Split(
            busy=billed(self.busy),
            idle=(self.seconds.idle * a_second if rate.idle else 0.0) + standing,
            cold=billed(self.cold) if rate.cold else 0.0,
            wasted=billed(self.wasted),
        )


def _lives(trace: Trace, name: str, until: float) -> list[float]:
    """How long every container of a function has lived."""
    created, ended = trace.containers("container_created", name), trace.containers("container_ended", name)
    return [ended.get(number, until) - begin for number, begin in created.items()]


def _warmed(trace: Trace, name: str, until: float, used: NDArray) -> NDArray:
    """How long containers took that were made before anybody asked for them; `used` are those that somebody got."""
    ready = trace.containers("container_ready", name)
    created, ended = trace.containers("container_created", name), trace.containers("container_ended", name)
    taken = set(np.unique(used).tolist())
    waits = [
        ready.get(number, ended.get(number, until)) - begin
        for number, begin in created.items()
        if number in ready or number not in taken
    ]
    return np.array([wait for wait in waits if wait > 0])
