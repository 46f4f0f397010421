"""Rounds of a run: the system declares their ends, or a scheduler decides how many actors each round has."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, TypeAlias

import jax

from stellaris.scheduling.scheduler import Round, Scheduler, decide_actors, states_of
from stellaris.systems.record import Record


@dataclass(frozen=True)
class Declared:
    """Rounds that end when the system calls `Session.round_over()`."""

    #: Always False, so that the budget is checked before every event: a round may end at any event.
    under_way: ClassVar[bool] = False

    def width(self, fragments: int, actors: int) -> None:
        """Returns None: all batches have the same number of fragments, so none is padded."""

    def delivered(self, record: Record) -> None:
        """Records nothing: only schedulers need the time that a round has waited for a fragment."""

    def batched(self, record: Record) -> None:
        """Records nothing: only schedulers need the time that a round has waited for its learner."""

    def learned(self, record: Record) -> int:
        """Returns 0: learning from a batch ends no round."""
        del record
        return 0

    def declared(self) -> int:
        """Returns 1: the declared round is over."""
        return 1


@dataclass
class Scheduled:
    """Rounds whose number of actors a scheduler decides; a round ends when its batch has been learned from.

    Args:
      scheduler: the scheduler, which decides from the rounds so far.
    """

    scheduler: Scheduler
    # These two fields are not in a checkpoint, because runs are saved between two rounds, and `begin` sets both.
    under_way: bool = field(default=False, init=False)  #: whether a round is under way; the budget is then not checked.
    _since: float = field(default=0.0, init=False)  #: the time at which the round began, and later that of its batch.

    def begin(self, before: Sequence[Round], *, budget: float, most: int, key: jax.Array, record: Record) -> int:
        """Begins a round; returns its number of actors.

        Args:
          before: the rounds so far.
          budget: USD for the whole run; infinite without a limit.
          most: number of actors of the workload, the maximum of a round.
          key: random key of the run's decisions.
          record: the record, which notes the decision.

        Returns:
          The number of actors that sample in this round.

        Raises:
          ValueError: if the scheduler's decision is not a whole number in [1, most].
        """
        actors = decide_actors(self.scheduler, states_of(before, budget=budget), most=most, key=key)
        record.scheduled(actors)
        self.under_way = True
        self._since = record.platform.now
        return actors

    def width(self, fragments: int, actors: int) -> int:
        """Returns the width of a batch's arrays: `actors`, a quarter or a sixteenth of `actors`, and so on.

        Every new shape is compiled, so batches of different numbers of fragments share few widths. The width is the
        smallest of these that holds the fragments.

        Example:
          >>> from stellaris.scheduling import Maximum
          >>> [Scheduled(Maximum()).width(fragments, actors=32) for fragments in (1, 2, 3, 8, 9, 32)]
          [2, 2, 8, 8, 32, 32]
        """
        width = actors
        while width // 4 >= fragments:
            width //= 4
        return width

    def delivered(self, record: Record) -> None:
        """Records the time that the round has waited for a fragment."""
        record.took("actor", record.platform.now - self._since)

    def batched(self, record: Record) -> None:
        """Notes the time of the batch: from now on, the round waits for its learner."""
        self._since = record.platform.now

    def learned(self, record: Record) -> int:
        """Ends the round: records the time that it has waited for its learner, and returns 1."""
        record.took("learner", record.platform.now - self._since)
        self.under_way = False
        return 1

    def declared(self) -> int:
        """Returns 0: a scheduled round ends when its batch has been learned from, not when the system declares it."""
        return 0


Rounds: TypeAlias = Declared | Scheduled
