"""What is to be learned, and until when."""

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """An environment, the network that learns it, and how it is sampled.

    Args:
      environment: a name that `envs.make` knows.
      actors: actor functions, each with one environment.
      fragment: steps that an actor samples before it delivers.
      hidden: widths of the network's hidden layers.

    Raises:
      ValueError: if a number is below 1.
    """

    environment: str
    actors: int = 16
    fragment: int = 256
    hidden: tuple[int, ...] = (256, 256)

    def __post_init__(self) -> None:
        for name in ("actors", "fragment"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is below 1")


@dataclass(frozen=True)
class Budget:
    """When a run stops: whichever comes first.

    Args:
      steps: environment steps delivered.
      seconds: of the platform's clock; the run ends exactly then.
      cost: USD under the first of the price sheets, looked at after every round.
      target_return: mean return of the last 50 episodes, looked at after every round.

    Raises:
      ValueError: if no limit is given (a target alone may never be reached), or one is not positive.
    """

    steps: float = math.inf
    seconds: float = math.inf
    cost: float = math.inf
    target_return: float = math.inf

    def __post_init__(self) -> None:
        for name in ("steps", "seconds", "cost"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} is not positive")
        if math.isinf(min(self.steps, self.seconds, self.cost)):
            raise ValueError("a budget needs a limit of steps, seconds or cost: a target alone may never be reached")
