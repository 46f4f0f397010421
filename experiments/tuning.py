"""Tunes every system with the same number of settings, on one seed that no result uses."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from experiments.study import tidy, variants
from experiments.study.cells import Finished
from experiments.study.study import Size, Study, Variant
from experiments.tasks.presets import LEARNERS, Contender, architectures
from stellaris import IMPACT, IMPALA, PPO, staleness_aware
from stellaris.systems import (
    AsynchronousActors,
    CircularReplay,
    StalenessControl,
    Stellaris,
    Synchronous,
    System,
)

DESCRIPTION = "run every system with the same number of settings, and rank the settings by return"

#: The seed of tuning. Results use seeds from 0, so settings chosen on this seed were not selected on the results.
SEED = 100

#: The settings to vary. PPO's were chosen earlier for Stellaris alone; IMPALA's and IMPACT's were chosen for CartPole.
_PPO = PPO(learning_rate=3e-4, epochs=10, minibatch_size=512)
START: Mapping[str, System] = {
    "synchronous": Synchronous(_PPO),
    "stellaris": Stellaris(_PPO, learners=LEARNERS, aggregator=staleness_aware(LEARNERS, decay=1.0), rho=2.0),
    "asynchronous actors": AsynchronousActors(IMPALA(learning_rate=3e-3, epochs=4, minibatch_size=4)),
    "IMPACT": CircularReplay(IMPACT(learning_rate=1e-3, epochs=1, minibatch_size=512)),
}
IN_ROUNDS = {"control": StalenessControl(pace=0)}
#: The aggregator that applies the gradients of a group one after the other instead of their mean.
A_STEP_EACH = {"aggregator": staleness_aware(LEARNERS, decay=1.0, combine="sequential")}
#: The fields to change in a system's algorithm, and in the system.
Changes = tuple[Mapping[str, Any], Mapping[str, Any]]
SETTINGS: Mapping[str, Mapping[str, Changes]] = {
    "synchronous": {
        "3e-4, 10 x 512": ({}, {}),
        "1e-4": ({"learning_rate": 1e-4}, {}),
        "6e-4": ({"learning_rate": 6e-4}, {}),
        "10 x 256": ({"minibatch_size": 256}, {}),
        "10 x 1024": ({"minibatch_size": 1024}, {}),
        "5 x 512": ({"epochs": 5}, {}),
        "20 x 512": ({"epochs": 20}, {}),
        "5 x 256": ({"epochs": 5, "minibatch_size": 256}, {}),
        "1.2e-3": ({"learning_rate": 1.2e-3}, {}),
        "6e-4, 20 x 512": ({"learning_rate": 6e-4, "epochs": 20}, {}),
        "6e-4, 10 x 256": ({"learning_rate": 6e-4, "minibatch_size": 256}, {}),
        "6e-4, 10 x 1024": ({"learning_rate": 6e-4, "minibatch_size": 1024}, {}),
    },
    "stellaris": {
        "3e-4, 10 x 512": ({}, {}),
        "in rounds": ({}, IN_ROUNDS),
        "in rounds, 6e-4": ({"learning_rate": 6e-4}, IN_ROUNDS),
        "in rounds, 10 x 256": ({"minibatch_size": 256}, IN_ROUNDS),
        "in rounds, 10 x 1024": ({"minibatch_size": 1024}, IN_ROUNDS),
        "in rounds, 5 x 512": ({"epochs": 5}, IN_ROUNDS),
        "in rounds, 5 x 256": ({"epochs": 5, "minibatch_size": 256}, IN_ROUNDS),
        "in rounds, rho 4": ({}, {**IN_ROUNDS, "rho": 4.0}),
        "in rounds, a step each": ({}, {**IN_ROUNDS, **A_STEP_EACH}),
        "in rounds, a step each, 6e-4": ({"learning_rate": 6e-4}, {**IN_ROUNDS, **A_STEP_EACH}),
        "a step each": ({}, A_STEP_EACH),
        "in rounds, 1.2e-3": ({"learning_rate": 1.2e-3}, IN_ROUNDS),
    },
    "asynchronous actors": {
        "3e-3, 4 x 4": ({}, {}),
        "1e-3, 4 x 4": ({"learning_rate": 1e-3}, {}),
        "3e-4, 4 x 4": ({"learning_rate": 3e-4}, {}),
        "1e-3, 1 x 2": ({"learning_rate": 1e-3, "epochs": 1, "minibatch_size": 2}, {}),
        "1e-3, 4 x 2": ({"learning_rate": 1e-3, "minibatch_size": 2}, {}),
        "3e-4, 10 x 2": ({"learning_rate": 3e-4, "epochs": 10, "minibatch_size": 2}, {}),
        "1e-3, 4 x 4, GAE 0.95": ({"learning_rate": 1e-3, "lambda_": 0.95}, {}),
        "1e-3, 4 x 4, in rounds": ({"learning_rate": 1e-3}, IN_ROUNDS),
        "1e-4, 4 x 4": ({"learning_rate": 1e-4}, {}),
        "3e-4, 4 x 4, GAE 0.95": ({"learning_rate": 3e-4, "lambda_": 0.95}, {}),
        "3e-4, 4 x 4, no entropy": ({"learning_rate": 3e-4, "entropy_coefficient": 0.0}, {}),
        "3e-4, 4 x 4, in rounds": ({"learning_rate": 3e-4}, IN_ROUNDS),
    },
    "IMPACT": {
        "1e-3, 5 of 512": ({}, {}),
        "3e-4": ({"learning_rate": 3e-4}, {}),
        "3e-4, 10 turns": ({"learning_rate": 3e-4}, {"passes": 10}),
        "3e-4, 10 turns, one batch": ({"learning_rate": 3e-4}, {"passes": 10, "buffer": 1}),
        "3e-4, 10 turns, in rounds": ({"learning_rate": 3e-4}, {"passes": 10, **IN_ROUNDS}),
        "3e-4, 5 of 256": ({"learning_rate": 3e-4, "minibatch_size": 256}, {}),
        "3e-4, 10 turns, target every 5": ({"learning_rate": 3e-4}, {"passes": 10, "target_period": 5}),
        "1e-4, 10 turns": ({"learning_rate": 1e-4}, {"passes": 10}),
        "6e-4, 10 turns": ({"learning_rate": 6e-4}, {"passes": 10}),
        "6e-4, 10 turns, in rounds": ({"learning_rate": 6e-4}, {"passes": 10, **IN_ROUNDS}),
        "6e-4, 20 turns, in rounds": ({"learning_rate": 6e-4}, {"passes": 20, **IN_ROUNDS}),
        "6e-4, 10 of 256, in rounds": (
            {"learning_rate": 6e-4, "minibatch_size": 256},
            {"passes": 10, **IN_ROUNDS},
        ),
    },
}


SIZES = {
    "smoke": Size(("Hopper-v4",), 12_288, 1),
    "small": Size(("Hopper-v4",), 500_000, 1),
    "paper": Size(("Hopper-v4",), 1_000_000, 3),
}


def _variants(environment: str) -> Sequence[Variant]:
    """Returns one variant per system and setting."""
    rows = {row.contender.name: row for row in variants.of_preset(architectures(environment), [*START])}
    return [
        rows[system]._replace(
            contender=changed(replace(rows[system].contender, system=START[system]), changes), setting=setting
        )
        for system, settings in SETTINGS.items()
        for setting, changes in settings.items()
    ]


def changed(contender: Contender, changes: Changes) -> Contender:
    """Returns a contender with fields of its algorithm and of its system replaced."""
    of_algorithm, of_system = changes
    system: Any = contender.system
    algorithm = replace(system.algorithm, **of_algorithm)
    return replace(contender, system=replace(system, algorithm=algorithm, **of_system))


def _report(results: Sequence[Finished], out: Path, console: Console) -> None:
    """Shows one table row per run, each system's best first."""
    systems = list(dict.fromkeys(result.cell.contender.name for result in results))
    ranked = sorted(
        results, key=lambda result: (systems.index(result.cell.contender.name), -result.summary["final_return"])
    )
    rows = [
        (
            result.cell.contender.name,
            result.cell.setting,
            str(result.cell.seed),
            f"{result.summary['final_return']:,.0f}",
            f"{result.summary['virtual_seconds']:,.0f}",
            f"{result.summary['gradients']:,}",
        )
        for result in ranked
    ]
    title = f"{results[0].cell.environment}, {results[0].cell.budget.steps:,.0f} steps"
    tidy.show(title, ("system", "setting", "seed", "return", "virtual s", "gradients"), rows, out, console)


STUDY = Study("tuning", SIZES, _variants, _report, seed=SEED)
add_arguments, main = STUDY.add_arguments, STUDY.main
