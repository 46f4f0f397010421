"""How a scheduler is learned: rewards by hand, and learning on runs that are made up."""

import math
import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from stellaris._core.describe import digest
from stellaris.acting.normalisation import Statistics
from stellaris.scheduling import Learned, State
from stellaris.scheduling.learned import observed, policy_for
from stellaris.scheduling.objective import History, Objective
from stellaris.scheduling.scheduler import decide_actors, states_of
from stellaris.scheduling.training import (
    SCHEDULER_PPO,
    Progress,
    Training,
    _learned,
    _states_and_decisions,
    learn,
    train_scheduler,
    train_schedulers,
)
from stellaris.systems.history import rounds_of

OBJECTIVE = Objective(target=100.0, budget=2.0, sheet="usd", window=8)


def ended(
    number: int, seconds: float, cost: float, episode_return: float, *, actors: int = 4, episodes: int = 9
) -> dict[str, float]:
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
    return [ended(i + 1, *SPENT[i], episode_return, episodes=episodes) for i, episode_return in enumerate(returns)]


def test_rewards_are_what_rounds_take() -> None:
    """Half of the seconds; or of the percents of the budget. Another beta, another share."""
    history = run_of(20.0, 60.0, 100.0)
    assert OBJECTIVE.reached(history)
    assert OBJECTIVE.rewards(history).tolist() == [-1.5, -0.5, -1.0]
    assert replace(OBJECTIVE, minimise="cost").rewards(history).tolist() == [-12.5, -6.25, -25.0]
    assert replace(OBJECTIVE, beta=0.25).rewards(history).tolist() == [-0.75, -0.25, -0.5]


@pytest.mark.parametrize(
    ("changed", "returns", "episodes", "reached", "last"),
    [
        ({}, (20.0, 70.0, 60.0), 9, False, -1.0 - 30.0),  # the best return lacks 30
        ({"budget": 1.75}, (20.0, 60.0, 130.0), 9, True, -1.0),  # all of the budget may be spent
        ({"budget": 1.5}, (20.0, 60.0, 130.0), 9, False, -1.0),  # too expensive, but nothing is lacking
        ({"budget": 1.5, "target": 150.0}, (20.0, 60.0, 130.0), 9, False, -1.0 - 20.0),
        ({}, (20.0, 60.0, 130.0), 8, True, -1.0),
        ({}, (20.0, 60.0, 130.0), 7, False, None),  # the window is not full: a few lucky episodes are not the target
        ({}, (math.nan, math.nan, math.nan), 0, False, -1.0 - 100.0),  # no episode has ended: all is lacking
        ({"target": -100.0}, (math.nan, math.nan, math.nan), 0, False, -1.0 - 100.0),
        ({}, (math.nan, math.nan, 40.0), 9, False, -1.0 - 60.0),
    ],
)
def test_runs_that_have_failed(changed: Any, returns: Any, episodes: int, reached: bool, last: float | None) -> None:
    """The return that the best round lacks is added to the last round's reward, and to no other."""
    history, objective = run_of(*returns, episodes=episodes), replace(OBJECTIVE, **changed)
    assert objective.reached(history) == reached
    if last is not None:
        assert objective.rewards(history).tolist() == [-1.5, -0.5, last]


def evaluated(*returns: float | None) -> list[dict[str, float]]:
    """A run with evaluations in some rounds, whose training episodes are too few and return nothing."""
    rows = run_of(*[0.0] * len(returns), episodes=1)
    return [row if one is None else {**row, "evaluation_return": one} for row, one in zip(rows, returns, strict=True)]


@pytest.mark.parametrize(
    ("returns", "reached", "last"),
    [
        ((None, 60.0, 100.0), True, -1.0),
        ((None, 60.0, 99.0), False, -1.0 - 1.0),
        ((70.0, 60.0, None), False, -1.0 - 30.0),  # the best of the evaluations
        ((60.0, 100.0, None), True, -1.0),  # the last evaluation is still the last that is known
        ((100.0, 60.0, None), False, -1.0),
    ],
)
def test_a_target_of_evaluations(returns: Any, reached: bool, last: float) -> None:
    """Evaluations alone decide, whatever the training episodes return, and without a full window."""
    objective = replace(OBJECTIVE, evaluated=True)
    assert objective.reached(evaluated(*returns)) == reached
    assert objective.rewards(evaluated(*returns)).tolist() == [-1.5, -0.5, last]
    assert not replace(objective, budget=1.5).reached(evaluated(*returns))
    assert OBJECTIVE.rewards(evaluated(*returns)).tolist() == [-1.5, -0.5, -1.0 - 100.0]


