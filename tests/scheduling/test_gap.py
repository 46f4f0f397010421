"""A scheduler closes most of the gap between all actors and the best fixed number, with realistic delays and noise."""

from collections.abc import Callable, Sequence

import jax
import numpy as np
import pytest

from stellaris.scheduling import Learned
from stellaris.scheduling.objective import History, Objective
from stellaris.scheduling.scheduler import states_of
from stellaris.scheduling.training import train_scheduler
from stellaris.systems.history import rounds_of

MOST, REPORTED, HELD_OUT = 32, range(500, 530), range(300, 308)
OBJECTIVE = Objective(target=195.0, budget=0.08, sheet="usd", window=32, minimise="cost", failure=1.0)
Decide = Callable[[History, jax.Array], int]


def run(decide: Decide, seed: int, *, unrelated: bool = False) -> History:
    """Runs a workload whose gradients take as long for any number of actors, and whose rounds hardly depend on it.

    The rounds to the target are 12 (1 + 4 / I) for I actors. A run is fast or slow by 20 %, a round learns more or less
    by 30 %, and durations vary by 10 %. If what a run takes is `unrelated` to the decisions, it has another number of
    actors than is decided.
    """
    random, key = np.random.default_rng([seed, 7]), jax.random.key(seed)
    speed, other = np.exp(random.normal(0.0, 0.2)), np.random.default_rng([seed, 8]).integers(1, MOST + 1)
    history: list[dict[str, float]] = []
    seconds, cost, progress, episodes = 0.0, 0.0, 0.0, 0
    while len(history) < 400 and cost <= OBJECTIVE.budget:
        decided = decide(history, key)
        actors = int(other) if unrelated else decided
        sampling, learning = np.array([2.05, 0.39]) * np.exp(random.normal(0.0, 0.1, 2))
        seconds += sampling + learning
        cost += 9e-4 * learning + 2.2e-5 * sampling * actors
        progress += speed * np.exp(random.normal(0.0, 0.3)) / (12 * (1 + 4 / actors))
        episodes += 3 * actors
        episode_return = 20.0 + 180.0 * min(progress, 1.3) ** 2
        history.append(
            {
                "round": len(history) + 1,
                "seconds": seconds,
                "cost_usd": cost,
                "episodes": episodes,
                "episode_return": episode_return,
                "round_return": episode_return + random.normal(0.0, 10.0),
                "actors": decided,
                "actor_seconds": sampling,
                "learner_seconds": learning,
                "loss": 0.5,
                "policy_kl": 0.01,
            }
        )
        if OBJECTIVE.reached(history):
            break
    return history


def play(scheduler: Learned, seeds: Sequence[int], *, unrelated: bool = False) -> list[History]:
    def decide(history: History, key: jax.Array) -> int:
        states = states_of(rounds_of(history, OBJECTIVE.sheet), budget=OBJECTIVE.budget)
        return scheduler.decide(states, most=MOST, key=key)

    return [run(decide, seed, unrelated=unrelated) for seed in seeds]


def play_unrelated(scheduler: Learned, seeds: Sequence[int]) -> list[History]:
    """Only the runs that choose a version take what was decided."""
    return play(scheduler, seeds, unrelated=not set(seeds) <= set(HELD_OUT))


def cost(histories: Sequence[History]) -> float:
    return float(np.mean([history[-1]["cost_usd"] for history in histories]))


def always(actors: int) -> float:
    return cost([run(lambda history, key: actors, seed) for seed in REPORTED])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("hold", "together", "width", "least"), [(1, 2, 0.0, 0.8), (2**20, 8, 0.0, 0.9), (2**20, 8, 0.25, 0.9)]
)
def test_the_gap_is_closed_within_a_hundred_episodes(hold: int, together: int, width: float, least: float) -> None:
    """On seeds that neither training nor the choice of a version has seen.

    At least 70 % is wanted. An untrained scheduler closes 58 %, and one whose runs tell nothing less than `least`.
    Where a decision holds for one round, the choice of a version may do as much as learning: with other draws of the
    workload, 0.83 was closed, and 0.85 by runs that tell nothing.
    """
    everyone, best = always(MOST), min(always(actors) for actors in (4, 6, 8, 10, 12, 16))
    assert best < 0.6 * everyone
    start = Learned.untrained(most=MOST, seed=0, hold=hold, width=width)

    def closed(scheduler: Learned) -> float:
        return (everyone - cost(play(scheduler, REPORTED))) / (everyone - best)

    learned, misled = (
        train_scheduler(start, of, OBJECTIVE, episodes=100, together=together, seed=1000, held_out=HELD_OUT, every=3)
        for of in (play, play_unrelated)
    )
    assert closed(start) < 0.7
    assert closed(misled) < least <= closed(learned)
