"""One run of a study: its key, its process, and what it leaves."""

import dataclasses
import errno
import json
import math
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from unittest import mock

import gymnasium
import jax
import numpy as np
import pytest

from experiments.study import cells, runs, tidy
from experiments.study.cells import Cell, Worker, finished
from experiments.tasks import presets
from experiments.toolkit import computing, output
from stellaris import PPO
from stellaris.acting import ActorCritic
from stellaris.runtime import Trace
from stellaris.systems import Budget, Evaluation, Synchronous, Workload

ROOT = Path(__file__).parents[3]
PPO_CONFIG = PPO(epochs=1, minibatch_size=64)


def tiny(seed=0, environment="CartPole-v1", setting=""):
    contender = presets.contender("synchronous", Synchronous(PPO_CONFIG), colour="#D55E00")
    workload = Workload(environment, policy=ActorCritic(hidden=(8,)), actors=4, fragment=16)
    return Cell(contender, workload, Budget(steps=256), seed, setting)


def test_a_key_is_of_what_is_computed():
    """Whatever the run is called and however it is drawn; any other setting is another run."""
    cell = tiny()
    drawn = dataclasses.replace(cell.contender, name="another", colour="#000000", line=":")
    assert dataclasses.replace(cell, contender=drawn, setting="in words").key == cell.key == tiny().key
    contenders = (
        dataclasses.replace(cell.contender, prices=()),
        dataclasses.replace(cell.contender, system=Synchronous(PPO(epochs=2, minibatch_size=64))),
    )
    others = [
        *(tiny(seed=1), tiny(environment="Acrobot-v1")),
        dataclasses.replace(cell, budget=Budget(steps=512)),
        dataclasses.replace(cell, evaluation=Evaluation()),
        *(dataclasses.replace(cell, contender=contender) for contender in contenders),
    ]
    assert len({cell.key, *(other.key for other in others)}) == 7


def test_a_key_is_of_the_code(monkeypatch):
    one = tiny().key
    monkeypatch.setattr(cells, "code_version", lambda: "another")
    assert tiny().key != one


def test_a_key_is_of_the_packages(monkeypatch):
    """Another version of JAX computes other numbers, which a resumed study must not mix in."""
    one = tiny().key
    monkeypatch.setattr(cells, "versions", lambda *names: dict.fromkeys(names, "another"))
    assert tiny().key != one


def test_a_study_says_where_its_runs_were_computed(tmp_path):
    """Not where its tables are written: cells are kept and may be copied."""
    found = []
    for seed, commit in enumerate(("first", "second", "first")):
        (tmp_path / str(seed)).mkdir()
        (tmp_path / str(seed) / "cell.json").write_text(json.dumps({"provenance": {"commit": commit, "jax": "0.1"}}))
        found.append(cells.Finished(tiny(seed), tmp_path / str(seed), (), {}))
    assert tidy._together([one.provenance for one in found]) == {"commit": "first; second", "jax": "0.1"}


def test_a_target_of_zero_is_a_target():
    outcome = tiny().outcome()
    row = {"steps": 64, "version": 1, "gradients": 4, "episodes": outcome.budget.window}
    outcome.history += [{**row, "seconds": 1.0, "episode_return": -3.0}, {**row, "seconds": 2.0, "episode_return": 0.0}]
    assert runs.summarise(outcome, 0.0)["seconds_to_target"] == 2.0


@pytest.mark.parametrize(("target", "seconds"), [(None, 2.0), (40.0, 2.0), (25.0, 1.0), (math.inf, 2.0)])
def test_the_seconds_to_the_first_of_both_targets(target, seconds):
    """Of the training episodes, and of evaluations if the budget has a target of them."""
    outcome = tiny().outcome()
    row = {"steps": 64, "version": 1, "gradients": 4, "episodes": outcome.budget.window}
    outcome.history += [
        {**row, "seconds": 0.5, "episode_return": 60.0, "episodes": outcome.budget.window - 1},  # too few episodes
        {**row, "seconds": 1.0, "episode_return": 30.0},
        {**row, "seconds": 2.0, "episode_return": 30.0, "evaluation_return": 50.0},
    ]
    plain = runs.summarise(outcome, target)["seconds_to_target"]
    assert plain == (1.0 if target == 25.0 else None)
    outcome.budget = Budget(steps=256, target_evaluation=50.0)
    assert runs.summarise(outcome, target)["seconds_to_target"] == seconds


