"""The settings of MinionsRL's tuned learner: which ones run, how they rank, and what the command writes."""

import math

import pytest

from experiments import command
from experiments.figures.minionsrl import tuning
from experiments.tasks import minionsrl
from tests.experiments.csv_rows import rows


@pytest.mark.parametrize("environment", ["CartPole-v1", "Acrobot-v1"])
def test_each_setting_runs_once(environment):
    """The learner's own is first, and those of the synchronous system follow; a grid may hold the own one, too."""
    own = minionsrl.tuned_task(environment).ppo
    several = tuning.settings(own)
    assert next(iter(several.values())) == own
    assert len({*several.values()}) == len(several) == (9 if environment == "CartPole-v1" else 8)
    for name, ppo in several.items():
        assert name == f"{ppo.learning_rate:g}, {ppo.epochs} x {ppo.minibatch_size}"


def run(setting, seconds):
    return {"setting": setting, "seconds": str(seconds), "cost": str(seconds / 1000), "steps": str(100 * seconds)}


def test_settings_are_ranked_by_their_median_time():
    """Relative to the learner's own, which is the first of the rows; a run that fails has no time."""
    several = [*(run("own", x) for x in (10, 12, 20, 40)), *(run("other", x) for x in (8, 8, 16, math.inf))]
    lines = [dict(zip(tuning.HEADINGS, line, strict=True)) for line in tuning.table(several)]
    assert [line["setting"] for line in lines] == ["other", "own (its own)"]
    assert [line["reached"] for line in lines] == ["3 of 4", "4 of 4"]
    assert [line["median s"] for line in lines] == ["12.0", "16.0"]
    assert [(line["from"], line["to"]) for line in lines] == [("8.0", "inf"), ("10.0", "40.0")]
    assert [line["time / own"] for line in lines] == ["0.75", "1.00"]
    assert (lines[1]["median USD"], lines[1]["median steps"]) == ("0.0160", "1,600")


@pytest.mark.slow
def test_the_command(tmp_path, monkeypatch, capsys):
    """With two settings, of which each has a run with all actors."""
    settings = tuning.settings
    monkeypatch.setattr(tuning, "settings", lambda own: dict([*settings(own).items()][:2]))
    assert command.main(["minionsrl-tuning", "--preset", "smoke", "--out", str(tmp_path)]) == 0
    runs = rows(tmp_path / "runs_tuned.csv")
    assert [(row["setting"], row["seed"]) for row in runs] == [("0.0005, 5 x 512", "100"), ("0.0003, 10 x 512", "100")]
    assert {row["setting"].removesuffix(" (its own)") for row in rows(tmp_path / "tuned" / "table.csv")} == {
        row["setting"] for row in runs
    }
    assert (tmp_path / "provenance_tuned.json").exists()
    assert "tuned: time to the target" in capsys.readouterr().out
