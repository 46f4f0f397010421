"""Readers of offline HDF5 datasets in the formats of Minari and D4RL.

Both formats become the same columns: `observation`, `action`, `reward`, `terminated`, `truncated`. A step is an
observation, the action chosen there, and its reward and flags.

Files from untrusted sources are safe to read: links to other files are refused, claimed sizes are checked before
memory is allocated, and a number that a table cannot hold raises an error that names it.

* Minari: one group per episode, `episode_0`, ..., with `observations` (one more than there are steps: the last has no
  action and is dropped), `actions`, `rewards`, `terminations` and `truncations`. Observations and actions may be
  groups: then each array inside becomes a column, such as `observation/achieved_goal`.
* D4RL: `observations`, `actions`, `rewards`, `terminals` and `timeouts` of all steps in sequence. A trajectory ends
  where either flag is true; the steps after the last end form one more trajectory.
"""

import math
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np
from jaxtyping import Int

from stellaris._core.extras import needs
from stellaris.replay import table as tables
from stellaris.replay.table import Table
from stellaris.types import NDArray

_EPISODE = re.compile(r"episode_([0-9]{1,18})")
#: Column names, by dataset names.
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
#: Trajectories per insertion.
_BATCH = 256
#: The most bytes of data per byte of file. gzip reaches 1,032. A dataset that was never written takes no space, so
#: without this limit a small file could claim data of any size.
_MOST_PACKED = 2000


class Dataset(NamedTuple):
    """Trajectories, padded with zeros to the longest."""

    columns: dict[str, NDArray]  #: `[batch, steps, ...]` each; `steps` is the length of the longest.
    length: Int[np.ndarray, " batch"]  #: length of each trajectory in steps.


def read(path: str | os.PathLike[str]) -> Dataset:
    """Reads a whole dataset into memory.

    Args:
      path: the path of an HDF5 file of Minari or D4RL.

    Returns:
      The trajectories, in the file's order and dtypes.

    Raises:
      ImportError: without h5py.
      ValueError: if the file has neither format or claims more data than a file of its size can hold, or if a dataset
        is missing, has a wrong shape or dtype, is kept in another file, or has flags other than 0 and 1. The message
        names the file, the dataset and the expected form.

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
    """Inserts all trajectories of a dataset in order; donates the table.

    Args:
      table: a table with some or all of the dataset's columns. Floats are rounded to the table's dtype; whole numbers
        are converted if the table's dtype holds them exactly, such as int64 actions in an int32 or int8 column.
      path: the path of an HDF5 file of Minari or D4RL.
      weight: the weight of each trajectory.
      version: the version of the policy that sampled the trajectories.

    Returns:
      The table. If its capacity is below the dataset's size, it holds the last trajectories.

    Raises:
      ImportError: without h5py.
      ValueError: as `read`, or if the table is sharded, has a column that the file lacks, or cannot hold a number or
        the longest trajectory; nothing is inserted then.

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
    if table.length.ndim != 1:
        raise ValueError("table is sharded: pass the columns and the length of `read(path)` to `replay.sharded.insert`")
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
    """The rows of a dataset that belong to one trajectory."""

    dataset: Any
    start: int
    steps: int
    is_flag: bool

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of one step's array."""
        return tuple(self.dataset.shape[1:])

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of one step's array; bool for flags, which some files store as whole numbers."""
        return np.dtype(bool) if self.is_flag else self.dataset.dtype


def _episodes(path: Path, file: Any) -> list[dict[str, _Part]]:
    """Finds each trajectory's parts by column. Raises, before it reads data, if the trajectories' columns differ."""
    numbers = {name: int(match[1]) for name in file if (match := _EPISODE.fullmatch(name))}
    if numbers:
        episodes = [_episode_of_minari(path, file, name) for name in sorted(numbers, key=lambda name: numbers[name])]
    elif "observations" in file:
        return _episodes_of_d4rl(path, file)
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
                    f"{path}: dataset {part.dataset.name!r} has {_shown(part)} per step: expected "
                    f"{_shown(first[name])}, as {first[name].dataset.name!r} has"
                )
    _check_size(path, [part.dataset for episode in episodes for part in episode.values()])
    return episodes


