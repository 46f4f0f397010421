"""Tuning at equal steps: settings that differ, batches that end at the last step, and the choice among the runs."""

from statistics import fmean

from experiments import tuning_steps
from stellaris._core.describe import describe
from tests.experiments import committed, csv_rows


def test_settings_are_distinct_and_end_at_the_same_step():
    systems = {repr(describe(tuning_steps.variant("Hopper-v4", one))) for one in tuning_steps.SETTINGS.values()}
    assert len(systems) == len(tuning_steps.SETTINGS) <= 8
    for setting in tuning_steps.SETTINGS.values():
        batch = setting.actors * setting.fragment
        assert 512 <= batch <= 2048
        assert tuning_steps.STEPS % batch == 0
        assert batch % setting.minibatch == 0


def test_the_chosen_setting_is_the_best_of_the_committed_runs():
    """By the mean of the final returns over four seeds."""
    returns: dict[str, dict[str, float]] = {}
    for row in csv_rows.rows(committed.SMALL / "tuning-steps" / "runs.csv"):
        assert float(row["steps"]) == tuning_steps.STEPS
        returns.setdefault(row["setting"], {})[row["seed"]] = float(row["final_return"])
    assert returns.keys() == tuning_steps.SETTINGS.keys()
    assert {tuple(sorted(of)) for of in returns.values()} == {("100", "101", "102", "103")}
    assert max(returns, key=lambda setting: fmean(returns[setting].values())) == tuning_steps.CHOSEN
