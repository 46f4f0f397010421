"""The protocol of schedulers, which decide how many actors sample in the next round, and the states they observe."""

import math
from collections.abc import Sequence
from numbers import Real
from typing import Any, NamedTuple, Protocol, runtime_checkable

import jax
import numpy as np


class State(NamedTuple):
    """The state of a run before round `k`, exactly MinionsRL's `s_k`.

    Before the first round every field is 0 except `round` and `budget`.

    Source:
      MinionsRL (AAAI 2024), section "DRL-based Actor Scheduler": (k, L, R, D_KL, P^l, P^a, P, b).
    """

    round: float  #: k, from 1.
    loss: float  #: the learner's loss in the last round.
    episode_return: float  #: mean return of the episodes of the last round in which any ended.
    policy_kl: float  #: the divergence of the newest policy from the one before it, in nats.
    learner_seconds: float  #: time that the last round waited for the learner.
    actor_seconds: float  #: time that the last round waited for a fragment, as the mean over its actors.
    round_seconds: float  #: duration of the last round.
    budget: float  #: USD left; infinite without a budget of cost.


@runtime_checkable
class Scheduler(Protocol):
    """Decides how many actors sample in each round: a stateless value, such as a frozen dataclass.

    Example:
      >>> from dataclasses import dataclass
      >>> @dataclass(frozen=True)
      ... class Alternating:
      ...     def decide(self, states, *, most, key):
      ...         return most if len(states) % 2 else 1
      >>> isinstance(Alternating(), Scheduler)
      True
    """

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """Returns the number of actors of the next round.

        Args:
          states: the states before each round so far; the last one is the state before the next round.
          most: number of actors of the workload, `I_max`.
          key: the key of the run, for random decisions: fold in `len(states)`, so that each round draws anew.

        Returns:
          A whole number in [1, most]: a Python number, or a scalar of NumPy or JAX.
        """


class Round(NamedTuple):
    """A completed round, read from the history of a run."""

    actors: int
    loss: float  #: the learner's loss; 0 if it reports none.
    round_return: float | None  #: mean return of the episodes that ended in the round; None if none did.
    policy_kl: float  #: the divergence of the newest policy from the one before it, in nats; 0 if unknown.
    learner_seconds: float  #: time that the round waited for the learner.
    actor_seconds: float  #: time that the round waited for a fragment, as the mean over its actors.
    seconds: float  #: time since the start of the run.
    episodes: int  #: episodes ended since the start of the run.
    episode_return: float  #: mean return of the last episodes.
    cost: float  #: cost since the start of the run, in USD; 0 without prices.
    evaluation_return: float | None = None  #: mean return of the round's evaluation; None without one.


def states_of(rounds: Sequence[Round], *, budget: float) -> list[State]:
    """Returns the states before each round of a run so far, and before the next one.

    Args:
      rounds: the completed rounds.
      budget: the budget of the whole run, in USD; infinite without a limit.

    Example:
      >>> first = Round(actors=4, loss=0.5, round_return=20.0, policy_kl=0.01, learner_seconds=0.5, actor_seconds=1.25,
      ...               seconds=2.0, episodes=9, episode_return=18.0, cost=0.25)
      >>> states_of([first], budget=1.0)[1]._asdict()
      {'round': 2, 'loss': 0.5, 'episode_return': 20.0, 'policy_kl': 0.01, 'learner_seconds': 0.5, 'actor_seconds': \
1.25, 'round_seconds': 2.0, 'budget': 0.75}
    """
    states = [State(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, budget)]
    began = 0.0
    for one in rounds:
        before = states[-1]
        states.append(
            State(
                round=before.round + 1,
                loss=one.loss,
                # If no episode ended in the round, the last known return is kept.
                episode_return=before.episode_return if one.round_return is None else one.round_return,
                policy_kl=one.policy_kl,
                learner_seconds=one.learner_seconds,
                actor_seconds=one.actor_seconds,
                round_seconds=one.seconds - began,
                budget=budget - one.cost,
            )
        )
        began = one.seconds
    return states


def decide_actors(scheduler: Scheduler, states: Sequence[State], *, most: int, key: jax.Array) -> int:
    """Returns a scheduler's decision as an int.

    Raises:
      ValueError: if the decision is not a whole number in [1, most]; the message names the scheduler, the number and
        the round.

    Example:
      >>> from stellaris.scheduling import Fixed
      >>> decide_actors(Fixed(40), [State(7, *[0.0] * 7)], most=32, key=jax.random.key(0))
      Traceback (most recent call last):
        ...
      ValueError: Fixed(actors=40) decided for 40 actors in round 7: expected a whole number from 1 to 32
    """
    actors: Any = scheduler.decide(states, most=most, key=key)
    scalar = isinstance(actors, jax.Array | np.ndarray | np.generic) and np.ndim(actors) == 0
    number = actors.item() if scalar else actors
    whole = isinstance(number, Real) and not isinstance(number, bool) and math.isfinite(number) and number % 1 == 0
    if not whole or not 1 <= number <= most:
        raise ValueError(
            f"{scheduler!r} decided for {actors!r} actors in round {states[-1].round}: expected a whole number from 1 "
            f"to {most}"
        )
    return int(number)


def check_scheduler(scheduler: object) -> None:
    """Raises a TypeError unless this is a scheduler."""
    if not isinstance(scheduler, Scheduler) or isinstance(scheduler, type):
        raise TypeError(
            f"scheduler={scheduler!r} is not a scheduler: pass one of stellaris.scheduling, such as Maximum()"
        )
