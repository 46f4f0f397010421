"""How a scheduler is learned: rewards by hand, and learning on runs that are made up."""

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from stellaris._core.describe import digest
from stellaris.acting.policies import Policy
from stellaris.scheduling import Learned, State
from stellaris.scheduling.learned import observed, policy_for
from stellaris.scheduling.scheduler import decide_actors, states_of
from stellaris.scheduling.training import (
    SCHEDULER_PPO,
    History,
    Objective,
    Progress,
    _learned,
    _padded,
    _states_and_decisions,
    learn,
    train_scheduler,
)
from stellaris.systems.history import rounds_of

# ---- rewards ----------------------------------------------------------------------------------------------------

OBJECTIVE = Objective(target=100.0, budget=2.0, sheet="usd", window=8)


def ended(
    number: int, seconds: float, cost: float, episode_return: float, *, actors: int = 4, episodes: int = 9
) -> dict[str, float]:
    """A row of the history, of a round that is over."""
    return {
        "round": number,
        "seconds": seconds,
        "cost_usd": cost,
        "episodes": episodes,
        "episode_return": episode_return,
        "round_return": episode_return,
        "actors": actors,
        "actor_seconds": 0.75,
        "learner_seconds": 0.25,
        "loss": 0.5,
        "policy_kl": 0.01,
    }


#: Rounds of 3, 1 and 2 s that cost 0.5, 0.25 and 1 USD.
SPENT = ((3.0, 0.5), (4.0, 0.75), (6.0, 1.75))


def run_of(*returns: float, episodes: int = 9) -> list[dict[str, float]]:
    """With these returns after its rounds."""
    return [ended(i + 1, *SPENT[i], episode_return, episodes=episodes) for i, episode_return in enumerate(returns)]


def test_rewards_are_what_rounds_take() -> None:
    """Half of the seconds; or of the percents of the budget. Another beta, another share."""
    history = run_of(20.0, 60.0, 100.0)
    assert OBJECTIVE.reached(history)
    assert OBJECTIVE.rewards(history).tolist() == [-1.5, -0.5, -1.0]
    assert replace(OBJECTIVE, minimise="cost").rewards(history).tolist() == [-12.5, -6.25, -25.0]
    assert replace(OBJECTIVE, beta=0.25).rewards(history).tolist() == [-0.75, -0.25, -0.5]


def test_a_run_that_has_failed() -> None:
    """What its best return lacks is added to the last round's reward, and to no other."""
    history = run_of(20.0, 70.0, 60.0)
    assert not OBJECTIVE.reached(history)
    assert OBJECTIVE.rewards(history).tolist() == [-1.5, -0.5, -1.0 - 30.0]


def test_a_run_that_has_overdrawn_its_budget() -> None:
    """Has failed, though its return was reached: there is nothing that it lacks, and nothing that it gains."""
    history = run_of(20.0, 60.0, 130.0)
    tight = replace(OBJECTIVE, budget=1.5)
    assert OBJECTIVE.reached(history)
    assert not tight.reached(history)
    assert tight.rewards(history).tolist() == [-1.5, -0.5, -1.0]
    assert replace(tight, target=150.0).rewards(history).tolist() == [-1.5, -0.5, -21.0]
    assert replace(OBJECTIVE, budget=1.75).reached(history)  # all of it may be spent


def test_a_window_that_is_not_full() -> None:
    """A few lucky episodes are not the target."""
    assert not OBJECTIVE.reached(run_of(20.0, 60.0, 130.0, episodes=7))
    assert OBJECTIVE.reached(run_of(20.0, 60.0, 130.0, episodes=8))


def test_a_run_without_an_episode() -> None:
    """Its return is not a number: it lacks all of the target."""
    history = run_of(math.nan, math.nan, episodes=0)
    assert OBJECTIVE.rewards(history).tolist() == [-1.5, -0.5 - 100.0]
    assert replace(OBJECTIVE, target=-100.0).rewards(history).tolist() == [-1.5, -0.5 - 100.0]
    assert OBJECTIVE.rewards(run_of(math.nan, 40.0)).tolist() == [-1.5, -0.5 - 60.0]