def _episode_of_minari(path: Path, file: Any, group: str) -> dict[str, _Part]:
    steps = _length(path, file, f"{group}/rewards")
    columns = {}
    for name, column in _MINARI.items():
        one_more = int(name == "observations")
        for within, dataset in _datasets(path, file, f"{group}/{name}"):
            _check_length(path, dataset, steps + one_more, f"{steps} rewards" + " and one more" * one_more)
            columns[column + within] = _Part(dataset, 0, steps, name in _FLAGS)
    return columns


def _episodes_of_d4rl(path: Path, file: Any) -> list[dict[str, _Part]]:
    steps = _length(path, file, "rewards")
    found = {}
    for name, column in _D4RL.items():
        for within, dataset in _datasets(path, file, name):
            _check_length(path, dataset, steps, f"{steps} rewards")
            found[column + within] = _Part(dataset, 0, steps, name in _FLAGS)
    _check_size(path, [part.dataset for part in found.values()])
    ends = _values(path, found["terminated"]) | _values(path, found["truncated"])
    ends[-1] = True
    stops = np.flatnonzero(ends) + 1
    starts = [0, *stops[:-1].tolist()]
    return [
        {name: part._replace(start=start, steps=stop - start) for name, part in found.items()}
        for start, stop in zip(starts, stops.tolist(), strict=True)
    ]


