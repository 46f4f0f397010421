"""Completions, each piece of work once: what failed is tried again, and what arrives twice is dropped."""

import math
from dataclasses import dataclass, field

from stellaris.runtime.contract import Platform
from stellaris.runtime.endings import RETRIABLE
from stellaris.runtime.functions import Invocation
from stellaris.runtime.state.registry import register_value


@register_value
@dataclass
class Handled:
    """Idempotency keys that were handled: all below a floor, and some above it.

    Keys are numbers of invocations, which are handled in nearly the order in which they are made: few are ever above.

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
        """Notes that a key was handled."""
        self.above.add(key)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1

    def __contains__(self, key: int) -> bool:
        return key < self.floor or key in self.above


@dataclass
class Deliveries:
    """Hands out a platform's completions, each piece of work exactly once.

    An invocation that timed out, crashed, was throttled or lost is tried again, as its function's `Retry` says. A
    platform delivers at least once: a message may come twice, and work whose message was lost may have been done
    twice. Whatever carries an idempotency key that was handed out before is dropped.

    Args:
      platform: on which the invocations run. Only one `Deliveries` may take its completions.

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
    retries: dict[int, Invocation] = field(default_factory=dict)  #: the latest attempt of what is tried again, by key.

    def next(self, *, until: float = math.inf) -> Invocation | None:
        """The next invocation that completes, or whose body raised; None if nothing does by `until`.

        Args:
          until: an instant beyond which not to look, in seconds of the platform's clock.

        Raises:
          FunctionError: if an invocation's attempts are used up.
        """
        while (done := self.platform.next_completion(until=until)) is not None:
            if done.key in self.handled:
                self.platform.trace.append(
                    self.platform.now, "dropped", function=done.function, invocation=done.number, value=1.0
                )
            elif done.status in RETRIABLE:
                again = self.platform.retry(done)
                self.retries[done.key] = again
                self.handled.add(again.number)  # it carries the first attempt's key: no key will be its own number
            else:
                self.handled.add(done.key)
                again = self.retries.pop(done.key, done)
                if again is not done:
                    # A message arrived that had been given up on: the work need not be done a second time.
                    self.platform.cancel(again)
                return done
        return None
