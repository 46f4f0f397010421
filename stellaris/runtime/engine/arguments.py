"""Checks of the arguments that callers pass to a platform, with errors that name the argument."""

import math
from collections.abc import Callable, Mapping
from types import MethodType
from typing import Any

from stellaris._core import checks
from stellaris.runtime.endings import ENDINGS_BY_NAME
from stellaris.runtime.engine.calls import Call
from stellaris.runtime.engine.clock import Clock
from stellaris.runtime.engine.containers import Pool
from stellaris.runtime.engine.recorded import Recording
from stellaris.runtime.functions import Function, FunctionError, Invocation, Transfer
from stellaris.runtime.references import size, values_among

#: The most callables whose `Function` is remembered. A loop that makes a lambda for every call would otherwise fill
#: memory.
_REMEMBERED = 256


def check_options(
    *, clock: str, seed: int, threads: int | None, hang_after: float, replay: Recording | None, faulty: bool
) -> None:
    """Raises an error that names the argument if a platform cannot run with these options.

    Args:
      clock: `"virtual"` or `"wall"`.
      seed: seed of every draw.
      threads: number of threads, or None.
      hang_after: seconds after which a body is given up on.
      replay: a recorded run, or None.
      faulty: whether the deployment has faults.
    """
    if replay is not None and not isinstance(replay, Recording):
        raise TypeError(f"replay={replay!r}: expected Recording(trace)")
    if replay is not None and faulty:
        raise ValueError("replay and faults: a replay repeats the faults of the recorded run; leave out one of the two")
    checks.seed(seed=seed)
    checks.single(hang_after=hang_after, **checks.given(threads=threads))
    if clock not in ("virtual", "wall"):
        raise ValueError(f"clock={clock!r} is neither 'virtual' nor 'wall': choose one of them")
    if threads is not None and threads < 1:
        raise ValueError(f"threads={threads} is below 1: bodies need a thread to run on; give 1 or more, or None")
    checks.whole(at_least=1, **checks.given(threads=threads))
    # The check has the form `not x > 0`, so that NaN is refused.
    if not hang_after > 0:
        raise ValueError(f"hang_after={hang_after} is not positive: no body could ever return; give seconds above 0")


def deployed(name: str, pools: Mapping[str, Pool]) -> Pool:
    """Returns the pool of a function.

    Raises:
      LookupError: if no function of this name is deployed.
    """
    pool = pools.get(name)
    if pool is None:
        raise LookupError(f"no function {name!r} is deployed: the platform has {sorted(pools)}")
    return pool


def instant(name: str, at: float, clock: Clock) -> float:
    """Checks and returns an instant that a caller asks for; on the wall clock, an instant that has passed becomes now.

    Raises:
      ValueError: if the instant has passed, or is not finite.
    """
    now = clock.now
    # On the wall clock time passes while the caller computes, so only an instant before the start is an error.
    if not (now if clock.virtual else 0.0) <= at < math.inf:
        raise ValueError(f"function {name!r}: at={at} is past (now is {now:.6g}) or not finite: give a later time")
    return at if at >= now else now


def closed_error(name: str, method: str = "invoke") -> RuntimeError:
    """Returns the error for a method that is called for a function of a closed platform."""
    return RuntimeError(f"{method}({name!r}) after close(): a platform runs once; make another one")


def own(invocation: Invocation, pools: Mapping[str, Pool]) -> Call:
    """Returns an invocation as the engine's call, if it belongs to the platform with these pools.

    Raises:
      ValueError: if the invocation belongs to another platform.
    """
    # Pools are compared by identity: another platform may have a function of the same name and a call of this number.
    if isinstance(invocation, Call) and invocation.pool is pools.get(invocation.function):
        return invocation
    raise ValueError(
        f"function {invocation.function!r}, invocation {invocation.number} belongs to another platform: pass it to that"
        " platform"
    )


def again(call: Call, limit: int) -> tuple[Any, ...]:
    """Returns the arguments of a call, for another attempt.

    Raises:
      FunctionError: if a retry would not help, or if `limit` attempts were made.
      ValueError: if the call has not ended, or did not fail.
    """
    if call.status in ("pending", "running", "completed", "cancelled"):
        raise ValueError(
            f"function {call.function!r}, invocation {call.number} is {call.status}: retry only a call that failed"
        )
    if not ENDINGS_BY_NAME[call.status].retriable or call.attempt >= limit or call.args is None:
        raise FunctionError(call) from call.error
    return call.args


def carried(name: str, transfer: Transfer, program: Function, args: tuple[Any, ...]) -> int:
    """Returns the bytes of the arguments passed by value; 0 if bytes cost no time.

    Raises:
      TypeError: if the size of an argument is unknown.
      ValueError: if the program does not declare the size of its result.
    """
    if math.isinf(transfer.bandwidth):
        return 0
    if program.upload is None:
        raise ValueError(
            f"function {name!r} has {transfer}: declare how many bytes its program returns, "
            "for example Function(body, upload=4096)"
        )
    try:
        return size(values_among(args))
    except TypeError as error:
        raise TypeError(f"function {name!r} has {transfer}, and among its arguments {error}") from None


class Programs:
    """The programs of callables that were passed without a `Function`."""

    def __init__(self) -> None:
        # Programs are remembered, because making one takes as long as submitting an invocation, and because a cluster
        # sends each program to a container only once.
        self._programs: dict[Any, Function] = {}

    def of(self, body: Callable[..., Any]) -> Function:
        """Returns the program that consists of this body alone."""
        # Objects may be equal and do different work, so callables are told apart by identity; a program keeps its body
        # alive. A method is a new object at every access, and equal to another only if it is of the same object.
        key = body if isinstance(body, MethodType) else id(body)
        program = self._programs.get(key)
        if program is None:
            if len(self._programs) >= _REMEMBERED:
                self._programs.clear()
            program = self._programs[key] = Function(body)
        return program
