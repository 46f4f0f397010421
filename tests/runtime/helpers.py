"""What most tests of platforms begin with: one function, and ways to look at what happened to it."""

from typing import Any

from stellaris.runtime import FunctionSpec, Invocation, SimulatedPlatform
from stellaris.runtime.delays import Constant

PLATFORM = ("clock", "seed", "threads", "hang_after", "keep_versions", "store_capacity")
DELAYS = ("compute", "cold_start", "queueing", "initialisation")


def spec(compute: Any = 1.0, **others: Any) -> FunctionSpec:
    """Of a function; bare floats are constant delays."""
    given = {"compute": compute} | others
    return FunctionSpec(**{k: Constant(v) if k in DELAYS and isinstance(v, float) else v for k, v in given.items()})


def deploy(compute: Any = 1.0, *, faults: Any = None, **others: Any) -> SimulatedPlatform:
    """A platform with the one function `f`; the other arguments are the platform's or those of its deployment."""
    options = {name: others.pop(name) for name in PLATFORM if name in others}
    faults = None if faults is None else {"f": faults}
    return SimulatedPlatform({"f": spec(compute, **others)}, faults=faults, **options)


def drain(platform: SimulatedPlatform) -> list[Invocation]:
    """Every invocation that is left, in the order in which they are handed out."""
    return list(iter(platform.next_completion, None))


def rows(platform: SimulatedPlatform) -> list[tuple[Any, ...]]:
    """The whole trace, `(time, event, function, invocation, container, value)` a row."""
    return list(platform.trace.to_dataframe().itertuples(index=False, name=None))


def times(invocation: Invocation) -> tuple[Any, ...]:
    """When it was submitted, started and finished."""
    return invocation.submitted, invocation.started, invocation.finished


def happened(platform: SimulatedPlatform, event: str, function: str | None = None) -> list[float]:
    """When an event happened."""
    return list(platform.trace.select(event, function=function).time.tolist())


def nothing(context: Any, *arguments: Any) -> None:
    """A body that does nothing."""


def handed_out(platform: SimulatedPlatform) -> list[tuple[int, str, float]]:
    """`(number, status, now)` of every invocation that is left, as it is handed out."""
    return [(done.number, done.status, platform.now) for done in iter(platform.next_completion, None)]
