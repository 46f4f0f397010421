"""Studies: their processes, what they keep, and how they end."""

import argparse
import errno
import fcntl
import os
import shutil
from dataclasses import replace
from unittest import mock

import pytest

from experiments.study import runs, study, tidy
from experiments.study.study import Size, Study, Variant
from experiments.toolkit import shell
from stellaris import PPO
from stellaris.runtime import Trace
from stellaris.systems import Budget, Synchronous
from tests.experiments.csv_rows import rows
from tests.experiments.study.test_cells import edited, tiny
from tests.experiments.test_figures import Here


def a_study(variants, *environments, seeds=1):
    """A study of 256 steps, and a list of what it reports on."""
    reported = []

    def report(results, out, console):
        reported.append([result.cell.label for result in results])

    return Study("own", {"small": Size(environments or ("CartPole-v1",), 256, seeds)}, variants, report), reported


def declared(*environments, settings=("",)):
    """A study of one tiny run a seed and setting."""

    def variants(environment):
        cell = tiny(environment=environment)
        return [Variant(cell.contender, cell.workload, setting) for setting in settings]

    return a_study(variants, *environments, seeds=2)


def arguments_of(own, *options):
    parser = argparse.ArgumentParser()
    own.add_arguments(parser)
    return parser.parse_args(options)


def run(of, out, *options):
    """A study from the command line's options on: its status, and what it reported on."""
    own, reported = of
    return own.main(arguments_of(own, "--out", str(out), *options)), reported


def tables(out):
    """The bytes of a study's tables."""
    return [(out / "own" / name).read_bytes() for name in ("runs.csv", "curves.csv")]


@pytest.mark.slow
def test_a_study_is_kept(tmp_path, capsys):
    """It is not begun anew unasked; what is not there is run, and the tables are those of an unbroken run."""
    labels = ["CartPole-v1 synchronous seed 0", "CartPole-v1 synchronous seed 1"]
    assert run(declared(), tmp_path) == (0, [labels])
    assert "1 runs to go" in capsys.readouterr().out
    unbroken = tables(tmp_path)
    assert [(row["seed"], row["steps"]) for row in rows(tmp_path / "own" / "runs.csv")] == [("0", "256"), ("1", "256")]
    assert len(rows(tmp_path / "own" / "curves.csv")) == 8

    with pytest.raises(shell.UsageError, match="holds 2 of the 2 runs: use them with --resume"):
        run(declared(), tmp_path)
    own, _ = declared()
    first, second = (cell.key for cell in own.cells(arguments_of(own)))
    kept = tmp_path / "cells" / first
    age = kept.stat().st_mtime_ns
    shutil.move(tmp_path / "cells" / second, tmp_path / "cells" / f"{second}.unfinished")
    assert run(declared(), tmp_path, "--resume", "--jobs", "1") == (0, [labels])
    assert kept.stat().st_mtime_ns == age
    assert tables(tmp_path) == unbroken


def test_what_was_changed_is_run_again(tmp_path, monkeypatch, capsys):
    """Named, in a line each; the tables are those of a run that nobody has touched."""
    monkeypatch.setattr(study, "Worker", Here)
    assert run(declared(), tmp_path)[0] == 0
    own, _ = declared()
    first, second = (tmp_path / "cells" / cell.key for cell in own.cells(arguments_of(own)))
    unbroken = tables(tmp_path)
    edited(first / "cell.json", lambda text: text.replace('"steps": 256', '"steps": 257'))
    (second / "history.csv").write_text("")
    capsys.readouterr()
    assert run(declared(), tmp_path, "--resume")[0] == 0
    said = capsys.readouterr().out
    assert "CartPole-v1 synchronous seed 0: cell.json was changed after the run: running it again\n" in said
    assert "CartPole-v1 synchronous seed 1: history.csv was changed after the run: running it again\n" in said
    assert tables(tmp_path) == unbroken