def test_a_target_of_evaluations_without_any() -> None:
    objective = replace(OBJECTIVE, evaluated=True)
    for call in (objective.reached, objective.rewards):
        with pytest.raises(ValueError, match=r"none of the run's 2 rounds has an evaluation_return; pass evaluation="):
            call(run_of(100.0, 100.0))


def test_a_run_that_ends_within_a_round() -> None:
    """Of what was begun there is no decision to learn from; what it has cost until then decides nothing."""
    history = run_of(20.0, 70.0)
    without_learner = {**ended(3, 9.0, 5.0, 170.0)}
    del without_learner["learner_seconds"]
    unscheduled = {name: x for name, x in without_learner.items() if name != "actors"}
    for last in (without_learner, unscheduled):
        assert OBJECTIVE.rewards([*history, last]).tolist() == OBJECTIVE.rewards(history).tolist() == [-1.5, -30.5]
    with pytest.raises(ValueError, match="a history of 1 rows lacks a complete round whose actors a scheduler decided"):
        OBJECTIVE.rewards([without_learner])


def test_a_sheet_that_the_history_lacks() -> None:
    with pytest.raises(ValueError, match="sheet='eur' is not among the price sheets of the history: usd"):
        replace(OBJECTIVE, sheet="eur").rewards(run_of(20.0))


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
    with pytest.raises(ValueError, match=said):
        replace(OBJECTIVE, **changed)


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
        history: list[dict[str, float]] = []
        for number in range(1, self.rounds[seed % len(self.rounds)] + 1):
            states = states_of(rounds_of(history, EASY.sheet), budget=EASY.budget)
            actors = decide_actors(scheduler, states, most=MOST, key=jax.random.key(seed))
            before = history[-1]["seconds"] if history else 0.0
            history.append(ended(number, before + 0.1 + abs(actors - BEST), 0.01 * number, 1.0, actors=actors))
        self.states.append(states)
        return history


START = Learned.untrained(most=MOST, seed=0)


def away(scheduler: Learned) -> float:
    rounds = [row["actors"] for seed in range(500, 520) for row in Made().run(scheduler, seed)]
    return float(np.mean(np.abs(np.array(rounds) - BEST)))


@pytest.mark.slow
def test_it_learns_what_is_best() -> None:
    """Five actors, in every round: it finds that out by their rewards."""
    assert away(START) > 1.8  # 2.5 where all decisions are alike
    learned = train_scheduler(START, Made(), EASY, episodes=160)
    assert away(learned) < 0.9


@pytest.mark.slow
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


@pytest.mark.slow
def test_going_on() -> None:
    """Fine-tuning starts from what was learned, and counts the states on."""
    first = train_scheduler(START, Made(), EASY, episodes=4)
    made = Made()
    tuned = train_scheduler(first, made, EASY, episodes=2, together=2, seed=50)
    assert made.asked[0][0] is first
    assert (first.statistics.count, tuned.statistics.count) == (4 * ROUNDS, 6 * ROUNDS)
    assert digest(tuned) != digest(first)


@pytest.mark.slow
def test_it_learns_from_what_it_has_seen() -> None:
    """The states before each decision, and the decisions: neither one more nor one less; and normalises by them."""
    made = Made()
    (history,) = made(START, [0])
    states, decisions = _states_and_decisions(history, EASY, most=MOST)
    np.testing.assert_array_equal(states, observed(made.states[0]))
    assert [row["actors"] for row in history] == (decisions + 1).tolist()
    learned, _, _ = learn(START, START_OPTIMIZER, [history], EASY, scale=1.0, key=jax.random.key(0))
    np.testing.assert_allclose(learned.statistics.mean, observed(made.states[0]).mean(axis=0), rtol=1e-6)
    assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(learned.params))


