"""`train`: sets a system up on a platform, runs it within a budget, and reads its history off the trace."""

import math
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeAlias, runtime_checkable

import jax

from stellaris.normalisation import Statistics
from stellaris.policies import Policy, PolicyVersion, actor_critic
from stellaris.rollout import Fragment
from stellaris.runtime.billing import Bill, PriceSheet
from stellaris.runtime.functions import Invocation
from stellaris.runtime.platform import SimulatedPlatform
from stellaris.runtime.trace import Trace
from stellaris.systems.programs import Data
from stellaris.systems.workload import Budget, Workload
from stellaris.types import NDArray, Tree

#: A line of a run's history: what was reached by the end of a round, by column.
Row: TypeAlias = Mapping[str, float]
#: Episodes whose mean return is reported.
WINDOW = 50
#: What learners report besides their gradient; averaged over a round in the history.
METRICS = (
    *("policy_loss", "value_loss", "entropy", "kl", "clip_fraction", "truncation_fraction"),
    *("data_lag_mean", "data_lag_max"),
)


class Result(NamedTuple):
    """What a run leaves."""

    history: Sequence[Row]  #: a row a round.
    params: PolicyVersion  #: the newest version.
    trace: Trace
    bill: Mapping[str, Bill]  #: by price sheet.


@runtime_checkable
class System(Protocol):
    """An actor-learner architecture: a frozen configuration and its event loop."""

    def run(self, run: "Run") -> None:
        """Runs until `run.next_completion()` gives None."""


def train(
    system: System,
    workload: Workload,
    *,
    platform: SimulatedPlatform,
    budget: Budget,
    prices: Sequence[PriceSheet] = (),
    seed: int = 0,
    threads: int = 1,
    on_progress: Callable[[Row], None] | None = None,
) -> Result:
    """Trains a policy with an actor-learner architecture on a simulated platform.

    Args:
      system: such as `systems.Stellaris()` or `systems.Synchronous()`.
      workload: what is to be learned.
      platform: a fresh one; it is closed at the end, whatever happens.
      budget: when to stop.
      prices: sheets under which the run is billed; the first is the budget's.
      seed: of parameters, environments and shuffles. The platform has a seed of its own for actions and delays.
      threads: that step the environments; results do not depend on them.
      on_progress: called with every row of the history as soon as it is there.

    Returns:
      The history, the newest policy version, the trace and the bills.

    Raises:
      FunctionError: if a body raised; names the function and the invocation. Rows were handed to `on_progress` before,
        and `platform.trace` stays readable.
      LookupError: if a function that the system needs is not deployed.
      ValueError: if the environment is unknown, or a budget of cost comes without prices.
    """
    from stellaris import envs

    if math.isfinite(budget.cost) and not prices:
        raise ValueError(f"budget.cost={budget.cost} needs prices: there is no sheet to bill under")
    try:
        env = envs.make(workload.environment, slots=workload.actors, seed=seed, threads=threads)
        policy = actor_critic(env.spec, hidden=workload.hidden)
        run = Run(workload, platform, budget, tuple(prices), env, policy, jax.random.key(seed), on_progress)
        system.run(run)
        run.finish()
        version = platform.store.value("policy")
    finally:
        platform.close()
    return Result(tuple(run.history), version, platform.trace, {sheet.name: platform.bill(sheet) for sheet in prices})