def test_a_full_disk_ends_it(tmp_path, monkeypatch):
    """At once, in one line that says what is kept; not each run by itself. Where there is room again, it goes on."""
    begun, no_room = [], OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    class Full(Here):
        def begin(self, cell):
            begun.append(cell.seed)
            super().begin(cell) if cell.seed == 0 else self._far_end.send(no_room)

    monkeypatch.setattr(study, "Worker", Full)
    said = f"^--out {tmp_path} cannot be written into: No space left on device; 1 of the 4 runs are kept, and --resume"
    with pytest.raises(shell.UsageError, match=said):
        run(declared(), tmp_path, "--seeds", "4", "--jobs", "1")
    assert begun == [0, 1]

    monkeypatch.setattr(study, "Worker", Here)
    with monkeypatch.context() as patches:
        patches.setattr(tidy, "write", mock.Mock(side_effect=no_room))
        with pytest.raises(shell.UsageError, match="No space left on device; 4 of the 4 runs are kept"):
            run(declared(), tmp_path, "--seeds", "4", "--resume")
    assert run(declared(), tmp_path, "--seeds", "4", "--resume")[0] == 0


@pytest.mark.slow
def test_what_is_the_same_is_run_once(tmp_path, monkeypatch):
    """An environment that is named twice counts once; settings that come to the same share their run."""
    started = []

    class Process(study.Worker):
        def begin(self, cell):
            super().begin(cell)
            started.append(cell.key)

    monkeypatch.setattr(study, "Worker", Process)
    of = declared(settings=("one", "other"))
    twice = ("--env", "CartPole-v1", "--env", "CartPole-v1", "--seeds", "1")
    labels = ["CartPole-v1 synchronous one seed 0", "CartPole-v1 synchronous other seed 0"]
    assert run(of, tmp_path, *twice) == (0, [labels])
    assert len(started) == 1


def test_a_second_writer_is_refused(tmp_path):
    descriptor = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    with pytest.raises(shell.UsageError, match="is being written by another run: name another folder"):
        run(declared(), tmp_path)
    os.close(descriptor)
    assert os.listdir(tmp_path) == []


def test_what_is_asked_for():
    """What is said on the command line goes before the preset; a variant that there is not is named."""
    own, _ = declared(settings=("one, in two words", "other"))
    cells = own.cells(arguments_of(own, "--variant", "other", "--steps", "500", "--seeds", "3", "--seed", "7"))
    assert [(cell.setting, cell.budget.steps) for cell in cells] == [("other", 500)] * 3
    assert [cell.seed for cell in cells] == [7, 8, 9]
    with pytest.raises(shell.UsageError, match="--variant third: unknown; choose one of 'one, in two words', 'other'"):
        own.cells(arguments_of(own, "--variant", "third"))
    with pytest.raises(shell.UsageError, match="--env NoSuch-v0: "):
        own.cells(arguments_of(own, "--env", "NoSuch-v0"))


def test_limits_of_a_variant():
    """Are its own, but it stops after the study's steps at the latest; others stop after these."""
    cell = tiny()
    limits = Budget(steps=400, cost=0.5, target_return=450.0, window=32)

    def variants(environment):
        row = Variant(cell.contender, cell.workload, "none")
        return [row, row._replace(setting="own", limits=limits)]

    own, _ = a_study(variants)
    for options, without, within in (((), 256, 256), (("--steps", "500"), 500, 400), (("--steps", "400"), 400, 400)):
        budgets = [cell.budget for cell in own.cells(arguments_of(own, *options))]
        assert budgets == [Budget(steps=without), replace(limits, steps=within)]


