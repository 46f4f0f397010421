"""`python -m experiments quickstart`: what it writes, that it repeats, and that it ends well when it ends badly."""

import csv
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from experiments.__main__ import main

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


def test_the_paper_preset(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It says which preset it is; actors are round-based."""
    assert quickstart(tmp_path, "--preset", "paper", "--seeds", "1") == 0
    assert "preset paper" in capsys.readouterr().out
    settings = json.loads((tmp_path / "summary.json").read_text())["settings"]
    assert settings["stellaris"]["round_based"] is True
    assert settings["stellaris"]["aggregation"]["combine"] == "sequential"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--env", "Hoper-v4"], "unknown environment 'Hoper-v4': did you mean Hopper-v4"),
        (["--seeds", "0"], "--seeds 0 is not positive"),
        (["--threads", "-1"], "--threads -1 is not positive"),
        (["--seconds", "-3"], "--seconds -3.0 is not positive"),
    ],
)
def test_bad_options(options: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One line that names the option and its value, and nothing written."""
    assert main(["quickstart", "--out", str(tmp_path / "out"), *options]) != 0
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_help_explains_every_option(capsys: pytest.CaptureFixture[str]) -> None:
    """Each option with its default."""
    with pytest.raises(SystemExit, match="0"):
        main(["quickstart", "--help"])
    text = capsys.readouterr().out
    for option in ("--env", "--preset", "--seed", "--seeds", "--seconds", "--threads", "--out"):
        assert option in text


def test_a_failing_body_keeps_what_was_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The second system's learner raises: the first system's results and the second's rows so far are written."""
    from stellaris.systems import programs

    make, calls = programs.whole_round, iter(range(100))

    def broken(*args: Any) -> programs.Function:
        program = make(*args)

        def body(*args: Any) -> Any:
            if next(calls) == 1:
                raise ArithmeticError("out of luck")
            return program.body(*args)

        return programs.Function(body)

    monkeypatch.setattr(programs, "whole_round", broken)
    assert quickstart(tmp_path) == 1
    assert "function 'learner', invocation" in capsys.readouterr().err
    summary = json.loads((tmp_path / "summary.json").read_text())
    assert [run["status"] for run in summary["runs"]] == ["done", "failed"]
    assert set(histories(tmp_path)) == {"history_stellaris_0.csv", "history_synchronous_0.csv"}


def test_an_interruption_ends_cleanly_and_soon(tmp_path: Path) -> None:
    """Ctrl-C in the middle of a run: what there is gets written, whole, within seconds."""
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
            while "virtual s" not in process.stdout.readline():
                assert process.poll() is None
            began = time.monotonic()
            os.kill(process.pid, signal.SIGINT)
            _, errors = process.communicate(timeout=60)
        finally:
            process.kill()
    assert process.returncode == 130, errors
    assert "interrupted" in errors
    assert "Traceback" not in errors
    assert time.monotonic() - began < 30
    assert json.loads((tmp_path / "summary.json").read_text())["runs"][0]["status"] == "interrupted"
    assert not list(tmp_path.glob(".*"))
