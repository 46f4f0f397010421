"""`python -m experiments quickstart`: what it writes, that it repeats, and that it ends well when it ends badly."""

import csv
import errno
import io
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from experiments import quickstart as module
from experiments.__main__ import main
from experiments.study import runs
from stellaris.acting import envs
from stellaris.runtime import SimulatedPlatform

ROOT = Path(__file__).parent.parent.parent
#: Long enough for learners to wake and a few versions to be published.
SECONDS = "2.6"


def quickstart(out: Path, *options: str) -> int:
    """A short run on CartPole."""
    return main(["quickstart", "--env", "CartPole-v1", "--seconds", SECONDS, "--out", str(out), *options])


def histories(out: Path) -> dict[str, bytes]:
    """The bytes of every history."""
    return {path.name: path.read_bytes() for path in sorted(out.glob("history_*.csv"))}


@pytest.fixture(scope="module")
def first(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One run with seed 7."""
    out = tmp_path_factory.mktemp("first")
    assert quickstart(out, "--seed", "7", "--threads", "2") == 0
    return out


@pytest.mark.slow
def test_the_same_seed_writes_the_same_bytes(first: Path, tmp_path: Path) -> None:
    """With one thread as with two, while another process loads the machine."""
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


def test_what_it_writes(first: Path) -> None:
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
        with (first / f"history_{run['system']}_7.csv").open() as file:
            last = list(csv.DictReader(file))[-1]
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
def test_the_paper_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which preset it is; actors are round-based."""
    assert quickstart(tmp_path, "--preset", "paper", "--seeds", "1") == 0
    assert "preset paper" in capsys.readouterr().out
    settings = json.loads((tmp_path / "summary.json").read_text())["settings"]
    system = settings["systems"]["stellaris"]["system"]
    assert system["control"]["pace"] == 0
    assert system["aggregator"]["combine"] == "sequential"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "Hoper-v4"], "--env Hoper-v4: unknown environment 'Hoper-v4': did you mean Hopper-v4"),
        (["--env", "Hopper-v2"], "--env Hopper-v2: "),
        (["--env", "Parking-v0"], "--env Parking-v0: Parking-v0: ActorCritic is for vectors, but an observation is {"),
        (["--seeds", "0"], "--seeds: 0 is not a whole number from 1"),
        (["--seeds", "nan"], "--seeds: nan is not a whole number from 1"),
        (["--threads", "-1"], "--threads: -1 is not a whole number from 1"),
        (["--seconds", "-3"], "--seconds: -3 is not a positive, finite number"),
        (["--seconds", "inf"], "--seconds: inf is not a positive, finite number"),
        (["--seconds", "nan"], "--seconds: nan is not a positive, finite number"),
        (["--seed", "-1"], "--seed: -1 is not a whole number from 0"),
        (["--seed", "3000000000"], "--seed: 3000000000 is not a whole number from 0 to 2,147,483,647"),
        (["--seed", "2147483647", "--seeds", "2"], "--seed: 2147483647 and the 2 seeds"),
        (["--out", ""], "--out: '' names no folder"),
        (["--out", "/dev/null"], "--out /dev/null cannot be written into"),
        (["--out", "/dev/null/below"], "--out /dev/null/below cannot be written into: Not a directory"),
        (["--out", "/proc/x"], "--out /proc/x cannot be written into"),
    ],
)
def test_bad_options(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the option and its value, and nothing written."""
    assert main(["quickstart", "--env", "CartPole-v1", "--out", str(tmp_path / "out"), *options]) == 2
    err = capsys.readouterr().err
    assert err.startswith(f"error: {message}")
    assert err.count("\n") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [ImportError("no\nlibrary"), TypeError("'NoneType'"), AttributeError("low")])
def test_an_environment_that_cannot_be_had(
    error: Exception, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Whatever its author raises: one line."""

    def broken(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(envs, "make", broken)
    assert main(["quickstart", "--env", "Own-v0", "--out", str(tmp_path / "out")]) == 2
    assert capsys.readouterr().err == f"error: --env Own-v0: {' '.join(str(error).split())}\n"
    assert not (tmp_path / "out").exists()


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option with its default."""
    with pytest.raises(SystemExit, match="0"):
        main(["quickstart", "--help"])
    text = capsys.readouterr().out
    for option in ("--env", "--preset", "--seed", "--seeds", "--seconds", "--threads", "--out"):
        assert option in text


@pytest.mark.slow
def test_a_failing_body_keeps_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second system's learner raises: the first system's results and the second's rows so far are written."""
    from stellaris.systems import programs

    make, calls = programs.whole_batch, iter(range(100))

    def broken(*args: Any) -> programs.Function:
        program = make(*args)

        def body(*args: Any) -> Any:
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
def test_an_interruption_ends_cleanly_and_soon(tmp_path: Path) -> None:
    """SIGTERM in the middle of a run, and Ctrl-C besides: what there is gets written, whole, within seconds."""
    # A test that runs in the background inherits an ignored SIGINT; a user at a terminal does not.
    code = (
        "import runpy, signal; signal.signal(signal.SIGINT, signal.default_int_handler); "
        "runpy.run_module('experiments', run_name='__main__')"
    )
    options = ["quickstart", "--env", "CartPole-v1", "--seconds", "10000", "--out", str(tmp_path)]
    with subprocess.Popen(
        [sys.executable, "-u", "-c", code, *options],
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        try:
            assert process.stdout is not None
            assert process.stderr is not None
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

    def __init__(self) -> None:
        self.runs = 0
        self.instead: dict[int, BaseException] = {}

    def __call__(self, system: Any, workload: Any, *, platform: SimulatedPlatform, on_progress: Any, **_: Any) -> None:
        for i in (1, 2, 3):
            numbers = dict.fromkeys(("episode_return", "cost_demo", "cost_pay_per_use", "version", "gradients"), 1.0)
            on_progress({"seconds": float(i), "steps": 4096.0 * i, "staleness_mean": 0.5, **numbers})
            if i == 2 and self.runs in self.instead:
                raise self.instead[self.runs]
        platform.close()
        self.runs += 1


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Made:
    """Puts it in its place."""
    made = Made()
    monkeypatch.setattr(runs, "train", made)
    return made


def check_that_it_holds_one_run(out: Path, env: str, seeds: int, status: str = "done") -> None:
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


@pytest.mark.slow
@pytest.mark.usefixtures("made")
def test_another_run_takes_the_place_of_the_first(tmp_path: Path) -> None:
    """CartPole with two seeds, the same again, then Pendulum with one: nothing of CartPole's stays."""
    for env, seeds in (("CartPole-v1", 2), ("CartPole-v1", 2), ("Pendulum-v1", 1)):
        assert main(["quickstart", "--env", env, "--seeds", str(seeds), "--out", str(tmp_path)]) == 0
        check_that_it_holds_one_run(tmp_path, env, seeds)
        assert not [path for path in tmp_path.iterdir() if path.is_dir()]


def test_an_interrupted_run_does_not_mix_with_the_one_before(
    made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Nor does it cost it: a few rounds are no reason to lose a whole run."""
    assert quickstart(tmp_path, "--seeds", "2") == 0
    made.instead = {made.runs: KeyboardInterrupt()}
    assert main(["quickstart", "--env", "Pendulum-v1", "--out", str(tmp_path)]) == 130
    check_that_it_holds_one_run(tmp_path, "Pendulum-v1", 1, "interrupted")
    check_that_it_holds_one_run(tmp_path / "earlier_1", "CartPole-v1", 2)
    out, err = capsys.readouterr()
    assert f"the earlier, complete run: {tmp_path}/earlier_1/" in out
    assert err.count("\n") == 1
    assert (tmp_path / "history_stellaris_0.csv").read_text().count("\n") == 1 + 2


def test_what_it_did_not_write_is_not_touched(made: Made, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Notes stay where they are; what might be taken for its own stops it before the first second."""
    assert quickstart(tmp_path) == 0
    (tmp_path / "notes.md").write_text("mine")
    assert quickstart(tmp_path) == 0
    assert (tmp_path / "notes.md").read_text() == "mine"
    (tmp_path / "history_stellaris_9.csv").write_text("mine")
    runs = made.runs
    assert quickstart(tmp_path) == 2
    assert "holds history_stellaris_9.csv" in capsys.readouterr().err
    assert made.runs == runs
    assert (tmp_path / "history_stellaris_9.csv").read_text() == "mine"


def test_folders_of_the_first_version_are_known(made: Made, tmp_path: Path) -> None:
    """Their summaries had no status."""
    assert quickstart(tmp_path) == 0
    summary = json.loads((tmp_path / "summary.json").read_text())
    del summary["status"]
    (tmp_path / "summary.json").write_text(json.dumps(summary))
    made.instead = {made.runs + 1: KeyboardInterrupt()}
    assert quickstart(tmp_path) == 130
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "interrupted"
    assert (tmp_path / "earlier_1" / "summary.json").exists()


@pytest.mark.usefixtures("made")
def test_a_full_disk_costs_what_does_not_fit_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The table is printed, histories and the summary are there; the status says that something is not."""

    def full(*args: Any, **options: Any) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(module.plots, "reward_vs_time", full)
    assert quickstart(tmp_path) == 1
    out, err = capsys.readouterr()
    assert err == f"error: --out {tmp_path}: some results could not be written: No space left on device\n"
    assert "final return" in out
    assert json.loads((tmp_path / "summary.json").read_text())["status"] == "done"
    assert set(histories(tmp_path)) == {"history_stellaris_0.csv", "history_synchronous_0.csv"}


@pytest.mark.usefixtures("made")
@pytest.mark.parametrize(("number", "status"), [(errno.EPIPE, 0), (errno.ENOSPC, 1)])
def test_printing_that_fails_costs_no_results(
    number: int, status: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A reader that has gone, and a device that is full."""

    class Failing(io.StringIO):
        def write(self, text: str) -> int:
            raise OSError(number, os.strerror(number))

    monkeypatch.setattr(sys, "stdout", Failing())
    assert quickstart(tmp_path) == status
    check_that_it_holds_one_run(tmp_path, "CartPole-v1", 1)


def test_an_interruption_before_the_first_row_leaves_everything_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No folder, and no empty results."""

    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(runs, "train", interrupted)
    assert quickstart(tmp_path / "new" / "out") == 130
    assert not list(tmp_path.iterdir())