START_OPTIMIZER = SCHEDULER_PPO.optimizer().init(START.params)


@pytest.mark.slow
def test_runs_of_different_lengths() -> None:
    """One round, and more than a power of two: all of them are learned from."""
    histories = Made(rounds=(1, 5))(START, [0, 1])
    learned, _, metrics = learn(START, START_OPTIMIZER, histories, EASY, scale=1.0, key=jax.random.key(0))
    assert learned.statistics.count == 6
    assert all(math.isfinite(x) for x in metrics.values())


@pytest.mark.slow
def test_a_run_that_diverges_leaves_a_scheduler() -> None:
    """Its loss is not a number, its return out of all bounds: what is learned is finite all the same."""
    history = [dict(row) for row in Made()(START, [0])[0]]
    history[2] |= {"loss": math.nan, "policy_kl": math.inf, "round_return": -1e300}
    learned, _, _ = learn(START, START_OPTIMIZER, [history], EASY, scale=1.0, key=jax.random.key(0))
    assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves((learned.params, learned.statistics)))
    assert np.isfinite(jax.tree.leaves(learned.version.normaliser)).all()


@pytest.mark.parametrize("actors", [0, MOST + 1])
def test_a_number_of_actors_that_was_not_decided(actors: int) -> None:
    """Not learned from: an index out of range would be read as another number, without an error."""
    history = [dict(row) for row in Made()(START, [0])[0]]
    history[1]["actors"] = actors
    with pytest.raises(ValueError, match=f"a round with {actors} actors: the scheduler decides for 1 to {MOST}"):
        learn(START, START_OPTIMIZER, [history], EASY, scale=1.0, key=jax.random.key(0))


def test_failures_in_units_of_the_run() -> None:
    """Rewards of -3 in all; 60 of 100 were missing, so that the penalty is 0.6 of that, or twice as much."""
    history = run_of(20.0, 30.0, 40.0)
    for failure, penalty in ((1.0, 1.8), (2.0, 3.6)):
        rewards = replace(OBJECTIVE, failure=failure).rewards(history)
        np.testing.assert_allclose(rewards, [-1.5, -0.5, -1.0 - penalty])
    lost = replace(OBJECTIVE, failure=1.0).rewards(run_of(-900.0, -900.0, -900.0))
    np.testing.assert_allclose(lost, [-1.5, -0.5, -1.0 - 3.0])  # a whole run at most
    assert replace(OBJECTIVE, failure=1.0).rewards(run_of(20.0, 60.0, 100.0)).tolist() == [-1.5, -0.5, -1.0]
    # A target of 0, missed by little; and reached, but beyond the budget, which costs no penalty.
    zero = replace(OBJECTIVE, failure=1.0, target=0.0)
    assert zero.rewards(run_of(-3.0, -2.0, -1.0)).sum() == pytest.approx(2 * -3.0)
    assert replace(zero, budget=1e-6).rewards(run_of(20.0, 60.0, 100.0)).sum() == pytest.approx(-3.0)


@pytest.mark.slow
def test_decisions_that_hold_are_learned_from_once() -> None:
    """Six rounds with decisions for four are two decisions: what is learned is independent of the other rounds' actors.

    The states of all rounds count for the statistics.
    """
    start = replace(START, hold=4)
    (history,) = Made()(start, [0])
    assert len({row["actors"] for row in history[:4]}) == len({row["actors"] for row in history[4:]}) == 1

    def learned(rows: History) -> Learned:
        version, _, _ = learn(start, START_OPTIMIZER, [rows], EASY, scale=1.0, key=jax.random.key(0))
        return version

    states, decisions = _states_and_decisions(history, EASY, most=MOST)
    assert len(states) == len(decisions) == 6
    assert digest(learned(history).statistics) == digest(START.statistics.merge(Statistics.of(states)))
    others, deciding = ([dict(row) for row in history] for _ in range(2))
    others[5]["actors"] = deciding[4]["actors"] = 1 + history[4]["actors"] % 4
    assert digest(learned(others).params) == digest(learned(history).params)
    assert digest(learned(deciding).params) != digest(learned(history).params)


