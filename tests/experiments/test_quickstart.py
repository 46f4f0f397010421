"""`python -m experiments quickstart`: what it writes, that it repeats, and that it ends well when it ends badly."""

import errno
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from unittest import mock

import pytest

from experiments import quickstart as module
from experiments.__main__ import main
from experiments.study import runs
from stellaris.acting import envs
from tests.experiments.csv_rows import rows
from tests.experiments.toolkit.test_shell import HEARING

ROOT = Path(__file__).parent.parent.parent
#: Long enough for learners to wake and a few versions to be published.
SECONDS = "2.6"


def quickstart(out, *options):
    return main(["quickstart", "--env", "CartPole-v1", "--seconds", SECONDS, "--out", str(out), *options])


def histories(out):
    return {path.name: path.read_bytes() for path in sorted(out.glob("history_*.csv"))}


@pytest.fixture(scope="module")
def first(tmp_path_factory):
    out = tmp_path_factory.mktemp("first")
    assert quickstart(out, "--seed", "7", "--threads", "2") == 0
    return out


@pytest.mark.slow
def test_the_same_seed_writes_the_same_bytes(first, tmp_path):
    load = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        assert quickstart(tmp_path / "again", "--seed", "7", "--threads", "1") == 0
        assert quickstart(tmp_path / "other", "--seed", "8", "--threads", "2") == 0
    finally:
        load.kill()
        load.wait()
    assert set(histories(first)) == {"history_stellaris_7.csv", "history_synchronous_7.csv"}
    assert histories(tmp_path / "again") == histories(first)
    assert set(histories(tmp_path / "other").values()).isdisjoint(histories(first).values())


@pytest.mark.slow
def test_what_it_writes(first):
    """Histories, timelines, pictures and a summary that agree with each other; nothing half written."""
    names = {path.name for path in first.iterdir()}
    pictures = {"reward_vs_time.png", "reward_vs_cost.png", "staleness.png"}
    traces = {"trace_stellaris_7.json", "trace_synchronous_7.json"}
    assert names == {*histories(first), *traces, *pictures, "summary.json"}
    for picture in pictures:
        assert (first / picture).read_bytes().startswith(b"\x89PNG")
    summary = json.loads((first / "summary.json").read_text())
    assert summary["preset"] == "tuned"
    assert summary["testbed"]["LEARNER_COLD_START"] == 1.5
    for run in summary["runs"]:
        last = rows(first / f"history_{run['system']}_7.csv")[-1]
        assert run["status"] == "done"
        assert (run["steps"], run["versions"]) == (int(last["steps"]), int(last["version"]))
        assert run["virtual_seconds"] == float(last["seconds"]) == float(SECONDS)
        events = json.loads((first / f"trace_{run['system']}_7.json").read_text())["traceEvents"]
        assert {"X", "M", "C"} == {event["ph"] for event in events}
    stellaris, synchronous = summary["runs"]
    assert stellaris["cold_starts"] == 16 + 4 + 1
    assert stellaris["staleness_max"] >= 1 > synchronous["staleness_max"]
    assert stellaris["cost_pay_per_use"] < stellaris["cost_demo"] == pytest.approx(synchronous["cost_demo"])


