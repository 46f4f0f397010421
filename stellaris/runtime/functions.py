"""Serverless functions: the deployment that costs time, the program that computes, and one invocation of both."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import jax

from stellaris.runtime.delays import Constant, Delay, check_delay, check_drawn
from stellaris.runtime.resources import Resources
from stellaris.runtime.state.registry import register_value


@dataclass(frozen=True)
class Transfer:
    """The time to fetch an invocation's arguments and to send its result: `latency + bytes / bandwidth`.

    The bytes are those of the arguments passed by value, of each version and object that is fetched from the store
    (once, however often the arguments refer to it), and of the result, which the program declares (`Function.upload`).

    Args:
      latency: drawn once per invocation.
      bandwidth: bytes per second; `math.inf` if bytes cost no time.

    Raises:
      TypeError: if the latency is a bare number.
      ValueError: if the bandwidth is not positive, or the latency is to be measured.

    Example:
      >>> from stellaris.runtime.delays import Constant
      >>> wire = Transfer(latency=Constant(0.001), bandwidth=1.25e9)
    """

    latency: Delay
    bandwidth: float

    def __post_init__(self) -> None:
        check_drawn(latency=self.latency)
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth={self.bandwidth} is not positive: bytes per second, or math.inf")


@dataclass(frozen=True)
class Retry:
    """How `Platform.retry` tries again: exponential back-off with jitter, up to a limit.

    Before attempt `a = 2, 3, ...` it waits `min(first * factor ** (a - 2), maximum)` seconds, of which the share
    `jitter` is multiplied by a random number between 0 and 1.

    Args:
      limit: the most attempts, the first included.
      first: seconds before the second attempt.
      factor: by which the wait grows from attempt to attempt.
      maximum: the longest wait in seconds.
      jitter: the random share of a wait, from 0 (fixed) to 1 (uniform between 0 and the whole wait).

    Raises:
      ValueError: if an argument is out of its range.

    Example:
      >>> policy = Retry(limit=4, first=0.5)
      >>> [policy.wait(attempt) for attempt in (2, 3, 4)]
      [0.5, 1.0, 2.0]
    """

    limit: int = 5
    first: float = 0.0
    factor: float = 2.0
    maximum: float = 60.0
    jitter: float = 0.0

    def __post_init__(self) -> None:
        if not self.limit >= 1:
            raise ValueError(f"limit={self.limit} is below 1: even the first attempt counts")
        for name in ("first", "maximum"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} is negative or not finite")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor={self.factor} is below 1 or not finite: a wait does not shrink")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter} is not a share: between 0 and 1")

    def wait(self, attempt: int, *, chance: float = 1.0) -> float:
        """Seconds before an attempt, from 2 on.

        Args:
          attempt: its number.
          chance: the random number between 0 and 1.
        """
        try:
            longest = min(self.first * self.factor ** (attempt - 2), self.maximum)
        except OverflowError:
            longest = self.maximum if self.first else 0.0
        return longest * (1 - self.jitter + self.jitter * chance)


@runtime_checkable
class Context(Protocol):
    """What a function's body may ask of where it runs, on any backend."""

    state: Any  #: of the container; the next invocation in the same container finds it as this one leaves it.

    @property
    def slot(self) -> int:
        """The container's slot: a small number that no other live container of the function has."""

    @property
    def key(self) -> jax.Array:
        """This invocation's own random key."""

    @property
    def number(self) -> int:
        """The invocation's."""

    @property
    def attempt(self) -> int:
        """1, and one more for every retry."""

    @property
    def now(self) -> float:
        """Seconds of the platform's clock at the start."""


#: Which idle container an invocation gets: the one created last, used last, or unused for longest.
Reuse: TypeAlias = Literal["newest", "most_recent", "least_recent"]


