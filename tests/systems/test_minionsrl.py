"""MinionsRL: rounds last and cost what the paper's equations say; its budget, and a number of actors that varies."""

import itertools
import logging
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import chex
import jax
import numpy as np
import pytest

from stellaris import IMPALA
from stellaris.runtime import Faults, FunctionSpec, Retry, SimulatedPlatform, Transfer
from stellaris.runtime.delays import Constant, Exponential, LogNormal
from stellaris.runtime.endings import ENDINGS
from stellaris.scheduling import Adapt, Fixed, Maximum, Scheduler, State, Stepped
from stellaris.scheduling.objective import Objective
from stellaris.systems import Budget, CentralInference, DataParallel, Evaluation, MinionsRL, Result, Synchronous, train
from tests.systems import tiny
from tests.systems.rounds import ACTORS, BY_USE, DRAWN, JITTERY, WORKLOAD, Drawing, differences, rounds_of, run

#: Everything that may take time beside computing; containers end after a while.
SLOW = tiny.deployment(
    *DRAWN,
    queueing=LogNormal(0.02, 0.5),
    cold_start=LogNormal(0.3, 0.5),
    initialisation=LogNormal(0.1, 0.5),
    transfer=Transfer(LogNormal(0.01, 0.5), bandwidth=1e5),
    keep_alive=0.5,
)
FAULTS = {
    "crashed": Faults(crash_during=0.15, duplicate=0.2, lifetime=Exponential(5.0)),
    "lost": Faults(lose=0.15, notice_after=Exponential(0.3)),
}
SCHEDULERS: dict[str, Scheduler] = {
    "maximum": Maximum(),
    "fixed": Fixed(3),
    "increase": Stepped(1, 1, every=1),
    "decrease": Stepped(8, -3, every=2),
    "adapt": Adapt(target=40.0),
    "drawing": Drawing(),
}


def assert_waited_for(result: Result, *, cost: bool) -> None:
    """Eq. 1, `P = P^l + max P^a`, of waits, and Eq. 2, `C = price * (P^l d^l + sum P^a d^a)`, if no attempt failed."""
    rounds = rounds_of(result)
    assert len(rounds) >= 4
    seconds, costs = differences(result, "seconds"), differences(result, "cost_pay_per_use")
    for one, row, duration, spent in zip(rounds, result.history, seconds, costs, strict=False):
        assert duration == pytest.approx(one.learner_wait + max(one.waits), rel=1e-12)
        assert not cost or spent == pytest.approx(0.2 * one.learner_ran + 0.1 * sum(one.ran), rel=1e-12)
        assert row["learner_seconds"] == pytest.approx(one.learner_wait, rel=1e-12)
        assert row["actor_seconds"] == pytest.approx(np.mean(one.waits), rel=1e-12)
        assert row["actors"] == len(one.waits)


@pytest.mark.slow
@pytest.mark.parametrize("name", SCHEDULERS)
def test_durations_and_costs_are_the_papers(name: str) -> None:
    """Actors and learners wait for nothing but their own functions."""
    result = run(SCHEDULERS[name])
    for one in rounds_of(result):
        assert [*one.waits, one.learner_wait] == pytest.approx([*one.ran, one.learner_ran], rel=1e-12)
    assert_waited_for(result, cost=True)


@pytest.mark.slow
@pytest.mark.parametrize("prewarm", [False, True])
def test_queues_cold_starts_and_transfers_are_waited_for(prewarm: bool) -> None:
    result = run(Stepped(2, 2, every=2), SLOW, prewarm=prewarm)
    assert all(min(np.subtract(one.waits, one.ran)) > 0.005 for one in rounds_of(result))
    assert_waited_for(result, cost=True)


