"""Systems with one central learner: synchronous actors as in RLlib's PPO, or asynchronous actors as in IMPALA."""

from dataclasses import dataclass
from typing import ClassVar

from stellaris.algorithms import IMPALA, PPO, Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.runtime.functions import Invocation
from stellaris.runtime.state.registry import register_value
from stellaris.scheduling.scheduler import Scheduler, check_scheduler
from stellaris.systems import programs
from stellaris.systems.batches import LearnerBatch
from stellaris.systems.record import POLICY
from stellaris.systems.session import Session
from stellaris.systems.staleness_control import StalenessControl, check_control
from stellaris.systems.system import System
from stellaris.types import Tree

#: The control of synchronous systems: actors sample a batch only when the previous batch has been learned from.
IN_STEP = StalenessControl(pace=0)


@dataclass(frozen=True)
class Synchronous(System):
    """Synchronous training, as in RLlib's PPO: all actors sample, then one learner computes all epochs on their batch.

    The platform must deploy `actor` and `learner`. Compute times are per environment step and per gradient, as for
    `Stellaris`.

    Args:
      algorithm: the algorithm, whose loss, minibatches and epochs are used.
      scheduler: decides how many actors sample in each round; by default all of them.

    Raises:
      TypeError: if the algorithm or the scheduler has the wrong type.
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "learner")
    serverless: ClassVar[tuple[str, ...]] = ()

    algorithm: Algorithm = PPO()
    scheduler: Scheduler | None = None

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        if self.scheduler is not None:
            check_scheduler(self.scheduler)

    def run(self, session: Session) -> None:
        """Runs the event loop."""
        run(session, self.algorithm, IN_STEP)


@dataclass(frozen=True)
class AsynchronousActors(System):
    """Asynchronous actors and one central learner, as in IMPALA and SRL: actors sample while the learner learns.

    The platform must deploy `actor` and `learner`. Versions are published while actors sample, so the behaviour policy
    is older than the learner's policy: choose an off-policy algorithm, such as IMPALA with V-trace.

    Args:
      algorithm: the algorithm, whose loss, minibatches and epochs are used.
      control: limits how many batches actors may be ahead of the learner, and how old the fragments of a batch may be.

    Raises:
      TypeError: if the algorithm or the control has the wrong type.

    Source:
      Espeholt et al. 2018, IMPALA; Mei et al. 2024, SRL.
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "learner")
    serverless: ClassVar[tuple[str, ...]] = ()

    algorithm: Algorithm = IMPALA()
    control: StalenessControl = StalenessControl(pace=1)

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        check_control(self.control)

    def run(self, session: Session) -> None:
        """Runs the event loop."""
        run(session, self.algorithm, self.control)


@register_value
@dataclass
class _Loop:
    """The state of the event loop between two events."""

    params: Tree
    opt_state: Tree
    learning: LearnerBatch | None = None  #: the batch that the learner works on.


def run(
    session: Session,
    algorithm: Algorithm,
    control: StalenessControl,
    *,
    prewarm: bool = False,
) -> None:
    """Runs the event loop of systems with one learner, which learns from whole batches.

    Args:
      session: the session of the run.
      algorithm: the algorithm, whose loss, minibatches and epochs are used.
      control: limits how many batches actors may be ahead of the learner; `IN_STEP` for a system with a scheduler.
      prewarm: whether containers are prewarmed in the first round.
    """
    platform = session.platform
    fragments = session.fragments(control)
    newest = platform.store.latest(POLICY)
    learn = session.program("learn", programs.whole_batch(algorithm, session.policy))

    def first() -> _Loop:
        session.publish(session.first_params)
        return _Loop(session.first_params, algorithm.optimizer().init(session.first_params))

    loop = session.begin(first)
    while session.next_round(loop):
        fragments.sample()
        if prewarm and session.round == 0:
            platform.prewarm("learner")
            # Only the other actors need a container: the actors of this round were just invoked.
            if more := session.workload.actors - fragments.batch_size:
                platform.prewarm("actor", more)
        prewarm = False  # prewarm only once, although the loop runs several times per round
        # There is one learner: the next batch waits until the learner is free.
        if loop.learning is None and (data := fragments.next_batch(algorithm, loop.params)):
            loop.learning = data
            learner = platform.invoke("learner", learn, newest, loop.opt_state, data, work=len(data.indices))
            session.record.learns(learner, data.number)
            session.round_over()
        if (done := session.next_completion(loop)) is None:
            break
        if done.function == "actor":
            fragments.deliver(done)
        else:
            assert loop.learning is not None
            loop.params, loop.opt_state = take_learned(session, done, loop.learning)
            session.learned_from(loop.learning)  # before publishing, because the new version normalises by this batch
            loop.learning = None
            session.publish(loop.params)
    session.unused(batches=[loop.learning] if loop.learning else [])


def take_learned(session: Session, done: Invocation, data: LearnerBatch) -> tuple[Tree, Tree]:
    """Records a whole batch as learned from; returns the learner's parameters and optimizer state."""
    params, opt_state, metrics = done.result()
    session.record.metrics(done, metrics)
    for minibatch in data.indices:
        # Each gradient was applied to the parameters on which it was computed.
        session.record.applied(done.number, staleness=0, steps=data.learn(minibatch))
    return params, opt_state
