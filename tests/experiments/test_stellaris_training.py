"""The training curves: which runs there are, and that nothing differs between systems but what belongs to them."""

from collections.abc import Sequence
from typing import Any

import pytest

from experiments import command, stellaris_training, study
from experiments.cells import Cell


@pytest.fixture
def declared(monkeypatch: pytest.MonkeyPatch) -> list[Sequence[Cell]]:
    """The cells of the studies, which are not run."""
    seen: list[Sequence[Cell]] = []

    def main(declaration: study.Study, arguments: Any) -> int:
        seen.append(declaration.cells)
        return 0

    monkeypatch.setattr(study, "main", main)
    return seen


def run(*options: str) -> int:
    """The command."""
    return command.main(["stellaris-training", *options])


def test_sizes(declared: list[Sequence[Cell]]) -> None:
    """By the preset; what is said on the command line goes before it."""
    assert run("--preset", "smoke") == 0
    assert run("--preset", "smoke", "--env", "Hopper-v4", "--system", "IMPACT", "--steps", "500", "--seeds", "3") == 0
    smoke, said = declared
    assert [(cell.contender.name, cell.seed) for cell in smoke] == [
        (name, seed) for name in ("synchronous", "asynchronous actors", "IMPACT", "stellaris") for seed in (0, 1)
    ]
    assert {(cell.environment, cell.budget.steps) for cell in smoke} == {("CartPole-v1", 20_000)}
    assert [(cell.environment, cell.contender.name, cell.budget.steps) for cell in said] == [
        ("Hopper-v4", "IMPACT", 500)
    ] * 3


def test_systems_differ_in_what_belongs_to_them(declared: list[Sequence[Cell]]) -> None:
    """System, deployment and prices: not the workload, the budget or the seeds."""
    run("--preset", "smoke", "--env", "Hopper-v4", "--env", "CartPole-v1")
    for environment in ("Hopper-v4", "CartPole-v1"):
        shared = {
            name: [
                [cell.settings()[setting] for setting in ("workload", "budget", "seed")]
                for cell in declared[0]
                if (cell.environment, cell.contender.name) == (environment, name)
            ]
            for name in stellaris_training.SYSTEMS
        }
        assert all(settings == shared["synchronous"] for settings in shared.values())
