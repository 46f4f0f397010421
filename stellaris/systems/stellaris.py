"""Stellaris: asynchronous actors, on-demand learner functions, and staleness-aware aggregation."""

import math
from collections import deque
from dataclasses import dataclass, field
from typing import ClassVar

import jax
import numpy as np

from stellaris._core import checks
from stellaris.aggregation.protocol import Aggregator
from stellaris.aggregation.staleness_aware import staleness_aware
from stellaris.algorithms import PPO, Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.corrections.caps import check_rho
from stellaris.runtime.state.registry import register_value
from stellaris.systems import programs
from stellaris.systems.batches import GradientTask, LearnerBatch
from stellaris.systems.pending_gradients import Computed, PendingGradients
from stellaris.systems.programs import Learned
from stellaris.systems.record import POLICY
from stellaris.systems.session import Session
from stellaris.systems.staleness_control import StalenessControl, check_control
from stellaris.systems.system import System
from stellaris.types import Tree


@dataclass(frozen=True)
class Stellaris(System):
    """Asynchronous training: actors, learners and the policy's update are functions that never wait at a barrier.

    The platform must deploy `actor`, `learner` and `parameter`. Compute times are per environment step, per gradient,
    and per update.

    Args:
      algorithm: the algorithm, whose loss, minibatches and epochs are used.
      learners: the maximum number of learner functions that run at the same time.
      aggregator: decides when and how queued gradients are applied; by default `staleness_aware(learners, decay=0.9)`.
      rho: truncation level of the global cap on importance ratios, at least 1; `math.inf` for no cap.
      control: limits how many batches actors may be ahead of the learners, and how old the fragments of a batch may be.
        `StalenessControl(pace=0)` starts all actors together, when all gradients of a batch have been applied, as in
        the authors' demo.

    Raises:
      IndexError: if the aggregator was made for fewer than `learners` learners.
      RuntimeError: in a run, at a deadlock: the aggregator admits no learner, or removes no gradient from a full queue.
      TypeError: if the algorithm, the aggregator or the control has the wrong type, or `learners` is not whole.
      ValueError: if `learners` is below 1 or above the capacity of the aggregator's queue, if the aggregator waits for
        more than `learners` learners, or if `rho` is below 1.

    Source:
      Stellaris (SC 2024).
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "learner", "parameter")
    serverless: ClassVar[tuple[str, ...]] = functions

    algorithm: Algorithm = PPO()
    learners: int = 4
    #: None stands for the default, which depends on `learners`.
    aggregator: Aggregator | None = None
    rho: float = 1.0
    control: StalenessControl = StalenessControl(pace=1)

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        checks.whole(at_least=1, learners=self.learners)
        check_rho(rho=self.rho)
        check_control(self.control)
        if self.aggregator is not None:
            _check_aggregator(self.aggregator, self.learners)

    def run(self, session: Session) -> None:
        """Runs the event loop."""
        platform, store = session.platform, session.platform.store
        fragments = session.fragments(self.control)
        learn = session.program("learn", programs.learner(self.algorithm, session.policy, self.rho))
        update_policy = session.program("update_policy", programs.parameter(self.algorithm))
        # The reference is resolved when a learner starts and not when it is invoked, so that the learner pulls the
        # policy that is newest at its start.
        newest = store.latest(POLICY)
        # Without a cap the learner does not read the other learners' policies, so it need not fetch them.
        held = () if math.isinf(self.rho) else store.held(POLICY, slots=self.learners)
        aggregator = self.aggregator or staleness_aware(self.learners, decay=0.9)

        def first() -> _Loop:
            params = session.first_params
            return _Loop(
                params=params,
                opt_state=self.algorithm.optimizer().init(params),
                clock=session.publish(params),
                pending=PendingGradients(aggregator.init(params)),
                free=list(range(self.learners)),
            )

        loop = session.begin(first)
        while True:
            # Actors are invoked after every event, because a delivered fragment frees its actor, and a batch that was
            # learned from lets the control admit more rollouts.
            fragments.sample()
            # A batch is prepared only when the previous batch has no tasks left. The parameters that prepare it have
            # then learned from most of the previous batch.
            if not loop.tasks and (data := fragments.next_batch(self.algorithm, loop.params)):
                loop.tasks.extend(data.minibatches)
                session.round_over()

            pending = loop.pending
            startable = []
            if loop.tasks:
                startable = [i for i in loop.free if aggregator.admit(pending.queue, i, loop.clock)]
            # No more gradients can arrive if all learners are idle and either none can start or the queue is full. The
            # aggregator must then take the gradients in the queue, even if it would wait for more.
            stalled = not loop.running and (not startable or len(pending) == pending.capacity)
            # The update comes before learners start, because popping makes room in the queue for their gradients.
            may_update = pending and not loop.updating
            if may_update and (stalled or pending.ready(aggregator, loop.clock, session.round)):
                # Gradients are popped when the parameter function is invoked, which may be before it starts. Only one
                # update runs at a time, so no version is published before it starts: the staleness is exact, and the
                # update starts from the newest parameters.
                popped = pending.pop(aggregator, loop.clock, session.round)
                for invocation, task in popped.dropped:
                    session.record.dropped(invocation)
                    task.data.drop()
                    _finish(session, loop, task.data)
                for (invocation, task), versions in popped.applied:
                    session.record.applied(invocation, staleness=versions, steps=task.data.learn(task.indices))
                    _finish(session, loop, task.data)
                if popped.applied:
                    group = programs.Group.of(popped.update, len(popped.applied), loop.params)
                    platform.invoke("parameter", update_policy, group, loop.params, loop.opt_state)
                    loop.updating = True
                elif popped.dropped:
                    # Batches whose last gradients were dropped also count as learned from, so that the control admits
                    # more rollouts; no version is published for them. The loop's next iteration begins here, because if
                    # nothing else is pending, only a new rollout or learner can continue the run.
                    _learned(session, loop)
                    continue

            # A running learner has a place in the queue reserved, so that every computed gradient fits.
            room = pending.capacity - len(pending) - len(loop.running)
            if loop.tasks and not loop.running and not loop.updating and not (startable and room):
                # Without this error, actors might use up the budget although no gradient is ever computed again.
                why = f"admits none of learners={self.learners}" if room else "takes nothing out of its full queue"
                raise RuntimeError(f"deadlock at {platform.now:.6g} s: the aggregator {aggregator!r} {why}")
            for i in startable[: max(min(len(loop.tasks), room), 0)]:
                loop.free.remove(i)
                loop.running[i] = loop.tasks.popleft()
                task = loop.running[i]
                learner = platform.invoke("learner", learn, newest, held, task, tag=i)
                session.record.computes(learner, task.data.number, task.number, learner=i)

            if (done := session.next_completion(loop)) is None:
                break
            match done.function:
                case "actor":
                    fragments.deliver(done)
                case "learner":
                    learned: Learned = done.result()
                    pending.push(aggregator, learned, Computed(done.number, loop.running.pop(done.tag)), done.tag)
                    loop.free.append(done.tag)
                    session.record.queued(done)
                    session.record.metrics(done, learned.metrics)
                case "parameter":
                    loop.params, loop.opt_state = done.result()
                    # Finished batches are counted before publishing: the new version normalises by their observations.
                    _learned(session, loop)
                    loop.clock = session.publish(loop.params)
                    loop.updating = False

        unapplied = [*loop.tasks, *(one.task for one in loop.pending), *loop.running.values()]
        session.unused(gradients=len(loop.pending), batches=[task.data for task in unapplied])


@register_value
@dataclass
class _Loop:
    """The state of the event loop between two events."""

    params: Tree
    opt_state: Tree
    clock: int  #: the newest version.
    pending: PendingGradients  #: gradients that are computed and not applied.
    free: list[int]  #: learners that do not run, in the order in which they start.
    tasks: deque[GradientTask] = field(default_factory=deque)  #: gradients to be computed.
    running: dict[int, GradientTask] = field(default_factory=dict)  #: gradients that are being computed, by learner.
    finished: list[LearnerBatch] = field(default_factory=list)  #: batches to be counted as learned from.
    updating: bool = False  #: whether the parameter function runs.


def _finish(session: Session, loop: _Loop, data: LearnerBatch) -> None:
    """Finishes a batch after its last gradient; transitions that no applied gradient has seen count as discarded."""
    if data.left:
        return
    if unseen := data.unlearned:
        session.record.discarded(unseen)
    loop.finished.append(data)


def _learned(session: Session, loop: _Loop) -> None:
    """Counts the finished batches as learned from."""
    for data in loop.finished:
        session.learned_from(data)
    loop.finished = []


def _check_aggregator(aggregator: Aggregator, learners: int) -> None:
    """Checks that an aggregator can serve `learners` learners."""
    lacking = [name for name in ("init", "push", "ready", "pop", "admit") if not hasattr(aggregator, name)]
    if lacking or isinstance(aggregator, type):
        why = f"it lacks {', '.join(lacking)}" if lacking else "it is a class, not an instance"
        raise TypeError(f"aggregator={aggregator!r} is not an Aggregator: {why}; use softsync(2), for example")
    try:
        # The aggregator is a static argument of compiled functions, which JAX looks up by its hash.
        hash(aggregator)
    except TypeError as error:
        raise TypeError(f"aggregator={aggregator!r} cannot be hashed ({error}): make it a frozen dataclass") from None
    # The queue is made for a gradient that is a single number, because its capacity is the same for any gradient. Only
    # shapes are computed, so no memory is allocated.
    empty = jax.eval_shape(aggregator.init, np.float32(0))
    if empty.capacity < learners:
        raise ValueError(
            f"learners={learners}: the aggregator's queue holds only {empty.capacity} gradients, so only as many "
            "learners could run at the same time; raise its capacity"
        )
    jax.eval_shape(lambda state: aggregator.admit(state, learners - 1, 0), empty)  # checks the learner's number
    # Only aggregators that count each learner's pushes have the attribute `learners`; others serve any number of
    # learners.
    waits_for = getattr(aggregator, "learners", 0)
    if waits_for > learners:
        raise ValueError(
            f"learners={learners}: the aggregator waits for the slowest of its {waits_for} learners, and the "
            f"missing ones never push a gradient; make it for learners={learners}"
        )
