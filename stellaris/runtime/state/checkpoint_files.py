"""A checkpoint on the disk: a folder that appears once it is whole, and is looked at before anything in it is believed.

It holds `state.json` (a snapshot's tree), `arrays/` (its arrays, which orbax reads by their names), `origin.json` (what
saved it), and `SHA256SUMS`, which `sha256sum -c` checks, too.
"""

import contextlib
import functools
import hashlib
import json
import shutil
from collections.abc import Mapping
from importlib import metadata
from pathlib import Path
from typing import Any, NoReturn

import numpy as np

from stellaris._core.extras import needs
from stellaris.runtime.files import sync
from stellaris.runtime.state.snapshots import CheckpointError, Snapshot
from stellaris.types import NDArray

FORMAT = 3
_STATE, _ARRAYS, _ORIGIN, _SUMS = "state.json", "arrays", "origin.json", "SHA256SUMS"
#: What a killed process leaves has one of these names, and is removed by the next one.
_DRAFT, _REMOVED = ".draft", ".removed"


def write(folder: Path, name: str, snapshot: Snapshot, configurations: Mapping[str, Any]) -> None:
    """Writes a checkpoint, which appears under its name only once it is whole and on the disk.

    Args:
      folder: of checkpoints; made if it is missing.
      name: of this one, which there is not yet.
      snapshot: what is saved.
      configurations: of the platform, and of what is run on it, as plain data.

    Raises:
      CheckpointError: if it cannot be written. What was saved before stays.
    """
    draft = folder / _DRAFT
    try:
        _remove(draft)
        try:
            draft.mkdir(parents=True)
            _write_json(draft / _ORIGIN, origin())
            names = sorted(snapshot.arrays)
            _write_json(draft / _STATE, {"configurations": configurations, "arrays": names, **snapshot.tree})
            _write_arrays(draft / _ARRAYS, snapshot.arrays)
            (draft / _SUMS).write_bytes(_sums(draft))
            _sync(draft)
            draft.rename(folder / name)
            sync(folder)
        except BaseException:
            _remove(draft)
            raise
    except CheckpointError:
        raise
    except Exception as error:
        raise CheckpointError(f"{folder / name} cannot be written: {error}; what was saved before stays") from error


def try_writing(folder: Path) -> None:
    """Makes the folder, writes there and removes what it wrote.

    Raises:
      CheckpointError: if nothing can be written there, or the library that writes arrays is missing.
    """
    orbax()
    try:
        _remove(folder / _DRAFT)
        (folder / _DRAFT).mkdir(parents=True)
        (folder / _DRAFT / _ORIGIN).write_bytes(b"")
        _remove(folder / _DRAFT)
    except OSError as error:
        raise CheckpointError(f"{folder} cannot be written to: {error}") from error


def remove(path: Path) -> None:
    """Removes a checkpoint: at once, so that no half of it is ever found under its name."""
    with contextlib.suppress(OSError):  # one too many does no harm
        gone = path.with_name(_REMOVED)
        _remove(gone)
        path.rename(gone)
        _remove(gone)


def is_one(path: Path) -> bool:
    """Whether this is a checkpoint, whole or not, and no other folder of somebody's."""
    return (path / _SUMS).is_file()


def read(path: Path) -> tuple[dict[str, Any], Snapshot]:
    """The configurations and the snapshot of a checkpoint that is whole and of this stellaris.

    Raises:
      CheckpointError: if it is not, and why.
    """
    try:
        return _read(path)
    except CheckpointError:
        raise
    except OSError as error:
        raise CheckpointError(
            f"{path.name} is damaged or no checkpoint ({error.strerror}: {error.filename})"
        ) from error
    except Exception as error:
        raise CheckpointError(f"{path.name} is no checkpoint ({type(error).__name__}: {error})") from error


def _read(path: Path) -> tuple[dict[str, Any], Snapshot]:
    said, sums = (path / _SUMS).read_bytes(), _sums(path)
    if said != sums:
        raise CheckpointError(f"{path.name} is damaged: its hashes do not fit {_differing(said, sums)}")
    saved_by = json.loads((path / _ORIGIN).read_bytes())
    if saved_by != origin():
        raise CheckpointError(f"{path.name} was saved by another stellaris ({saved_by}, and this is {origin()})")
    tree = json.loads((path / _STATE).read_bytes(), parse_constant=_no_constant)
    configurations, names = tree.pop("configurations"), tree.pop("arrays")
    if type(configurations) is not dict or configurations.keys() != {"platform", "run"}:
        raise ValueError("it does not say of which configurations it is")
    if type(names) is not list or any(type(name) is not str for name in names):
        raise ValueError("it does not say which arrays it has")
    return configurations, Snapshot(tree, _read_arrays(path / _ARRAYS, names))


@functools.cache
def origin() -> dict[str, Any]:
    """What saves checkpoints: they hold its inner state, which means something else to another."""
    try:
        version = metadata.version("stellaris")
    except metadata.PackageNotFoundError:
        version = "not installed"
    root, sources = Path(__file__).parents[2], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        sources.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {"format": FORMAT, "stellaris": version, "sources": sources.hexdigest()[:16]}


def orbax() -> Any:
    """The library that keeps arrays.

    Raises:
      CheckpointError: if it is missing.
    """
    try:
        with needs("a checkpoint"):
            import orbax.checkpoint
    except ImportError as error:
        raise CheckpointError(str(error)) from error
    return orbax.checkpoint


def _write_arrays(path: Path, arrays: dict[str, NDArray]) -> None:
    ocp = orbax()
    if arrays:
        with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
            checkpointer.save(path.absolute(), args=ocp.args.PyTreeSave(arrays))


def _read_arrays(path: Path, names: list[str]) -> dict[str, NDArray]:
    ocp = orbax()
    if not names:
        return {}
    # As NumPy's, whatever the files say that they were: what is to be JAX's is made so from the tree.
    kinds = {name: ocp.RestoreArgs(restore_type=np.ndarray) for name in names}
    with ocp.Checkpointer(ocp.PyTreeCheckpointHandler()) as checkpointer:
        args = ocp.args.PyTreeRestore(restore_args=kinds)
        arrays: dict[str, NDArray] = checkpointer.restore(path.absolute(), args=args)
    return arrays


def _write_json(path: Path, content: Any) -> None:
    path.write_text(json.dumps(content, allow_nan=False, separators=(",", ":")))


def _no_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is no JSON")


def _files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_symlink() or not path.is_dir())


def _sums(folder: Path) -> bytes:
    """The hashes of all files but of the one that they are in."""
    lines = []
    for path in _files(folder):
        name = path.relative_to(folder).as_posix()
        if name != _SUMS:
            lines.append(f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {name}\n")
    return "".join(lines).encode()


def _differing(said: bytes, are: bytes) -> str:
    """Names of the files that are not what their hashes say."""
    lines = {*said.splitlines()} ^ {*are.splitlines()}
    names = {line.partition(b"  ")[2].decode(errors="replace") for line in lines}
    return ", ".join(sorted(names - {""})) or _SUMS


def _sync(folder: Path) -> None:
    """Has everything in a folder reach the disk."""
    for path in [*folder.rglob("*"), folder]:
        sync(path)


def _remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
