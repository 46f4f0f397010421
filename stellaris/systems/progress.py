"""The progress of a run: its history, its evaluations, and whether its budget is used up."""

import math
from collections.abc import Callable, Sequence

from stellaris.acting.evaluation import evaluate
from stellaris.acting.policies import Policy
from stellaris.runtime.contract import Platform
from stellaris.runtime.costs.price_sheets import PriceSheet
from stellaris.scheduling.scheduler import Round
from stellaris.systems.environments import first_seed
from stellaris.systems.history import Reader, Row, rounds_of
from stellaris.systems.record import POLICY, Record
from stellaris.systems.workload import Budget, Evaluation, Workload

#: Mixed into the seeds of evaluations only, so that they differ from all other seeds of the run.
_EVALUATION = 1


class Progress:
    """Computes the history from the trace, evaluates versions, and checks the budget.

    Args:
      workload: the workload, whose environment is used in evaluations.
      platform: the platform, whose trace is read.
      policy: the policy whose versions are evaluated.
      budget: the limits at which the run stops.
      evaluation: the rounds in which versions are evaluated; None for no evaluation.
      prices: price sheets under which the history shows costs; `budget.cost` is the cost under the first.
      seed: seed of the run, from which the evaluations' seeds follow.
      on_progress: called with every row of the history.

    Attributes:
      history: the rows so far.
    """

    def __init__(
        self,
        workload: Workload,
        platform: Platform,
        policy: Policy,
        *,
        budget: Budget,
        evaluation: Evaluation | None,
        prices: Sequence[PriceSheet],
        seed: int,
        on_progress: Callable[[Row], None] | None,
    ) -> None:
        self.budget = budget
        self.history: list[Row] = []
        self._workload = workload
        self._platform = platform
        self._policy = policy
        self._evaluation = evaluation
        self._sheet = prices[0].name if prices else ""
        self._seed = seed
        self._on_progress = on_progress
        self._record = Record(platform)
        self._reader = Reader(prices, platform.functions, window=budget.window)

    @property
    def reported(self) -> int:
        """The number of the last round that has a row in the history; 0 before the first."""
        return int(self.history[-1]["round"]) if self.history else 0

    @property
    def rounds(self) -> list[Round]:
        """The rounds so far, as schedulers see them."""
        return rounds_of(self.history, self._sheet)

    def report(self, number: int) -> None:
        """Evaluates the newest version if that is due, and adds the row of round `number` to the history."""
        if self._evaluation is not None and number % self._evaluation.every == 0:
            self._evaluate(number, self._evaluation.episodes)
        # The round ends after the evaluation, whose return then belongs to this round.
        self._record.round_over(number)
        for row in self.read():
            if self._on_progress is not None:
                self._on_progress(row)

    def report_rest(self, number: int) -> None:
        """Adds a last row to the history if anything has happened since round `number`."""
        self.read()
        # Time that passed without events also needs a row, because reserved machines cost money in that time.
        if self._reader.anything_new or self._platform.now > self.history[-1]["seconds"]:
            self.report(number)

    def read(self) -> list[Row]:
        """Reads the new rows of the trace; returns the rows of the history that they complete."""
        rows = list(self._reader.read(self._platform.trace.rows(self._reader.rows_read)))
        self.history += rows
        return rows

    def within_budget(self, steps: int) -> bool:
        """Returns whether the run may continue after this many environment steps.

        The limit of seconds is not checked here: `Session.next_completion` returns no completion after that limit.
        """
        if steps >= self.budget.steps:
            return False
        # Cost and returns are known only at the end of a round.
        if not self.history:
            return True
        last = self.history[-1]
        if self._sheet and last[f"cost_{self._sheet}"] >= self.budget.cost:
            return False
        if last.get("evaluation_return", math.nan) >= self.budget.target_evaluation:
            return False
        # The target counts only with a full window, because a few lucky episodes would reach it.
        return not (self._reader.full_window and last["episode_return"] >= self.budget.target_return)

    def check_first_round(self) -> None:
        """Checks that the budget pays for one round.

        Raises:
          ValueError: if the first round cost more than the budget; the run would otherwise end without an explanation.
        """
        budget = self.budget.cost
        if len(self.history) == 1 and math.isfinite(budget):
            cost = self.history[0][f"cost_{self._sheet}"]
            if cost > budget:
                raise ValueError(
                    f"budget.cost={budget:g}: the first round cost {cost:g} under {self._sheet!r}; raise the budget or "
                    "use fewer actors"
                )

    def _evaluate(self, number: int, episodes: int) -> None:
        """Plays episodes with the newest version. Their seed depends only on the run's seed and the round."""
        seed = evaluation_seed(self._seed, number)
        version = self._platform.store.value(POLICY)
        try:
            played = evaluate(self._policy, version, self._workload.environment, episodes=episodes, seed=seed)
        except Exception as error:  # usually an error of the environment, kept as the cause
            raise RuntimeError(
                f"the evaluation after round {number} has failed: {type(error).__name__}: {error}"
            ) from error
        self._record.evaluated(played)


def evaluation_seed(seed: int, number: int) -> int:
    """Returns the seed of the evaluation after a round.

    Args:
      seed: the seed of the run.
      number: the number of the round, from 1.
    """
    return first_seed(seed, number, _EVALUATION)
