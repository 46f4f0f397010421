"""The base class of systems."""

from typing import ClassVar

from stellaris.scheduling.scheduler import Scheduler
from stellaris.systems.session import Session


class System:
    """The base class of actor-learner architectures: a frozen configuration, and an event loop over a platform.

    Subclass it as a frozen dataclass whose fields are the settings: checkpoints compare them when a run is resumed.
    """

    #: The functions that the system invokes; all must be deployed.
    functions: ClassVar[tuple[str, ...]] = ()
    #: The subset of `functions` that start on demand; the others run on reserved machines.
    serverless: ClassVar[tuple[str, ...]] = ()
    #: The function whose containers hold the environments. It must be deployed, even if it is never invoked.
    acts: ClassVar[str] = "actor"

    #: The most learners that compute at the same time.
    learners: int = 1
    #: Decides how many actors each round has; the event loop must then call `Session.next_round`. None if all sample.
    scheduler: Scheduler | None = None

    def prewarms(self, actors: int) -> int:
        """Returns the most containers of `acts` that the event loop prewarms, for a workload with so many actors."""
        return 0

    def run(self, session: Session) -> None:
        """Runs the event loop until `session.next_completion()` returns None."""
        raise NotImplementedError(f"{type(self).__name__} does not define run(self, session): write its event loop")
