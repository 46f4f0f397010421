"""The lab's sweep from the command line."""

import json
import os
import subprocess
import sys

import pytest

from experiments import command
from tests.experiments.csv_rows import rows

SMALL = ("--updates", "3", "--actors", "2", "--fragment", "16", "--hidden", "8", "--seeds", "2")


@pytest.mark.slow
def test_it_writes_a_table_and_a_picture(tmp_path, capsys):
    axes = ("--set", "lag=0,2", "algorithm.learning_rate=1e-3,1e-2", "algorithm.epochs=1")
    assert command.main(["lab", *axes, *SMALL, "--out", str(tmp_path)]) == 0
    table = rows(tmp_path / "lab.csv")
    assert len(table) == 8
    assert {(row["lag"], row["algorithm.learning_rate"]) for row in table} == {
        (lag, rate) for lag in ("0", "2") for rate in ("0.001", "0.01")
    }
    assert all(float(row["data_lag"]) == {"0": 0.0, "2": 1.0}[row["lag"]] for row in table)  # 0, 1, 2 in three batches
    assert (tmp_path / "return.png").stat().st_size > 10_000
    assert '"epochs": 1' in json.loads((tmp_path / "settings.json").read_text())["settings"]
    assert "8 of 8 runs" in capsys.readouterr().out
    # Once more: the runs are read, not computed, and the table is the same.
    assert command.main(["lab", *axes, *SMALL, "--out", str(tmp_path)]) == 0
    assert rows(tmp_path / "lab.csv") == table
    assert "takes 0 MiB" in capsys.readouterr().out


@pytest.mark.slow
@pytest.mark.parametrize("pattern", ["sawtooth", "maximum", "mixed"])
def test_patterns_have_the_mean_that_is_asked_for(tmp_path, pattern):
    """In the long run; drawn lags differ between seeds, the others do not."""
    small = ("--updates", "60", "--actors", "2", "--fragment", "4", "--hidden", "4", "--seeds", "2")
    axes = ("--set", "lag=2", "algorithm.epochs=1")
    assert command.main(["lab", *small, *axes, "--pattern", pattern, "--out", str(tmp_path)]) == 0
    lags = [float(row["data_lag"]) for row in rows(tmp_path / "lab.csv")]
    assert all(1.6 < lag < 2.4 for lag in lags)
    assert lags[0] != lags[1] if pattern == "maximum" else lags[0] == pytest.approx(lags[1], abs=0.1)


@pytest.mark.slow
def test_it_says_that_a_lag_is_beyond_the_run(tmp_path, capsys):
    axes = ("--set", "lag=2,3", "algorithm.epochs=1")
    assert command.main(["lab", *axes, *SMALL, "--out", str(tmp_path)]) == 0
    assert "lag 3: the untrained policy samples all 3 batches" in capsys.readouterr().out


@pytest.mark.slow
def test_a_second_process_reads_the_program_of_a_sweep(tmp_path):
    """It sweeps other rates."""
    environment = {name: value for name, value in os.environ.items() if not name.startswith("JAX_")}
    options = (*SMALL, "--out", str(tmp_path), "--set", "lag=0", "algorithm.epochs=1")
    kept = []
    for rate in ("1e-3,1e-2", "2e-3,2e-2"):
        subprocess.run(
            [sys.executable, "-m", "experiments", "lab", *options, f"algorithm.learning_rate={rate}"],
            env=environment,
            check=True,
        )
        # Small programs are kept only if compiling them took 0.1 s, which varies.
        kept.append({path.name for path in (tmp_path / "compiled").glob("jit__run_block-*-cache")})
    assert kept[0]
    assert kept[0] == kept[1]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--set", "speed=1"), "--set: speed is neither lag nor gradient_lag nor algorithm.FIELD"),
        (("--set", "algorithm.speed=1"), "--set: PPO has no field speed"),
        (("--set", "algorithm.clip=-1"), "--set: clip=-1"),
        (("--set", "lag=a"), "lag=a is not of the form NAME=NUMBER,NUMBER"),
        (("--set", "lag=1", "lag=2"), "--set: lag is given twice"),
        (("--set", "lag=-1"), "k=-1"),
        (("--pattern", "mixed", "--set", "gradient_lag=1"), "--pattern mixed: a gradient has one age"),
        (("--pattern", "mixed", "--actors", "1"), "--pattern mixed: --actors 1 is one actor"),
        (("--env", "Maze-v9"), "Gymnax('Maze-v9'"),
    ],
)
def test_errors(tmp_path, capsys, options, message):
    assert command.main(["lab", *SMALL, *options, "--out", str(tmp_path)]) == 2
    assert message in capsys.readouterr().err
