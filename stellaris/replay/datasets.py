"""Offline datasets in HDF5, as Minari and D4RL write them, as trajectories of columns.

Both become the same columns: `observation`, `action`, `reward`, `terminated`, `truncated`. A step is an observation,
the action that was chosen there, and what came of it.

* Minari: a group for each episode, `episode_0`, ..., with `observations` (one more than steps: the last, at which no
  action was chosen, is left out), `actions`, `rewards`, `terminations` and `truncations`. Observations and actions may
  be groups themselves: then each array within is a column, such as `observation/achieved_goal`.
* D4RL: `observations`, `actions`, `rewards`, `terminals` and `timeouts`, of all steps one after the other. A trajectory
  ends where either of the last two is true; steps behind the last end are a trajectory as well.
"""

import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from stellaris.extras import needs
from stellaris.replay import table as tables
from stellaris.replay.table import Table
from stellaris.types import NDArray

_EPISODE = re.compile(r"episode_(\d+)")
#: Names of the columns by those of their datasets.
_MINARI = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "terminations": "terminated",
    "truncations": "truncated",
}
_D4RL = {
    "observations": "observation",
    "actions": "action",
    "rewards": "reward",
    "terminals": "terminated",
    "timeouts": "truncated",
}
_FLAGS = ("terminations", "truncations", "terminals", "timeouts")
_ONE_NUMBER = ("rewards", *_FLAGS)
#: Trajectories that are inserted at once.
_BATCH = 256


class Dataset(NamedTuple):
    """Trajectories, of one length each by zeros behind their ends."""

    columns: dict[str, NDArray]  #: `[batch, steps, ...]` each; `steps` are those of the longest.
    length: Int[np.ndarray, " batch"]  #: of each trajectory, in steps.


def read(path: str | os.PathLike[str]) -> Dataset:
    """Reads a whole dataset into memory.

    Args:
      path: of an HDF5 file of Minari or D4RL.

    Returns:
      Its trajectories, in the file's order, in the file's dtypes.

    Raises:
      ImportError: without h5py.
      ValueError: if the file is of neither kind, or a dataset in it is missing or does not fit: names file, dataset and
        what was expected.

    Source:
      Minari (Younis et al. 2024); D4RL (Fu et al. 2020).

    Example:
      >>> import h5py, numpy as np, tempfile
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with h5py.File(folder + "/hopper.hdf5", "w") as file:
      ...         file["observations"], file["actions"] = np.zeros((3, 11)), np.zeros((3, 3))
      ...         file["rewards"], file["terminals"], file["timeouts"] = np.ones(3), [0, 1, 0], [0, 0, 0]
      ...     dataset = read(folder + "/hopper.hdf5")
      >>> dataset.columns["observation"].shape, dataset.length.tolist(), dataset.columns["reward"].tolist()
      ((2, 2, 11), [2, 1], [[1.0, 1.0], [1.0, 0.0]])
    """
    path = Path(path)
    with _opened(path) as file:
        episodes = _episodes(path, file)
        return _gathered(path, episodes, {name: part.dtype for name, part in episodes[0].items()})


