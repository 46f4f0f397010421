"""The course of a call: the faults that it meets, or the times and the ending of a recorded call that it repeats.

Most calls have no course: on a platform without faults and without a recorded run, the deployment's delays decide
all times. If a call has a course, the engine asks the course at each step, and passes it the time drawn from the
delays. The course returns that time or another time.
"""

import math
from collections import Counter
from collections.abc import Callable, Mapping
from typing import NamedTuple, Protocol, runtime_checkable

from stellaris.runtime.engine.faults import FaultDraws, Faults
from stellaris.runtime.engine.recorded import RecordedCall, Recording
from stellaris.runtime.state.registry import register_part, register_value


class End(NamedTuple):
    """The time and the ending of a call that has started."""

    time: float
    ending: str


@runtime_checkable
class Course(Protocol):
    """The decisions about one call. The engine calls each method at most once, in this order."""

    @property
    def throttled(self) -> bool:
        """Whether the call's request for a container is refused."""

    def looks_at(self, submitted: float, drawn: float) -> float:
        """Returns the time at which the call looks for a container or is refused; the delays gave the time `drawn`."""

    def starts_at(self, acquired: float, drawn: float) -> float:
        """Returns the time at which the call starts, or ends without a start; the delays gave the time `drawn`."""

    def ends_before_start(self) -> str | None:
        """Returns the ending of a call that gets a container but never starts; None for any other call."""

    def crashes_at_start(self) -> bool:
        """Returns whether the call's container crashes before the body runs."""

    def ends(self, started: float, seconds: Callable[[float], float], timeout: float | None) -> End:
        """Returns the end of the call; `seconds(slow_down)` draws the duration."""

    def crashes_at_end(self) -> bool:
        """Returns whether the call's container crashes after the body, before the result is sent."""

    def messages(self, ended: float) -> tuple[float | None, float | None]:
        """Returns when the loss of the call's message is noticed, and when a duplicate arrives; None for never."""


def end_of(started: float, seconds: float, ending: str, timeout: float | None) -> End:
    """Returns the end after `seconds`, or at the time-out if that is earlier."""
    # Durations are compared and not instants, because adding both to `started` could round them to the same float.
    if timeout is not None and seconds > timeout:
        return End(started + timeout, "timed_out")
    return End(started + seconds, ending)


@register_value
class Drawn:
    """The course of a call that meets faults, random or scheduled.

    Args:
      faults: the kinds of faults that the call meets.
      draws: the function's random streams, for times and durations.
    """

    __slots__ = ("_draws", "_faults")

    def __init__(self, faults: frozenset[str], draws: FaultDraws) -> None:
        self._faults = faults
        self._draws = draws

    @property
    def throttled(self) -> bool:
        """Whether a fault refuses the call's request for a container."""
        return "throttle" in self._faults

    def looks_at(self, submitted: float, drawn: float) -> float:
        """Returns `drawn`: no fault changes when the call looks for a container."""
        return drawn

    def starts_at(self, acquired: float, drawn: float) -> float:
        """Returns `drawn`: no fault changes when the call starts."""
        return drawn

    def ends_before_start(self) -> None:
        """Returns None: even a call that crashes before its body runs counts as started; see `crashes_at_start`."""

    def crashes_at_start(self) -> bool:
        """Returns whether a fault crashes the call's container before the body runs."""
        return "crash_before" in self._faults

    def ends(self, started: float, seconds: Callable[[float], float], timeout: float | None) -> End:
        """Returns the end of the call: later if it straggles, sooner if it crashes during the body."""
        # The straggler's factor is applied first, because a crash during the body comes after a fraction of the longer
        # duration.
        duration = seconds(self._draws.straggler_factor() if "straggle" in self._faults else 1.0)
        if "crash_during" in self._faults:
            return end_of(started, duration * self._draws.moment(), "crashed", timeout)
        return end_of(started, duration, "completed", timeout)

    def crashes_at_end(self) -> bool:
        """Returns whether a fault crashes the call's container after the body, before the result is sent."""
        return "crash_after" in self._faults

    def messages(self, ended: float) -> tuple[float | None, float | None]:
        """Returns the two times, each a drawn delay after the end; None for a fault that the call does not meet."""
        # A call may meet both faults: the first message is lost, and the second still arrives.
        again = ended + self._draws.duplicate_after() if "duplicate" in self._faults else None
        noticed = ended + self._draws.notice_after() if "lose" in self._faults else None
        return noticed, again