def test_a_run_that_ends_within_a_round() -> None:
    """Of what was begun there is no decision to learn from; what it has cost until then decides nothing."""
    history = run_of(20.0, 70.0)
    without_learner = {**ended(3, 9.0, 5.0, 170.0)}
    del without_learner["learner_seconds"]
    unscheduled = {name: x for name, x in without_learner.items() if name != "actors"}
    for last in (without_learner, unscheduled):
        assert OBJECTIVE.rewards([*history, last]).tolist() == OBJECTIVE.rewards(history).tolist() == [-1.5, -30.5]
    with pytest.raises(ValueError, match="a history of 1 rows lacks a complete round that a scheduler decided about"):
        OBJECTIVE.rewards([without_learner])


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"beta": 0.0}, r"beta=0.0 is not in \(0, 1\)"),
        ({"beta": 1.0}, r"beta=1.0 is not in \(0, 1\)"),
        ({"beta": math.nan}, r"beta=nan is not in \(0, 1\)"),
        ({"budget": 0.0}, "budget=0.0 is not positive"),
        ({"target": math.inf}, "target=inf is not finite"),
        ({"window": 0}, "window=0 is below 1"),
        ({"minimise": "energy"}, """minimise='energy' is neither "time" nor "cost\""""),
    ],
)
def test_objectives_that_are_none(changed: dict[str, Any], said: str) -> None:
    """The setting, its value and what it has to be."""
    with pytest.raises(ValueError, match=said):
        replace(OBJECTIVE, **changed)


# ---- learning on runs that are made up --------------------------------------------------------------------------

MOST, BEST, ROUNDS = 10, 5, 6
EASY = Objective(target=1.0, budget=10.0, sheet="usd", window=8)


class Made:
    """Runs whose rounds take as many seconds as the actors are away from five; what was asked of it."""

    def __init__(self, rounds: Sequence[int] = (ROUNDS,)) -> None:
        self.rounds = rounds  #: of a run, by its seed.
        self.asked: list[tuple[Learned, list[int]]] = []
        self.states: list[list[State]] = []

    def __call__(self, scheduler: Learned, seeds: Sequence[int]) -> list[History]:
        self.asked.append((scheduler, [*seeds]))
        return [self.run(scheduler, seed) for seed in seeds]

    def run(self, scheduler: Learned, seed: int) -> History:
        """One run."""
        history: list[dict[str, float]] = []
        for number in range(1, self.rounds[seed % len(self.rounds)] + 1):
            states = states_of(rounds_of(history, EASY.sheet), budget=EASY.budget)
            key = jax.random.fold_in(jax.random.key(seed), number)
            actors = decide_actors(scheduler, states, most=MOST, key=key)
            before = history[-1]["seconds"] if history else 0.0
            history.append(ended(number, before + 0.1 + abs(actors - BEST), 0.01 * number, 1.0, actors=actors))
        self.states.append(states)
        return history


START = Learned.untrained(most=MOST, seed=0)


def away(scheduler: Learned) -> float:
    """How far its decisions are from the best ones, on average."""
    rounds = [row["actors"] for seed in range(500, 520) for row in Made().run(scheduler, seed)]
    return float(np.mean(np.abs(np.array(rounds) - BEST)))


def test_it_learns_what_is_best() -> None:
    """Five actors, in every round: it finds that out by their rewards."""
    assert away(START) > 1.8  # 2.5 where all decisions are alike
    learned = train_scheduler(START, Made(), EASY, episodes=160)
    assert away(learned) < 0.9


@pytest.mark.slow
def test_the_same_seed_learns_the_same() -> None:
    """Bit for bit; another one plays other runs, and so learns something else."""
    one, again, other = (train_scheduler(START, Made(), EASY, episodes=6, seed=seed) for seed in (3, 3, 4))
    assert digest(one) == digest(again) != digest(other)
    assert digest(START) == digest(Learned.untrained(most=MOST, seed=0))  # it is not what is changed


def test_rewards_are_of_one_size() -> None:
    """By what the first runs come to: half as much for every second is the same task. Nothing at all is no error."""
    one, half = (train_scheduler(START, Made(), replace(EASY, beta=beta), episodes=6) for beta in (0.5, 0.25))
    assert digest(one) == digest(half)

    def free(scheduler: Learned, seeds: Sequence[int]) -> list[History]:
        return [[{**row, "cost_usd": 0.0} for row in history] for history in Made()(scheduler, seeds)]

    learned = train_scheduler(START, free, replace(EASY, minimise="cost"), episodes=4)
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(learned.params))


@pytest.mark.slow
def test_who_is_told_what() -> None:
    """Runs count on from the seed, under one version together; the last of them may be fewer."""
    made = Made()
    told: list[tuple[Progress, Learned]] = []
    last = train_scheduler(START, made, EASY, episodes=5, together=2, seed=7, on_progress=lambda *of: told.append(of))
    assert [seeds for _, seeds in made.asked] == [[7, 8], [9, 10], [11]]
    assert [progress.episodes for progress, _ in told] == [2, 4, 5]
    assert made.asked[0][0] is START
    assert [scheduler for scheduler, _ in made.asked[1:]] == [scheduler for _, scheduler in told[:-1]]
    assert told[-1][1] is last
    progress, _ = told[0]
    expected = [float(EASY.rewards(made.run(START, seed)).sum()) for seed in (7, 8)]
    assert progress.rewards == expected
    assert progress.reached == [True, True]
    assert [len(progress.rewards) for progress, _ in told] == [2, 2, 1]
    assert {"policy_loss", "value_loss", "entropy"} <= {*progress.metrics}


