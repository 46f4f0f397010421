"""MinionsRL's comparison on the event loop: its variants, and what its report makes of runs, which are made up here."""

import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest
from rich.console import Console

from experiments.figures.minionsrl import training
from experiments.figures.minionsrl.ceiling import Schedule
from experiments.study import tidy
from experiments.study.cells import Cell, Finished
from experiments.tasks import minionsrl
from experiments.toolkit.output import read_rows
from stellaris.scheduling import Adapt, Learned, State
from stellaris.systems import Budget

BASELINES = ("MinionsRL-Adapt", "Azure ML", "IMPACT")
FAILED = {"evaluation_return": 449.9, "episode_return": np.nan}


@pytest.fixture(autouse=True)
def unlearned(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(minionsrl, "SCHEDULERS", tmp_path / "schedulers")


def finished(
    schedule: Schedule = training.ALL,
    seed: int = 0,
    testbed: str = "authors",
    environment: str = "CartPole-v1",
    **last: Any,
) -> Finished:
    """A run of two rounds that ends so; by default it reaches the target by its evaluation."""
    (variant,) = (
        one for one in training._variants(environment) if one.factors == {"testbed": testbed, "schedule": str(schedule)}
    )
    assert variant.limits is not None
    cell = Cell(variant.contender, variant.workload, variant.limits, seed, variant.setting, factors=variant.factors)
    first = {
        "seconds": 4.0,
        "episodes": 9,
        "episode_return": 20.0,
        "round": 1,
        "cost_pay_per_use": 1.0,
        "cost_azure": 2.0,
        "actors": 3,
    }
    goal = "episode_return" if testbed == "tuned" else "evaluation_return"
    end = {
        **first,
        "round": 2,
        "seconds": 9.0,
        "episodes": 40,
        "cost_pay_per_use": 2.0,
        "actors": 5,
        goal: 450.0,
        **last,
    }
    return Finished(cell, Path(), [first, end], {})


@pytest.mark.parametrize(
    ("limits", "last", "reached"),
    [
        (Budget(steps=10**6, target_return=450.0, window=32), {"episode_return": 450.0, "episodes": 32}, True),
        (Budget(steps=10**6, target_return=450.0, window=32), {"episode_return": 449.9, "episodes": 32}, False),
        (Budget(steps=10**6, target_return=450.0, window=32), {"episode_return": 450.0, "episodes": 31}, False),
        (Budget(steps=10**6, target_return=450.0, window=32), {"episode_return": np.nan, "episodes": 32}, False),
        (
            Budget(steps=10**6, target_return=450.0, window=32),
            {"episode_return": 449.9, "evaluation_return": 500.0},
            False,
        ),
        (Budget(steps=10**6, target_evaluation=450.0, window=32), {"evaluation_return": 450.0, "episodes": 3}, True),
        (Budget(steps=10**6, target_evaluation=450.0, window=32), {"evaluation_return": 449.9}, False),
        (Budget(steps=10**6, target_evaluation=450.0, window=32), {"evaluation_return": np.nan}, False),
        (Budget(steps=10**6, target_evaluation=450.0, window=32), {"episode_return": 500.0}, False),
    ],
)
def test_what_has_reached_its_target(limits: Budget, last: Mapping[str, float], reached: bool) -> None:
    """By a full window of episodes or by an evaluation, whichever is limited."""
    one = finished(testbed="tuned", **last)
    assert training.reached(replace(one, cell=replace(one.cell, budget=limits))) is reached


def test_ratios_are_of_pairs_of_seeds() -> None:
    """A run that misses the target has no time to it; a ratio needs both runs of a seed."""
    all_ = [
        finished(seed=0, seconds=10.0, cost_pay_per_use=2.0),
        finished(seed=1, seconds=20.0, cost_pay_per_use=4.0),
        finished(seed=2, **FAILED),
    ]
    own = [
        finished(Schedule(8, 8, 0), seed=3, seconds=70.0, cost_pay_per_use=7.0),  # all actors lack this seed
        finished(Schedule(8, 8, 0), seed=1, seconds=30.0, cost_pay_per_use=3.0),
        finished(Schedule(8, 8, 0), seed=0, **FAILED),
        finished(Schedule(8, 8, 0), seed=2, seconds=50.0, cost_pay_per_use=5.0),
    ]
    # Medians and ranges, as there are few seeds.
    assert columns(own, all_) == ["3 of 4", "4.0", "50 (30 to 70)", "5 (3 to 7)", "2", "1.5", "0.75", "1"]
    assert columns(own[:1], all_) == ["1 of 1", "4.0", "70", "7", "2", "", "", ""]
    assert columns(own[2:3], all_) == ["0 of 1", "4.0", *[""] * 6]
    assert columns(all_, all_)[-3:] == ["1", "1", "1"]


def columns(of: Sequence[Finished], everyone: Sequence[Finished]) -> list[str]:
    """The study's columns of runs beside those of all actors."""
    runs = {
        ("CartPole-v1", "tuned", name): {one.cell.seed: training._run(one) for one in some}
        for name, some in ((str(training.ALL), everyone), ("shown", of))
    }
    return [*training.to_target(runs)[-1][3:-2]]


def test_each_testbed_has_its_own_baseline(tmp_path: Path) -> None:
    """And each environment its own picture."""
    runs = [
        finished(schedule, testbed=testbed, environment=environment, seconds=seconds)
        for environment, testbed, times in (
            ("CartPole-v1", "tuned", (10.0, 20.0)),
            ("CartPole-v1", "authors", (40.0, 10.0)),
            ("Hopper-v4", "authors-0.0003", (8.0, 4.0)),
        )
        for schedule, seconds in zip((training.ALL, Schedule(8, 32, 16)), times, strict=True)
    ]
    runs = [replace(one, history=[*one.history[:-1], one.history[-1] | {"evaluation_return": 600.0}]) for one in runs]
    training._report(runs, tmp_path, Console(file=io.StringIO()))
    rows = read_rows(tmp_path / "table.csv")
    assert [row["testbed"] for row in rows] == ["tuned"] * 2 + ["authors"] * 2 + ["authors-0.0003"] * 2
    assert [row["actors"] for row in rows] == ["32", "8, then 32 from round 17"] * 3
    assert [row["s / all"] for row in rows] == ["1", "2", "1", "0.25", "1", "0.5"]
    papers = [(row["paper's s"], row["paper's USD"]) for row in rows]
    assert papers == [("", "")] * 4 + [("232 ± 19", "1.7 ± 0.3"), ("", "")]
    of_runs = [
        f"{kind}_{testbed}"
        for kind in ("training", "decisions")
        for testbed in ("tuned_CartPole-v1", "authors_CartPole-v1", "authors-0.0003_Hopper-v4")
    ]
    names = (*of_runs, "numbers_CartPole-v1", "numbers_Hopper-v4")
    pictures = {f"{name}.{kind}" for name in names for kind in ("png", "pdf")}
    assert {path.name for path in tmp_path.iterdir() if path.is_file()} == {"table.csv", *pictures}


@pytest.mark.slow
def test_trained_schedulers_are_found_by_name(tmp_path: Path) -> None:
    """Of an environment, a testbed and an objective. Their runs have the testbed's budget, and no others."""
    folder = minionsrl.SCHEDULERS
    folder.mkdir()
    assert training.learned("CartPole-v1", "authors") == {}
    for seed, name in enumerate(
        (
            "CartPole-v1",
            "Hopper-v4-authors-0.0003-time-fine-tuned",
            "CartPole-v1-authors-time",
            "CartPole-v1-authors-cost",
            "CartPole-v1-tuned-time",
        )
    ):
        Learned.untrained(most=minionsrl.ACTORS, seed=0, hold=seed + 1).save(folder / f"{name}.npz")
    holds = {
        testbed: {name: one.hold for name, one in training.learned("CartPole-v1", testbed).items()}
        for testbed in ("tuned", "authors")
    }
    assert holds == {
        "tuned": {"learned, for time": 5},
        "authors": {"learned, for time": 3, "learned, for cost": 4},
    }
    elsewhere = {
        name: {kind: one.hold for kind, one in training.learned("Hopper-v4", name).items()}
        for name in minionsrl.testbeds_of("Hopper-v4")
    }
    assert elsewhere == {
        "tuned": {"learned, for time, on CartPole-v1": 5},
        "authors-0.0003": {
            "learned, for time, fine-tuned": 2,
            "learned, for time, on CartPole-v1": 3,
            "learned, for cost, on CartPole-v1": 4,
        },
    }
    costs = {one.name: one.limits.cost for one in training._variants("CartPole-v1") if one.limits}
    assert {name: cost for name, cost in costs.items() if np.isfinite(cost)} == {
        "tuned: learned, for time": minionsrl.BUDGETS["CartPole-v1", "tuned"],
        "authors: learned, for time": minionsrl.BUDGETS["CartPole-v1", "authors"],
        "authors: learned, for cost": minionsrl.BUDGETS["CartPole-v1", "authors"],
    }
    every = 2 * (len(training.SCHEDULES) + len(BASELINES)) + sum(
        map(len, (*training.BEST.values(), *training.NEXT.values()))
    )
    assert len(costs) == every + 6
    assert costs["authors: learned, for time, played on"] == np.inf


def test_a_run_that_is_played_on_keeps_the_first_decision() -> None:
    """It is that of the run with a budget, which is part of the state; later rounds decide nothing."""
    untrained = Learned.untrained(most=32, seed=0)
    # With large parameters, what it decides depends on the state.
    scheduler = replace(untrained, params=jax.tree.map(lambda x: 100.0 * x, untrained.params))
    first = State(1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, budget=math.inf)
    later = State(2, 1.0, 20.0, 0.1, 0.4, 2.0, 3.0, budget=math.inf)
    played_on = training.PlayedOn(scheduler, budget=0.02)
    keys = jax.random.split(jax.random.key(0), 8)
    decided = [scheduler.decide([first._replace(budget=0.02)], most=32, key=key) for key in keys]
    assert len(set(decided)) > 1
    assert [scheduler.decide([later._replace(budget=0.02)], most=32, key=key) for key in keys] != decided
    assert [scheduler.decide([first._replace(budget=20.0)], most=32, key=key) for key in keys] != decided
    for states in ([first], [first, later], [first, later, later]):
        assert [played_on.decide(states, most=32, key=key) for key in keys] == decided


def test_a_variant_is_of_its_testbed() -> None:
    """With its functions, its learner and its evaluations."""
    for environment in minionsrl.TARGETS:
        testbeds = minionsrl.testbeds_of(environment)
        variants = training._variants(environment)
        assert len({one.name for one in variants}) == len(variants)
        baselines = [one for one in BASELINES if environment != "Acrobot-v1" or one != "MinionsRL-Adapt"]
        further = (*training.BEST.items(), *training.NEXT.items())
        own = sum(len(some) for (task, _), some in further if task == environment)
        assert len(variants) == len(testbeds) * (len(training.SCHEDULES) + len(baselines)) + own
        for one in variants:
            task, name = testbeds[one.factors["testbed"]], one.factors["schedule"]
            system: Any = one.contender.system
            assert (one.workload, one.evaluation, one.limits) == (task.workload, task.evaluation, task.limits)
            assert one.contender.functions["actor"].compute == task.functions["actor"].compute
            if name != "IMPACT":
                assert system.algorithm == task.ppo
                assert one.contender.functions["learner"].compute == task.functions["learner"].compute
            if name == "MinionsRL-Adapt":
                assert system.scheduler == Adapt(task.target)
            elif name not in BASELINES:
                assert str(system.scheduler) == name
                assert one.contender.functions == task.functions


def test_the_preset_paper_has_the_published_settings() -> None:
    """With the authors' learner, and the preset's number of steps."""
    paper = training.STUDY.sizes["paper"]
    assert paper.variants is not None
    for environment in paper.environments:
        task = minionsrl.authors_task(environment)
        for one in paper.variants(environment):
            system: Any = one.contender.system
            assert one.limits is not None
            assert (one.workload, one.limits.steps) == (task.workload, paper.steps)
            assert one.factors["schedule"] == "IMPACT" or system.algorithm == task.ppo


def test_target_of_the_reward(tmp_path: Path) -> None:
    """A run has reached its target if the scheduler's objective says so."""
    for testbed in ("tuned", "authors"):
        task = replace(minionsrl.testbeds_of("CartPole-v1")[testbed], budget=2.0)
        for last in ({}, {"cost_pay_per_use": 2.1}, {"episodes": 31}, FAILED):
            one = finished(testbed=testbed, **last)
            one = replace(one, cell=replace(one.cell, budget=task.limits))
            ended = [{**row, "actor_seconds": 1.0, "learner_seconds": 1.0} for row in one.history]
            assert task.objective().reached(ended) is training.reached(one)


def test_curves_have_the_returns_of_evaluations() -> None:
    """If every row has one; they test the claims' targets."""
    one = finished(testbed="authors")
    some = [{**row, "steps": 128.0} for row in one.history]
    assert "evaluation_return" in some[1]
    assert all("evaluation_return" not in row for row in tidy._thinned(replace(one, history=some)))
    steps = [{**row, "steps": 128.0, "evaluation_return": 400.0 + i} for i, row in enumerate(one.history)]
    assert [row["evaluation_return"] for row in tidy._thinned(replace(one, history=steps))] == [400.0, 401.0]
