"""`train`: sets a system up on a platform, runs it within a budget, and reads its history off the trace."""

import contextlib
import functools
import math
import warnings
from collections import Counter, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, TypeVar, runtime_checkable

import jax
import numpy as np

from stellaris import checks
from stellaris.acting import envs
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.acting.rollout import Fragment
from stellaris.runtime.billing import Bill, PriceSheet
from stellaris.runtime.checkpoint import CheckpointError, Checkpoints
from stellaris.runtime.endings import RETRIABLE
from stellaris.runtime.functions import Function, Invocation
from stellaris.runtime.platform import SimulatedPlatform
from stellaris.runtime.trace import Trace
from stellaris.systems.programs import Data, Work
from stellaris.systems.workload import Budget, Workload
from stellaris.types import NDArray, Tree

#: A line of a run's history: what was reached by the end of a round, by column.
Row: TypeAlias = Mapping[str, float]
#: Episodes whose mean return is reported.
WINDOW = 50
#: Attributes of a `Run` that change as it goes.
_EVOLVES = (
    *("_statistics", "_episodes", "_steps", "_delivered", "_reported_rows", "_reported_round", "_news", "_handled"),
    *("_retries", "_restarts", "history"),
)
T = TypeVar("T")
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
    checkpoints: Checkpoints | None = None,
    resume: bool = False,
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
      checkpoints: where the run is saved, and how often; None for never. The environments restart at every checkpoint,
        so a run with checkpoints differs from one without; but one that was broken off and resumed does not differ from
        one that was not.
      resume: whether to go on from the newest checkpoint, if there is one.
      on_progress: called with every row of the history as soon as it is there; not again when resumed.

    Returns:
      The history, the newest policy version, the trace and the bills.

    Raises:
      CheckpointError: if the checkpoint was saved by another run, or by a platform with other functions; if there are
        checkpoints, but none that can be loaded; or if none can be written.
      FunctionError: if a body raised, or a function's attempts are used up; names the function and the invocation. Rows
        were handed to `on_progress` before, and `platform.trace` stays readable.
      LookupError: if a function that the system needs is not deployed.
      RuntimeError: if nothing goes on, and no limit of the budget is reached.
      TypeError: if `prices` is one sheet, `checkpoints` a folder's name, or the seed no whole number.
      ValueError: if the environment is unknown or unsupported, a budget of cost comes without prices, two price sheets
        have one name, one prices nothing that is deployed, the seed is out of [0, 2**31), or there are checkpoints of
        a run that is not to be resumed.
    """
    with platform:
        checks.seed(seed=seed)
        _check_prices(prices, budget, platform)
        _check_checkpoints(checkpoints, resume)
        env = Restartable(workload, _slots(workload, platform), seed, threads)
        with contextlib.closing(env), platform:  # the platform first: its bodies may still step the environments
            policy = workload.make_policy(env.spec)
            run = Run(workload, platform, budget, tuple(prices), env, policy, seed, checkpoints, resume, on_progress)
            system.run(run)
            run.finish()
            version = platform.store.value("policy")
    return Result(tuple(run.history), version, platform.trace, {sheet.name: platform.bill(sheet) for sheet in prices})


def _check_prices(prices: Sequence[PriceSheet], budget: Budget, platform: SimulatedPlatform) -> None:
    """Raises unless each sheet has a name of its own, and prices something of this platform."""
    if isinstance(prices, PriceSheet):
        raise TypeError(f"prices is one sheet, {prices.name!r}: pass a sequence of sheets, prices=[sheet]")
    if math.isfinite(budget.cost) and not prices:
        raise ValueError(f"budget.cost={budget.cost} needs prices: there is no sheet to bill under")
    for name, times in Counter(sheet.name for sheet in prices).items():
        if times > 1:
            raise ValueError(
                f"prices: {times} sheets have the name {name!r}: one's costs would be taken for the other's"
            )
    deployed = platform.functions.keys()
    for sheet in prices:
        unknown, unpriced = sorted(sheet.named - deployed), sorted(deployed - sheet.named)
        if sheet.named.isdisjoint(deployed) and (unknown or not sheet.machines):
            raise ValueError(f"price sheet {sheet.name!r} prices {unknown}: the platform has {sorted(deployed)}")
        if unknown and unpriced:  # sheets are shared between deployments; but it looks like a slip
            warnings.warn(
                f"price sheet {sheet.name!r} prices {unknown}, which are not deployed, and not {unpriced}, which are",
                stacklevel=3,
            )


def _check_checkpoints(checkpoints: Checkpoints | None, resume: bool) -> None:
    """Raises unless the run can be saved there."""
    if checkpoints is None:
        return
    if not isinstance(checkpoints, Checkpoints):
        raise TypeError(f"checkpoints={checkpoints!r} is no Checkpoints: pass Checkpoints({checkpoints!r})")
    if not resume and checkpoints.newest() is not None:
        raise ValueError(f"{checkpoints} holds a run already: pass resume=True to go on with it, or another folder")
    checkpoints.prepare()


def _slots(workload: Workload, platform: SimulatedPlatform) -> int:
    """Environments that the containers of the actor function may need."""
    if "actor" not in platform.functions:
        return workload.actors  # the system will say what it lacks
    return platform.slots("actor", concurrent=workload.actors)


class Restartable:
    """A workload's environments, all of which can be made anew.

    Args:
      workload: which environment it is.
      slots: how many.
      seed: of the run; every restart has seeds of its own.
      threads: that step them.
    """

    def __init__(self, workload: Workload, slots: int, seed: int, threads: int) -> None:
        self._make = functools.partial(envs.make, workload.environment, slots=slots, threads=threads)
        self._seed = seed
        self._env = self._make(seed=seed)
        self.spec = self._env.spec

    def restart(self, number: int) -> None:
        """Closes them and makes them anew, for the `number`-th time (from 1)."""
        self._env.close()
        self._env = self._make(seed=int(np.random.SeedSequence([self._seed, number]).generate_state(1)[0] >> 1))

    def reset(self, slots: NDArray) -> Tree:
        """Starts new episodes in `[n]` slots; returns `[n, *obs]`."""
        return self._env.reset(slots)

    def step(self, slots: NDArray, action: NDArray) -> envs.Step:
        """Steps `[n]` slots with `[n, *action]` actions."""
        return self._env.step(slots, action)

    def close(self) -> None:
        """Ends them."""
        self._env.close()


@dataclass
class Handled:
    """Keys that were handled: all below a floor, and some above it.

    Keys are numbers of invocations, which are handled in nearly the order in which they are made: few are ever above.

    Example:
      >>> handled = Handled()
      >>> for key in (1, 0, 3):
      ...     handled.add(key)
      >>> handled, 2 in handled
      (Handled(floor=2, above={3}), False)
    """

    floor: int = 0
    above: set[int] = field(default_factory=set)

    def add(self, key: int) -> None:
        """Notes that a key was handled."""
        self.above.add(key)
        while self.floor in self.above:
            self.above.remove(self.floor)
            self.floor += 1

    def __contains__(self, key: int) -> bool:
        return key < self.floor or key in self.above


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
        env: Restartable,
        policy: Policy,
        seed: int,
        checkpoints: Checkpoints | None,
        resume: bool,
        on_progress: Callable[[Row], None] | None,
    ) -> None:
        self.workload, self.platform, self.policy, self.env = workload, platform, policy, env
        self._seed, self._checkpoints, self._resume = seed, checkpoints, resume
        init_key, self.key = jax.random.split(jax.random.key(seed))
        self._programs: dict[str, Function] = {}
        self.first_params: Tree = jax.jit(policy.init)(init_key)
        self._budget, self._prices, self._on_progress = budget, prices, on_progress
        self._statistics = policy.statistics()
        self._episodes: deque[float] = deque(maxlen=WINDOW)
        self._steps, self._delivered, self._reported_rows, self._reported_round = 0, 0, 0, 0
        self._news = True  # whether anything has happened since the last report
        self._handled = Handled()  # keys of the invocations that were handed out
        self._retries: dict[int, Invocation] = {}  # the latest of each piece of work, by key
        self._restarts = 0  # as many as there were checkpoints
        self.history: list[Row] = []

    @property
    def round(self) -> int:
        """Fragments delivered, divided by the number of actors and rounded down."""
        return self._delivered // self.workload.actors

    def program(self, name: str, program: Function) -> Function:
        """Notes a program of the system's, which checkpoints refer to by its name."""
        self._programs[name] = program
        return program

    def begin(self, first: Callable[[], T]) -> T:
        """Where the system's event loop begins: as `first` says, or where the run that is resumed was saved."""
        if self._checkpoints is None or not self._resume or self._checkpoints.newest() is None:
            return first()
        state = self._checkpoints.load(self.platform, externals=self._programs)
        own: Mapping[str, Any] = state["run"]
        for name, value in own.items():
            if name not in _EVOLVES and getattr(self, name) != value:
                raise CheckpointError(
                    f"{name.lstrip('_')}={getattr(self, name)}, but {self._checkpoints} holds a run of {value}"
                )
        vars(self).update(own)
        self.env.restart(self._restarts)
        loop: T = state["loop"]
        return loop

    def next_completion(self, loop: Any) -> Invocation | None:
        """The next invocation that completes within the budget, each once.

        Those that were killed, refused or lost are tried again, as their functions' `Retry` says; what arrives a second
        time, because its message was duplicated or the work done twice, is dropped.

        Args:
          loop: where the system's event loop stands, to be saved at a checkpoint.
        """
        if self.round > self._reported_round:
            saved, self._reported_round = self._reported_round, self.round
            self._report()
            if (
                self._checkpoints is not None
                and self.round // self._checkpoints.every > saved // self._checkpoints.every
            ):
                self._save(self._checkpoints, loop)
        while self._within_budget():
            done = self.platform.next_completion(until=self._budget.seconds)
            if done is None:
                if self.platform.now < self._budget.seconds:
                    raise RuntimeError(
                        f"nothing goes on after {self.platform.now:.6g} s, and the budget is not used up: the system "
                        "waits for what never comes, such as its aggregator for learners that there are not"
                    )
                return None
            if done.key in self._handled:
                self._mark("dropped", 1, done)
            elif done.status in RETRIABLE:
                again = self._retries[done.key] = self.platform.retry(done)
                self._handled.add(again.number)  # it has a key already: its own number is nobody's
            else:
                self._handled.add(done.key)
                if (again := self._retries.pop(done.key, done)) is not done:
                    self.platform.cancel(again)  # a message that had been given up on: the work need not be done twice
                return done
        return None

    def _save(self, checkpoints: Checkpoints, loop: Any) -> None:
        """Saves everything. The environments are not saved: they restart, here as in a run that is resumed."""
        self._restarts += 1
        self.platform.trace.append(self.platform.now, "checkpoint", value=self._restarts)
        self.platform.reinitialise("actor")
        self.env.restart(self._restarts)
        own = {name: getattr(self, name) for name in (*_EVOLVES, "workload", "_seed", "_prices")}
        # Above what is there: the newest may be damaged, and the run have been resumed from one before.
        step = (checkpoints.newest() or 0) + 1
        checkpoints.save(step, self.platform, {"loop": loop, "run": own}, externals=self._programs)

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

    def applied(self, staleness: int, invocation: int, work: Work) -> None:
        """Notes that a gradient was taken to be applied, how stale it was, and how many steps it was first to see."""
        self._news = True
        for event, value in (("staleness", staleness), ("learned", work.data.learn(work.indices))):
            self.platform.trace.append(self.platform.now, event, function="learner", invocation=invocation, value=value)
        if not work.data.left:
            # Not before: a batch is learned from under the normalisation that it was sampled under, as in plain PPO.
            self._statistics = self._statistics.merge(work.data.statistics)

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
