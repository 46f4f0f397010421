"""Schedulers that follow a rule: variants of MinionsRL, and the schedules with which its paper motivates it."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from stellaris._core import checks
from stellaris.scheduling.scheduler import State


@dataclass(frozen=True)
class Fixed:
    """Decides for the same number of actors in every round.

    Args:
      actors: the number of actors.

    Raises:
      ValueError: if `actors` is below 1.
    """

    actors: int

    def __post_init__(self) -> None:
        checks.whole(at_least=1, actors=self.actors)

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """Returns `actors`."""
        del states, most, key
        return self.actors


@dataclass(frozen=True)
class Maximum:
    """Decides for all of the workload's actors in every round.

    Source:
      MinionsRL (AAAI 2024), the variant MinionsRL-Max.
    """

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """Returns `most`."""
        del states, key
        return most


@dataclass(frozen=True)
class Stepped:
    """A number of actors that changes in steps: `first + change * floor((k - 1) / every)`, clipped to [1, I_max].

    Here `k` is the number of the round, from 1, and `I_max` the workload's number of actors.

    Args:
      first: actors in the first rounds.
      change: actors added at each step; negative for fewer.
      every: rounds from one step to the next.

    Raises:
      ValueError: if `first` or `every` is below 1.

    Source:
      MinionsRL (AAAI 2024), the motivation's "Increase" (`change=10`) and "Decrease" (`change=-10`), `every=10`.

    Example:
      >>> decrease = Stepped(first=30, change=-10, every=10)
      >>> [decrease.decide([State(k, *[0.0] * 7)], most=32, key=None) for k in (1, 10, 11, 21, 31)]
      [30, 30, 20, 10, 1]
    """

    first: int
    change: int
    every: int = 10

    def __post_init__(self) -> None:
        checks.whole(at_least=1, first=self.first, every=self.every)
        checks.whole(at_least=-(2**31), change=self.change)

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """Returns the number of actors, which depends only on the number of the round."""
        del key
        steps = (int(states[-1].round) - 1) // self.every
        return int(np.clip(self.first + self.change * steps, 1, most))


@dataclass(frozen=True)
class Adapt:
    """Decides for actors in proportion to return: `clip(1, J_k / J * I_max, I_max)`, with the mean recent return `J_k`.

    `I_max` is the workload's number of actors. The number is rounded down. The first round has one actor, because no
    return is known yet.

    Args:
      target: the return `J` to reach, above 0.
      window: the number of last rounds over which `J_k` is the mean return.

    Raises:
      ValueError: if `target` is not positive, or `window` below 1.

    Source:
      MinionsRL (AAAI 2024), the variant MinionsRL-Adapt, with a window of five rounds. The paper's formula has a
      sum, and its text a mean; this class uses the mean.

    Example:
      >>> states = [State(k, 0.0, 10.0 * k, *[0.0] * 5) for k in range(1, 5)]
      >>> Adapt(target=100.0).decide(states, most=32, key=None)  # 32 * mean(20, 30, 40) / 100
      9
    """

    target: float
    window: int = 5

    def __post_init__(self) -> None:
        checks.positive(target=self.target)
        checks.whole(at_least=1, window=self.window)

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """Returns the number of actors, in proportion to the mean return of the last rounds."""
        del key
        returns = [state.episode_return for state in states[1:]][-self.window :]
        mean = float(np.mean(returns)) if returns else 0.0
        # The division comes last: 29 / 100 * 100 is below 29.
        return int(np.clip(mean * most / self.target, 1, most))