@dataclass(frozen=True)
class FunctionSpec:
    """The deployment of a function: what costs time or money.

    Args:
      compute: seconds that an invocation of `work=1` computes; multiplied by its `work`.
      cold_start: seconds to make a container, if none is idle.
      initialisation: seconds that a new container then takes to load its program, before its first invocation starts.
      keep_alive: seconds that an idle container stays; it ends when idle for longer.
      reuse: which idle container is taken. `"newest"`, the one created last, is SimFaaS's rule, validated on AWS Lambda
        (Mahmoudi & Khazaei 2021); also `"most_recent"` and `"least_recent"` use.
      max_concurrency: the most containers, None for no limit.
      reserved_concurrency: the most invocations at once, for which as many places of the platform's `max_concurrency`
        are kept free of other functions; None to share the places that no function has reserved.
      provisioned: containers that are kept warm from the start on: they never expire, and one that is lost is replaced.
      overflow: what happens to invocations over a limit: they `"queue"` in order of submission, or are `"reject"`ed and
        end as `throttled`.
      timeout: seconds after its start at which an invocation is killed, and its container with it; None for never.
      queueing: seconds between submission and the search for a container.
      transfer: time to fetch the arguments and to send the result; None if it costs none.
      resources: of a container, for placement on nodes and for bills.
      retry: how `Platform.retry` tries again.

    Raises:
      TypeError: if a delay is a bare number, or another argument of another type.
      ValueError: if a limit is not positive, or an argument is out of its range.

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
    resources: Resources = Resources()
    initialisation: Delay = Constant(0.0)
    reuse: Reuse = "newest"
    reserved_concurrency: int | None = None
    provisioned: int = 0
    overflow: Literal["queue", "reject"] = "queue"
    retry: Retry = Retry()

    def __post_init__(self) -> None:
        check_delay("compute", self.compute)
        check_drawn(cold_start=self.cold_start, initialisation=self.initialisation, queueing=self.queueing)
        for name, kind in (("transfer", Transfer | None), ("resources", Resources), ("retry", Retry)):
            if not isinstance(getattr(self, name), kind):
                wanted = getattr(kind, "__name__", "Transfer")
                raise TypeError(f"{name}={getattr(self, name)!r}: expected {wanted}(...)")
        if not self.keep_alive >= 0:
            raise ValueError(f"keep_alive={self.keep_alive} is negative")
        for name in ("max_concurrency", "reserved_concurrency"):
            limit = getattr(self, name)
            if limit is not None and not limit >= 1:
                raise ValueError(f"{name}={limit} is below 1: nothing could ever run")
        most = math.inf if self.max_concurrency is None else self.max_concurrency
        if not 0 <= self.provisioned <= most:
            raise ValueError(f"provisioned={self.provisioned} is not between 0 and max_concurrency={most}")
        for name, values in (("reuse", get_args(Reuse)), ("overflow", ("queue", "reject"))):
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r} is none of {', '.join(values)}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout} is not positive: nothing could ever finish")


@register_value
@dataclass(frozen=True, eq=False)
class Function:
    """The program of a function, brought by the system that invokes it.

    Args:
      body: `body(context, *args)`, the work. It may change `context.state`; it must not change its arguments.
      init: `init(slot, key)`, the state of a new container.
      batched: `batched(contexts, args) -> results`, the same work for several invocations in one call, of all programs
        that have this callable. Its results agree with the body's up to rounding; a result that is an exception fails
        its own invocation alone.
      max_batch: the most invocations in one call.
      upload: bytes of what the body returns: a number, or `upload(*args)` of the resolved arguments. It is declared,
        because an invocation's duration is settled at its start, before there is a result. Needed where the deployment
        has a `Transfer` of finite bandwidth.

    Raises:
      TypeError: if the body cannot be called.
      ValueError: if `max_batch` is below 1, or `upload` negative.
    """

    body: Callable[..., Any]
    init: Callable[[int, jax.Array], Any] | None = None
    batched: Callable[[Sequence[Context], Sequence[tuple[Any, ...]]], Sequence[Any]] | None = None
    max_batch: int = 64
    upload: Callable[..., int] | int | None = None

    def __post_init__(self) -> None:
        if not callable(self.body):
            raise TypeError(f"body={self.body!r} cannot be called: expected body(context, *args)")
        if not self.max_batch >= 1:
            raise ValueError(f"max_batch={self.max_batch} is below 1")
        if isinstance(self.upload, int) and self.upload < 0:
            raise ValueError(f"upload={self.upload} is negative: bytes of the result")

    def uploads(self, arguments: tuple[Any, ...]) -> int:
        """Bytes of what the body will return for these arguments.

        Raises:
          ValueError: if `upload` gives a number that is negative or not finite.
        """
        if not callable(self.upload):
            return self.upload or 0
        nbytes = self.upload(*arguments)
        if not 0 <= nbytes < math.inf:
            raise ValueError(f"upload()={nbytes} is negative or not finite: bytes of the result")
        return nbytes


@dataclass(eq=False, slots=True)
class Invocation:
    """One call of a function, from submission to end: what a system may know of it."""

    number: int
    function: str
    tag: Any  #: the system's own.
    attempt: int  #: 1, and one more for every retry.
    key: (
        int  #: for idempotency: the number of its first attempt. Attempts with the same key are the same piece of work.
    )
    submitted: float  #: seconds of the platform's clock.
    started: float | None = field(default=None, init=False)
    finished: float | None = field(default=None, init=False)
    cold: bool = field(default=False, init=False)  #: whether its container was made for it.
    status: str = field(default="pending", init=False)  #: pending, running, or one of `endings.ENDINGS`.
    error: BaseException | None = field(default=None, init=False)
    value: Any = field(default=None, init=False, repr=False)

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
