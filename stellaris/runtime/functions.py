"""Serverless functions: the deployment (delays, limits, resources), the program (code), and the invocation (a call)."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias, get_args, runtime_checkable

import jax

from stellaris._core import checks
from stellaris.runtime.delays import Constant, Delay, check_delay, check_drawn
from stellaris.runtime.resources import Resources
from stellaris.runtime.state.registry import register_value


@dataclass(frozen=True)
class Transfer:
    """The time to fetch an invocation's arguments and to send its result: `latency + bytes / bandwidth`.

    The number of bytes is the sum over the arguments passed by value, each version and object fetched from the store
    (once, even if several arguments refer to it), and the result, whose size the program declares (`Function.upload`).

    Args:
      latency: seconds, drawn once per invocation.
      bandwidth: bytes per second; `math.inf` if bytes cost no time.

    Raises:
      TypeError: if the latency is a bare number, or the bandwidth is not a number.
      ValueError: if the bandwidth is not positive, or the latency is `Measured`.

    Example:
      >>> from stellaris.runtime.delays import Constant
      >>> wire = Transfer(latency=Constant(0.001), bandwidth=1.25e9)
    """

    latency: Delay
    bandwidth: float

    def __post_init__(self) -> None:
        check_drawn(latency=self.latency)
        checks.single(bandwidth=self.bandwidth)
        # The checks in this module have the form `not x > 0`, so that NaN is refused as well.
        if not self.bandwidth > 0:
            raise ValueError(f"bandwidth={self.bandwidth} is not positive: give bytes per second, or math.inf")


@dataclass(frozen=True)
class Retry:
    """The policy of `Platform.retry`: exponential back-off with jitter, up to a limit on the number of attempts.

    The wait before attempt `a = 2, 3, ...` is `min(first * factor ** (a - 2), maximum) * (1 - jitter + jitter * u)`
    seconds, with `u` uniform between 0 and 1.

    Args:
      limit: the most attempts, including the first.
      first: seconds before the second attempt.
      factor: the ratio of successive waits.
      maximum: the longest wait in seconds.
      jitter: the random fraction of a wait, from 0 (fixed) to 1 (uniform between 0 and the whole wait).

    Raises:
      TypeError: if an argument is not a number, or the limit is not an integer.
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
        checks.single(limit=self.limit, first=self.first, factor=self.factor, maximum=self.maximum, jitter=self.jitter)
        if not self.limit >= 1:
            raise ValueError(f"limit={self.limit} is below 1: the first attempt counts as well, so give 1 or more")
        checks.whole(at_least=1, limit=self.limit)
        for name in ("first", "maximum"):
            if not 0 <= getattr(self, name) < math.inf:
                raise ValueError(f"{name}={getattr(self, name)} is negative or not finite: give 0 seconds or more")
        if not 1 <= self.factor < math.inf:
            raise ValueError(f"factor={self.factor} is below 1 or not finite: give a finite factor of 1 or more")
        if not 0 <= self.jitter <= 1:
            raise ValueError(f"jitter={self.jitter} is not a fraction: give a number from 0 to 1")

    def wait(self, attempt: int, *, chance: float = 1.0) -> float:
        """Returns the seconds to wait before an attempt.

        Args:
          attempt: number of the attempt, from 2 on.
          chance: the `u` of the formula, between 0 and 1; 1 gives the longest wait.
        """
        # The power overflows after some thousand attempts, when the wait has long reached `maximum`.
        try:
            longest = min(self.first * self.factor ** (attempt - 2), self.maximum)
        except OverflowError:
            longest = self.maximum if self.first else 0.0
        return longest * (1 - self.jitter + self.jitter * chance)


@runtime_checkable
class Context(Protocol):
    """The first argument of every body. Its attributes are the contract between bodies and platforms."""

    state: Any  #: state of the container; the next invocation in this container finds it as this invocation leaves it.

    @property
    def slot(self) -> int:
        """The container's slot, a small number that is unique among the function's live containers."""

    @property
    def key(self) -> jax.Array:
        """A random key that is different for every invocation."""

    @property
    def number(self) -> int:
        """The number of the invocation."""

    @property
    def attempt(self) -> int:
        """The number of the attempt: 1 for the first, and one more for every retry."""

    @property
    def now(self) -> float:
        """The time at which the body started, in seconds of the platform's clock."""


#: The idle container that an invocation gets: the container created last, used last, or unused for longest.
Reuse: TypeAlias = Literal["newest", "most_recent", "least_recent"]


