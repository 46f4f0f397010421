"""What callers of the simulated platform pass to it, checked at once, with errors that name the argument."""

import math
from collections.abc import Callable, Mapping
from typing import Any

from stellaris._core import checks
from stellaris.runtime.endings import ENDINGS_BY_NAME
from stellaris.runtime.engine.calls import Call
from stellaris.runtime.engine.clock import Clock
from stellaris.runtime.engine.containers import Pool
from stellaris.runtime.engine.recorded import Recording
from stellaris.runtime.functions import Function, FunctionError, Invocation, Transfer
from stellaris.runtime.references import size, values_among

#: Bare callables whose `Function` is remembered.
_REMEMBERED = 256


def check_options(
    *, clock: str, seed: int, threads: int | None, hang_after: float, replay: Recording | None, faulty: bool
) -> None:
    """Raises an error that names the argument unless a platform can run with these options.

    Args:
      clock: `"virtual"` or `"wall"`.
      seed: of every draw.
      threads: None or positive.
      hang_after: seconds.
      replay: a recorded run, or None.
      faulty: whether there are faults, too.
    """
    if replay is not None and not isinstance(replay, Recording):
        raise TypeError(f"replay={replay!r}: expected Recording(trace)")
    if replay is not None and faulty:
        raise ValueError("replay and faults: what goes wrong in a replay is what did in the recorded run")
    checks.seed(seed=seed)
    if clock not in ("virtual", "wall"):
        raise ValueError(f"clock={clock!r} is neither 'virtual' nor 'wall'")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads} is below 1: bodies need a thread to run on")
    if not hang_after > 0:
        raise ValueError(f"hang_after={hang_after} is not positive: no body could ever return")


def deployed(name: str, pools: Mapping[str, Pool]) -> Pool:
    """The containers of a function, with its deployment.

    Raises:
      LookupError: if none of this name is deployed.
    """
    pool = pools.get(name)
    if pool is None:
        raise LookupError(f"no function {name!r} is deployed: the platform has {sorted(pools)}")
    return pool


def instant(name: str, at: float, clock: Clock) -> float:
    """The instant at which something is to happen that a caller asks for.

    In virtual time it must not be past. On the wall clock time passes while the caller computes, so an instant that has
    just passed means now.

    Raises:
      ValueError: if it is past, or not finite.
    """
    now = clock.now
    if not (now if clock.virtual else 0.0) <= at < math.inf:
        raise ValueError(f"function {name!r}: at={at} is past (now is {now:.6g}) or not finite")
    return at if at >= now else now


def closed_error(name: str) -> RuntimeError:
    """The error for invoking a function of a platform that is closed."""
    return RuntimeError(f"invoke({name!r}) after close(): a platform runs once")


def own(invocation: Invocation, pools: Mapping[str, Pool]) -> Call:
    """An invocation as the platform that has these pools knows it.

    Raises:
      ValueError: if it is another platform's.
    """
    if isinstance(invocation, Call) and invocation.pool is pools.get(invocation.function):
        return invocation
    raise ValueError(f"function {invocation.function!r}, invocation {invocation.number} belongs to another platform")


def again(call: Call, limit: int) -> tuple[Any, ...]:
    """The arguments of a call, which is to be tried again.

    Raises:
      FunctionError: if trying again would not help, or there were `limit` attempts.
      ValueError: if it has not ended, or did not fail.
    """
    if call.status in ("pending", "running", "completed", "cancelled"):
        raise ValueError(
            f"function {call.function!r}, invocation {call.number} is {call.status}: only what failed is retried"
        )
    if not ENDINGS_BY_NAME[call.status].retriable or call.attempt >= limit or call.args is None:
        raise FunctionError(call) from call.error
    return call.args


def carried(name: str, transfer: Transfer, program: Function, args: tuple[Any, ...]) -> int:
    """Bytes of the arguments that are passed by value; 0 if bytes cost no time.

    Raises:
      TypeError: if an argument is of unknown size.
      ValueError: if the program does not say how many bytes it returns.
    """
    if math.isinf(transfer.bandwidth):
        return 0
    if program.upload is None:
        raise ValueError(
            f"function {name!r} has {transfer}: say how many bytes its program returns, "
            "as in Function(body, upload=4096)"
        )
    try:
        return size(values_among(args))
    except TypeError as error:
        raise TypeError(f"function {name!r} has {transfer}, and among its arguments {error}") from None


class Programs:
    """The programs of bare callables, remembered because making one takes as long as submitting an invocation."""

    def __init__(self) -> None:
        self._programs: dict[Callable[..., Any], Function] = {}

    def of(self, body: Callable[..., Any]) -> Function:
        """The program that consists of this body alone."""
        program = self._programs.get(body)
        if program is None:
            if len(self._programs) >= _REMEMBERED:
                self._programs.clear()
            program = self._programs[body] = Function(body)
        return program
