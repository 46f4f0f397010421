"""Tuning: as many settings for every system, each of them another one."""

from pathlib import Path
from statistics import mean

from experiments import tuning
from stellaris._core.describe import describe
from tests.experiments import csv_rows


def test_every_system_has_as_many_settings():
    assert len({len(settings) for settings in tuning.SETTINGS.values()}) == 1
    for settings in tuning.SETTINGS.values():
        assert len({repr(describe(system)) for system in settings.values()}) == len(settings)


def test_the_chosen_settings_are_the_best_of_the_committed_runs():
    """By the mean of the final returns over the tuning seeds, of which each setting has as many."""
    runs = csv_rows.rows(Path(tuning.__file__).with_name("results") / "small" / "tuning" / "runs.csv")
    returns: dict[str, dict[str, list[float]]] = {}
    for row in runs:
        setting = row["setting"].removeprefix(f"{row['system']}: ")
        returns.setdefault(row["system"], {}).setdefault(setting, []).append(float(row["final_return"]))
    assert {name: {*of} for name, of in returns.items()} == {name: {*of} for name, of in tuning.SETTINGS.items()}
    assert {len(of) for settings in returns.values() for of in settings.values()} == {4}
    best = {name: max(settings, key=lambda one: mean(settings[one])) for name, settings in returns.items()}
    assert best == tuning.CHOSEN
