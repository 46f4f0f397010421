"""What schedulers are told, and what they may decide."""

import math
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from stellaris.scheduling import Adapt, Fixed, Maximum, Scheduler, State, Stepped
from stellaris.scheduling.scheduler import check_scheduler, decide_actors, states_of
from stellaris.systems.history import rounds_of
from tests.scheduling.states import state

KEY = jax.random.key(0)


@dataclass(frozen=True)
class Deciding:
    """Decides for what it was made with, whatever that is."""

    what: Any

    def decide(self, states: Any, *, most: int, key: Any) -> Any:
        """That."""
        return self.what


# ---- what they are told ----------------------------------------------------------------------------------------------

#: Three rounds that end after 2, 5 and 6 seconds; no episode ends in the second, and the learner reports no loss.
HISTORY: list[dict[str, float]] = [
    {
        "round": 1,
        "seconds": 2.0,
        "steps": 32,
        "episodes": 1,
        "episode_return": 11.0,
        "round_return": 20.0,
        "loss": 0.5,
        "policy_kl": 0.01,
        "learner_seconds": 0.5,
        "actor_seconds": 1.25,
        "actors": 2.0,
        "cost_usd": 0.25,
        "cost_other": 9.0,
    },
    {
        "round": 2,
        "seconds": 5.0,
        "steps": 48,
        "episodes": 1,
        "episode_return": 12.0,
        "learner_seconds": 1.0,
        "actor_seconds": 1.5,
        "actors": 1.0,
        "cost_usd": 0.75,
        "cost_other": 10.0,
    },
    {
        "round": 3,
        "seconds": 6.0,
        "steps": 80,
        "episodes": 2,
        "episode_return": 13.0,
        "round_return": 30.0,
        "loss": -0.25,
        "policy_kl": 0.04,
        "learner_seconds": 0.125,
        "actor_seconds": 0.75,
        "actors": 2.0,
        "cost_usd": 1.125,
        "cost_other": 11.0,
    },
]


def test_the_states_by_hand() -> None:
    """The paper's eight numbers: of the round before, with that round's duration, and what is left of the budget."""
    assert State._fields == (
        "round",
        "loss",
        "episode_return",
        "policy_kl",
        "learner_seconds",
        "actor_seconds",
        "round_seconds",
        "budget",
    )
    assert states_of(rounds_of(HISTORY, "usd"), budget=2.0) == [
        State(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 2.0),
        State(2, 0.5, 20.0, 0.01, 0.5, 1.25, 2.0, 1.75),
        State(3, 0.0, 20.0, 0.0, 1.0, 1.5, 3.0, 1.25),  # no episode ended: the return is the last that is known
        State(4, -0.25, 30.0, 0.04, 0.125, 0.75, 1.0, 0.875),
    ]


def test_until_an_episode_has_ended_the_return_is_zero() -> None:
    """As it is before the first round."""
    assert [s.episode_return for s in states_of(rounds_of(HISTORY[1:], "usd"), budget=2.0)] == [0.0, 0.0, 30.0]


def test_without_a_budget_it_is_infinite() -> None:
    """With prices, and without."""
    for sheet in ("usd", ""):
        assert {s.budget for s in states_of(rounds_of(HISTORY, sheet), budget=math.inf)} == {math.inf}


def test_nothing_else_is_told() -> None:
    """Other columns of the history change nothing."""
    others = [
        row | {"steps": 7.0, "actors": 31.0, "episodes": 9, "episode_return": -1.0, "cost_other": 0.0}
        for row in HISTORY
    ]
    assert states_of(rounds_of(others, "usd"), budget=2.0) == states_of(rounds_of(HISTORY, "usd"), budget=2.0)


# ---- what they decide ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "number",
    [1, 32, 2.0, np.int64(3), np.float32(4.0), np.int32(5), np.array(6), jnp.int32(7), jnp.uint8(8), jnp.bfloat16(9.0)],
)
def test_a_whole_number_is_one_whatever_its_type(number: Any) -> None:
    """And it becomes Python's own."""
    got = decide_actors(Deciding(number), [state(7)], most=32, key=KEY)
    assert got == number
    assert type(got) is int


@pytest.mark.parametrize(
    "number",
    [
        *(0, -1, 33, 2.5, math.nan, math.inf, -math.inf, None, "3", [2], np.float64("nan"), 1j),
        *(True, np.True_, jnp.bool_(True), np.array([3]), jnp.array([3]), jnp.float32(2.5), jnp.int32(33)),
    ],
)
def test_an_impossible_decision_is_named(number: Any, unchecked: None) -> None:
    """With the scheduler, what it decided, and the round."""
    with pytest.raises(
        ValueError,
        match=r"^Deciding\(what=.*\) decided for .* actors in round 7: expected a whole number from 1 to 32$",
    ) as error:
        decide_actors(Deciding(number), [state(7)], most=32, key=KEY)
    assert f"decided for {number!r} actors" in str(error.value)


@pytest.mark.parametrize("scheduler", [Fixed(3), Maximum(), Stepped(1, 2), Adapt(9.0), Deciding(1)])
def test_what_is_a_scheduler(scheduler: Any) -> None:
    """Those of the library, and any value that can decide; they are values."""
    check_scheduler(scheduler)
    assert isinstance(scheduler, Scheduler)
    assert hash(scheduler) == hash(type(scheduler)(**vars(scheduler)))


@pytest.mark.parametrize("scheduler", [Fixed, 3, None, "maximum", lambda states: 1])
def test_what_is_none(scheduler: Any, unchecked: None) -> None:
    """A class is not, which has a method of that name too."""
    with pytest.raises(TypeError, match=r"scheduler=.* is not a scheduler: pass one of stellaris.scheduling"):
        check_scheduler(scheduler)