@register_value
class Repeated:
    """The course of a call that repeats its counterpart in a recorded run.

    If the counterpart was cancelled, the recording lacks its later events. From the cancellation on, the call follows
    the drawn times.

    Args:
      recorded: the counterpart in the recorded run.
    """

    __slots__ = ("_recorded",)

    def __init__(self, recorded: RecordedCall) -> None:
        self._recorded = recorded

    @property
    def throttled(self) -> bool:
        """Whether the recorded call's request for a container was refused."""
        return self._recorded.ending == "throttled"

    def looks_at(self, submitted: float, drawn: float) -> float:
        """Returns the time of the submission plus the recorded delay."""
        # A refused call never got a container, so only the time of its end is known.
        if self.throttled:
            return self._recorded.later("ended", after="submitted", at=submitted)
        return self._recorded.later("acquired", after="submitted", at=submitted, otherwise=drawn)

    def starts_at(self, acquired: float, drawn: float) -> float:
        """Returns the time at which the call got its container, plus the recorded delay."""
        if self.ends_before_start() is not None:
            return self._recorded.later("ended", after="acquired", at=acquired)
        return self._recorded.later("started", after="acquired", at=acquired, otherwise=drawn)

    def ends_before_start(self) -> str | None:
        """Returns the ending of the recorded call, if it got a container but never started; None otherwise."""
        recorded = self._recorded
        return recorded.ending if math.isnan(recorded.started) and recorded.ending != "cancelled" else None

    def crashes_at_start(self) -> bool:
        """Returns False: `ends` ends the call at the time of the recorded crash."""
        return False

    def ends(self, started: float, seconds: Callable[[float], float], timeout: float | None) -> End:
        """Returns the recorded ending, at the start plus the recorded duration."""
        recorded = self._recorded
        if recorded.ending == "cancelled":
            # A time-out is not moved past the recorded cancellation, because the limit holds in this run as well.
            drawn = end_of(started, seconds(1.0), "completed", timeout)
            if drawn.ending != "completed":
                return drawn
            return End(recorded.later("ended", after="started", at=started, otherwise=drawn.time), "completed")
        # After these endings the recorded body had run to its end, so the body runs here as well. A body that failed
        # raises again by itself, and `messages` tells whether the message is lost.
        ran = recorded.ending in ("completed", "failed", "lost")
        return End(recorded.later("ended", after="started", at=started), "completed" if ran else recorded.ending)

    def crashes_at_end(self) -> bool:
        """Returns False: `ends` ends the call at the time of the recorded crash."""
        return False

    def messages(self, ended: float) -> tuple[float | None, float | None]:
        """Returns the time of the end plus each recorded delay; None for an event that the recording lacks."""
        noticed = self._recorded.later("noticed", after="ended", at=ended)
        again = self._recorded.later("redelivered", after="ended", at=ended)
        return _unless_nan(noticed), _unless_nan(again)


def _unless_nan(time: float) -> float | None:
    return None if math.isnan(time) else time


@register_part("_submitted", rebuilt=("any", "_draws", "_replay"))
class Courses:
    """The courses of all calls. A course is decided at submission, so that a function's n-th call gets the n-th draws.

    Args:
      faults: the faults of functions, by name.
      replay: the recorded run to repeat, or None.
      seed: seed of the run.
    """

    def __init__(self, faults: Mapping[str, Faults], replay: Recording | None, seed: int) -> None:
        self._draws = {name: FaultDraws(name, fault, seed) for name, fault in faults.items()}
        self._replay = replay
        self._submitted = Counter[str]()
        #: Whether any call can have a course. It is computed once, so that most platforms skip the look-up per call.
        self.any = bool(faults) or replay is not None

    def next(self, function: str) -> Course | None:
        """Returns the course of the function's next call; None if the call needs no course."""
        # A platform has faults or a replay, but not both, so the order of the two checks does not matter.
        draws = self._draws.get(function)
        if draws is not None:
            faults = draws.next_attempt()
            return None if faults is None else Drawn(faults, draws)
        if self._replay is not None:
            recorded = self._replay.get(function, self._submitted[function])
            self._submitted[function] += 1
            return None if recorded is None else Repeated(recorded)
        return None
