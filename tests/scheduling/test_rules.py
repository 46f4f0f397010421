"""Schedulers by rule: each worked by hand, and none decides for a number of actors that there are not."""

from typing import Any

import hypothesis.strategies as st
import jax
import pytest
from hypothesis import given

from stellaris.scheduling import Adapt, Fixed, Maximum, Scheduler, State, Stepped
from stellaris.scheduling.scheduler import decide_actors
from tests.scheduling.states import RUNS, returned, state

KEY = jax.random.key(0)


def decisions(scheduler: Scheduler, rounds: list[int], most: int = 32) -> list[int]:
    return [scheduler.decide([state(number)], most=most, key=KEY) for number in rounds]


def test_fixed_and_maximum() -> None:
    assert decisions(Fixed(7), [1, 10, 1000]) == [7, 7, 7]
    assert decisions(Maximum(), [1, 10, 1000]) == [32, 32, 32]
    assert decisions(Maximum(), [1], most=1) == [1]


@pytest.mark.parametrize(
    ("rule", "expected"),
    [
        (Stepped(first=5, change=10), {1: 5, 10: 5, 11: 15, 20: 15, 21: 25, 30: 25, 31: 32, 500: 32}),
        (Stepped(first=25, change=-10), {1: 25, 10: 25, 11: 15, 20: 15, 21: 5, 30: 5, 31: 1, 500: 1}),
        (Stepped(first=3, change=1, every=1), {1: 3, 2: 4, 3: 5, 30: 32, 31: 32}),
        (Stepped(first=40, change=-4, every=2), {1: 32, 3: 32, 5: 32, 7: 28, 8: 28, 9: 24}),
        (Stepped(first=4, change=0), {1: 4, 100: 4}),
    ],
    ids=["increase", "decrease", "every round", "from above", "no change"],
)
def test_stepped(rule: Stepped, expected: dict[int, int]) -> None:
    """The motivation's increase and decrease, within [1, 32]; what is cut off is not forgotten."""
    assert dict(zip(expected, decisions(rule, list(expected)), strict=True)) == expected


@pytest.mark.parametrize(
    ("window", "returns", "expected"),
    [
        (5, [], 1),  # nothing is known
        (5, [0.0], 1),
        (5, [50.0], 16),
        (5, [20.0, 40.0], 9),  # 32 * 30 / 100 = 9.6
        (5, [90.0, 0.0, 0.0, 0.0, 0.0], 5),  # 32 * 18 / 100 = 5.76
        (5, [90.0, 0.0, 0.0, 0.0, 0.0, 0.0], 1),  # the sixth to last is not in the window
        (5, [0.0, 100.0, 100.0, 100.0, 100.0, 100.0], 32),
        (5, [400.0], 32),
        (5, [-400.0], 1),
        (1, [20.0, 40.0], 12),  # 12.8
        (2, [20.0, 40.0], 9),
    ],
)
def test_adapt(window: int, returns: list[float], expected: int) -> None:
    """`clip(1, mean of the last five / 100 * 32, 32)`; the first state's 0 is no round's return."""
    assert Adapt(target=100.0, window=window).decide(returned(*returns), most=32, key=KEY) == expected


def test_adapt_is_not_one_below() -> None:
    """A mean return of `k` percent of the target decides for exactly `k` of 100 actors."""
    rule = Adapt(target=100.0)
    assert [rule.decide(returned(float(k)), most=100, key=KEY) for k in range(1, 101)] == [*range(1, 101)]


@given(
    RUNS,
    st.integers(1, 64),
    st.one_of(
        st.builds(Stepped, st.integers(1, 99), st.integers(-99, 99), st.integers(1, 20)),
        st.builds(Adapt, st.floats(1e-3, 1e6), st.integers(1, 9)),
        st.just(Maximum()),
    ),
)
def test_every_decision_is_possible(run: list[State], most: int, rule: Scheduler) -> None:
    """A whole number in [1, most]: `decide_actors` returns what was decided, and refuses nothing."""
    number = rule.decide(run, most=most, key=KEY)
    assert type(number) is int
    assert 1 <= number <= most
    assert decide_actors(rule, run, most=most, key=KEY) == number


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: Fixed(0), ValueError, "actors=0 is below 1"),
        (lambda: Fixed(2.5), TypeError, r"actors=2\.5 is not a whole number"),
        (lambda: Stepped(first=0, change=1), ValueError, "first=0 is below 1"),
        (lambda: Stepped(first="3", change=1), TypeError, "first='3' is not a whole number"),
        (lambda: Stepped(first=1, change=1, every=0), ValueError, "every=0 is below 1"),
        (lambda: Adapt(target=0), ValueError, "target=0 is not positive"),
        (lambda: Adapt(target=float("nan")), ValueError, "target=nan is not positive"),
        (lambda: Adapt(target="100"), TypeError, "target='100' is not a number"),
        (lambda: Adapt(target=1.0, window=0), ValueError, "window=0 is below 1"),
        (lambda: Adapt(target=1.0, window=2.5), TypeError, r"window=2\.5 is not a whole number"),
    ],
)
def test_values_that_are_refused(make: Any, error: Any, message: str, unchecked: None) -> None:
    with pytest.raises(error, match=message):
        make()