def done(cell, out):
    """What a process says of a cell: its rows, and whether it went well."""
    worker = Worker(out)
    worker.begin(cell)
    said = [worker.wire.recv()]
    while not isinstance(said[-1], bool):
        said.append(worker.wire.recv())
    worker.end()
    return said[:-1], said[-1]


def _threads():
    computing.use_one_thread()
    jax.numpy.ones(3).block_until_ready()
    return sum(name.read_text().strip() == "tf_XLAEigen" for name in Path("/proc/self/task").glob("*/comm"))


@pytest.mark.skipif(len(os.sched_getaffinity(0)) == 1, reason="on one core XLA has one thread anyway")
def test_xla_computes_with_one_thread():
    """So that a run's numbers do not depend on the number of cores."""
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as pool:
        assert pool.submit(_threads).result() == 1


@pytest.mark.slow
def test_a_process_does_what_this_one_does(tmp_path):
    cell, here = tiny(setting="as it is"), []
    (tmp_path / "here").mkdir()
    watcher = mock.Mock(row=lambda run: here.append(run.history[-1]))
    cells.run(cell, tmp_path / "here", watcher, out=tmp_path)
    sent, well = done(cell, tmp_path)
    assert well
    result = finished(cell, tmp_path)
    for rows in (sent, result.history):
        assert len(rows) == len(here) == 4
        for row, expected in zip(rows, here, strict=True):
            np.testing.assert_equal(row, expected)
    here_trace = Trace.load(tmp_path / "here" / "trace.parquet")
    assert list(map(str, result.trace.rows())) == list(map(str, here_trace.rows()))
    assert len(here_trace) > 100
    record = json.loads((result.folder / "cell.json").read_text())
    assert record["label"] == "CartPole-v1 synchronous as it is seed 0"
    assert record["settings"]["system"]["algorithm"]["minibatch_size"] == 64
    assert result.summary["steps"] == 256


@pytest.mark.slow
def test_one_that_fails_says_why(tmp_path):
    """And has not been done; what a process that was killed has begun does not count either."""
    cell = tiny(environment="NoSuch-v0")
    draft = tmp_path / "cells" / f"{cell.key}.unfinished"
    draft.mkdir(parents=True)
    (draft / "cell.json").write_text("half")
    assert finished(cell, tmp_path) is None
    assert cells.failure(cell, tmp_path) == "its process was killed"
    assert done(cell, tmp_path) == ([], False)
    assert finished(cell, tmp_path) is None
    assert "NoSuch-v0" in cells.failure(cell, tmp_path)
    assert not draft.exists()


class Slow(gymnasium.Env):
    """An environment in which nothing happens for long."""

    observation_space = gymnasium.spaces.Box(-1, 1, (1,))
    action_space = gymnasium.spaces.Discrete(2)

    def reset(self, *, seed=None, options=None):
        time.sleep(60.0)
        return np.zeros(1, np.float32), {}


KILLED = """
import os, signal, sys, time
from dataclasses import replace
from pathlib import Path
from experiments.study.cells import Worker
from stellaris.systems import Budget
from tests.experiments.study.test_cells import Slow, tiny

out, slow = Path(sys.argv[1]), sys.argv[2] == "slow"
worker = Worker(out)
worker.begin(replace(tiny(environment=Slow if slow else "CartPole-v1"), budget=Budget(steps=10**9)))
while slow and not list(out.glob("cells/*.unfinished")):
    time.sleep(0.1)
if not slow:
    worker.wire.recv()
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.slow
@pytest.mark.parametrize("rows", ["slow", "fast"])
def test_a_process_ends_with_its_study(rows, tmp_path):
    """At once if the study is killed, and what it had begun is no failure: a resumed study does it again."""
    command = [sys.executable, "-c", KILLED, str(tmp_path), rows]
    # The process inherits the pipe, so that this waits for its end as well.
    study = subprocess.run(command, cwd=ROOT, stdout=subprocess.PIPE, timeout=50.0, check=False)
    assert study.returncode == -signal.SIGKILL
    assert [path.suffix for path in (tmp_path / "cells").iterdir()] == [".unfinished"]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A folder of results with a run that was done."""
    out = tmp_path_factory.mktemp("results")
    cells.run(tiny(), out / "cells" / tiny().key, mock.Mock(), out=out)
    return out


def edited(path, change):
    text = path.read_text()
    path.write_text(change(text))
    assert path.read_text() != text


