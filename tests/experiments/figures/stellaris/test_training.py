"""The training curves: which runs there are, and that nothing differs between systems but what belongs to them."""

import argparse
from typing import Any

import pytest

from experiments.figures.stellaris import training
from experiments.study.cells import Cell
from stellaris._core.describe import describe, differences


def cells(*options: str) -> list[Cell]:
    """The runs that the command line asks for."""
    parser = argparse.ArgumentParser()
    training.add_arguments(parser)
    return training.STUDY.cells(parser.parse_args(options))


def test_smoke() -> None:
    """Every system with two seeds; then those with the synchronous system's learning rate, where theirs is another."""
    names = ("synchronous", "asynchronous actors", "IMPACT", "stellaris", "MinionsRL-Max")
    shared = ("asynchronous actors, shared rate", "IMPACT, shared rate")
    smoke = cells("--preset", "smoke")
    assert [(cell.variant, cell.seed) for cell in smoke] == [
        (name, seed) for name in (*names, *shared) for seed in (0, 1)
    ]
    assert {(cell.environment, cell.budget.steps) for cell in smoke} == {("CartPole-v1", 20_000)}


@pytest.mark.parametrize("environment", ["Hopper-v4", "CartPole-v1", "Qbert-v5"])
def test_a_shared_rate(environment: str) -> None:
    """It is the only thing that differs from the system as it was tuned."""
    rows = training.STUDY.variants(environment)
    systems: dict[str, Any] = {row.contender.name: row.contender.system for row in rows if not row.setting}
    for row in rows:
        if row.setting:
            places = differences(describe(systems[row.contender.name]), describe(row.contender.system))
            assert [name for name, _, _ in places] == ["algorithm.learning_rate"]
    rates = {row.contender.system.algorithm.learning_rate for row in rows if row.setting}  # type: ignore[attr-defined]
    assert rates <= {systems["synchronous"].algorithm.learning_rate}


def test_systems_differ_in_what_belongs_to_them() -> None:
    """System, deployment and prices: not the workload, the budget or the seeds."""
    declared = cells("--preset", "smoke", "--env", "Hopper-v4", "--env", "CartPole-v1")
    for environment in ("Hopper-v4", "CartPole-v1"):
        shared = {
            name: [
                [cell.settings()[setting] for setting in ("workload", "budget", "seed", "evaluation")]
                for cell in declared
                if (cell.environment, cell.variant) == (environment, name)
            ]
            for name in training.SYSTEMS
        }
        assert all(settings == shared["synchronous"] for settings in shared.values())
