"""A run as a system sees it: completions within the budget, rounds that it declares, versions that it publishes."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

import jax

from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.algorithms import Algorithm
from stellaris.runtime.checkpoint import Checkpoints
from stellaris.runtime.contract import Platform, Resumable
from stellaris.runtime.functions import Function, Invocation
from stellaris.runtime.price_sheets import PriceSheet
from stellaris.systems.batches import Data, batch_of
from stellaris.systems.deliveries import Deliveries
from stellaris.systems.environments import Environments
from stellaris.systems.history import Reader, Row
from stellaris.systems.record import POLICY, Record
from stellaris.systems.workload import Budget, Workload
from stellaris.types import Tree

T = TypeVar("T")


class Session:
    """What an event loop works with, besides the platform.

    A system's `run(session)` begins its loop with `begin`, takes `next_completion` until there is none, takes delivery
    of fragments with `deliver`, publishes versions, and declares when a round is over. What else it does it notes in
    `record`; the history is read off the platform's trace.

    Args:
      workload: what is learned.
      platform: on which its functions are deployed.
      policy: whose versions are published.
      env: the environments that actors step.
      budget: when to stop.
      prices: sheets under which the history shows costs.
      seed: of parameters and shuffles.
      configuration: of the whole run, as `described`; a run that is resumed must have the same.
      checkpoints: where the run is saved.
      resume: whether to go on from the newest checkpoint, if there is one.
      on_progress: called with every row of the history.
    """

    def __init__(
        self,
        workload: Workload,
        platform: Platform,
        policy: Policy,
        env: Environments,
        *,
        budget: Budget,
        prices: Sequence[PriceSheet],
        seed: int,
        configuration: Mapping[str, Any],
        checkpoints: Checkpoints | None,
        resume: bool,
        on_progress: Callable[[Row], None] | None,
    ) -> None:
        self.workload = workload
        self.platform = platform
        self.policy = policy
        self.env = env
        self.record = Record(platform)
        self.round = 0  #: how many rounds are over.
        self.history: list[Row] = []
        init_key, self._key = jax.random.split(jax.random.key(seed))
        self.first_params: Tree = jax.jit(Policy.init, static_argnums=0)(
            policy, init_key
        )  # compiled once for equal ones
        self._budget = budget
        self._prices = prices
        self._configuration = configuration
        self._checkpoints = checkpoints
        self._resume = resume
        self._on_progress = on_progress
        self._reader = Reader(prices, platform.functions)
        self._deliveries = Deliveries(platform)
        self._programs: dict[str, Function] = {}
        self._statistics = policy.statistics()  # of all observations learned from
        self._steps = 0  # that were delivered: what the budget limits
        self._restarts = 0  # of the environments: one for each checkpoint

    def program(self, name: str, program: Function) -> Function:
        """Names a program of the system's. Checkpoints do not hold it: a run that is resumed brings it again."""
        self._programs[name] = program
        return program

    def begin(self, first: Callable[[], T]) -> T:
        """Where the event loop stands at its beginning: what `first` makes, or what was saved of a run to be resumed.

        Args:
          first: sets the loop up: publishes the first version, invokes what is invoked first.

        Returns:
          The loop's state, which is handed to `next_completion` again and again, so that checkpoints can save it.
        """
        if self._checkpoints is None or not self._resume or self._checkpoints.newest() is None:
            return first()
        loop: T = self._resumed(self._checkpoints)
        return loop

    def next_completion(self, loop: Any) -> Invocation | None:
        """The next invocation that completes within the budget, each piece of work once; None when the run is over.

        Args:
          loop: where the event loop stands, to be saved at a checkpoint.

        Raises:
          FunctionError: if an invocation's attempts are used up.
          RuntimeError: if nothing is pending, and the budget is not used up.
        """
        before = self.history[-1]["round"] if self.history else 0
        if self.round > before:
            # Now, and not when the round was declared: the system has handled its last event to the end.
            self._report()
            every = self._checkpoints.every if self._checkpoints else 0
            if self._checkpoints and self.round // every > before // every:
                self._save(self._checkpoints, loop)
        if not self._within_budget():
            return None
        done = self._deliveries.next(until=self._budget.seconds)
        if done is None and self.platform.now < self._budget.seconds:
            raise RuntimeError(
                f"nothing goes on after {self.platform.now:.6g} s, and the budget is not used up: the system waits for "
                "what never comes, such as its aggregator for learners that there are not"
            )
        return done

    def deliver(self, done: Invocation) -> Fragment:
        """Takes delivery of the fragment that an actor sampled."""
        fragment: Fragment = done.result()
        self._steps += fragment.steps
        self.record.sampled(done, fragment)
        return fragment

    def batch(self, algorithm: Algorithm, fragments: Sequence[Fragment], params: Tree) -> Data:
        """The batch that fragments of equal length become, shuffled by this round's key.

        Args:
          algorithm: which prepares it.
          fragments: that actors delivered.
          params: the newest ones, for algorithms that need a policy beside the behaviour policy.
        """
        return batch_of(
            fragments,
            algorithm=algorithm,
            policy=self.policy,
            target=self.versioned(params),
            key=jax.random.fold_in(self._key, self.round),
        )

    def learned_from(self, statistics: Statistics) -> None:
        """Adds a batch's observations to those that later versions normalise by.

        Once all of the batch was learned from, and not before: it is learned from under the normalisation that it was
        sampled under, as in plain PPO.
        """
        self._statistics = self._statistics.merge(statistics)

    def versioned(self, params: Tree) -> PolicyVersion:
        """Parameters, with the normalisation by all observations that were learned from so far."""
        return PolicyVersion(params, self._statistics.normaliser())

    def publish(self, params: Tree) -> int:
        """Publishes the next version of the policy; returns its number."""
        return self.platform.store.publish(POLICY, self.versioned(params))

    def round_over(self) -> None:
        """Declares that a round is over: a row of the history follows."""
        self.round += 1

    def finish(self) -> None:
        """Reports where the run stands at its end, if anything has happened since its last round."""
        self._read()
        if self._reader.anything_new or self.platform.now > self.history[-1]["seconds"]:
            self._report()

    def _within_budget(self) -> bool:
        budget = self._budget
        if self._steps >= budget.steps:
            return False
        if not self.history:
            return True
        last = self.history[-1]
        if self._prices and last[f"cost_{self._prices[0].name}"] >= budget.cost:
            return False
        return not (self._reader.full_window and last["episode_return"] >= budget.target_return)

    # ---- the history ----------------------------------------------------------------------------------------------

    def _report(self) -> None:
        self.record.round_over(self.round)
        for row in self._read():
            if self._on_progress is not None:
                self._on_progress(row)

    def _read(self) -> list[Row]:
        """Reads the rows of the trace that are new; returns the rows of the history that they make."""
        rows = list(self._reader.read(self.platform.trace.rows(self._reader.rows_read)))
        self.history += rows
        return rows

    # ---- checkpoints ----------------------------------------------------------------------------------------------

    def _save(self, checkpoints: Checkpoints, loop: Any) -> None:
        """Saves everything but the environments: they restart, here as in a run that is resumed."""
        platform = self.platform
        assert isinstance(platform, Resumable)  # as `train` has checked
        self._restarts += 1
        platform.trace.append(platform.now, "checkpoint", value=self._restarts)
        platform.reinitialise("actor")
        self.env.restart(self._restarts)
        state = {
            "loop": loop,
            "round": self.round,
            "steps": self._steps,
            "restarts": self._restarts,
            "statistics": self._statistics,
            "handled": self._deliveries.handled,
            "retries": self._deliveries.retries,
        }
        # Above what is there: the newest may be damaged, and the run have been resumed from one before.
        step = (checkpoints.newest() or 0) + 1
        checkpoints.save(step, platform, state, **self._brought)

    @property
    def _brought(self) -> dict[str, Any]:
        """What checkpoints do not hold, and a run that is resumed brings again."""
        like = {"params": self.first_params}  # a network's parameters may be of classes of its library's
        return {"externals": self._programs, "like": like, "configuration": self._configuration}

    def _resumed(self, checkpoints: Checkpoints) -> Any:
        """Goes on where a run was saved; returns where its event loop stood."""
        assert isinstance(self.platform, Resumable)
        state = checkpoints.load(self.platform, **self._brought)
        self.round = state["round"]
        self._steps = state["steps"]
        self._restarts = state["restarts"]
        self._statistics = state["statistics"]
        self._deliveries = Deliveries(self.platform, state["handled"], state["retries"])
        self.env.restart(self._restarts)
        self._read()
        return state["loop"]
