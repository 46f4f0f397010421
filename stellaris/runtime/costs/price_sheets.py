"""Prices: rates for the use of functions, reserved machines, and sheets of both."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from stellaris._core import checks
from stellaris._core.describe import digest
from stellaris.runtime.resources import Resources


@dataclass(frozen=True)
class Rate:
    """The prices of a function's use, in USD.

    An invocation is billed from its start to its end, for any ending. The prices of memory, processors and GPU slots
    are multiplied by the function's `resources`.

    Args:
      per_second: price of a second of an invocation.
      per_gb_second: price of a GB of memory for a second.
      per_vcpu_second: price of a processor for a second.
      per_gpu_slot_second: price of a GPU slot for a second.
      per_request: price of every invocation that started.
      granularity: billing unit in seconds; every invocation and every billed cold start is rounded up to a multiple of
        it, idle time is not. 0 for no rounding.
      cold: whether the seconds of making and initialising a container are billed as well.
      idle: whether idle containers are billed like busy ones.
      provisioned_per_gb_second: additional price of a GB of provisioned containers for a second, busy or idle.

    Raises:
      TypeError: if a price is not a number.
      ValueError: if a price is negative or not finite.

    Example:
      >>> lambda_1gb = Rate(per_gb_second=0.0000166667, per_request=0.2e-6, granularity=0.001)
    """

    # All prices are 0 by default, so that a rate names only the prices that its service charges.
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
        checks.single(**{item.name: getattr(self, item.name) for item in fields(self)})
        for item in fields(self):
            if not 0 <= getattr(self, item.name) < math.inf:
                raise ValueError(f"{item.name}={getattr(self, item.name)}: a price must be finite and not negative")

    def usd_per_second(self, resources: Resources) -> float:
        """Returns the USD for a second of a container with these resources."""
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
      runs: names of the functions whose invocations run on it, for the split of its price.
      places: number of invocations that run at once when the machine is fully used. If more run, their share of the
        price exceeds it, and the idle share is negative.

    Raises:
      TypeError: if the price or `places` is not a number, or `runs` is a single name and not a sequence of names.
      ValueError: if the price is negative or not finite, or `places` is not positive.

    Example:
      >>> v100 = Machine(3.06 / 3600, runs=("learner",), places=4)
    """

    per_second: float
    runs: Sequence[str] = ()
    places: float = 1

    def __post_init__(self) -> None:
        checks.single(per_second=self.per_second, places=self.places)
        if not 0 <= self.per_second < math.inf:
            raise ValueError(f"per_second={self.per_second}: a price must be finite and not negative")
        if not self.places > 0:
            raise ValueError(
                f"places={self.places} is not positive: give the number of invocations that fill the machine"
            )
        # A string is refused, because it is a sequence too, but of characters.
        if isinstance(self.runs, str):
            raise TypeError(f"runs={self.runs!r} is one name: pass a sequence of names, ({self.runs!r},)")


@dataclass(frozen=True)
class PriceSheet:
    """A price sheet: rates of functions and prices of machines.

    Args:
      name: name of the sheet, not empty.
      functions: the rate of each function; a function that is not listed is free.
      machines: the reserved machines, by name.
      source: source of the prices.
      date: date of the source.

    Raises:
      TypeError: if a value of `functions` is not a `Rate`, or a value of `machines` is not a `Machine`.
      ValueError: if the name is empty, or a machine has a function's name.

    Example:
      >>> sheet = PriceSheet("lambda", {"actor": Rate(per_second=1.67e-5)}, source="AWS Lambda, 1 GB")
    """

    name: str
    functions: Mapping[str, Rate] = field(default_factory=dict)
    machines: Mapping[str, Machine] = field(default_factory=dict)
    source: str = ""
    date: str = ""

    def __hash__(self) -> int:
        return hash(digest(self))  # the hash of the content, because a mapping cannot be hashed

    def __post_init__(self) -> None:
        if not self.name:
            raise ValueError("name='': give the price sheet a name, by which histories call its costs")
        # A bare number is refused, because it may mean a price per second, per request, or per hour.
        for kind, priced in ((Rate, self.functions), (Machine, self.machines)):
            for name, price in priced.items():
                if not isinstance(price, kind):
                    raise TypeError(
                        f"price sheet {self.name!r}: {name!r} is priced by {price!r}: expected a {kind.__name__}"
                    )
        # A name must be a function or a machine, because a bill has one line per name.
        both = self.functions.keys() & self.machines.keys()
        if both:
            raise ValueError(
                f"price sheet {self.name!r}: {sorted(both)} are functions and machines at once; rename the machines"
            )

    @property
    def named(self) -> frozenset[str]:
        """The names of the functions that have a rate or run on one of the machines."""
        return frozenset(self.functions).union(*(machine.runs for machine in self.machines.values()))


def check_sheets(prices: Sequence[PriceSheet]) -> None:
    """Checks that price sheets have different names, by which costs are kept.

    Raises:
      TypeError: if `prices` is a single sheet, or has anything but a sheet.
      ValueError: if two sheets have the same name.
    """
    if isinstance(prices, PriceSheet):
        raise TypeError(f"prices is a single sheet, {prices.name!r}: pass a sequence of sheets, prices=[sheet]")
    for sheet in prices:
        if not isinstance(sheet, PriceSheet):
            raise TypeError(f"prices has {sheet!r}: expected a PriceSheet")
    for name, times in Counter(sheet.name for sheet in prices).items():
        if times > 1:
            raise ValueError(
                f"prices: {times} sheets have the name {name!r}, and their costs would share a column; rename them"
            )