def _datasets(path: Path, file: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Yields a dataset, or all datasets in a group, each with its path inside the group."""
    h5py = _h5py()
    top = file
    for part in name.split("/"):
        top = _member(path, top, part)
    waiting, seen = [("", top)], set()
    while waiting:
        within, found = waiting.pop()
        if found is None:
            raise ValueError(f"{path}: dataset {name + within!r} is missing: expected one with a row for each step")
        shape = getattr(found, "shape", None)  # groups lack it
        if name.rpartition("/")[2] in _ONE_NUMBER and (shape is None or len(shape) != 1):
            raise ValueError(f"{path}: dataset {name!r} has shape {shape}: expected one number for each step")
        if isinstance(found, h5py.Group):
            if found in seen:
                raise ValueError(f"{path}: group {name + within!r} contains itself, or occurs twice: expected it once")
            seen.add(found)
            waiting += [(f"{within}/{one}", _member(path, found, one)) for one in reversed([*found])]
            continue
        if not shape:
            raise ValueError(f"{path}: dataset {name + within!r} is one value: expected a row for each step")
        if found.dtype.kind not in "biuf":
            raise ValueError(f"{path}: dataset {name + within!r} has dtype {found.dtype}: expected numbers")
        if found.external or found.is_virtual:
            raise ValueError(
                f"{path}: dataset {name + within!r} is kept in another file, which is not read: copy it into this one"
            )
        yield within, found


def _member(path: Path, group: Any, name: str) -> Any:
    """A member of a group, or None if it is missing. Refuses links to other files."""
    h5py = _h5py()
    if not isinstance(group, h5py.Group):
        return None
    found = None
    elsewhere = isinstance(group.get(name, getlink=True), h5py.ExternalLink)
    try:
        if not elsewhere and (found := group.get(name)) is not None:  # a soft link may point at an external link
            elsewhere = h5py.h5o.get_info(found.id).fileno != h5py.h5o.get_info(group.id).fileno
    except (RuntimeError, OSError, KeyError) as error:  # for example a cycle of links
        raise ValueError(
            f"{path}: {name!r} in {group.name!r} cannot be opened ({error}): the file is damaged"
        ) from error
    if elsewhere:
        raise ValueError(
            f"{path}: {name!r} in {group.name!r} is kept in another file, which is not read: copy it into this one"
        )
    return found


def _length(path: Path, file: Any, name: str) -> int:
    ((_, dataset),) = _datasets(path, file, name)
    if not len(dataset):
        raise ValueError(f"{path}: dataset {name!r} is empty: expected at least one step")
    return len(dataset)


def _check_size(path: Path, datasets: list[Any]) -> None:
    """Raises if a file claims more data than it can hold, because reading it would fill memory with zeros."""
    claimed = [math.prod(dataset.shape) * dataset.dtype.itemsize for dataset in datasets]
    size = path.stat().st_size
    if sum(claimed) > _MOST_PACKED * size:
        most = datasets[claimed.index(max(claimed))]
        raise ValueError(
            f"{path}: the file has {size:,} bytes, but its datasets claim {sum(claimed):,} bytes of data; the largest "
            f"dataset is {most.name!r} of shape {list(most.shape)}: expected at most {_MOST_PACKED:,} bytes of data "
            "per byte of file"
        )


def _check_length(path: Path, dataset: Any, rows: int, because: str) -> None:
    if len(dataset) != rows:
        raise ValueError(
            f"{path}: dataset {dataset.name!r} has {len(dataset)} rows: expected {rows}, as there are {because}"
        )


def _check_table(path: Path, episodes: list[dict[str, _Part]], table: Table) -> None:
    """Raises unless the table's columns can hold these episodes."""
    first = episodes[0]
    for name, column in table.columns.items():
        if name not in first:
            raise ValueError(f"{path}: the table's column {name!r} is missing; the file has {', '.join(first)}")
        part = first[name]
        if part.shape != column.shape[2:] or not _converts(part.dtype, column.dtype):
            raise ValueError(
                f"{path}: dataset {part.dataset.name!r} has {_shown(part)} per step: the table's column {name!r} "
                f"expects {column.dtype} {list(column.shape[2:])}"
            )
    longest = max(episodes, key=_steps)
    most = next(iter(table.columns.values())).shape[1]
    if _steps(longest) > most:
        one = next(iter(longest.values()))
        raise ValueError(
            f"{path}: the trajectory from row {one.start} of {one.dataset.name!r} has {one.steps} steps: the table "
            f"expects at most {most}"
        )


def _converts(dtype: Any, to: Any) -> bool:
    """Whether values of `dtype` may be converted to `to`, provided that each value fits."""
    narrows = jnp.issubdtype(dtype, jnp.integer) and jnp.issubdtype(to, jnp.integer)
    rounds = jnp.issubdtype(dtype, jnp.number) and jnp.issubdtype(to, jnp.floating)
    return bool(narrows or rounds or np.can_cast(dtype, to))


def _gathered(path: Path, episodes: list[dict[str, _Part]], dtypes: Mapping[str, Any]) -> Dataset:
    """Reads the columns that `dtypes` names, converts them to its dtypes and pads them to the longest trajectory."""
    length = np.array([_steps(episode) for episode in episodes], np.int32)
    columns = {}
    for name, dtype in dtypes.items():
        shape = (len(episodes), int(length.max()), *episodes[0][name].shape)
        try:
            columns[name] = np.zeros(shape, dtype)
        except (MemoryError, ValueError) as error:  # NumPy raises ValueError beyond the address space
            raise ValueError(
                f"{path}: its trajectories, padded to the longest, make column {name!r} {list(shape)}: too large for "
                "this machine's memory"
            ) from error
        dataset = None
        for row, episode in zip(columns[name], episodes, strict=True):
            part = episode[name]
            if part.dataset is not dataset:  # D4RL keeps all trajectories in one dataset: decompress it once
                dataset = part.dataset
                values = _values(path, part)
                if values.dtype != dtype and (lost := tables.unfit(values, dtype)).size:
                    raise ValueError(
                        f"{path}: dataset {dataset.name!r} has {lost[0]}: the table's column {name!r} expects numbers "
                        f"that {jnp.dtype(dtype)} can hold"
                    )
            row[: part.steps] = values[part.start : part.start + part.steps]
    return Dataset(columns, length)


def _values(path: Path, part: _Part) -> NDArray:
    """All values of a part's dataset; flags as bool."""
    try:
        values: NDArray = part.dataset[:]
    except OSError as error:
        raise ValueError(
            f"{path}: dataset {part.dataset.name!r} cannot be read ({error}): the file is damaged"
        ) from error
    if not part.is_flag:
        return values
    if (others := values[(values != 0) & (values != 1)]).size:
        raise ValueError(f"{path}: dataset {part.dataset.name!r} has {others[0]}: expected 0 or 1 for each step")
    return values.astype(bool)


def _steps(episode: dict[str, _Part]) -> int:
    return next(iter(episode.values())).steps


def _shown(part: _Part) -> str:
    return f"{part.dtype} {list(part.shape)}"


def _opened(path: Path) -> Any:
    """Opens an HDF5 file.

    Raises:
      ImportError: without h5py.
      FileNotFoundError: if it is missing.
      ValueError: if it is not HDF5, or is damaged.
    """
    h5py = _h5py()
    try:
        return h5py.File(path)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise ValueError(f"{path}: not an HDF5 file, or damaged ({error}); expected one of Minari or D4RL") from error


def _h5py() -> Any:
    """Imports h5py, or raises an ImportError that names the extra to install."""
    with needs("reading a dataset"):
        import h5py
    return h5py
