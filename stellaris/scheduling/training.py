"""Training of a scheduler by PPO; its episodes are whole training runs of a workload."""

import functools
import itertools
import math
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import jax
import numpy as np

from stellaris._core import checks
from stellaris.acting.normalisation import Statistics
from stellaris.acting.policies import Policy, PolicyVersion
from stellaris.algorithms import PPO, update
from stellaris.scheduling.learned import Learned, observed, policy_for, shared
from stellaris.scheduling.objective import History, Objective
from stellaris.scheduling.scheduler import states_of
from stellaris.types import NDArray, Trajectory, Tree

#: Source: MinionsRL (AAAI 2024), Table 1 and "Training MinionsRL's Scheduler": Adam with 0.005; for the other settings
#: the values printed bold within their ranges. The paper is silent about GAE and epochs. Assumptions: ten epochs, and a
#: lambda of 0.85, because with 1 each decision is credited with the noise of the whole run.
SCHEDULER_PPO = PPO(
    learning_rate=0.005,
    discount=0.99,
    lambda_=0.85,
    clip=0.2,
    entropy_coefficient=0.01,
    value_coefficient=0.5,
    epochs=10,
    minibatch_size=2**20,
)
#: The settings of the code of the paper's authors: one step on a whole run, with Monte Carlo returns. Use it with
#: `together=1` and `normalise=False`.
AUTHORS_PPO = replace(SCHEDULER_PPO, lambda_=1.0, epochs=1)


class Progress(NamedTuple):
    """The progress of training."""

    episodes: int  #: number of episodes learned from so far.
    rewards: Sequence[float]  #: sum of the rewards of each of the episodes just learned from.
    reached: Sequence[bool]  #: whether each of these episodes reached the target.
    metrics: Mapping[str, float]  #: PPO's metrics.
    held_out: float | None = None  #: mean sum of rewards on the held-out seeds; None if they were not run.


#: A function that runs the workload once for each seed, under a scheduler, and returns the histories in the order of
#: the seeds. The function decides how many of the runs execute at a time, and where.
Play: TypeAlias = Callable[[Learned, Sequence[int]], Sequence[History]]
#: The same with a scheduler for each run.
PlayEach: TypeAlias = Callable[[Sequence[Learned], Sequence[int]], Sequence[History]]


class Request(NamedTuple):
    """The runs that a training needs next: one for each seed."""

    scheduler: Learned  #: decides in all of these runs.
    seeds: Sequence[int]


