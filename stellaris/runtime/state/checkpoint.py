"""Folders of checkpoints, from which a run is resumed."""

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
from stellaris.runtime.state.codec import CheckpointError, Codec

#: Suffix of checkpoints in older formats, which were files.
_OLD_SUFFIX = ".checkpoint"


@dataclass(frozen=True)
class Checkpoints:
    """A folder of checkpoints. Each checkpoint is a subfolder, named by its number, that appears once it is complete.

    A checkpoint holds plain data, arrays, hashes of its files, and the version of stellaris that saved it, with a hash
    of the sources. The module `stellaris.runtime.state.codec` says which objects can be saved. Hashes and version are
    checked before anything is loaded. Loading runs no code that the checkpoint names. A checkpoint from an untrusted
    source may hold an invalid state: loading it is refused, or the platform fails where it first uses that state.

    Args:
      folder: a local folder, made if it is missing.
      every: rounds of training from one checkpoint to the next.
      keep: number of newest intact checkpoints that stay.

    Raises:
      TypeError: if `every` or `keep` is not a whole number.
      ValueError: if `every` or `keep` is below 1, or the folder is a URL or a file.

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
            raise ValueError("folder='' is empty: name a folder")
        if re.match(r"[A-Za-z][\w+.-]+:/", folder):
            raise ValueError(f"folder={folder!r} is a URL: checkpoints are saved in a local folder, so give its path")
        # A file is refused here and not at the first checkpoint, which may be hours away.
        for path in (Path(folder), *Path(folder).parents):
            if path.exists() and not path.is_dir():
                raise ValueError(f"folder={folder!r}: {path} is a file, not a folder; choose another path")

    def newest(self) -> int | None:
        """Returns the number of the newest checkpoint, or None. The checkpoint may be damaged: `load` checks that."""
        return max((step for step, _ in self._saved()), default=None)

    def prepare(self) -> None:
        """Makes the folder and tries to write into it, so that a run that cannot be saved fails before it begins.

        Raises:
          CheckpointError: if the folder cannot be written to.
        """
        checkpoint_files.origin()  # hashed and cached now, because the sources may be edited during the run
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
        """Saves a platform, and the state of the loop that uses it.

        Bodies that have started are first run to their end, and their results are saved. Other invocations are saved
        with their arguments.

        Args:
          step: the number of the checkpoint, larger than the numbers of earlier checkpoints.
          platform: a platform in virtual time.
          state: any tree of plain values, arrays, and objects of classes registered with
            `stellaris.runtime.register_value`.
          externals: objects by name that are not saved, and must be passed to `load` under the same names: programs, or
            the functions that programs are made of.
          like: example trees by name, for trees of a library's classes, such as a network's parameters. If a tree
            has the structure of an example or of an example's subtree, only its leaves are saved.
          configuration: the run's configuration, as returned by `stellaris._core.describe.describe`.

        Raises:
          CheckpointError: if an object cannot be saved, such as a program that is not an external, or a file cannot be
            written; the error names the object or the file. Earlier checkpoints stay.
          ValueError: if `step` is not larger than the newest checkpoint's.
        """
        checks.whole(at_least=0, step=step)
        newest = self.newest()
        if newest is not None and step <= newest:
            raise ValueError(
                f"step={step} is not larger than {newest}, the newest in {os.fspath(self.folder)!r}: give a larger one"
            )
        # Bodies run to their end before anything is written: a body on a thread changes its container until it ends.
        platform.settle()
        snapshot = _codec(platform, externals, like).take(state)
        configurations = {"platform": platform.configuration, "run": configuration}
        checkpoint_files.write(Path(self.folder), str(step), snapshot, configurations)
        # Old checkpoints are removed last: until the new one is complete, a run can resume only from earlier ones. A
        # damaged one does not count, because the run can resume only from the one before it.
        *earlier, _ = [path for _, path in self._saved() if checkpoint_files.is_checkpoint(path)]
        kept = 1
        for path in reversed(earlier):
            if kept >= self.keep:
                checkpoint_files.remove(path)
            else:
                kept += checkpoint_files.is_intact(path)

    def load(
        self,
        platform: Resumable,
        *,
        externals: Mapping[str, Any] | None = None,
        like: Mapping[str, Any] | None = None,
        configuration: Any = None,
    ) -> Any:
        """Restores a platform from the newest checkpoint that is complete and was saved by this version of stellaris.

        A warning names the checkpoints that were skipped, and the reasons.

        Args:
          platform: a platform of the same configuration.
          externals: as in `save`.
          like: as in `save`.
          configuration: as in `save`; it must not have changed.

        Returns:
          The state that was saved with the platform.

        Raises:
          CheckpointError: if no checkpoint can be loaded, an external is missing, or the platform or the configuration
            differs; the error names the setting.
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
        # Configurations are compared first: the state has another meaning under another configuration.
        for name, own, other in differences(configuration, configurations["run"]):
            raise CheckpointError(f"{name}: this run has {own}, but {self} holds a run with {other}: make them equal")
        for name, own, other in differences(platform.configuration, configurations["platform"]):
            raise CheckpointError(f"{name}: the platform has {own}, but the checkpoint has {other}: make them equal")
        try:
            return _codec(platform, externals, like).restore(snapshot)
        except CheckpointError as error:
            raise CheckpointError(f"{path} cannot be loaded: {error}") from error

    def _saved(self) -> list[tuple[int, Path]]:
        """Returns the folder's checkpoints with their numbers, including damaged checkpoints and older formats."""
        folder = Path(self.folder)
        there = folder.iterdir() if folder.is_dir() else ()
        # Older formats are included: a new checkpoint is numbered after them, and `load` says why it skips them.
        numbered = (path for path in there if path.stem.isdecimal() and path.suffix in ("", _OLD_SUFFIX))
        return sorted((int(path.stem), path) for path in numbered)


def _codec(platform: Resumable, externals: Mapping[str, Any] | None, like: Mapping[str, Any] | None) -> Codec:
    """Returns the codec of a platform; the callables of programs among the externals become externals as well."""
    # A program that is not an external may have the same callables: it is saved as a value that refers to them by name.
    named = dict(externals or {})
    for name, program in [*named.items()]:
        if isinstance(program, Function):
            callables = {part: getattr(program, part) for part in ("body", "init", "batched", "upload")}
            named = {f"{name}.{part}": value for part, value in callables.items() if callable(value)} | named
    return Codec({"platform": platform}, named, like or {})
