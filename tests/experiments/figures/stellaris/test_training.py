"""The training curves: which runs there are, and that nothing differs between systems but what belongs to them."""

import argparse

import pytest

from experiments.figures.stellaris import training
from stellaris._core.describe import describe, differences


def cells(*options):
    """The runs that the command line asks for."""
    parser = argparse.ArgumentParser()
    training.add_arguments(parser)
    return training.STUDY.cells(parser.parse_args(options))


def test_smoke():
    """Every system with two seeds; then those with the synchronous system's learning rate, where theirs is another."""
    names = ("synchronous", "asynchronous actors", "IMPACT", "stellaris", "MinionsRL-Max")
    shared = ("asynchronous actors, shared rate",)
    smoke = cells("--preset", "smoke")
    assert [(cell.variant, cell.seed) for cell in smoke] == [
        (name, seed) for name in (*names, *shared) for seed in (0, 1)
    ]
    assert {(cell.environment, cell.budget.steps) for cell in smoke} == {("CartPole-v1", 20_000)}


@pytest.mark.parametrize("environment", ["Hopper-v4", "CartPole-v1", "Qbert-v5"])
def test_a_shared_rate(environment):
    rows = training.STUDY.variants(environment)
    systems = {row.contender.name: row.contender.system for row in rows if not row.setting}
    for row in rows:
        if row.setting:
            places = differences(describe(systems[row.contender.name]), describe(row.contender.system))
            assert [name for name, _, _ in places] == ["algorithm.learning_rate"]
    rates = {row.contender.system.algorithm.learning_rate for row in rows if row.setting}
    assert rates <= {systems["synchronous"].algorithm.learning_rate}


@pytest.mark.parametrize("environment", ["Hopper-v4", "CartPole-v1"])
def test_systems_share_workload_budget_and_seeds(environment):
    names = ("workload", "budget", "seed", "evaluation")
    shared = {}
    for cell in cells("--preset", "smoke", "--env", environment):
        settings = cell.settings()
        shared.setdefault(cell.variant, []).append([settings[name] for name in names])
    assert set(training.SYSTEMS) <= set(shared)
    assert all(settings == shared["synchronous"] for settings in shared.values())