@pytest.mark.slow
@pytest.mark.parametrize("ending", FAULTS)
def test_faults_are_waited_for(ending: str) -> None:
    """A function that crashes or gets lost is tried again: Eq. 1 holds for the longer waits."""
    functions = {name: replace(spec, retry=Retry(limit=99)) for name, spec in SLOW.items()}
    platform = SimulatedPlatform(functions, seed=3, threads=1, faults=dict.fromkeys(functions, FAULTS[ending]))
    system = MinionsRL(tiny.PPO_CONFIG, Stepped(8, -1, every=1))
    result = train(system, WORKLOAD, platform=platform, budget=Budget(steps=16 * 44), prices=BY_USE)
    assert np.sum(result.trace.invocations().ending == ENDINGS.index(ending)) >= 4
    assert_waited_for(result, cost=False)


@pytest.mark.slow
def test_a_fragment_in_pieces_is_waited_for_as_one() -> None:
    """An actor that refreshes its policy has several invocations, in a container of its own."""
    result = run(Fixed(3), SLOW, workload=replace(WORKLOAD, refresh=4))
    table = result.trace.invocations()
    actor = np.array(table.names)[table.function] == "actor"
    began = 0.0
    rounds = rounds_of(result)
    assert len(rounds) >= 5
    for one, row in zip(rounds, result.history, strict=False):
        now = actor & (table.submitted >= began) & (table.submitted < one.over)
        containers = set(table.container[now].tolist())
        assert (now.sum(), len(containers), row["actors"]) == (3 * 4, 3, 3)
        waits = [table.ended[now & (table.container == container)].max() - began for container in containers]
        assert row["actor_seconds"] == pytest.approx(np.mean(waits), rel=1e-12)
        assert row["seconds"] - began == pytest.approx(max(waits) + row["learner_seconds"], rel=1e-12)
        began = row["seconds"]


@pytest.fixture
def logged_compiles() -> Iterator[None]:
    jax.config.update("jax_log_compiles", True)
    yield
    jax.config.update("jax_log_compiles", False)


@pytest.mark.slow
def test_the_number_of_actors_changes_without_compiling(
    caplog: pytest.LogCaptureFixture, logged_compiles: None
) -> None:
    """A run with 1 to 8 actors compiles everything that a second one needs."""
    counts = []
    for scheduler in (Stepped(1, 1, every=1), Stepped(8, -3, every=1)):
        caplog.clear()
        with caplog.at_level(logging.WARNING):  # no other test has fragments of 13 steps
            run(scheduler, workload=replace(WORKLOAD, fragment=13), budget=Budget(steps=13 * 37))
        counts.append(sum(record.getMessage().startswith("Compiling jit(") for record in caplog.records))
    assert counts[0] > 0 == counts[1]


@pytest.mark.parametrize("name", ["maximum", "drawing"])
def test_nothing_runs_between_rounds(name: str) -> None:
    """All actors begin when the last round is over, the learner when the last of them has ended; no data is stale."""
    result = run(SCHEDULERS[name])
    rounds = rounds_of(result)
    table = result.trace.invocations()
    assert len(rounds) >= 5
    for one in rounds:
        assert set(one.submitted) == {one.began}
        assert one.learner_submitted == pytest.approx(one.began + max(one.waits), rel=1e-15)
        assert not np.any((table.started < one.over) & (table.ended > one.over))
    for row in result.history:
        assert (row.get("lag_oldest", 0), row["staleness_max"], row.get("data_lag_max", 0)) == (0, 0, 0)


def test_cost_ends_a_run_after_the_round_that_uses_it_up() -> None:
    """That round is learned from to its end, and nothing begins after it."""
    result = run(Fixed(3), budget=Budget(cost=1.0))
    costs = [row["cost_pay_per_use"] for row in result.history]
    assert costs[-2] < 1.0 <= costs[-1]
    assert len(result.history) == len(rounds_of(result)) == result.history[-1]["round"] > 3
    assert result.trace.select("waiting").value.tolist() == [0.0]
    assert len(result.trace.select("scheduled").value) == len(result.history)


