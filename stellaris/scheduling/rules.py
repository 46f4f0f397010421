"""Schedulers that follow a rule: MinionsRL's variants, and those of its motivation."""

from collections.abc import Sequence
from dataclasses import dataclass

import jax
import numpy as np

from stellaris._core import checks
from stellaris.scheduling.scheduler import State


@dataclass(frozen=True)
class Fixed:
    """The same number of actors in every round.

    Args:
      actors: how many.

    Raises:
      ValueError: if that is below 1.
    """

    actors: int

    def __post_init__(self) -> None:
        checks.whole(at_least=1, actors=self.actors)

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """The number."""
        del states, most, key
        return self.actors


@dataclass(frozen=True)
class Maximum:
    """All actors in every round.

    Source:
      MinionsRL (AAAI 2024), the variant MinionsRL-Max.
    """

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """All of them."""
        del states, key
        return most


@dataclass(frozen=True)
class Stepped:
    """More actors, or fewer, every so many rounds: `first + change * floor((k - 1) / every)`, clipped to [1, I_max].

    Args:
      first: how many in the first rounds.
      change: by how many more; negative for fewer.
      every: rounds with the same number.

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
        """By the number of the round alone."""
        del key
        steps = (int(states[-1].round) - 1) // self.every
        return int(np.clip(self.first + self.change * steps, 1, most))


@dataclass(frozen=True)
class Adapt:
    """In proportion to the return so far: `clip(1, J_k / J * I_max, I_max)`, where `J_k` is the last rounds' mean.

    In the first round, of which nothing is known, it is 1. Fractions of an actor are left out.

    Args:
      target: the return `J` that the run is to reach, above 0.
      window: rounds that the mean is taken over.

    Raises:
      ValueError: if `target` is not positive, or `window` below 1.

    Source:
      MinionsRL (AAAI 2024), the variant MinionsRL-Adapt, whose window has five rounds. The formula there is a sum, and
      the text a mean.

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
        """By the returns of the last rounds."""
        del key
        returns = [state.episode_return for state in states[1:]][-self.window :]
        share = float(np.mean(returns)) / self.target if returns else 0.0
        return int(np.clip(share * most, 1, most))
