"""The settings of a run: its workload, its budget, and its evaluations."""

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
    """An environment, the policy that learns in it, and the settings of sampling.

    Args:
      environment: a name such as `"Hopper-v4"`; a class, function or `functools.partial` that makes one
        `gymnasium.Env`; or `acting.Vectorised` for your own vector environment.
      policy: a function that makes the policy for the environment: `ActorCritic` for vectors, `Pixels` for images, or
        any function from the `EnvSpec` to a `Policy` with your network.
      actors: number of actor functions, each with one environment.
      fragment: number of steps in a fragment, the part of a trajectory that an actor adds to a batch.
      refresh: number of steps after which an actor takes the newest version, even within a fragment. It must divide
        `fragment`. None to act on one version throughout a fragment.
      restart: whether every fragment starts a new episode. Otherwise an actor's container keeps its environment, and
        episodes continue in the next fragment; an episode is lost with its container.

    Raises:
      TypeError: if the environment is of another type, the policy cannot be called, or a number is not whole.
      ValueError: if a number is below 1; if `refresh` does not divide `fragment`, or is below it and `restart` is set.

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
                raise ValueError(f"refresh={self.refresh} does not divide fragment={self.fragment}: choose a divisor")
            if self.restart and self.refresh < self.fragment:
                raise ValueError(
                    f"refresh={self.refresh}: restart=True would start an episode at each refresh; set only one of them"
                )

    @property
    def steps_at_once(self) -> int:
        """The number of steps of one invocation of an actor."""
        return self.refresh or self.fragment

    def make_policy(self, spec: EnvSpec) -> Policy:
        """Returns the policy for an environment of this specification.

        Raises:
          TypeError: if `policy` does not return a `Policy`.
        """
        policy = self.policy(spec)
        if not isinstance(policy, Policy):
            raise TypeError(f"policy={self.policy!r} returned {policy!r} for {spec.name}: expected a Policy")
        return policy


@dataclass(frozen=True)
class Evaluation:
    """The settings of evaluations, which use separate environments and affect neither clock, bill nor randomness.

    Args:
      every: number of rounds between two evaluations; in a sweep of the lab, number of updates.
      episodes: number of episodes of each evaluation.

    Raises:
      TypeError: if a number is not whole.
      ValueError: if a number is below 1.
    """

    every: int = 10
    episodes: int = 10

    def __post_init__(self) -> None:
        checks.whole(at_least=1, every=self.every, episodes=self.episodes)


@dataclass(frozen=True, kw_only=True)
class Budget:
    """The limits of a run, which stops at the first limit that is reached.

    Args:
      steps: number of environment steps delivered.
      seconds: seconds of the platform's clock; the run ends exactly then.
      cost: USD under the first price sheet, checked after every round.
      target_return: mean return of the last episodes, checked after every round.
      target_evaluation: mean return of an evaluation's episodes, checked after every round that has one; `train` then
        needs an `evaluation`.
      window: number of last episodes for the mean of `target_return`, and for the history's `episode_return`.

    Raises:
      TypeError: if a limit is not a number, or has no name, or the window is not whole.
      ValueError: if no limit is given (a target alone may never be reached), a limit is not positive, or a
        target is NaN, or there is a target return and fewer steps than episodes in the window.
    """

    steps: float = math.inf
    seconds: float = math.inf
    cost: float = math.inf
    target_return: float = math.inf
    target_evaluation: float = math.inf
    window: int = WINDOW

    def __post_init__(self) -> None:
        for name in ("steps", "seconds", "cost", "target_return", "target_evaluation"):
            limit = getattr(self, name)
            if not isinstance(limit, Real):
                raise TypeError(f"{name}={limit!r} is not a number: pass math.inf for no limit")
        checks.whole(at_least=1, window=self.window)
        # NaN is refused here, because it compares false and would pass the checks below.
        for name in ("target_return", "target_evaluation"):
            if math.isnan(getattr(self, name)):
                raise ValueError(f"{name}=nan is never reached: leave it out for no target")
        for name in ("steps", "seconds", "cost"):
            if not getattr(self, name) > 0:
                raise ValueError(f"{name}={getattr(self, name)} is not positive: raise it, or leave it out")
        if math.isinf(min(self.steps, self.seconds, self.cost)):
            raise ValueError("Budget needs a limit of steps, seconds or cost: a target alone may never be reached")
        if self.target_return < math.inf and self.steps < self.window:
            raise ValueError(
                f"target_return={self.target_return} is never reached in steps={self.steps}: it is compared with the "
                f"mean return of window={self.window} episodes, which have at least one step each; allow more steps"
            )


def check_types(workload: object, budget: object, evaluation: object) -> None:
    """Raises a TypeError if one of the settings of a run has another type."""
    if not isinstance(workload, Workload):
        raise TypeError(f"workload={workload!r} is not a Workload: pass Workload({workload!r})")
    if not isinstance(budget, Budget):
        raise TypeError(f"budget={budget!r} is not a Budget: pass Budget(steps=...), with seconds, cost or a target")
    if not isinstance(evaluation, Evaluation | None):
        raise TypeError(f"evaluation={evaluation!r} is not an Evaluation: pass Evaluation(...), or None")


def check_target(budget: Budget, evaluation: Evaluation | None) -> None:
    """Raises a ValueError unless a target of evaluations comes with evaluations."""
    if budget.target_evaluation < math.inf and evaluation is None:
        raise ValueError(
            f"budget.target_evaluation={budget.target_evaluation} needs evaluations: pass "
            "evaluation=Evaluation(every=1)"
        )