def test_steps_end_a_run_between_rounds() -> None:
    """What was sampled is learned from; only seconds end a run in the middle of a round."""
    whole = run(Fixed(3), budget=Budget(steps=16 * 3 * 4 + 1))
    assert [row["steps"] for row in whole.history] == [48 * k for k in (1, 2, 3, 4, 5)]
    assert len(rounds_of(whole)) == 5
    assert whole.trace.select("waiting").value.tolist() == [0.0]
    cut = run(Fixed(3), budget=Budget(seconds=whole.history[3]["seconds"] + 0.01))
    assert cut.history[:4] == whole.history[:4]
    assert cut.history[-1]["seconds"] == whole.history[3]["seconds"] + 0.01
    assert len(rounds_of(cut)) == 4


def test_what_the_last_cent_buys() -> None:
    """A budget of exactly the first round's cost is used up by it; one that is not spent yet has another round."""
    functions = tiny.deployment(Constant(0.01), Constant(0.1))
    first = run(Fixed(3), functions, budget=Budget(steps=49)).history[0]["cost_pay_per_use"]
    for cost, rounds in ((first, 1), (first * (1 + 1e-9), 2)):
        assert len(run(Fixed(3), functions, budget=Budget(cost=cost)).history) == rounds


def test_a_budget_below_the_first_rounds_cost_is_named() -> None:
    rows: list[Any] = []
    with pytest.raises(ValueError, match=r"budget\.cost=0\.05: the first round cost [\d.]+ under 'pay"):
        run(Maximum(), budget=Budget(cost=0.05), on_progress=rows.append)
    assert [row["cost_pay_per_use"] > 0.05 for row in rows] == [True]


def test_the_target_is_the_mean_of_a_window() -> None:
    """The run ends after the round in which the mean of the last three episodes reached it."""
    result = run(Maximum(), budget=Budget(cost=100.0, target_return=30.0, window=3))
    returns = result.trace.select("episode").value
    means = [row["episode_return"] for row in result.history]
    assert means[-1] == np.mean(returns[-3:]) >= 30.0
    full = [row["episodes"] >= 3 for row in result.history]
    assert all(mean < 30.0 for mean, enough in zip(means[:-1], full[:-1], strict=True) if enough)
    assert len(rounds_of(result)) == len(result.history) >= 2


@pytest.mark.parametrize(("target_return", "evaluated"), [(40.0, True), (20.0, False)])
def test_the_first_of_both_targets_ends_a_run(target_return: float, evaluated: bool) -> None:
    """An evaluation does while the mean of the window is below the same number; or that mean, before any evaluation."""
    budget = Budget(cost=100.0, target_return=target_return, target_evaluation=40.0, window=3)
    result = run(Fixed(3), budget=budget, evaluation=Evaluation(every=2, episodes=4))
    *earlier, last = result.history
    assert len(rounds_of(result)) == last["round"] == len(result.history) >= 4
    evaluations = [row["evaluation_return"] for row in result.history if row["round"] % 2 == 0]
    assert last["evaluation_return"] == np.mean(result.trace.select("evaluated").value[-4:])
    assert all(value < 40.0 for value in evaluations[:-1])
    assert all(row["episode_return"] < target_return for row in earlier if row["episodes"] >= 3)
    assert (evaluations[-1] >= 40.0, last["episode_return"] >= target_return) == (evaluated, not evaluated)
    tested = Objective(40.0, 100.0, "pay_per_use", window=3, evaluated=True)
    assert tested.reached(result.history) == evaluated
    assert not replace(tested, evaluated=False).reached(result.history)


@pytest.mark.slow
@pytest.mark.parametrize("algorithm", [tiny.PPO_CONFIG, IMPALA(epochs=2, minibatch_size=2)])
def test_with_all_actors_it_learns_what_the_synchronous_system_does(algorithm: Any) -> None:
    """On the same episodes; where rollouts take equally long, fragments come in the same order."""
    systems = (MinionsRL(algorithm, Maximum()), Synchronous(algorithm))
    budget = Budget(seconds=10.2)  # in the middle of a round of either algorithm
    one, other = (tiny.run(s, tiny.deployment(), workload=WORKLOAD, budget=budget) for s in systems)
    assert one.trace.select("episode").value.tolist() == other.trace.select("episode").value.tolist()
    assert one.history[-1]["gradients"] == other.history[-1]["gradients"] > 0
    assert one.history[-1]["version"] == other.history[-1]["version"] >= 3
    chex.assert_trees_all_close(one.policy, other.policy, rtol=2e-5, atol=2e-5)


