"""The synchronous baseline: a barrier of actors, then one learner, on reserved machines."""

from dataclasses import dataclass, field
from typing import ClassVar

from stellaris.acting.rollout import Fragment
from stellaris.algorithms import PPO, Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.saved import saved
from stellaris.systems import programs
from stellaris.systems.batches import Data, unlearned
from stellaris.systems.record import POLICY
from stellaris.systems.session import Session
from stellaris.types import Tree


@dataclass(frozen=True)
class Synchronous:
    """Distributed synchronous training, as RLlib's PPO: all actors sample, one learner takes every epoch, and so on.

    It needs the functions `actor` and `learner` on its platform. Compute times are per environment step and per
    gradient, as for `Stellaris`.

    Args:
      algorithm: whose loss, minibatches and epochs.

    Raises:
      TypeError: if that is no algorithm.
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "learner")

    algorithm: Algorithm = PPO()

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)

    def run(self, session: Session) -> None:
        """The event loop."""
        platform, workload = session.platform, session.workload
        newest = platform.store.latest(POLICY)
        act = session.program("act", programs.actor(session.policy, session.env, workload.fragment))
        learn = session.program("learn", programs.whole_batch(self.algorithm, session.policy))

        def sample() -> None:
            for actor in range(workload.actors):
                platform.invoke("actor", act, newest, work=workload.fragment, tag=actor)

        def first() -> _Loop:
            session.publish(session.first_params)
            sample()
            return _Loop(session.first_params, self.algorithm.optimizer().init(session.first_params))

        loop = session.begin(first)
        while done := session.next_completion(loop):
            if done.function == "actor":
                loop.fragments.append(session.deliver(done))
                if len(loop.fragments) == workload.actors:
                    data = session.batch(self.algorithm, loop.fragments, loop.params)
                    loop.fragments = []
                    loop.learning = data
                    platform.invoke("learner", learn, newest, loop.opt_state, data, work=len(data.indices), tag=data)
                    session.round_over()
            else:
                data = done.tag
                loop.params, loop.opt_state, metrics = done.result()
                session.record.metrics(done, metrics)
                for minibatch in data.indices:
                    session.record.applied(done.number, staleness=0, steps=data.learn(minibatch))
                session.learned_from(data.statistics)
                loop.learning = None
                session.publish(loop.params)
                sample()
        session.record.unused(gradients=0, steps=unlearned(loop.fragments, [loop.learning] if loop.learning else []))


@saved
@dataclass
class _Loop:
    """Where the event loop stands between two events: what a checkpoint saves of it."""

    params: Tree
    opt_state: Tree
    fragments: list[Fragment] = field(default_factory=list)  #: of the next batch.
    learning: Data | None = None  #: what the learner works on.
