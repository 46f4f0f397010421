"""Workloads and budgets: values, and bad ones are refused at once."""

import math
from typing import Any

import numpy as np
import pytest

from stellaris.acting import EnvSpec, Policy
from stellaris.systems import Budget, Workload


def workload(environment: Any = "CartPole-v1", **changes: Any) -> Workload:
    return Workload(environment, **({"fragment": 16} | changes))


@pytest.mark.parametrize(
    ("make", "error", "message"),
    [
        (lambda: workload(actors=0), ValueError, r"actors=0"),
        (lambda: workload(fragment=0), ValueError, r"fragment=0"),
        (lambda: workload(refresh=3), ValueError, "refresh=3 does not divide fragment=16"),
        (lambda: workload(refresh=0), ValueError, "refresh=0 is below 1"),
        (lambda: workload(refresh=4, restart=True), ValueError, "refresh=4: restart=True would start an episode"),
        (lambda: workload(object()), TypeError, r"environment=<object.*>: expected a name, a callable that makes one"),
        (lambda: workload(actors=2.0), TypeError, r"actors=2\.0 is not a whole number: pass an int"),
        (lambda: workload(fragment="16"), TypeError, r"fragment='16' is not a whole number"),
        (lambda: workload(policy=(8,)), TypeError, r"policy=\(8,\) is not a function of the EnvSpec"),
        (lambda: Budget(60.0), TypeError, r"positional"),  # which limit is meant?
        (lambda: Budget(), ValueError, r"a limit of steps, seconds or cost"),
        (lambda: Budget(seconds=0.0), ValueError, r"seconds=0\.0"),
        (lambda: Budget(steps=100, target_return=math.nan), ValueError, r"target_return=nan is never reached"),
        (lambda: Budget(steps=9, target_evaluation=math.nan), ValueError, r"target_evaluation=nan is never reached"),
        (lambda: Budget(steps=9, target_evaluation="5"), TypeError, r"target_evaluation='5' is not a number"),
        (lambda: Budget(target_evaluation=5.0), ValueError, r"a target alone may never be reached"),
        (lambda: Budget(cost=-1.0), ValueError, r"cost=-1\.0 is not positive"),
        (lambda: Budget(target_return=5.0), ValueError, r"a target alone may never be reached"),
        (lambda: Budget(steps=99, target_return=5.0), ValueError, r"target_return=5\.0 is never reached in steps=99"),
        (
            lambda: Budget(steps=9, target_return=5.0, window=10),
            ValueError,
            r"never reached in steps=9.* return of window=10 episodes",
        ),
        (lambda: Budget(steps=9, window=0), ValueError, r"window=0 is below 1"),
        (lambda: Budget(seconds="3"), TypeError, r"seconds='3' is not a number"),
        (lambda: Budget(steps=None), TypeError, r"steps=None is not a number"),
        (lambda: Budget(steps=9, window=2.5), TypeError, r"window=2\.5 is not a whole number"),
    ],
)
def test_values_that_are_refused(make: Any, error: Any, message: str, unchecked: None) -> None:
    with pytest.raises(error, match=message):
        make()


def test_the_policy_is_made_for_the_environment() -> None:
    spec = EnvSpec("Own-v0", np.zeros(3), actions=2, discrete=True)
    assert isinstance(Workload("Own-v0").make_policy(spec), Policy)
    wrong: Any = lambda spec: "a policy"  # noqa: E731
    with pytest.raises(TypeError, match=r"returned 'a policy' for Own-v0: expected a Policy"):
        Workload("Own-v0", policy=wrong).make_policy(spec)


def test_a_window_is_of_the_episodes_of_a_target() -> None:
    """So many steps are enough, at least; without a target the window is of the history alone."""
    assert Budget(steps=10, target_return=5.0, window=10).window == 10
    assert Budget(steps=9, window=10).window == 10
    assert Budget(steps=9, target_evaluation=5.0, window=10).window == 10
    assert Budget(steps=9).window == 100
