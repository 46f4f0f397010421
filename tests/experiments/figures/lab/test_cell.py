"""One cell of a study again: its committed runs are found, and the same runs are made."""

import numpy as np
import pytest

from experiments import command
from experiments.figures.lab import cell
from experiments.figures.lab.cell import Cell
from experiments.toolkit import output
from experiments.toolkit.shell import UsageError


def test_every_study_has_its_committed_runs():
    """As many seeds as it was run with, in the table of the part that has the cell."""
    seeds = {
        Cell("lab-lag", "CartPole", "IMPACT", 0, 1e-3): 32,
        Cell("lab-corrections", "Breakout-MinAtar", "KPop", 128, 3e-3): 32,
        Cell("lab-corrections", "CartPole", "SAPO", 8, 1e-2, "sawtooth"): 32,
        Cell("lab-corrections", "CartPole", "no correction", 64, 1e-1, updates=2048): 32,
        Cell("lab-language", "Sorting", "TOPR", 256, 2e-2): 10,
        Cell("lab-language", "Sorting", "GRPO", 2, 2e-3): 64,
        Cell("lab-gradients", "Acrobot-v1", "averaged groups", 8, 1e-3, "drawn"): 16,
    }
    for one, number in seeds.items():
        found = cell.committed(one)
        assert sorted(int(row["seed"]) for row in found) == [*range(number)]
        assert {row["method"] for row in found} == {one.method}
        assert {float(row["learning_rate"]) for row in found} == {one.learning_rate}


@pytest.mark.parametrize(
    ("one", "said"),
    [
        (Cell("lab-corrections", "CartPole", "SAP0", 4, 1e-3), 'method: PPO, "truncated weights'),
        (Cell("lab-lag", "CartPole", "PPO", 3, 1e-3), "lag: 0, 1, 2, 4, 8"),
        (Cell("lab-lag", "CartPole", "cap", 4, 1e-3), 'IMPACT, "cap, demo", "cap, theorem"; lag'),
        (Cell("lab-gradients", "CartPole", "uncorrected", 2, 1e-3, "sawtooth"), "kind: constant, drawn"),
        (Cell("lab-lag", "CartPole", "PPO", 4, 1e-3, "sawtooth"), "has no run with"),
        (Cell("lab-lag", "CartPole", "PPO", 4, 1e-3, updates=512), "has no run with"),
        (Cell("lab-language", "CartPole", "GRPO", 4, 2e-3), "no task CartPole"),
        (Cell("lab-corrections", "Pong", "PPO", 4, 1e-3), "no task Pong"),
    ],
)
def test_a_cell_that_was_not_run(one, said):
    """The message has the values that there are."""
    with pytest.raises(UsageError, match=said):
        cell.committed(one)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("one", "table", "extra"),
    [
        (Cell("lab-lag", "CartPole", "PPO", 2, 3e-3), "runs.csv", {}),
        (Cell("lab-corrections", "CartPole", "SAPO", 2, 3e-3), "lags_CartPole.csv.gz", {"updates": 32}),
        (Cell("lab-corrections", "CartPole", "PPO", 2, 3e-3, "sawtooth"), "patterns_CartPole.csv.gz", {"updates": 40}),
        (Cell("lab-language", "Sorting", "GRPO", 8, 6.3e-3), "lags.csv", {"updates": 20}),
        (Cell("lab-gradients", "CartPole", "averaged groups", 8, 3e-3, "drawn"), "runs_CartPole.csv.gz", {}),
    ],
)
def test_a_cell_again(one, table, extra, tmp_path):
    """The rows of the cell are read, and no others; few seeds are run."""
    column = cell.STUDIES[one.study].outcome
    row = {"task": one.task, "method": one.method, "lag": one.lag, "learning_rate": one.learning_rate}
    row |= {"kind": one.kind, **extra}
    (tmp_path / one.study).mkdir()
    others = [{**row, "learning_rate": 1.0, column: 99}, {**row, "lag": 5, column: 99}]
    output.write_rows(tmp_path / one.study / table, [*({**row, column: x} for x in (1, 2, 3)), *others])
    found = cell.repeat(one, 2, tmp_path, "smoke")
    assert found.committed == [1.0, 2.0, 3.0]
    assert len(found.now) == 2
    assert np.isfinite(found.now).all()


def test_the_command(monkeypatch, capsys):
    """Both means, and the status: 0 if they agree."""
    asked = []

    def repeat(one, seeds):
        asked.append((one, seeds))
        return cell.Repeat(one.study, "run", [1.0, 2.0, 3.0], [2.0 if one.lag else 99.0])

    monkeypatch.setattr(cell, "repeat", repeat)
    words = ["lab-cell", "lab-corrections", "--method", "SAPO", "--rate", "0.001"]
    assert command.main([*words, "--lag", "4", "--seeds", "1"]) == 0
    assert asked == [(Cell("lab-corrections", "CartPole", "SAPO", 4, 1e-3), 1)]
    assert "agrees" in capsys.readouterr().out
    assert command.main([*words, "--lag", "0"]) == 1
    assert command.main(["lab-cell", "lab-language", *words[2:], "--lag", "4"]) == 0
    assert asked[-1][0].task == "Sorting"
