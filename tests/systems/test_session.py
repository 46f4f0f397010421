"""The session: what a system of one's own can rely on, shown by systems that learn nothing."""

import itertools
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

from stellaris.runtime import SimulatedPlatform
from stellaris.runtime.delays import Constant
from stellaris.systems import Budget, Result, Session, StalenessControl, train
from tests.systems import tiny

FREE = StalenessControl()


@dataclass
class Sampling:
    """Actors sample, one after the other, and nothing is learned; a round is over when `rounds` says so."""

    rounds: Callable[[int], bool] = lambda delivered: delivered % 2 == 0
    functions: tuple[str, ...] = ("actor",)
    versions: list[Any] = field(default_factory=list)

    def run(self, session: Session) -> None:
        """The event loop."""
        session.rollouts.parked = [0]
        session.rollouts.batch = 1

        def first() -> list[int]:
            session.publish(session.first_params)
            return [0]

        loop = session.begin(first)
        while True:
            session.sample(FREE)
            if (done := session.next_completion(loop)) is None:
                break
            session.deliver(done)
            batch = session.next_batch(tiny.PPO_CONFIG, session.first_params, FREE)
            assert batch is not None
            session.learned_from(batch)
            loop[0] += 1
            session.publish(session.first_params)
            self.versions.append(session.platform.store.value("policy"))
            if self.rounds(loop[0]):
                session.round_over()


def sample(system: Any = None, **options: Any) -> Result:
    """Fragments of 16 steps, of 0.01 s each."""
    options = {"budget": Budget(steps=16 * 10), "prices": ()} | options
    return tiny.run(system or Sampling(), tiny.deployment(), **options)


def test_rounds_are_declared() -> None:
    """Of any size, and of different ones: after 1, 3, 6 and 10 fragments."""
    result = sample(Sampling(lambda delivered: delivered in (1, 3, 6, 10)))
    assert [(row["round"], row["steps"]) for row in result.history] == [(1, 16), (2, 48), (3, 96), (4, 160)]


def test_what_comes_after_the_last_round_is_a_row_of_its_own() -> None:
    """With the number of the last round; and there is none if nothing comes."""
    result = sample(Sampling(lambda delivered: delivered == 4))
    assert [(row["round"], row["steps"]) for row in result.history] == [(1, 64), (1, 160)]
    assert [row["round"] for row in sample().history] == [1, 2, 3, 4, 5]


def test_a_run_without_rounds() -> None:
    """Is one row."""
    result = sample(Sampling(lambda delivered: False))
    assert [(row["round"], row["steps"]) for row in result.history] == [(0, 160)]


def test_versions_normalise_by_what_was_learned_from() -> None:
    """Each by all observations up to then."""
    system = Sampling()
    sample(system)
    means = [version.normaliser.mean for version in system.versions]
    assert len(means) == 10
    assert all(np.abs(one - other).max() > 0 for one, other in itertools.pairwise(means))


def test_a_system_that_waits_for_nothing() -> None:
    """It is told so, instead of ending as if it were done."""

    class Waiting(Sampling):
        def run(self, session: Session) -> None:
            session.next_completion(None)

    with pytest.raises(RuntimeError, match="nothing goes on after 0 s, and the budget is not used up"):
        sample(Waiting())


def test_what_is_no_system(unchecked: None) -> None:
    """It is named, before environments are made."""

    class NoFunctions:
        def run(self, session: Session) -> None:
            pytest.fail("it ran")

    with pytest.raises(TypeError, match=r"system=.*NoFunctions.* is no system: it needs functions"):
        train(
            NoFunctions(),  # type: ignore[arg-type]
            tiny.WORKLOAD,
            platform=SimulatedPlatform(tiny.deployment()),
            budget=Budget(steps=1),
        )


def test_a_function_that_is_missing() -> None:
    """Named at once, by whoever needs it."""
    with pytest.raises(LookupError, match=r"no function 'judge' is deployed: the platform has \['actor', 'learner'"):
        sample(Sampling(functions=("actor", "judge")))


def test_the_budget_ends_the_run_between_two_events() -> None:
    """Of seconds exactly; of steps after the fragment that reaches them."""
    assert sample(budget=Budget(seconds=0.4)).history[-1]["seconds"] == 0.4
    assert sample(budget=Budget(steps=17)).history[-1]["steps"] == 32
    rows = sample(budget=Budget(cost=0.005, steps=1000), prices=tiny.PRICES).history
    assert rows[-1]["cost_demo"] >= 0.005 > rows[0]["cost_demo"]
    assert not math.isnan(rows[-1]["cost_pay_per_use"])


def test_time_is_the_platforms() -> None:
    """Rows have the instants at which the rounds were over."""
    functions = {"actor": tiny.deployment(Constant(0.5))["actor"]}
    result = train(Sampling(), tiny.WORKLOAD, platform=SimulatedPlatform(functions), budget=Budget(steps=64))
    assert [row["seconds"] for row in result.history] == [16.0, 32.0]