@pytest.mark.slow
def test_the_paper_preset(tmp_path, capsys):
    assert quickstart(tmp_path, "--preset", "paper", "--seeds", "1") == 0
    assert "preset paper" in capsys.readouterr().out
    settings = json.loads((tmp_path / "summary.json").read_text())["settings"]
    system = settings["systems"]["stellaris"]["system"]
    assert system["control"]["rounds"] is True
    assert system["aggregator"]["combine"] == "sequential"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "Hoper-v4"], "--env Hoper-v4: unknown environment 'Hoper-v4': did you mean Hopper-v4"),
        (["--env", "Hopper-v2"], "--env Hopper-v2: "),
        (["--env", "Parking-v0"], "--env Parking-v0: Parking-v0: ActorCritic is for vectors, but an observation is {"),
        (["--seeds", "0"], "--seeds: 0 is not a whole number from 1"),
        (["--threads", "-1"], "--threads: -1 is not a whole number from 1"),
        (["--seconds", "-3"], "--seconds: -3 is not a positive, finite number"),
        (["--seed", "3000000000"], "--seed: 3000000000 is not a whole number from 0 to 2,147,483,647"),
        (["--seed", "2147483647", "--seeds", "2"], "--seed: 2 seeds from 2147483647 on exceed"),
        (["--out", ""], "--out: '' names no folder"),
        (["--out", "/dev/null"], "--out /dev/null cannot be written into"),
    ],
)
def test_bad_options(options, message, tmp_path, capsys):
    assert main(["quickstart", "--env", "CartPole-v1", "--out", str(tmp_path / "out"), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [ImportError("no\nlibrary"), TypeError("'NoneType'"), AttributeError("low")])
def test_an_environment_that_cannot_be_had(error, tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(envs, "make", mock.Mock(side_effect=error))
    assert main(["quickstart", "--env", "Own-v0", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: --env Own-v0: {' '.join(str(error).split())}\n"
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
def test_a_failing_body_keeps_what_was_done(tmp_path, monkeypatch, capsys):
    """The second system's learner raises: the first system's results and the second's rows so far are written."""
    from stellaris.systems import programs

    make, calls = programs.whole_batch, iter(range(100))

    def broken(*args):
        program = make(*args)

        def body(*args):
            if next(calls) == 1:
                raise ArithmeticError("out of luck")
            return program.body(*args)

        return programs.Function(body, upload=program.upload)

    monkeypatch.setattr(programs, "whole_batch", broken)
    assert quickstart(tmp_path) == 1
    assert "function 'learner', invocation" in capsys.readouterr().err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [run["status"] for run in summary["runs"]] == ["done", "failed"]
    assert set(histories(tmp_path)) == {"history_stellaris_0.csv", "history_synchronous_0.csv"}


@pytest.mark.slow
def test_an_interruption_ends_cleanly_and_soon(tmp_path):
    """SIGTERM in the middle of a run, and Ctrl-C besides: what there is gets written, whole, within seconds."""
    code = f"{HEARING}; import runpy; runpy.run_module('experiments', run_name='__main__')"
    options = ["quickstart", "--env", "CartPole-v1", "--seconds", "10000", "--out", str(tmp_path)]
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-u", "-c", code, *options], cwd=ROOT, **pipes) as process:
        try:
            while "virtual s" not in process.stdout.readline():
                assert process.poll() is None
            began = time.monotonic()
            os.kill(process.pid, signal.SIGTERM)
            assert "interrupted" in process.stderr.readline()
            os.kill(process.pid, signal.SIGINT)  # changes nothing
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 143
    assert errors == ""
    assert time.monotonic() - began < 30
    assert json.loads((tmp_path / "summary.json").read_text())["runs"][0]["status"] == "interrupted"
    assert not list(tmp_path.glob(".*"))


# ---- what it leaves in the folder, tried with runs that take no time ------------------------------------------------


class Made:
    """Stands in for `train`: three rows; or what is to happen instead, in the run of that number."""

    def __init__(self):
        self.runs = 0
        self.instead = {}

    def __call__(self, system, workload, *, platform, on_progress, **_):
        for i in (1, 2, 3):
            numbers = dict.fromkeys(
                ("episode_return", "cost_demo", "cost_pay_per_use", "version", "gradients", "episodes"), 1.0
            )
            on_progress({"seconds": float(i), "steps": 4096.0 * i, "staleness_mean": 0.5, **numbers})
            if i == 2 and self.runs in self.instead:
                raise self.instead[self.runs]
        platform.close()
        self.runs += 1
        return mock.Mock(policy=None)


@pytest.fixture
def made(monkeypatch):
    made = Made()
    monkeypatch.setattr(runs, "train", made)
    return made


def check_that_it_holds_one_run(out, env, seeds, status="done"):
    """The files that its summary tells of, and no others."""
    summary = json.loads((out / "summary.json").read_text())
    assert (summary["environment"], summary["status"]) == (env, status)
    labels = {f"{run['system']}_{run['seed']}" for run in summary["runs"]}
    assert len({run["seed"] for run in summary["runs"]}) == seeds
    names = {path.name for path in out.iterdir() if path.is_file()}
    assert names == {
        *("summary.json", "reward_vs_time.png", "reward_vs_cost.png", "staleness.png"),
        *(f"history_{label}.csv" for label in labels),
        *(f"trace_{label}.json" for label in labels),
    }


def test_an_interrupted_run_does_not_mix_with_the_one_before(made, tmp_path, capsys):
    assert quickstart(tmp_path, "--seeds", "2") == 0
    made.instead = {made.runs: KeyboardInterrupt()}
    assert main(["quickstart", "--env", "Pendulum-v1", "--out", str(tmp_path)]) == 130
    check_that_it_holds_one_run(tmp_path, "Pendulum-v1", 1, "interrupted")
    check_that_it_holds_one_run(tmp_path / "earlier_1", "CartPole-v1", 2)
    out, err = capsys.readouterr()
    assert f"the earlier, complete run: {tmp_path}/earlier_1/" in out
    assert err.count("\n") == 1
    assert (tmp_path / "history_stellaris_0.csv").read_text().count("\n") == 1 + 2


@pytest.mark.slow
def test_a_summary_without_a_status_is_of_a_run_that_was_done(made, tmp_path):
    """The first version wrote none."""
    assert quickstart(tmp_path) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    del summary["status"]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    made.instead = {made.runs + 1: KeyboardInterrupt()}
    assert quickstart(tmp_path) == 130
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
    assert json.loads((tmp_path / "earlier_1" / "summary.json").read_text()) == summary


@pytest.mark.usefixtures("made")
def test_a_full_disk_costs_what_does_not_fit_and_nothing_else(tmp_path, monkeypatch, capsys):
    """The table is printed, histories and the summary are there; the status says that something is not."""
    no_room = OSError(errno.ENOSPC, "No space left on device")
    monkeypatch.setattr(module.plots, "reward_vs_time", mock.Mock(side_effect=no_room))
    assert quickstart(tmp_path) == 1
    out, err = capsys.readouterr()
    assert err == f"error: --out {tmp_path}: some results could not be written: No space left on device\n"
    assert "final return" in out
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "done"
    assert set(histories(tmp_path)) == {"history_stellaris_0.csv", "history_synchronous_0.csv"}


@pytest.mark.slow
def test_an_interruption_before_the_first_row_leaves_everything_as_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(runs, "train", mock.Mock(side_effect=KeyboardInterrupt))
    assert quickstart(tmp_path / "new" / "out") == 130
    assert not list(tmp_path.iterdir())
