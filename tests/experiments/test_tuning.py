"""Tuning: as many settings for every system, each of them another one, and the presets have the best."""

from pathlib import Path
from statistics import mean

import pytest

from experiments import tuning
from experiments.figures.stellaris import hpc, hpc_tuning
from experiments.tasks import presets
from stellaris._core.describe import describe
from stellaris.acting import ActorCritic
from tests.experiments import csv_rows

RUNS = Path(tuning.__file__).with_name("results") / "small"


@pytest.mark.parametrize("environment", tuning.TUNED)
def test_every_system_has_as_many_settings(environment):
    of = tuning.of(environment).settings
    assert len({len(settings) for settings in of.values()}) == 1
    for settings in of.values():
        assert len({repr(describe(system)) for system in settings.values()}) == len(settings)


def test_both_systems_have_eight_settings_on_the_hpc_testbed():
    assert {*hpc_tuning.SETTINGS} == {*hpc.CHOSEN}
    for name, settings in hpc_tuning.SETTINGS.items():
        variants = [hpc.variant("Hopper-v4", name, setting) for setting in settings.values()]
        assert len({repr(describe(variant.contender.system)) for variant in variants}) == len(settings) == 8
        assert {variant.contender.name for variant in variants} == {name}


@pytest.mark.parametrize("environment", tuning.TUNED)
def test_the_chosen_settings_are_the_best_of_the_committed_runs(environment):
    """By the mean of the outcome over the tuning seeds, of which each setting has as many."""
    tuned = tuning.of(environment)
    outcome = "mean_return" if tuned.over_the_run else "final_return"
    runs = RUNS / {"Hopper-v4": "tuning", "CartPole-v1": "tuning/cartpole"}[environment]
    assert best(runs, tuned.settings, outcome) == tuned.chosen


def test_the_settings_on_the_hpc_testbed_are_the_best_of_the_committed_runs():
    chosen = best(RUNS / "stellaris-hpc-tuning", hpc_tuning.SETTINGS, "final_return")
    assert {name: hpc_tuning.SETTINGS[name][words] for name, words in chosen.items()} == hpc.CHOSEN


def best(runs, settings, outcome):
    """The best setting of each system; every setting has four runs."""
    outcomes: dict[str, dict[str, list[float]]] = {}
    for row in csv_rows.rows(runs / "runs.csv"):
        setting = row["setting"].removeprefix(f"{row['system']}: ")
        outcomes.setdefault(row["system"], {}).setdefault(setting, []).append(float(row[outcome]))
    assert {name: {*of} for name, of in outcomes.items()} == {name: {*of} for name, of in settings.items()}
    assert {len(of) for several in outcomes.values() for of in several.values()} == {4}
    return {name: max(several, key=lambda one: mean(several[one])) for name, several in outcomes.items()}


@pytest.mark.parametrize("environment", tuning.TUNED)
def test_presets_have_the_chosen_settings(environment):
    """With the workload on which they were tuned: its rewards are scaled."""
    preset = presets.architectures(environment)
    tuned = tuning.of(environment)
    rows = {row.name: row.system for row in preset.contenders}
    shared = rows.keys() & tuned.chosen.keys()
    assert shared == {"synchronous", "stellaris", "asynchronous actors", "IMPACT"}
    for name in shared:
        assert describe(rows[name]) == describe(tuned.settings[name][tuned.chosen[name]])
    assert preset.workload == tuning.variant(environment, "IMPACT", tuned.chosen["IMPACT"]).workload
    assert preset.workload.policy == ActorCritic(scaling_discount=0.99)
