"""The training of MinionsRL's scheduler: the command from its options to its file, on a tiny workload."""

import argparse
import contextlib
import errno
import json
import math
import os
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from experiments import command
from experiments.figures.minionsrl import scheduler
from experiments.study import cells, study
from experiments.study.cells import Cell
from experiments.tasks import minionsrl
from experiments.toolkit.provenance import code_version
from stellaris._core.describe import digest
from stellaris.scheduling import Learned
from tests.experiments.csv_rows import rows
from tests.experiments.test_figures import Here

HOME = "minionsrl-scheduler-CartPole-v1-tuned"
#: Two waves, of which the second is smaller.
THREE = ("--episodes", "3", "--together", "2", "--jobs", "1")


class Counted(Here):
    seeds: Sequence[int] = ()

    def begin(self, cell):
        Counted.seeds = (*Counted.seeds, cell.seed)
        super().begin(cell)


def shrink(patches):
    """Four actors, a budget of a few rounds."""
    patches.setattr(minionsrl, "ACTORS", 4)
    patches.setattr(minionsrl, "FRAGMENT", 32)
    patches.setattr(minionsrl, "BUDGETS", {("CartPole-v1", "tuned"): 0.0003})
    patches.setattr(study, "Worker", Counted)
    patches.setattr(Counted, "seeds", ())


@pytest.fixture(autouse=True)
def tiny(monkeypatch):
    shrink(monkeypatch)


def learn(out, *options):
    return command.main(["minionsrl-scheduler", *THREE, "--out", str(out), *options])


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    with pytest.MonkeyPatch.context() as patches:
        shrink(patches)
        out = tmp_path_factory.mktemp("results")
        assert learn(out) == 0
    # Tested here, because other tests add runs, and run in any order.
    assert len([*(out / "cells").iterdir()]) == 3
    return out


@pytest.mark.slow
def test_what_it_leaves(trained):
    """A scheduler that has learned, and a row an episode, whose runs are a study's."""
    learned = Learned.load(trained / HOME / "scheduler.npz")
    played = rows(trained / HOME / scheduler.EPISODES)
    assert [row["seed"] for row in played] == ["1000", "1001", "1002"]
    assert [row["episode"] for row in played] == ["1", "2", "3"]
    assert learned.most == 4
    assert learned.statistics.count == sum(float(row["rounds"]) for row in played)
    assert digest(learned) != digest(Learned.untrained(most=4, seed=0))
    for row in played:
        assert 0.0003 <= float(row["cost"]) < 0.0006  # of Eq. 2: it ended by that
        assert row["reached"] == "False"
        # Half of its seconds, and four times as large a part of them as its best return lacks of 450.
        assert -5 * float(row["seconds"]) / 2 < float(row["reward"]) < -(1 + 4 * 350 / 450) * float(row["seconds"]) / 2
        assert 0 < float(row["entropy"]) <= math.log(4)
        assert 1 <= float(row["actors"]) <= 4


@pytest.mark.slow
def test_it_is_resumed(trained, capsys):
    """Nothing is played anew, and the same scheduler is learned, bit for bit; unasked that is not done."""
    home = trained / HOME
    before = {name: (home / name).read_bytes() for name in ("scheduler.npz", "episodes.csv")}
    assert learn(trained) == 2
    said = f"error: --out {trained} holds {HOME}: continue it with --resume, or name another folder\n"
    assert capsys.readouterr().err == said
    assert learn(trained, "--resume") == 0
    assert Counted.seeds == ()
    assert {name: (home / name).read_bytes() for name in before} == before
    said = capsys.readouterr().out
    assert "2 of 3 episodes" in said
    assert "3 of 3 episodes" in said


@pytest.mark.slow
def test_going_on_and_cost(trained, tmp_path):
    """A fine-tuned scheduler, and one that minimises cost, have folders of their own, and a file where it is asked."""
    start, saved = trained / HOME / "scheduler.npz", tmp_path / "tuned.npz"
    options = ("--episodes", "1", "--start", str(start), "--minimise", "cost", "--save", str(saved), "--seed", "7")
    assert learn(trained, *options) == 0
    assert Counted.seeds == (7,)
    home = trained / "minionsrl-scheduler-cost-fine-tuned-CartPole-v1-tuned"
    (row,) = rows(home / scheduler.EPISODES)
    first, tuned = Learned.load(start), Learned.load(saved)
    origin = json.loads(saved.with_suffix(".json").read_text())
    assert origin["code"] == code_version()
    said = {"env": "CartPole-v1", "start": str(start), "seed": 7, "minimise": "cost", "episodes": 1}
    assert said.items() <= origin["options"].items()
    assert "jobs" not in origin["options"]
    assert digest(tuned) == digest(Learned.load(home / "scheduler.npz")) != digest(first)
    assert tuned.statistics.count == first.statistics.count + float(row["rounds"])
    # The whole budget was spent, of whose percents half are lost.
    lost = 50 * float(row["cost"]) / 0.0003
    assert -5 * lost < float(row["reward"]) < -(1 + 4 * 350 / 450) * lost


def test_the_seed_changes_the_first_parameters():
    """A scheduler that is trained from scratch starts from parameters of `--seed`, and from the same each time."""
    parser = argparse.ArgumentParser()
    scheduler.add_arguments(parser)
    first, again, other = (
        digest(scheduler.untrained(parser.parse_args(["--seed", seed])).params) for seed in ("1000", "1000", "1001")
    )
    assert first == again != other


