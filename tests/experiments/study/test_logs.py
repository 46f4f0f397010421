"""`--log`: every run has a log of its own, which is closed however the run ends."""

import sys
from typing import ClassVar

import pytest

from experiments import command
from experiments.study import logs
from tests.experiments.csv_rows import rows
from tests.experiments.study.test_cells import tiny
from tests.systems.test_sinks import scalars


class Recorded(list):
    """A sink, and all that its class opened, by name."""

    opened: ClassVar = {}

    def __init__(self, directory, *, name="", **more):
        Recorded.opened[name] = self

    @staticmethod
    def package():
        """Nothing is missing."""

    def __call__(self, row):
        self.append(row["steps"])

    def close(self, *, failed=False):
        self.append("failed" if failed else "done")


@pytest.fixture
def opened(monkeypatch):
    monkeypatch.setitem(logs.SINKS, "wandb", Recorded)
    monkeypatch.setattr(logs, "WandB", Recorded)
    monkeypatch.setattr(Recorded, "opened", {})
    return Recorded.opened


def a_run(seed, status="done"):
    """An outcome of one round."""
    run = tiny(seed=seed).outcome()
    run.status = status
    run.history.append({"steps": 10 * seed})
    return run


def test_a_log_is_closed_however_its_run_ends(opened, tmp_path):
    """Done, failed, or interrupted: it has not ended when the block does."""
    runs = [a_run(1), a_run(2, "failed"), a_run(3, "running")]

    def study():
        with logs.Logs(["wandb", "wandb"], tmp_path) as log:
            for run in runs:
                log.begin(run)
                log.row(run)
            for run in runs[:2]:
                log.end(run)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        study()
    assert [*opened.values()] == [[10, "done"], [20, "failed"], [30, "failed"]]
    assert [*opened] == [run.label for run in runs]


def test_without_logs_nothing_is_opened(opened, tmp_path):
    with logs.Logs([], tmp_path) as log:
        for event in (log.begin, log.row, log.end):
            event(a_run(1))
    assert (opened, [*tmp_path.iterdir()]) == ({}, [])


@pytest.mark.parametrize(
    ("log", "message"),
    [
        ("tensorboard,csv", "--log: 'csv' is no log; choose from tensorboard, wandb"),
        ("tensorboard", "--log tensorboard: a log for TensorBoard needs tensorboardX: pip install"),
        ("wandb", "--log wandb: a log for Weights & Biases needs wandb: pip install 'stellaris-rl[wandb]'"),
    ],
)
def test_a_log_that_cannot_be_written_is_an_error_before_the_first_run(tmp_path, log, message, monkeypatch, capsys):
    monkeypatch.setitem(sys.modules, "tensorboardX", None)
    monkeypatch.setitem(sys.modules, "wandb", None)
    assert command.main(["train", "--log", log, "--out", str(tmp_path / "out")]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_train_writes_a_log_of_each_run(tmp_path, capsys):
    """Its points are the rounds of the run; an earlier log of the same name is replaced."""
    pytest.importorskip("tensorboardX")
    stale = tmp_path / "train" / "logs" / "tensorboard" / "CartPole-v1_synchronous_algorithm.epochs=1_seed_0"
    stale.mkdir(parents=True)
    (stale / "events.out.tfevents.0").write_bytes(b"old")
    words = ["train", "--system", "synchronous", "--set", "workload.actors=4", "workload.policy.hidden=(8,)"]
    words += ["--sweep", "algorithm.epochs=1,2", "--steps", "2048", "--jobs", "2", "--log", "tensorboard"]
    assert command.main([*words, "--out", str(tmp_path)]) == 0
    folders = sorted(stale.parent.iterdir())
    assert [folder.name for folder in folders] == [stale.name, stale.name.replace("epochs=1", "epochs=2")]
    for folder, row in zip(folders, rows(tmp_path / "train" / "runs.csv"), strict=True):
        found = scalars(folder)
        assert found["history/gradients"][-1][::2] == (2048, float(row["gradients"]))
        assert found["charts/episodic_return"][-1][2] == pytest.approx(float(row["final_return"]))
        spent = found["history/seconds"][-1][1] - found["history/seconds"][0][1]
        assert spent == pytest.approx(found["history/seconds"][-1][2] - found["history/seconds"][0][2], abs=1e-3)
