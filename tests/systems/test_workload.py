"""Workloads and budgets: values, and bad ones are refused at once."""

import math
from typing import Any

import numpy as np
import pytest

from stellaris.acting import ActorCritic, EnvSpec, Policy
from stellaris.systems import Budget, Workload


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload("CartPole-v1", actors=0), r"actors=0"),
        (lambda: Workload("CartPole-v1", fragment=0), r"fragment=0"),
        (lambda: Budget(), r"a limit of steps, seconds or cost"),
        (lambda: Budget(seconds=0.0), r"seconds=0\.0"),
        (lambda: Budget(steps=100, target_return=math.nan), r"target_return=nan is never reached"),
        (lambda: Budget(cost=-1.0), r"cost=-1\.0 is not positive"),
        (lambda: Budget(target_return=5.0), r"a target alone may never be reached"),
        (lambda: Budget(steps=99, target_return=5.0), r"target_return=5\.0 is never reached in steps=99"),
        (
            lambda: Budget(steps=9, target_return=5.0, window=10),
            r"never reached in steps=9.* return of window=10 episodes",
        ),
        (lambda: Budget(steps=9, window=0), r"window=0 is below 1"),
    ],
)
def test_values_out_of_range(make: Any, message: str) -> None:
    """Each error names the argument and its value."""
    with pytest.raises(ValueError, match=message):
        make()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Workload(_Thing()), r"environment=<.*_Thing object.*>: expected a name, a callable that makes one"),
        (lambda: Workload("CartPole-v1", actors=2.0), r"actors=2\.0 is not a whole number: pass an int"),
        (lambda: Workload("CartPole-v1", fragment="16"), r"fragment='16' is not a whole number"),
        (lambda: Workload("CartPole-v1", policy=(8,)), r"policy=\(8,\) is not a function of the EnvSpec"),
        (lambda: Budget(seconds="3"), r"seconds='3' is not a number"),
        (lambda: Budget(steps=None), r"steps=None is not a number"),
        (lambda: Budget(steps=9, window=2.5), r"window=2\.5 is not a whole number"),
    ],
)
def test_values_of_another_type(make: Any, message: str, unchecked: None) -> None:
    """By name, not from deep within."""
    with pytest.raises(TypeError, match=message):
        make()


class _Thing:
    """No environment, and nothing that makes one."""


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"refresh": 3}, "refresh=3 does not divide fragment=16"),
        ({"refresh": 0}, "refresh=0 is below 1"),
        ({"refresh": 4, "restart": True}, "refresh=4: with restart=True every piece would start a new episode"),
    ],
)
def test_actors_settings(changes: dict[str, Any], message: str) -> None:
    """What does not go together is named."""
    with pytest.raises(ValueError, match=message):
        Workload("CartPole-v1", fragment=16, **changes)


def test_they_are_values() -> None:
    """Compared, hashed and printed by what they hold."""
    one, other = (Workload("CartPole-v1", policy=ActorCritic(hidden=(8,)), actors=2) for _ in range(2))
    assert one == other
    assert hash(one) == hash(other)
    assert repr(one) == (
        "Workload(environment='CartPole-v1', policy=ActorCritic(hidden=(8,)), actors=2, fragment=256, refresh=None, "
        "restart=False)"
    )
    assert one != Workload("CartPole-v1", policy=ActorCritic(hidden=(9,)), actors=2)
    assert Budget(seconds=1) == Budget(seconds=1.0)


def test_the_policy_is_made_for_the_environment() -> None:
    """By whatever makes one; what is made is looked at."""
    spec = EnvSpec("Own-v0", np.zeros(3), actions=2, discrete=True)
    assert isinstance(Workload("Own-v0").make_policy(spec), Policy)
    wrong: Any = lambda spec: "a policy"  # noqa: E731
    with pytest.raises(TypeError, match=r"returned 'a policy' for Own-v0: expected a Policy"):
        Workload("Own-v0", policy=wrong).make_policy(spec)


def test_a_window_is_of_the_episodes_of_a_target() -> None:
    """So many steps are enough, at least; without a target the window is of the history alone."""
    assert Budget(steps=10, target_return=5.0, window=10).window == 10
    assert Budget(steps=9, window=10).window == 10
    assert Budget(steps=9).window == 100
