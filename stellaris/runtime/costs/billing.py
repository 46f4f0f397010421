"""Bills: the use of functions and machines in a trace, at the prices of a sheet."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from stellaris._core import checks
from stellaris.runtime.costs.price_sheets import Machine, PriceSheet, Rate
from stellaris.runtime.costs.usage import USE_EVENTS, Split, Use
from stellaris.runtime.functions import FunctionSpec
from stellaris.runtime.resources import Resources
from stellaris.runtime.state.registry import register_part
from stellaris.runtime.trace.trace import Trace

#: The most price sheets whose meters are kept. A program that makes a sheet for every bill would otherwise fill memory.
_METERS = 16


@dataclass(frozen=True)
class Bill:
    """The cost of a run in USD, in total and by function or machine."""

    sheet: str
    split: Mapping[str, Split]  #: USD for seconds of use, by function or machine.
    requests: Mapping[str, float]  #: USD for requests, by function.
    seconds: Mapping[str, Split]  #: seconds of containers, by function, before rounding.

    @property
    def parts(self) -> Mapping[str, float]:
        """USD by function or machine."""
        return {name: split.total + self.requests.get(name, 0.0) for name, split in self.split.items()}

    @property
    def total(self) -> float:
        """The sum of the parts in USD."""
        return math.fsum(self.parts.values())  # exact, so that the order of the parts does not matter


def bill(
    trace: Trace, prices: PriceSheet, *, until: float, functions: Mapping[str, FunctionSpec] | None = None
) -> Bill:
    """Makes the bill of a trace: functions are billed by use, reserved machines by elapsed time.

    Args:
      trace: the trace of the run.
      prices: the price sheet.
      until: end of the run in seconds; anything still running is billed up to here.
      functions: the deployed functions, for their resources and provisioned containers; None to bill without both.

    Returns:
      The bill. The sum of its parts is the sum over the trace's invocations and containers.

    Raises:
      ValueError: if `until` is negative or not finite.

    Example:
      >>> trace = Trace()
      >>> trace.append(1.0, "started", function="actor", invocation=0)
      >>> trace.append(3.0, "completed", function="actor", invocation=0)
      >>> sheet = PriceSheet("demo", {"actor": Rate(per_second=0.5)}, {"server": Machine(0.1)})
      >>> bill(trace, sheet, until=10.0).parts
      {'actor': 1.0, 'server': 1.0}
    """
    meter = Meter(prices, functions=functions)
    meter.read(trace.rows())
    return meter.bill(until=until)


class Meter:
    """Bills a growing trace; every row is read once, for any number of bills.

    Time spans that have ended are added to exact sums, so a bill equals `bill` of the whole trace to the last bit.
    Spans that have not ended are kept apart, and are billed up to the time of the bill.

    Args:
      prices: the price sheet.
      functions: the deployed functions, for their resources and provisioned containers; None to bill without both.

    Example:
      >>> trace = Trace()
      >>> meter = Meter(PriceSheet("demo", {"actor": Rate(per_second=0.5)}))
      >>> trace.append(1.0, "started", function="actor", invocation=0)
      >>> meter.read(trace.rows())
      >>> meter.bill(until=2.0).total
      0.5
      >>> trace.append(3.0, "completed", function="actor", invocation=0)
      >>> meter.read(trace.rows(meter.rows_read))
      >>> meter.bill(until=9.0).total
      1.0
    """

    def __init__(self, prices: PriceSheet, *, functions: Mapping[str, FunctionSpec] | None = None) -> None:
        self.rows_read = 0  #: number of rows of the trace read so far.
        self._prices = prices
        self._deployed = dict(functions or {})
        self._uses: dict[str, Use] = {}
        # A function that was never invoked is on the bill as well, because its provisioned containers cost something.
        for name in (*prices.functions, *self._deployed):
            self._use(name)

    def read(self, rows: Iterable[tuple[float, str, str, int, int, float]]) -> None:
        """Reads the next rows of the trace, from `rows_read` on."""
        for time, event, function, invocation, container, _ in rows:
            self.rows_read += 1
            if event in USE_EVENTS:  # systems add many other events
                self._use(function).take_in(time, event, invocation, container)

    def bill(self, *, until: float) -> Bill:
        """Makes the bill so far.

        Args:
          until: the time in seconds up to which anything still running is billed.

        Raises:
          ValueError: if `until` is negative or not finite.
        """
        checks.not_negative(until=until)
        checks.finite(until=until)
        seconds = {name: use.seconds(until) for name, use in sorted(self._uses.items())}
        split: dict[str, Split] = {}
        requests: dict[str, float] = {}
        for name, rate in self._prices.functions.items():
            split[name] = _by_use(rate, self._uses[name], self._deployed.get(name), until)
            requests[name] = self._uses[name].started * rate.per_request
        for name, machine in self._prices.machines.items():
            split[name] = _by_the_clock(machine, [seconds[run] for run in machine.runs if run in seconds], until)
        return Bill(self._prices.name, split, requests, seconds)

    def _use(self, name: str) -> Use:
        use = self._uses.get(name)
        if use is None:
            rate = self._prices.functions.get(name)
            use = self._uses[name] = Use(rate.granularity if rate else 0.0)
        return use


@register_part()
class Meters:
    """A platform's meters by price sheet, so that each bill reads only the rows since the last bill.

    Args:
      trace: the trace of the run.
      functions: the deployed functions.
    """

    def __init__(self, trace: Trace, functions: Mapping[str, FunctionSpec]) -> None:
        self._trace = trace
        self._functions = functions
        # The key is the sheet's identity, because hashing a sheet takes longer than a bill. The meter keeps its sheet
        # alive, so no other sheet can get the same identity.
        self._meters: dict[int, Meter] = {}

    def save_state(self) -> None:
        """Saves nothing, because the saved trace has everything that is billed."""

    def restore_state(self, state: None) -> None:
        """Forgets the rows that were read, because the trace was replaced."""
        self._meters.clear()

    def bill(self, prices: PriceSheet, *, until: float) -> Bill:
        """Makes the bill of the run so far.

        Args:
          prices: the price sheet.
          until: the time in seconds up to which anything still running is billed.

        Raises:
          ValueError: if `until` is negative or not finite.
        """
        meter = self._meters.get(id(prices))
        if meter is None:
            if len(self._meters) >= _METERS:
                self._meters.clear()
            meter = self._meters[id(prices)] = Meter(prices, functions=self._functions)
        meter.read(self._trace.rows(meter.rows_read))
        return meter.bill(until=until)


def _by_use(rate: Rate, use: Use, spec: FunctionSpec | None, until: float) -> Split:
    """Returns the USD for a function's containers, including the price of keeping containers provisioned."""
    resources = spec.resources if spec else Resources()
    price = rate.usd_per_second(resources)
    # This price is due from start to end of the run, because a provisioned container that is lost is replaced at once.
    standing = (spec.provisioned if spec else 0) * until * rate.provisioned_per_gb_second * resources.memory
    billed = use.billed(until)
    return Split(
        busy=billed.busy * price,
        idle=(billed.idle * price if rate.idle else 0.0) + standing,
        cold=billed.cold * price if rate.cold else 0.0,
        wasted=billed.wasted * price,
    )


def _by_the_clock(machine: Machine, used: Sequence[Split], until: float) -> Split:
    """Returns the USD for a reserved machine: an invocation uses one of its places, and the other places are idle."""

    def share(seconds: Iterable[float]) -> float:
        return math.fsum(seconds) * machine.per_second / machine.places

    busy = share(seconds.busy for seconds in used)
    cold = share(seconds.cold for seconds in used)
    wasted = share(seconds.wasted for seconds in used)
    return Split(busy, until * machine.per_second - busy - cold - wasted, cold, wasted)