def insert(table: Table, path: str | os.PathLike[str], *, weight: float = 1.0, version: int = 0) -> Table:
    """The table with all trajectories of a dataset more, one after the other. The one that is given is donated.

    Args:
      table: whose columns are some of the dataset's, or all; float64 becomes the table's float32.
      path: of an HDF5 file of Minari or D4RL.
      weight: of each trajectory.
      version: of the policy that has sampled them.

    Returns:
      The table. If it holds less than the dataset, the last trajectories are in it.

    Raises:
      ImportError: without h5py.
      ValueError: if the file is of neither kind, or a dataset in it is missing or does not fit: names file, dataset and
        what was expected.

    Source:
      Minari (Younis et al. 2024); D4RL (Fu et al. 2020).

    Example:
      >>> import h5py, jax, jax.numpy as jnp, numpy as np, tempfile
      >>> from stellaris.replay import init
      >>> table = init({"reward": jax.ShapeDtypeStruct((), jnp.float32)}, capacity=2, length=4)
      >>> with tempfile.TemporaryDirectory() as folder:
      ...     with h5py.File(folder + "/hopper.hdf5", "w") as file:
      ...         file["observations"], file["actions"] = np.zeros((3, 11)), np.zeros((3, 3))
      ...         file["rewards"], file["terminals"], file["timeouts"] = np.ones(3), [0, 1, 0], [0, 0, 0]
      ...     table = insert(table, folder + "/hopper.hdf5")
      >>> table.columns["reward"].tolist(), table.length.tolist()
      ([[1.0, 1.0, 0.0, 0.0], [1.0, 0.0, 0.0, 0.0]], [2, 1])
    """
    path = Path(path)
    with _opened(path) as file:
        episodes = _episodes(path, file)
        _check_table(path, episodes, table)
        columns, length = _gathered(path, episodes, {name: column.dtype for name, column in table.columns.items()})
    batch = min(table.capacity, _BATCH)
    for i in range(0, len(length), batch):
        part = {name: column[i : i + batch] for name, column in columns.items()}
        table = tables.insert(table, part, length=length[i : i + batch], weight=weight, version=version)
    return table


class _Part(NamedTuple):
    """What a dataset of the file has of one trajectory."""

    dataset: Any
    start: int
    steps: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of a step."""
        return tuple(self.dataset.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """Flags are kept as whole numbers by some."""
        is_flag = self.dataset.name.rpartition("/")[2] in _FLAGS
        return np.dtype(bool) if is_flag else self.dataset.dtype


def _episodes(path: Path, file: Any) -> list[dict[str, _Part]]:
    """Where each trajectory's columns are: looked at before any is read, and all alike."""
    numbers = sorted(int(match[1]) for name in file if (match := _EPISODE.fullmatch(name)))
    if numbers:
        episodes = [_episode_of_minari(path, file, f"episode_{number}") for number in numbers]
    elif "observations" in file:
        episodes = _episodes_of_d4rl(path, file)
    else:
        raise ValueError(
            f"{path}: has {', '.join(file) or 'nothing'}; expected groups episode_0, ... as Minari writes them, or "
            f"datasets {', '.join(_D4RL)} as D4RL does"
        )
    first = episodes[0]
    for episode in episodes:
        for name, part in (first | episode).items():
            if name not in episode or name not in first:
                raise ValueError(f"{path}: dataset {part.dataset.name!r} is not in every episode: expected it in all")
            if (part.shape, part.dtype) != (first[name].shape, first[name].dtype):
                raise ValueError(
                    f"{path}: dataset {part.dataset.name!r} has {_shown(part)} a step: expected {_shown(first[name])}, "
                    f"as {first[name].dataset.name!r} has"
                )
    return episodes


def _episode_of_minari(path: Path, file: Any, group: str) -> dict[str, _Part]:
    steps = _length(path, file, f"{group}/rewards")
    columns = {}
    for name, column in _MINARI.items():
        one_more = int(name == "observations")
        for within, dataset in _datasets(path, file, f"{group}/{name}"):
            _check_length(path, dataset, steps + one_more, f"{steps} rewards" + " and one more" * one_more)
            columns[column + within] = _Part(dataset, 0, steps)
    return columns


def _episodes_of_d4rl(path: Path, file: Any) -> list[dict[str, _Part]]:
    steps = _length(path, file, "rewards")
    found = {}
    for name, column in _D4RL.items():
        for within, dataset in _datasets(path, file, name):
            _check_length(path, dataset, steps, f"{steps} rewards")
            found[column + within] = dataset
    ends = np.zeros(steps, bool)
    for column in ("terminated", "truncated"):
        ends |= _values(path, found[column]).astype(bool)
    ends[-1] = True
    stops = np.flatnonzero(ends) + 1
    starts = [0, *stops[:-1].tolist()]
    return [
        {name: _Part(dataset, start, stop - start) for name, dataset in found.items()}
        for start, stop in zip(starts, stops.tolist(), strict=True)
    ]


