"""A recorded run as a schedule, so that another algorithm gets exactly the same delays."""

import functools
import hashlib
import math
from typing import NamedTuple

from stellaris.runtime.endings import ENDINGS
from stellaris.runtime.trace.trace import Trace
from stellaris.runtime.trace.views import Events


class RecordedCall(NamedTuple):
    """The times of one invocation of a recorded run, in seconds of its clock; NaN for events that did not happen."""

    submitted: float
    acquired: float
    started: float
    ended: float
    ending: str
    noticed: float  #: the time at which the loss of its message was noticed.
    redelivered: float  #: the time at which its message arrived again.

    def later(self, event: str, *, after: str, at: float, otherwise: float = math.nan) -> float:
        """Returns the time of a recorded event in this run, given the time of the preceding event in this run.

        If the preceding event happens at its recorded time, the result is the event's recorded time, to the last bit.
        Otherwise the result is `at` plus the recorded gap between the two events.

        Args:
          event: name of the event, such as `"ended"`.
          after: name of the preceding event.
          at: the time of the preceding event in this run.
          otherwise: the drawn time, for an event that the recorded invocation did not reach because it was cancelled.
            The drawn time is moved past the cancellation, because the event had not happened by then in the recording.
        """
        before: float = getattr(self, after)
        then: float = getattr(self, event)
        # Equal times are a separate case, because `at + (then - before)` may round.
        if self.ending == "cancelled" and (math.isnan(then) or event == "ended"):
            # The event comes one float later: at the instant of the cancellation, it could precede the cancellation.
            cancelled = self.ended if at == before else at + (self.ended - before)
            return max(otherwise, math.nextafter(cancelled, math.inf))
        return then if at == before else at + (then - before)


class Recording:
    """The delays and endings of a recorded run, for another run to repeat.

    The n-th invocation of a function waits, starts, computes and ends as the n-th did in the recorded run. As long as
    a system submits the same invocations, every event has its recorded time, to the last bit: a system with another
    loss or learning rate gets the same schedule. An invocation that is submitted at another time, for example by a
    system with another aggregator, keeps the recorded delays from its submission on. An invocation without a
    counterpart in the recording draws its delays from the deployment. So does an invocation whose counterpart was
    cancelled, from the cancellation on. Invocations that got containers at one instant get them in the order of their
    numbers, also if calls submitted for later instants were queued in another order.

    Args:
      trace: the trace of the recorded run.

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
        noticed = _times(trace.select("noticed"))
        redelivered = _times(trace.select("redelivered"))
        after = math.nextafter(max((row[0] for row in trace.rows()), default=0.0), math.inf)
        lost = ENDINGS.index("lost")
        # A call that was withdrawn has its place among the calls of its function, and no times.
        calls: dict[int, tuple[str, RecordedCall | None]] = {
            number: (name, None)
            for name in table.names
            for number in trace.select("withdrawn", function=name).invocation.tolist()
        }
        # Times are Python's floats, which the engine adds faster than NumPy's, with the same results.
        submitted = table.submitted.tolist()
        acquired = table.acquired.tolist()
        started = table.started.tolist()
        ended = table.ended.tolist()
        for i, (number, function, ending) in enumerate(
            zip(table.number.tolist(), table.function.tolist(), table.ending.tolist(), strict=True)
        ):
            call = RecordedCall(
                submitted=submitted[i],
                acquired=acquired[i],
                started=started[i],
                ended=ended[i],
                ending=ENDINGS[ending] if ending >= 0 else "",
                # A loss that was not noticed before the recording ended is noticed right after its end.
                noticed=noticed.get(number, after if ending == lost else math.nan),
                redelivered=redelivered.get(number, math.nan),
            )
            calls[number] = table.names[function], call
        self._calls: dict[str, list[RecordedCall | None]] = {name: [] for name in table.names}
        for _, (name, recorded) in sorted(calls.items()):
            self._calls[name].append(recorded)

    @functools.cached_property
    def digest(self) -> str:
        """The hash of all recorded calls."""
        return hashlib.sha256(repr(sorted(self._calls.items())).encode()).hexdigest()[:16]

    def get(self, function: str, n: int) -> RecordedCall | None:
        """Returns invocation `n` of a function, the first being 0; None if there were fewer, or if it had not ended."""
        calls = self._calls.get(function, [])
        call = calls[n] if n < len(calls) else None
        # The end of a call that was still running at the end of the recording is unknown, so its times are drawn.
        return call if call is not None and call.ending else None


def _times(rows: Events) -> dict[int, float]:
    """Returns the time of an event, by invocation."""
    return dict(zip(rows.invocation.tolist(), rows.time.tolist(), strict=True))
