"""Exactly-once handling of completions: failed invocations are retried, duplicates are dropped."""

import math
from dataclasses import dataclass, field

from stellaris.runtime.contract import Platform
from stellaris.runtime.endings import ENDINGS, RETRIABLE
from stellaris.runtime.functions import Invocation
from stellaris.runtime.state.registry import register_value

_CANCELLED = ENDINGS.index("cancelled")


@register_value
@dataclass
class Handled:
    """The idempotency keys of the completions that were handled: all keys below a floor, and some keys above it.

    Keys are numbers of invocations, whose completions are handled in nearly the order of the invocations. So the set
    above the floor stays small in a run of any length.

    Example:
      >>> handled = Handled()
      >>> for key in (1, 0, 3):
      ...     handled.add(key)
      >>> handled, 2 in handled
      (Handled(floor=2, above={3}), False)
    """

    floor: int = 0
    above: set[int] = field(default_factory=set)

    def add(self, key: int) -> None:
        """Adds a key."""
        self.above.add(key)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1

    def __contains__(self, key: int) -> bool:
        return key < self.floor or key in self.above


@dataclass
class Deliveries:
    """Hands out a platform's completions, exactly one for each idempotency key.

    An invocation that timed out, crashed, was throttled or lost is retried, as its function's `Retry` says; a retry has
    the same key. The platform delivers at least once: a message may arrive twice, and work whose message was lost may
    be done twice. A completion is dropped if one with the same key was handed out before.

    Args:
      platform: the platform of the invocations. Only one `Deliveries` may take its completions.

    Example:
      >>> from stellaris.runtime import Faults, FunctionSpec, SimulatedPlatform
      >>> from stellaris.runtime.delays import Constant
      >>> faults = {"f": Faults(at={0: ("crash_during", ), 1: ("duplicate", )})}
      >>> with SimulatedPlatform({"f": FunctionSpec(Constant(1.0))}, faults=faults) as platform:
      ...     deliveries = Deliveries(platform)
      ...     _ = platform.invoke("f", lambda context: "done")
      ...     while done := deliveries.next():
      ...         print(done.result(), "at attempt", done.attempt)
      done at attempt 2
    """

    platform: Platform
    handled: Handled = field(default_factory=Handled)
    retries: dict[int, Invocation] = field(default_factory=dict)  #: the latest attempt of retried invocations, by key.

    def next(self, *, until: float = math.inf) -> Invocation | None:
        """Returns the next invocation that completes or whose body raised; None if none does by `until`.

        Args:
          until: the latest instant to wait for, in seconds of the platform's clock.

        Raises:
          FunctionError: if an invocation's attempts are used up.
        """
        while (done := self.platform.next_completion(until=until)) is not None:
            # Completions with a handled key are dropped first, in any status. For example, if a duplicate has delivered
            # the result, and the loss of the first message is noticed only later, this loss must not cause a retry.
            if done.key in self.handled:
                self.platform.trace.append(
                    self.platform.now, "dropped", function=done.function, invocation=done.number, value=1.0
                )
            elif done.status in RETRIABLE:  # a body that raised would raise again
                again = self.platform.retry(done)
                self.retries[done.key] = again
                # The retry keeps the key of the first attempt, so its own number is never a key. Unless that
                # number is added, the floor of the handled keys would stay below it forever.
                self.handled.add(again.number)
            else:
                self.handled.add(done.key)
                again = self.retries.pop(done.key, done)
                if again is not done:
                    # An attempt that was thought lost has completed while its retry is pending: cancel the retry.
                    self.platform.cancel(again)
                return done
        return None

    @property
    def outstanding(self) -> bool:
        """Whether a completion may still come: whether an invocation that was not cancelled is unhandled."""
        calls = self.platform.trace.invocations()
        open_ = calls.number[(calls.number >= self.handled.floor) & (calls.ending != _CANCELLED)]
        return any(number not in self.handled for number in open_.tolist())
