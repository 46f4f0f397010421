"""The reward of a scheduler, computed from the history of a run."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

import numpy as np

from stellaris._core import checks
from stellaris.scheduling.scheduler import Round
from stellaris.systems.history import Row, rounds_of
from stellaris.types import NDArray

#: The history of a run, as `train` returns it.
History: TypeAlias = Sequence[Row]


@dataclass(frozen=True)
class Objective:
    """The reward of a scheduler: `r_k = -beta P_k`, and a penalty at the end of a failed run.

    `R_k` is the mean return of the last episodes after round `k`, or, if the target is tested by evaluations, of the
    round's evaluation. A run has failed unless its last `R_k` is at least `J`, within the budget. The paper's penalty
    is `m = min(max_k R_k - J, 0)`, in units of return, which may be many times what a run takes; without `min`, a run
    that exceeds both `J` and the budget would receive a bonus. With `failure=f` it is in units of the run's own time or
    cost: `f max(m / |J|, -1) sum_k beta P_k`; where `J = 0`, any `m < 0` counts as the whole run.

    Args:
      target: the return `J` to reach.
      budget: the budget `B`, in USD.
      sheet: name of the price sheet by which the budget is counted.
      window: the number of last episodes over which `R_k` is the mean, as in the run's `Budget`; unused if `evaluated`.
      beta: weight of the time or cost of a round, in (0, 1).
      minimise: `"time"`, the round's seconds `P_k`; or `"cost"`, its share of the budget in percent, `100 C_k / B`.
      failure: the penalty of a run that has come no nearer to the target than 0, in runs; None is the paper's penalty.
        Where the budget ends many runs, 1 is too little: a run that spends it near the target loses as large a share
        of the return as it saves of the time.
      evaluated: whether the target is tested by evaluations, as in the run's `target_evaluation`. Rounds without an
        evaluation are then skipped: the last `R_k` is that of the last evaluation.

    Raises:
      ValueError: if a number is out of its range.

    Source:
      MinionsRL (AAAI 2024), "Reward"; the paper mentions the variant that minimises cost, without a formula, and
      does not give `beta`.
    """

    target: float
    budget: float
    sheet: str
    window: int
    beta: float = 0.5
    minimise: Literal["time", "cost"] = "time"
    failure: float | None = None
    evaluated: bool = False

    def __post_init__(self) -> None:
        checks.finite(target=self.target)
        checks.positive(budget=self.budget)
        checks.whole(at_least=1, window=self.window)
        if not 0 < self.beta < 1:
            raise ValueError(f"beta={self.beta} is not in (0, 1)")
        if self.minimise not in ("time", "cost"):
            raise ValueError(f'minimise={self.minimise!r} is neither "time" nor "cost"')
        if self.failure is not None:
            checks.positive(failure=self.failure)

    def reached(self, history: History) -> bool:
        """Whether a run has reached the target within its budget.

        Raises:
          ValueError: if no round is complete, or no round has an evaluation although the target is tested by them.
        """
        rounds = self.rounds(history)
        last = rounds[-1]
        counts = self.evaluated or last.episodes >= self.window
        return counts and self._returns(rounds)[-1] >= self.target and last.cost <= self.budget

    def rewards(self, history: History) -> NDArray:
        """Returns the rewards `[K]` of a run's rounds.

        Args:
          history: the history of the run.

        Raises:
          ValueError: if no round is complete, or no round has an evaluation although the target is tested by them.

        Example:
          >>> row = {"round": 1, "actors": 4, "actor_seconds": 2.0, "learner_seconds": 1.0, "episodes": 9,
          ...        "episode_return": 20.0, "seconds": 3.0, "cost_usd": 2.0}
          >>> objective = Objective(target=100.0, budget=2.0, sheet="usd", window=8)
          >>> objective.rewards([row]).tolist()
          [-81.5]
        """
        rounds = self.rounds(history)
        seconds = np.diff([0.0, *(one.seconds for one in rounds)])
        costs = np.diff([0.0, *(one.cost for one in rounds)])
        rewards = -self.beta * (seconds if self.minimise == "time" else 100 * costs / self.budget)
        if not self.reached(history):
            returns = [one for one in self._returns(rounds) if math.isfinite(one)]
            # If no episode has ended, no return is known. The default then makes the term that is added here `-|J|`.
            missing = min(max(returns, default=min(0.0, 2 * self.target)) - self.target, 0.0)
            if self.failure is not None:
                share = min(-missing / abs(self.target), 1.0) if self.target else float(missing < 0)
                missing = -self.failure * share * abs(float(rewards.sum()))
            rewards[-1] += missing
        return np.asarray(rewards)

    def rounds(self, history: History) -> list[Round]:
        """Returns the complete rounds of a run, without a last round that the end of the run cut short.

        Raises:
          ValueError: if no round is complete: nothing can be learned from the run.
        """
        rounds = rounds_of(history, self.sheet)
        if not rounds:
            raise ValueError(
                f"a history of {len(history)} rows lacks a complete round whose actors a scheduler decided: allow the "
                "run a larger budget"
            )
        return rounds

    def _returns(self, rounds: Sequence[Round]) -> list[float]:
        """Returns `R_k` of the rounds that have one."""
        if not self.evaluated:
            return [one.episode_return for one in rounds]
        returns = [one.evaluation_return for one in rounds if one.evaluation_return is not None]
        if not returns:
            raise ValueError(
                f"evaluated=True: none of the run's {len(rounds)} rounds has an evaluation_return; pass "
                "evaluation=Evaluation(every=1) to train, or evaluated=False to test the mean of the last episodes"
            )
        return returns
