"""The synchronous baseline: a barrier of actors, then one learner, on reserved machines."""

from dataclasses import dataclass

from stellaris.algorithms import PPO
from stellaris.rollout import Fragment
from stellaris.systems import programs
from stellaris.systems.training import Run


@dataclass(frozen=True)
class Synchronous:
    """Distributed synchronous PPO, as RLlib's: all actors sample, one learner takes every epoch, and so on.

    It needs the functions `actor` and `learner` on its platform. Compute times are per environment step and per
    gradient, as for `Stellaris`.

    Args:
      algorithm: whose loss, minibatches and epochs.
    """

    algorithm: PPO = PPO()

    def run(self, run: Run) -> None:
        """The event loop."""
        platform, newest = run.platform, run.platform.store.latest("policy")
        act = programs.actor(run.policy, run.env, run.workload.fragment)
        learn = programs.whole_round(self.algorithm, run.policy)
        batches = programs.Batches(self.algorithm, run.key)
        opt_state = self.algorithm.optimizer().init(run.first_params)
        run.publish(run.first_params)
        fragments: list[Fragment] = []
        in_flight: list[programs.Data] = []

        def sample() -> None:
            for actor in range(run.workload.actors):
                platform.invoke("actor", act, newest, work=run.workload.fragment, tag=actor)

        sample()
        while done := run.next_completion():
            if done.function == "actor":
                fragments.append(run.deliver(done))
                if len(fragments) == run.workload.actors:
                    data = batches.make(fragments)
                    fragments, in_flight = [], [data]
                    platform.invoke("learner", learn, newest, opt_state, data, work=len(data.indices), tag=data)
            else:
                params, opt_state, metrics = done.result()
                run.metrics(done, metrics)
                for minibatch in done.tag.indices:
                    run.applied(0, done.tag, minibatch)
                in_flight = []
                run.publish(params)
                sample()
        run.left(queued=0, fragments=fragments, data=in_flight)
