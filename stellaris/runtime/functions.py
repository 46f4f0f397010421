"""Serverless functions: the deployment that costs time, the program that computes, and one invocation of both."""

from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any

import jax

from stellaris.runtime.delays import Constant, Delay, Measured


@dataclass(frozen=True)
class Transfer:
    """The time to fetch an invocation's arguments: `latency + bytes / bandwidth`.

    Args:
      latency: drawn once an invocation.
      bandwidth: bytes per second.

    Raises:
      ValueError: if the bandwidth is not positive, or the latency is to be measured.
    """

    latency: Delay
    bandwidth: float

    def __post_init__(self) -> None:
        _check_delay("latency", self.latency)
        if isinstance(self.latency, Measured):
            raise ValueError("latency=Measured(): only a compute time can be measured")
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth={self.bandwidth} is not positive: bytes per second, or math.inf")


@dataclass(frozen=True)
class FunctionSpec:
    """The deployment of a function: what costs time or money.

    Args:
      compute: seconds of work 1, multiplied by an invocation's `work`.
      cold_start: seconds to make a container, when none is idle.
      keep_alive: seconds an idle container stays; it ends when idle for longer.
      max_concurrency: containers at most, None for no limit; what exceeds it waits in order of submission.
      timeout: seconds after its start at which an invocation is killed, and its container with it; None for never.
      queueing: seconds between submission and the search for a container.
      transfer: time to fetch the arguments, None for none.

    Raises:
      TypeError: if a delay is a bare number.
      ValueError: if a limit is not positive.

    Example:
      >>> spec = FunctionSpec(compute=Constant(1.0), cold_start=Constant(0.3), keep_alive=600.0, max_concurrency=16)
    """

    compute: Delay
    cold_start: Delay = Constant(0.0)
    keep_alive: float = float("inf")
    max_concurrency: int | None = None
    timeout: float | None = None
    queueing: Delay = Constant(0.0)
    transfer: Transfer | None = None

    def __post_init__(self) -> None:
        for name in ("compute", "cold_start", "queueing"):
            _check_delay(name, getattr(self, name))
        for name in ("cold_start", "queueing"):
            if isinstance(getattr(self, name), Measured):
                raise ValueError(f"{name}=Measured(): only a compute time can be measured")
        if not self.keep_alive >= 0:
            raise ValueError(f"keep_alive={self.keep_alive} is negative")
        if self.max_concurrency is not None and self.max_concurrency < 1:
            raise ValueError(f"max_concurrency={self.max_concurrency} is below 1: nothing could ever run")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout} is not positive: nothing could ever finish")


@dataclass(frozen=True, eq=False)
class Function:
    """The program of a function, brought by the system that invokes it.

    Args:
      body: `body(context, *args)`, the work. It may change `context.state`; it must not change its arguments.
      init: `init(slot, key)`, the state of a new container.
      batched: `batched(contexts, args) -> results`, the same work for several invocations in one call. Its results
        agree with the body's up to rounding.
      max_batch: the most invocations in one call.
    """

    body: Callable[..., Any]
    init: Callable[[int, jax.Array], Any] | None = None
    batched: Callable[[Sequence["Context"], Sequence[tuple[Any, ...]]], Sequence[Any]] | None = None
    max_batch: int = 64

    def __post_init__(self) -> None:
        if self.max_batch < 1:
            raise ValueError(f"max_batch={self.max_batch} is below 1")


@dataclass(eq=False)
class Container:
    """A warm place to run: it owns a slot and, from its first body on, a state."""

    number: int
    function: str
    slot: int
    program: Function
    state: Any = None
    initialised: bool = False
    idle_since: float | None = None
    alive: bool = True


@dataclass(eq=False)
class Context:
    """What a body knows of where it runs."""

    container: Container
    root_key: jax.Array
    number: int
    attempt: int  #: 1, and one more for every retry.
    now: float  #: seconds of the platform's clock at the start.

    @property
    def slot(self) -> int:
        """The container's slot: a small number that no other live container of the function has."""
        return self.container.slot

    @property
    def state(self) -> Any:
        """The container's state; it lives on in the container's next invocation."""
        return self.container.state

    @state.setter
    def state(self, state: Any) -> None:
        self.container.state = state

    @property
    def key(self) -> jax.Array:
        """This invocation's own random key."""
        return jax.random.fold_in(self.root_key, self.number)


@dataclass(eq=False)
class Invocation:
    """One call of a function, from submission to its end."""

    number: int
    function: str
    program: Function
    args: tuple[Any, ...] | None  #: let go of once it has completed.
    work: float
    tag: Any
    attempt: int
    submitted: float
    started: float | None = None
    finished: float | None = None
    cold: bool = False
    status: str = "pending"  #: pending, running, completed, failed, timed_out or cancelled.
    error: BaseException | None = None
    container: Container | None = None
    resolved: tuple[Any, ...] | None = None
    future: "Future[Any] | None" = None
    value: Any = field(default=None, repr=False)

    def result(self) -> Any:
        """What the body returned.

        Raises:
          FunctionError: if the invocation failed or was killed; the body's own exception is its cause.
        """
        if self.status == "completed":
            return self.value
        raise FunctionError(self) from self.error


class FunctionError(RuntimeError):
    """An invocation that did not complete; the exception of its body, if any, is `__cause__`."""

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation
        reason = f": {type(invocation.error).__name__}: {invocation.error}" if invocation.error else ""
        when = "" if invocation.finished is None else f" at {invocation.finished:.6g} s"
        super().__init__(
            f"function {invocation.function!r}, invocation {invocation.number} (attempt {invocation.attempt}) "
            f"{invocation.status.replace('_', ' ')}{when}{reason}"
        )


def _check_delay(name: str, delay: Any) -> None:
    if not isinstance(delay, Delay):
        raise TypeError(f"{name}={delay!r} is not a delay: use delays.Constant({delay!r}) or a distribution")
