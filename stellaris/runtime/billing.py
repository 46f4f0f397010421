"""Price sheets, and the bill of a trace."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from stellaris.runtime.trace import Trace


@dataclass(frozen=True)
class PriceSheet:
    """What resources cost, in USD per second.

    Args:
      name: of the sheet.
      per_second: price of a second of a function's use, from start to end, by function; a function that is not listed
        is free.
      reserved: price of a second of wall time, busy or idle, by machine.
      source: where the prices come from.

    Raises:
      ValueError: if a price is negative.

    Example:
      >>> sheet = PriceSheet("lambda", per_second={"actor": 1.67e-5}, source="AWS Lambda, 1 GB")
    """

    name: str
    per_second: Mapping[str, float] = field(default_factory=dict)
    reserved: Mapping[str, float] = field(default_factory=dict)
    source: str = ""

    def __post_init__(self) -> None:
        for item, price in (*self.per_second.items(), *self.reserved.items()):
            if not price >= 0:
                raise ValueError(f"price of {item!r} is {price}: a price is not negative")


@dataclass(frozen=True)
class Bill:
    """What a run cost, in USD, in total and by function or machine."""

    sheet: str
    parts: Mapping[str, float]

    @property
    def total(self) -> float:
        """The sum of the parts."""
        return sum(self.parts.values())


def bill(trace: Trace, prices: PriceSheet, *, until: float) -> Bill:
    """The bill of a trace: seconds of use times their price, and reserved machines by the clock.

    Args:
      trace: of the run.
      prices: in USD per second.
      until: the run's end; invocations that still run are billed up to here.

    Returns:
      The bill.

    Example:
      >>> trace = Trace()
      >>> trace.append(1.0, "started", function="actor", invocation=0)
      >>> trace.append(3.0, "completed", function="actor", invocation=0)
      >>> bill(trace, PriceSheet("demo", per_second={"actor": 0.5}, reserved={"server": 0.1}), until=10.0).total
      2.0
    """
    used = trace.running(until=until)
    parts = {name: used.get(name, 0.0) * price for name, price in prices.per_second.items()}
    for machine, price in prices.reserved.items():
        parts[machine] = parts.get(machine, 0.0) + until * price
    return Bill(prices.name, parts)