class Run:
    """What a system's event loop works with: completions within the budget, and the record of what it does with them.

    Everything is recorded in the platform's trace; the history is read back from it.
    """

    def __init__(
        self,
        workload: Workload,
        platform: SimulatedPlatform,
        budget: Budget,
        prices: tuple[PriceSheet, ...],
        env: Any,
        policy: Policy,
        key: jax.Array,
        on_progress: Callable[[Row], None] | None,
    ) -> None:
        self.workload, self.platform, self.policy, self.env = workload, platform, policy, env
        init_key, self.key = jax.random.split(key)
        self.first_params: Tree = jax.jit(policy.init)(init_key)
        self._budget, self._prices, self._on_progress = budget, prices, on_progress
        self._statistics = Statistics.empty(env.spec.observation_shape)
        self._episodes: deque[float] = deque(maxlen=WINDOW)
        self._steps, self._delivered, self._reported_rows, self._reported_round = 0, 0, 0, 0
        self._news = True  # whether anything has happened since the last report
        self.history: list[Row] = []

    @property
    def round(self) -> int:
        """Fragments delivered, divided by the number of actors and rounded down."""
        return self._delivered // self.workload.actors

    def next_completion(self) -> Invocation | None:
        """The next invocation that completes within the budget; those killed by their time-out are tried again."""
        if self.round > self._reported_round:
            self._report()
        while self._within_budget():
            done = self.platform.next_completion(until=self._budget.seconds)
            if done is None:
                return None
            if done.status != "timed_out":
                return done
            self.platform.retry(done)
        return None

    def publish(self, params: Tree) -> int:
        """Publishes a version: parameters, with the statistics of all observations learned from so far."""
        self._news = True
        return self.platform.store.publish("policy", PolicyVersion(params, self._statistics.normaliser()))

    # ---- the record ---------------------------------------------------------------------------------------------

    def deliver(self, done: Invocation) -> Fragment:
        """Takes delivery of a fragment."""
        fragment: Fragment = done.result()
        self._delivered += 1
        self._steps += fragment.steps
        self._mark("sampled", fragment.steps, done)
        self._mark("reset", fragment.resets, done)
        for episode in fragment.episodes:
            self._mark("episode", episode.episode_return, done)
            self._mark("episode_length", episode.length, done)
        return fragment

    def pushed(self, done: Invocation, metrics: Mapping[str, float]) -> None:
        """Notes that a gradient was queued."""
        self._mark("pushed", 1, done)
        self.metrics(done, metrics)

    def metrics(self, done: Invocation, metrics: Mapping[str, float]) -> None:
        """Notes what a learner reported."""
        for name in METRICS:
            self._mark(name, metrics[name], done)

    def applied(self, staleness: int, data: Data, minibatch: NDArray) -> None:
        """Notes that a gradient was taken to be applied, how stale it was, and how many steps it was first to see."""
        self._mark("staleness", staleness)
        self._mark("learned", data.learn(minibatch))
        if not data.left:
            # Not before: a batch is learned from under the normalisation that it was sampled under, as in plain PPO.
            self._statistics = self._statistics.merge(data.statistics)

    def left(self, *, queued: int, fragments: Sequence[Fragment], data: Sequence[Data]) -> None:
        """Notes what the end of the run leaves: queued gradients, and steps that wait or are in flight."""
        waiting = sum(f.steps - f.resets for f in fragments)
        waiting += sum(int(d.pending.sum()) for d in {id(d): d for d in data}.values())
        for event, value in (("queued", queued), ("waiting", waiting)):
            self.platform.trace.append(self.platform.now, event, value=value)

    def finish(self) -> None:
        """Reports where the run stands at its end, if anything has happened since its last round."""
        if self._news or self.platform.now > self.history[-1]["seconds"]:
            self._report()

    def _mark(self, event: str, value: float, done: Invocation | None = None) -> None:
        platform, self._news = self.platform, True
        if done is None:
            platform.trace.append(platform.now, event, value=value)
        else:
            platform.trace.append(platform.now, event, function=done.function, invocation=done.number, value=value)

    def _within_budget(self) -> bool:
        budget, last = self._budget, self.history[-1] if self.history else None
        if self._steps >= budget.steps:
            return False
        if last is None:
            return True
        if self._prices and last[f"cost_{self._prices[0].name}"] >= budget.cost:
            return False
        return not (len(self._episodes) == WINDOW and last["episode_return"] >= budget.target_return)

    def _report(self) -> None:
        trace, platform = self.platform.trace, self.platform

        def since(event: str) -> Any:
            return trace.select(event, start=self._reported_rows).value

        self._episodes.extend(since("episode").tolist())
        staleness = since("staleness")
        row: dict[str, float] = {
            "round": self.round,
            "seconds": platform.now,
            "steps": self._steps,
            "version": platform.store.newest("policy"),
            "episodes": len(since("episode")) + (self.history[-1]["episodes"] if self.history else 0),
            "episode_return": sum(self._episodes) / len(self._episodes) if self._episodes else math.nan,
            "gradients": len(staleness) + (self.history[-1]["gradients"] if self.history else 0),
            "staleness_mean": _mean(staleness),
            "staleness_max": float(max(staleness, default=0)),
        }
        row |= {f"cost_{sheet.name}": platform.bill(sheet).total for sheet in self._prices}
        row |= {name: _mean(since(name)) for name in METRICS}
        row["data_lag_max"] = float(max(since("data_lag_max"), default=0))
        self._reported_round, self._reported_rows, self._news = self.round, len(trace), False
        self.history.append(row)
        if self._on_progress is not None:
            self._on_progress(row)


def _mean(values: Any) -> float:
    return float(values.mean()) if len(values) else math.nan
