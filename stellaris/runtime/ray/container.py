"""A container on a cluster: a process of its own, an actor of Ray's, that keeps its state from one call to the next."""

import contextlib
import functools
import pickle
import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import ray
from ray import cloudpickle

from stellaris.runtime.engine.calls import BodyContext, Container
from stellaris.runtime.engine.execution import initialise, run_body
from stellaris.runtime.engine.threads import Outcome
from stellaris.runtime.functions import Function
from stellaris.runtime.ray.packing import Packed, Packer, Unpacker

#: Programs that a container keeps: those that it was sent last.
PROGRAMS = 64


def message(fields: Sequence[Any], *, plain: bool) -> Any:
    """What a call, or its outcome, is sent as: bytes, which Ray sends fastest; or a list, which it looks into.

    Args:
      fields: of a `Sent` or a `Returned`.
      plain: whether there are but numbers in it, and nothing that refers to the object store.
    """
    return pickle.dumps(tuple(fields)) if plain else [*fields]


def fields(message: Any) -> Sequence[Any]:
    """What was sent as a `message`."""
    found: Sequence[Any] = pickle.loads(message) if isinstance(message, bytes) else message
    return found


class Sent(NamedTuple):
    """What a container is sent for one call."""

    program: int  #: its number.
    number: int  #: of the call, as its context tells it; likewise the next two.
    attempt: int
    now: float
    arguments: Packed | None


class Returned(NamedTuple):
    """What a container sends back."""

    value: Packed | None
    error: BaseException | None
    fetching: float  #: seconds until the arguments were there.
    computing: float  #: seconds of the body, until the arrays that it returns are computed.


class Process:
    """What runs in the actor.

    Args:
      function: its function's name.
      number: the container's.
      slot: likewise.
      seed: of the contexts' keys.
    """

    def __init__(self, function: str, number: int, slot: int, seed: int) -> None:
        self._container = Container(number, function, slot, program=None)
        self._seed = seed
        self._programs: dict[int, Function | Exception] = {}  # or why it could not be loaded
        self._packer = Packer()
        self._unpacker = Unpacker()

    def __repr__(self) -> str:
        """How Ray's dashboard and its logs name the actor."""
        return f"{self._container.function} {self._container.number}"

    def load(self, number: int, program: Sequence[Any]) -> None:
        """Loads a program, to be run by its number; one that cannot be loaded fails the calls that run it.

        Args:
          number: of the program, by which calls name it.
          program: where it is in the object store: one reference, in a list, as Ray fetches those that are arguments.
        """
        try:
            self._programs[number] = cloudpickle.loads(ray.get(program[0]))
        except Exception as error:
            self._programs[number] = error
        if len(self._programs) > PROGRAMS:
            del self._programs[next(iter(self._programs))]

    def prepare(self, program: int | None) -> float:
        """Makes its state for the program that it is made for; returns the seconds that this has taken.

        An error is not one yet: the first body will try again, and fail.

        Args:
          program: its number; None if no call waits for the container.
        """
        began = time.perf_counter()
        if program is not None:
            with contextlib.suppress(Exception, SystemExit):
                initialise(self._program(program), self._context(-1, 1, 0.0))
        return time.perf_counter() - began

    def run(self, sent: Any) -> Any:
        """Runs a body.

        Args:
          sent: a `Sent`, as a message.

        Returns:
          A `Returned`, likewise.
        """
        returned = self._returned(Sent(*fields(sent)))
        return message(returned, plain=returned.value is None and returned.error is None)

    def _returned(self, call: Sent) -> Returned:
        began = time.perf_counter()
        try:
            body = self._program(call.program)
            values = self._unpacker.unpack(call.arguments) if call.arguments else ()
        except Exception as error:
            return Returned(None, _sendable(error), time.perf_counter() - began, 0.0)
        fetched = time.perf_counter()
        value, failure = _outcome(body, self._context(call.number, call.attempt, call.now), values)
        computed = time.perf_counter()
        packed = None
        if failure is None and value is not None:
            try:
                packed = self._packer.pack(value, f"what function {self._container.function!r} returns")
            except TypeError as error:
                failure = _sendable(error)
        return Returned(packed, failure, fetched - began, computed - fetched)

    def _program(self, number: int) -> Function:
        program = self._programs[number]
        if isinstance(program, Exception):
            raise program
        return program

    def _context(self, number: int, attempt: int, now: float) -> BodyContext:
        return BodyContext(self._container, _root_key(self._seed), number, attempt, now)


def _outcome(program: Function, context: BodyContext, arguments: tuple[Any, ...]) -> Outcome:
    """The value or the error of a body; what ends a process elsewhere, such as `SystemExit`, ends the body alone."""
    try:
        value, failure = run_body(program, context, arguments)
        jax.block_until_ready(value)  # type: ignore[no-untyped-call]
    except BaseException as error:
        return None, _sendable(error)
    return (value, None) if failure is None else (None, _sendable(failure))


@functools.cache
def _root_key(seed: int) -> jax.Array:
    return jax.random.key(seed)


def _sendable(error: BaseException) -> BaseException:
    """An error as it can be sent, with a note of where it was raised."""
    where = "".join(traceback.format_exception(error))
    try:
        pickle.loads(pickle.dumps(error))
    except Exception:
        return RuntimeError(f"{type(error).__name__}: {error}\n{where}")
    error.add_note(f"In the container:\n{where}")
    return error
