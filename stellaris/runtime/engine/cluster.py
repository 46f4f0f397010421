"""The base classes of platforms whose containers are in other processes: the Ray platform and the Dask platform."""

import contextlib
import threading
from abc import abstractmethod
from collections.abc import Callable
from queue import Empty
from typing import Any

from stellaris.runtime.engine.bodies import BodyRunner
from stellaris.runtime.engine.calls import Container
from stellaris.runtime.engine.clock import Clock, WallClock
from stellaris.runtime.engine.deployment import Deployment
from stellaris.runtime.engine.platform import EnginePlatform
from stellaris.runtime.functions import Function, FunctionSpec, Invocation
from stellaris.runtime.resources import Resources
from stellaris.runtime.store.store import Store
from stellaris.runtime.trace.trace import Trace


class ClusterBodies(BodyRunner):
    """Runs bodies in other processes: the base class of the body runners of a `ClusterPlatform`.

    A subclass defines the abstract methods, and `lost_nodes` if the engine places its containers. `make` adds a
    container to `containers`, and `end` removes it. In the other process a `RemoteContainer` runs the bodies.

    Args:
      clock: the platform's clock.
    """

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self.trace = Trace()  #: the trace of measured durations; the platform replaces it by its own trace.
        self.containers: dict[int, Container] = {}  #: the containers that have a process, by number.

    @abstractmethod
    def check(self, program: Function, function: str) -> None:
        """Checks that a program can be sent to another process; `pickling.refused` makes the error.

        Raises:
          TypeError: if a part of the program cannot be sent; the error names the part.
        """

    @abstractmethod
    def make(self, container: Container, spec: FunctionSpec, on_made: Callable[[Container], Any]) -> None:
        """Begins to make a container, as in `BodyRunner.make`, and adds it to `containers`."""

    @abstractmethod
    def made(self, container: Container) -> BaseException | None:
        """Returns the error if making a container failed; called after `on_made`."""

    @abstractmethod
    def end(self, container: Container) -> None:
        """Ends a container and removes it from `containers`; does nothing if that was done before."""

    def note(self, event: str, container: Container, seconds: float, number: int = -1) -> None:
        """Records a measured duration.

        Args:
          event: `"initialisation"`, `"unpacked"` or `"computed"`.
          container: the container in which the time was measured.
          seconds: the duration.
          number: number of the invocation, if any.
        """
        self.trace.append(
            self._clock.now,
            event,
            function=container.function,
            invocation=number,
            container=container.number,
            value=seconds,
        )

    def close(self, patience: float) -> None:
        """Ends the remaining containers, which exist only if making the platform failed."""
        for container in list(self.containers.values()):
            self.end(container)


class ClusterPlatform(EnginePlatform):
    """The base class of platforms whose containers are in other processes.

    Programs are checked when they are invoked. The clock starts when the provisioned containers are ready. Otherwise
    the class is an `EnginePlatform`, with the same arguments, on a wall clock that is `stopped`. The constructor of a
    subclass connects to the cluster before it calls this one; if this one raises, it has ended its containers, and the
    subclass disconnects.

    Raises:
      RuntimeError: if making a provisioned container takes longer than `hang_after`.
    """

    def __init__(
        self,
        deployment: Deployment,
        clock: WallClock,
        bodies: ClusterBodies,
        *,
        seed: int,
        hang_after: float,
        store: Callable[..., Store] = Store,
    ) -> None:
        with contextlib.ExitStack() as unmade:
            unmade.callback(bodies.close, 0.0)
            super().__init__(deployment, clock, bodies, seed=seed, hang_after=hang_after, store=store)
            bodies.trace = self.trace
            self._await_provisioned(hang_after)
            unmade.pop_all()
        self._remote = bodies
        clock.start()

    def invoke(
        self,
        name: str,
        function: Function | Callable[..., Any],
        *args: Any,
        at: float | None = None,
        work: float = 1.0,
        tag: Any = None,
    ) -> Invocation:
        if not isinstance(function, Function):
            function = self._programs.of(function)
        # The program is checked here and not when the call starts, so that the caller who passed it gets the error.
        if name in self.functions and not self._closed:
            self._remote.check(function, name)
        return super().invoke(name, function, *args, at=at, work=work, tag=tag)

    def _await_provisioned(self, patience: float) -> None:
        """Waits for the provisioned containers, which are made before the clock starts."""
        for _ in range(sum(spec.provisioned for spec in self.functions.values())):
            try:
                container: Any = self._life.returned.get(timeout=min(patience, threading.TIMEOUT_MAX))
            except Empty:
                raise RuntimeError(
                    f"a provisioned container was not made within hang_after={patience} s: see the cluster's logs, and "
                    "check that the cluster is not in use"
                ) from None
            # The time is 0, because the clock stands still until all provisioned containers are made.
            self._life.fleet.made(container, 0.0)


def needs_nodes(deployment: Deployment) -> bool:
    """Returns whether a function needs resources, so that the engine has to place its containers on nodes.

    The engine places them itself, because only the engine knows which containers are idle and can be evicted.
    """
    return any(spec.resources != Resources() for spec in deployment.functions.values())