@pytest.mark.slow
def test_neighbours_learn_together() -> None:
    """A run with few seconds makes its number of actors likelier, and with a kernel the neighbours as well."""
    runs = [[ended(1, seconds, 0.01, 1.0, actors=actors)] for actors, seconds in ((5, 1.0), (10, 9.0))]
    state = observed([State(1, *[0.0] * 7)._replace(budget=EASY.budget)])

    def risen(width: float) -> Any:
        start = replace(START, hold=9, width=width)
        after, _, _ = learn(start, START_OPTIMIZER, runs, EASY, scale=1.0, normalise=False, key=jax.random.key(0))
        first, last = (policy_for(MOST).apply(one.version, state)[0].logits[0] for one in (start, after))
        return np.asarray(last - first) - float((last - first)[0])  # beside one actor, which no run had

    alone, together = risen(0.0), risen(0.2)
    assert alone[4] == max(alone) > 0 > alone[9] == min(alone)
    assert together[4] > 0 > together[9]
    assert together[[3, 5]].mean() > 0.3 * together[4]
    assert alone[[3, 5]].mean() < 0.1 * alone[4]


@pytest.mark.slow
def test_states_that_stay_raw() -> None:
    (history,) = Made()(START, [0])
    learned, _, _ = learn(START, START_OPTIMIZER, [history], EASY, scale=1.0, normalise=False, key=jax.random.key(0))
    assert digest(learned.statistics) == digest(START.statistics)


@pytest.mark.slow
def test_the_version_that_is_best_on_held_out_seeds() -> None:
    """Is returned: not the last, where what is learned from is the opposite of what is held out."""

    def turned(scheduler: Learned, seeds: Sequence[int]) -> list[History]:
        runs = Made()(scheduler, seeds)
        if seeds[0] >= 900:
            return runs
        return [[{**row, "seconds": 50.0 * row["round"] - row["seconds"]} for row in history] for history in runs]

    told: list[tuple[Progress, Learned]] = []
    settings: dict[str, Any] = {"episodes": 80, "held_out": range(900, 910), "every": 10}
    best = train_scheduler(START, turned, EASY, on_progress=lambda *of: told.append(of), **settings)
    assert [one.held_out is not None for one, _ in told] == [number % 10 == 0 for number in range(1, 41)]
    first = float(np.mean([EASY.rewards(history).sum() for history in Made()(START, range(900, 910))]))
    offered = {first: START} | {one.held_out: version for one, version in told if one.held_out is not None}
    assert best is offered[max(offered)] is not told[-1][1]


def test_held_out_runs_without_a_reward() -> None:
    """An array of seeds is read as a list, and NaN are refused where they occur."""

    def broken(scheduler: Learned, seeds: Sequence[int]) -> list[History]:
        return [[{**row, "seconds": math.nan} for row in history] for history in Made()(scheduler, seeds)]

    with pytest.raises(ValueError, match=r"the mean sum of rewards of the held-out seeds \[0\] is nan"):
        train_scheduler(START, broken, EASY, episodes=2, seed=10, held_out=np.array([0]))  # type: ignore[arg-type]


class MadeForEach(Made):
    """The same runs, with a scheduler for each; how many there were in each call."""

    def __init__(self) -> None:
        super().__init__(rounds=(3, 4))
        self.counts: list[int] = []

    def each(self, schedulers: Sequence[Learned], seeds: Sequence[int]) -> list[History]:
        self.counts.append(len(seeds))
        return [self.run(scheduler, seed) for scheduler, seed in zip(schedulers, seeds, strict=True)]


