"""Folders of results: tried first, and holding one run or none."""

import contextlib
import errno
import json
import os
from pathlib import Path
from unittest import mock

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from experiments.toolkit.output import kept, one_run, read_rows, usable, write_rows
from experiments.toolkit.shell import UsageError


def claimed(folder):
    """A folder for runs that consist of `run.json` and of numbered files."""
    return one_run(folder, record="run.json", files=lambda run: {f"{n}.txt" for n in run["numbers"]}, kinds=("*.txt",))


def write(folder, numbers, text, status="done"):
    with claimed(folder) as draft:
        for number in numbers:
            (draft / f"{number}.txt").write_text(text)
        (draft / "run.json").write_text(json.dumps({"numbers": list(numbers), "text": text, "status": status}))


def contents(folder):
    """The files, by name, those of folders too."""
    return {str(path.relative_to(folder)): path.read_text() for path in folder.rglob("*") if path.is_file()}


numbers, status = st.lists(st.integers(0, 3), unique=True), st.sampled_from(("done", "interrupted", None))


@given(runs=st.lists(st.tuples(numbers, status), max_size=5))
@settings(max_examples=50, deadline=None)
def test_a_folder_holds_the_last_run_that_was_written_and_nothing_of_others(runs, tmp_path_factory):
    """Whatever there was before; files of other names stay, and a run that was done is not lost to one that was not."""
    folder = tmp_path_factory.mktemp("runs")
    (folder / "notes.md").write_text("mine")
    last = None
    done = []
    for i, (numbers, status) in enumerate(runs):
        if status is None:  # nothing was computed
            with claimed(folder):
                pass
            continue
        write(folder, numbers, str(i), status)
        if last is not None and last[2] == "done" and status != "done":
            done.append(last)
        last = (i, numbers, status)
    found = contents(folder)
    assert found.pop("notes.md") == "mine"
    for where, run in [("", last), *((f"earlier_{n}/", run) for n, run in enumerate(done, start=1))]:
        if run is not None:
            i, numbers, _ = run
            assert json.loads(found.pop(f"{where}run.json"))["text"] == str(i)
            for number in numbers:
                assert found.pop(f"{where}{number}.txt") == str(i)
    assert not found
    assert not (folder / ".unfinished-run").exists()


def test_until_the_end_the_earlier_run_is_there(tmp_path):
    write(tmp_path, [1, 2], "old")
    before = contents(tmp_path)
    with contextlib.suppress(ZeroDivisionError), claimed(tmp_path) as draft:
        (draft / "3.txt").write_text("new")
        assert {name: text for name, text in contents(tmp_path).items() if "/" not in name} == before
        raise ZeroDivisionError
    assert contents(tmp_path) == before


def test_a_run_whose_end_fails_is_kept_as_far_as_it_is_recorded(tmp_path):
    with contextlib.suppress(OSError), claimed(tmp_path) as draft:
        (draft / "run.json").write_text('{"numbers": [1]}')
        raise OSError("full")
    assert set(contents(tmp_path)) == {"run.json"}


def test_what_cannot_be_moved_into_place_is_not_thrown_away(tmp_path, monkeypatch):
    monkeypatch.setattr(Path, "replace", mock.Mock(side_effect=OSError(errno.ENOSPC, "No space left on device")))
    with pytest.raises(OSError, match=r"No space left on device; the missing files are in .*\.unfinished-run"):
        write(tmp_path, [1], "new")
    assert contents(tmp_path)[".unfinished-run/1.txt"] == "new"


@pytest.mark.parametrize(
    ("there", "said"),
    [
        ({"1.txt": "mine"}, "holds 1.txt, which does not belong to any run that is recorded there"),
        (
            {"run.json": '{"numbers": [1]}', "1.txt": "", "2.txt": ""},
            "holds 2.txt, which does not belong to the run in run.json",
        ),
        ({"run.json": "{}"}, "holds run.json, which does not belong to any run"),
        ({"run.json": "[1]"}, "holds run.json"),
        ({"run.json": "no JSON"}, "holds run.json"),
    ],
)
def test_files_that_might_be_somebody_elses_are_left_alone(there, said, tmp_path):
    for name, text in there.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(UsageError, match="name another folder") as error, claimed(tmp_path):
        raise AssertionError
    assert said in str(error.value)
    assert contents(tmp_path) == there


def test_a_folder_in_the_place_of_a_file_is_not_removed(tmp_path):
    write(tmp_path, [1], "old")
    (tmp_path / "1.txt").unlink()
    (tmp_path / "1.txt").mkdir()
    with pytest.raises(UsageError, match=r"holds 1\.txt"), claimed(tmp_path):
        raise AssertionError
    assert (tmp_path / "1.txt").is_dir()


def test_two_runs_at_once(tmp_path):
    with claimed(tmp_path) as draft:
        (draft / "run.json").write_text('{"numbers": []}')
        with pytest.raises(UsageError, match="is being written by another run"), claimed(tmp_path):
            raise AssertionError
    assert set(contents(tmp_path)) == {"run.json"}


def test_what_a_killed_run_left_is_cleared_away(tmp_path):
    (tmp_path / ".unfinished-run").mkdir()
    (tmp_path / ".unfinished-run" / "7.txt").write_text("half")
    write(tmp_path, [1], "new")
    assert set(contents(tmp_path)) == {"run.json", "1.txt"}


@pytest.mark.parametrize("name", ["file", "file/below", "/proc/x", "/dev/null", "x" * 300])
def test_a_folder_that_cannot_be_had(name, tmp_path):
    (tmp_path / "file").touch()
    folder = tmp_path / name
    for trying in (usable(folder), claimed(folder)):
        with pytest.raises(UsageError, match="cannot be written into") as error, trying:
            raise AssertionError
        assert str(error.value).startswith(f"--out {folder}")
    assert os.listdir(tmp_path) == ["file"]


def test_what_cannot_be_written_is_one_error_that_says_what_is_kept(tmp_path):
    error = OSError(errno.ENOSPC, "No space left on device")
    said = f"--out {tmp_path} cannot be written into: No space left on device; two runs are kept"
    with pytest.raises(UsageError, match=f"^{said}$"), kept(tmp_path, lambda: "two runs are kept"):
        raise error


def test_folders_that_were_made_and_stay_empty_are_removed(tmp_path):
    (tmp_path / "there").mkdir()
    with usable(tmp_path / "there" / "new" / "newer"):
        assert (tmp_path / "there" / "new" / "newer").is_dir()
    assert os.listdir(tmp_path) == ["there"]
    with usable(tmp_path / "there"):
        pass
    assert os.listdir(tmp_path) == ["there"]
    with usable(tmp_path / "new" / "newer"):
        (tmp_path / "new" / "file").touch()
    assert os.listdir(tmp_path / "new") == ["file"]


@pytest.mark.parametrize("name", ["rows.csv", "rows.csv.gz"])
def test_rows_come_back(name, tmp_path):
    """A value that a row lacks is empty; a compressed file has no time stamp, so the same rows are the same bytes."""
    path = tmp_path / name
    write_rows(path, [{"a": 1, "b": "x, y"}, {"a": 2}])
    written = path.read_bytes()
    assert read_rows(path) == [{"a": "1", "b": "x, y"}, {"a": "2", "b": ""}]
    assert written.startswith(b"\x1f\x8b") == name.endswith(".gz")
    assert written[4:8] == bytes(4) or not name.endswith(".gz")  # the time stamp
