"""Price sheets, and the bill of a trace."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import NamedTuple

from stellaris.runtime.endings import ENDINGS, WASTED
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.resources import Resources
from stellaris.runtime.trace import Trace


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
      TypeError: if `runs` is one name, and no sequence of names.
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
        if isinstance(self.runs, str):
            raise TypeError(f"runs={self.runs!r} is one name: pass a sequence of names, ({self.runs!r},)")


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
      TypeError: if a function has no `Rate`, or a machine is no `Machine`.
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
        for kind, priced in ((Rate, self.functions), (Machine, self.machines)):
            for name, price in priced.items():
                if not isinstance(price, kind):
                    raise TypeError(
                        f"price sheet {self.name!r}: {name!r} is priced by {price!r}: expected a {kind.__name__}"
                    )
        both = self.functions.keys() & self.machines.keys()
        if both:
            raise ValueError(f"price sheet {self.name!r}: {sorted(both)} are functions and machines at once")

    @property
    def named(self) -> frozenset[str]:
        """Functions that it names: those with a rate, and those that its machines run."""
        return frozenset(self.functions).union(*(machine.runs for machine in self.machines.values()))


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
    return Meter(trace, prices, functions=functions).bill(until=until)


class Meter:
    """The bill of a trace that grows: however often it is asked for, every row is looked at once.

    What has ended is in sums, which are exact, so that the bill is the same to the last bit as one over the whole
    trace; what has not is kept apart, and added up to when the bill is asked for.

    Args:
      trace: of the run.
      prices: the sheet.
      functions: the deployment, for resources and provisioned containers; without it there are none.

    Example:
      >>> trace = Trace()
      >>> meter = Meter(trace, PriceSheet("demo", {"actor": Rate(per_second=0.5)}))
      >>> trace.append(1.0, "started", function="actor", invocation=0)
      >>> meter.bill(until=2.0).total
      0.5
      >>> trace.append(3.0, "completed", function="actor", invocation=0)
      >>> meter.bill(until=9.0).total
      1.0
    """

    def __init__(
        self, trace: Trace, prices: PriceSheet, *, functions: Mapping[str, FunctionSpec] | None = None
    ) -> None:
        self._trace, self._prices, self._deployed = trace, prices, dict(functions or {})
        self._rows = 0  # that were looked at
        self._uses: dict[str, _Use] = {}
        for name in (*prices.functions, *self._deployed):
            self._use(name)

    def bill(self, *, until: float) -> Bill:
        """The bill so far.

        Args:
          until: the end in seconds; what still runs is billed up to here.
        """
        self._read()
        used = dict(sorted(self._uses.items()))
        seconds = {name: use.seconds(until) for name, use in used.items()}
        split: dict[str, Split] = {}
        requests: dict[str, float] = {}
        for name, rate in self._prices.functions.items():
            spec = self._deployed.get(name)
            resources = spec.resources if spec else Resources()
            standing = (spec.provisioned if spec else 0) * until * rate.provisioned_per_gb_second * resources.memory
            split[name] = used[name].cost(rate, rate.a_second(resources), standing, until)
            requests[name] = used[name].started * rate.per_request
        for name, machine in self._prices.machines.items():
            of = [seconds[function] for function in machine.runs if function in seconds]
            busy, cold, wasted = (
                math.fsum(getattr(s, kind) for s in of) * machine.per_second / machine.places
                for kind in ("busy", "cold", "wasted")
            )
            split[name] = Split(busy, until * machine.per_second - busy - cold - wasted, cold, wasted)
        return Bill(self._prices.name, split, requests, seconds)

    def _read(self) -> None:
        """Takes in the rows that are new."""
        for time, event, function, invocation, container, _ in self._trace.rows(self._rows):
            self._rows += 1
            if event in _TELLING:
                self._use(function).take_in(time, event, invocation, container)

    def _use(self, name: str) -> "_Use":
        use = self._uses.get(name)
        if use is None:
            rate = self._prices.functions.get(name)
            use = self._uses[name] = _Use(rate.granularity if rate else 0.0)
        return use


#: Events that say what functions and their containers do.
_TELLING = frozenset(
    ("submitted", "acquired", "started", *ENDINGS, "container_created", "container_ready", "container_ended")
)


class _Use:
    """What a function's containers did, in seconds: sums of what has ended, and since when the rest goes on."""

    def __init__(self, granularity: float) -> None:
        self.started = 0
        self._busy, self._wasted, self._cold = (_Spans(granularity) for _ in range(3))
        self._alive = _Spans(0.0)
        self._running: dict[int, float] = {}  # invocations that have started
        self._waiting: dict[int, float] = {}  # invocations whose container is being made
        self._containers: dict[int, float] = {}  # those that live
        self._unused: set[int] = set()  # those of them that are being made ahead, and nobody has asked for yet

    def take_in(self, time: float, event: str, invocation: int, container: int) -> None:
        """Goes on to a row of the trace."""
        match event:
            case "acquired":
                self._waiting[invocation] = time
                self._unused.discard(container)
            case "started":
                self.started += 1
                self._running[invocation] = time
                self._unused.discard(container)
                self._warmed(time - self._waiting.pop(invocation, time))
            case "container_created":
                self._containers[container] = time
                self._unused.add(container)
            case "container_ready" if container in self._unused:
                self._unused.discard(container)
                self._warmed(time - self._containers[container])
            case "container_ended" if container in self._containers:
                lived = time - self._containers.pop(container)
                self._alive.add(lived)
                if container in self._unused:
                    self._unused.discard(container)
                    self._warmed(lived)
            case _ if invocation in self._running:
                ran = time - self._running.pop(invocation)
                (self._wasted if event in WASTED else self._busy).add(ran)
            case _ if invocation in self._waiting:
                # It never got beyond its container, which was cold all the time.
                self._warmed(time - self._waiting.pop(invocation))

    def seconds(self, until: float) -> Split:
        """What they did up to an instant."""
        busy = self._busy.total(self._runs(until))
        cold = self._cold.total(self._warms(until))
        wasted = self._wasted.total()
        # A trace that was written by hand may have no containers.
        idle = max(self.lived(until) - math.fsum((busy, cold, wasted)), 0.0)
        return Split(busy, idle, cold, wasted)

    def lived(self, until: float) -> float:
        """How long they have lived, all together."""
        return self._alive.total([until - since for since in self._containers.values()])

    def cost(self, rate: Rate, a_second: float, standing: float, until: float) -> Split:
        """In USD."""
        return Split(
            busy=self._busy.billed(self._runs(until)) * a_second,
            idle=(self.seconds(until).idle * a_second if rate.idle else 0.0) + standing,
            cold=self._cold.billed(self._warms(until)) * a_second if rate.cold else 0.0,
            wasted=self._wasted.billed() * a_second,
        )

    def _runs(self, until: float) -> list[float]:
        return [until - since for since in self._running.values()]

    def _warms(self, until: float) -> list[float]:
        spans = [until - since for since in self._waiting.values()]
        spans += [until - self._containers[container] for container in self._unused]
        return [span for span in spans if span > 0]

    def _warmed(self, span: float) -> None:
        if span > 0:
            self._cold.add(span)


