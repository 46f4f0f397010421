"""From scratch against fine-tuned: whose rows are compared, and what the command says and writes."""

import pytest

from experiments import command
from experiments.figures.minionsrl import finetuning
from experiments.figures.minionsrl.finetuning import BEFORE, SCRATCH, TUNED
from experiments.toolkit import output
from tests.experiments import csv_rows

WAY = "held for the run, neighbours share"


def spent(way, seed="", *, actors=16.0, time=1.2, cost=0.8, within=""):
    ends = {"time_low": time - 0.1, "time_high": time + 0.1, "cost_low": cost - 0.1, "cost_high": cost + 0.1}
    ratios = {"time": time, "cost": cost, **ends}
    return {"seed": seed, "way": way, "runs": 20, "actors": actors, **ratios, "within_budget": within}


def update(episodes, reward, held_out=""):
    return {"seed": 0, "way": WAY, "episodes": episodes, "reward": reward, "held_out": held_out}


@pytest.fixture
def folders(tmp_path):
    """A folder of each, as `minionsrl-learning` writes them."""
    all_actors = spent("all actors", actors=32.0, time=1.0, cost=1.0)
    best = spent(f"{WAY}: of the best training run", 0, time=3.0)
    tables = {
        "scratch": (
            [update(8, -60.0), update(16, -55.0, -58.0)],
            [all_actors, spent(WAY, 0, actors=18.0, time=1.1, cost=0.75, within=16), best],
        ),
        "tuned": (
            [update(2, -52.0), update(4, -50.0, -54.0)],
            [all_actors, spent("before fine-tuning", within=9), spent(WAY, 0, actors=20.0, time=1.05, within=15), best],
        ),
    }
    for name, (training, schedulers) in tables.items():
        (tmp_path / name).mkdir()
        output.write_rows(tmp_path / name / "training_acrobot.csv", training)
        output.write_rows(tmp_path / name / "schedulers_acrobot.csv", schedulers)
    return tmp_path


def test_what_is_compared(folders, capsys):
    """The fixed numbers once, the scheduler before, and those that did best on held-out runs; each with its runs."""
    out = folders / "out"
    options = ["--scratch", str(folders / "scratch"), "--tuned", str(folders / "tuned"), "--out", str(out)]
    assert command.main(["minionsrl-finetuning", *options]) == 0
    rows = csv_rows.rows(out / "table.csv")
    named = {row["scheduler"]: row for row in rows}
    assert [row["scheduler"] for row in rows] == ["all actors", BEFORE, SCRATCH, TUNED]
    assert [named[name]["runs of training"] for name in (SCRATCH, BEFORE, TUNED)] == ["16", "0", "4"]
    assert [named[name]["within the budget"] for name in (SCRATCH, BEFORE, TUNED)] == [
        "16 of 20",
        "9 of 20",
        "15 of 20",
    ]
    assert named[SCRATCH]["time / Max's"] == "1.10 (1.00 to 1.20)"
    assert named[TUNED]["cost / Max's"] == "0.80 (0.70 to 0.90)"
    assert (out / "finetuning_acrobot.png").stat().st_size > 0
    assert "Acrobot-v1" in capsys.readouterr().out


@pytest.mark.parametrize("option", ["--scratch", "--tuned"])
def test_a_folder_without_results(option, folders, capsys):
    options = {"--scratch": str(folders / "scratch"), "--tuned": str(folders / "tuned"), option: str(folders / "none")}
    given = [word for pair in options.items() for word in pair]
    assert command.main(["minionsrl-finetuning", *given, "--out", str(folders / "out")]) == 2
    said = capsys.readouterr().err
    assert f"{option} {folders / 'none'}" in said
    assert "training_acrobot.csv" in said


def test_no_run_has_reached_the_target():
    """Then its ratios are no numbers, and the rest is shown."""
    row = {**spent(WAY, "0"), "time": "", "time_low": "", "time_high": "", "name": SCRATCH, "training": "16"}
    *_, time, cost = finetuning.texts(row)
    assert "nan" in time
    assert cost == "0.80 (0.70 to 0.90)"
