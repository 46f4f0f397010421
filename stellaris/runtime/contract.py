"""The contract between systems and platforms: the methods that a system may call on any platform.

The simulated platform implements the contract in virtual time and in real ("wall") time, and the Ray and the Dask
platform on clusters. Simulated delays, faults and clocks are not part of the contract. `functions.Context` is the
contract for bodies.
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
    """Runs functions. A system invokes functions, takes the next completion, and decides what to invoke next."""

    @property
    def now(self) -> float:
        """The seconds since the start of the run."""

    @property
    def functions(self) -> Mapping[str, FunctionSpec]:
        """The deployed functions, by name."""

    @property
    def store(self) -> Store:
        """The store of published versions and objects that arguments can refer to."""

    @property
    def trace(self) -> Trace:
        """The log of everything that happened; systems add events to it."""

    def invoke(
        self,
        name: str,
        function: Function | Callable[..., Any],
        *args: Any,
        at: float | None = None,
        work: float = 1.0,
        tag: Any = None,
    ) -> Invocation:
        """Submits one call. The call starts during `next_completion`, once a container is ready.

        Args:
          name: name of the deployed function, whose specification gives the call's delays and resources.
          function: the program, or its body.
          *args: values, or references to values in the store, which are resolved when the body starts.
          at: the instant of submission; by default now. On the wall clock, an instant that has passed counts as now.
          work: factor by which the drawn compute time is multiplied.
          tag: any value, returned with the completion.

        Returns:
          The pending invocation.

        Raises:
          LookupError: if no function of this name is deployed, or an argument refers to a fixed version or an object
            that is not in the store.
          TypeError: if `function` cannot be called, or if the transfer of an argument costs time and its size is
            unknown.
          ValueError: if `at` has passed in virtual time, `work` is negative, or sending the result costs time and the
            program does not declare the result's size.
          RuntimeError: if the platform is closed.
        """

    def next_completion(self, *, until: float = math.inf) -> Invocation | None:
        """Moves time to the next end of an invocation, and returns that invocation, which may have failed.

        Delivery is at least once: a completion whose message was duplicated is handed out twice, the second time as
        another object with the same number and idempotency key.

        Args:
          until: the latest instant to move to.

        Returns:
          The invocation; None if no invocation is pending. Also None if no invocation ends by `until`; the time is then
          `until`.

        Raises:
          RuntimeError: if events at one instant never end, or at a deadlock: pending invocations wait for capacity
            that nothing will free.
          ValueError: if `until` is not a number.
        """

    def retry(self, invocation: Invocation, *, limit: int | None = None) -> Invocation:
        """Submits another attempt of an invocation that did not complete, after the back-off of its function's `Retry`.

        The new attempt has the same idempotency key, because the earlier attempt may have had its effects, and its
        completion may still arrive.

        Args:
          invocation: an invocation that was handed out as timed out, crashed, throttled or lost.
          limit: the most attempts; by default the limit of the function's `Retry`.

        Returns:
          The new pending invocation, with a new invocation number and the next attempt number.

        Raises:
          FunctionError: if a retry would not help because the invocation failed or hung, or if the attempts are used
            up.
          LookupError: if the invocation refers to a fixed version or an object that the store has removed.
          ValueError: if the invocation has not ended, has completed, was cancelled, or belongs to another platform.
        """

    def cancel(self, invocation: Invocation) -> None:
        """Ends an invocation and its container; `next_completion` does not return the invocation.

        Does nothing if the invocation has ended.

        Args:
          invocation: a pending or running invocation.

        Raises:
          ValueError: if the invocation belongs to another platform.
        """

    def prewarm(self, name: str, count: int = 1, *, at: float | None = None) -> None:
        """Makes containers before any invocation needs them, as many as the limits and the nodes have room for.

        Each container takes a cold start, is then idle, and expires like any other container. `slots` includes these
        containers.

        Args:
          name: name of the function.
          count: number of containers.
          at: the instant at which to make them; by default now.

        Raises:
          LookupError: if no function of this name is deployed.
          TypeError: if `count` is not an integer.
          ValueError: if `count` is below 1, or `at` has passed in virtual time.
          RuntimeError: if the platform is closed.
        """

    def slots(self, name: str, *, concurrent: int) -> int:
        """Returns an upper bound of the slots of a function's containers: every slot is a number below the bound.

        Use it to size anything that bodies keep by slot, such as environments.

        Args:
          name: name of the function.
          concurrent: the most invocations of the function at once. If it runs several programs, the sum over the
            programs: an idle container serves only the program that it has initialised.

        Returns:
          The sum of the concurrent invocations, the provisioned containers and the containers requested by `prewarm` so
          far; at most the function's `max_concurrency`. On the simulated platform's wall clock and on Dask the bound is
          twice as large if the function has a time-out, because a killed body keeps its slot until it returns. There it
          holds for a body that returns within two time-outs: slots of bodies that hang for longer, or that are
          cancelled while they run, come in addition.

        Raises:
          LookupError: if no function of this name is deployed.
        """

    def bill(self, prices: PriceSheet) -> Bill:
        """Returns the cost of the run so far under a price sheet."""

    def close(self, *, patience: float = math.inf) -> None:
        """Cancels pending invocations, ends the containers and stops the threads. A second call does nothing.

        Args:
          patience: on a platform in virtual time, the seconds of real time to wait for bodies that still run, at most
            `hang_after`. A `with` block that ends with an exception waits at most two seconds.
        """

    def __enter__(self) -> Any:
        """Enters a `with` block, which closes the platform at its end."""

    def __exit__(self, kind: type[BaseException] | None, *details: object) -> None:
        """Closes the platform; after an exception it waits only a short time for running bodies."""


@runtime_checkable
class Resumable(Platform, Protocol):
    """A platform whose runs can be saved and resumed in another process.

    Its class declares its state with `state.registry.register_part`.
    """

    @property
    def configuration(self) -> Mapping[str, Any]:
        """Everything that determines a run, as plain data. A run can be resumed only on a platform with equal data."""

    def settle(self) -> None:
        """Finishes the bodies that run in this process, so that the platform's state can be saved."""

    def reinitialise(self, name: str) -> None:
        """Resets the state of every container of a function: `init` runs again before the next body."""