def test_the_synchronous_system_takes_schedulers() -> None:
    """And is then the same, to the last bit: what differs is which machines it is deployed on."""
    one, other = (
        tiny.run(s, JITTERY, workload=WORKLOAD, budget=Budget(steps=16 * 40))
        for s in (MinionsRL(tiny.PPO_CONFIG, Drawing()), Synchronous(tiny.PPO_CONFIG, Drawing()))
    )
    assert repr(one.history) == repr(other.history)
    jax.tree.map(np.testing.assert_array_equal, one.policy, other.policy)


@pytest.mark.slow
@pytest.mark.parametrize("system", [DataParallel, CentralInference])
def test_other_systems_with_rounds_take_schedulers(system: Any) -> None:
    """Their rounds have the actors that MinionsRL's have, and take what is waited for: actors, and then learners."""
    functions = tiny.deployment() | dict.fromkeys(("all_reduce", "inference"), FunctionSpec(Constant(0.0)))
    one, other = (
        tiny.run(s, functions, workload=WORKLOAD, budget=Budget(steps=16 * 40))
        for s in (MinionsRL(tiny.PPO_CONFIG, Drawing()), system(tiny.PPO_CONFIG, scheduler=Drawing()))
    )
    for column in ("round", "actors", "steps", "version"):
        assert [row[column] for row in one.history] == [row[column] for row in other.history], column
    assert len({row["actors"] for row in one.history}) > 2
    for before, row in itertools.pairwise(other.history):
        assert row["seconds"] - before["seconds"] == pytest.approx(row["actor_seconds"] + row["learner_seconds"])
    if system is DataParallel:  # an actor of central inference keeps its environment, so the episodes are others
        chex.assert_trees_all_close(one.policy, other.policy, rtol=2e-4, atol=2e-5)


def cold_by_round(scheduler: Scheduler, *, prewarm: bool, **spec: Any) -> list[tuple[int, int]]:
    """How many actors of each round are cold, and whether its learner is."""
    functions = tiny.deployment(cold_start=Constant(0.3), **spec)
    result = run(scheduler, functions, prewarm=prewarm, budget=Budget(steps=16 * 15))
    table = result.trace.invocations()
    name = np.array(table.names)[table.function]
    ends = [one.over for one in rounds_of(result)]
    which = np.searchsorted(ends, table.submitted, side="right")
    return [
        tuple(int(np.sum(table.cold[(name == of) & (which == k)])) for of in ("actor", "learner"))  # type: ignore[misc]
        for k in range(len(ends))
    ]


@pytest.mark.parametrize(
    ("scheduler", "prewarm", "spec", "expected"),
    [
        (Stepped(2, 3, every=1), True, {}, [(2, 0), (0, 0), (0, 0)]),
        (Stepped(2, 3, every=1), False, {}, [(2, 1), (3, 0), (3, 0)]),
        (Stepped(2, 3, every=1), False, {"keep_alive": 0.0}, [(2, 1), (5, 1), (8, 1)]),
        (Maximum(), True, {}, [(8, 0), (0, 0)]),
    ],
)
def test_with_prewarming_only_the_first_rounds_actors_are_cold(
    scheduler: Scheduler, prewarm: bool, spec: Any, expected: Any
) -> None:
    assert cold_by_round(scheduler, prewarm=prewarm, **spec)[: len(expected)] == expected


