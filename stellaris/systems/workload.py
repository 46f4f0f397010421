"""What is to be learned, and until when."""

import math
from dataclasses import dataclass
from numbers import Real

from stellaris import checks


@dataclass(frozen=True)
class Workload:
    """An environment, the network that learns it, and how it is sampled.

    Args:
      environment: a name that `envs.make` knows.
      actors: actor functions, each with one environment.
      fragment: steps that an actor samples before it delivers.
      hidden: widths of the network's hidden layers.

    Raises:
      TypeError: if the environment is not a name, a number is not whole, or `hidden` is not a tuple.
      ValueError: if a number is below 1.
    """

    environment: str
    actors: int = 16
    fragment: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        if not isinstance(self.environment, str):
            raise TypeError(
                f"environment={self.environment!r} is not a name: register it with gymnasium.register, and name it"
            )
        checks.whole(at_least=1, actors=self.actors, fragment=self.fragment)
        if not isinstance(self.hidden, tuple):
            raise TypeError(f"hidden={self.hidden!r} is not a tuple of widths, such as (256, 256)")
        checks.whole(at_least=1, **{f"hidden[{i}]": width for i, width in enumerate(self.hidden)})


@dataclass(frozen=True)
class Budget:
    """When a run stops: whichever comes first.

    Args:
      steps: environment steps delivered.
      seconds: of the platform's clock; the run ends exactly then.
      cost: USD under the first of the price sheets, looked at after every round.
      target_return: mean return of the last 50 episodes, looked at after every round.

    Raises:
      TypeError: if a limit is not a number.
      ValueError: if no limit is given (a target alone may never be reached), or one is not positive.
    """

    steps: float = math.inf
    seconds: float = math.inf
    cost: float = math.inf
    target_return: float = math.inf

    def __post_init__(self) -> None:
        for name, limit in vars(self).items():
            if not isinstance(limit, Real):
                raise TypeError(f"{name}={limit!r} is not a number")
        if math.isnan(self.target_return):
            raise ValueError("target_return=nan is never reached")
        for name in ("steps", "seconds", "cost"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} is not positive")
        if math.isinf(min(self.steps, self.seconds, self.cost)):
            raise ValueError("a budget needs a limit of steps, seconds or cost: a target alone may never be reached")
