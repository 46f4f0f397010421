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
        return self.what


#: Three rounds that end after 2, 5 and 6 seconds; no episode ends in the second, and the learner reports no loss.
COLUMNS = ("round", "seconds", "cost_usd", "learner_seconds", "actor_seconds", "round_return", "loss", "policy_kl")
OTHERS = {"steps": 32, "episodes": 1, "episode_return": 11.0, "actors": 2.0, "cost_other": 9.0}
HISTORY: list[dict[str, float]] = [
    OTHERS | dict(zip(COLUMNS, row, strict=False))
    for row in (
        (1, 2.0, 0.25, 0.5, 1.25, 20.0, 0.5, 0.01),
        (2, 5.0, 0.75, 1.0, 1.5),
        (3, 6.0, 1.125, 0.125, 0.75, 30.0, -0.25, 0.04),
    )
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


def test_evaluations_are_of_rounds_and_not_of_states() -> None:
    """A scheduler sees the paper's numbers alone."""
    looked_at = [HISTORY[0], {**HISTORY[1], "evaluation_return": 25.0}, HISTORY[2]]
    rounds = rounds_of(looked_at, "usd")
    assert [one.evaluation_return for one in rounds] == [None, 25.0, None]
    assert states_of(rounds, budget=2.0) == states_of(rounds_of(HISTORY, "usd"), budget=2.0)


def test_until_an_episode_has_ended_the_return_is_zero() -> None:
    assert [s.episode_return for s in states_of(rounds_of(HISTORY[1:], "usd"), budget=2.0)] == [0.0, 0.0, 30.0]


def test_without_a_budget_it_is_infinite() -> None:
    for sheet in ("usd", ""):
        assert {s.budget for s in states_of(rounds_of(HISTORY, sheet), budget=math.inf)} == {math.inf}


@pytest.mark.parametrize(
    "number",
    [1, 32, 2.0, np.int64(3), np.float32(4.0), np.int32(5), np.array(6), jnp.int32(7), jnp.uint8(8), jnp.bfloat16(9.0)],
)
def test_a_whole_number_is_one_whatever_its_type(number: Any) -> None:
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
    with pytest.raises(
        ValueError,
        match=r"^Deciding\(what=.*\) decided for .* actors in round 7: expected a whole number from 1 to 32$",
    ) as error:
        decide_actors(Deciding(number), [state(7)], most=32, key=KEY)
    assert f"decided for {number!r} actors" in str(error.value)


@pytest.mark.parametrize("scheduler", [Fixed(3), Maximum(), Stepped(1, 2), Adapt(9.0), Deciding(1)])
def test_what_is_a_scheduler(scheduler: Any, unchecked: None) -> None:
    """The library's, and any value that can decide; a class is not, though it has a method of that name."""
    check_scheduler(scheduler)
    assert isinstance(scheduler, Scheduler)
    for other in (type(scheduler), 3, None, "maximum", lambda states: 1):
        with pytest.raises(TypeError, match=r"scheduler=.* is not a scheduler: pass one of stellaris.scheduling"):
            check_scheduler(other)