@dataclass(frozen=True)
class Training:
    """The training of a scheduler: it plays `together` episodes at a time, and learns from them.

    To fine-tune a scheduler, pass one that was trained on another workload. Training also updates the normalisation of
    states, before each version learns from them.

    Args:
      scheduler: the scheduler to start from: `Learned.untrained(...)`, or a trained one.
      objective: the reward.
      episodes: total number of runs of the workload.
      together: the number of runs in which one version of the scheduler decides before it learns from them.
      ppo: the algorithm; the items of its minibatches are decisions.
      seed: the seed of the shuffles; run `i` is played with the seed `seed + i`.
      normalise: whether states are normalised by the statistics of all states so far; without, they are observed raw.
      held_out: seeds of runs that are not learned from, by which the version to return is chosen. They are not among
        `seed`, ..., `seed + episodes - 1`.
      every: number of updates after which the version is run on `held_out`, as are the first and the last version.
      on_progress: called after every update with the progress and the new version of the scheduler.

    Raises:
      ValueError: if a number is below 1, a seed lies outside [0, 2^31), or a held-out run would be learned from.
    """

    scheduler: Learned
    objective: Objective
    episodes: int = field(default=100, kw_only=True)
    together: int = field(default=2, kw_only=True)
    ppo: PPO = field(default=SCHEDULER_PPO, kw_only=True)
    seed: int = field(default=0, kw_only=True)
    normalise: bool = field(default=True, kw_only=True)
    held_out: Sequence[int] = field(default=(), kw_only=True)
    every: int = field(default=5, kw_only=True)
    on_progress: Callable[[Progress, Learned], None] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        checks.whole(at_least=1, episodes=self.episodes, together=self.together, every=self.every)
        checks.seed(seed=self.seed)
        last = self.seed + self.episodes - 1
        if last >= 2**31:
            raise ValueError(
                f"seed={self.seed} with episodes={self.episodes}: the last seed, {last}, is not below 2**31"
            )
        object.__setattr__(self, "held_out", tuple(self.held_out))  # also of an array, whose truth is not its length
        for seed in self.held_out:
            checks.seed(held_out=seed)
            if self.seed <= seed <= last:
                raise ValueError(
                    f"held_out has {seed}: the episodes have the seeds {self.seed} to {last}; choose others"
                )

    def requests(self) -> Generator[Request, Sequence[History], Learned]:
        """Trains: yields the runs that are needed next, is sent their histories, and at last returns the scheduler.

        Returns:
          The last version of the scheduler, or with `held_out` the one with the greatest mean sum of rewards there.

        Raises:
          ValueError: if the scheduler diverges: its parameters are not finite.
        """
        scheduler, opt_state = self.scheduler, self.ppo.optimizer().init(self.scheduler.params)
        chosen = _Chosen(self.objective, self.held_out)
        yield from chosen.offer(scheduler)
        scale = 0.0
        for number, first in enumerate(range(0, self.episodes, self.together), start=1):
            seeds = range(self.seed + first, self.seed + min(first + self.together, self.episodes))
            histories = yield Request(scheduler, seeds)
            totals = [float(self.objective.rewards(history).sum()) for history in histories]
            # Rewards are divided by the median magnitude of the first runs' sums of rewards, so that the critic's
            # values are about 1 on any workload.
            scale = scale or float(np.median(np.abs(totals))) or 1.0
            key = jax.random.fold_in(jax.random.key(self.seed), first)
            scheduler, opt_state, metrics = learn(
                scheduler,
                opt_state,
                histories,
                self.objective,
                scale=scale,
                ppo=self.ppo,
                normalise=self.normalise,
                key=key,
            )
            last = seeds.stop == self.seed + self.episodes
            held = (yield from chosen.offer(scheduler)) if number % self.every == 0 or last else None
            if self.on_progress is not None:
                reached = [self.objective.reached(history) for history in histories]
                self.on_progress(Progress(seeds.stop - self.seed, totals, reached, metrics, held), scheduler)
        return chosen.best if self.held_out else scheduler


@dataclass
class _Chosen:
    """Chooses the version of a scheduler with the greatest mean sum of rewards on held-out seeds.

    Args:
      objective: the reward.
      seeds: the held-out seeds; without any, nothing is run.
    """

    objective: Objective
    seeds: Sequence[int]
    best: Learned = field(init=False)
    _most: float = field(default=-math.inf, init=False)

    def offer(self, scheduler: Learned) -> Generator[Request, Sequence[History], float | None]:
        """Requests the held-out runs of a version, and keeps it if it is the best so far; returns its mean."""
        if not self.seeds:
            return None
        histories = yield Request(scheduler, self.seeds)
        mean = float(np.mean([self.objective.rewards(history).sum() for history in histories]))
        if not math.isfinite(mean):
            seeds = [int(seed) for seed in self.seeds]
            raise ValueError(f"the mean sum of rewards of the held-out seeds {seeds} is {mean}: check `play`")
        if mean > self._most:
            self._most, self.best = mean, scheduler
        return mean


def train_scheduler(
    scheduler: Learned,
    play: Play,
    objective: Objective,
    *,
    episodes: int = 100,
    together: int = 2,
    ppo: PPO = SCHEDULER_PPO,
    seed: int = 0,
    normalise: bool = True,
    held_out: Sequence[int] = (),
    every: int = 5,
    on_progress: Callable[[Progress, Learned], None] | None = None,
) -> Learned:
    """Trains a scheduler on a workload: plays some episodes at a time, and learns from them.

    The settings without a description are those of `Training`.

    Args:
      scheduler: the scheduler to start from: `Learned.untrained(...)`, or a trained one.
      play: the function that runs the workload.
      objective: the reward.

    Returns:
      The last version of the scheduler, or with `held_out` the one with the greatest mean sum of rewards there.

    Raises:
      ValueError: as `Training`, or if the scheduler diverges: its parameters are not finite.

    Source:
      MinionsRL (AAAI 2024), "Training MinionsRL's Scheduler": 100 episodes, and 10 to fine-tune.
    """
    training = Training(
        scheduler,
        objective,
        episodes=episodes,
        together=together,
        ppo=ppo,
        seed=seed,
        normalise=normalise,
        held_out=held_out,
        every=every,
        on_progress=on_progress,
    )
    (trained,) = train_schedulers([training], lambda schedulers, seeds: play(schedulers[0], seeds))
    return trained


