"""Runs that are saved while they run, and resumed."""

import contextlib
import functools
import hashlib
import io
import json
import os
import pickle
import re
import types
import warnings
from collections.abc import Mapping, Set
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from stellaris import checks
from stellaris.runtime.functions import Function
from stellaris.types import NDArray

#: A checkpoint's file: a line of JSON that says what saved it, a pickle, and the SHA-256 of both.
_FORMAT = 2
_SUFFIX = ".checkpoint"
_DRAFT = f".draft{_SUFFIX}"
_DIGEST = hashlib.sha256().digest_size


@runtime_checkable
class Resumable(Protocol):
    """A platform, as far as checkpoints go."""

    def save_state(self, *, known: Set[int] = ...) -> dict[str, Any]:
        """What it needs to go on; objects of these identities need not be saved."""

    def restore_state(self, state: Mapping[str, Any]) -> None:
        """Goes on from there."""


class CheckpointError(RuntimeError):
    """Something cannot be saved, or does not fit what was saved."""


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints, one file each, written whole or not at all.

    Each holds a hash of its content, and which stellaris saved it: the version, and a hash of its sources. Both are
    looked at before anything is loaded. **Load only what you saved yourself**: a pickle can run anything.

    Args:
      folder: a local one, made if it is missing.
      every: rounds of training from one checkpoint to the next.
      keep: how many of the newest stay.

    Raises:
      TypeError: if a number is not whole.
      ValueError: if a number is below 1, or the folder is a URL or a file.

    Example:
      >>> import tempfile
      >>> from stellaris.runtime import FunctionSpec, SimulatedPlatform, delays
      >>> deployment = {"f": FunctionSpec(delays.Constant(1.0))}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     saved = Checkpoints(folder)
      ...     with SimulatedPlatform(deployment) as platform:
      ...         _ = platform.invoke("f", bool)
      ...         saved.save(0, platform, {"invoked": 1})
      ...     with SimulatedPlatform(deployment) as platform:
      ...         state = saved.load(platform)
      ...         done = platform.next_completion()  # what was pending
      ...         print(state, platform.now, done.result())
      {'invoked': 1} 1.0 True
    """

    folder: str | os.PathLike[str]
    every: int = 10
    keep: int = 2

    def __post_init__(self) -> None:
        checks.whole(at_least=1, every=self.every, keep=self.keep)
        folder = os.fspath(self.folder)
        if not folder:
            raise ValueError("folder='' names no folder")
        if re.match(r"[A-Za-z][\w+.-]+:/", folder):
            raise ValueError(f"folder={folder!r} is a URL: checkpoints are saved in a local folder")
        for path in (Path(folder), *Path(folder).parents):
            if path.exists() and not path.is_dir():
                raise ValueError(f"folder={folder!r}: {path} is a file, and no folder")

    def newest(self) -> int | None:
        """The number of the newest checkpoint, or None. Whether it can be loaded, `load` finds out."""
        return max((step for step, _ in self._saved()), default=None)

    def prepare(self) -> None:
        """Makes the folder and tries to write there, so that a run that could not be saved does not begin.

        Raises:
          CheckpointError: if nothing can be written there.
        """
        _origin()  # now, before the sources of what runs are edited
        self._write(_DRAFT, b"")
        (Path(self.folder) / _DRAFT).unlink()

    def save(
        self,
        step: int,
        platform: Resumable,
        state: Any,
        *,
        externals: Mapping[str, Any] | None = None,
    ) -> None:
        """Saves a platform and what its user works with.

        Bodies that have started are run to their end before, and their results saved; invocations that have not are
        saved with their arguments.

        Args:
          step: number of the checkpoint, larger than those before.
          platform: in virtual time.
          state: any tree of picklable objects and arrays.
          externals: objects that are not saved, but given again to `load` under the same names: environments,
            compiled functions, programs.

        Raises:
          CheckpointError: if a pending invocation's program is a closure and no external, something else cannot be
            saved, or the file cannot be written; names it. What was saved before stays.
          ValueError: if `step` is not larger than the newest checkpoint's.
        """
        checks.whole(at_least=0, step=step)
        newest = self.newest()
        if newest is not None and step <= newest:
            raise ValueError(f"step={step} is not larger than {newest}, the newest in {os.fspath(self.folder)!r}")
        externals = _with_parts({"platform": platform, **(externals or {})})
        saved = platform.save_state(known={id(external) for external in externals.values()})
        file = io.BytesIO()
        file.write(json.dumps(_origin()).encode() + b"\n")
        try:
            _Pickler(file, externals).dump({"platform": saved, "state": state})
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"the run cannot be saved: {type(error).__name__}: {error}") from error
        file.write(hashlib.sha256(file.getbuffer()).digest())
        self._write(f"{step}{_SUFFIX}", file.getbuffer())
        files = [path for _, path in self._saved() if path.is_file()]
        for old in files[: -self.keep]:
            with contextlib.suppress(OSError):  # one too many does no harm
                old.unlink()

    def load(self, platform: Resumable, *, externals: Mapping[str, Any] | None = None) -> Any:
        """Makes a fresh platform go on where the newest checkpoint was taken that is whole and of this stellaris.

        What is skipped is named in a warning.

        Args:
          platform: with the same functions.
          externals: as in `save`.

        Returns:
          The state that was saved beside it.

        Raises:
          CheckpointError: if there is no checkpoint that can be loaded, an external is missing, or the platform
            differs.
        """
        skipped: list[str] = []
        for _, path in reversed(self._saved()):
            try:
                pickled = _verified(path)
                break
            except CheckpointError as error:
                skipped.append(str(error))
        else:
            why = f" that can be loaded: {'; '.join(skipped)}" if skipped else ""
            raise CheckpointError(f"folder={os.fspath(self.folder)!r} holds no checkpoint{why}")
        if skipped:
            warnings.warn(f"{path} is the newest checkpoint that can be loaded: {'; '.join(skipped)}", stacklevel=2)
        externals = _with_parts({"platform": platform, **(externals or {})})
        try:
            loaded = _Unpickler(io.BytesIO(pickled), externals).load()
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
        platform.restore_state(loaded["platform"])
        return loaded["state"]

    def _saved(self) -> list[tuple[int, Path]]:
        """What is in the folder, whole or not, by number; in the first format a checkpoint was a folder."""
        folder = Path(self.folder)
        there = folder.iterdir() if folder.is_dir() else ()
        numbered = (path for path in there if path.stem.isdecimal() and path.suffix in ("", _SUFFIX))
        return sorted((int(path.stem), path) for path in numbered)

    def _write(self, name: str, content: bytes | memoryview) -> None:
        """Writes a file, which appears under its name only once it is whole and on the disk."""
        folder = Path(self.folder)
        draft = folder / _DRAFT  # always the same: what a killed process leaves is written over
        try:
            folder.mkdir(parents=True, exist_ok=True)
            try:
                with draft.open("wb") as file:
                    file.write(content)
                    file.flush()
                    os.fsync(file.fileno())
            except BaseException:
                draft.unlink(missing_ok=True)
                raise
            draft.replace(folder / name)
        except OSError as error:
            raise CheckpointError(f"{folder / name} cannot be written: {error}; what was saved before stays") from error


@functools.cache
def _origin() -> dict[str, Any]:
    """What saves checkpoints: they hold its inner state, which means something else to another."""
    try:
        version = metadata.version("stellaris")
    except metadata.PackageNotFoundError:
        version = "not installed"
    root, sources = Path(__file__).parents[1], hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        sources.update(path.relative_to(root).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return {"format": _FORMAT, "stellaris": version, "sources": sources.hexdigest()[:16]}


def _verified(path: Path) -> memoryview:
    """The pickle in a checkpoint's file that is whole and of this stellaris.

    Raises:
      CheckpointError: if it is not, and why.
    """
    try:
        content = memoryview(path.read_bytes())
    except OSError as error:
        raise CheckpointError(f"{path.name} cannot be read ({error.strerror})") from error
    if hashlib.sha256(content[:-_DIGEST]).digest() != content[-_DIGEST:]:
        raise CheckpointError(f"{path.name} is damaged or no checkpoint (its hash does not fit its content)")
    line = bytes(content[:1024]).partition(b"\n")[0]
    origin = json.loads(line)
    if origin != _origin():
        raise CheckpointError(f"{path.name} was saved by another stellaris ({origin}, and this is {_origin()})")
    return content[len(line) + 1 : -_DIGEST]


def _with_parts(externals: Mapping[str, Any]) -> dict[str, Any]:
    """Externals, and the callables that programs among them consist of."""
    parts = {
        f"{name}.{part}": getattr(external, part)
        for name, external in externals.items()
        if isinstance(external, Function)
        for part in ("body", "init", "batched", "upload")
    }
    return {name: part for name, part in parts.items() if part is not None} | dict(externals)


def closure_name(function: Any) -> str | None:
    """The full name of a function that cannot be imported under it; None for anything else."""
    if isinstance(function, types.FunctionType) and not {"<locals>", "<lambda>"}.isdisjoint(
        function.__qualname__.split(".")
    ):
        return f"{function.__module__}.{function.__qualname__}"
    return None


class _Pickler(pickle.Pickler):
    """Takes externals out of a pickle."""

    def __init__(self, file: io.BytesIO, externals: Mapping[str, Any]) -> None:
        super().__init__(file, protocol=5)
        self._names = {id(external): name for name, external in externals.items()}

    def persistent_id(self, obj: Any) -> str | None:
        return self._names.get(id(obj))

    def reducer_override(self, obj: Any) -> Any:
        name = closure_name(obj)
        if name is not None:
            raise CheckpointError(f"{name} is a closure and cannot be saved: make it a function of a module")
        if isinstance(obj, jax.Array) and jnp.issubdtype(obj.dtype, jax.dtypes.prng_key):
            return _key, (np.asarray(jax.random.key_data(obj)), str(jax.random.key_impl(obj)))
        return NotImplemented


class _Unpickler(pickle.Unpickler):
    """Puts externals back."""

    def __init__(self, file: io.BytesIO, externals: Mapping[str, Any]) -> None:
        super().__init__(file)
        self._externals = externals

    def persistent_load(self, pid: str) -> Any:
        if pid not in self._externals:
            raise CheckpointError(f"externals lacks {pid!r}, which was one when the checkpoint was saved")
        return self._externals[pid]


def _key(data: NDArray, impl: str) -> jax.Array:
    """A random key, which JAX itself does not pickle."""
    key: jax.Array = jax.random.wrap_key_data(jnp.asarray(data), impl=impl)
    return key
