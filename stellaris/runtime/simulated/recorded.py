"""A recorded schedule, so that another algorithm meets exactly the same delays."""

import functools
import hashlib
import math
from typing import NamedTuple

from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.trace import Trace


class RecordedCall(NamedTuple):
    """What happened to one invocation, in seconds of its run's clock; NaN for what did not."""

    submitted: float
    acquired: float
    started: float
    ended: float
    ending: str
    noticed: float  #: that its message was lost.
    redelivered: float  #: when its message came a second time.

    def later(self, event: str, *, after: str, at: float, otherwise: float = math.nan) -> float:
        """Moves a recorded event's time to where the event before it happens now.

        Returns the recorded time itself, to the last bit, if the event before it happens when it did in the recording;
        otherwise `at` plus the recorded gap.

        Args:
          event: such as `"ended"`.
          after: the event before it.
          at: when that happens now.
          otherwise: the drawn time, used if the recorded invocation was cancelled before the event; moved past the
            instant of that cancellation.
        """
        before: float = getattr(self, after)
        then: float = getattr(self, event)
        if self.ending == "cancelled" and (math.isnan(then) or event == "ended"):
            cancelled = self.ended if at == before else at + (self.ended - before)
            return max(otherwise, math.nextafter(cancelled, math.inf))
        return then if at == before else at + (then - before)


class Recording:
    """The starts and completions of a recorded run, for another run to meet.

    The n-th invocation of a function waits, starts, computes and ends, well or badly, as the n-th did in the recorded
    run. Where a system does as the recorded one did, the same happens at the same instants, to the last bit, and the
    same versions are published then: so a system with another loss, or another cap, meets the same schedule. Where it
    submits an invocation at another instant, as a system with another aggregator will, the invocation meets the delays
    of the recorded one from then on. What has no counterpart in the recorded run draws its delays from the deployment;
    so does what was cancelled there, from then on.

    Args:
      trace: of the recorded run.

    Example:
      >>> from stellaris.runtime import FunctionSpec, Recording, SimulatedPlatform, delays
      >>> deployment = {"f": FunctionSpec(delays.Exponential(1.0), cold_start=delays.Exponential(1.0))}
      >>> ends = []
      >>> recording = None
      >>> for seed in (1, 2):
      ...     with SimulatedPlatform(deployment, seed=seed, replay=recording) as platform:
      ...         _ = platform.invoke("f", lambda context: seed)
      ...         ends.append(platform.next_completion().finished)
      ...         recording = Recording(platform.trace)
      >>> ends[0] == ends[1]
      True
    """

    def __init__(self, trace: Trace) -> None:
        table = trace.invocations()
        noticed, redelivered = (
            dict(zip(rows.invocation.tolist(), rows.time.tolist(), strict=True))
            for rows in (trace.select("noticed"), trace.select("redelivered"))
        )
        after = math.nextafter(max((row[0] for row in trace.rows()), default=0.0), math.inf)
        lost = ENDINGS.index("lost")
        self._calls: dict[str, list[RecordedCall]] = {name: [] for name in table.names}
        columns = (table.number, table.function, table.submitted, table.acquired, table.started, table.ended)
        for number, function, submitted, acquired, started, ended, ending in zip(
            *(column.tolist() for column in (*columns, table.ending)), strict=True
        ):
            call = RecordedCall(
                *(submitted, acquired, started, ended),
                ENDINGS[ending] if ending >= 0 else "",
                # What had not been noticed by the end of the recording is so right after it.
                noticed.get(number, after if ending == lost else math.nan),
                redelivered.get(number, math.nan),
            )
            self._calls[table.names[function]].append(call)

    @functools.cached_property
    def digest(self) -> str:
        """A hash of everything that it says."""
        return hashlib.sha256(repr(sorted(self._calls.items())).encode()).hexdigest()[:16]

    def get(self, function: str, n: int) -> RecordedCall | None:
        """The n-th invocation of a function, from 0; None if there was none, or it had not ended."""
        calls = self._calls.get(function, [])
        return calls[n] if n < len(calls) and calls[n].ending else None
