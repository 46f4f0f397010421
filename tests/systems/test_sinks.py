"""Sinks: what they log of a history, and that they are closed; TensorBoard's files are read back byte by byte."""

import struct
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stellaris.systems import Stellaris, Synchronous, TensorBoard, WandB
from stellaris.systems.history import Row
from stellaris.systems.sinks import named
from tests.systems import tiny

ROWS: list[Row] = [
    {"steps": 64, "seconds": 0.5, "episode_return": 20.0, "staleness_mean": float("nan")},
    {"steps": 128, "seconds": 2.0, "episode_return": 25.0, "staleness_mean": 1.5},
]


def records(folder: Path) -> Iterator[bytes]:
    """The records of the only event file of a folder: each a length, a checksum of it, the data and its checksum."""
    (path,) = folder.glob("events.out.tfevents.*")
    data = path.read_bytes()
    while data:
        (length,) = struct.unpack("<Q", data[:8])
        yield data[12 : 12 + length]
        data = data[12 + length + 4 :]


def scalars(folder: Path) -> dict[str, list[tuple[int, float, float]]]:
    """The step, the wall time and the value of every point, by tag."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found: dict[str, list[tuple[int, float, float]]] = {}
    for record in records(folder):
        event = event_pb2.Event.FromString(record)
        for value in event.summary.value:
            found.setdefault(value.tag, []).append((event.step, event.wall_time, value.simple_value))
    return found


def test_a_rows_names_by_hand() -> None:
    """Our columns, and the field's: CleanRL's value loss is half the squared error, ours the whole."""
    row = {
        "steps": 100,
        "seconds": 4.0,
        "episode_return": float("nan"),
        "sampled_length": 12.0,
        "value_loss": 3.0,
        "kl": 0.25,
        "lag_mean": 1.5,
        "lag_in_queue": 0.5,
        "lag2_effective_sample_size": 7.0,
        "own_metric": 9.0,
    }
    assert named(row) == {
        **{f"history/{name}": value for name, value in row.items() if name != "episode_return"},
        "charts/episodic_length": 12.0,
        "charts/SPS": 25.0,
        "losses/value_loss": 1.5,
        "losses/approx_kl": 0.25,
        "off_policy/mean": 1.5,
        "off_policy/in_queue/mean": 0.5,
        "off_policy/lag2/effective_sample_size": 7.0,
    }
    assert "charts/SPS" not in named({"steps": 0, "seconds": 0.0})


@pytest.mark.slow
def test_a_run_has_the_fields_names() -> None:
    """Of every kind, in a run of an asynchronous system."""
    rows: list[Row] = []
    tiny.run(Stellaris(tiny.PPO_CONFIG, learners=2), tiny.deployment(), on_progress=rows.append)
    logged = set().union(*map(named, rows))
    assert logged >= {
        *("charts/episodic_return", "charts/episodic_length", "charts/SPS", "losses/policy_loss", "losses/value_loss"),
        *("losses/entropy", "losses/approx_kl", "losses/clipfrac", "off_policy/mean", "off_policy/max"),
        *("off_policy/in_flight/mean", "off_policy/in_queue/mean", "off_policy/staleness/mean"),
        *("off_policy/staleness/max", "off_policy/truncation_fraction", "off_policy/lag0/effective_sample_size"),
        *("history/staleness_mean", "history/cost_demo", "history/lag0_kl"),
    }


def test_tensorboard_has_steps_and_virtual_time(tmp_path: Path) -> None:
    """Every row is on the disk at once; the differences of wall times are the platform's seconds."""
    pytest.importorskip("tensorboardX")
    with TensorBoard(tmp_path / "run") as sink:
        for row in ROWS:
            sink(row)
            assert scalars(tmp_path / "run")["history/steps"][-1][::2] == (row["steps"], row["steps"])
    sink.close()  # twice does nothing
    assert len([*records(tmp_path / "run")]) == 1 + len(ROWS)  # the first names the format
    found = scalars(tmp_path / "run")
    (first, began, value), (second, later, other) = found["charts/episodic_return"]
    assert (first, second, value, other) == (64, 128, 20.0, 25.0)
    assert later - began == pytest.approx(1.5, abs=1e-5)
    assert [step for step, _, _ in found["off_policy/staleness/mean"]] == [128]  # the first is NaN


def test_tensorboard_keeps_the_rows_of_a_run_that_fails(tmp_path: Path) -> None:
    """The error is raised as without a sink, and the file is closed."""
    pytest.importorskip("tensorboardX")
    seen: list[Row] = []

    class Stopped(TensorBoard):
        def __call__(self, row: Row) -> None:
            super().__call__(row)
            seen.append(row)
            if len(seen) == 2:
                raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"), Stopped(tmp_path) as sink:
        tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(), on_progress=sink)
    assert [step for step, _, _ in scalars(tmp_path)["charts/SPS"]] == [row["steps"] for row in seen]
    with pytest.raises(ValueError, match="closed file"):
        sink(seen[0])


class FakeWandB:
    """Records the calls of `init`, and of the runs that it returns."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def init(self, **options: Any) -> Any:
        number = len(self.calls)
        self.calls.append(("init", options))
        return SimpleNamespace(
            define_metric=lambda name, **more: self.calls.append(("define_metric", number, name, more)),
            log=lambda values: self.calls.append(("log", number, values)),
            finish=lambda exit_code: self.calls.append(("finish", number, exit_code)),
        )


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> FakeWandB:
    fake = FakeWandB()
    monkeypatch.setitem(sys.modules, "wandb", fake)  # type: ignore[arg-type]
    monkeypatch.delenv("WANDB_MODE", raising=False)
    return fake


def test_wandb_is_offline_and_gets_every_row(fake: FakeWandB, tmp_path: Path) -> None:
    with WandB(tmp_path / "logs", name="a", config={"rho": 2}) as sink:
        for row in ROWS:
            sink(row)
    sink.close()
    (_, options), *calls = fake.calls
    assert options.pop("settings") == {"console": "off", "silent": True}
    assert options == {
        "dir": str(tmp_path / "logs"),
        "name": "a",
        "project": "stellaris",
        "config": {"rho": 2},
        "mode": "offline",
        "reinit": "create_new",
    }
    assert (tmp_path / "logs").is_dir()
    assert calls == [
        ("define_metric", 0, "*", {"step_metric": "history/steps"}),
        *[("log", 0, named(row)) for row in ROWS],
        ("finish", 0, 0),
    ]


def test_wandb_shows_that_a_run_failed(fake: FakeWandB, tmp_path: Path) -> None:
    def fails(row: Row) -> None:
        sink(row)
        raise RuntimeError("stopped")

    with pytest.raises(RuntimeError, match="stopped"), WandB(tmp_path) as sink:
        tiny.run(Synchronous(tiny.PPO_CONFIG), tiny.deployment(), on_progress=fails)
    assert [call[0] for call in fake.calls] == ["init", "define_metric", "log", "finish"]
    assert fake.calls[-1] == ("finish", 0, 1)


def test_wandbs_own_variable_decides_the_mode(fake: FakeWandB, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_MODE", "online")
    WandB(tmp_path)
    assert fake.calls[0][1]["mode"] == "online"


def test_neither_package_is_imported_before_it_is_used() -> None:
    code = "import sys, stellaris.systems; print({'tensorboardX', 'wandb'} & sys.modules.keys())"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout == "set()\n"
