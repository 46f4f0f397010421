"""Invokes a run's actors, keeps the fragments of trajectories that they deliver, and makes batches of them."""

import functools
from collections.abc import Sequence
from typing import TYPE_CHECKING

import jax
import numpy as np

from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.algorithms import Algorithm
from stellaris.runtime.functions import Function, Invocation
from stellaris.systems import programs
from stellaris.systems.batches import LearnerBatch, batch_of
from stellaris.systems.record import POLICY
from stellaris.systems.rollouts import Rollouts, Waiting
from stellaris.systems.staleness_control import StalenessControl
from stellaris.systems.workload import Workload
from stellaris.types import NDArray, Tree

if TYPE_CHECKING:
    from stellaris.systems.session import Session

#: The run fails if an actor's environment is lost this many times in a row while the actor's fragment is incomplete.
#: `Workload.refresh` splits fragments into pieces; with the environment, the pieces delivered so far are lost.
_LOSSES = 100


class Fragments:
    """Has actors sample fragments, keeps the fragments until they are in a batch, and makes the batches.

    Systems get it from `Session.fragments`.

    Args:
      session: the session of the run.
      control: limits how many batches actors may be ahead of the learner, and how old a fragment may be when its batch
        is made.
      batch: the number of fragments in a batch; None for one per actor. A scheduler overrides it.
      act: the actor program, `(Versioned, number) -> Fragment`, where the number selects the noise of the actions; by
        default `Session.actor_program()`. If the program returns another value, pass the fragment to `deliver`.

    Raises:
      ValueError: if the control's window is smaller than a batch; or if `refresh` splits fragments into pieces, so that
        each actor needs its own container, and there may be fewer containers than actors.
    """

    def __init__(
        self, session: "Session", control: StalenessControl, *, batch: int | None = None, act: Function | None = None
    ) -> None:
        self.control = control
        self._session = session
        if batch is not None:
            self._rollouts.batch = batch
        if control.window < self.batch_size:
            raise ValueError(
                f"window={control.window} is below the {self.batch_size} fragments of a batch: no batch could ever be "
                f"made, so raise the window to at least {self.batch_size}"
            )
        workload, act = session.workload, act or session.actor_program()
        if workload.steps_at_once == workload.fragment:
            self._programs = [session.program("act", act)]
        else:
            # Each actor has a separate program, because a container serves only the program that initialised it: every
            # piece of a fragment then continues in the environment of the piece before.
            self._programs = [session.program(f"act {i}", programs.for_one_actor(act)) for i in range(workload.actors)]
            check_containers(session)

    @property
    def _rollouts(self) -> Rollouts:
        return self._session.state.rollouts  # read from the session, because a resumed run replaces it

    @property
    def batch_size(self) -> int:
        """The number of fragments of the next batch. Under a scheduler it changes from round to round."""
        return self._rollouts.batch

    def sample(self) -> None:
        """Invokes actors on the newest version, as many as the control admits."""
        while (actor := self.start_actor()) is not None:
            self._invoke(actor)

    def start_actor(self) -> int | None:
        """Counts one more actor as running, for systems that invoke actors themselves.

        Returns:
          The number of the actor, from 0; None if all actors are running or the control admits no more.
        """
        return None if self._session.repeats else self._rollouts.take_actor(self.control)

    def deliver(self, done: Invocation, fragment: Fragment | None = None) -> None:
        """Handles a delivered fragment or a piece of one; invokes the actor again if its fragment is not whole yet.

        Args:
          done: the actor's invocation, whose tag is the number of the actor.
          fragment: the fragment, if it is not the invocation's result.

        Raises:
          RuntimeError: if an actor's environment was lost a hundred times in a row before its fragment was whole.
        """
        session, rollouts = self._session, self._rollouts
        piece = done.result() if fragment is None else fragment
        # Steps are counted before losses are detected, because the budget and the history count all sampled steps, even
        # lost ones.
        session.state.steps += piece.steps
        session.record.sampled(done, piece)
        lost = rollouts.add(done.tag, piece, session.workload.fragment, session.version)
        session.record.lost(done, steps=lost.steps, episode=lost.episode)
        if rollouts.lost.get(done.tag, 0) == _LOSSES:
            raise RuntimeError(lives_too_short(done.tag, _LOSSES, session.workload))
        if session.on_fragment is not None:
            session.on_fragment(piece)
        if done.tag in rollouts.pieces:
            self._invoke(done.tag)
        else:
            session.record.fragment(done, session.workload.fragment // session.workload.steps_at_once)
            session.rounds.delivered(session.record)

    def next_batch(self, algorithm: Algorithm, params: Tree) -> LearnerBatch | None:
        """Returns the batch of the oldest waiting fragments; None if too few wait.

        Args:
          algorithm: the algorithm, which prepares the batch.
          params: the newest parameters, for algorithms that need a policy other than the behaviour policy.
        """
        fragments = self.next()
        return None if fragments is None else self.batch(algorithm, fragments, self._session.versioned(params))

    def next(self) -> list[Waiting] | None:
        """Returns the oldest waiting fragments, as many as a batch has; None if too few wait.

        Fragments that the control no longer keeps are discarded first.
        """
        session = self._session
        if session.repeats:
            return None
        self.discard(self._rollouts.discard(self.control, session.version))
        taken = self._rollouts.take()
        if taken is not None:
            session.record.trained(taken, session.version)
        return taken

    def batch(
        self,
        algorithm: Algorithm,
        fragments: Sequence[Waiting],
        target: PolicyVersion,
        *,
        target_version: int | None = None,
    ) -> LearnerBatch:
        """Makes a batch of fragments, shuffled by a new key.

        Args:
          algorithm: the algorithm, which prepares the batch.
          fragments: fragments that `next` returned.
          target: a policy version, for algorithms that need a policy other than the behaviour policy.
          target_version: number of the target version, for the record; by default the newest version.
        """
        session = self._session
        session.state.batches += 1
        session.record.batch(fragments, session.version if target_version is None else target_version)
        session.rounds.batched(session.record)
        return batch_of(
            [waiting.fragment for waiting in fragments],
            number=session.state.batches,
            width=session.rounds.width(len(fragments), session.workload.actors),
            algorithm=algorithm,
            policy=session.policy,
            target=target,
            key=jax.random.fold_in(session.keys.batches, session.state.batches),
        )

    def discard(self, fragments: Sequence[Waiting]) -> None:
        """Discards fragments that will not be learned from; the control then admits as many new fragments."""
        self._rollouts.accepted -= len(fragments)
        for waiting in fragments:
            self._session.record.discarded(waiting.transitions)

    def noise(self) -> NDArray:
        """Returns the action noise `[T, ...]` of the next fragment, which equals the noise that an actor would draw."""
        session = self._session
        key = jax.random.fold_in(session.keys.noise, self._next_number())
        return np.asarray(_noise(session.policy, session.workload.fragment, key))

    def _invoke(self, actor: int) -> None:
        """Invokes an actor, which samples a fragment or a piece of it."""
        session = self._session
        # The list has one program for all actors, or one for each actor.
        act = self._programs[actor % len(self._programs)]
        newest, number = session.platform.store.latest(POLICY), self._next_number()
        session.platform.invoke(session.acts, act, newest, number, work=session.workload.steps_at_once, tag=actor)

    def _next_number(self) -> int:
        """Returns the number of the next invocation, from which the noise of its actions follows."""
        # A retry keeps its arguments, and with them this number, so it samples with the same noise.
        self._rollouts.begun += 1
        return self._rollouts.begun - 1


def check_containers(session: "Session") -> None:
    """Checks that each actor can have a container.

    Raises:
      ValueError: if there may be fewer containers than actors: actors would evict each other's environments.
    """
    most, actors = session.platform.functions[session.acts].max_concurrency, session.workload.actors
    if most is not None and most < actors:
        raise ValueError(
            f"max_concurrency={most} of {session.acts!r} is below actors={actors}: each actor needs a container "
            f"for its environment, so raise max_concurrency to at least {actors}"
        )


def lives_too_short(actor: int, times: int, workload: Workload) -> str:
    """Returns the error message for an actor that loses its environment too often to finish a fragment."""
    return (
        f"actor {actor} has lost its environment {times} times before fragment={workload.fragment} steps were sampled: "
        "its containers do not live long enough, so raise keep_alive or lower the rate of faults"
    )


@functools.partial(jax.jit, static_argnums=(0, 1))
def _noise(policy: Policy, length: int, key: jax.Array) -> jax.Array:
    return policy.noise(key, length)