def train_schedulers(trainings: Sequence[Training], play: PlayEach) -> list[Learned]:
    """Trains several schedulers in lockstep: the runs that they need at a time are played by one call of `play`.

    What is learned is the same as in one training after another, if `play` gives a run the same history in any company.
    A training that needs fewer calls than others ends before them.

    Args:
      trainings: the trainings.
      play: the function that runs the workload once for each seed, under the scheduler at the same place.

    Returns:
      The trained schedulers, in the order of the trainings.

    Raises:
      ValueError: if a scheduler diverges, or `play` returns more or fewer histories than it was given seeds. A note of
        an error within a training names its place and its seed.
    """
    steps = [training.requests() for training in trainings]
    trained: dict[int, Learned] = {}
    answers: dict[int, Any] = dict.fromkeys(range(len(trainings)))  # None starts a training
    while answers:
        requests: dict[int, Request] = {}
        for i, histories in answers.items():
            try:
                requests[i] = steps[i].send(histories)
            except StopIteration as end:
                trained[i] = end.value
            except Exception as error:
                error.add_note(f"in trainings[{i}], of {len(trainings)}, with seed={trainings[i].seed}")
                raise
        answers = dict(zip(requests, _answered([*requests.values()], play), strict=True))
    return [trained[i] for i in range(len(trainings))]


def _answered(requests: Sequence[Request], play: PlayEach) -> list[Sequence[History]]:
    """Plays the runs of all requests in one call; returns the histories of each request."""
    if not requests:
        return []
    runs = [(request.scheduler, seed) for request in requests for seed in request.seeds]
    histories = play([scheduler for scheduler, _ in runs], [seed for _, seed in runs])
    if len(histories) != len(runs):
        raise ValueError(f"play returned {len(histories)} histories for {len(runs)} seeds: return one for each seed")
    ends = itertools.accumulate(len(request.seeds) for request in requests)
    return [histories[end - len(request.seeds) : end] for request, end in zip(requests, ends, strict=True)]


def learn(
    scheduler: Learned,
    opt_state: Tree,
    histories: Sequence[History],
    objective: Objective,
    *,
    scale: float,
    ppo: PPO = SCHEDULER_PPO,
    normalise: bool = True,
    key: jax.Array,
) -> tuple[Learned, Tree, dict[str, float]]:
    """Learns from runs in which a scheduler decided the number of actors.

    Args:
      scheduler: the scheduler that decided in these runs.
      opt_state: the state of `ppo.optimizer()`.
      histories: the histories of the runs.
      objective: the reward.
      scale: the number by which rewards are divided.
      ppo: the algorithm.
      normalise: whether the statistics of states are updated by the states of the runs.
      key: the key of the shuffles.

    Returns:
      The new scheduler, the new state of the optimizer, and PPO's metrics.

    Raises:
      ValueError: if a run lacks a complete round or has a number of actors that the scheduler cannot decide, or the
        scheduler diverges: its parameters are not finite.
    """
    hold = scheduler.hold
    statistics = scheduler.statistics
    runs = []
    for history in histories:
        states, decisions = _states_and_decisions(history, objective, most=scheduler.most)
        if normalise:
            statistics = statistics.merge(Statistics.of(states))
        rewards = _held(objective.rewards(history), hold, ppo.discount) / scale
        runs.append((states[::hold], decisions[::hold], rewards))
    # Runs differ in length: they are padded to a power of two, so that few shapes are compiled.
    length = 1 << (max(len(decisions) for _, decisions, _ in runs) - 1).bit_length()
    trajectory = jax.tree.map(lambda *of: np.stack(of, axis=1), *(_padded(*run, length=length) for run in runs))
    static, numbers = _split(replace(ppo, discount=ppo.discount**hold))
    params, opt_state, metrics = _learned(
        scheduler.params,
        scheduler.statistics.normaliser(),
        statistics.normaliser(),
        opt_state,
        trajectory,
        key,
        numbers,
        policy=policy_for(scheduler.most),
        width=scheduler.width,
        ppo=static,
    )
    learned = replace(scheduler, params=jax.tree.map(np.asarray, params), statistics=statistics)
    return learned, opt_state, {name: float(x) for name, x in metrics.items() if np.ndim(x) == 0}


