"""A container in the process that runs its bodies: its state stays there from one call to the next."""

import functools
import pickle
import traceback
from typing import Any

import jax

from stellaris.runtime.engine.calls import BodyContext, Container
from stellaris.runtime.engine.execution import initialise, run_body
from stellaris.runtime.engine.threads import Outcome
from stellaris.runtime.functions import Function


class RemoteContainer:
    """Runs the bodies of one container, in the process of the container.

    Args:
      function: name of the function.
      number: number of the container.
      slot: slot of the container.
      seed: seed of the contexts' keys.
    """

    def __init__(self, function: str, number: int, slot: int, seed: int) -> None:
        self._container = Container(number, function, slot, program=None)
        self._seed = seed

    def initialise(self, program: Function) -> None:
        """Makes the container's state, before any call. If it raises, the next body makes the state."""
        # There is no invocation, so the number is -1; the key of `init` follows from the container's number.
        initialise(program, self._context(-1, 1, 0.0))

    def run(self, program: Function, arguments: tuple[Any, ...], *, number: int, attempt: int, now: float) -> Outcome:
        """Runs a body until its arrays are computed; returns its value and its error, which can be pickled.

        Args:
          program: the program.
          arguments: the body's arguments.
          number: `Context.number`.
          attempt: `Context.attempt`.
          now: `Context.now`.
        """
        try:
            value, failure = run_body(program, self._context(number, attempt, now), arguments)
            # Arrays are awaited here and not when the result is packed: the time and errors of computing belong to the
            # body.
            jax.block_until_ready(value)  # type: ignore[no-untyped-call]
        except BaseException as error:  # including SystemExit, which should end the body and not the process
            return None, sendable(error)
        return (value, None) if failure is None else (None, sendable(failure))

    def _context(self, number: int, attempt: int, now: float) -> BodyContext:
        return BodyContext(self._container, _root_key(self._seed), number, attempt, now)


@functools.cache  # the key is made once per process, because that can take longer than a body
def _root_key(seed: int) -> jax.Array:
    return jax.random.key(seed)


def sendable(error: BaseException) -> BaseException:
    """Returns an error that can be pickled, with its traceback as a note, because tracebacks are not pickled."""
    where = "".join(traceback.format_exception(error))
    try:
        # The error is also loaded, because an exception whose __init__ takes other arguments fails only on loading.
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}\n{where}")
    error.add_note(f"In the container:\n{where}")
    return error
