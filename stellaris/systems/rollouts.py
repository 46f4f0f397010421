"""Keeps a run's fragments from the start of sampling until they are discarded or taken for a batch."""

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stellaris.acting.rollout import Fragment, join
from stellaris.runtime.state.registry import register_value
from stellaris.systems.staleness_control import Age, StalenessControl


class Lags(NamedTuple):
    """The age of a fragment when its batch is made, in versions."""

    in_flight: int  #: the age of the fragment's oldest step at delivery.
    in_queue: int  #: versions published since delivery.
    oldest: int  #: the age of the fragment's oldest step when the batch is made: `in_flight + in_queue`.
    mean: float  #: the mean age of the fragment's steps.
    span: int  #: the difference between the versions of the newest and the oldest step.


@register_value
@dataclass(frozen=True, eq=False)
class Waiting:
    """A fragment that waits for its batch."""

    fragment: Fragment
    delivered: int  #: the newest version when the fragment was delivered.
    number: int  #: number of the delivery, from 0.

    @property
    def transitions(self) -> int:
        """The number of the fragment's steps, without steps that only reset the environment."""
        return self.fragment.steps - self.fragment.resets

    @functools.cached_property  # cached, because it is read at every event
    def age(self) -> Age:
        """The age of the fragment, by which waiting fragments are ordered and discarded."""
        return Age(int(np.min(self.fragment.trajectory.version)), self.number)

    def lags(self, version: int) -> Lags:
        """Returns the age of the fragment and of its steps under the newest version."""
        versions = self.fragment.trajectory.version
        oldest = self.age.oldest
        return Lags(
            in_flight=self.delivered - oldest,
            in_queue=version - self.delivered,
            oldest=version - oldest,
            mean=version - float(np.mean(versions)),
            span=int(np.max(versions)) - oldest,
        )


class Lost(NamedTuple):
    """The data that was lost with an actor's environment."""

    steps: int  #: transitions of the actor's unfinished fragment.
    episode: int  #: length so far of the actor's unfinished episode.


@register_value
@dataclass
class Rollouts:
    """The state of a run's fragments between two events, which checkpoints save.

    Args:
      parked: actors that do not run, in the order in which they start again.
      batch: the number of fragments in the next batch.
    """

    parked: list[int]
    batch: int
    accepted: int = 0  #: number of fragments that were delivered and not discarded.
    running: int = 0  #: number of actors that have begun a fragment and not finished it.
    learned: int = 0  #: number of batches that were learned from.
    begun: int = 0  #: number of invocations of actors; the noise of each follows from its number.
    delivered: int = 0  #: number of fragments that were delivered.
    pieces: dict[int, list[Fragment]] = field(
        default_factory=dict
    )  #: pieces of fragments that are not whole, by actor.
    lost: dict[int, int] = field(default_factory=dict)  #: number of times in a row that pieces were lost, by actor.
    #: by slot: the environment that was stepped last, and the length so far of its episode under way.
    unfinished: dict[int, tuple[int, int]] = field(default_factory=dict)
    waiting: list[Waiting] = field(default_factory=list)  #: waiting fragments, in order of delivery.

    def take_actor(self, control: StalenessControl) -> int | None:
        """Returns an actor that starts a fragment now; None if no actor is parked or the control admits none."""
        if not self.parked:
            return None
        if not control.admits(accepted=self.accepted, running=self.running, learned=self.learned, batch=self.batch):
            return None
        self.running += 1
        return self.parked.pop(0)

    def begin_round(self, actors: int) -> None:
        """Begins a round, in which the first `actors` actors sample a batch.

        At this time no actor may be running, and no fragment waiting.
        """
        self.batch = actors
        # The control compares `accepted` with `learned * batch`, so `accepted` is reset for the new batch size.
        self.accepted = self.learned * actors
        # Actors are sorted, so that rounds of few actors always use the same ones, whose containers have environments.
        self.parked.sort()

    def add(self, actor: int, piece: Fragment, length: int, version: int) -> Lost:
        """Adds a fragment or a piece of it; the actor is parked when the fragment is whole.

        Args:
          actor: the actor that delivers.
          piece: the piece of the actor's fragment, or the whole fragment.
          length: number of steps of a whole fragment.
          version: the newest version.

        Returns:
          The data that was lost if the actor's environment was replaced since its last piece; zeros otherwise.
        """
        lost_steps = 0
        pieces = self.pieces.pop(actor, [])
        if pieces and (piece.slot, piece.environment, piece.first) != pieces[-1].follows:
            # The piece comes from another environment, or the message with the steps before it was lost. It does not
            # continue the earlier pieces, which are lost.
            lost_steps = sum(lost.steps - lost.resets for lost in pieces)
            self.lost[actor] = self.lost.get(actor, 0) + 1
            pieces = []
        cut = self.cut_short(piece.slot, piece.environment, piece.first, piece.unfinished)
        pieces.append(piece)
        if sum(part.steps for part in pieces) < length:
            self.pieces[actor] = pieces
        else:
            # A whole fragment resets the count of losses: a run fails only if one actor loses too many in a row.
            self.lost.pop(actor, None)
            self.waiting.append(Waiting(join(pieces), version, self.delivered))
            self.delivered += 1
            self.accepted += 1
            self.running -= 1
            self.parked.append(actor)  # parked last, so that actors take turns if the control admits few
        return Lost(lost_steps, cut)

    def cut_short(self, slot: int, environment: int, first: int, unfinished: int) -> int:
        """Returns the length of the slot's episode that was lost, and notes the length of the one under way.

        Args:
          slot: the slot of the environment that was stepped.
          environment: identifies the start of the environment.
          first: the number of the first of these steps, counted from the environment's start.
          unfinished: steps so far of the episode under way.
        """
        before, length = self.unfinished.get(slot, (environment, 0))
        self.unfinished[slot] = environment, unfinished
        # A new environment's first steps may be missing, because their message was lost. With `Workload.restart` all
        # environments have the same number, but every fragment has the first step of one.
        return length if first == 0 or environment != before else 0

    def discard(self, control: StalenessControl, version: int) -> list[Waiting]:
        """Removes and returns the fragments that the control does not keep."""
        kept = {*control.kept([waiting.age for waiting in self.waiting], version)}
        gone = [waiting for i, waiting in enumerate(self.waiting) if i not in kept]
        self.waiting = [waiting for i, waiting in enumerate(self.waiting) if i in kept]
        return gone

    def take(self) -> list[Waiting] | None:
        """Removes and returns the oldest fragments, as many as a batch has; None if fewer are waiting."""
        if len(self.waiting) < self.batch:
            return None
        oldest_first = sorted(self.waiting, key=lambda waiting: waiting.age)
        taken = oldest_first[: self.batch]
        numbers = {waiting.number for waiting in taken}
        self.waiting = [waiting for waiting in self.waiting if waiting.number not in numbers]
        return taken

    @property
    def unlearned(self) -> int:
        """The number of transitions that were delivered and are not in a batch yet."""
        pieces = [piece for pieces in self.pieces.values() for piece in pieces]
        return sum(waiting.transitions for waiting in self.waiting) + sum(p.steps - p.resets for p in pieces)
