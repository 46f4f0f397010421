"""Faults: crashes, lost and duplicated messages, throttling, stragglers, lost containers, and outages of the store."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from numbers import Integral

from stellaris._core import checks
from stellaris._core.describe import digest
from stellaris.runtime.delays import Constant, Delay, Stream, Uniform, check_drawn
from stellaris.runtime.state.registry import register_part, register_value

#: The kinds of faults that one attempt can meet. Each draws from a separate random stream, so the order is arbitrary.
KINDS = ("throttle", "crash_before", "crash_during", "crash_after", "lose", "duplicate", "straggle")


@dataclass(frozen=True)
class Faults:
    """The faults of a function's invocations. Each kind occurs independently with its probability, or as scheduled.

    Args:
      throttle: probability that a request for a container is refused; the attempt ends as `throttled`.
      crash_before: probability that the container crashes before the body runs. As after every crash, the attempt ends
        as `crashed`, and the container ends with its state.
      crash_during: probability that the container crashes at a random moment while the body runs; the body has no
        effect.
      crash_after: probability that the container crashes after the body has had its effects, before its result is sent.
      lose: probability that the message of a completion is lost. The body has run, the container stays, and the attempt
        ends as `lost`, which is noticed later.
      notice_after: seconds until the loss of a message is noticed, and the invocation is handed out as `lost`.
      duplicate: probability that the message of a completion arrives twice. If the first message is lost, the second
        still arrives, perhaps after the loss was noticed and the work was done again.
      duplicate_after: seconds between the two messages.
      straggle: probability that computing takes longer.
      straggler_factor: factor by which computing then takes longer; a distribution of a factor, not of seconds.
      lifetime: seconds after which a container is lost with its state, busy or idle; None for never.
      at: scheduled faults, in addition to the random ones. Maps the number of an attempt (the first
        submitted is 0) to kinds of fault, which are the names of the probabilities above: `{3: ("lose",)}`.
      lose_containers_at: instants at which the function's newest container is lost.

    Raises:
      TypeError: if a duration or the straggler's factor is a bare number instead of a distribution, or a probability is
        not a number.
      ValueError: if a probability lies outside [0, 1], or the schedule has a fault of an unknown kind or of an attempt
        that there cannot be.

    Example:
      >>> faults = Faults(crash_during=0.05, at={3: ("lose", "duplicate")})
    """

    throttle: float = 0.0
    crash_before: float = 0.0
    crash_during: float = 0.0
    crash_after: float = 0.0
    lose: float = 0.0
    notice_after: Delay = Constant(1.0)
    duplicate: float = 0.0
    duplicate_after: Delay = Constant(0.1)
    straggle: float = 0.0
    straggler_factor: Delay = Constant(10.0)
    lifetime: Delay | None = None
    at: Mapping[int, Sequence[str]] = field(default_factory=dict)
    lose_containers_at: Sequence[float] = ()

    def __hash__(self) -> int:
        return hash(digest(self))  # the hash of the content, because a mapping cannot be hashed

    def __post_init__(self) -> None:
        check_drawn(
            notice_after=self.notice_after,
            duplicate_after=self.duplicate_after,
            straggler_factor=self.straggler_factor,
        )
        if self.lifetime is not None:
            check_drawn(lifetime=self.lifetime)
        checks.single(**{kind: getattr(self, kind) for kind in KINDS})
        for kind in KINDS:
            if not 0 <= getattr(self, kind) <= 1:
                raise ValueError(f"{kind}={getattr(self, kind)} is not a probability: give a number from 0 to 1")
        for number, kinds in self.at.items():
            # A bare string is refused, because it would be taken for a sequence of letters.
            unknown = [kinds] if isinstance(kinds, str) else [kind for kind in kinds if kind not in KINDS]
            if unknown:
                raise ValueError(f"at={{{number}: {kinds!r}}}: give a sequence of {', '.join(KINDS)}")
            if not isinstance(number, Integral) or number < 0:  # the fault would never happen
                raise ValueError(f"at={{{number!r}: {kinds!r}}}: give the number of an attempt, 0 for the first")
        if not all(0 <= instant < math.inf for instant in self.lose_containers_at):
            raise ValueError(
                f"lose_containers_at={self.lose_containers_at}: an instant is negative or not finite; give seconds "
                "from the start of the run"
            )


@register_part("_attempts", rebuilt=("_faults", "_chances", "_moment", "_factor", "_notice", "_again"))
class FaultDraws:
    """The random draws of a function's faults.

    Args:
      function: name of the function.
      faults: faults of the function.
      seed: seed of the run.
    """

    def __init__(self, function: str, faults: Faults, seed: int) -> None:
        self._faults = faults
        self._attempts = 0
        chances = Uniform(0.0, 1.0)
        # A kind that cannot happen gets no stream, because every attempt would draw from the stream in vain.
        self._chances = {
            kind: Stream(chances, seed, f"{function}/{kind}") for kind in KINDS if getattr(faults, kind) > 0
        }
        self._moment = Stream(chances, seed, f"{function}/moment")
        self._factor = Stream(faults.straggler_factor, seed, f"{function}/straggler_factor")
        self._notice = Stream(faults.notice_after, seed, f"{function}/notice_after")
        self._again = Stream(faults.duplicate_after, seed, f"{function}/duplicate_after")

    def next_attempt(self) -> frozenset[str] | None:
        """Draws the faults of the next attempt; returns None if the attempt meets no fault."""
        # Every kind is drawn, so that a stream's n-th draw decides the n-th attempt even if other kinds change.
        kinds = {kind for kind, chance in self._chances.items() if chance.draw() < getattr(self._faults, kind)}
        # Scheduled faults are added after the draws, so that they do not change which attempts meet random faults.
        kinds.update(self._faults.at.get(self._attempts, ()))
        self._attempts += 1
        return frozenset(kinds) or None

    def moment(self) -> float:
        """Draws the fraction of an invocation's duration after which the container crashes."""
        return self._moment.draw()

    def straggler_factor(self) -> float:
        """Draws the factor by which a straggling invocation takes longer."""
        return self._factor.draw()

    def notice_after(self) -> float:
        """Draws the seconds until a lost message is noticed."""
        return self._notice.draw()

    def duplicate_after(self) -> float:
        """Draws the seconds between a message and its duplicate."""
        return self._again.draw()


