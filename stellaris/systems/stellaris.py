"""Stellaris: asynchronous actors, on-demand learner functions, staleness-aware aggregation."""

import functools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any

import jax
import numpy as np

from stellaris import checks
from stellaris.aggregation import Aggregator, staleness_aware
from stellaris.algorithms import PPO
from stellaris.gradient_queue import AggregatorState, Update
from stellaris.rollout import Fragment
from stellaris.systems import programs
from stellaris.systems.programs import Learned, Work
from stellaris.systems.training import Run
from stellaris.truncation import check_rho
from stellaris.types import Tree


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
      IndexError: if the aggregator is one of fewer learners.
      TypeError: if the algorithm is not PPO, the aggregator is none, or `learners` is not whole.
      ValueError: if `learners` is below 1 or above the capacity of the aggregator's queue, or `rho` below 1.

    Source:
      Stellaris (SC 2024).
    """

    algorithm: PPO = PPO()
    learners: int = 4
    aggregator: Aggregator | None = None
    rho: float = 1.0
    round_based: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.algorithm, PPO):
            raise TypeError(f"algorithm={self.algorithm!r}: the system learns with PPO(...)")
        checks.whole(at_least=1, learners=self.learners)
        check_rho(self.rho)
        if self.aggregator is not None:
            _check_aggregator(self.aggregator, self.learners)

    def run(self, run: Run) -> None:
        """The event loop."""
        platform, store, actors = run.platform, run.platform.store, run.workload.actors
        act = run.program("act", programs.actor(run.policy, run.env, run.workload.fragment))
        learn = run.program("learn", programs.learner(self.algorithm, run.policy, self.rho))
        update_policy = run.program("update_policy", programs.parameter(self.algorithm))
        newest = store.latest("policy")
        # Without a cap nobody looks at the others' policies, and nobody fetches them.
        held = () if math.isinf(self.rho) else store.held("policy", slots=self.learners)
        aggregator = self.aggregator or staleness_aware(self.learners, decay=0.9)

        def first() -> _Loop:
            params = run.first_params
            return _Loop(
                *(params, self.algorithm.optimizer().init(params), run.publish(params), aggregator.init(params)),
                batches=programs.Batches(self.algorithm, run.key),
                parked=list(range(actors)),
                free=list(range(self.learners)),
            )

        s = run.begin(first)
        while True:
            round_over = len(s.parked) == actors and not (s.work or s.running or s.queued or s.updating)
            while s.parked and (round_over if self.round_based else len(s.work) <= s.backlog):
                platform.invoke("actor", act, newest, work=run.workload.fragment, tag=s.parked.pop(0))
            room = s.queue.capacity - len(s.queued) - len(s.running)
            for i in s.startable[: min(len(s.work), room)]:
                s.free.remove(i)
                s.running[i] = s.work.popleft()
                platform.invoke("learner", learn, newest, held, s.running[i], tag=i)
            s.startable = []

            if (done := run.next_completion(s)) is None:
                break
            match done.function:
                case "actor":
                    s.fragments.append(run.deliver(done))
                    s.parked.append(done.tag)
                    if len(s.fragments) == actors:
                        data = s.batches.make(s.fragments)
                        s.work.extend(Work(data, minibatch) for minibatch in data.indices)
                        s.fragments, s.backlog = [], len(data.indices)
                case "learner":
                    learned: Learned = done.result()
                    s.queue = _push(aggregator, s.queue, learned.gradient, learned.version, done.tag)
                    s.queued.append((done.number, s.running.pop(done.tag)))
                    s.free.append(done.tag)
                    run.pushed(done, learned.metrics)
                case "parameter":
                    s.params, s.opt_state = done.result()
                    s.clock, s.updating = run.publish(s.params), False

            s.startable = [i for i in s.free if aggregator.admit(s.queue, i, s.clock)] if s.work else []
            stalled = not (s.running or s.startable)
            if s.queued and not s.updating and (stalled or _ready(aggregator, s.queue, s.clock, run.round)):
                update, s.queue = _pop(aggregator, s.queue, s.clock, run.round)
                for staleness in update.staleness[: int(update.count)].tolist():
                    run.applied(staleness, *s.queued.popleft())
                group = programs.Group.of(update, s.params)
                platform.invoke("parameter", update_policy, group, s.params, s.opt_state)
                s.updating = True

        unapplied = [*s.work, *(work for _, work in s.queued), *s.running.values()]
        run.left(queued=len(s.queued), fragments=s.fragments, data=[work.data for work in unapplied])


@dataclass
class _Loop:
    """Where the event loop stands between two events: what a checkpoint saves of it."""

    params: Tree
    opt_state: Tree
    clock: int  #: the newest version.
    queue: AggregatorState
    batches: programs.Batches
    parked: list[int]  #: actors that do not run.
    free: list[int]  #: learners that do not run.
    fragments: list[Fragment] = field(default_factory=list)  #: of the next batch.
    work: deque[Work] = field(default_factory=deque)  #: gradients to be computed.
    queued: deque[tuple[int, Work]] = field(default_factory=deque)  #: those in the queue, by invocation, oldest first.
    running: dict[int, Work] = field(default_factory=dict)  #: by learner.
    startable: list[int] = field(default_factory=list)  #: free learners that may start.
    updating: bool = False
    backlog: int = 0


def _check_aggregator(aggregator: Aggregator, learners: int) -> None:
    """Raises unless it can serve so many learners."""
    if not isinstance(aggregator, Aggregator):
        raise TypeError(f"aggregator={aggregator!r} is none: make one, such as softsync(2)")
    try:
        hash(aggregator)
    except TypeError as error:
        raise TypeError(f"aggregator={aggregator!r} has no hash ({error}): make it a frozen dataclass") from None
    empty = jax.eval_shape(aggregator.init, np.float32(0))
    if empty.capacity < learners:
        raise ValueError(
            f"learners={learners}: the aggregator's queue holds {empty.capacity} gradients, and no more learners would "
            "ever run at once: raise its capacity"
        )
    jax.eval_shape(lambda state: aggregator.admit(state, learners - 1, 0), empty)  # checks the learner's number


# Compiled once for each aggregator, by value. The queue is updated in place: it is the largest thing that changes with
# every gradient.


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _push(aggregator: Aggregator, queue: AggregatorState, gradient: Tree, version: Any, learner: Any) -> Any:
    return aggregator.push(queue, gradient, version, learner=learner)


@functools.partial(jax.jit, static_argnums=0)
def _ready(aggregator: Aggregator, queue: AggregatorState, clock: Any, round: Any) -> Any:
    return aggregator.ready(queue, clock, round)


@functools.partial(jax.jit, static_argnums=0, donate_argnums=1)
def _pop(aggregator: Aggregator, queue: AggregatorState, clock: Any, round: Any) -> tuple[Update, AggregatorState]:
    return aggregator.pop(queue, clock, round)