def test_going_on() -> None:
    """Fine-tuning starts from what was learned, and counts the states on."""
    first = train_scheduler(START, Made(), EASY, episodes=4)
    made = Made()
    tuned = train_scheduler(first, made, EASY, episodes=2, together=2, seed=50)
    assert made.asked[0][0] is first
    assert (first.statistics.count, tuned.statistics.count) == (4 * ROUNDS, 6 * ROUNDS)
    assert digest(tuned) != digest(first)


def test_it_learns_from_what_it_has_seen() -> None:
    """The states before each decision, and the decisions: neither one more nor one less; and normalises by them."""
    made = Made()
    (history,) = made(START, [0])
    states, decisions = _states_and_decisions(history, EASY)
    np.testing.assert_array_equal(states, observed(made.states[0]))
    assert [row["actors"] for row in history] == (decisions + 1).tolist()
    learned, _, _ = learn(START, START_OPTIMIZER, [history], EASY, scale=1.0, key=jax.random.key(0))
    np.testing.assert_allclose(learned.statistics.mean, observed(made.states[0]).mean(axis=0), rtol=1e-6)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(learned.params))


START_OPTIMIZER = SCHEDULER_PPO.optimizer().init(START.params)
PPO_ONCE = replace(SCHEDULER_PPO, epochs=1)


@pytest.mark.slow
def test_what_is_padded_changes_nothing() -> None:
    """Runs of three and five rounds learn the same in arrays of five and of eight; whatever is in the rest."""
    policy: Policy = policy_for(MOST)
    histories = Made(rounds=(3, 5))(START, [0, 1])
    runs = [(*_states_and_decisions(one, EASY), EASY.rewards(one)) for one in histories]

    def after(length: int, *, rest: float = 0.0) -> list[Any]:
        padded = [_padded(*run, length=length) for run in runs]
        padded = [
            one._replace(
                observation=np.where(np.arange(length + 1)[:, None] < one.valid.sum(), one.observation, rest),
                action=np.where(one.valid, one.action, int(rest)),
                reward=np.where(one.valid, one.reward, rest),
            )
            for one in padded
        ]
        trajectory: Any = jax.tree.map(lambda *of: np.stack(of, axis=1).astype(of[0].dtype), *padded)
        trajectory = trajectory._replace(
            observation=trajectory.observation.astype(np.float32),
            action=trajectory.action.astype(np.int32),
            reward=trajectory.reward.astype(np.float32),
        )
        key = jax.random.key(0)
        params, _, _ = _learned(START.version, START_OPTIMIZER, trajectory, key, policy=policy, ppo=PPO_ONCE)
        return jax.tree.leaves(params)

    expected = after(5)
    changed = [np.abs(one - other).max() for one, other in zip(expected, jax.tree.leaves(START.params), strict=True)]
    assert min(changed) > 1e-3
    for other in (after(8), after(8, rest=3.0)):
        for one, same in zip(expected, other, strict=True):
            np.testing.assert_allclose(one, same, atol=2e-5)


def test_runs_of_different_lengths() -> None:
    """One round, and more than a power of two: all of them are learned from."""
    learned, _, metrics = learn(
        START, START_OPTIMIZER, Made(rounds=(1, 5))(START, [0, 1]), EASY, scale=1.0, key=jax.random.key(0)
    )
    assert learned.statistics.count == 6
    assert all(math.isfinite(x) for x in metrics.values())


def test_a_run_that_diverges_leaves_a_scheduler() -> None:
    """Its loss is not a number, its return out of all bounds: what is learned is finite all the same."""
    history = [dict(row) for row in Made()(START, [0])[0]]
    history[2] |= {"loss": math.nan, "policy_kl": math.inf, "round_return": -1e300}
    learned, _, _ = learn(START, START_OPTIMIZER, [history], EASY, scale=1.0, key=jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((learned.params, learned.statistics)))
    assert np.isfinite(jax.tree.leaves(learned.version.normaliser)).all()


@pytest.mark.parametrize("wrong", [{"episodes": 0}, {"together": 0}, {"seed": -1}])
def test_numbers_that_are_too_small(wrong: dict[str, int]) -> None:
    """Before anything is played."""
    made = Made()
    ((name, value),) = wrong.items()
    with pytest.raises(ValueError, match=f"{name}={value} is below"):
        train_scheduler(START, made, EASY, **wrong)  # type: ignore[arg-type]
    assert not made.asked
