"""A table in host memory that several processes of a machine share.

The table is a folder of memory-mapped files. In `/dev/shm`, or another file system in memory, it is in memory once, for
any number of attached processes. Each process selects on its own device, and copies only the steps of a batch to it.
"""

import contextlib
import json
import operator
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jaxtyping import Float, Int

from stellaris._core import checks
from stellaris.replay import rows, selection, table, weight_tree, windows
from stellaris.replay.rows import Trajectory
from stellaris.replay.selection import By, Selection
from stellaris.replay.table import Removal, Spec, Table
from stellaris.replay.windows import Gathered, Window
from stellaris.runtime.files import atomic_write
from stellaris.types import Array, NDArray, Scalar

_DESCRIPTION, _LOCK = "table.json", "lock"
#: The arrays in addition to the columns: a number for each row, and the counts of insertions and of changes.
_NUMBERS = {"length": np.int32, "weight": np.float32, "version": np.int32, "number": np.int64}
_INSERTED, _CHANGES = 0, 1


def create(folder: str | os.PathLike[str], spec: Spec, *, capacity: int, length: int) -> "SharedTable":
    """Makes an empty table in a folder, and reserves its memory.

    Args:
      folder: a new or empty folder, such as `/dev/shm/replay`. Delete it to free the memory.
      spec: the columns of a step, by name, as for `replay.init`.
      capacity: the most trajectories.
      length: the most steps of a trajectory.

    Raises:
      ValueError: as `replay.init`, or if a step of a column has no numbers.
      FileExistsError: if the folder is not empty.
      OSError: if the file system lacks the space. The files that were made are removed.

    Example:
      >>> import tempfile, jax, jax.numpy as jnp
      >>> spec = {"reward": jax.ShapeDtypeStruct((), jnp.float32)}
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     create(folder, spec, capacity=10, length=5).insert({"reward": np.ones((2, 5), np.float32)})
      ...     attach(folder).size
      2
    """
    # All arguments are checked before anything is written: this makes the shapes of the table, without its memory.
    jax.eval_shape(lambda: table.init(spec, capacity=capacity, length=length))
    description = _description(spec, capacity, length)
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    if any(folder.iterdir()):
        raise FileExistsError(f"{folder} is not empty: attach to its table, or choose another folder")
    try:
        _write(folder, description)
        return attach(folder)
    except BaseException:  # a full file system, but also an interrupt: the memory would stay reserved
        for path in (*(path for path, *_ in _files(folder, description)), folder / _LOCK, folder / _DESCRIPTION):
            path.unlink(missing_ok=True)
        raise


def _description(spec: Spec, capacity: int, length: int) -> dict[str, Any]:
    """Returns the description of a table, which JSON can hold."""
    columns = {}
    for name, column in spec.items():
        if 0 in column.shape:
            raise ValueError(f"column {name!r} has shape {column.shape}: a step needs at least one number")
        columns[name] = {"shape": [*map(operator.index, column.shape)], "dtype": jnp.dtype(column.dtype).name}
    return {"capacity": operator.index(capacity), "length": operator.index(length), "columns": columns}


def _write(folder: Path, description: Mapping[str, Any]) -> None:
    """Reserves the files of an empty table, then writes its description."""
    for path, dtype, shape in _files(folder, description):
        with path.open("wb") as file:
            # Without the reservation, a process that writes to a full file system would be killed.
            reserve = getattr(os, "posix_fallocate", lambda descriptor, _, size: os.truncate(descriptor, size))
            reserve(file.fileno(), 0, int(np.prod(shape)) * dtype.itemsize)
    (folder / _LOCK).touch()
    with atomic_write(folder / _DESCRIPTION) as file:
        json.dump(description, file, indent=1)


def attach(folder: str | os.PathLike[str]) -> "SharedTable":
    """Returns the table in a folder, which another process has made.

    Args:
      folder: the folder.

    Raises:
      FileNotFoundError: if the folder has no table.
    """
    path = Path(folder) / _DESCRIPTION
    if not path.exists():
        raise FileNotFoundError(f"{folder} has no shared table: make one with shared.create")
    return SharedTable(Path(folder), json.loads(path.read_text()))


def _files(folder: Path, description: Mapping[str, Any]) -> Iterator[tuple[Path, np.dtype[Any], tuple[int, ...]]]:
    """Returns path, dtype and shape of each array: of the columns in order, of `_NUMBERS`, and of the counts."""
    capacity, length = description["capacity"], description["length"]
    for i, column in enumerate(description["columns"].values()):
        yield folder / f"column{i}", jnp.dtype(column["dtype"]), (capacity, length, *column["shape"])
    for name, dtype in _NUMBERS.items():
        yield folder / name, np.dtype(dtype), (capacity,)
    yield folder / "counts", np.dtype(np.int64), (2,)