@pytest.mark.slow
def test_a_failure_is_named(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "check", lambda workload: None)
    of = declared("NoSuch-v0", "CartPole-v1")
    good = ["CartPole-v1 synchronous seed 0"]
    assert run(of, tmp_path, "--jobs", "1", "--seeds", "1") == (1, [good])
    said = capsys.readouterr().err
    assert said.startswith("error: NoSuch-v0 synchronous seed 0: ")
    bad = of[0].cells(arguments_of(of[0], "--seeds", "1"))[0]
    again = f"python -m experiments own --preset small --seeds 1 --seed 0 --out {tmp_path} --only {bad.key}"
    assert again in said
    with pytest.raises(ValueError, match="NoSuch-v0"):
        run(of, tmp_path, "--seeds", "1", "--only", bad.key)


@pytest.mark.slow
def test_only_one(tmp_path):
    own, _ = declared()
    key = own.cells(arguments_of(own))[1].key
    assert run(declared(), tmp_path, "--only", key) == (0, [])
    assert (tmp_path / f"only-{key}" / "cell.json").exists()
    with pytest.raises(shell.UsageError, match="--only 77: unknown run of this study"):
        run(declared(), tmp_path, "--only", "77")


def replaying(environment="CartPole-v1"):
    """A system with two loops, and with one on the schedule of the other."""
    cell = tiny(environment=environment)

    def variants(environment):
        base = Variant(cell.contender, cell.workload, "base")
        other = replace(cell.contender, system=Synchronous(PPO(epochs=2, minibatch_size=64)))
        return [base, base._replace(contender=other, setting="again", replays="base")]

    return a_study(variants, environment)[0]


@pytest.mark.slow
def test_a_schedule_is_repeated(tmp_path):
    """Other gradients at the same instants; what is repeated is run first, also if only the other is asked for."""
    own = replaying()
    arguments = arguments_of(own, "--variant", "again", "--seed", "3", "--out", str(tmp_path))
    assert own.main(arguments) == 0
    (again,) = own.cells(arguments)
    traces = [Trace.load(tmp_path / "cells" / cell.key / "trace.parquet") for cell in (again.replay, again)]
    ended = [trace.select("ended").time[:16].tolist() for trace in traces]
    assert ended[0] == ended[1]
    assert replace(again, replay=None).key != again.key
    assert "replay" not in again.replay.settings()


@pytest.mark.slow
def test_a_schedule_that_is_not_there(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(runs, "check", lambda workload: None)
    own = replaying("NoSuch-v0")
    assert own.main(arguments_of(own, "--out", str(tmp_path))) == 1
    said = capsys.readouterr().err
    assert "again seed 0: the run whose schedule it repeats is missing" in said
    (base, again) = own.cells(arguments_of(own))
    with pytest.raises(shell.UsageError, match=f"--only {again.key} needs the run {base.label}"):
        own.main(arguments_of(own, "--out", str(tmp_path), "--only", again.key))


@pytest.mark.slow
def test_a_process_does_several_runs(tmp_path, monkeypatch):
    """One after the other; where one was killed, its run has failed, and another process does the rest."""
    done = []

    class Process(study.Worker):
        def begin(self, cell):
            done.append((self._process.pid, cell.label[-1]))
            if cell.seed == 1:
                self._process.kill()
            super().begin(cell)

    monkeypatch.setattr(study, "Worker", Process)
    status, labels = run(declared(), tmp_path, "--jobs", "1", "--seeds", "4")
    assert status == 1
    assert [label[-1] for label in labels[0]] == ["0", "2", "3"]
    (first, _), (second, _), (third, _), (last, _) = done
    assert first == second != third == last


def test_an_interruption_kills_the_processes(tmp_path, monkeypatch):
    started = []

    class Process(study.Worker):
        def __init__(self, *arguments):
            super().__init__(*arguments)
            started.append(self)

    monkeypatch.setattr(study, "Worker", Process)
    monkeypatch.setattr(shell, "check", mock.Mock(side_effect=KeyboardInterrupt))
    assert run(declared(), tmp_path, "--jobs", "2") == (130, [])
    assert len(started) == 2
    assert not any(process._process.is_alive() for process in started)
