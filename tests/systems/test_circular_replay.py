"""IMPACT: batches stand in a circular buffer, and get their turns around a target that is renewed now and then."""

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from stellaris import IMPACT
from stellaris.runtime.delays import Constant, LogNormal
from stellaris.systems import Budget, CircularReplay, StalenessControl, Synchronous
from tests.systems import tiny

ALGORITHM = IMPACT(learning_rate=1e-2, epochs=1, minibatch_size=16)
IN_STEP = StalenessControl(pace=0)


@pytest.mark.slow
def test_once_around_itself_in_step_it_is_the_synchronous_system() -> None:
    """A buffer of one batch, one turn each, the newest policy for a target: bit for bit."""
    functions = tiny.deployment(LogNormal(0.01, 0.5), LogNormal(0.1, 0.5))
    impact = CircularReplay(ALGORITHM, buffer=1, passes=1, target_period=1, control=IN_STEP)
    one, other = (tiny.run(s, functions, budget=Budget(steps=32 * 5)) for s in (impact, Synchronous(ALGORITHM)))
    jax.tree.map(np.testing.assert_array_equal, one.policy, other.policy)
    assert one.history == other.history
    assert one.history[-1]["version"] >= 4


@pytest.mark.slow
@pytest.mark.parametrize(("buffer", "passes"), [(1, 1), (1, 3), (3, 2)])
def test_each_batch_gets_its_turns(buffer: int, passes: int) -> None:
    """Where data is slow: each batch is gone over so many times; its transitions are learned from once."""
    system = CircularReplay(ALGORITHM, buffer=buffer, passes=passes)
    result = tiny.run(system, tiny.deployment(Constant(0.1), Constant(0.001)), budget=Budget(steps=32 * 6))
    last = result.history[-1]
    rounds = len(result.trace.select("age:oldest").value) / tiny.WORKLOAD.actors
    assert rounds >= 5
    assert last["version"] == pytest.approx(passes * (rounds - 1), abs=passes)
    spent = sum(result.trace.select(event).value.sum() for event in ("learned", "waiting", "reset"))
    assert spent == result.trace.select("sampled").value.sum()


@pytest.mark.slow
def test_newer_batches_take_the_places_of_older_ones() -> None:
    """Where data is fast: batches leave before their last turn, and those that had none are counted as thrown away."""
    system = CircularReplay(ALGORITHM, buffer=2, passes=50, control=StalenessControl())
    result = tiny.run(system, tiny.deployment(Constant(0.001), Constant(0.1)), budget=Budget(steps=32 * 30))
    assert result.history[-1]["discarded"] > 0
    spent = sum(result.trace.select(event).value.sum() for event in ("learned", "waiting", "reset", "discarded"))
    assert spent == result.trace.select("sampled").value.sum()


def test_another_fragment_is_sampled_for_a_discarded_one() -> None:
    """Also if no event is to come: the only actor's fragment is too old, because a second turn ended meanwhile."""
    system = CircularReplay(ALGORITHM, passes=2, control=StalenessControl(pace=0, discard=0))
    workload = replace(tiny.WORKLOAD, actors=1)
    result = tiny.run(system, tiny.deployment(Constant(0.1), Constant(0.05)), workload=workload)
    assert result.history[-1]["discarded"] > 0
    assert result.history[-1]["steps"] == 4 * 32


@pytest.mark.parametrize(("period", "renewed"), [(1, 12), (3, 4), (None, 2)])
def test_the_target_is_renewed_every_so_many_turns(
    period: int | None, renewed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By default once a full buffer has had all its turns: two batches of three."""
    from stellaris.systems import Fragments

    targets: list[Any] = []
    make = Fragments.batch

    def spying(self: Fragments, algorithm: Any, fragments: Any, target: Any, **options: Any) -> Any:
        targets.append(target)
        return make(self, algorithm, fragments, target, **options)

    monkeypatch.setattr(Fragments, "batch", spying)
    system = CircularReplay(ALGORITHM, buffer=2, passes=3, target_period=period)
    tiny.run(system, tiny.deployment(Constant(0.1), Constant(0.001)), budget=Budget(steps=32 * 5))
    assert len({id(target) for target in targets[:12]}) == renewed


@pytest.mark.parametrize("name", ["buffer", "passes", "target_period"])
def test_errors(name: str) -> None:
    with pytest.raises(ValueError, match=f"{name}=0 is below 1"):
        CircularReplay(**{name: 0})