class SharedTable:
    """A table that several processes of a machine share; `create` and `attach` return it.

    Its methods are the functions of `replay` by the same names, with arguments of the same meaning. A method that
    changes the table holds a lock, so processes may call all of them at any time. As the host runs them, they raise
    errors at once and set no faults, and they do not compile into a program. A process that is killed while it inserts
    leaves trajectories of length 0, whose masks are false in a batch.

    A table can be pickled: another process of the machine gets the same table.
    """

    def __init__(self, folder: Path, description: Mapping[str, Any]) -> None:
        self.folder = folder.absolute()  # the table stays in its place if the process changes its folder
        self._description = description
        *columns, self._length, self._weight, self._version, self._number, self._counts = (
            np.memmap(path, dtype, mode="r+", shape=shape) for path, dtype, shape in _files(folder, description)
        )
        self._columns: dict[str, Any] = dict(zip(description["columns"], columns, strict=True))
        spec = {
            name: jax.ShapeDtypeStruct(column.shape[2:], column.dtype)  # type: ignore[no-untyped-call]
            for name, column in self._columns.items()
        }
        capacity, length = description["capacity"], description["length"]
        self._shapes: Table = jax.eval_shape(lambda: table.init(spec, capacity=capacity, length=length))
        self._known: tuple[int, Table] | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        return attach, (self.folder,)

    def __repr__(self) -> str:
        return f"SharedTable({str(self.folder)!r}, {self.size} of {self.capacity} trajectories)"

    @property
    def capacity(self) -> int:
        """The most trajectories that the table can hold."""
        return int(self._description["capacity"])

    @property
    def size(self) -> int:
        """The number of trajectories held."""
        return min(int(self._counts[_INSERTED]), self.capacity)

    @property
    def version(self) -> NDArray:
        """A copy of the version of each row, `[capacity]`; 0 in empty rows."""
        with self._locked(change=False):
            return np.array(self._version)

    def insert(
        self,
        columns: Mapping[str, Array],
        *,
        length: Int[Array, " batch"] | None = None,
        weight: Float[Array, " batch"] | Scalar = 1.0,
        version: Int[Array, " batch"] | Int[Array, ""] | int = 0,
        removal: Removal = "oldest",
    ) -> None:
        """Inserts a batch of trajectories; see `replay.insert`.

        Args:
          columns: `[batch, steps, ...]` of each of the table's columns.
          length: `[batch]`, the steps of each trajectory.
          weight: `[batch]` or one for all.
          version: `[batch]` or one for all.
          removal: which trajectories a full table removes.

        Raises:
          TypeError, ValueError: as `replay.insert`, and if a length or a weight is invalid.
        """
        length = table.check_batch(
            self._shapes, columns, length=length, weight=weight, version=version, removal=removal
        )
        batch, steps = next(iter(columns.values())).shape[:2]
        lengths, weights, versions = (np.broadcast_to(np.asarray(given), batch) for given in (length, weight, version))
        _check_lengths(lengths, steps)
        weights = _sound(weights)
        new = _on_host(columns)
        with self._locked(change=True):
            number = self._counts[_INSERTED] + np.arange(batch)
            row = number % self.capacity
            if removal == "lowest":
                row = np.argsort(np.where(self._number[:] == 0, -1.0, self._weight), kind="stable")[:batch]
            self._counts[_INSERTED] += batch
            self._set(row, new, lengths, weights, versions)
            self._number[row] = 1 + number  # counted from 1, because new files have zeros

    def write(
        self,
        row: Int[Array, " k"],
        columns: Mapping[str, Array],
        *,
        length: Int[Array, " k"] | Int[Array, ""] | int | None = None,
        weight: Float[Array, " k"] | Scalar | None = None,
        version: Int[Array, " k"] | Int[Array, ""] | int | None = None,
    ) -> None:
        """Writes over trajectories in place, whole or some of their columns; see `replay.write`.

        Args:
          row: `[k]` rows. If a row occurs twice, its last trajectory counts.
          columns: `[k, steps, ...]` of the columns to write.
          length: `[k]` or one for all, with all columns; None for the lengths that are there.
          weight: `[k]` or one for all; None for the weights that are there.
          version: `[k]` or one for all; None for the versions that are there.

        Raises:
          TypeError, ValueError: as `replay.write`, and if a length or a weight is invalid.
          IndexError: if a row holds no trajectory.
        """
        rows.check_write(self._shapes, row, columns, length=length, weight=weight, version=version)
        steps = next(iter(columns.values())).shape[1]
        places = np.asarray(row)
        # The first of each row in reverse order: the last one counts.
        last = len(places) - 1 - np.unique(places[::-1], return_index=True)[1]
        taken = places[last]
        new = {name: values[last] for name, values in _on_host(columns).items()}
        with self._locked(change=True):
            self._check_rows(places)
            given = (length, self._length), (weight, self._weight), (version, self._version)
            lengths, weights, versions = (
                there[taken] if one is None else np.broadcast_to(np.asarray(one), places.shape)[last]
                for one, there in given
            )
            _check_lengths(lengths, steps, least=0 if length is None else 1)
            weights = _sound(weights)
            self._set(taken, new, lengths, weights, versions)

    def _set(
        self, row: NDArray, columns: Mapping[str, NDArray], length: NDArray, weight: NDArray, version: NDArray
    ) -> None:
        """Writes rows, with the lock held."""
        # The length is 0 meanwhile, so that no half of a trajectory is learned from if this process is killed.
        self._length[row] = 0
        self._weight[row] = 0.0
        for name, new in columns.items():
            column = self._columns[name]
            for one, whole, values in zip(row.tolist(), length.tolist(), new, strict=True):
                column[one, :whole] = values[:whole]
                column[one, whole:] = 0
        self._version[row], self._weight[row], self._length[row] = version, weight, length

    def update_weights(self, index: Int[Array, " k"], weight: Float[Array, " k"]) -> None:
        """Replaces the weights of some trajectories; see `replay.update_weights`.

        Args:
          index: `[k]` rows, such as `Selection.row`. If a row occurs twice, its last weight counts.
          weight: `[k]`, from 0 to 1e30.

        Raises:
          TypeError, ValueError: as `replay.update_weights`, and if a weight is invalid.
          IndexError: if a row holds no trajectory.
        """
        checks.integers(index=index)
        checks.floats(weight=weight)
        checks.same_shape(index, "index", weight=weight)
        weights = _sound(np.asarray(weight))
        with self._locked(change=True):
            self._check_rows(np.asarray(index))
            self._weight[np.asarray(index)] = weights

    def reweigh(self, weight: Float[Array, " capacity"]) -> None:
        """Replaces the weights of all trajectories; empty rows keep weight 0. See `replay.reweigh`.

        Args:
          weight: `[capacity]`, from 0 to 1e30.

        Raises:
          TypeError, ValueError: as `replay.reweigh`, and if the weight of a trajectory is invalid.
        """
        checks.floats(weight=weight)
        checks.same_shape(self._length, "length", weight=weight)
        with self._locked(change=True):
            self._weight[: self.size] = _sound(np.asarray(weight)[: self.size])

    def select(self, key: jax.Array, count: int, *, by: By = "uniform", replace: bool = True) -> Selection:
        """Selects the trajectories of a batch on the device; see `replay.select`.

        After a change by any process the weights are copied to the device, `4 * capacity` bytes.

        Args:
          key: the key of the draws.
          count: number of trajectories in the batch.
          by: `"uniform"`, `"weight"` or `"top"`.
          replace: whether a trajectory may be drawn again.

        Raises:
          ValueError: as `replay.select`.
        """
        return selection.select(self._numbers(), key, count, by=by, replace=replace)

    def random_steps(self, selection: Selection, key: jax.Array) -> Int[jax.Array, " k"]:
        """Draws one step of each selected trajectory, uniformly; see `replay.random_steps`.

        Args:
          selection: the selected trajectories.
          key: the key of the draws.
        """
        return windows.random_steps(self._numbers(), selection, key)

    def gather(
        self, selection: Selection, windows_: Mapping[str, Window], *, step: Int[Array, " k"] | int = 0
    ) -> Gathered:
        """Gathers windows of the selected trajectories; see `replay.gather`.

        The host copies the windows' steps (of a return to go, the trajectories' steps) into one array, and this array
        to the device. A trajectory that was overwritten after the selection is gathered as it is now, with its own
        version.

        Args:
          selection: the selected trajectories.
          windows_: the windows, by their names in the batch.
          step: `[k]` or one for all: the step of each sample in its trajectory.

        Raises:
          TypeError, ValueError: as `replay.gather`.
        """
        windows.check_windows(self._shapes, selection, windows_, step)
        row = np.asarray(selection.row)
        steps = np.broadcast_to(np.asarray(step, np.int32), row.shape)
        # NumPy would take a negative row from the end, and raise for one beyond the table: neither is a trajectory.
        there = (int(selection.faults) == 0) & (row >= 0) & (row < len(self._length))
        row = np.where(there, row, 0)
        values, mask, spans = {}, {}, {}
        with self._locked(change=False):
            length = np.where(there, self._length[row], 0)
            version = np.where(there, self._version[row], 0)
            for name, window in windows_.items():
                source, mask[name] = windows.span(window, steps, length)
                column = self._columns[window.column]
                spans[name] = (source[:, None] + np.arange(window.length)).clip(0, column.shape[1] - 1)
                to_go = window.return_to_go is not None
                values[name] = column[row] if to_go else column[row[:, None], spans[name]]
        for name, window in windows_.items():
            found = jnp.asarray(values[name])
            if window.return_to_go is not None:
                sums = windows.return_to_go(found, length, discount=window.return_to_go)
                found = jnp.take_along_axis(sums, _like(spans[name], found), axis=1)
            kept = _like(mask[name], found)
            values[name] = jnp.where(kept, found, jnp.asarray(window.value, found.dtype))
        return Gathered(values, jax.tree.map(jnp.asarray, mask), jnp.asarray(length), jnp.asarray(version))

    def trajectory(self, row: int) -> Trajectory:
        """Returns a copy of one trajectory.

        Args:
          row: the trajectory's row.

        Raises:
          IndexError: if the table holds no trajectory in this row.
        """
        with self._locked(change=False):
            self._check_rows(np.array([row]))
            length = int(self._length[row])
            return Trajectory(
                {name: np.array(column[row, :length]) for name, column in self._columns.items()},
                float(self._weight[row]),
                int(self._version[row]),
                int(self._number[row]) - 1,
            )

    def _check_rows(self, row: NDArray) -> None:
        """Raises an IndexError unless all rows hold a trajectory."""
        if (wrong := row[(row < 0) | (row >= self.size)]).size:
            raise IndexError(f"row={wrong[0]}: the table holds {self.size} trajectories, in rows from 0")

    def _copied(self) -> Table:
        """Returns the table without columns on the device, with the lock held."""
        # NumPy copies: JAX may read an array after the lock is freed, or use it as it is.
        length, weight, version = (jnp.asarray(np.array(of)) for of in (self._length, self._weight, self._version))
        return self._shapes._replace(
            columns={},
            length=length,
            weights=weight_tree.build(weight),
            version=version,
            # Only whether a row holds a trajectory is read: numbers may exceed int32.
            number=jnp.asarray(np.minimum(self._number, 1) - 1, jnp.int32),
            inserted=jnp.asarray(self.size, jnp.int32),
            faults=jnp.zeros((), jnp.int32),
        )

    def _numbers(self) -> Table:
        """Returns the table without columns on the device, as it is now."""
        with self._locked(change=False):
            changes = int(self._counts[_CHANGES])
            if self._known is None or self._known[0] != changes:
                self._known = changes, self._copied()
            return self._known[1]

    @contextlib.contextmanager
    def _locked(self, *, change: bool) -> Iterator[None]:
        """Holds the table's lock: alone to change it, together with other readers to read it.

        The lock is a file that is opened anew each time, because threads, and processes after a fork, would share the
        lock of an open file. The system frees it if the process is killed.
        """
        import fcntl  # imported here because Windows lacks it

        descriptor = os.open(self.folder / _LOCK, os.O_RDWR)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if change else fcntl.LOCK_SH)
            if change:
                self._counts[_CHANGES] += 1
            yield
        finally:
            os.close(descriptor)


