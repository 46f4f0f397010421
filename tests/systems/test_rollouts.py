"""Fragments between actors and learners, one transition at a time."""

import math
from typing import Any

import numpy as np
import pytest

from stellaris.acting.normalisation import Statistics
from stellaris.acting.rollout import Episode, Fragment
from stellaris.systems.rollouts import Lags, Lost, Rollouts
from stellaris.systems.staleness_control import StalenessControl
from stellaris.types import Trajectory

FREE = StalenessControl()


def fragment(
    steps: int = 4,
    *,
    slot: int = 0,
    first: int = 0,
    environment: int = 5,
    versions: tuple[int, ...] = (0,),
    unfinished: int = 0,
    resets: int = 0,
) -> Fragment:
    """A fragment whose steps are numbered, and were chosen by these versions in turn."""
    numbers = np.arange(first, first + steps, dtype=np.float32)[:, None]
    trajectory = Trajectory(
        observation=np.arange(first, first + steps + 1, dtype=np.float32)[:, None, None],
        action=numbers.astype(np.int32),
        reward=numbers,
        terminated=np.zeros((steps, 1), bool),
        valid=np.arange(steps)[:, None] >= resets,
        log_prob=-numbers,
        value=np.full((steps + 1, 1), float(versions[0]), np.float32),
        version=np.resize(np.repeat(np.int32(versions), steps // len(versions)), (steps, 1)),
    )
    episodes = (Episode(1.0, first),)
    return Fragment(
        trajectory, Statistics.of(trajectory.observation[:-1, 0]), episodes, slot, first, environment, unfinished
    )


def test_actors_start_in_turn_as_far_as_the_control_admits() -> None:
    rollouts, control = Rollouts(parked=[0, 1, 2], batch=2), StalenessControl(pace=0)
    assert [rollouts.take_actor(control) for _ in range(3)] == [0, 1, None]
    rollouts.add(1, fragment(), 4, 0)
    rollouts.add(0, fragment(), 4, 0)
    assert rollouts.take_actor(control) is None
    rollouts.learned = 1
    assert [rollouts.take_actor(control) for _ in range(3)] == [2, 1, None]
    assert (rollouts.accepted, rollouts.running) == (2, 2)


def test_a_round_is_begun_by_the_first_actors() -> None:
    """As many as are asked for, in order, whoever delivered last; the next batch is of their fragments."""
    rollouts, control = Rollouts(parked=[2, 0, 3, 1], batch=4), StalenessControl(pace=0)
    rollouts.begin_round(3)
    assert [rollouts.take_actor(control) for _ in range(4)] == [0, 1, 2, None]
    assert (rollouts.batch, rollouts.running, rollouts.parked) == (3, 3, [3])
    for actor in (2, 0):
        rollouts.add(actor, fragment(), 4, 0)
    assert rollouts.take() is None
    rollouts.add(1, fragment(), 4, 0)
    assert len(rollouts.take() or ()) == 3
    rollouts.learned = 1
    rollouts.begin_round(4)
    assert [rollouts.take_actor(control) for _ in range(5)] == [0, 1, 2, 3, None]
    assert (rollouts.batch, rollouts.running, rollouts.parked) == (4, 4, [])


def test_pieces_are_joined() -> None:
    """Four and four steps make eight; the inner observation and value are the second piece's, as they are the same."""
    rollouts = Rollouts(parked=[7], batch=1)
    rollouts.take_actor(FREE)
    assert rollouts.add(7, fragment(first=0, versions=(3,)), 8, 3) == Lost(0, 0)
    assert (rollouts.parked, rollouts.waiting, rollouts.unlearned) == ([], [], 4)
    rollouts.add(7, fragment(first=4, versions=(5,), resets=1), 8, 5)
    assert (rollouts.parked, rollouts.running, rollouts.unlearned) == ([7], 0, 7)
    taken = rollouts.take()
    assert taken is not None
    whole = taken[0].fragment
    np.testing.assert_array_equal(whole.trajectory.observation[:, 0, 0], np.arange(9))
    np.testing.assert_array_equal(whole.trajectory.reward[:, 0], np.arange(8))
    np.testing.assert_array_equal(whole.trajectory.value[:, 0], [3, 3, 3, 3, 5, 5, 5, 5, 5])
    np.testing.assert_array_equal(whole.trajectory.version[:, 0], [3, 3, 3, 3, 5, 5, 5, 5])
    assert (whole.first, whole.steps, whole.resets, len(whole.episodes)) == (0, 8, 1, 2)
    assert float(whole.statistics.count) == 8
    assert taken[0].lags(9) == Lags(in_flight=2, in_queue=4, oldest=6, mean=5.0, span=2)


@pytest.mark.parametrize(
    ("pieces", "losses", "delivered"),
    [
        # Pieces lead nowhere, and the episode will not end; the fragment begins anew.
        (
            [{"first": 8, "unfinished": 3, "resets": 1}, {"first": 0, "unfinished": 4}, {"first": 4, "unfinished": 8}],
            [Lost(0, 0), Lost(steps=3, episode=3), Lost(0, 0)],
            [0],
        ),
        # The step has the number that is due, as nobody heard of the first ones; but it is another environment's.
        (
            [{"first": 0}, {"first": 4, "environment": 6}, {"first": 8, "environment": 6}],
            [Lost(0, 0), Lost(steps=4, episode=0), Lost(0, 0)],
            [4],
        ),
        # Nobody heard of the first steps of the other environment, but the episode of the one before is lost.
        (
            [{"first": 8}, {"first": 12, "unfinished": 5}, {"first": 4, "environment": 6}],
            [Lost(0, 0), Lost(0, 0), Lost(0, episode=5)],
            [8],
        ),
    ],
)
def test_a_lost_environment(pieces: Any, losses: Any, delivered: Any) -> None:
    rollouts = Rollouts(parked=[0], batch=1)
    rollouts.take_actor(FREE)
    assert [rollouts.add(0, fragment(**piece), 8, 0) for piece in pieces] == losses
    assert [waiting.fragment.first for waiting in rollouts.waiting] == delivered


def test_the_oldest_come_first() -> None:
    """By the version of their oldest step, and of equals the one that arrived first."""
    rollouts = Rollouts(parked=[], batch=2)
    for number, versions in enumerate([(5,), (4, 6), (4,), (7,)]):
        rollouts.add(number, fragment(versions=versions), 4, 7)
    taken = rollouts.take()
    assert taken is not None
    assert [waiting.number for waiting in taken] == [1, 2]
    assert [waiting.number for waiting in rollouts.waiting] == [0, 3]


def test_what_is_thrown_away() -> None:
    rollouts = Rollouts(parked=[], batch=1)
    for versions in [(5,), (3, 6), (7,)]:
        rollouts.add(0, fragment(versions=versions), 4, 7)
    gone = rollouts.discard(StalenessControl(discard=2), 7)
    assert [waiting.number for waiting in gone] == [1]
    assert [waiting.number for waiting in rollouts.waiting] == [0, 2]
    assert not rollouts.discard(StalenessControl(window=math.inf), 7)
