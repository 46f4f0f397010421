"""Checks results folders before the first run, and keeps one complete run in each."""

import csv
import errno
import fcntl
import gzip
import io
import itertools
import json
import math
import os
import shutil
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from experiments.toolkit.shell import UsageError, reason
from stellaris.runtime.files import atomic_path

#: The folder where a run is written until it is complete.
_DRAFT = ".unfinished-run"


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Makes a folder and its parents, and checks that it is writable; at the end, removes the new ones that are empty.

    Raises:
      UsageError: if the folder cannot be made or is not writable.
    """
    made: list[Path] = []
    try:
        made = [path for path in (folder, *folder.parents) if not path.exists()]
        folder.mkdir(parents=True, exist_ok=True)
        trial = folder / f".{os.getpid()}.trial"
        try:
            trial.write_text("x")
        finally:
            trial.unlink(missing_ok=True)
    except OSError as error:
        _remove_empty(made)
        raise _unusable(folder, error) from error
    try:
        yield
    finally:
        _remove_empty(made)


@contextmanager
def kept(folder: Path, what: Callable[[], str]) -> Iterator[None]:
    """Replaces an OSError of the block, which writes results, by a UsageError of one line.

    Args:
      folder: the results folder.
      what: the function that returns the end of the message, which names the results that are kept.

    Raises:
      UsageError: if the block raises an OSError.
    """
    try:
        yield
    except OSError as error:
        which = f" ({error.filename})" if error.filename else ""
        raise UsageError(f"{_unusable(folder, error)}{which}; {what()}") from error


def is_full(error: BaseException) -> bool:
    """Returns whether an error means that the disk, or the user's quota on it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def one_run(
    folder: Path, *, record: str, files: Callable[[Any], Collection[str]], kinds: Sequence[str]
) -> Iterator[Path]:
    """Yields a draft folder to write a run into; at the end its files replace the earlier run in `folder`.

    Only the earlier run's files are removed. If the earlier run was done and the new one is not ("status" in their
    records), the earlier files move into a subfolder instead, so that a short run never replaces a complete one.

    Args:
      folder: the results folder.
      record: the name of the file that describes the run, a JSON object. A draft without this file is deleted.
      files: the function that returns the names of the files of a run, given its record.
      kinds: the glob patterns that match the names of all files of a run.

    Raises:
      UsageError: if the folder is not writable, if another run is writing into it, or if it holds files that match
        `kinds` and do not belong to the run in its record.
    """
    with usable(folder):
        draft = folder / _DRAFT
        try:
            earlier = _earlier(folder, record, files, kinds)
            done = bool(earlier) and _done(folder / record)
            draft.mkdir(exist_ok=True)
            lock = _lock(draft, of=folder)
            for path in draft.iterdir():  # left by a run that was killed
                path.unlink()
        except OSError as error:
            raise _unusable(folder, error) from error
        try:
            yield draft
        finally:
            try:
                if (draft / record).exists():
                    if done and not _done(draft / record):
                        _keep(folder, earlier)
                    _replace(folder, earlier, draft, record)
            except OSError as error:
                raise OSError(error.errno, f"{reason(error)}; the missing files are in {draft}") from error
            else:
                shutil.rmtree(draft, ignore_errors=True)
            finally:
                os.close(lock)


def _earlier(folder: Path, record: str, files: Callable[[Any], Collection[str]], kinds: Sequence[str]) -> set[str]:
    """Returns the names of the files of the run in the folder."""
    mine: set[str] = set()
    if (folder / record).exists():
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # another program's record
            mine = {record, *files(json.loads((folder / record).read_text()))}
    there = {path.name: path for kind in (record, *kinds) for path in folder.glob(kind)}
    strays = sorted(name for name, path in there.items() if name not in mine or not path.is_file())
    if strays:
        whose = f"the run in {record}" if mine else "any run that is recorded there"
        raise UsageError(
            f"--out {folder} holds {strays[0]}, which does not belong to {whose}: move it away, or name another folder"
        )
    return mine & there.keys()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Locks a results folder against other runs.

    Raises:
      UsageError: if another run has locked it.
    """
    descriptor = _lock(folder, of=folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, *, of: Path) -> int:
    """Opens and locks `folder`, which lies in the results folder `of`; closing the descriptor unlocks it."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"--out {of} is being written by another run: name another folder") from None
    except OSError:
        pass  # the file system lacks locks
    return descriptor


def _done(record: Path) -> bool:
    return bool(json.loads(record.read_text()).get("status", "done") == "done")


def _keep(folder: Path, earlier: Collection[str]) -> None:
    """Moves the files of a run that was done into the first subfolder `earlier_N` that does not exist."""
    kept = next(path for i in itertools.count(1) if not (path := folder / f"earlier_{i}").exists())
    kept.mkdir()
    for name in earlier:
        (folder / name).replace(kept / name)
    print(f"the earlier, complete run: {kept}/")


def _replace(folder: Path, earlier: Collection[str], draft: Path, record: str) -> None:
    """Replaces the earlier files by the draft's files.

    The old record is removed first and the new record is moved last. Files without a record do not count as a run, so a
    mixture of both runs is never mistaken for a run.
    """
    for name in sorted(earlier, key=lambda name: name != record):
        (folder / name).unlink(missing_ok=True)
    for path in sorted(draft.iterdir(), key=lambda path: path.name == record):
        path.replace(folder / path.name)


def _remove_empty(folders: Sequence[Path]) -> None:
    """Removes the folders that are empty, in the order given: innermost first."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"--out {folder} cannot be written into: {reason(error)}")


def finite(record: Any) -> Any:
    """Replaces the numbers of a record that are not finite by None, as JSON has neither NaN nor infinity."""
    if isinstance(record, dict):
        return {key: finite(value) for key, value in record.items()}
    if isinstance(record, list):
        return [finite(value) for value in record]
    return None if isinstance(record, float) and not math.isfinite(record) else record


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes a CSV file with the columns of all rows; a value that a row lacks is empty. ".gz" files are compressed."""
    text = io.StringIO()
    writer = csv.DictWriter(text, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    content = text.getvalue().encode()
    with atomic_path(path) as draft:
        # Without a time stamp, so that the same rows are the same bytes.
        draft.write_bytes(gzip.compress(content, mtime=0) if path.suffix == ".gz" else content)


def read_rows(path: Path) -> list[dict[str, str]]:
    """Reads the rows of a CSV file, compressed or not."""
    with gzip.open(path, "rt", newline="") if path.suffix == ".gz" else path.open(newline="") as file:
        return [*csv.DictReader(file)]
