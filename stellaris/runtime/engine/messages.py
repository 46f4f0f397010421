"""Calls as messages of bytes, for clusters without an object store: the classes of both ends.

Programs and stored values are pickled once, and sent to each container once. A container keeps them under numbers,
until the store has removed a value or no system has a program any more. `MessageBodies` is the end at the platform,
`Receiver` the end in the process of a container.
"""

import contextlib
import io
import itertools
import pickle
import time
import weakref
from abc import abstractmethod
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stellaris._core.extras import needs
from stellaris.runtime.engine.bodies import ContainerLostError
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.clock import Clock
from stellaris.runtime.engine.cluster import ClusterBodies
from stellaris.runtime.engine.pickling import refused
from stellaris.runtime.engine.remote import RemoteContainer, sendable
from stellaris.runtime.engine.threads import Outcome, Settled
from stellaris.runtime.functions import Function, FunctionSpec
from stellaris.runtime.references import size
from stellaris.runtime.store.kept import Kept, KeptStore
from stellaris.types import Tree

with needs("MessageBodies"):
    import cloudpickle

_NUMBERS = itertools.count()


class Sent(NamedTuple):
    """The message that starts a call in a container, or prepares the container."""

    new: dict[int, bytes]  #: the kept values that the container does not have yet, pickled, by number.
    gone: list[int]  #: numbers of the kept values that the container forgets.
    program: int | None  #: number of the program; None if a container is made ahead of calls.
    arguments: bytes = pickle.dumps(())
    number: int = -1  #: `Context.number`.
    attempt: int = 1  #: `Context.attempt`.
    now: float = 0.0  #: `Context.now`.


class Returned(NamedTuple):
    """The message that a container sends back."""

    content: bytes  #: the value of the body, or its error, pickled.
    failed: bool  #: whether the content is an error.
    unpacking: float  #: seconds until the arguments were unpacked.
    computing: float  #: seconds of the body, until the arrays that it returns are computed.


class Pickled(Kept):
    """A stored value or a program, pickled. Containers keep their copies while this object exists."""

    def __init__(self, value: Any, nbytes: int, content: bytes) -> None:
        super().__init__(value, nbytes)
        self.content = content
        self.number = next(_NUMBERS)


class MessageStore(KeptStore):
    """A `Store` whose values are pickled once, when they are stored, for the calls of `MessageBodies`."""

    def keep(self, name: str, tree: Tree) -> Kept:
        """Pickles a value.

        Raises:
          TypeError: if a part of the value cannot be pickled; the error names the part.
        """
        nbytes = size(tree)
        return Pickled(tree, nbytes, _pickled(tree, f"the value of {name!r}")[0])


# ---- at the platform ------------------------------------------------------------------------------------------------


@dataclass
class _Handle:
    """The platform's record of a container's process."""

    sent: dict[int, "weakref.ref[Pickled]"] = field(default_factory=dict)  #: the values that the container keeps.
    made: Future[Any] | None = None  #: of the process and the seconds that were needed to make the container's state.


