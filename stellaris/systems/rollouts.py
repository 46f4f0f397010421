"""Fragments on their way from actors to learners: sampled, put together, waiting, thrown away, learned from."""

import functools
from dataclasses import dataclass, field
from typing import NamedTuple

import numpy as np

from stellaris.acting.rollout import Fragment, join
from stellaris.runtime.state.registry import register_value
from stellaris.systems.staleness_control import Age, StalenessControl


class Lags(NamedTuple):
    """How old a fragment is when it is learned from, in versions."""

    in_flight: int  #: of its oldest step, when it was delivered.
    in_queue: int  #: published since then.
    oldest: int  #: of its oldest step: the sum of both.
    mean: float  #: over its steps.
    span: int  #: from its oldest step's version to its newest's.


@register_value
@dataclass(frozen=True, eq=False)
class Waiting:
    """A fragment that waits to be learned from."""

    fragment: Fragment
    delivered: int  #: the newest version when it was delivered.
    number: int  #: in order of delivery.

    @property
    def transitions(self) -> int:
        """Its steps, but those that only reset the environment."""
        return self.fragment.steps - self.fragment.resets

    @functools.cached_property  # asked for at every event
    def age(self) -> Age:
        """What decides when it is learned from."""
        return Age(int(np.min(self.fragment.trajectory.version)), self.number)

    def lags(self, version: int) -> Lags:
        """How old it is under the newest version."""
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
    """What was lost with an actor's environment, which had to be started anew."""

    steps: int  #: transitions of a fragment that was not yet whole.
    episode: int  #: length so far of the episode that nobody will see the end of.


@register_value
@dataclass
class Rollouts:
    """Where a run's fragments stand between two events: what a checkpoint saves of them.

    Args:
      parked: actors that do not run, in the order in which they start again.
      batch: fragments that a batch has.
    """

    parked: list[int]
    batch: int
    accepted: int = 0  #: fragments that were delivered and not thrown away.
    running: int = 0  #: actors that have begun a fragment.
    learned: int = 0  #: batches that were learned from.
    begun: int = 0  #: invocations of actors, each with noise of its own number.
    delivered: int = 0  #: fragments.
    pieces: dict[int, list[Fragment]] = field(default_factory=dict)  #: of fragments that are not whole, by actor.
    lost: dict[int, int] = field(default_factory=dict)  #: how often pieces of its fragment were lost, by actor.
    unfinished: dict[int, int] = field(default_factory=dict)  #: length so far of the episode under way, by slot.
    waiting: list[Waiting] = field(default_factory=list)  #: in order of delivery.

    def take_actor(self, control: StalenessControl) -> int | None:
        """An actor that may begin a fragment now; None if none is parked, or the control admits none."""
        if not self.parked:
            return None
        if not control.admits(accepted=self.accepted, running=self.running, learned=self.learned, batch=self.batch):
            return None
        self.running += 1
        return self.parked.pop(0)

    def begin_round(self, actors: int) -> None:
        """The next batch is to be of so many fragments, of the first actors; none runs, and nothing waits."""
        self.batch = actors
        self.accepted = self.learned * actors  # as a control counts, that admits so many for each batch
        self.parked.sort()

    def add(self, actor: int, piece: Fragment, length: int, version: int) -> Lost:
        """An actor delivers a fragment, or a piece of one; it is parked once its fragment is whole.

        Args:
          actor: which.
          piece: of its fragment.
          length: steps of a whole fragment.
          version: the newest.

        Returns:
          What was lost, if the actor's environment was lost since its last piece.
        """
        lost_steps = 0
        pieces = self.pieces.pop(actor, [])
        if pieces and (piece.slot, piece.environment, piece.first) != pieces[-1].follows:
            lost_steps = sum(lost.steps - lost.resets for lost in pieces)
            self.lost[actor] = self.lost.get(actor, 0) + 1
            pieces = []
        cut = self.unfinished.get(piece.slot, 0) if piece.first == 0 else 0
        self.unfinished[piece.slot] = piece.unfinished
        pieces.append(piece)
        if sum(part.steps for part in pieces) < length:
            self.pieces[actor] = pieces
        else:
            self.lost.pop(actor, None)
            self.waiting.append(Waiting(join(pieces), version, self.delivered))
            self.delivered += 1
            self.accepted += 1
            self.running -= 1
            self.parked.append(actor)
        return Lost(lost_steps, cut)

    def discard(self, control: StalenessControl, version: int) -> list[Waiting]:
        """Takes out what the control does not keep."""
        kept = {*control.kept([waiting.age for waiting in self.waiting], version)}
        gone = [waiting for i, waiting in enumerate(self.waiting) if i not in kept]
        self.waiting = [waiting for i, waiting in enumerate(self.waiting) if i in kept]
        return gone

    def take(self) -> list[Waiting] | None:
        """The oldest fragments, a batch of them, to be learned from; None if there are fewer."""
        if len(self.waiting) < self.batch:
            return None
        oldest_first = sorted(self.waiting, key=lambda waiting: waiting.age)
        taken = oldest_first[: self.batch]
        numbers = {waiting.number for waiting in taken}
        self.waiting = [waiting for waiting in self.waiting if waiting.number not in numbers]
        return taken

    @property
    def unlearned(self) -> int:
        """Transitions that were delivered, and are in no batch yet."""
        pieces = [piece for pieces in self.pieces.values() for piece in pieces]
        return sum(waiting.transitions for waiting in self.waiting) + sum(p.steps - p.resets for p in pieces)
