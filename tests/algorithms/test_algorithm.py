"""The protocol of algorithms: what keeps it, and what a system says of what does not."""

from dataclasses import dataclass
from typing import Any

import pytest

from stellaris import IMPACT, IMPALA, PPO
from stellaris.algorithms import Algorithm
from stellaris.algorithms.algorithm import check_algorithm


@pytest.mark.parametrize("algorithm", [PPO(), IMPALA(), IMPACT()])
def test_ours_keep_it(algorithm: Any) -> None:
    check_algorithm(algorithm)
    assert isinstance(algorithm, Algorithm)
    assert algorithm == type(algorithm)()
    assert hash(algorithm) == hash(type(algorithm)())


@dataclass(frozen=True)
class Half:
    """Only a loss."""

    def loss(self) -> None: ...


@dataclass
class Changeable:
    """A dataclass that can be compared, and not hashed."""

    optimizer = prepare = minibatches = select = loss = Half.loss


@pytest.mark.parametrize(
    ("algorithm", "message"),
    [
        ("ppo", r"algorithm='ppo' is not an Algorithm: it lacks optimizer, prepare, minibatches, select, loss\."),
        (Half(), r"is not an Algorithm: it lacks optimizer, prepare, minibatches, select\. Pass PPO"),
        (PPO, r"is not an Algorithm: it is a class"),
        (Changeable(), r"cannot be hashed .*make it a frozen dataclass of numbers"),
    ],
)
def test_others_are_refused(algorithm: Any, message: str) -> None:
    with pytest.raises(TypeError, match=message):
        check_algorithm(algorithm)
