"""Atomic writing of files: a file appears under its name only when it is complete."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary path, which is renamed to `path` at the end of the block, or removed after an error.

    Args:
      path: path of the file; missing folders are made.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, atomic_path(folder + "/a.txt") as draft:
      ...     _ = draft.write_text("whole")
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    # The draft is in the same folder, because a file can be renamed only within a file system. Its name is random, so
    # that two writers of one file do not write into each other's draft.
    draft = target.with_name(f".{uuid4().hex[:12]}.{target.name}")
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: str | os.PathLike[str]) -> None:
    """Flushes a file's content, or the names of the files in a folder, to the disk.

    Args:
      path: path of the file or folder.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     sync(folder)
    """
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[str]]:
    """Opens a temporary text file, which is renamed to `path` at the end of the block, or removed after an error.

    Args:
      path: path of the file; missing folders are made.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, atomic_write(folder + "/a.txt") as file:
      ...     _ = file.write("whole")
    """
    # Line ends are not translated, so that a file has the same bytes on every system.
    with atomic_path(path) as draft, draft.open("w", newline="") as file:
        yield file
