"""The process inside a Ray actor: a container, which keeps its state from one call to the next."""

import contextlib
import pickle
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import ray
from ray import cloudpickle

from stellaris.runtime.engine.remote import RemoteContainer, sendable
from stellaris.runtime.functions import Function
from stellaris.runtime.ray.packing import Packed, Packer, Unpacker

#: The most programs that a container keeps; it forgets the programs that were sent first.
PROGRAMS = 64


def message(fields: Sequence[Any], *, plain: bool) -> Any:
    """Encodes a call or its outcome for Ray.

    Args:
      fields: the fields of a `Sent` or a `Returned`.
      plain: whether the fields are only numbers, without references into the object store.
    """
    # Ray sends bytes fastest. References must be in a list, because Ray counts only references that it can see.
    return pickle.dumps(tuple(fields)) if plain else [*fields]


def fields(message: Any) -> Sequence[Any]:
    """Decodes a `message`."""
    found: Sequence[Any] = pickle.loads(message) if isinstance(message, bytes) else message
    return found


class Sent(NamedTuple):
    """The message that starts a call in a container."""

    program: int  #: number of the program.
    number: int  #: `Context.number`.
    attempt: int  #: `Context.attempt`.
    now: float  #: `Context.now`.
    arguments: Packed | None


class Returned(NamedTuple):
    """The message that a container sends back."""

    value: Packed | None
    error: BaseException | None
    fetching: float  #: seconds until the arguments were unpacked.
    computing: float  #: seconds of the body, until the arrays that it returns are computed.


class Process:
    """The class of the Ray actor of a container.

    Args:
      function: name of the function.
      number: number of the container.
      slot: slot of the container.
      seed: seed of the contexts' keys.
    """

    def __init__(self, function: str, number: int, slot: int, seed: int) -> None:
        self._function = function
        self._number = number
        self._container = RemoteContainer(function, number, slot, seed)
        self._programs: dict[int, Function | Exception] = {}  # an exception if a program could not be loaded
        self._packer = Packer()
        self._unpacker = Unpacker()

    def __repr__(self) -> str:
        """Returns the name of the actor in Ray's dashboard and logs."""
        return f"{self._function} {self._number}"

    def load(self, number: int, program: Sequence[Any]) -> None:
        """Loads a program. If loading fails, the calls that run the program fail.

        Args:
          number: number of the program, by which calls refer to it.
          program: a list with one reference into the object store. Ray would fetch a bare reference before calling the
            method, and an error of fetching would not be caught here.
        """
        try:
            self._programs[number] = cloudpickle.loads(ray.get(program[0]))
        except Exception as error:
            self._programs[number] = error  # raised by calls, because no caller waits for the outcome of `load`
        if len(self._programs) > PROGRAMS:
            del self._programs[next(iter(self._programs))]

    def prepare(self, program: int | None) -> float:
        """Makes the container's state for a program; returns the seconds that this took.

        Args:
          program: number of the program; None if no call waits for the container.
        """
        began = time.perf_counter()
        if program is not None:
            # An error is not reported here: the first body calls `init` again, and its call then fails with the error.
            with contextlib.suppress(Exception, SystemExit):
                self._container.initialise(self._program(program))
        return time.perf_counter() - began

    def run(self, sent: Any) -> Any:
        """Runs a body.

        Args:
          sent: a `Sent`, encoded by `message`.

        Returns:
          A `Returned`, encoded by `message`.
        """
        returned = self._returned(Sent(*fields(sent)))
        return message(returned, plain=returned.value is None and returned.error is None)

    def _returned(self, call: Sent) -> Returned:
        began = time.perf_counter()
        try:
            body = self._program(call.program)
            values = self._unpacker.unpack(call.arguments) if call.arguments else ()
        except Exception as error:
            return Returned(None, sendable(error), time.perf_counter() - began, 0.0)
        fetched = time.perf_counter()
        value, failure = self._container.run(body, values, number=call.number, attempt=call.attempt, now=call.now)
        computed = time.perf_counter()
        packed = None
        if failure is None and value is not None:
            try:
                packed = self._packer.pack(value, f"the result of function {self._function!r}")
            except TypeError as error:
                failure = sendable(error)
        return Returned(packed, failure, fetched - began, computed - fetched)

    def _program(self, number: int) -> Function:
        program = self._programs[number]
        if isinstance(program, Exception):
            raise program
        return program