@dataclass(frozen=True)
class FunctionSpec:
    """The deployment of a function: its delays, limits and resources.

    Args:
      compute: seconds that an invocation computes if its `work` is 1; they are multiplied by its `work`.
      cold_start: seconds to make a container, if none is idle.
      initialisation: seconds that a new container then takes to load its program, before its first invocation starts.
      keep_alive: seconds for which an idle container is kept.
      reuse: the idle container that an invocation gets. `"newest"`, the container created last, is SimFaaS's rule,
        validated on AWS Lambda (Mahmoudi & Khazaei 2021). `"most_recent"` is the container used last, `"least_recent"`
        the container unused for longest.
      max_concurrency: the most containers; None for no limit.
      reserved_concurrency: the most invocations of the function at once. This share of the platform's
        `max_concurrency` is kept free for the function. None to use the rest, which no function has reserved.
      provisioned: number of containers kept warm from the start. They never expire; a lost container is replaced.
      overflow: the treatment of invocations over a limit. `"queue"`: they wait in order of submission. `"reject"`: they
        end as `throttled`.
      timeout: seconds after its start at which an invocation is killed together with its container; None for never.
      queueing: seconds between submission and the search for a container.
      transfer: time to fetch the arguments and to send the result; None for no time.
      resources: resources of a container, for placement on nodes and for bills.
      retry: the policy of `Platform.retry`.

    Raises:
      TypeError: if a delay is a bare number, or another argument has the wrong type.
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
        # All checks run at construction and not in a run: the traceback then points to the line with the mistake.
        check_delay("compute", self.compute)
        check_drawn(cold_start=self.cold_start, initialisation=self.initialisation, queueing=self.queueing)
        for name, kind in (("transfer", Transfer | None), ("resources", Resources), ("retry", Retry)):
            if not isinstance(getattr(self, name), kind):
                wanted = getattr(kind, "__name__", "Transfer")
                raise TypeError(f"{name}={getattr(self, name)!r}: expected {wanted}(...)")
        limits = {name: getattr(self, name) for name in ("max_concurrency", "reserved_concurrency")}
        optional = checks.given(**limits, timeout=self.timeout)
        checks.single(keep_alive=self.keep_alive, provisioned=self.provisioned, **optional)
        if not self.keep_alive >= 0:
            raise ValueError(f"keep_alive={self.keep_alive} is negative: give seconds, or math.inf to keep containers")
        for name, limit in limits.items():
            if limit is not None and not limit >= 1:
                raise ValueError(f"{name}={limit} is below 1: nothing could ever run; give at least 1, or None")
        # Provisioned containers over the limit could never be made, and the platform would wait for them forever.
        most = math.inf if self.max_concurrency is None else self.max_concurrency
        if not 0 <= self.provisioned <= most:
            raise ValueError(f"provisioned={self.provisioned} is not between 0 and max_concurrency={most}")
        checks.whole(at_least=0, provisioned=self.provisioned, **checks.given(**limits))
        for name, values in (("reuse", get_args(Reuse)), ("overflow", ("queue", "reject"))):
            if getattr(self, name) not in values:
                raise ValueError(f"{name}={getattr(self, name)!r} is unknown: choose one of {', '.join(values)}")
        if self.timeout is not None and not self.timeout > 0:
            raise ValueError(f"timeout={self.timeout} is not positive: give seconds above 0, or None for never")


# Programs are compared by identity: a cluster sends each program object to a container once, and then recognises it.
@register_value
@dataclass(frozen=True, eq=False)
class Function:
    """The program of a function, passed by the system that invokes it.

    Args:
      body: `body(context, *args)` does the work. It may change `context.state`, but not its arguments.
      init: `init(slot, key)` returns the state of a new container.
      batched: `batched(contexts, args) -> results` does the work of several invocations in one call. Invocations of
        different programs share a call if the programs have the same `batched`. The results must agree with the body's
        up to rounding. A result that is an exception fails only its invocation.
      max_batch: the most invocations in one call.
      upload: size of the body's result in bytes: a number, or `upload(*args)` of the resolved arguments. It is declared
        because an invocation's duration is decided at its start, before there is a result. Required if the deployment
        has a `Transfer` of finite bandwidth.

    Raises:
      TypeError: if the body cannot be called, or `max_batch` is not an integer.
      ValueError: if `max_batch` is below 1, or `upload` is negative.
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
            raise ValueError(f"max_batch={self.max_batch} is below 1: a batch has at least one invocation; raise it")
        checks.whole(at_least=1, max_batch=self.max_batch)
        if isinstance(self.upload, int) and self.upload < 0:
            raise ValueError(f"upload={self.upload} is negative: give the size of the result in bytes")

    def uploads(self, arguments: tuple[Any, ...]) -> int:
        """Returns the declared size, in bytes, of the body's result for these arguments.

        Raises:
          ValueError: if `upload` returns a number that is negative or not finite.
        """
        if not callable(self.upload):
            return self.upload or 0
        # The size is checked at every call, because it depends on the arguments.
        nbytes = self.upload(*arguments)
        if not 0 <= nbytes < math.inf:
            raise ValueError(f"upload()={nbytes} is negative or not finite: return the size of the result in bytes")
        return nbytes


# The class has slots to save memory, because a large run has millions of invocations.
@dataclass(eq=False, slots=True)
class Invocation:
    """One call of a function, from submission to end, as systems see it."""

    number: int
    function: str
    tag: Any  #: the value that the system passed to `invoke`.
    attempt: int  #: number of the attempt: 1 for the first, and one more for every retry.
    key: int  #: idempotency key, the number of the first attempt. All attempts with one key do the same work.
    submitted: float  #: seconds of the platform's clock, as are `started` and `finished`.
    started: float | None = field(default=None, init=False)
    finished: float | None = field(default=None, init=False)
    cold: bool = field(default=False, init=False)  #: whether a new container was made for the invocation.
    status: str = field(default="pending", init=False)  #: pending, running, or one of `endings.ENDINGS`.
    error: BaseException | None = field(default=None, init=False)
    value: Any = field(default=None, init=False, repr=False)

    def result(self) -> Any:
        """Returns the result of the body.

        Raises:
          FunctionError: if the invocation failed or was killed; the exception of the body is its cause.
        """
        if self.status == "completed":
            return self.value
        raise FunctionError(self) from self.error


class FunctionError(RuntimeError):
    """Raised for an invocation that did not complete; the exception of its body, if any, is `__cause__`."""

    def __init__(self, invocation: Invocation) -> None:
        self.invocation = invocation  # so that code that catches the error can pass it to `Platform.retry`
        reason = f": {type(invocation.error).__name__}: {invocation.error}" if invocation.error else ""
        when = "" if invocation.finished is None else f" at {invocation.finished:.6g} s"
        super().__init__(
            f"function {invocation.function!r}, invocation {invocation.number} (attempt {invocation.attempt}) "
            f"{invocation.status.replace('_', ' ')}{when}{reason}"
        )
