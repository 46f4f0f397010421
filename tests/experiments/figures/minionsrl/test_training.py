"""MinionsRL's comparison: what its report makes of runs, which are made up here."""

import io
from dataclasses import replace
from pathlib import Path

import pytest
from rich.console import Console

from experiments.figures.minionsrl import training
from experiments.study.cells import Cell, Finished
from experiments.tasks import minionsrl
from experiments.toolkit import plots
from stellaris.systems import Budget
from tests.experiments.csv_rows import rows

ENVIRONMENTS = ("CartPole-v1", "Hopper-v4")


@pytest.fixture(autouse=True)
def unlearned(tmp_path, monkeypatch):
    monkeypatch.setattr(minionsrl, "SCHEDULERS", tmp_path)


def finished(environment, system, seed=0, **last):
    task = minionsrl.task(environment)
    (contender,) = (row for row in minionsrl.contenders(environment, task) if row.name == system)
    end = {"round": 2, "seconds": 9.0, "episodes": 40, "episode_return": 100.0, **last}
    costs = {"cost_pay_per_use": 0.001, "cost_azure": 0.002}
    decided = {"actors": 3.0} if system.startswith("MinionsRL") else {}
    first = {"round": 1, "seconds": 4.0, "episodes": 9, "episode_return": 20.0}
    rows = [{**first, **costs, **decided}, {**costs, **end, **decided}]
    return Finished(Cell(contender, task.workload, task.limits, seed), Path(), rows, {})


def report(results, out):
    training._report(results, out, Console(file=io.StringIO()))
    return rows(out / "table.csv")


def test_what_has_reached_its_target():
    """With as many episodes as the mean is of, and within the budget; as the scheduler's objective has it."""
    task = minionsrl.task("CartPole-v1")
    for last, reached in (
        ({"episode_return": 450.0}, True),
        ({"episode_return": 449.9}, False),
        ({"episode_return": 450.0, "episodes": 31}, False),
        ({"episode_return": 450.0, "episodes": 32, "cost_pay_per_use": task.budget}, True),
        ({"episode_return": 450.0, "cost_pay_per_use": 1.01 * task.budget}, False),
    ):
        one = finished("CartPole-v1", minionsrl.MAX, **last)
        assert training._reached(one) is reached
        ended = [{**row, "actors": 1.0, "actor_seconds": 1.0, "learner_seconds": 1.0} for row in one.history]
        assert task.objective().reached(ended) is reached


def test_a_target_of_evaluations():
    """It counts without a full window, within the budget."""
    for last, reached in (
        ({"evaluation_return": 450.0}, True),
        ({"evaluation_return": 449.9}, False),
        ({}, False),
        ({"evaluation_return": 450.0, "cost_pay_per_use": 1.0}, False),
    ):
        one = finished("CartPole-v1", minionsrl.MAX, episodes=3, **last)
        limits = Budget(cost=0.5, target_evaluation=450.0)
        assert training._reached(replace(one, cell=replace(one.cell, budget=limits))) is reached


def test_several_environments(tmp_path, monkeypatch):
    """Each has its own target and budget; the paper's figures stand where there are any."""
    titles = []
    for picture in ("learning", "per_run"):
        monkeypatch.setattr(plots, picture, lambda *of, title, **settings: titles.append(title))
    runs = [
        finished(name, system, seed) for name in ENVIRONMENTS for system in (minionsrl.MAX, "IMPACT") for seed in (0, 1)
    ]
    runs[0] = replace(runs[0], history=[*runs[0].history, {**runs[0].history[-1], "episode_return": 460.0}])
    table = report(runs, tmp_path)
    goals = [(name, *minionsrl.GOALS[name]) for name in ("CartPole-v1", "Hopper-v4")]
    assert goals[0][1:] != goals[1][1:]
    assert titles == [
        title for name, target, usd in goals for title in [f"{name}: to {target:g}, {usd:g} USD at most, 2 seeds"] * 3
    ]
    names = [(row["environment"], row["system"], row["reached"]) for row in table]
    assert names == [
        ("CartPole-v1", "MinionsRL-Max", "1 of 2"),
        ("CartPole-v1", "IMPACT", "0 of 2"),
        ("Hopper-v4", "MinionsRL-Max", "0 of 2"),
        ("Hopper-v4", "IMPACT", "0 of 2"),
    ]
    papers = [(row["paper's s"], row["paper's USD"]) for row in table]
    assert papers == [("", ""), ("", ""), ("232 ± 19", "1.7 ± 0.3"), ("291 ± 26", "4.6 ± 0.8")]
    assert [row["actors"] != "" for row in table] == [True, False, True, False]


def test_the_preset_paper_has_the_papers_settings():
    """Of Table 1; the same systems, targets and budgets."""
    own, papers = (training.STUDY.sizes[preset].variants for preset in ("small", "paper"))
    assert own is None
    for row, tuned in zip(papers("Hopper-v4"), training.STUDY.variants("Hopper-v4"), strict=True):
        system = row.contender.system
        assert (row.name, row.limits.target_return) == (tuned.name, tuned.limits.target_return)
        assert (row.workload.actors, row.workload.fragment) == (32, 2048)
        if row.name != "IMPACT":
            assert (system.algorithm.learning_rate, system.algorithm.minibatch_size) == (5e-5, 256)
