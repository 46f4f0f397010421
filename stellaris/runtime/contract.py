"""The contract between systems and platforms: what a system may ask of any backend, and a body of its context.

The simulated platform keeps it in virtual and in wall time. A cluster can keep it, too: nothing here speaks of
simulated delays, of drawn faults or of who moves the clock. What a body may ask of its context is in `functions`.
"""

import math
from collections.abc import Callable
from typing import Any, Protocol, runtime_checkable

from stellaris.runtime.billing import Bill, PriceSheet
from stellaris.runtime.functions import Function, Invocation
from stellaris.runtime.store import Store
from stellaris.runtime.trace import Trace


@runtime_checkable
class Platform(Protocol):
    """Runs functions; a system is an event loop over it: invoke, take the next completion, decide."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    @property
    def store(self) -> Store:
        """Published versions, and objects, which arguments refer to."""

    @property
    def trace(self) -> Trace:
        """The record of everything that happened, to which systems add what they did."""

    def invoke(
        self,
        name: str,
        function: Function | Callable[..., Any],
        *args: Any,
        at: float | None = None,
        work: float = 1.0,
        tag: Any = None,
    ) -> Invocation:
        """Submits one call of a deployed function."""

    def next_completion(self, *, until: float = math.inf) -> Invocation | None:
        """The next invocation that ends, well or badly; None if nothing is pending, or nothing ends by `until`."""

    def retry(self, invocation: Invocation, *, limit: int | None = None) -> Invocation:
        """Submits an invocation that did not complete anew, under the same key."""

    def cancel(self, invocation: Invocation) -> None:
        """Ends an invocation that is no longer wanted; it is not handed out."""

    def prewarm(self, name: str, count: int = 1, *, at: float | None = None) -> None:
        """Makes containers ahead of the invocations that will want them, as far as there is room."""

    def slots(self, name: str, *, concurrent: int) -> int:
        """How many slots the containers of a function can have, with so many invocations of it at once."""

    def bill(self, prices: PriceSheet) -> Bill:
        """What the run has cost so far under a price sheet."""

    def close(self) -> None:
        """Ends everything. Closing twice does nothing."""