def _states_and_decisions(history: History, objective: Objective, most: int) -> tuple[NDArray, NDArray]:
    """Returns the states `[K, 8]` before each round, and the actions `[K]`: the number of actors minus 1."""
    rounds = objective.rounds(history)
    if other := [one.actors for one in rounds if not 1 <= one.actors <= most]:
        raise ValueError(f"a history has a round with {other[0]} actors: the scheduler decides for 1 to {most}")
    decisions = np.array([one.actors - 1 for one in rounds], np.int32)
    return observed(states_of(rounds, budget=objective.budget)[:-1]), decisions


def _held(rewards: NDArray, hold: int, discount: Any) -> NDArray:
    """Returns the rewards `[D]` of decisions that hold for several rounds: discounted sums of the rounds' rewards.

    Example:
      >>> _held(np.array([1.0, 2.0, 4.0]), 2, 0.5).tolist()
      [2.0, 4.0]
    """
    weights = discount ** (np.arange(len(rewards)) % hold)
    return np.add.reduceat(weights * rewards, np.arange(0, len(rewards), hold))


def _padded(states: NDArray, decisions: NDArray, rewards: NDArray, *, length: int) -> Trajectory:
    """Returns a run as a trajectory of `length` steps; the steps after its end are invalid."""
    missing = length - len(decisions)

    def padded(x: NDArray, rows: int = missing) -> NDArray:
        return np.pad(x, [(0, rows), *[(0, 0)] * (x.ndim - 1)])

    one = np.ones(len(decisions), bool)
    zeros = np.zeros(length, np.float32)
    return Trajectory(
        observation=padded(states, missing + 1),
        action=padded(decisions),
        reward=padded(rewards.astype(np.float32)),
        terminated=padded(np.arange(len(decisions)) == len(decisions) - 1),
        valid=padded(one),
        log_prob=zeros,
        value=np.zeros(length + 1, np.float32),
        version=np.zeros(length, np.int32),
    )


#: The settings that `_learned` traces: trainings that differ in these alone share a compiled program.
_TRACED = ("learning_rate", "discount", "lambda_", "clip", "value_coefficient", "entropy_coefficient")


def _split(ppo: PPO) -> tuple[PPO, dict[str, Any]]:
    """Returns the algorithm without its traced settings, and these. A learning rate that is a schedule stays."""
    numbers = {name: getattr(ppo, name) for name in _TRACED if not callable(getattr(ppo, name))}
    return replace(ppo, **{name: getattr(PPO, name) for name in numbers}), numbers


@functools.partial(jax.jit, static_argnames=("policy", "width", "ppo"))
def _learned(
    params: Tree,
    before: Any,
    normaliser: Any,
    opt_state: Tree,
    trajectory: Trajectory,
    key: jax.Array,
    numbers: Mapping[str, Any],
    *,
    policy: Policy,
    width: float,
    ppo: PPO,
) -> tuple[Tree, Tree, dict[str, Any]]:
    ppo = replace(ppo, **numbers)

    def apply(params: Tree, observation: Any, normaliser: Any = normaliser) -> tuple[Any, jax.Array]:
        return policy.apply(PolicyVersion(shared(params, policy.spec.actions, width), normaliser), observation)

    # The parameters that decided also learn, so values and log-probabilities are computed here instead of being
    # recorded: values as they are learned, log-probabilities as they were when states were normalised otherwise.
    _, value = apply(params, trajectory.observation)
    distribution, _ = apply(params, trajectory.observation, before)
    decided = jax.tree.map(lambda x: x[:-1], distribution).log_prob(trajectory.action)
    batch = ppo.prepare(trajectory._replace(log_prob=decided, value=value))
    return update(ppo, apply, params, opt_state, batch, ppo.minibatches(key, batch))
