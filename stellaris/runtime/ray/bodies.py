"""Runs bodies on a Ray cluster: each container is an actor, which is a process on one of the nodes."""

import contextlib
import itertools
import weakref
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import ray
import ray.exceptions
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from stellaris.runtime.engine.bodies import ContainerLostError
from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.clock import Clock
from stellaris.runtime.engine.cluster import ClusterBodies
from stellaris.runtime.engine.threads import Outcome, Settled
from stellaris.runtime.functions import Function, FunctionSpec
from stellaris.runtime.ray.container import PROGRAMS, Process, Returned, Sent, fields, message
from stellaris.runtime.ray.packing import Packer, Unpacker, packed_program
from stellaris.runtime.ray.session import Session
from stellaris.runtime.resources import Node, Resources

#: Bytes of a GB, as in `Resources`.
GB = 1e9
#: Ray's errors when a process, its node or one of its objects was lost: a retry may help.
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
    """The actor of a container."""

    actor: Any
    programs: dict[int, None]  #: numbers of the programs that were sent to the actor, in order.
    prepared: Any  #: a future: the seconds that were needed to make the container's state.


class _Program(NamedTuple):
    """A program in the object store."""

    number: int
    reference: Any


class RayBodies(ClusterBodies):
    """Runs the body of each call in the actor of its container.

    Args:
      nodes: the cluster's nodes, on which the engine places containers; empty if Ray places them.
      seed: seed of the contexts' keys.
      clock: the platform's clock.
      session: the Ray session in which the actors live.
    """

    def __init__(self, nodes: Sequence[Node], seed: int, clock: Clock, session: Session) -> None:
        super().__init__(clock)
        self._session = session
        self._nodes = tuple(nodes)
        self._seed = seed
        self._packer = Packer()
        self._unpacker = Unpacker(remembered=0)  # each result is fetched once
        # The references are weak, so that a program leaves the object store with the system that made it.
        self._programs: weakref.WeakKeyDictionary[Function, _Program] = weakref.WeakKeyDictionary()
        self._numbers = itertools.count()
        self._actor = ray.remote(Process)

    # ---- containers -----------------------------------------------------------------------------------------------

    def make(self, container: Container, spec: FunctionSpec, on_made: Callable[[Container], Any]) -> None:
        """Has Ray make an actor, on the container's node if it was placed on one."""
        self._session.check()
        # Ray must not restart or retry: the engine records losses, replaces containers and retries calls.
        options: dict[str, Any] = {"max_restarts": 0, "max_task_retries": 0} | _needs(spec.resources, self._nodes)
        if container.place.node >= 0:
            node = self._nodes[container.place.node].name
            # The actor must be on this node: on another node, it would take room that the engine believes free.
            options["scheduling_strategy"] = NodeAffinitySchedulingStrategy(node, soft=False)
        else:
            # Containers are spread, because Ray's default prefers nodes in use: containers without resources would all
            # share one machine.
            options["scheduling_strategy"] = "SPREAD"
        actor = self._actor.options(**options).remote(container.function, container.number, container.slot, self._seed)
        sent: dict[int, None] = {}
        program = None if container.program is None else self._sent(container.program, container.function, actor, sent)
        prepared = actor.prepare.remote(program).future()
        container.handle = _Remote(actor, sent, prepared)
        container.starting = True
        self.containers[container.number] = container
        # The callback is added last, because it may be called at once.
        prepared.add_done_callback(lambda _: on_made(container))

    def made(self, container: Container) -> BaseException | None:
        """Returns the error if the actor could not be made."""
        error: BaseException | None = container.handle.prepared.exception()
        if error is None and (seconds := container.handle.prepared.result()):
            self.note("initialisation", container, seconds)
        return error

    def end(self, container: Container) -> None:
        """Kills the actor."""
        # `drop` may have killed the actor before the engine ends its container.
        if container.handle is not None:
            if not self._session.over:
                with contextlib.suppress(ray.exceptions.RayError):  # the actor does not exist yet, or no longer
                    ray.kill(container.handle.actor, no_restart=True)
            container.handle = None
            del self.containers[container.number]

    def lost_nodes(self) -> Sequence[int]:
        """Returns the indices of the nodes that Ray considers dead."""
        if not self._nodes:
            return ()  # Ray places the containers
        self._session.check()
        alive = {node["NodeID"] for node in ray.nodes() if node["Alive"]}
        return [place for place, node in enumerate(self._nodes) if node.name not in alive]

    # ---- bodies ---------------------------------------------------------------------------------------------------

    def check(self, program: Function, function: str) -> None:
        """Checks that a program can be sent to another process.

        Raises:
          RuntimeError: if Ray was shut down.
          TypeError: if a part of the program cannot be pickled; the error names the part.
        """
        self._session.check()
        self._known(program, function)

    def start(self, call: Call, *, trusted: bool, on_done: Callable[[Call], Any] | None = None) -> None:
        """Sends a call to its container."""
        assert call.container is not None
        assert on_done is not None
        self._session.check()
        arguments = None
        # Errors of packing end the call and are not raised, because the caller is in the middle of an event.
        try:
            if call.resolved:
                arguments = self._packer.pack(call.resolved, f"an argument of function {call.function!r}")
        except TypeError as error:
            call.task = Settled(None, error)
            on_done(call)
            return
        except ray.exceptions.ObjectStoreFullError as error:
            # The call ends as crashed and not as failed, because a retry may help: the object store may get room.
            call.task = Settled(None, ContainerLostError(f"Ray's object store has no room for the arguments: {error}"))
            on_done(call)
            return
        remote: _Remote = call.container.handle
        program = self._sent(call.program, call.function, remote.actor, remote.programs)
        sent = Sent(program, call.number, call.attempt, call.started or 0.0, arguments)
        call.task = future = remote.actor.run.remote(message(sent, plain=arguments is None)).future()
        future.add_done_callback(lambda _: on_done(call))

    def finish(self, call: Call) -> Outcome | None:
        """Returns the value and the error of a body."""
        if isinstance(call.task, Settled):
            return call.task
        try:
            returned = Returned(*fields(call.task.result()))
            value = self._unpacker.unpack(returned.value) if returned.value else None
        # Lost containers come first, because these errors are RayErrors too, and any other RayError fails the call.
        except _LOST as error:
            return None, ContainerLostError(f"the container of function {call.function!r} was lost: {error}")
        except ray.exceptions.RayError as error:
            return None, error  # for example a result that cannot be sent
        except Exception as error:
            # After a shutdown Ray raises a ValueError that only says that the owner of an object is unknown.
            self._session.check()
            return None, error  # for example a value of a class that only the container can import
        return value, returned.error

    def drop(self, call: Call) -> bool:
        """Kills the actor of a killed call, so that its body stops; returns True."""
        if call.container is not None:
            self.end(call.container)
        return True

    def returned(self, call: Call) -> float:
        """Records the durations of a body; returns 0, because they have passed already."""
        if not isinstance(call.task, Settled) and call.task.exception() is None:
            assert call.container is not None
            returned = Returned(*fields(call.task.result()))
            self.note("unpacked", call.container, returned.fetching, call.number)
            self.note("computed", call.container, returned.computing, call.number)
        return 0.0

    def _sent(self, program: Function, function: str, actor: Any, sent: dict[int, None]) -> int:
        """Sends a program to an actor, unless the actor has it already; returns the program's number."""
        number, reference = self._known(program, function)
        if number not in sent:
            actor.load.remote(number, [reference])
            sent[number] = None
            # The container forgets its oldest program at the same count, so both sides agree without a message.
            if len(sent) > PROGRAMS:
                del sent[next(iter(sent))]
        return number

    def _known(self, program: Function, function: str) -> _Program:
        """Puts a program into the object store, unless it is there already; returns its number and reference."""
        known = self._programs.get(program)
        if known is None:
            reference = ray.put(packed_program(program, f"the program of function {function!r}"))
            known = self._programs[program] = _Program(next(self._numbers), reference)
        return known


def _needs(resources: Resources, nodes: Sequence[Node]) -> dict[str, Any]:
    """Returns the resources that Ray reserves for a container, as options of an actor."""
    # Slots become fractions of a GPU, which Ray counts; all nodes have the same `slots_per_gpu`.
    slots = max((node.slots_per_gpu for node in nodes), default=1)
    return {
        "num_cpus": resources.vcpus,
        "memory": int(resources.memory * GB),
        "num_gpus": resources.gpu_slots / slots,
    }
