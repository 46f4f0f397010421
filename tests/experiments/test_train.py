"""The commands for experiments of one's own."""

import re
from pathlib import Path

import pytest

from experiments import command
from experiments.report import command as report
from experiments.study import study
from tests.experiments.csv_rows import rows

PAGE = Path(report.__file__).parents[2] / "docs" / "experiments.md"
TINY = ["--steps", "2048", "--jobs", "1"]


@pytest.mark.slow
def test_a_sweep_has_a_column_per_setting(tmp_path, capsys):
    """And its policies can be played."""
    words = ["train", "--system", "synchronous", "--set", "workload.actors=4", "workload.policy.hidden=(8,)"]
    words += ["--sweep", "algorithm.epochs=1,2", "--seeds", "2", *TINY, "--out", str(tmp_path)]
    assert command.main(words) == 0
    found = rows(tmp_path / "train" / "runs.csv")
    assert [(row["algorithm.epochs"], row["seed"]) for row in found] == [("1", "0"), ("1", "1"), ("2", "0"), ("2", "1")]
    assert [row["gradients"] for row in found[1:3]] != [found[0]["gradients"]] * 2
    assert (tmp_path / "train" / "train_CartPole-v1.png").exists()
    (tmp_path / "train" / "policies" / "of_an_earlier_command.safetensors").write_bytes(b"")
    assert command.main([*words, "--resume"]) == 0
    capsys.readouterr()
    assert command.main(["play", str(tmp_path / "train"), "--episodes", "2"]) == 0
    shown = capsys.readouterr().out
    assert shown.count("CartPole-v1_algorithm.epochs=") == 4


@pytest.mark.slow
def test_a_policy_with_memory_is_played(tmp_path, capsys):
    words = ["train", "--system", "synchronous", "--set", "workload.actors=4", "workload.policy=FlaxMemory(GRUCell, 8)"]
    assert command.main([*words, "--seeds", "1", *TINY, "--out", str(tmp_path)]) == 0
    capsys.readouterr()
    assert command.main(["play", str(tmp_path / "train"), "--episodes", "2"]) == 0
    assert "CartPole-v1" in capsys.readouterr().out


@pytest.mark.slow
def test_the_pages_study_runs_from_its_file(tmp_path, capsys):
    (tmp_path / "averaging.py").write_text(re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0])
    words = ["study", str(tmp_path / "averaging.py"), "--seeds", "1", "--variant", "weighted", *TINY, "--out"]
    assert command.main([*words, str(tmp_path / "out")]) == 0
    (row,) = rows(tmp_path / "out" / "averaging" / "runs.csv")
    assert (row["setting"], row["steps"]) == ("weighted", "2048")


def test_a_failure_in_a_study_of_ones_own_names_its_file(tmp_path, capsys, monkeypatch):
    text = re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)[0]
    path = tmp_path / "averaging_again.py"
    path.write_text(text)
    monkeypatch.setattr(study, "run_all", lambda cells, *of, failures, **others: failures.extend(cells[:1]))
    assert command.main(["study", str(path), "--out", str(tmp_path / "out")]) == 1
    assert f"(again: python -m experiments study {path} --preset small --seed 0 --out" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("own.py", None, "is not a Python file"),
        ("own.py", "STUDY = 3\n", "own.py does not define STUDY"),
        ("json.py", "STUDY = 3\n", "json.py cannot be imported as 'json', which is another module or none: rename it"),
        ("my.own.py", "STUDY = 3\n", "my.own.py cannot be imported as 'my.own', which is another module or none"),
    ],
)
def test_a_file_without_a_study(tmp_path, name, text, message, capsys):
    path = tmp_path / name
    if text is not None:
        path.write_text(text)
    assert command.main(["study", str(path)]) == 2
    assert message in capsys.readouterr().err


def test_nothing_to_play(tmp_path, capsys):
    assert command.main(["play", str(tmp_path)]) == 2
    assert "holds no policy" in capsys.readouterr().err
    (tmp_path / "one.safetensors").write_bytes(b"no policy")
    assert command.main(["play", str(tmp_path)]) == 2
    assert "one.safetensors is not a policy's file" in capsys.readouterr().err