def _like(x: NDArray, array: jax.Array) -> jax.Array:
    """Returns `[k, n]` numbers with axes of size 1 at their end, as many as the array has in addition."""
    return jnp.asarray(x).reshape(*x.shape, *[1] * (array.ndim - 2))


def _on_host(columns: Mapping[str, Array]) -> dict[str, NDArray]:
    """Returns columns as NumPy arrays. Call it before taking the lock: it waits, and raises if a column was deleted."""
    return {name: np.asarray(column) for name, column in columns.items()}


def _check_lengths(length: NDArray, steps: int, least: int = 1) -> None:
    """Raises a ValueError unless all lengths are within the steps that were given."""
    if (wrong := length[(length < least) | (length > steps)]).size:
        raise ValueError(f"length has {wrong[0]}: expected from {least} to {steps}, the number of steps given")


def _sound(weight: NDArray) -> NDArray:
    """Returns weights in float32, too small ones as 0; raises a ValueError if one is invalid."""
    with np.errstate(over="ignore"):
        found = weight.astype(np.float32)  # because float16 cannot hold the limits
    if (wrong := weight[~((found >= 0) & (found <= table.LARGEST_WEIGHT))]).size:
        raise ValueError(f"weight has {wrong[0]}: expected a number from 0 to {table.LARGEST_WEIGHT:g}")
    return np.where(found >= table.LEAST_WEIGHT, found, np.float32(0))
