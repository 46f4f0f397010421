"""Folders of results: tried before the first second is spent, and holding one run, whole."""

import csv
import errno
import fcntl
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
from stellaris.runtime.files import atomic_write

#: Where a run is written until all of it is there.
_DRAFT = ".unfinished-run"


@contextmanager
def usable(folder: Path) -> Iterator[None]:
    """Makes a folder, and tries to write into it; what of it was made is removed at the end if it is empty.

    Raises:
      UsageError: if it cannot be made, or not be written into.
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
    """Ends the work in one line where results cannot be written.

    Args:
      folder: of the results.
      what: names the results that are there all the same.

    Raises:
      UsageError: in place of an OSError.
    """
    try:
        yield
    except OSError as error:
        which = f" ({error.filename})" if error.filename else ""
        raise UsageError(f"{_unusable(folder, error)}{which}; {what()}") from error


def is_full(error: BaseException) -> bool:
    """Whether something failed because a disk, or the user's part of it, is full."""
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


@contextmanager
def one_run(
    folder: Path, *, record: str, files: Callable[[Any], Collection[str]], kinds: Sequence[str]
) -> Iterator[Path]:
    """A folder to write a run into, which at the end takes the place of the run that `folder` holds, if it holds one.

    The earlier run's files, and no others, are removed. If it was done and the new one is not (their records say so by
    "status"), they are moved into a folder of their own instead: a few rounds are no reason to lose a whole run.

    Args:
      folder: of the results.
      record: the name of the file that tells of the run, a JSON object. A run without it is dropped.
      files: the names of the files of a run, by its record.
      kinds: patterns of all names that such files have.

    Raises:
      UsageError: if the folder cannot be written into, if another run is doing so, or if it holds files of these kinds
        that do not belong to the run that its record tells of.
    """
    with usable(folder):
        draft = folder / _DRAFT
        try:
            earlier = _earlier(folder, record, files, kinds)
            done = bool(earlier) and _done(folder / record)
            draft.mkdir(exist_ok=True)
            lock = _lock(draft, of=folder)
            for path in draft.iterdir():  # a run that was killed may have left something
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
                raise OSError(error.errno, f"{reason(error)}; what is not there is in {draft}") from error
            else:
                shutil.rmtree(draft, ignore_errors=True)
            finally:
                os.close(lock)


def _earlier(folder: Path, record: str, files: Callable[[Any], Collection[str]], kinds: Sequence[str]) -> set[str]:
    """The files of the run that the folder holds."""
    mine: set[str] = set()
    if (folder / record).exists():
        with suppress(ValueError, LookupError, TypeError, AttributeError):  # then it is somebody else's
            mine = {record, *files(json.loads((folder / record).read_text()))}
    there = {path.name: path for kind in (record, *kinds) for path in folder.glob(kind)}
    strays = sorted(name for name, path in there.items() if name not in mine or not path.is_file())
    if strays:
        whose = f"the run that {record} tells of" if mine else "any run that is recorded there"
        raise UsageError(
            f"--out {folder} holds {strays[0]}, not a file of {whose}: move it away, or name another folder"
        )
    return mine & there.keys()


@contextmanager
def locked(folder: Path) -> Iterator[None]:
    """Keeps all others that ask for it out of a folder of results.

    Raises:
      UsageError: if another has it.
    """
    descriptor = _lock(folder, of=folder)
    try:
        yield
    finally:
        os.close(descriptor)


def _lock(folder: Path, *, of: Path) -> int:
    """An open descriptor of a folder within that of results, which no other has locked until it is closed."""
    descriptor = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise UsageError(f"--out {of} is being written by another run: name another folder") from None
    except OSError:
        pass  # a file system without locks
    return descriptor


def _done(record: Path) -> bool:
    return bool(json.loads(record.read_text()).get("status", "done") == "done")


def _keep(folder: Path, earlier: Collection[str]) -> None:
    """Moves a run that was done into the first folder of its own that is not there yet."""
    kept = next(path for i in itertools.count(1) if not (path := folder / f"earlier_{i}").exists())
    kept.mkdir()
    for name in earlier:
        (folder / name).replace(kept / name)
    print(f"the run that was done before: {kept}/")


def _replace(folder: Path, earlier: Collection[str], draft: Path, record: str) -> None:
    """Without a record there is no run: it goes first and comes last, so that a mixture is never taken for one."""
    for name in sorted(earlier, key=lambda name: name != record):
        (folder / name).unlink(missing_ok=True)
    for path in sorted(draft.iterdir(), key=lambda path: path.name == record):
        path.replace(folder / path.name)


def _remove_empty(folders: Sequence[Path]) -> None:
    """From the innermost on."""
    for folder in folders:
        with suppress(OSError):
            folder.rmdir()


def _unusable(folder: Path, error: OSError) -> UsageError:
    return UsageError(f"--out {folder} cannot be written into: {reason(error)}")


def finite(record: Any) -> Any:
    """A record as JSON can hold it, which has no NaN: what is not finite is None."""
    if isinstance(record, dict):
        return {key: finite(value) for key, value in record.items()}
    if isinstance(record, list):
        return [finite(value) for value in record]
    return None if isinstance(record, float) and not math.isfinite(record) else record


def write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """A CSV file; what a row does not have is empty."""
    with atomic_write(path) as file:
        writer = csv.DictWriter(file, list(dict.fromkeys(name for row in rows for name in row)), lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
