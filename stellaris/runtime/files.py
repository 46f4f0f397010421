"""Files that appear under their name only once they are whole."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO
from uuid import uuid4


@contextmanager
def atomic_path(path: str | os.PathLike[str]) -> Iterator[Path]:
    """A path to write a file to, which is renamed to `path` once it is whole; after an error it is removed.

    Args:
      path: of the file; missing folders are made.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, atomic_path(folder + "/a.txt") as draft:
      ...     _ = draft.write_text("whole")
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    draft = target.with_name(f".{uuid4().hex[:12]}.{target.name}")  # of this writer alone
    try:
        yield draft
        draft.replace(target)
    finally:
        draft.unlink(missing_ok=True)


def sync(path: str | os.PathLike[str]) -> None:
    """Has a file reach the disk; or a folder: the names in it.

    Args:
      path: of either.

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
    """Opens a text file, which is renamed to `path` once it is whole; after an error it is removed.

    Args:
      path: of the file; missing folders are made.

    Example:
      >>> import tempfile
      >>> with tempfile.TemporaryDirectory() as folder, atomic_write(folder + "/a.txt") as file:
      ...     _ = file.write("whole")
    """
    with atomic_path(path) as draft, draft.open("w", newline="") as file:
        yield file
