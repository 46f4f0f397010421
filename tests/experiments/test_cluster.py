"""What the experiments on a cluster leave on the disk while they run: their process may end without notice."""

import contextlib
import json
from unittest import mock

import numpy as np
import pytest

from experiments import command
from experiments.cluster import demo, vs_simulation
from experiments.cluster.vs_simulation import Measured, Pair
from experiments.study import runs
from stellaris.runtime import SimulatedPlatform
from tests.experiments.csv_rows import rows

ROWS = [
    {"round": 0, "seconds": 0.5, "steps": 0.0, "episode_return": 9.0, "staleness_mean": 0.0},
    {"round": 1, "seconds": 1.0, "steps": 64.0, "episode_return": 11.0, "staleness_mean": 0.0},
    {"round": 2, "seconds": 1.5, "steps": 128.0, "episode_return": 12.0, "staleness_mean": 0.5, "loss": 0.25},
    {"round": 3, "seconds": 2.0, "steps": 192.0, "episode_return": 12.5, "staleness_mean": 0.5},
]
REST = {"version": 1, "episodes": 2, "gradients": 0, "staleness_max": 0.0, "cost_pay_per_use": 0.01}


class PowerCutError(BaseException):
    """Stands for the end of the process: nothing handles it."""


@pytest.fixture
def no_cluster(monkeypatch):
    """A platform of this process stands for Ray's."""
    monkeypatch.setattr("stellaris.runtime.RayPlatform", SimulatedPlatform, raising=False)
    monkeypatch.setattr(demo, "_cluster", lambda *arguments: contextlib.nullcontext())
    monkeypatch.setattr("stellaris.runtime.ray.platform.connect", lambda: False)


def test_rows_of_a_history_are_on_the_disk_before_the_run_ends(no_cluster, monkeypatch, tmp_path):
    """Each as soon as it is there, in a column of its own if it has a new one; a run that is over is there as a whole.

    The record of an earlier run does not stay beside the rows of another.
    """
    (tmp_path / "summary.json").write_text("{}")
    trained = []

    def train(*arguments, on_progress, **options):
        for n, row in enumerate(ROWS, start=1):
            on_progress(row | REST)
            name = "stellaris" if trained else "synchronous"
            found = rows(tmp_path / f"history_{name}_0.csv")
            assert [float(one["steps"]) for one in found] == [row["steps"] for row in ROWS[:n]]
            assert [one.get("loss", "") for one in found] == ["", "", "0.25", ""][:n]
            assert (tmp_path / "summary.json").exists() == bool(trained)
        if trained:
            raise PowerCutError
        trained.append(True)
        return mock.Mock(policy=None)

    monkeypatch.setattr(runs, "train", train)
    with pytest.raises(PowerCutError):
        command.main(["cluster", "--out", str(tmp_path)])
    (first,) = json.loads((tmp_path / "summary.json").read_text())["runs"]
    assert (first["system"], first["status"], first["steps"]) == ("synchronous", "done", 192)
    assert (tmp_path / "trace_synchronous_0.json").exists()
    assert len(rows(tmp_path / "history_stellaris_0.csv")) == len(ROWS)


def test_a_comparison_is_on_the_disk_before_the_next_begins(no_cluster, monkeypatch, tmp_path):
    (tmp_path / "runs.csv").write_text("system,seed,on\nstellaris,7,Ray\n")

    def compared(row, workload, seed, *rest):
        if seed:
            assert [(one["seed"], one["on"]) for one in rows(tmp_path / "runs.csv")] == [
                (str(before), where) for before in range(seed) for where in ("Ray", "simulation")
            ]
        if seed == 2:
            raise PowerCutError
        measured = Measured(dict.fromkeys(vs_simulation._QUANTITIES, 1.0 + seed), np.ones(3))
        return Pair(row.name, seed, measured, measured)

    monkeypatch.setattr(vs_simulation, "_pair", compared)
    with pytest.raises(PowerCutError):
        command.main(["cluster-vs-simulation", "--system", "stellaris", "--out", str(tmp_path)])
    assert [one["updates"] for one in rows(tmp_path / "runs.csv")] == ["1.0", "1.0", "2.0", "2.0"]


def test_a_comparison_has_its_provenance_beside_it(no_cluster, monkeypatch, tmp_path):
    measured = Measured(dict.fromkeys(vs_simulation._QUANTITIES, 1.0), np.ones(3))
    monkeypatch.setattr(
        vs_simulation, "_pair", lambda row, workload, seed, *rest: Pair(row.name, seed, measured, measured)
    )
    arguments = ("--system", "stellaris", "--seeds", "1", "--out", str(tmp_path))
    assert command.main(["cluster-vs-simulation", *arguments]) == 0
    assert {"commit", "code", "jax", "processor"} <= {*json.loads((tmp_path / "provenance.json").read_text())}
