"""Stellaris: asynchronous actors, on-demand learner functions, staleness-aware aggregation."""

import functools
import math
from collections import deque
from dataclasses import dataclass, field
from typing import Any, ClassVar

import jax
import numpy as np

from stellaris._core import checks
from stellaris.aggregation.gradient_queue import AggregatorState, Update
from stellaris.aggregation.protocol import Aggregator
from stellaris.aggregation.staleness_aware import staleness_aware
from stellaris.algorithms import PPO, Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.corrections.caps import check_rho
from stellaris.runtime.state.registry import register_value
from stellaris.systems import programs
from stellaris.systems.batches import GradientTask, LearnerBatch
from stellaris.systems.programs import Learned
from stellaris.systems.record import POLICY
from stellaris.systems.session import Session
from stellaris.systems.staleness_control import StalenessControl, check_control
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
      control: how far actors may be ahead, and what is too old to be learned from. `StalenessControl(pace=0)` has them
        start together, once all gradients of a batch have been applied (the authors' demo).

    Raises:
      IndexError: if the aggregator is one of fewer learners.
      RuntimeError: in a run, if the aggregator admits no learner, or takes nothing out of a full queue, so that nothing
        would ever be learned again.
      TypeError: if the algorithm, the aggregator or the control is none, or `learners` is not whole.
      ValueError: if `learners` is below 1 or above the capacity of the aggregator's queue, if the aggregator waits for
        more learners, or if `rho` is below 1.

    Source:
      Stellaris (SC 2024).
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "learner", "parameter")
    serverless: ClassVar[tuple[str, ...]] = functions

    algorithm: Algorithm = PPO()
    learners: int = 4
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
        """The event loop."""
        platform, store = session.platform, session.platform.store
        learn = session.program("learn", programs.learner(self.algorithm, session.policy, self.rho))
        update_policy = session.program("update_policy", programs.parameter(self.algorithm))
        newest = store.latest(POLICY)
        # Without a cap nobody looks at the others' policies, and nobody fetches them.
        held = () if math.isinf(self.rho) else store.held(POLICY, slots=self.learners)
        aggregator = self.aggregator or staleness_aware(self.learners, decay=0.9)

        def first() -> _Loop:
            params = session.first_params
            return _Loop(
                params=params,
                opt_state=self.algorithm.optimizer().init(params),
                clock=session.publish(params),
                queue=aggregator.init(params),
                free=list(range(self.learners)),
            )

        loop = session.begin(first)
        while True:
            session.sample(self.control)
            if not loop.work and (data := session.next_batch(self.algorithm, loop.params, self.control)):
                loop.work.extend(data.minibatches)
                session.round_over()

            startable = [i for i in loop.free if aggregator.admit(loop.queue, i, loop.clock)] if loop.work else []
            # Nothing more can come: nobody runs, and nobody may start, or what would come has no room in the queue.
            stalled = not loop.running and (not startable or len(loop.queued) == loop.queue.capacity)
            # Before freed learners restart: the update decides which version they work on.
            may_update = loop.queued and not loop.updating
            if may_update and (stalled or _ready(aggregator, loop.queue, loop.clock, session.round)):
                update, loop.queue = _pop(aggregator, loop.queue, loop.clock, session.round)
                dropped, count, staleness = jax.device_get((update.dropped, update.count, update.staleness))
                for _ in range(int(dropped)):
                    _drop(session, loop)
                for versions in staleness[: int(count)].tolist():
                    _apply(session, loop, versions)
                if count:
                    group = programs.Group.of(update, loop.params)
                    platform.invoke("parameter", update_policy, group, loop.params, loop.opt_state)
                    loop.updating = True
                elif dropped:
                    _learned(session, loop)  # from nothing; no version comes of it
                    continue

            room = loop.queue.capacity - len(loop.queued) - len(loop.running)
            if loop.work and not loop.running and not loop.updating and not (startable and room):
                # Actors might go on, and use the budget up; but what decides about learners has come to rest.
                what = f"admits none of learners={self.learners}" if room else "takes nothing out of its full queue"
                raise RuntimeError(f"nothing goes on after {platform.now:.6g} s: the aggregator {aggregator!r} {what}")
            for i in startable[: max(min(len(loop.work), room), 0)]:
                loop.free.remove(i)
                loop.running[i] = loop.work.popleft()
                platform.invoke("learner", learn, newest, held, loop.running[i], tag=i)

            if (done := session.next_completion(loop)) is None:
                break
            match done.function:
                case "actor":
                    session.deliver(done)
                case "learner":
                    learned: Learned = done.result()
                    loop.queue = _push(aggregator, loop.queue, learned.gradient, learned.version, done.tag)
                    loop.queued.append((done.number, loop.running.pop(done.tag)))
                    loop.free.append(done.tag)
                    session.record.queued(done)
                    session.record.metrics(done, learned.metrics)
                case "parameter":
                    loop.params, loop.opt_state = done.result()
                    _learned(session, loop)
                    loop.clock = session.publish(loop.params)
                    loop.updating = False

        unapplied = [*loop.work, *(work for _, work in loop.queued), *loop.running.values()]
        session.unused(gradients=len(loop.queued), batches=[work.data for work in unapplied])


@register_value
@dataclass
class _Loop:
    """Where the event loop stands between two events: what a checkpoint saves of it."""

    params: Tree
    opt_state: Tree
    clock: int  #: the newest version.
    queue: AggregatorState
    free: list[int]  #: learners that do not run.
    work: deque[GradientTask] = field(default_factory=deque)  #: gradients to be computed.
    queued: deque[tuple[int, GradientTask]] = field(
        default_factory=deque
    )  #: those in the queue, by invocation, oldest first.
    running: dict[int, GradientTask] = field(default_factory=dict)  #: by learner.
    finished: list[LearnerBatch] = field(
        default_factory=list
    )  #: batches with no gradient left, but in the update under way.
    updating: bool = False


def _apply(session: Session, loop: _Loop, staleness: int) -> None:
    """The oldest gradient was taken out of the queue, to be applied."""
    learner, work = loop.queued.popleft()
    session.record.applied(learner, staleness=staleness, steps=work.data.learn(work.indices))
    _finish(session, loop, work.data)


def _drop(session: Session, loop: _Loop) -> None:
    """The oldest gradient was taken out of the queue, and is too stale."""
    learner, work = loop.queued.popleft()
    session.record.dropped(learner)
    work.data.left -= 1
    _finish(session, loop, work.data)


def _finish(session: Session, loop: _Loop, data: LearnerBatch) -> None:
    """If none of a batch's gradients is left, what none of those that were applied has seen is thrown away."""
    if data.left:
        return
    if unseen := int(data.unseen.sum()):
        session.record.discarded(unseen)
    loop.finished.append(data)


def _learned(session: Session, loop: _Loop) -> None:
    """Finished batches have been learned from."""
    for data in loop.finished:
        session.learned_from(data)
    loop.finished = []


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
    waits_for = getattr(aggregator, "learners", 0)
    if waits_for > learners:
        raise ValueError(
            f"learners={learners}: the aggregator waits for the slowest of its {waits_for} learners, and those that "
            f"are missing push nothing: make it for learners={learners}"
        )


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
