"""Where bodies run on a cluster: each container is an actor of Ray's, in a process and on a node of its own."""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stellaris.runtime.engine.bodies import BodyRunner, ContainerLostError
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.clock import Clock
from stellaris.runtime.engine.threads import Outcome, Settled
from stellaris.runtime.functions import Function, FunctionSpec
from stellaris.runtime.ray.container import PROGRAMS, Process, Returned, Sent, fields, message
from stellaris.runtime.ray.packing import Packer, Unpacker, packed_program
from stellaris.runtime.ray.session import Session
from stellaris.runtime.resources import Node, Resources
from stellaris.runtime.trace.trace import Trace

#: Bytes of a GB, as in `Resources`.
GB = 1e9
#: What Ray says when a process, its node, or an object that it had was lost: to try again may help.
_LOST = (
    ray.exceptions.ActorDiedError,
    ray.exceptions.ActorUnavailableError,
    ray.exceptions.ActorUnschedulableError,
    ray.exceptions.RayActorError,
    ray.exceptions.WorkerCrashedError,
    ray.exceptions.NodeDiedError,
    ray.exceptions.ObjectLostError,
    ray.exceptions.OutOfMemoryError,
    ray.exceptions.LocalRayletDiedError,
)


class _Remote(NamedTuple):
    """Where a container really is."""

    actor: Any
    programs: dict[int, None]  #: that it has been sent, by number, in this order.
    prepared: Any  #: a future: how long it took to make its state, once it is there.


class _Program(NamedTuple):
    """A program, as containers are sent it."""

    number: int
    reference: Any  #: into the object store.