def test_a_learner_that_takes_longer_to_make_than_to_sample() -> None:
    """A container that is not ready yet is no use: the first round's learner waits for one of its own, and no other."""
    functions = tiny.deployment() | {"learner": FunctionSpec(Constant(0.1), cold_start=Constant(1.5))}
    first, second, *_ = run(Fixed(3), functions, prewarm=True).history
    assert first["actor_seconds"] == pytest.approx(0.16)
    assert second["learner_seconds"] == pytest.approx(0.1 * (second["gradients"] - first["gradients"]))
    assert first["learner_seconds"] == pytest.approx(1.5 + 0.1 * first["gradients"])


@pytest.mark.parametrize("seed", range(3))
def test_actors_do_not_wait_for_prewarmed_containers_that_start_for_long(seed: int) -> None:
    """A container of their own may be ready earlier, so there are more containers than actors."""
    varying = FunctionSpec(Constant(0.001), cold_start=LogNormal(2.0, 1.0))
    functions = tiny.deployment() | {"actor": varying}
    result = run(Stepped(1, 7, every=1), functions, prewarm=True, seed=seed)
    slots = result.trace.select("container_created", function="actor").value
    assert ACTORS < len(slots) <= 2 * ACTORS - 1
    assert sorted(slots) == list(range(len(slots)))
    assert_waited_for(result, cost=True)


def test_a_limit_of_containers_holds_for_prewarmed_ones() -> None:
    """Actors then wait for containers that are starting."""
    varying = FunctionSpec(Constant(0.001), cold_start=LogNormal(2.0, 1.0), max_concurrency=ACTORS)
    result = run(Stepped(1, 7, every=1), tiny.deployment() | {"actor": varying}, prewarm=True)
    assert len(result.trace.select("container_created", function="actor").value) == ACTORS
    assert_waited_for(result, cost=True)


@dataclass(frozen=True)
class Listening:
    """Three actors, and a note of what it was told."""

    told: ClassVar[list[Any]] = []

    def decide(self, states: Any, *, most: int, key: jax.Array) -> int:
        self.told.append((list(states), most, jax.random.key_data(key).tolist()))
        return 3


@pytest.mark.parametrize("budget", [Budget(cost=1.0), Budget(steps=16 * 3 * 6)])
def test_what_schedulers_are_told(budget: Budget) -> None:
    """The states of all rounds so far, which are those of the history; and the key of the run."""
    Listening.told.clear()
    result = run(Listening(), budget=budget)
    told = Listening.told
    rounds = rounds_of(result)
    assert len(told) == len(rounds) >= 5
    assert [len(states) for states, _, _ in told] == list(range(1, len(told) + 1))
    assert {most for _, most, _ in told} == {ACTORS}
    assert len({tuple(key) for _, _, key in told}) == 1
    states = told[-1][0]
    assert states[0] == State(1, *[0.0] * 6, budget=budget.cost)
    assert all(earlier == states[: len(earlier)] for earlier, _, _ in told)
    known = 0.0
    for state, row, one in zip(states[1:], result.history, rounds, strict=False):
        known = row.get("round_return", known)
        assert state == State(
            round=row["round"] + 1,
            loss=row["loss"],
            episode_return=known,
            policy_kl=row["policy_kl"],
            learner_seconds=pytest.approx(one.learner_wait),  # type: ignore[arg-type]
            actor_seconds=pytest.approx(np.mean(one.waits)),  # type: ignore[arg-type]
            round_seconds=pytest.approx(one.over - one.began),  # type: ignore[arg-type]
            budget=budget.cost - row["cost_pay_per_use"],
        )
    assert known > 0


@pytest.mark.parametrize("system", [MinionsRL, Synchronous, DataParallel, CentralInference])
def test_what_is_no_scheduler_or_algorithm(system: Any, unchecked: None) -> None:
    for scheduler in (3, Maximum, "maximum"):
        with pytest.raises(TypeError, match="is not a scheduler"):
            system(tiny.PPO_CONFIG, scheduler=scheduler)
    with pytest.raises(TypeError, match="algorithm"):
        system(3, scheduler=Maximum())
