"""The contract between systems and platforms: what a system may ask of any backend, and a body of its context.

The simulated platform keeps it in virtual and in wall time. A cluster can keep it, too: nothing here speaks of
simulated delays, of drawn faults or of who moves the clock. What a body may ask of its context is in `functions`.
"""

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, runtime_checkable

from stellaris.runtime.costs.billing import Bill
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.runtime.functions import Function, FunctionSpec, Invocation
from stellaris.runtime.store.store import Store
from stellaris.runtime.trace.trace import Trace


@runtime_checkable
class Platform(Protocol):
    """Runs functions; a system is an event loop over it: invoke, take the next completion, decide."""

    @property
    def now(self) -> float:
        """Seconds since the start."""

    @property
    def functions(self) -> Mapping[str, FunctionSpec]:
        """What is deployed, by name."""

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
        """Submits one call; it starts when a container is there, during `next_completion`.

        Args:
          name: of the deployed function, which says what the call costs.
          function: the program, or its body.
          *args: values, or references of the store, which are resolved when the body starts.
          at: submit it at this instant instead of now. On the wall clock an instant that has passed is now.
          work: multiplies the drawn compute time.
          tag: the system's own, handed back with the completion.

        Returns:
          The pending invocation.

        Raises:
          LookupError: if no function of this name is deployed, or a fixed version is not in the store.
          TypeError: if `function` cannot be called, or an argument is of unknown size and its transfer costs time.
          ValueError: if `at` is past, `work` is negative, or sending the result costs time and the program does not
            declare its size.
          RuntimeError: if the platform is closed.
        """

    def next_completion(self, *, until: float = math.inf) -> Invocation | None:
        """Moves time to the next invocation that ends, well or badly, and hands it out.

        A completion whose message was duplicated is handed out twice, the second time as another object with the same
        number and key.

        Args:
          until: the latest instant to move to.

        Returns:
          The invocation; or None if nothing is pending, or nothing ends by `until`, to which time has then moved.

        Raises:
          RuntimeError: if events at one instant never end, or what is pending waits for room that nothing will free.
          ValueError: if `until` is not a number.
        """

    def retry(self, invocation: Invocation, *, limit: int | None = None) -> Invocation:
        """Submits an invocation that did not complete anew, after a wait, as its function's `Retry` says.

        It is the same piece of work under the same idempotency key: the first attempt may have had its effects, and its
        completion may still arrive.

        Args:
          invocation: one that was handed out as timed out, crashed, throttled or lost.
          limit: attempts at most; by default the function's.

        Returns:
          The new pending invocation, with a new number, and one attempt more.

        Raises:
          FunctionError: if its body raised, and would raise again, or if its attempts are used up.
          LookupError: if it refers to a fixed version that the store no longer keeps.
          ValueError: if it has not ended, completed or was cancelled, or is another platform's.
        """

    def cancel(self, invocation: Invocation) -> None:
        """Ends an invocation that is no longer wanted, and its container; it is not handed out.

        An invocation that has ended is left as it is.

        Args:
          invocation: a pending or running one.

        Raises:
          ValueError: if it is another platform's.
        """

    def prewarm(self, name: str, count: int = 1, *, at: float | None = None) -> None:
        """Makes containers before any invocation needs them, as far as there is room.

        Each takes a cold start, is then idle, and expires like any other. See `slots` for how many there may be.

        Args:
          name: of the function.
          count: of the containers.
          at: make them at this instant instead of now.

        Raises:
          LookupError: if no function of this name is deployed.
          TypeError: if `count` is not whole.
          ValueError: if `count` is below 1, or `at` is past.
        """

    def slots(self, name: str, *, concurrent: int) -> int:
        """An upper bound of the slots of a function's containers: each slot is a number below it.

        Whatever bodies keep by slot, such as environments, is made for this many.

        Args:
          name: of the function.
          concurrent: the most invocations of it at once.

        Returns:
          The sum of the concurrent invocations, the provisioned containers and those that `prewarm` was asked for so
          far; at most the function's `max_concurrency`. Twice as many on the wall clock if the function has a time-out,
          because a killed body keeps its slot until it ends.

        Raises:
          LookupError: if no function of this name is deployed.
        """

    def bill(self, prices: PriceSheet) -> Bill:
        """What the run has cost so far under a price sheet."""

    def close(self, *, patience: float = math.inf) -> None:
        """Cancels pending invocations, ends the containers and stops the threads. Closing again does nothing.

        Args:
          patience: seconds of real time to wait for bodies that still run in virtual time, at most `hang_after`. A
            `with` block that an exception ends waits for two.
        """

    def __enter__(self) -> Any:
        """A platform is used in a `with` block, which closes it."""

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        """Closes the platform; after an exception it waits for running bodies a short time only."""


@runtime_checkable
class Resumable(Platform, Protocol):
    """A platform that can be saved, and go on in another process: its class says what its state is (`saved.part`)."""

    @property
    def configuration(self) -> Mapping[str, Any]:
        """All that decides what happens on it, as plain data: where this is another, a run cannot go on."""

    def settle(self) -> None:
        """Finishes what is under way in this process, so that its state can be saved."""

    def reinitialise(self, name: str) -> None:
        """Has every container of a function make its state anew before its next body, as if it were a new one."""
