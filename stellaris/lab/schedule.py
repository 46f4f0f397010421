"""Schedules: arrays that say which version sampled which data, and which data and gradients made each version."""

import dataclasses
import hashlib
import os
import zipfile
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from stellaris._core import checks
from stellaris.runtime.files import atomic_path
from stellaris.types import NDArray

#: Marks a missing entry in a column of `Schedule`.
NONE = -1
#: Prefix of the name of a cost column; the name of the price sheet follows.
_COST = "cost_"
#: Errors of a damaged archive; the last is that of an unknown way of compression.
_DAMAGED = (EOFError, KeyError, OSError, TypeError, ValueError, zipfile.BadZipFile, zlib.error, NotImplementedError)


@dataclass(frozen=True, eq=False, repr=False)
class Schedule:
    """The order in which a system samples and learns, without the samples and the parameters.

    A schedule has four tables of int32 columns: `P` pieces of fragments, `B` batches, `G` gradients and `U` updates. A
    *piece* is the part of a fragment that an actor samples with one version: the whole fragment, unless the workload
    sets `refresh`. The column `*_before` of a table is the update before which a row happens; rows are in this order.
    Update `u` makes version `u + 1` of the policy; version 0 is the first parameters.

    An update either learns from a whole batch, one gradient after the other, as a central learner does, or applies
    queued gradients, as an aggregator decides. In the second case gradients enter the queue in the order of their rows.

    Attributes:
      slots: number of environments.
      piece_before: `[P]`: the update before which the piece is sampled.
      piece_slot: `[P]`: the environment.
      piece_version: `[P]`: the version that acts.
      piece_noise: `[P]`: the number that selects the noise of the actions.
      piece_start: `[P]`: the number that seeds a new start of the environment; `NONE` if the environment continues.
      batch_before: `[B]`: the update before which the batch is made.
      batch_pieces: `[B, n, k]`: for each of n fragments the rows of its k consecutive pieces.
      batch_target: `[B]`: the version with which the batch is prepared.
      batch_merged: `[B]`: the update whose version is the first to normalise by the batch's observations, or `NONE`.
      gradient_before: `[G]`: the update before which the gradient enters the queue.
      gradient_batch: `[G]`: the batch.
      gradient_row: `[G]`: the index of the minibatch in the batch.
      gradient_version: `[G]`: the version on which the gradient is computed.
      gradient_learner: `[G]`: the number of the learner.
      gradient_held: `[G, h]`: versions that other learners hold at the same time, for the global ratio cap.
      update_batch: `[U]`: the batch that is learned from as a whole, or `NONE` to apply queued gradients.
      update_round: `[U]`: the number of batches made so far; aggregators decay their thresholds by it.
      seconds: `[U + 1]` float64: when each version is published; NaN if the schedule has no clock.
      costs: for each price sheet `[U + 1]` float64: USD spent until each version is published.
    """

    slots: int
    piece_before: NDArray
    piece_slot: NDArray
    piece_version: NDArray
    piece_noise: NDArray
    piece_start: NDArray
    batch_before: NDArray
    batch_pieces: NDArray
    batch_target: NDArray
    batch_merged: NDArray
    gradient_before: NDArray
    gradient_batch: NDArray
    gradient_row: NDArray
    gradient_version: NDArray
    gradient_learner: NDArray
    gradient_held: NDArray
    update_batch: NDArray
    update_round: NDArray
    seconds: NDArray
    costs: Mapping[str, NDArray] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name, column in self.columns.items():
            kind = np.float64 if name == "seconds" or name.startswith(_COST) else np.int32
            if not isinstance(column, np.ndarray) or column.dtype != kind:
                raise TypeError(f"{name} has dtype {getattr(column, 'dtype', type(column))}: expected {kind.__name__}")
        self._check_sizes()
        self._check_order()

    @property
    def columns(self) -> dict[str, NDArray]:
        """All columns by name; the costs under price sheet NAME are the column `cost_NAME`, in the order of names."""
        costs = {f"{_COST}{sheet}": cost for sheet, cost in sorted(self.costs.items())}
        return {name: getattr(self, name) for name in _columns()} | costs

    @property
    def updates(self) -> int:
        """The number of updates, U. The number of versions is U + 1."""
        return len(self.update_batch)

    @property
    def lookback(self) -> int:
        """The largest age, in versions, of a version that acts, prepares a batch, computes a gradient or is held."""
        batch_before = self.batch_before - self.batch_target
        ages = (self.piece_before - self.piece_version, batch_before, self.gradient_before - self.gradient_version)
        held = self.gradient_before[:, None] - self.gradient_held
        return max(int(age.max(initial=0)) for age in (*ages, held))

    @property
    def data_lag(self) -> NDArray:
        """The mean age of each batch's pieces, `[B]`, in versions, when the batch is first learned from."""
        first = np.full(len(self.batch_before), self.updates, np.int64)
        np.minimum.at(first, self.gradient_batch, self.gradient_version)
        whole = np.flatnonzero(self.update_batch != NONE)
        np.minimum.at(first, self.update_batch[whole], whole)
        lag: NDArray = first - self.piece_version[self.batch_pieces].mean(axis=(1, 2))
        return lag

    @property
    def gradient_lag(self) -> NDArray:
        """The staleness of each queued gradient, `[G]`, in versions, when the gradient enters the queue."""
        return self.gradient_before - self.gradient_version

    def first(self, updates: int) -> "Schedule":
        """Returns the schedule of the first `updates` updates.

        Raises:
          TypeError: if `updates` is not a whole number.
          ValueError: if `updates` is below 1 or above the schedule's number of updates.
        """
        checks.whole(at_least=1, updates=updates)
        if updates > self.updates:
            raise ValueError(f"updates={updates}: the schedule has only {self.updates} updates")
        until = {
            f"{table}_": int(np.searchsorted(self.columns[f"{table}_before"], updates))
            for table in ("piece", "batch", "gradient")
        } | {"update_": updates, "seconds": updates + 1, _COST: updates + 1}
        columns = {
            name: column[: next(end for prefix, end in until.items() if name.startswith(prefix))]
            for name, column in self.columns.items()
        }
        columns["batch_merged"] = np.where(columns["batch_merged"] < updates, columns["batch_merged"], NONE)
        return Schedule(self.slots, **_with_costs(columns))

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Schedule):
            return NotImplemented
        mine, theirs = self.columns, other.columns
        return (
            self.slots == other.slots
            and mine.keys() == theirs.keys()
            and all(np.array_equal(mine[name], theirs[name], equal_nan=name == "seconds") for name in mine)
        )

    def __hash__(self) -> int:
        return int(self.digest, 16)

    def __repr__(self) -> str:
        return (
            f"Schedule({self.updates} updates, {len(self.gradient_before)} gradients, {len(self.batch_before)} "
            f"batches, {len(self.piece_before)} pieces, digest={self.digest!r})"
        )

    @property
    def digest(self) -> str:
        """16 hexadecimal digits that equal schedules share."""
        content = hashlib.sha256(str(self.slots).encode())
        for name, column in self.columns.items():
            content.update(f"{name}{column.shape}".encode())
            content.update(np.ascontiguousarray(column).tobytes())
        return content.hexdigest()[:16]

    def save(self, path: str | os.PathLike[str]) -> None:
        """Writes the schedule to an `.npz` file, atomically."""
        with atomic_path(path) as draft, open(draft, "wb") as file:
            np.savez_compressed(file, allow_pickle=False, slots=np.int32(self.slots), **self.columns)

    @staticmethod
    def load(path: str | os.PathLike[str]) -> "Schedule":
        """Reads a file that `save` wrote, without running any code in it.

        Raises:
          ValueError: if the file does not hold a schedule.
        """
        names = ("slots", *_columns())
        try:
            found = arrays_of(path)
            costs = [name for name in found if name.startswith(_COST)]
            content: dict[str, Any] = {name: found[name] for name in (*names, *costs)}
            return Schedule(**_with_costs(content | {"slots": int(content["slots"])}))
        except (KeyError, TypeError, ValueError) as error:
            raise ValueError(f"{os.fspath(path)} is not a schedule: {error}") from error

    def _check_sizes(self) -> None:
        for table in ("piece", "batch", "gradient", "update"):
            lengths = {name: len(column) for name, column in self.columns.items() if name.startswith(f"{table}_")}
            if len(set(lengths.values())) > 1:
                raise ValueError(f"columns of one table differ in length: {lengths}")
        for name, column in self.columns.items():
            if (name == "seconds" or name.startswith(_COST)) and len(column) != self.updates + 1:
                raise ValueError(f"{name} has {len(column)} rows: expected {self.updates + 1}, one per version")
        if self.batch_pieces.ndim != 3 or self.gradient_held.ndim != 2:
            raise ValueError(
                f"batch_pieces and gradient_held have {self.batch_pieces.ndim} and {self.gradient_held.ndim} axes: "
                "expected 3 and 2"
            )

    def _check_order(self) -> None:
        """Raises a ValueError if a row refers to a row or a version that does not exist yet."""
        for name, limit in (
            ("piece_slot", self.slots),
            ("batch_pieces", len(self.piece_before)),
            ("gradient_batch", len(self.batch_before)),
            ("gradient_row", np.iinfo(np.int32).max),
        ):
            column = getattr(self, name)
            if column.size and not 0 <= column.min() <= column.max() < limit:
                raise ValueError(f"{name} has values from {column.min()} to {column.max()}: expected [0, {limit})")
        for table in ("piece", "batch", "gradient"):
            before = getattr(self, f"{table}_before")
            if (np.diff(before) < 0).any():
                raise ValueError(f"{table}_before decreases: rows must be in order")
        for before, used, name in (
            (self.piece_before, self.piece_version, "piece_version"),
            (self.batch_before, self.batch_target, "batch_target"),
            (self.gradient_before, self.gradient_version, "gradient_version"),
            (self.batch_before[:, None, None], self.piece_before[self.batch_pieces], "batch_pieces"),
            (self.gradient_before, self.batch_before[self.gradient_batch], "gradient_batch"),
            (self.gradient_before[:, None], self.gradient_held, "gradient_held"),
        ):
            if (used > before).any() or (used < 0).any():
                raise ValueError(f"{name} refers to a row or a version that does not exist yet")
        whole = np.flatnonzero(self.update_batch != NONE)
        learned = self.update_batch[whole]
        if (
            not ((learned >= 0) & (learned < len(self.batch_before))).all()
            or (self.batch_before[learned] > whole).any()
        ):
            raise ValueError("update_batch refers to a batch that does not exist yet")


def arrays_of(path: str | os.PathLike[str]) -> dict[str, NDArray]:
    """Returns all arrays of an `.npz` file by name, without running any code in it.

    Raises:
      FileNotFoundError: if the file is missing.
      ValueError: if it is damaged, or of another kind.
    """
    try:
        # NumPy would leave a damaged file open that it opened itself.
        with open(path, "rb") as source, np.load(source, allow_pickle=False) as file:
            return dict(file)
    except FileNotFoundError:
        raise
    except _DAMAGED as error:
        raise ValueError(str(error)) from error


def _columns() -> list[str]:
    """The names of the fields that are columns."""
    return [one.name for one in dataclasses.fields(Schedule) if one.name not in ("slots", "costs")]


def _with_costs(content: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the fields of a schedule: cost columns are gathered into `costs`."""
    costs = {name.removeprefix(_COST): column for name, column in content.items() if name.startswith(_COST)}
    return {name: column for name, column in content.items() if not name.startswith(_COST)} | {"costs": costs}