@dataclass(frozen=True)
class Outages:
    """The outages of a store, random or scheduled.

    Args:
      every: seconds between the end of a random outage and the beginning of the next; None for no random
        outages.
      lasting: seconds that a random outage lasts.
      at: scheduled outages, each `(begin, end)` in seconds.

    Raises:
      TypeError: if a duration is a bare number instead of a distribution.
      ValueError: if a scheduled outage ends before it begins.

    Example:
      >>> Outages(at=((10.0, 12.5),))
      Outages(every=None, lasting=Constant(seconds=1.0), at=((10.0, 12.5),))
    """

    every: Delay | None = None
    lasting: Delay = Constant(1.0)
    at: Sequence[tuple[float, float]] = ()

    def __post_init__(self) -> None:
        check_drawn(lasting=self.lasting)
        if self.every is not None:
            check_drawn(every=self.every)
        for begin, end in self.at:
            if not 0 <= begin <= end:
                raise ValueError(
                    f"at=(({begin}, {end}),): an outage begins at 0 or later, and ends no earlier than it begins"
                )


@dataclass(frozen=True)
class StoreFaults:
    """The faults of a store.

    Args:
      slow: outages during which transfers take longer.
      slow_factor: the factor by which transfers then take longer.
      refuse: outages during which the store does not answer. An invocation that starts then and refers to the store
        crashes.

    Raises:
      ValueError: if the factor is below 1.
    """

    slow: Outages = Outages()
    slow_factor: float = 10.0
    refuse: Outages = Outages()

    def __post_init__(self) -> None:
        if not 1 <= self.slow_factor < math.inf:
            raise ValueError(
                f"slow_factor={self.slow_factor} is below 1 or not finite: give a finite factor of 1 or more"
            )


@register_value
class StoreRefusedError(RuntimeError):
    """Raised if the store refuses to answer an invocation; the invocation then crashes and can be retried."""


@register_part("_begin", "_end", rebuilt=("_scheduled", "_gaps", "_lengths"))
class OutageClock:
    """The outages of a run, drawn as time passes: the instants passed to `now` must not decrease.

    Args:
      outages: the distribution or schedule of the outages.
      seed: seed of the run.
      name: name of the random streams.
    """

    def __init__(self, outages: Outages, seed: int, name: str) -> None:
        self._scheduled = outages.at
        self._gaps = None if outages.every is None else Stream(outages.every, seed, f"{name}/every")
        self._lengths = Stream(outages.lasting, seed, f"{name}/lasting")
        # The first gap begins at 0. Without random outages the interval of the outage is empty and contains no instant.
        self._begin = self._end = -math.inf if self._gaps is None else 0.0

    def now(self, instant: float) -> bool:
        """Returns whether there is an outage at `instant`; its beginning belongs to the outage, its end does not."""
        # Outages are drawn only up to `instant`, because the length of the run is not known.
        while self._gaps is not None and instant >= self._end:
            before = self._end
            self._begin = before + self._gaps.draw()
            self._end = self._begin + self._lengths.draw()
            # If no time has passed, this loop might never end.
            if self._end == before:
                raise ValueError(
                    f"outage at {before} s: `every` and `lasting` both drew 0 seconds, so time stands still; make one "
                    "of them positive"
                )
        # The interval is half-open, so that an instant belongs to only one of two adjoining outages.
        return self._begin <= instant < self._end or any(begin <= instant < end for begin, end in self._scheduled)