def without_files(folder):
    """A record that is whole but for what it must hold."""
    record = json.loads((folder / "cell.json").read_text())
    del record["seal"], record["files"]
    (folder / "cell.json").write_text(json.dumps({**record, "seal": cells._seal(record)}))


DAMAGES = {
    "other steps": (lambda at: edited(at / "cell.json", lambda t: t.replace(": 256", ": 257")), "cell.json"),
    "no record": (lambda at: (at / "cell.json").unlink(), "cell.json: No such file"),
    "half a record": (lambda at: edited(at / "cell.json", lambda t: t[: len(t) // 2]), "cell.json"),
    "no text": (lambda at: (at / "cell.json").write_bytes(b"\xff\x00"), "cell.json"),
    "nested": (lambda at: (at / "cell.json").write_text("[" * 100_000), "cell.json"),
    "no files": (without_files, "cell.json"),
    "another history": (lambda at: edited(at / "history.csv", lambda t: t.replace("1", "2", 1)), "history.csv"),
    "an empty history": (lambda at: (at / "history.csv").write_text(""), "history.csv"),
    "no history": (lambda at: (at / "history.csv").unlink(), "history.csv: No such file"),
    "no trace": (lambda at: (at / "trace.parquet").unlink(), "trace.parquet: No such file"),
    "another trace": (lambda at: (at / "trace.parquet").write_bytes(b"PAR1"), "trace.parquet"),
    "a folder": (lambda at: ((at / "cell.json").unlink(), (at / "cell.json").mkdir()), "cell.json: Is a directory"),
    "a file": (lambda at: (shutil.rmtree(at), at.write_text("")), "Not a directory"),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", DAMAGES)
def test_what_was_changed_is_not_believed(name, whole, tmp_path):
    """It is named, and counts as not done; what nobody has touched is taken as it is."""
    cell, (change, named) = tiny(), DAMAGES[name]
    shutil.copytree(whole, tmp_path, dirs_exist_ok=True)
    folder = tmp_path / "cells" / cell.key
    assert cells.damage(cell, tmp_path) == ""
    assert finished(cell, tmp_path) is not None
    change(folder)
    assert named in cells.damage(cell, tmp_path)
    assert finished(cell, tmp_path) is None
    cells.discard(cell, tmp_path)
    assert cells.damage(cell, tmp_path) == ""
    assert not folder.exists()


def test_the_run_of_another(whole, tmp_path):
    other = tiny(seed=1)
    shutil.copytree(whole / "cells" / tiny().key, tmp_path / "cells" / other.key)
    assert cells.damage(other, tmp_path) == "cell.json was changed after the run"


def test_a_run_reaches_the_disk_before_it_has_its_name(tmp_path, monkeypatch):
    """Each of its files, and their names: after a crash of the machine there is all of it, or nothing."""
    cell, sync, synced = tiny(), os.fsync, set[int]()
    folder = tmp_path / "cells" / cell.key

    def recorded(descriptor):
        if not folder.exists():
            synced.add(os.fstat(descriptor).st_ino)
        sync(descriptor)

    monkeypatch.setattr(os, "fsync", recorded)
    wire, _far_end = multiprocessing.Pipe()
    assert cells._do(cell, tmp_path, wire)
    assert finished(cell, tmp_path) is not None
    assert {path.stat().st_ino for path in (folder, *folder.iterdir())} <= synced


def test_a_full_disk(tmp_path, monkeypatch):
    """Is no failure of the run: it is raised, and of the run nothing is left that takes room."""
    no_room = OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    monkeypatch.setattr(output, "write_rows", mock.Mock(side_effect=no_room))
    wire, _far_end = multiprocessing.Pipe()
    with pytest.raises(OSError, match="No space left"):
        cells._do(tiny(), tmp_path, wire)
    assert [*(tmp_path / "cells").iterdir()] == []


@pytest.mark.parametrize(
    ("returns", "mean"),
    [([0.0, 10.0, 10.0], 8.75), ([np.nan, 10.0, 30.0], 20.0), ([np.nan, np.nan, 7.0], 7.0), ([np.nan] * 3, np.nan)],
)
def test_the_mean_return_of_a_run(returns, mean):
    """Over time: rows at 0, 1 and 4 s; before the first episode has ended there is no return."""
    rows = [{"seconds": t, "episode_return": x} for t, x in zip((0.0, 1.0, 4.0), returns, strict=True)]
    rows.append({"seconds": 9.0})
    assert cells.Finished(tiny(), None, rows, {}).mean_return == pytest.approx(mean, nan_ok=True)
