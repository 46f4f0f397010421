"""What is to be learned, and until when."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from numbers import Real

from stellaris._core import checks
from stellaris.acting import envs
from stellaris.acting.envs import Environment, EnvSpec
from stellaris.acting.policies import ActorCritic, Policy
from stellaris.systems.history import WINDOW


@dataclass(frozen=True)
class Workload:
    """An environment, the policy that learns it, and how it is sampled.

    Args:
      environment: a name such as `"Hopper-v4"`; a class, function or `functools.partial` that makes one
        `gymnasium.Env`; or `acting.Vectorised`, a vector environment of one's own.
      policy: makes the policy for the environment: `ActorCritic` for vectors, `Pixels` for images, or any function of
        the `EnvSpec` that returns a `Policy` with a network of one's own.
      actors: actor functions, each with one environment.
      fragment: steps that an actor samples before it delivers.
      refresh: steps after which an actor takes the newest version, within a fragment too; it divides `fragment`. None
        to act on one version from a fragment's beginning to its end.
      restart: whether every fragment begins with a new episode. Otherwise an actor's container keeps its environment,
        and an episode goes on in the next fragment; when the container is lost, so is the episode.

    Raises:
      TypeError: if the environment is neither a name nor makes one, the policy cannot be called, or a number is not
        whole.
      ValueError: if a number is below 1; if `refresh` does not divide `fragment`, or comes with `restart`.

    Example:
      >>> workload = Workload("CartPole-v1", policy=ActorCritic(hidden=(64, 64)), actors=4)
      >>> workload.fragment, workload.restart
      (256, False)
    """

    environment: Environment
    policy: Callable[[EnvSpec], Policy] = ActorCritic()
    actors: int = 16
    fragment: int = 256
    refresh: int | None = None
    restart: bool = False

    def __post_init__(self) -> None:
        envs.check(self.environment)
        if not callable(self.policy):
            raise TypeError(
                f"policy={self.policy!r} is not a function of the EnvSpec that returns a Policy, such as ActorCritic()"
            )
        checks.whole(at_least=1, actors=self.actors, fragment=self.fragment)
        if self.refresh is not None:
            checks.whole(at_least=1, refresh=self.refresh)
            if self.fragment % self.refresh:
                raise ValueError(f"refresh={self.refresh} does not divide fragment={self.fragment}")
            if self.restart and self.refresh < self.fragment:
                raise ValueError(f"refresh={self.refresh}: with restart=True every piece would begin anew")

    @property
    def steps_at_once(self) -> int:
        """Steps of one invocation of an actor."""
        return self.refresh or self.fragment

    def make_policy(self, spec: EnvSpec) -> Policy:
        """The policy for the environment of this specification.

        Raises:
          TypeError: if what `policy` returns is not a `Policy`.
        """
        policy = self.policy(spec)
        if not isinstance(policy, Policy):
            raise TypeError(f"policy={self.policy!r} returned {policy!r} for {spec.name}: expected a Policy")
        return policy


@dataclass(frozen=True)
class Evaluation:
    """How a run's versions are evaluated: on environments of their own, outside of its time, bills and random streams.

    Args:
      every: rounds between two evaluations.
      episodes: of each.

    Raises:
      TypeError: if a number is not whole.
      ValueError: if one is below 1.
    """

    every: int = 10
    episodes: int = 10

    def __post_init__(self) -> None:
        checks.whole(at_least=1, every=self.every, episodes=self.episodes)


@dataclass(frozen=True)
class Budget:
    """When a run stops: whichever comes first.

    Args:
      steps: environment steps delivered.
      seconds: of the platform's clock; the run ends exactly then.
      cost: USD under the first of the price sheets, looked at after every round.
      target_return: mean return of the last episodes, looked at after every round.
      window: episodes that this mean is of, and that of the history's `episode_return`.

    Raises:
      TypeError: if a limit is not a number, or the window is not whole.
      ValueError: if no limit is given (a target alone may never be reached), one is not positive, or there is a target
        and fewer steps than the episodes that it is a mean of.
    """

    steps: float = math.inf
    seconds: float = math.inf
    cost: float = math.inf
    target_return: float = math.inf
    window: int = WINDOW

    def __post_init__(self) -> None:
        for name in ("steps", "seconds", "cost", "target_return"):
            limit = getattr(self, name)
            if not isinstance(limit, Real):
                raise TypeError(f"{name}={limit!r} is not a number")
        checks.whole(at_least=1, window=self.window)
        if math.isnan(self.target_return):
            raise ValueError("target_return=nan is never reached")
        for name in ("steps", "seconds", "cost"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} is not positive")
        if math.isinf(min(self.steps, self.seconds, self.cost)):
            raise ValueError("a budget needs a limit of steps, seconds or cost: a target alone may never be reached")
        if self.target_return < math.inf and self.steps < self.window:
            raise ValueError(
                f"target_return={self.target_return} is never reached in steps={self.steps}: it is compared with the "
                f"mean return of {self.window} episodes, each of a step at least"
            )
