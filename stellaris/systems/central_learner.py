"""One central learner: with actors in step it is synchronous training, and with free ones IMPALA's architecture."""

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
from stellaris.types import Tree

#: Nothing is sampled before everything has been learned from.
IN_STEP = StalenessControl(pace=0)


@dataclass(frozen=True)
class Synchronous:
    """Distributed synchronous training, as RLlib's PPO: all actors sample, one learner takes every epoch, and so on.

    It needs the functions `actor` and `learner` on its platform. Compute times are per environment step and per
    gradient, as for `Stellaris`.

    Args:
      algorithm: whose loss, minibatches and epochs.
      scheduler: how many actors sample in each round; by default all of them.

    Raises:
      TypeError: if the algorithm or the scheduler is none.
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
        """The event loop."""
        run(session, self.algorithm, IN_STEP, self.scheduler)


@dataclass(frozen=True)
class AsynchronousActors:
    """Asynchronous actors and one central learner, as IMPALA and SRL: actors sample on while the learner learns.

    It needs the functions `actor` and `learner` on its platform. What it learns from is of older versions, by as many
    as were published since: an off-policy algorithm corrects for that, such as IMPALA's with V-trace.

    Args:
      algorithm: whose loss, minibatches and epochs.
      control: how far actors may be ahead, and what is too old to be learned from.

    Raises:
      TypeError: if the algorithm or the control is none.

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
        """The event loop."""
        run(session, self.algorithm, self.control)


@register_value
@dataclass
class _Loop:
    """Where the event loop stands between two events: what a checkpoint saves of it."""

    params: Tree
    opt_state: Tree
    learning: LearnerBatch | None = None  #: what the learner works on.


def run(
    session: Session,
    algorithm: Algorithm,
    control: StalenessControl,
    scheduler: Scheduler | None = None,
    *,
    prewarm: bool = False,
) -> None:
    """The event loop of systems with one learner, of whole batches.

    Args:
      session: of the run.
      algorithm: whose loss, minibatches and epochs.
      control: how far actors may be ahead.
      scheduler: how many actors sample in each round; then nothing may be ahead.
      prewarm: whether containers are made ahead, in the first round.
    """
    platform = session.platform
    newest = platform.store.latest(POLICY)
    learn = session.program("learn", programs.whole_batch(algorithm, session.policy))

    def first() -> _Loop:
        session.publish(session.first_params)
        return _Loop(session.first_params, algorithm.optimizer().init(session.first_params))

    loop = session.begin(first)
    while session.next_round(scheduler, loop):
        session.sample(control)
        if prewarm and session.round == 0:
            platform.prewarm("learner")
            if more := session.workload.actors - session.rollouts.batch:
                platform.prewarm("actor", more)
        prewarm = False
        if loop.learning is None and (data := session.next_batch(algorithm, loop.params, control)):
            loop.learning = data
            platform.invoke("learner", learn, newest, loop.opt_state, data, work=len(data.indices))
            session.round_over()
        if (done := session.next_completion(loop)) is None:
            break
        if done.function == "actor":
            session.deliver(done)
        else:
            assert loop.learning is not None
            loop.params, loop.opt_state = take_learned(session, done, loop.learning)
            session.learned_from(loop.learning)
            loop.learning = None
            session.publish(loop.params)
    session.unused(batches=[loop.learning] if loop.learning else [])


def take_learned(session: Session, done: Invocation, data: LearnerBatch) -> tuple[Tree, Tree]:
    """Takes what a learner of a whole batch returns, and notes it; returns the parameters and the optimizer's state."""
    params, opt_state, metrics = done.result()
    session.record.metrics(done, metrics)
    for minibatch in data.indices:
        session.record.applied(done.number, staleness=0, steps=data.learn(minibatch))
    return params, opt_state
