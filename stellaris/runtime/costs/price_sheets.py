"""What a provider charges: rates for the use of functions, reserved machines, and sheets of both."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields

from stellaris._core.describe import digest
from stellaris.runtime.resources import Resources


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

    def usd_per_second(self, resources: Resources) -> float:
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

    def __hash__(self) -> int:
        return hash(digest(self))

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
