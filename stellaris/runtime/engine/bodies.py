"""The base class of the classes that run bodies: threads of this process, or actors of a Ray cluster."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from stellaris.runtime.engine.calls import Call, Container
from stellaris.runtime.engine.threads import Outcome
from stellaris.runtime.functions import FunctionSpec


class ContainerLostError(RuntimeError):
    """Raised if a container ended before it was ready, or while it ran a body, whose side effects may have happened."""


# The class is abstract, so that a subclass without one of the four methods fails when the platform is made, and not
# during a run.
class BodyRunner(ABC):
    """Runs bodies and, if containers are real (processes, for example), makes and ends containers.

    To write another platform, subclass `BodyRunner` and define `start`, `finish`, `drop` and `close`. The other methods
    have defaults for containers that exist only in the engine's records. The engine calls all methods on one thread.
    The callbacks `on_done` and `on_made`, which it passes in, may be called from any thread.
    """

    @abstractmethod
    def start(self, call: Call, *, trusted: bool, on_done: Callable[[Call], Any] | None = None) -> None:
        """Starts the body of a call; `execution.run_body` runs one.

        Args:
          call: a call with a container and resolved arguments. Store in `call.task` the data that `finish` needs.
          trusted: whether the body may share a thread with other bodies. False if the function has a time-out: a body
            that hangs would delay the other bodies, and would keep the engine from noticing.
          on_done: call it with `call` once the body has returned; None in virtual time, where `finish` waits instead.
        """

    @abstractmethod
    def finish(self, call: Call) -> Outcome | None:
        """Returns the value and the error of a body; None if the body hangs.

        If the container was lost, the error is a `ContainerLostError`: the call then ends as `crashed`, and can be
        retried. Any other error ends the call as `failed`.
        """

    @abstractmethod
    def drop(self, call: Call) -> bool:
        """Stops the body of a killed call if possible; returns whether the body no longer runs.

        If the body still runs, the engine keeps the container's slot occupied until `on_done` is called.
        """

    @abstractmethod
    def close(self, patience: float) -> None:
        """Frees threads and processes, waiting at most `patience` seconds for bodies that still run."""

    def start_batches(self) -> None:  # noqa: B027, most platforms have nothing to do here
        """Starts bodies that were held back to share a call; called once no other body starts at this instant."""

    def inside(self) -> bool:
        """Whether the calling thread runs a body of this platform; False if bodies run in other processes."""
        return False

    def returned(self, call: Call) -> float:
        """Returns the seconds that a call takes on top of its drawn duration; called after `on_done`."""
        return 0.0

    def measure(self, call: Call) -> float:
        """Runs a body at once and alone; returns its real seconds. Needed for `Measured` delays in virtual time."""
        raise NotImplementedError(
            f"{type(self).__name__} has no method measure, which a Measured delay needs in virtual time: write it, or "
            "use another delay"
        )

    def settle(self, call: Call) -> None:
        """Runs a body to its end and keeps the outcome for `finish`. Needed for checkpoints."""
        raise NotImplementedError(
            f"{type(self).__name__} has no method settle, which checkpoints need: write it, or run without checkpoints"
        )

    def make(  # noqa: B027, a container may be nothing but a slot
        self, container: Container, spec: FunctionSpec, on_made: Callable[[Container], Any]
    ) -> None:
        """Begins to make a container, if that takes real time: a process, for example.

        Set `container.starting`, and call `on_made` with the container once it is ready or could not be made. Store a
        reference to the process in `container.handle`.
        """

    def made(self, container: Container) -> BaseException | None:
        """Returns the error if making a container failed; called after `on_made`."""
        return None

    def end(self, container: Container) -> None:  # noqa: B027, as for `make`
        """Ends a container and the body that runs in it."""

    def lost_nodes(self) -> Sequence[int]:
        """Returns the indices of nodes that have failed, in the order of the deployment's nodes."""
        return ()
