"""Runs that are saved while they run, and resumed."""

import functools
import io
import os
import pickle
import types
from collections.abc import Mapping, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import jax
import jax.numpy as jnp
import numpy as np

from stellaris.runtime.functions import Function
from stellaris.types import NDArray

#: Arrays of fewer bytes are saved with the objects that hold them.
_SMALL = 4096


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
    """A folder of checkpoints, each written whole or not at all (by orbax; needs `orbax-checkpoint`).

    Arrays are saved as such, and everything else as pickles, with what is shared saved once. **Load only what you saved
    yourself**: a pickle can run anything.

    Args:
      folder: made if it is missing.
      every: rounds of training from one checkpoint to the next.
      keep: how many of the newest stay.

    Raises:
      ValueError: if a number is below 1.

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
        for name in ("every", "keep"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} is below 1")

    def newest(self) -> int | None:
        """The number of the newest whole checkpoint, or None."""
        steps = self._manager.all_steps()
        return max(steps, default=None)

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
          CheckpointError: if a pending invocation's program is a closure and no external, or something else cannot be
            saved; names it. What was saved before stays.
        """
        import orbax.checkpoint as ocp

        externals = _with_parts({"platform": platform, **(externals or {})})
        file, arrays = io.BytesIO(), dict[str, NDArray]()
        pickler = _Pickler(file, externals, arrays)
        saved = platform.save_state(known={id(external) for external in externals.values()})
        try:
            pickler.dump({"platform": saved, "state": state})
        except CheckpointError:
            raise
        except Exception as error:
            raise CheckpointError(f"the run cannot be saved: {type(error).__name__}: {error}") from error
        arrays["pickle"] = np.frombuffer(file.getvalue(), np.uint8)
        self._manager.save(step, args=ocp.args.PyTreeSave(arrays))

    def load(self, platform: Resumable, *, externals: Mapping[str, Any] | None = None) -> Any:
        """Makes a fresh platform go on where the newest checkpoint was taken.

        Args:
          platform: with the same functions.
          externals: as in `save`.

        Returns:
          The state that was saved beside it.

        Raises:
          CheckpointError: if there is no checkpoint, an external is missing, or the platform differs.
        """
        import orbax.checkpoint as ocp

        step = self.newest()
        if step is None:
            raise CheckpointError(f"folder={os.fspath(self.folder)!r} holds no checkpoint")
        item = self._manager.item_metadata(step)
        as_arrays = jax.tree.map(lambda _: ocp.RestoreArgs(restore_type=np.ndarray), dict(item))
        arrays = self._manager.restore(step, args=ocp.args.PyTreeRestore(restore_args=as_arrays))
        externals = _with_parts({"platform": platform, **(externals or {})})
        loaded = _Unpickler(io.BytesIO(arrays.pop("pickle").tobytes()), externals, arrays).load()
        platform.restore_state(loaded["platform"])
        return loaded["state"]

    @functools.cached_property
    def _manager(self) -> Any:
        import orbax.checkpoint as ocp

        options = ocp.CheckpointManagerOptions(max_to_keep=self.keep, enable_async_checkpointing=False)
        handler = ocp.PyTreeCheckpointHandler()
        return ocp.CheckpointManager(Path(self.folder).absolute(), item_handlers=handler, options=options)


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
    """Takes arrays and externals out of a pickle."""

    def __init__(self, file: io.BytesIO, externals: Mapping[str, Any], arrays: dict[str, NDArray]) -> None:
        super().__init__(file, protocol=5)
        self._names = {id(external): name for name, external in externals.items()}
        self._arrays, self._seen = arrays, dict[int, tuple[str, Any]]()

    def persistent_id(self, obj: Any) -> Any:
        if id(obj) in self._names:
            return "external", self._names[id(obj)], ""
        if isinstance(obj, jax.Array):
            if jnp.issubdtype(obj.dtype, jax.dtypes.prng_key):
                return "key", self._store(obj, np.asarray(jax.random.key_data(obj))), str(jax.random.key_impl(obj))
            return "device", self._store(obj, np.asarray(obj)), ""
        if type(obj) is np.ndarray and obj.nbytes >= _SMALL and obj.dtype.kind in "biuf":
            return "host", self._store(obj, obj), ""
        return None

    def reducer_override(self, obj: Any) -> Any:
        name = closure_name(obj)
        if name is not None:
            raise CheckpointError(f"{name} is a closure and cannot be saved: make it a function of a module")
        return NotImplemented

    def _store(self, obj: Any, array: NDArray) -> Any:
        """Where an array is saved; what is small or empty is its own place."""
        if array.nbytes < _SMALL:
            return array
        if id(obj) not in self._seen:
            name = str(len(self._seen))
            self._seen[id(obj)] = name, obj  # kept, so that no other object gets its address
            self._arrays[name] = array
        return self._seen[id(obj)][0]


class _Unpickler(pickle.Unpickler):
    """Puts arrays and externals back."""

    def __init__(self, file: io.BytesIO, externals: Mapping[str, Any], arrays: Mapping[str, NDArray]) -> None:
        super().__init__(file)
        self._externals, self._arrays = externals, arrays
        self._made: dict[tuple[str, str], Any] = {}

    def persistent_load(self, pid: Any) -> Any:
        kind, where, how = pid
        if kind == "external":
            if where not in self._externals:
                raise CheckpointError(f"externals lacks {where!r}, which was one when the checkpoint was saved")
            return self._externals[where]
        if not isinstance(where, str):
            return _made(kind, where, how)
        if (kind, where) not in self._made:
            self._made[kind, where] = _made(kind, self._arrays[where], how)
        return self._made[kind, where]


def _made(kind: str, array: NDArray, how: str) -> Any:
    if kind == "host":
        return np.array(array)
    on_device = jax.device_put(array)
    return jax.random.wrap_key_data(on_device, impl=how) if kind == "key" else on_device
