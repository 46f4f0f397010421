"""Stellaris: asynchronous actors, on-demand learner functions, staleness-aware aggregation."""

import functools
from collections import deque
from dataclasses import dataclass

import jax

from stellaris.aggregation import Aggregator, staleness_aware
from stellaris.algorithms import PPO
from stellaris.rollout import Fragment
from stellaris.systems import programs
from stellaris.systems.programs import Learned, Work
from stellaris.systems.training import Run
from stellaris.truncation import check_rho


@dataclass(frozen=True)
class Stellaris:
    """Actors, learners and the policy's update are functions; nothing waits at a barrier.

    It needs the functions `actor`, `learner` and `parameter` on its platform. Compute times are per environment step,
    per gradient, and per update.

    Args:
      algorithm: whose loss, minibatches and epochs.
      learners: learner functions that run at once, at most.
      aggregator: when and how queued gradients are applied; `staleness_aware(learners, decay=0.9)` by default.
      rho: truncation level of the global cap, at least 1; `math.inf` for no cap.
      round_based: False for actors that run freely, restarting while at most one batch's gradients wait; True for
        actors that start together, once all of a round's gradients have been applied (the authors' demo).

    Raises:
      ValueError: if `learners` is below 1, or `rho` below 1.

    Source:
      Stellaris (SC 2024).
    """

    algorithm: PPO = PPO()
    learners: int = 4
    aggregator: Aggregator | None = None
    rho: float = 1.0
    round_based: bool = False

    def __post_init__(self) -> None:
        if self.learners < 1:
            raise ValueError(f"learners={self.learners} is below 1: nothing would learn")
        check_rho(self.rho)

    def run(self, run: Run) -> None:
        """The event loop."""
        platform, store, actors = run.platform, run.platform.store, run.workload.actors
        act = programs.actor(run.policy, run.env, run.workload.fragment)
        learn = programs.learner(self.algorithm, run.policy, self.rho)
        update_policy = programs.parameter(self.algorithm)
        batches = programs.Batches(self.algorithm, run.key)

        params = run.first_params
        opt_state = self.algorithm.optimizer().init(params)
        clock = run.publish(params)
        newest, held = store.latest("policy"), store.held("policy", slots=self.learners)
        init, push, ready, pop, admit = _jitted(self.aggregator or _default(self.learners))
        queue = init(params)
        fragments: list[Fragment] = []
        work: deque[Work] = deque()  # gradients to be computed
        queued: deque[Work] = deque()  # those in the queue, oldest first
        running: dict[int, Work] = {}
        parked, free, startable = list(range(actors)), list(range(self.learners)), list[int]()
        updating, backlog = False, 0

        while True:
            round_over = len(parked) == actors and not (work or running or queued or updating)
            while parked and (round_over if self.round_based else len(work) <= backlog):
                platform.invoke("actor", act, newest, work=run.workload.fragment, tag=parked.pop(0))
            room = queue.capacity - len(queued) - len(running)
            for i in startable[: min(len(work), room)]:
                free.remove(i)
                running[i] = work.popleft()
                platform.invoke("learner", learn, newest, held, running[i], tag=i)

            if (done := run.next_completion()) is None:
                break
            match done.function:
                case "actor":
                    fragments.append(run.deliver(done))
                    parked.append(done.tag)
                    if len(fragments) == actors:
                        data = batches.make(fragments)
                        work.extend(Work(data, minibatch) for minibatch in data.indices)
                        fragments, backlog = [], len(data.indices)
                case "learner":
                    learned: Learned = done.result()
                    queue = push(queue, learned.gradient, learned.version, learner=done.tag)
                    queued.append(running.pop(done.tag))
                    free.append(done.tag)
                    run.pushed(done, learned.metrics)
                case "parameter":
                    params, opt_state = done.result()
                    clock, updating = run.publish(params), False

            startable = [i for i in free if admit(queue, i, clock)] if work else []
            stalled = not (running or startable)
            if queued and not updating and (stalled or ready(queue, clock, run.round)):
                group, queue = pop(queue, clock, run.round)
                for staleness in group.staleness[: int(group.count)].tolist():
                    item = queued.popleft()
                    run.applied(staleness, item.data, item.indices)
                platform.invoke("parameter", update_policy, group, params, opt_state)
                updating = True

        unapplied = [*work, *queued, *running.values()]
        run.left(queued=len(queued), fragments=fragments, data=[item.data for item in unapplied])


@functools.cache
def _default(learners: int) -> Aggregator:
    return staleness_aware(learners, decay=0.9)


@functools.lru_cache(maxsize=64)
def _jitted(aggregator: Aggregator) -> Aggregator:
    """The queue is updated in place: it is the largest thing that changes with every gradient."""
    return aggregator._replace(
        push=jax.jit(aggregator.push, donate_argnums=0),
        ready=jax.jit(aggregator.ready),
        pop=jax.jit(aggregator.pop, donate_argnums=0),
    )
