"""Runs that are saved while they run, and resumed."""

import os
import re
import warnings
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from stellaris._core import checks
from stellaris._core.describe import differences
from stellaris.runtime.contract import Resumable
from stellaris.runtime.functions import Function
from stellaris.runtime.state import checkpoint_files
from stellaris.runtime.state.restoring import restore
from stellaris.runtime.state.snapshots import CheckpointError as CheckpointError
from stellaris.runtime.state.snapshots import take

#: What the names of checkpoints ended in when they were files.
_OLD_SUFFIX = ".checkpoint"


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints, each a folder of its number, written whole or not at all.

    Each is plain data (`state.json`), and the larger arrays, which orbax reads by their names; see `snapshots` for what
    can be saved. It has hashes of all its files, and says which stellaris saved it: the version, and a hash of its
    sources. They are checked before anything is loaded. A checkpoint holds no code, and none is run that it names: a
    stranger's may be nonsense, which is refused, or fails where the platform first needs it, but it runs nothing.

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
      ...         saved.save(0, platform, {"invoked": 1}, externals={"program": bool})
      ...     with SimulatedPlatform(deployment) as platform:
      ...         state = saved.load(platform, externals={"program": bool})
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
          CheckpointError: if nothing can be written there, or orbax is missing.
        """
        checkpoint_files.origin()  # now, before the sources of what runs are edited
        checkpoint_files.try_writing(Path(self.folder))

    def save(
        self,
        step: int,
        platform: Resumable,
        state: Any,
        *,
        externals: Mapping[str, Any] | None = None,
        like: Mapping[str, Any] | None = None,
        configuration: Any = None,
    ) -> None:
        """Saves a platform and what its user works with.

        Bodies that have started are run to their end before, and their results saved; invocations that have not are
        saved with their arguments.

        Args:
          step: number of the checkpoint, larger than those before.
          platform: in virtual time.
          state: any tree of plain values, arrays, and objects of registered classes: see `stellaris.runtime.saved`.
          externals: objects that are not saved, but given again to `load` under the same names: programs, or the
            functions that they are made of.
          like: trees such as a network's parameters, if their classes are a library's: of trees that have the structure
            of one, or of a part of it, the leaves are saved.
          configuration: of what is run on the platform, as `stellaris._core.describe.describe`.

        Raises:
          CheckpointError: if something cannot be saved, such as a program that is no external, or the files cannot be
            written; names it. What was saved before stays.
          ValueError: if `step` is not larger than the newest checkpoint's.
        """
        checks.whole(at_least=0, step=step)
        newest = self.newest()
        if newest is not None and step <= newest:
            raise ValueError(f"step={step} is not larger than {newest}, the newest in {os.fspath(self.folder)!r}")
        platform.settle()
        snapshot = take(state, parts={"platform": platform}, externals=_with_parts(externals or {}), like=like)
        configurations = {"platform": platform.configuration, "run": configuration}
        checkpoint_files.write(Path(self.folder), str(step), snapshot, configurations)
        kept = [path for _, path in self._saved() if checkpoint_files.is_one(path)]
        for old in kept[: -self.keep]:
            checkpoint_files.remove(old)

    def load(
        self,
        platform: Resumable,
        *,
        externals: Mapping[str, Any] | None = None,
        like: Mapping[str, Any] | None = None,
        configuration: Any = None,
    ) -> Any:
        """Makes a fresh platform go on where the newest checkpoint was taken that is whole and of this stellaris.

        What is skipped is named in a warning.

        Args:
          platform: of the same configuration.
          externals: as in `save`.
          like: as in `save`.
          configuration: as in `save`; it must be what it was.

        Returns:
          The state that was saved beside it.

        Raises:
          CheckpointError: if there is no checkpoint that can be loaded, an external is missing, or the platform or the
            configuration differs; says in what.
        """
        skipped: list[str] = []
        for _, path in reversed(self._saved()):
            try:
                configurations, snapshot = checkpoint_files.read(path)
                break
            except CheckpointError as error:
                skipped.append(str(error))
        else:
            why = f" that can be loaded: {'; '.join(skipped)}" if skipped else ""
            raise CheckpointError(f"folder={os.fspath(self.folder)!r} holds no checkpoint{why}")
        if skipped:
            warnings.warn(f"{path} is the newest checkpoint that can be loaded: {'; '.join(skipped)}", stacklevel=2)
        for name, own, other in differences(configuration, configurations["run"]):
            raise CheckpointError(f"{name}: this run has {own}, but {self} holds a run of {other}")
        for name, own, other in differences(platform.configuration, configurations["platform"]):
            raise CheckpointError(f"{name}: the platform has {own}, the checkpoint {other}")
        try:
            return restore(snapshot, parts={"platform": platform}, externals=_with_parts(externals or {}), like=like)
        except CheckpointError as error:
            raise CheckpointError(f"{path} cannot be loaded: {error}") from error

    def _saved(self) -> list[tuple[int, Path]]:
        """What is in the folder, whole or not, by number; what is of an older format counts as well."""
        folder = Path(self.folder)
        there = folder.iterdir() if folder.is_dir() else ()
        numbered = (path for path in there if path.stem.isdecimal() and path.suffix in ("", _OLD_SUFFIX))
        return sorted((int(path.stem), path) for path in numbered)


def _with_parts(externals: Mapping[str, Any]) -> dict[str, Any]:
    """Externals, and the callables that programs among them consist of."""
    parts = {
        f"{name}.{part}": getattr(external, part)
        for name, external in externals.items()
        if isinstance(external, Function)
        for part in ("body", "init", "batched", "upload")
    }
    return {name: part for name, part in parts.items() if callable(part)} | dict(externals)