class MessageBodies(ClusterBodies):
    """Runs bodies in processes that receive messages: the base class of backends without an object store.

    A subclass defines `launch`, `send` and `stop`; `drop` if it can stop a body that runs; and `lost_nodes` if the
    engine places its containers. In the process of a container a `Receiver` answers the messages. The platform's store
    is a `MessageStore`.

    Args:
      clock: the platform's clock.
      seed: seed of the contexts' keys.
    """

    def __init__(self, clock: Clock, seed: int) -> None:
        super().__init__(clock)
        self.seed = seed
        # The references are weak, so that containers forget a program with the system that made it.
        self._programs: weakref.WeakKeyDictionary[Function, Pickled] = weakref.WeakKeyDictionary()

    @abstractmethod
    def launch(self, container: Container, spec: FunctionSpec, first: Sent) -> Future[tuple[Any, float]]:
        """Makes the process of a container, with a `Receiver` in it, and passes the first message to its `prepare`.

        Args:
          container: the container.
          spec: the specification of its function.
          first: the message.

        Returns:
          A future of the process, in any form that `send` and `stop` understand, and of the result of `prepare`. Its
          exception says that the process could not be made.
        """

    @abstractmethod
    def send(self, process: Any, sent: Sent) -> Future[Returned]:
        """Sends a message to a container, whose `Receiver.run` gets it.

        Returns:
          A future of the answer. Its exception says that the process was lost: the errors of bodies are in the answer.
        """

    @abstractmethod
    def stop(self, made: Future[tuple[Any, float]]) -> None:
        """Ends the process of a container.

        Args:
          made: the future of `launch`, which may be unfinished.
        """

    def make(self, container: Container, spec: FunctionSpec, on_made: Callable[[Container], Any]) -> None:
        container.handle = handle = _Handle()
        container.starting = True
        self.containers[container.number] = container
        program = [] if container.program is None else [self._known(container.program, container.function)]
        first = Sent(_new(handle, program), [], program[0].number if program else None)
        handle.made = self.launch(container, spec, first)
        # The callback is added last, because it may be called at once.
        handle.made.add_done_callback(lambda _: on_made(container))

    def made(self, container: Container) -> BaseException | None:
        error: BaseException | None = container.handle.made.exception()
        if error is not None:
            return ContainerLostError(f"a container of function {container.function!r} could not be made: {error}")
        if seconds := container.handle.made.result()[1]:
            self.note("initialisation", container, seconds)
        return None

    def end(self, container: Container) -> None:
        # `drop` may have ended the container before the engine does.
        if container.handle is not None:
            self.stop(container.handle.made)
            container.handle = None
            del self.containers[container.number]

    def check(self, program: Function, function: str) -> None:
        self._known(program, function)

    def start(self, call: Call, *, trusted: bool, on_done: Callable[[Call], Any] | None = None) -> None:
        assert call.container is not None
        assert on_done is not None
        handle: _Handle = call.container.handle
        assert handle.made is not None
        # Errors end the call and are not raised, because the caller is in the middle of an event.
        if handle.made.exception() is not None:  # the engine has not taken note of it yet
            call.task = Settled(None, self.made(call.container))
            on_done(call)
            return
        try:
            arguments, stored = _pickled(call.resolved, f"an argument of function {call.function!r}")
        except TypeError as error:
            call.task = Settled(None, error)
            on_done(call)
            return
        gone = [number for number, value in handle.sent.items() if value() is None]
        for number in gone:
            del handle.sent[number]
        program = self._known(call.program, call.function)
        new = _new(handle, [program, *stored])
        sent = Sent(new, gone, program.number, arguments, call.number, call.attempt, call.started or 0.0)
        call.task = self.send(handle.made.result()[0], sent)
        call.task.add_done_callback(lambda _: on_done(call))

    def finish(self, call: Call) -> Outcome | None:
        if isinstance(call.task, Settled):
            return call.task
        if (lost := call.task.exception()) is not None:
            return None, ContainerLostError(f"the container of function {call.function!r} was lost: {lost}")
        returned: Returned = call.task.result()
        try:
            content = pickle.loads(returned.content)
        except Exception as error:
            return None, error  # for example a value of a class that only the container can import
        return (None, content) if returned.failed else (content, None)

    def drop(self, call: Call) -> bool:
        """Returns whether the body of a killed call has returned; stops nothing."""
        return isinstance(call.task, Settled) or call.task.done()

    def returned(self, call: Call) -> float:
        if not isinstance(call.task, Settled) and call.task.exception() is None:
            assert call.container is not None
            returned: Returned = call.task.result()
            self.note("unpacked", call.container, returned.unpacking, call.number)
            self.note("computed", call.container, returned.computing, call.number)
        return 0.0

    def _known(self, program: Function, function: str) -> Pickled:
        """Pickles a program, unless that was done before."""
        known = self._programs.get(program)
        if known is None:
            content, _ = _pickled(program, f"the program of function {function!r}")
            # The program itself is left out, because its own value would keep it in the dictionary.
            known = self._programs[program] = Pickled(None, 0, content)
        return known


