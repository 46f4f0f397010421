"""IMPACT: asynchronous actors, and a learner that replays batches from a circular buffer, with a target policy."""

import itertools
from dataclasses import dataclass, field
from typing import ClassVar

from stellaris._core import checks
from stellaris.acting.policies import PolicyVersion
from stellaris.algorithms import IMPACT, Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.runtime.functions import Invocation
from stellaris.runtime.state.registry import register_value
from stellaris.systems import programs
from stellaris.systems.batches import LearnerBatch
from stellaris.systems.central_learner import take_learned
from stellaris.systems.record import POLICY
from stellaris.systems.rollouts import Waiting
from stellaris.systems.session import Session
from stellaris.systems.staleness_control import StalenessControl, check_control
from stellaris.systems.system import System
from stellaris.types import Tree


@dataclass(frozen=True)
class CircularReplay(System):
    """Asynchronous actors and one central learner that learns from each batch several times, with a target policy.

    Batches wait in a circular buffer. In one turn, the learner learns from one batch, for all of the algorithm's
    epochs. The next turn goes to a batch with the fewest turns so far. A batch leaves the buffer after `passes` turns,
    or earlier if the buffer is full when a newer batch arrives. Batches are prepared with the target policy, which is
    replaced by the newest policy every `target_period` turns.

    The platform must deploy `actor` and `learner`.

    Args:
      algorithm: the algorithm, whose loss, minibatches and epochs (of one turn) are used.
      buffer: the capacity of the buffer, in batches.
      passes: the most turns of a batch.
      target_period: number of turns between two updates of the target policy; by default `buffer * passes`.
      control: limits how many batches actors may be ahead of the learner, and how old fragments may be when their batch
        is made. A batch counts as learned from after its first turn.

    Raises:
      TypeError: if the algorithm or the control has the wrong type, or a number is not whole.
      ValueError: if a number is below 1.

    Source:
      Luo et al. 2019, IMPACT, Algorithm 1. The numbers of batches and turns are an assumption.
    """

    functions: ClassVar[tuple[str, ...]] = ("actor", "learner")
    serverless: ClassVar[tuple[str, ...]] = ()

    algorithm: Algorithm = IMPACT(epochs=1)
    buffer: int = 2
    passes: int = 5
    target_period: int | None = None
    control: StalenessControl = StalenessControl(pace=1)

    def __post_init__(self) -> None:
        check_algorithm(self.algorithm)
        checks.whole(at_least=1, buffer=self.buffer, passes=self.passes)
        if self.target_period is not None:
            checks.whole(at_least=1, target_period=self.target_period)
        check_control(self.control)

    def run(self, session: Session) -> None:
        """Runs the event loop."""
        platform = session.platform
        fragments = session.fragments(self.control)
        newest = platform.store.latest(POLICY)
        learn = session.program("learn", programs.whole_batch(self.algorithm, session.policy))
        period = self.target_period or self.buffer * self.passes

        def first() -> _Loop:
            session.publish(session.first_params)
            return _Loop(
                params=session.first_params,
                opt_state=self.algorithm.optimizer().init(session.first_params),
                target=session.versioned(session.first_params),
            )

        loop = session.begin(first)
        while True:
            fragments.sample()
            while (taken := fragments.next()) is not None:
                loop.buffer.append(_Batch(taken))
                session.round_over()
                if len(loop.buffer) > self.buffer:
                    # The oldest batch makes room for the newest, perhaps before its last turn. If the learner is
                    # working on it, `loop.learning` still holds it.
                    oldest = loop.buffer.pop(0)
                    if oldest.turns == 0 and oldest is not loop.learning:
                        fragments.discard(oldest.fragments)
            if loop.learning is None and loop.buffer:
                if loop.turns % period == 0:
                    loop.target, loop.target_version = session.versioned(loop.params), session.version
                loop.turns += 1
                loop.learning = min(loop.buffer, key=lambda batch: batch.turns)  # the oldest with fewest turns
                # The batch is prepared anew for each turn, because the target policy may have been updated.
                loop.data = fragments.batch(
                    self.algorithm, loop.learning.fragments, loop.target, target_version=loop.target_version
                )
                if loop.learning.turns:
                    loop.data.mark_seen()  # the batch's transitions were counted in its first turn
                work = len(loop.data.indices)
                learner = platform.invoke("learner", learn, newest, loop.opt_state, loop.data, work=work)
                session.record.learns(learner, loop.data.number)
            # Fragments that were just discarded admit others, and if nothing is pending, no event would start them.
            fragments.sample()
            if (done := session.next_completion(loop)) is None:
                break
            if done.function == "actor":
                fragments.deliver(done)
            else:
                self._learned(session, loop, done)
        # A batch is unlearned until its first turn is over. The batch that the learner is working on is counted by
        # `loop.data`, which is marked as seen if an earlier turn has learned from it.
        unlearned = [batch.fragments for batch in loop.buffer if batch.turns == 0 and batch is not loop.learning]
        session.unused(batches=[loop.data] if loop.data else [], fragments=[*itertools.chain(*unlearned)])

    def _learned(self, session: Session, loop: "_Loop", done: Invocation) -> None:
        """Takes the learner's result after a turn of a batch."""
        batch, data = loop.learning, loop.data
        assert batch is not None
        assert data is not None
        loop.params, loop.opt_state = take_learned(session, done, data)
        # A batch counts as learned from only once: the normalisation must not count its observations again, nor the
        # control the batch.
        if batch.turns == 0:
            session.learned_from(data)
        batch.turns += 1
        if batch.turns == self.passes and batch in loop.buffer:
            loop.buffer.remove(batch)
        loop.learning = None
        loop.data = None
        session.publish(loop.params)


@register_value
@dataclass(eq=False)
class _Batch:
    """A batch in the buffer."""

    fragments: list[Waiting]
    turns: int = 0  #: number of turns so far.


@register_value
@dataclass
class _Loop:
    """The state of the event loop between two events."""

    params: Tree
    opt_state: Tree
    target: PolicyVersion
    target_version: int = 0
    turns: int = 0  #: number of turns of all batches so far, including the turn under way.
    buffer: list[_Batch] = field(default_factory=list)  #: the batches in the buffer, in order of arrival.
    learning: _Batch | None = None  #: the batch that the learner works on.
    data: LearnerBatch | None = None  #: the same batch, prepared with the target policy.
