"""A container on a cluster: a process of its own, an actor of Ray's, that keeps its state from one call to the next."""

import functools
import pickle
import time
import traceback
from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
from ray import cloudpickle

from stellaris.runtime.cluster.packing import Packed, Packer, Unpacker
from stellaris.runtime.functions import Function
from stellaris.runtime.simulated.calls import BodyContext, Container
from stellaris.runtime.simulated.execution import initialise, run_body
from stellaris.runtime.simulated.threads import Outcome


class Sent(NamedTuple):
    """What a container is sent for one call; all in one, because Ray fetches references that are arguments."""

    program: Any  #: where it is in the object store.
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
        self._packer = Packer()
        self._unpacker = Unpacker()

    def prepare(self, programs: Sequence[Any]) -> float:
        """Loads the program that it is made for, and makes its state; returns the seconds that this has taken.

        An error is not one yet: the first body will try again, and fail. That goes for whatever would end a process
        elsewhere, such as `SystemExit`, too.

        Args:
          programs: where it is in the object store; none if no call waits for the container.
        """
        began = time.perf_counter()
        for program in programs:
            try:
                initialise(self._program(program), BodyContext(self._container, _root_key(self._seed), -1, 1, 0.0))
            except BaseException:
                self._container.initialised = False
        return time.perf_counter() - began

    def run(self, sent: Sent) -> Returned:
        """Runs a body."""
        began = time.perf_counter()
        try:
            program = self._program(sent.program)
            arguments = self._unpacker.unpack(sent.arguments) if sent.arguments else ()
        except Exception as error:
            return Returned(None, _sendable(error), time.perf_counter() - began, 0.0)
        fetched = time.perf_counter()
        context = BodyContext(self._container, _root_key(self._seed), sent.number, sent.attempt, sent.now)
        value, failure = _outcome(program, context, arguments)
        computed = time.perf_counter()
        packed = None
        if failure is None and value is not None:
            try:
                packed = self._packer.pack(value, f"what function {self._container.function!r} returns")
            except TypeError as error:
                failure = _sendable(error)
        return Returned(packed, failure, fetched - began, computed - fetched)

    def _program(self, reference: Any) -> Function:
        return _loaded(self._unpacker.fetch(reference))


def _outcome(program: Function, context: BodyContext, arguments: tuple[Any, ...]) -> Outcome:
    """The value or the error of a body; what ends a process elsewhere, such as `SystemExit`, ends the body alone."""
    try:
        value, failure = run_body(program, context, arguments)
        jax.block_until_ready(value)  # type: ignore[no-untyped-call]
    except BaseException as error:
        return None, _sendable(error)
    return (value, None) if failure is None else (None, _sendable(failure))


@functools.lru_cache(maxsize=64)
def _loaded(content: bytes) -> Function:
    """A program, which stays the same object for as long as it is used: what it has compiled stays with it."""
    program: Function = cloudpickle.loads(content)
    return program


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