def _datasets(path: Path, file: Any, name: str) -> Iterator[tuple[str, Any]]:
    """A dataset, or those of a group, each with its name within."""
    found = file.get(name)
    if found is None:
        raise ValueError(f"{path}: dataset {name!r} is missing: expected one with a row for each step")
    shape = getattr(found, "shape", None)  # a group has none
    if name.rpartition("/")[2] in _ONE_NUMBER and (shape is None or len(shape) != 1):
        raise ValueError(f"{path}: dataset {name!r} has shape {shape}: expected one number for each step")
    if shape == ():
        raise ValueError(f"{path}: dataset {name!r} is one value: expected a row for each step")
    if shape is not None:
        if found.dtype.kind not in "biuf":
            raise ValueError(f"{path}: dataset {name!r} has dtype {found.dtype}: expected numbers")
        yield "", found
        return
    for within in found:
        for deeper, dataset in _datasets(path, file, f"{name}/{within}"):
            yield f"/{within}{deeper}", dataset


def _length(path: Path, file: Any, name: str) -> int:
    ((_, dataset),) = _datasets(path, file, name)
    if not len(dataset):
        raise ValueError(f"{path}: dataset {name!r} is empty: expected at least one step")
    return len(dataset)


def _check_length(path: Path, dataset: Any, rows: int, because: str) -> None:
    if len(dataset) != rows:
        raise ValueError(
            f"{path}: dataset {dataset.name!r} has {len(dataset)} rows: expected {rows}, as there are {because}"
        )


def _check_table(path: Path, episodes: list[dict[str, _Part]], table: Table) -> None:
    """Raises unless a table can have these."""
    first = episodes[0]
    for name, column in table.columns.items():
        if name not in first:
            raise ValueError(f"{path}: nothing there is the table's column {name!r}; there are {', '.join(first)}")
        part = first[name]
        shrinks = jnp.issubdtype(part.dtype, jnp.floating) and jnp.issubdtype(column.dtype, jnp.floating)
        if part.shape != column.shape[2:] or not (shrinks or np.can_cast(part.dtype, column.dtype)):
            raise ValueError(
                f"{path}: dataset {part.dataset.name!r} has {_shown(part)} a step: the table's column {name!r} expects "
                f"{column.dtype} {list(column.shape[2:])}"
            )
    longest = max(episodes, key=_steps)
    most = next(iter(table.columns.values())).shape[1]
    if _steps(longest) > most:
        one = next(iter(longest.values()))
        raise ValueError(
            f"{path}: the trajectory from row {one.start} of {one.dataset.name!r} has {one.steps} steps: the table "
            f"expects at most {most}"
        )


def _gathered(path: Path, episodes: list[dict[str, _Part]], dtypes: Mapping[str, Any]) -> Dataset:
    """Reads columns, in these dtypes."""
    length = np.array([_steps(episode) for episode in episodes], np.int32)
    columns = {}
    for name, dtype in dtypes.items():
        columns[name] = np.zeros((len(episodes), length.max(), *episodes[0][name].shape), dtype)
        dataset = None
        for row, episode in zip(columns[name], episodes, strict=True):
            part = episode[name]
            if part.dataset is not dataset:  # read once, even if all trajectories are in it: it may be compressed
                dataset = part.dataset
                values = _values(path, dataset)
            row[: part.steps] = values[part.start : part.start + part.steps]
    return Dataset(columns, length)


def _values(path: Path, dataset: Any) -> NDArray:
    try:
        values: NDArray = dataset[:]
    except OSError as error:
        raise ValueError(f"{path}: dataset {dataset.name!r} cannot be read ({error}): the file is damaged") from error
    return values


def _steps(episode: dict[str, _Part]) -> int:
    return next(iter(episode.values())).steps


def _shown(part: _Part) -> str:
    return f"{part.dtype} {list(part.shape)}"


def _opened(path: Path) -> Any:
    """The file.

    Raises:
      ImportError: without h5py.
      FileNotFoundError: if there is none.
      ValueError: if it is of another kind.
    """
    with needs("reading a dataset"):
        import h5py
    try:
        return h5py.File(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: no HDF5 file, or damaged ({error}); expected one of Minari or D4RL") from error
