"""The synchronous baseline: a barrier of actors, then one learner, on reserved machines."""

from dataclasses import dataclass, field

from stellaris.acting.rollout import Fragment
from stellaris.algorithms import PPO
from stellaris.systems import programs
from stellaris.systems.training import Run
from stellaris.types import Tree


@dataclass(frozen=True)
class Synchronous:
    """Distributed synchronous PPO, as RLlib's: all actors sample, one learner takes every epoch, and so on.

    It needs the functions `actor` and `learner` on its platform. Compute times are per environment step and per
    gradient, as for `Stellaris`.

    Args:
      algorithm: whose loss, minibatches and epochs.

    Raises:
      TypeError: if the algorithm is not PPO.
    """

    algorithm: PPO = PPO()

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, PPO):
            raise TypeError(f"algorithm={self.algorithm!r}: the system learns with PPO(...)")

    def run(self, run: Run) -> None:
        """The event loop."""
        platform, newest = run.platform, run.platform.store.latest("policy")
        act = run.program("act", programs.actor(run.policy, run.env, run.workload.fragment))
        learn = run.program("learn", programs.whole_round(self.algorithm, run.policy))

        def sample() -> None:
            for actor in range(run.workload.actors):
                platform.invoke("actor", act, newest, work=run.workload.fragment, tag=actor)

        def first() -> _Loop:
            run.publish(run.first_params)
            sample()
            opt_state = self.algorithm.optimizer().init(run.first_params)
            return _Loop(opt_state, programs.Batches(self.algorithm, run.key))

        s = run.begin(first)
        while done := run.next_completion(s):
            if done.function == "actor":
                s.fragments.append(run.deliver(done))
                if len(s.fragments) == run.workload.actors:
                    data = s.batches.make(s.fragments)
                    s.fragments, s.in_flight = [], [data]
                    platform.invoke("learner", learn, newest, s.opt_state, data, work=len(data.indices), tag=data)
            else:
                params, s.opt_state, metrics = done.result()
                run.metrics(done, metrics)
                for minibatch in done.tag.indices:
                    run.applied(0, done.number, programs.Work(done.tag, minibatch))
                s.in_flight = []
                run.publish(params)
                sample()
        run.left(queued=0, fragments=s.fragments, data=s.in_flight)


@dataclass
class _Loop:
    """Where the event loop stands between two events: what a checkpoint saves of it."""

    opt_state: Tree
    batches: programs.Batches
    fragments: list[Fragment] = field(default_factory=list)  #: of the next batch.
    in_flight: list[programs.Data] = field(default_factory=list)  #: what the learner works on.
