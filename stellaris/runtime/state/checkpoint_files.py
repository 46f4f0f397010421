"""A checkpoint on the disk: a folder that appears under its name once it is complete, and is verified before use.

The folder holds `state.json` (a snapshot's tree), `arrays.bin` (the bytes of its arrays), `about.json` (the version of
stellaris that saved the checkpoint, and the configurations), and `SHA256SUMS`, which `sha256sum -c` checks.
"""

import contextlib
import functools
import hashlib
import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stellaris import __version__
from stellaris.runtime.files import sync
from stellaris.runtime.state.codec import CheckpointError, Snapshot

FORMAT = 4
_STATE, _ARRAYS, _ABOUT, _SUMS = "state.json", "arrays.bin", "about.json", "SHA256SUMS"
#: A killed process may leave a folder of one of these names; the next process removes it.
_DRAFT, _REMOVED = ".draft", ".removed"


def write(folder: Path, name: str, snapshot: Snapshot, configurations: Mapping[str, Any]) -> None:
    """Writes a checkpoint, which appears under its name once it is complete and on the disk.

    Args:
      folder: the folder of checkpoints; made if it is missing.
      name: the name of the checkpoint, which must not exist yet.
      snapshot: the saved state.
      configurations: the configurations of the platform and of the run, as plain data.

    Raises:
      CheckpointError: if the checkpoint cannot be written. Earlier checkpoints stay.
    """
    draft = folder / _DRAFT
    try:
        _remove(draft)
        try:
            draft.mkdir(parents=True)
            _write_json(draft / _ABOUT, {"origin": origin(), "configurations": configurations})
            _write_json(draft / _STATE, snapshot.tree)
            (draft / _ARRAYS).write_bytes(snapshot.arrays)
            (draft / _SUMS).write_bytes(_sums(draft))
            # All content is on the disk before the rename, so that even after a power failure a checkpoint is complete.
            for path in [*draft.iterdir(), draft]:
                sync(path)
            draft.rename(folder / name)
            sync(folder)
        # The draft is removed after an interrupt as well, because it takes as much disk space as a checkpoint.
        except BaseException:
            _remove(draft)
            raise
    except Exception as error:
        raise CheckpointError(f"{folder / name} cannot be written: {error}; earlier checkpoints stay") from error


def try_writing(folder: Path) -> None:
    """Makes the folder, writes a file into it, and removes the file.

    Raises:
      CheckpointError: if the folder cannot be written to.
    """
    try:
        _remove(folder / _DRAFT)
        (folder / _DRAFT).mkdir(parents=True)
        (folder / _DRAFT / _ABOUT).write_bytes(b"")
        _remove(folder / _DRAFT)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to: {error}; choose another folder") from error


def remove(path: Path) -> None:
    """Removes a checkpoint. The folder is renamed first, so that its name never stands for an incomplete checkpoint."""
    with contextlib.suppress(OSError):  # a checkpoint that stays does no harm
        removed = path.with_name(_REMOVED)
        _remove(removed)
        path.rename(removed)
        _remove(removed)


def is_checkpoint(path: Path) -> bool:
    """Returns whether this folder is a checkpoint, complete or not, and not some other folder of the user."""
    return (path / _SUMS).is_file()


def is_intact(path: Path) -> bool:
    """Returns whether the files of a checkpoint have the hashes that it lists."""
    try:
        return (path / _SUMS).read_bytes() == _sums(path)
    except OSError:
        return False


def read(path: Path) -> tuple[dict[str, Any], Snapshot]:
    """Returns the configurations and the snapshot of a checkpoint.

    Raises:
      CheckpointError: if the folder is damaged, was saved by another version of stellaris, or is not a checkpoint; the
        error says which.
    """
    try:
        said, sums = (path / _SUMS).read_bytes(), _sums(path)
        if said != sums:
            raise CheckpointError(f"{path.name} is damaged: its hashes do not match {_differing(said, sums)}")
        about = json.loads((path / _ABOUT).read_bytes())
        if about["origin"] != origin():
            raise CheckpointError(
                f"{path.name} was saved by another version of stellaris ({about['origin']}, but this is {origin()})"
            )
        configurations = about["configurations"]
        if type(configurations) is not dict or configurations.keys() != {"platform", "run"}:
            raise ValueError("its configurations are missing")
        return configurations, Snapshot(json.loads((path / _STATE).read_bytes()), (path / _ARRAYS).read_bytes())
    except CheckpointError:
        raise
    except OSError as error:
        why = f"{error.strerror}: {error.filename}"
        raise CheckpointError(f"{path.name} is damaged or not a checkpoint ({why})") from error
    except Exception as error:
        raise CheckpointError(f"{path.name} is not a checkpoint ({type(error).__name__}: {error})") from error


@functools.cache
def origin() -> dict[str, Any]:
    """Returns the checkpoint format, the version of stellaris, and a hash of its sources.

    A checkpoint holds internal state, which another version of stellaris may interpret differently.
    """
    root, sources = Path(__file__).parents[2], hashlib.sha256()
    # The files are sorted, because file systems list files in different orders.
    for path in sorted(root.rglob("*.py")):
        sources.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {"format": FORMAT, "stellaris": __version__, "sources": sources.hexdigest()[:16]}


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")))


def _sums(folder: Path) -> bytes:
    """Returns the hashes of all files except `SHA256SUMS`, which holds them."""
    # A link counts as a file, so that a link that leads nowhere is found.
    files = sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())
    names = [path.relative_to(folder).as_posix() for path in files]
    hashes = {name: hashlib.sha256((folder / name).read_bytes()).hexdigest() for name in names if name != _SUMS}
    return "".join(f"{digest}  {name}\n" for name, digest in hashes.items()).encode()


def _differing(said: bytes, are: bytes) -> str:
    """Returns the names of the files whose hashes are wrong."""
    lines = {*said.splitlines()} ^ {*are.splitlines()}
    names = {line.partition(b"  ")[2].decode(errors="replace") for line in lines}
    return ", ".join(sorted(names - {""})) or _SUMS


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
