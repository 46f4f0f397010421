"""What if a logged run had been paced: a log made from a simulated trace says what the platform was told."""

import csv
import json
from dataclasses import replace

import pytest

from experiments import command
from experiments.cluster import what_if
from stellaris import ActorCritic
from stellaris.runtime import FunctionSpec, SimulatedPlatform, WorkLog
from stellaris.runtime.delays import Constant
from stellaris.systems import Budget, train

QUESTION = what_if.Question()
SMALL = replace(
    QUESTION,
    epochs=4,
    minibatch_size=16,
    workload=replace(QUESTION.workload, policy=ActorCritic(hidden=(8,)), fragment=16),
)
FUNCTIONS = {"actor": FunctionSpec(Constant(0.01)), "learner": FunctionSpec(Constant(0.005))}


@pytest.fixture(scope="module")
def log():
    """A log of two virtual seconds, in which a gradient takes 5 ms and a step 10 ms."""
    platform = SimulatedPlatform(FUNCTIONS)
    train(SMALL.system(SMALL.control), SMALL.workload, platform=platform, budget=Budget(seconds=2.0))
    return what_if.logged(platform.trace, {"actor": 16.0, "learner": float(SMALL.gradients)}, since=0.5)


@pytest.mark.slow
def test_a_log_says_what_the_platform_was_told(log):
    """Durations a unit of work, without the first half second; ages that a slow learner would have raised."""
    samples = {name: spec.compute.samples for name, spec in log.functions().items()}
    assert samples["actor"] == pytest.approx([0.01] * len(samples["actor"]))
    assert samples["learner"] == pytest.approx([0.005] * len(samples["learner"]))
    assert len(samples["actor"]) == pytest.approx(2 * 1.5 / 0.16, abs=3)  # two actors
    assert all(0 <= row.started <= 1.5 for row in log.rows)
    # A batch is learned from in 20 ms, while the next takes 160 ms: fragments miss at most one version.
    assert 0 <= min(log.ages) <= max(log.ages) <= 1
    assert log.versions_per_second() == pytest.approx(1 / 0.16, rel=0.2)


@pytest.mark.slow
def test_the_command_answers(log, tmp_path, monkeypatch, capsys):
    """A row for the log, its ages imposed, its simulation and three changes; synchronous actors have no lag."""
    monkeypatch.setattr(what_if, "Question", lambda: SMALL)
    log.save(tmp_path / "log.csv")
    assert WorkLog.from_csv(tmp_path / "log.csv") == log
    words = ["what-if", str(tmp_path / "log.csv"), "--seconds", "2", "--seeds", "2", "--out", str(tmp_path / "out")]
    assert command.main(words) == 0
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        rows = {row["what"]: row for row in csv.DictReader(file)}
    assert [*rows][:3] == ["log", "ages of the log", "as it was logged, simulated"]
    assert len(rows) == 6
    assert float(rows["synchronous"]["largest"]) == 0.0
    assert rows["synchronous"]["PPO"]
    assert "synchronous" in capsys.readouterr().out
    made = json.loads((tmp_path / "out" / "provenance.json").read_text())
    assert (made["question"]["epochs"], made["seeds"]) == (4, 2)
    assert {"commit", "code", "jax", "processor"} <= set(made)


def test_a_log_that_is_none(tmp_path, capsys):
    (tmp_path / "log.csv").write_text("function,seconds\nactor,fast\n")
    assert command.main(["what-if", str(tmp_path / "log.csv"), "--out", str(tmp_path / "out")]) == 2
    assert "line 2: seconds='fast' is not a number" in capsys.readouterr().err