@pytest.mark.slow
def test_trainings_in_lockstep() -> None:
    """Learn bit for bit what each learns alone, and are told the same; one needs fewer calls than the others."""
    told: list[tuple[int, Progress]] = []
    trainings = [
        Training(START, EASY, episodes=6, seed=7),
        Training(START, replace(EASY, minimise="cost"), episodes=4, seed=7, held_out=(900, 901), every=1),
        Training(replace(START, hold=2), EASY, episodes=3, together=2, seed=30),
    ]
    trainings = [
        replace(one, on_progress=lambda progress, _, i=i: told.append((i, progress))) for i, one in enumerate(trainings)
    ]
    made = MadeForEach()
    together = train_schedulers(trainings, made.each)
    # Held-out runs come before the first update and after each. The third training's last update has one run.
    assert made.counts == [2 + 2 + 2, 2 + 2 + 1, 2 + 2, 2, 2]
    lockstep, told[:] = sorted(told, key=lambda one: one[0]), []
    alone = [train_schedulers([one], MadeForEach().each)[0] for one in trainings]
    assert [digest(one) for one in together] == [digest(one) for one in alone]
    assert len({digest(one) for one in together}) == 3
    assert lockstep == told
    by_name = train_scheduler(START, MadeForEach(), EASY, episodes=6, seed=7)
    assert digest(by_name) == digest(together[0])


def test_an_error_in_one_of_several_trainings() -> None:
    """Names its place and its seed; an error of `play` belongs to none."""
    trainings = [Training(START, EASY, episodes=1, together=1, seed=seed) for seed in (3, 5)]
    with pytest.raises(ValueError, match="lacks a complete round") as raised:
        train_schedulers(trainings[1:], lambda schedulers, seeds: [[] for _ in seeds])
    assert raised.value.__notes__ == ["in trainings[0], of 1, with seed=5"]

    def fails(schedulers: Sequence[Learned], seeds: Sequence[int]) -> list[History]:
        raise OSError("no machine")

    with pytest.raises(OSError, match="no machine") as unnamed:
        train_schedulers(trainings, fails)
    assert not hasattr(unnamed.value, "__notes__")
    with pytest.raises(ValueError, match="play returned 1 histories for 2 seeds"):
        train_schedulers(trainings, lambda schedulers, seeds: [[]])
    assert train_schedulers([], fails) == []


@pytest.mark.parametrize("name", ["episodes", "together", "every"])
def test_numbers_of_a_training(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 is below 1"):
        Training(START, EASY, **{name: 0})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"held_out": range(4)}, "held_out has 0: the episodes have the seeds 0 to 3; choose others"),
        ({"held_out": [9, 13], "seed": 10}, "held_out has 13: the episodes have the seeds 10 to 13"),
        ({"held_out": [-1]}, "held_out=-1 is below 0"),
        ({"held_out": [2**31]}, "held_out=2147483648 is not below 2**31"),
        ({"seed": 2**31 - 3}, "seed=2147483645 with episodes=4: the last seed, 2147483648, is not below 2**31"),
    ],
)
def test_seeds_that_are_refused(settings: dict[str, Any], message: str) -> None:
    """At once: held-out runs that are learned from, and seeds outside [0, 2^31)."""
    with pytest.raises(ValueError, match=re.escape(message)):
        Training(START, EASY, episodes=4, **settings)


def test_seeds_next_to_each_other() -> None:
    """The seeds just before and after those of the episodes may be held out, and 2^31 - 1 is a seed."""
    Training(START, EASY, episodes=4, seed=1, held_out=(0, 5))
    Training(START, EASY, episodes=4, seed=2**31 - 4)


@pytest.mark.slow
def test_settings_that_share_a_program() -> None:
    """Each changes what is learned, without another compilation."""
    (history,) = Made()(START, [0])

    def learned(**changed: float) -> str:
        ppo = replace(SCHEDULER_PPO, **changed)
        return digest(learn(START, START_OPTIMIZER, [history], EASY, scale=1.0, ppo=ppo, key=jax.random.key(0))[0])

    first, compiled = learned(), _learned._cache_size()
    others = [
        learned(**{name: 0.1 * getattr(SCHEDULER_PPO, name)})
        for name in ("learning_rate", "discount", "lambda_", "clip", "value_coefficient", "entropy_coefficient")
    ]
    assert len({first, *others}) == 7
    assert _learned._cache_size() == compiled
    assert learned() == first
