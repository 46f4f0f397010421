"""What will happen to a call: drawn from its function's faults, or as it happened in a recorded run.

Most calls have no course: without faults and without a recorded run, the deployment's delays say everything. Otherwise
the call asks its course at each step of its life, passing the time that was drawn; the course returns it, or another.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from stellaris.runtime.engine.faults import FaultDraws, Faults
from stellaris.runtime.engine.recorded import RecordedCall, Recording
from stellaris.runtime.state.registry import register_part, register_value


class End(NamedTuple):
    """When and how a call ends that has started."""

    time: float
    ending: str


@runtime_checkable
class Course(Protocol):
    """The answers that a call's life needs, each asked once, in this order."""

    @property
    def throttled(self) -> bool:
        """Whether its request for a container is refused."""

    def looks_at(self, submitted: float, drawn: float) -> float:
        """When it looks for a container, or is refused; `drawn` is the time that the deployment's delays give."""

    def starts_at(self, acquired: float, drawn: float) -> float:
        """When it starts, or ends if it never starts; likewise."""

    def ends_before_start(self) -> str | None:
        """Its ending, if it gets a container and never starts."""

    def crashes_at_start(self) -> bool:
        """Whether its container crashes before the body runs."""

    def ends(self, started: float, seconds: Callable[[float], float], timeout: float | None) -> End:
        """When it ends, and how; `seconds(slow_down)` draws its duration."""

    def crashes_at_end(self) -> bool:
        """Whether its container crashes after the body, before the result is sent."""

    def messages(self, ended: float) -> tuple[float | None, float | None]:
        """When the loss of its completion's message is noticed, and when a duplicate arrives; None for never."""


def end_of(started: float, seconds: float, ending: str, timeout: float | None) -> End:
    """The end after so many seconds, or at the time-out if that comes first."""
    if timeout is not None and seconds > timeout:
        return End(started + timeout, "timed_out")
    return End(started + seconds, ending)


@register_value
class Drawn:
    """A call that meets faults, by chance or as scheduled.

    Args:
      faults: their kinds.
      draws: the function's random streams, which say when and for how long.
    """

    __slots__ = ("_draws", "_faults")

    def __init__(self, faults: frozenset[str], draws: FaultDraws) -> None:
        self._faults = faults
        self._draws = draws

    @property
    def throttled(self) -> bool:
        """Whether its request for a container is refused."""
        return "throttle" in self._faults

    def looks_at(self, submitted: float, drawn: float) -> float:
        """As drawn."""
        return drawn

    def starts_at(self, acquired: float, drawn: float) -> float:
        """As drawn."""
        return drawn

    def ends_before_start(self) -> None:
        """Never: a crash before the body runs happens at its start."""

    def crashes_at_start(self) -> bool:
        """Whether its container crashes before the body runs."""
        return "crash_before" in self._faults

    def ends(self, started: float, seconds: Callable[[float], float], timeout: float | None) -> End:
        """Later if it straggles; sooner if it crashes on the way."""
        duration = seconds(self._draws.straggler_factor() if "straggle" in self._faults else 1.0)
        if "crash_during" in self._faults:
            return end_of(started, duration * self._draws.moment(), "crashed", timeout)
        return end_of(started, duration, "completed", timeout)

    def crashes_at_end(self) -> bool:
        """Whether its container crashes after the body, before the result is sent."""
        return "crash_after" in self._faults

    def messages(self, ended: float) -> tuple[float | None, float | None]:
        """A lost message is noticed some time after the end; a duplicate arrives some time after it, too."""
        again = ended + self._draws.duplicate_after() if "duplicate" in self._faults else None
        noticed = ended + self._draws.notice_after() if "lose" in self._faults else None
        return noticed, again


@register_value
class Repeated:
    """A call that repeats what happened to its counterpart in a recorded run.

    A counterpart that was cancelled does not say how it would have gone on: from there on the call is as drawn.

    Args:
      recorded: the counterpart.
    """

    __slots__ = ("_recorded",)

    def __init__(self, recorded: RecordedCall) -> None:
        self._recorded = recorded

    @property
    def throttled(self) -> bool:
        """Whether its counterpart was refused."""
        return self._recorded.ending == "throttled"

    def looks_at(self, submitted: float, drawn: float) -> float:
        """As long after its submission as its counterpart did."""
        if self.throttled:
            return self._recorded.later("ended", after="submitted", at=submitted)
        return self._recorded.later("acquired", after="submitted", at=submitted, otherwise=drawn)

    def starts_at(self, acquired: float, drawn: float) -> float:
        """As long after it got its container as its counterpart started, or ended without starting."""
        if self.ends_before_start() is not None:
            return self._recorded.later("ended", after="acquired", at=acquired)
        return self._recorded.later("started", after="acquired", at=acquired, otherwise=drawn)

    def ends_before_start(self) -> str | None:
        """Its counterpart's ending, if that got a container and never started."""
        recorded = self._recorded
        return recorded.ending if math.isnan(recorded.started) and recorded.ending != "cancelled" else None

    def crashes_at_start(self) -> bool:
        """Never: a recorded crash has its time, at which the call ends."""
        return False

    def ends(self, started: float, seconds: Callable[[float], float], timeout: float | None) -> End:
        """As its counterpart did, as long after its start."""
        recorded = self._recorded
        if recorded.ending == "cancelled":
            drawn = end_of(started, seconds(1.0), "completed", timeout)
            if drawn.ending != "completed":
                return drawn
            return End(recorded.later("ended", after="started", at=started, otherwise=drawn.time), "completed")
        # In these cases the body ran to its end, so it runs here as well: one that failed raises again by itself, and
        # `messages` says whether the message is lost.
        ran = recorded.ending in ("completed", "failed", "lost")
        return End(recorded.later("ended", after="started", at=started), "completed" if ran else recorded.ending)

    def crashes_at_end(self) -> bool:
        """Never, likewise."""
        return False

    def messages(self, ended: float) -> tuple[float | None, float | None]:
        """As long after its end as its counterpart's were noticed and redelivered."""
        noticed = self._recorded.later("noticed", after="ended", at=ended)
        again = self._recorded.later("redelivered", after="ended", at=ended)
        return _unless_nan(noticed), _unless_nan(again)


def _unless_nan(time: float) -> float | None:
    return None if math.isnan(time) else time


@register_part("_submitted", rebuilt=("any", "_draws", "_replay"))
class Courses:
    """Gives every call its course at its submission, so that a function's n-th call meets the n-th draws in any case.

    Args:
      faults: by function.
      replay: the recorded run that is repeated instead, or None.
      seed: of the run.
    """

    def __init__(self, faults: Mapping[str, Faults], replay: Recording | None, seed: int) -> None:
        self._draws = {name: FaultDraws(name, fault, seed) for name, fault in faults.items()}
        self._replay = replay
        self._submitted = Counter[str]()
        #: Whether any call can have a course; on most platforms none has.
        self.any = bool(faults) or replay is not None

    def next(self, function: str) -> Course | None:
        """The course of the call of this function that is submitted now."""
        draws = self._draws.get(function)
        if draws is not None:
            faults = draws.next_attempt()
            return None if faults is None else Drawn(faults, draws)
        if self._replay is not None:
            recorded = self._replay.get(function, self._submitted[function])
            self._submitted[function] += 1
            return None if recorded is None else Repeated(recorded)
        return None