class _Spans:
    """The sum of spans of time, and of what is billed for them: exact, whatever their number and order.

    Source:
      Shewchuk 1997, Adaptive Precision Floating-Point Arithmetic; as in `math.fsum`, for sums that go on.
    """

    def __init__(self, granularity: float) -> None:
        self._granularity = granularity
        self._sum: list[float] = []  # few numbers that add up to it without rounding
        self._rounded: list[float] = []  # likewise, of the spans rounded up

    def add(self, span: float) -> None:
        """Adds a span that has ended."""
        _add(self._sum, span)
        if self._granularity:
            _add(self._rounded, _round_up(span, self._granularity))

    def total(self, running: Iterable[float] = ()) -> float:
        """The sum, with spans that have not ended yet."""
        return math.fsum([*self._sum, *running])

    def billed(self, running: Iterable[float] = ()) -> float:
        """The sum of what each is rounded up to, likewise."""
        if not self._granularity:
            return self.total(running)
        return math.fsum([*self._rounded, *(_round_up(span, self._granularity) for span in running)])


def _add(parts: list[float], number: float) -> None:
    """Adds a number to a sum in parts, which do not overlap: what rounding takes from one is the next."""
    kept = 0
    for part in parts:
        large, small = (number, part) if abs(number) >= abs(part) else (part, number)
        number = large + small
        lost = small - (number - large)
        if lost:
            parts[kept] = lost
            kept += 1
    parts[kept:] = [number]


def _round_up(span: float, granularity: float) -> float:
    units = span / granularity
    whole = float(round(units))
    # What is a multiple but for the rounding of floats is not rounded up.
    return (whole if abs(units - whole) <= 1e-9 * (1 + units) else math.ceil(units)) * granularity