@pytest.mark.slow
def test_runs_that_choose_a_version(trained, tmp_path):
    """They follow the episodes, for the first version and every quarter of the updates, and have no rows."""
    start = str(trained / HOME / "scheduler.npz")
    out = tmp_path / "results"
    options = ("--episodes", "2", "--together", "1", "--held-out", "1", "--start", start, "--seed", "7")
    assert learn(out, *options) == 0
    assert Counted.seeds == (9, 7, 9, 8, 9)
    assert [
        row["seed"] for row in rows(out / "minionsrl-scheduler-fine-tuned-CartPole-v1-tuned" / scheduler.EPISODES)
    ] == [
        "7",
        "8",
    ]


@pytest.mark.slow
def test_options_that_cannot_be(tmp_path, capsys):
    """One line of error each, before anything is played; the folder stays as it was."""
    out = tmp_path / "out"
    foreign, wide = tmp_path / "foreign.npz", tmp_path / "wide.npz"
    foreign.write_text("something else")
    Learned.untrained(most=5, seed=0).save(wide)
    for options, said in (
        (("--start", str(tmp_path / "none.npz")), "none.npz: [Errno 2] No such file"),
        (("--start", str(foreign)), f"--start {foreign}: {foreign} does not hold a scheduler: "),
        (("--start", str(wide)), f"--start {wide} decides for up to 5 actors: choose a scheduler for up to 4"),
        (("--env", "Pong-v9"), "--env Pong-v9 has no target; choose one of CartPole-v1"),
        (("--seed", str(2**31 - 2)), "--seed: 3 seeds from 2147483646 on exceed"),
        (("--minimise", "energy"), "--minimise: invalid choice: 'energy'"),
        (("--episodes", "0"), "--episodes"),
    ):
        with contextlib.suppress(SystemExit):  # of the parser
            assert learn(out, *options) == 2
        printed = capsys.readouterr().err
        assert said in printed
        assert printed.count("error: ") == 1
    assert Counted.seeds == ()
    assert not out.exists()


@pytest.mark.slow
def test_an_episode_that_fails(tmp_path, monkeypatch, capsys):
    class Failing(Counted):
        def begin(self, cell):
            folder = self._out / "cells" / cell.key
            folder.mkdir(parents=True)
            (folder / cells._LOG).write_text("Traceback\nValueError: a machine broke\n")
            self._far_end.send(False)

    monkeypatch.setattr(study, "Worker", Failing)
    assert learn(tmp_path) == 1
    said = capsys.readouterr().err
    assert said.startswith("error: CartPole-v1 MinionsRL seed 1000: ValueError: a machine broke (its log: ")
    assert Path(said.rstrip(")\n").rpartition("its log: ")[2]).is_dir()
    assert not (tmp_path / HOME).exists()


def test_a_full_disk(tmp_path, monkeypatch, capsys):
    class Full(Counted):
        def begin(self, cell):
            self._far_end.send(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))

    monkeypatch.setattr(study, "Worker", Full)
    assert learn(tmp_path) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.startswith(f"error: --out {tmp_path} cannot be written into: No space left on device; ")


@pytest.mark.slow
def test_eq_2_in_the_episodes(trained):
    """What an episode costs is the sum over its invocations: seconds that they ran, times resources, times prices."""
    scheduler = Learned.untrained(most=4, seed=1000)
    task = replace(minionsrl.tuned_task("CartPole-v1"), budget=0.0003)
    cell = Cell(minionsrl.minions(minionsrl.LEARNED, scheduler, task), task.workload, task.limits, 1000)
    one = cells.finished(cell, trained)
    calls = one.trace.invocations()
    second = {"actor": 4 * 0.00445 / 3600 + 0.0405 / 3600, "learner": (16 * 0.00445 + 0.0405) / 3600 + 0.00085}
    cost = sum(
        second[calls.names[function]] * (end - begin)
        for function, begin, end in zip(calls.function, calls.started, calls.ended, strict=True)
    )
    assert one.history[-1]["cost_pay_per_use"] == pytest.approx(cost, rel=1e-4)
    assert one.history[-1]["cost_azure"] > cost
    assert {row["actors"] for row in one.history} <= {1, 2, 3, 4}


def test_a_testbed_has_its_budget(monkeypatch):
    """By default the task is the first testbed with a budget; any testbed takes another one."""
    budgets = {("Acrobot-v1", "tuned-0.0012"): 0.01, ("Acrobot-v1", "authors"): 0.02}
    monkeypatch.setattr(minionsrl, "BUDGETS", budgets)
    known = minionsrl.testbeds_of("Acrobot-v1")
    for testbed, budget, expected in (
        (None, None, ("tuned-0.0012", 0.01)),
        (None, 0.5, ("tuned-0.0012", 0.5)),
        ("authors", None, ("authors", 0.02)),
        ("tuned", 0.5, ("tuned", 0.5)),
    ):
        name, usd = expected
        assert scheduler.task_of("Acrobot-v1", testbed, budget) == (name, replace(known[name], budget=usd))
    assert scheduler.task_of("HalfCheetah-v4", None, 0.5)[0] == "tuned"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--testbed", "odd"), "--testbed odd: unknown for CartPole-v1; choose one of tuned, authors"),
        (("--testbed", "authors"), "--testbed authors has no budget for CartPole-v1: pass one in USD as --budget"),
        (("--env", "Hopper-v4"), "--testbed tuned has no budget for Hopper-v4: pass one in USD as --budget"),
        (("--budget", "0"), "--budget: 0 is not a positive, finite number of USD"),
    ],
)
def test_a_testbed_without_a_budget(options, said, capsys, tmp_path):
    with contextlib.suppress(SystemExit):  # of the parser
        assert command.main(["minionsrl-scheduler", *options, "--out", str(tmp_path)]) == 2
    assert said in capsys.readouterr().err