class RayBodies(BodyRunner):
    """Runs the bodies of calls in their containers.

    Args:
      nodes: of the cluster, on which containers are placed; none to leave that to Ray.
      seed: of the contexts' keys.
      clock: of the platform.
      session: of Ray's.
    """

    def __init__(self, nodes: Sequence[Node], seed: int, clock: Clock, session: Session) -> None:
        self._session = session
        self._nodes = tuple(nodes)
        self._seed = seed
        self._packer = Packer()
        self._unpacker = Unpacker(remembered=0)  # results come once
        self._programs: weakref.WeakKeyDictionary[Function, _Program] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._actor = ray.remote(Process)
        self._containers: dict[int, Container] = {}  # that have an actor, by number
        self._clock = clock
        self.trace = Trace()  #: where durations are noted; the platform's, once it has one.

    # ---- containers -----------------------------------------------------------------------------------------------

    def make(self, container: Container, spec: FunctionSpec, on_made: Callable[[Container], Any]) -> None:
        """Has Ray make an actor, on the container's node if it was placed on one."""
        self._session.check()
        options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0} | _needs(spec.resources, self._nodes)
        if container.place.node >= 0:
            node = self._nodes[container.place.node].name
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        else:
            options["scheduling_strategy"] = "SPREAD"
        actor = self._actor.options(**options).remote(container.function, container.number, container.slot, self._seed)
        sent: dict[int, None] = {}
        program = None if container.program is None else self._sent(container.program, container.function, actor, sent)
        prepared = actor.prepare.remote(program).future()
        container.handle = _Remote(actor, sent, prepared)
        container.starting = True
        self._containers[container.number] = container
        prepared.add_done_callback(lambda _: on_made(container))

    def made(self, container: Container) -> BaseException | None:
        """Why the actor could not be made, if so."""
        error: BaseException | None = container.handle.prepared.exception()
        if error is None and (seconds := container.handle.prepared.result()):
            self._note("initialisation", container, seconds)
        return error

    def end(self, container: Container) -> None:
        """Kills the actor."""
        if container.handle is not None:
            if not self._session.over:
                with contextlib.suppress(ray.exceptions.RayError):  # of one that is not there yet, or not any more
                    ray.kill(container.handle.actor, no_restart=True)
            container.handle = None
            del self._containers[container.number]

    def lost_nodes(self) -> Sequence[int]:
        """Nodes that Ray has taken for dead."""
        if not self._nodes:
            return ()
        self._session.check()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return [place for place, node in enumerate(self._nodes) if node.name not in alive]

    # ---- bodies ---------------------------------------------------------------------------------------------------

    def check(self, program: Function, function: str) -> None:
        """Raises a TypeError that names it if something in a program cannot go to another process.

        Raises:
          RuntimeError: if Ray was shut down.
        """
        self._session.check()
        self._known(program, function)

    def start(self, call: Call, *, trusted: bool, on_done: Callable[[Call], Any] | None = None) -> None:
        """Sends a call to its container."""
        assert call.container is not None
        assert on_done is not None
        self._session.check()
        arguments = None
        try:
            if call.resolved:
                arguments = self._packer.pack(call.resolved, f"an argument of function {call.function!r}")
        except TypeError as error:
            call.task = Settled(None, error)
            on_done(call)
            return
        except ray.exceptions.ObjectStoreFullError as error:
            # As a store that refuses to answer: to try again may help.
            call.task = Settled(None, ContainerLostError(f"Ray's object store has no room for its arguments: {error}"))
            on_done(call)
            return
        remote: _Remote = call.container.handle
        program = self._sent(call.program, call.function, remote.actor, remote.programs)
        sent = Sent(program, call.number, call.attempt, call.started or 0.0, arguments)
        call.task = future = remote.actor.run.remote(message(sent, plain=arguments is None)).future()
        future.add_done_callback(lambda _: on_done(call))

    def finish(self, call: Call) -> Outcome | None:
        """What a body returned and raised."""
        if isinstance(call.task, Settled):
            return call.task
        try:
            returned = Returned(*fields(call.task.result()))
            value = self._unpacker.unpack(returned.value) if returned.value else None
        except _LOST as error:
            return None, ContainerLostError(f"the container of function {call.function!r} was lost: {error}")
        except ray.exceptions.RayError as error:
            return None, error  # what the body returned cannot be sent, for example
        except ValueError:
            self._session.check()  # Ray's own error says that the owner of an object is unknown
            raise
        return value, returned.error

    def drop(self, call: Call) -> bool:
        """Kills the container of a call that was killed: nothing runs there any more."""
        if call.container is not None:
            self.end(call.container)
        return True

    def returned(self, call: Call) -> float:
        """Notes what a body has taken; that is all that it takes."""
        if not isinstance(call.task, Settled) and call.task.exception() is None:
            assert call.container is not None
            returned = Returned(*fields(call.task.result()))
            self._note("unpacked", call.container, returned.fetching, call.number)
            self._note("computed", call.container, returned.computing, call.number)
        return 0.0

    def start_batches(self) -> None:
        """Each body runs in a process of its own, so none waits for others."""

    def measure(self, call: Call) -> float:
        """Never asked for: time is not virtual.

        Raises:
          NotImplementedError: always.
        """
        raise NotImplementedError("bodies on a cluster take the time that they take")

    def settle(self, call: Call) -> None:
        """Never asked for, likewise: a run on a cluster cannot be saved.

        Raises:
          NotImplementedError: always.
        """
        raise NotImplementedError("a run on a cluster cannot be saved")

    def close(self, patience: float) -> None:
        """Ends the containers that are left: those of a platform that could not be made."""
        for container in list(self._containers.values()):
            self.end(container)

    def _note(self, event: str, container: Container, seconds: float, number: int = -1) -> None:
        self.trace.append(
            self._clock.now,
            event,
            function=container.function,
            invocation=number,
            container=container.number,
            value=seconds,
        )

    def _sent(self, program: Function, function: str, actor: Any, sent: dict[int, None]) -> int:
        """The number of a program that an actor has been sent, now if not before."""
        number, reference = self._known(program, function)
        if number not in sent:
            actor.load.remote(number, [reference])
            sent[number] = None
            if len(sent) > PROGRAMS:  # as the container does
                del sent[next(iter(sent))]
        return number

    def _known(self, program: Function, function: str) -> _Program:
        """A program in the object store, now if not before."""
        known = self._programs.get(program)
        if known is None:
            reference = ray.put(packed_program(program, f"the program of function {function!r}"))
            known = self._programs[program] = _Program(next(self._numbers), reference)
        return known


def _needs(resources: Resources, nodes: Sequence[Node]) -> dict[str, Any]:
    """What Ray reserves for a container."""
    slots = max((node.slots_per_gpu for node in nodes), default=1)
    return {
        "num_cpus": resources.vcpus,
        "memory": int(resources.memory * GB),
        "num_gpus": resources.gpu_slots / slots,
    }
