"""The base class of systems."""

from typing import ClassVar

from stellaris.scheduling.scheduler import Scheduler
from stellaris.systems.session import Session


class System:
    """An actor-learner architecture: a frozen configuration, and an event loop over a platform.

    Subclass it as a frozen dataclass, whose fields are the settings: checkpoints compare them when a run is resumed.
    """

    #: The functions that it invokes; all must be deployed.
    functions: ClassVar[tuple[str, ...]] = ()
    #: Those of `functions` that start on demand; the others are reserved machines.
    serverless: ClassVar[tuple[str, ...]] = ()
    #: The function whose containers hold the environments. It must be deployed, even if it is never invoked.
    acts: ClassVar[str] = "actor"

    #: Learners that compute at the same time, at most.
    learners: int = 1
    #: Decides how many actors each round has; None if all sample. The loop then calls `Session.next_round`.
    scheduler: Scheduler | None = None

    def run(self, session: Session) -> None:
        """Runs the event loop until `session.next_completion()` returns None."""
        raise NotImplementedError(f"{type(self).__name__} does not define run(self, session), its event loop")