def _new(handle: _Handle, needed: Sequence[Pickled]) -> dict[int, bytes]:
    """Returns the contents of the values that a container needs and does not have, and notes that it gets them."""
    new = {value.number: value.content for value in needed if value.number not in handle.sent}
    handle.sent.update({value.number: weakref.ref(value) for value in needed})
    return new


def _pickled(value: Any, what: str) -> tuple[bytes, list[Pickled]]:
    """Returns a pickled value, in which kept values are replaced by their numbers, and these kept values.

    Args:
      value: any value that can be pickled.
      what: a name of the value, for errors.

    Raises:
      TypeError: if a part of the value cannot be pickled; the error names the part.
    """
    file = io.BytesIO()
    pickler = _Pickler(file)
    try:
        pickler.dump(value)
    except Exception as error:
        raise refused(value, what, error, cloudpickle.dumps) from error
    return file.getvalue(), pickler.kept


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    def __init__(self, file: io.BytesIO) -> None:
        super().__init__(file, protocol=5)
        self.kept: list[Pickled] = []

    def persistent_id(self, value: Any) -> int | None:
        """Returns the number of a kept value; None for a value to be pickled."""
        if not isinstance(value, Pickled):
            return None
        self.kept.append(value)
        return value.number


# ---- in the process of a container ----------------------------------------------------------------------------------


class Receiver:
    """Answers the messages to one container, in the process of the container. Its methods are called one at a time.

    Args:
      function: name of the function.
      number: number of the container.
      slot: slot of the container.
      seed: seed of the contexts' keys.
    """

    def __init__(self, function: str, number: int, slot: int, seed: int) -> None:
        self._function = function
        self._container = RemoteContainer(function, number, slot, seed)
        self._contents: dict[int, bytes] = {}  # kept values that no call has needed yet
        self._values: dict[int, Any] = {}

    def prepare(self, sent: Sent) -> float:
        """Makes the container's state for a program, if the message names one; returns the seconds that this took."""
        began = time.perf_counter()
        self._take(sent)
        if sent.program is not None:
            # An error is not reported here: the first body calls `init` again, and its call then fails with the error.
            with contextlib.suppress(Exception, SystemExit):
                self._container.initialise(self.kept(sent.program))
        return time.perf_counter() - began

    def run(self, sent: Sent) -> Returned:
        """Runs a body."""
        began = time.perf_counter()
        self._take(sent)
        try:
            assert sent.program is not None
            program = self.kept(sent.program)
            arguments = _Unpickler(sent.arguments, self).load()
        except Exception as error:
            return Returned(pickle.dumps(sendable(error)), True, time.perf_counter() - began, 0.0)
        unpacked = time.perf_counter()
        value, failure = self._container.run(program, arguments, number=sent.number, attempt=sent.attempt, now=sent.now)
        computed = time.perf_counter()
        content = b""
        if failure is None:
            try:
                content, _ = _pickled(value, f"the result of function {self._function!r}")
            except TypeError as error:
                failure = sendable(error)
        if failure is not None:
            content = pickle.dumps(failure)
        return Returned(content, failure is not None, unpacked - began, computed - unpacked)

    def kept(self, number: int) -> Any:
        """Returns a kept value, which is unpickled at its first use."""
        if number not in self._values:
            self._values[number] = pickle.loads(self._contents[number])
            del self._contents[number]
        return self._values[number]

    def _take(self, sent: Sent) -> None:
        """Keeps the new values, and forgets the values that are gone."""
        self._contents |= sent.new
        for number in sent.gone:
            self._contents.pop(number, None)
            self._values.pop(number, None)


class _Unpickler(pickle.Unpickler):
    def __init__(self, content: bytes, receiver: Receiver) -> None:
        super().__init__(io.BytesIO(content))
        self._receiver = receiver

    def persistent_load(self, number: int) -> Any:
        return self._receiver.kept(number)
