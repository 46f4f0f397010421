"""The seconds that functions' containers spent busy, idle, cold and wasted: the quantities on a bill."""

import math
from collections.abc import Iterable
from typing import NamedTuple

from stellaris.runtime.endings import ENDINGS, WASTED

#: The events that begin or end a span of time on a bill.
USE_EVENTS = frozenset(
    ("submitted", "acquired", "started", *ENDINGS, "container_created", "container_ready", "container_ended")
)


class Split(NamedTuple):
    """An amount (USD or seconds), split by activity."""

    busy: float  #: while invocations run, from start to end.
    idle: float  #: while containers are warm without an invocation; for a machine, the rest of its time.
    cold: float  #: while containers are made and initialised.
    wasted: float  #: while invocations run in vain: they failed, crashed or were killed, or their result was lost.

    @property
    def total(self) -> float:
        """The sum over the activities."""
        return math.fsum(self)


class Use:
    """The use of one function's containers: sums of the spans that have ended, and the beginnings of open spans.

    Args:
      granularity: billing unit in seconds; each span is rounded up to a multiple of it. 0 for no rounding.
    """

    def __init__(self, granularity: float) -> None:
        self.started = 0  #: number of invocations that have started.
        self._busy = Spans(granularity)
        self._wasted = Spans(granularity)
        self._cold = Spans(granularity)
        # This sum is without a billing unit: it serves only to compute idle time, which is billed without rounding.
        self._alive = Spans(0.0)
        self._running: dict[int, float] = {}  # start of each running invocation
        self._waiting: dict[int, float] = {}  # time at which each invocation that has not started got its container
        self._containers: dict[int, float] = {}  # time at which each living container was created
        self._unused: set[int] = set()  # containers being made that no invocation has yet

    def take_in(self, time: float, event: str, invocation: int, container: int) -> None:
        """Reads the next row of the trace whose event is one of `USE_EVENTS`."""
        match event:
            case "acquired":
                # The invocation accounts for the cold start from now on, so that the container does not count it again.
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
                # The invocation ended before it started, so its container was being made for the whole time.
                self._warmed(time - self._waiting.pop(invocation))

    def seconds(self, until: float) -> Split:
        """Returns the seconds of each activity up to an instant."""
        busy = self._busy.total(self._runs(until))
        cold = self._cold.total(self._warms(until))
        wasted = self._wasted.total()
        # The idle time is at least 0, because a trace written by hand may lack containers.
        idle = max(self.lived(until) - math.fsum((busy, cold, wasted)), 0.0)
        return Split(busy, idle, cold, wasted)

    def lived(self, until: float) -> float:
        """Returns the seconds that all containers together have lived up to an instant."""
        return self._alive.total([until - since for since in self._containers.values()])

    def billed(self, until: float) -> Split:
        """Returns the seconds that are billed up to an instant: each span is rounded up, except for idle time."""
        return Split(
            busy=self._busy.billed(self._runs(until)),
            idle=self.seconds(until).idle,
            cold=self._cold.billed(self._warms(until)),
            wasted=self._wasted.billed(),
        )

    def _runs(self, until: float) -> list[float]:
        return [max(until - since, 0.0) for since in self._running.values()]

    def _warms(self, until: float) -> list[float]:
        spans = [until - since for since in self._waiting.values()]
        spans += [until - self._containers[container] for container in self._unused]
        return [span for span in spans if span > 0]

    def _warmed(self, span: float) -> None:
        if span > 0:
            self._cold.add(span)


class Spans:
    """Sums time spans exactly: their lengths, and the lengths rounded up to the billing unit.

    The sums are exact, so the order and the number of the spans do not affect them.

    Args:
      granularity: billing unit in seconds; each span is rounded up to a multiple of it. 0 for no rounding.

    Source:
      Shewchuk 1997, Adaptive Precision Floating-Point Arithmetic: as in `math.fsum`, but for a sum that grows.
    """

    def __init__(self, granularity: float) -> None:
        self._granularity = granularity
        self._sum: list[float] = []  # a few numbers whose exact sum is the sum of all spans
        self._rounded: list[float] = []  # a few numbers whose exact sum is the sum of the rounded spans

    def add(self, span: float) -> None:
        """Adds a span that has ended."""
        _add(self._sum, span)
        if self._granularity:
            _add(self._rounded, _round_up(span, self._granularity))

    def total(self, running: Iterable[float] = ()) -> float:
        """Returns the sum in seconds; `running` has the lengths so far of spans that have not ended."""
        return math.fsum([*self._sum, *running])

    def billed(self, running: Iterable[float] = ()) -> float:
        """Returns the sum of the spans rounded up, in seconds; `running` as for `total`."""
        if not self._granularity:
            return self.total(running)
        return math.fsum([*self._rounded, *(_round_up(span, self._granularity) for span in running)])


def _add(parts: list[float], number: float) -> None:
    """Adds a number to a sum kept in parts: the rounding error of each addition becomes another part."""
    kept = 0
    for part in parts:
        large = number if abs(number) >= abs(part) else part
        small = part if abs(number) >= abs(part) else number
        number = large + small
        lost = small - (number - large)
        if lost:
            parts[kept] = lost
            kept += 1
    parts[kept:] = [number]


def _round_up(span: float, granularity: float) -> float:
    units = span / granularity
    whole = float(round(units))
    # A span that misses a multiple of the unit only by a rounding error must not cost another unit.
    is_multiple = abs(units - whole) <= 1e-9 * (1 + units)
    return (whole if is_multiple else math.ceil(units)) * granularity
