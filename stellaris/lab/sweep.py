"""Sweeps: every combination of settings and seeds, many runs at a time, as labelled arrays."""

import functools
import hashlib
import json
import numbers
import os
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from stellaris._core import checks
from stellaris._core.describe import describe, digest
from stellaris._core.extras import needs
from stellaris.aggregation.protocol import Aggregator
from stellaris.algorithms import Algorithm
from stellaris.lab import threads
from stellaris.lab.blocks import Call, Programs
from stellaris.lab.runs import Axes, Run, Schedules, check_names, grouped, runs_of
from stellaris.lab.schedule import arrays_of
from stellaris.runtime.files import atomic_path
from stellaris.systems.workload import Evaluation, Workload
from stellaris.types import NDArray

if TYPE_CHECKING:
    import xarray as xr


class Progress(NamedTuple):
    """The progress of a sweep, passed to `on_progress` before every block and when the last blocks have ended."""

    done: int  #: number of runs that are done.
    total: int  #: number of runs of the sweep.
    seconds_left: float  #: estimated from the blocks so far; NaN before the first.
    block: int  #: number of runs in the next block; 0 after the last.
    nbytes: int  #: bytes of memory that the next block takes; 0 if its results are read.


def sweep(
    workload: Workload,
    algorithm: Algorithm | Mapping[str, Algorithm],
    schedule: Schedules,
    axes: Axes | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    aggregator: Aggregator | None = None,
    rho: float = 1.0,
    evaluation: Evaluation | None = None,
    block: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> "xr.Dataset":
    """Runs every combination of the axes with every seed, many runs at a time in one compiled program.

    Runs are grouped into blocks. The runs of a block differ only in float settings, in seeds, and in the versions of
    their schedules. They are vectorised, and distributed over all devices. Other settings, such as `algorithm.epochs`,
    change shapes, so each of their values has separate blocks. On a CPU every core computes a block. Compiled programs
    are kept for later sweeps of the process, until the code of a class or a function that they use changes.

    Args:
      workload: the environment, which must be written in JAX, such as `lab.CartPole()`; the policy; and the settings of
        sampling.
      algorithm: the algorithm that learns, or several by name, which become an axis `algorithm`.
      schedule: the schedule of all runs, or a function that makes a schedule from the axes that are not settings, such
        as `lambda lag: imposed(...)`. An argument `seed` of this function gets the seed of each run, so that drawn lags
        differ between runs: `lambda lag, seed: imposed(..., data=Maximum(lag, seed))`.
      axes: lists of values by name. The names are `"algorithm.learning_rate"` and other fields of the algorithm,
        `"aggregator.decay"` and other fields of the aggregator, `"rho"`, and arguments of `schedule`. Settings that
        vary together make one axis: `{"case": {"slow": {"lag": 8, "algorithm.learning_rate": 1e-3}, ...}}`.
      seeds: the number of seeds, or the seeds themselves. A run's parameters, actions, shuffles and environments
        follow from its seed as in `train`.
      aggregator: applies the gradients, if the schedule queues them; None if it learns from whole batches.
      rho: truncation level of the global ratio cap over the policies that all learners hold; `math.inf` for no cap.
      evaluation: evaluates versions of the policy by whole episodes in separate environments, with the seeds of
        `train`; `every` counts updates. None for none: `episode_return` scores the policies that sampled, which with an
        imposed lag are older than the policies that learn.
      block: the largest number of runs of a block; by default 8 on each CPU device, because the data of more runs
        exceeds the cache, and 256 on each device of another kind.
      directory: a folder that keeps the results of every block, so that an interrupted sweep continues where it
        stopped. A block is computed anew if its settings have changed, or the code of the library, of a class of yours,
        or of a function that the class uses of its own module.
      on_progress: called before every block, and after each of the last blocks, which are computed at once.

    Returns:
      An `xarray.Dataset` with the dimensions of the axes, `seed` and `update`. Its variables are `episode_return`
      (mean over the episodes that ended since the previous version), `episodes`, `steps`, the loss's metrics (such as
      `data_lag_mean`, the age of the data), `staleness_mean` and `staleness_max` of the gradients that an aggregator
      applied, `step_norm` (the distance between the version and the one before), and with an evaluation the mean
      `evaluation_return` of the version's evaluation (NaN of versions that were not evaluated).
      The coordinate `updates` is the number of each run's updates, after which its variables are NaN or 0. The
      coordinate `seconds` says when each version was published, if the schedule has a clock, and `cost_NAME` the USD
      spent until then, if the schedule was billed under a price sheet of that name.

    Raises:
      ModuleNotFoundError: if xarray is not installed; the error names the extra that installs it.
      TypeError: if the workload's environment is not written in JAX, its policy has a memory, or another argument has
        the wrong type.
      ValueError: if an axis is empty or unknown, or has the name of a part of the result, a setting is out of range, or
        the schedule does not fit the settings.

    Example:
      >>> from stellaris import PPO, ActorCritic, Workload
      >>> from stellaris.lab import CartPole, Constant, imposed, sweep
      >>> workload = Workload(CartPole(), ActorCritic(hidden=(8,)), actors=2, fragment=16)
      >>> result = sweep(
      ...     workload,
      ...     PPO(epochs=1),
      ...     lambda lag: imposed(3, actors=2, data=Constant(lag)),
      ...     {"lag": [0, 1], "algorithm.learning_rate": [1e-3, 3e-3]},
      ...     seeds=2,
      ... )
      >>> dict(result.sizes)
      {'lag': 2, 'algorithm.learning_rate': 2, 'seed': 2, 'update': 3}
      >>> result.data_lag_mean.sel(lag=1).isel({"algorithm.learning_rate": 0, "seed": 0}).values.tolist()
      [0.0, 1.0, 1.0]
    """
    with needs("lab.sweep"):
        import xarray  # noqa: F401 - so that a missing xarray raises before the runs and not after
    if not isinstance(axes, Mapping | None):
        raise TypeError(f"axes={axes!r} is not a mapping: pass lists of values by name, {{'lag': [0, 4]}}")
    if not callable(on_progress) and on_progress is not None:
        raise TypeError(f"on_progress={on_progress!r} is not a function: pass one that accepts a Progress, or None")
    axes = dict(axes or {})
    runs, dimensions = runs_of(workload, algorithm, schedule, axes, seeds, aggregator, rho, evaluation)
    block = _default_block() if block is None else block
    checks.whole(at_least=1, block=block)
    folder = None if directory is None else Path(directory)
    if folder is not None:
        folder.mkdir(parents=True, exist_ok=True)  # so that a folder that cannot be made raises before the runs
    programs, outcomes = Programs(), _Outcomes(len(runs), aggregator, on_progress)
    with threads.Running[_Block, dict[str, NDArray]](threads.count(len(jax.devices()))) as running:
        for members, size in grouped(runs, block):
            path = None if folder is None else folder / f"block-{_name(workload, members, rho)}.npz"
            # An equal block that is being computed is waited for, and then read.
            while running and (running.ready or running.full or outcomes.computing(path)):
                outcomes.end(*running.next())
            columns = None if path is None else _read(path)
            if columns is not None:
                check_names(axes, columns)
                outcomes.report(len(members), 0)
                outcomes.add(members, columns)
                continue
            call = programs.prepare(members, rho, size)
            check_names(axes, call.names)
            begun = _Block(members, path)
            outcomes.begin(begun, call.nbytes)
            running.start(begun, functools.partial(_computed, call, path))
        while running:
            outcomes.end(*running.next())
            if running:
                outcomes.report(0, 0)
    outcomes.report(0, 0)
    given = {"workload": workload, "algorithm": algorithm, "aggregator": aggregator, "rho": rho}
    settings = describe(given | {"evaluation": evaluation})
    return _dataset(outcomes.of, dimensions, runs, {"settings": json.dumps(settings), "stellaris": _version()})


def mean_return(result: "xr.Dataset", last: int) -> "xr.DataArray":
    """The mean return of all episodes that ended during the last updates of each run; NaN if none ended.

    They were played by the policies that sampled. With an imposed lag these are older than the policies of these
    updates, whose returns `mean_evaluation` averages.

    Args:
      result: the result of `sweep`.
      last: the number of updates to average over, at least 1; all updates of a run that has fewer.
    """
    tail = _last(result[["episode_return", "episodes"]], last)
    total = (tail.episode_return * tail.episodes).sum("update")
    mean: xr.DataArray = total / tail.episodes.sum("update")
    return mean


def mean_evaluation(result: "xr.Dataset", last: int) -> "xr.DataArray":
    """The mean return of the policies that were evaluated during the last updates of each run; NaN if none was.

    Args:
      result: the result of `sweep` with an `evaluation`.
      last: the number of updates to average over, at least 1; all updates of a run that has fewer.

    Raises:
      ValueError: if the sweep ran without an evaluation.

    Example:
      >>> import xarray as xr
      >>> evaluated = ("seed", "update"), [[float("nan"), 8.0, float("nan"), 10.0]]
      >>> result = xr.Dataset({"evaluation_return": evaluated}, {"update": [1, 2, 3, 4], "updates": ("seed", [4])})
      >>> mean_evaluation(result, last=3).values.tolist(), mean_evaluation(result, last=2).values.tolist()
      ([9.0], [10.0])
    """
    if "evaluation_return" not in result:
        raise ValueError("evaluation_return is missing from the result: pass evaluation=Evaluation(every=...) to sweep")
    mean: xr.DataArray = _last(result[["evaluation_return"]], last).evaluation_return.mean("update")
    return mean


def _last(result: "xr.Dataset", last: int) -> "xr.Dataset":
    """Returns the last updates of each run; NaN where a run has fewer."""
    import xarray as xr

    checks.whole(at_least=1, last=last)
    # A run with fewer updates than others ends before the end of the arrays, and a part of a result may begin later.
    own = (result["update"] <= result["updates"]).sum("update")
    places = own - last + xr.DataArray(np.arange(last), dims="update")
    tail: xr.Dataset = result.isel(update=places.clip(min=0)).where(places >= 0)
    return tail


class _Block(NamedTuple):
    """A block that is being computed."""

    members: Sequence[Run]
    path: Path | None  #: the file of its results.


class _Outcomes:
    """The results of the runs of a sweep, with its progress."""

    def __init__(self, total: int, aggregator: Aggregator | None, on_progress: Callable[[Progress], None] | None):
        self.of: dict[tuple[int, ...], dict[str, NDArray]] = {}
        self._total, self._aggregator, self._on_progress = total, aggregator, on_progress
        self._began, self._computed = time.monotonic(), 0
        self._begun: list[_Block] = []

    def computing(self, path: Path | None) -> bool:
        """Returns whether a block with this file is being computed."""
        return path is not None and path in [block.path for block in self._begun]

    def report(self, runs: int, nbytes: int) -> None:
        """Reports the progress before the next block, of so many runs and bytes."""
        if self._on_progress is None:
            return
        # On average, half of a block that is being computed is done.
        missing, half = self._total - len(self.of), sum(len(block.members) for block in self._begun) / 2
        left = float("nan")
        if self._computed:
            left = (time.monotonic() - self._began) / (self._computed + half) * (missing - half)
        self._on_progress(Progress(len(self.of), self._total, left, runs, nbytes))

    def begin(self, block: _Block, nbytes: int) -> None:
        """Reports the progress before a block, and notes that it is computed."""
        self.report(len(block.members), nbytes)
        self._begun.append(block)

    def end(self, block: _Block, columns: dict[str, NDArray]) -> None:
        """Adds the results of a block that was computed."""
        self._begun = [other for other in self._begun if other is not block]
        self._computed += len(block.members)
        self.add(block.members, columns)

    def add(self, members: Sequence[Run], columns: dict[str, NDArray]) -> None:
        """Adds the results of runs."""
        if np.any(columns.pop("overflow", 0)):
            raise ValueError(
                f"aggregator={self._aggregator!r}: its queue was full and lost gradients, because this aggregator "
                "applies them later than the aggregator of the schedule's run did; raise the aggregator's capacity"
            )
        for i, run in enumerate(members):
            self.of[run.place] = {name: column[i] for name, column in columns.items()}


def _computed(call: Call, path: Path | None) -> dict[str, NDArray]:
    """Computes a block, and writes its results to a file if there is a path."""
    columns = call()
    if path is not None:
        with atomic_path(path) as draft, open(draft, "wb") as out:
            np.savez(out, allow_pickle=False, **columns)
    return columns


def _default_block() -> int:
    devices = jax.devices()
    return len(devices) * (8 if devices[0].platform == "cpu" else 256)


def _name(workload: Workload, members: Sequence[Run], rho: float) -> str:
    """Returns a name for the results of a block, which changes if the settings or the code change."""
    runs = [(run.seed, dict(run.numbers), run.schedule.digest) for run in members]
    static = members[0].static
    wide = jnp.result_type(float) == jnp.float64  # as `jax_enable_x64` says
    # The policy is named as well as the workload, which names a function that makes the policy, but not its code.
    parts = [workload, static.policy, static.algorithm, static.aggregator, rho, runs, wide, static.code(), _library()]
    return digest([*parts, static.evaluation])


def _read(path: Path) -> dict[str, NDArray] | None:
    """Returns the results of a block, or None if the file is missing, or was cut off by a crash of the machine."""
    try:
        return arrays_of(path)
    except (FileNotFoundError, ValueError):
        return None


@functools.cache
def _library() -> str:
    """A digest of the library's source files."""
    root = Path(__file__).parent.parent
    content = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        content.update(f"{path.relative_to(root)}\0".encode() + path.read_bytes())
    return content.hexdigest()[:16]


def _version() -> str:
    import stellaris

    return stellaris.__version__


def _coordinate(values: list[Any]) -> Any:
    """Returns the values of a dimension, as objects unless all are numbers, all are texts, or all are bools.

    Of sequences xarray would make two dimensions, and values of several types it would convert to one type.
    """
    if {*map(_kind, values)} in ({"number"}, {"text"}, {"bool"}):
        return values
    objects = np.empty(len(values), object)
    objects[:] = values
    return objects


def _kind(value: Any) -> str:
    if isinstance(value, bool | np.bool_):
        return "bool"
    return "number" if isinstance(value, numbers.Real) else "text" if isinstance(value, str) else "object"


def _dataset(
    outcomes: Mapping[tuple[int, ...], Mapping[str, NDArray]],
    dimensions: Mapping[str, Sequence[Any]],
    runs: Sequence[Run],
    attributes: Mapping[str, Any],
) -> "xr.Dataset":
    import xarray as xr

    updates = max(run.schedule.updates for run in runs)
    shape = (*(len(values) for values in dimensions.values()), updates)
    variables: dict[str, NDArray] = {}
    seconds, costs = np.full(shape, np.nan), dict[str, NDArray]()
    own = np.zeros(shape[:-1], int)
    for run in runs:
        own[run.place] = run.schedule.updates
        for name, column in outcomes[run.place].items():
            kind = np.float32 if column.dtype.kind == "f" else column.dtype
            blank = np.nan if column.dtype.kind == "f" else 0
            if name not in variables:  # `setdefault` would fill an array of all runs for every run
                variables[name] = np.full(shape, blank, kind)
            variables[name][run.place][: len(column)] = column
        seconds[run.place][: run.schedule.updates] = run.schedule.seconds[1:]
        for sheet, cost in run.schedule.costs.items():
            if f"cost_{sheet}" not in costs:
                costs[f"cost_{sheet}"] = np.full(shape, np.nan)
            costs[f"cost_{sheet}"][run.place][: run.schedule.updates] = cost[1:]
    names = (*dimensions, "update")
    coordinates: dict[str, Any] = {name: _coordinate(list(values)) for name, values in dimensions.items()}
    coordinates["update"] = np.arange(1, updates + 1)
    coordinates["updates"] = (names[:-1], own)
    if np.isfinite(seconds).any():
        coordinates["seconds"] = (names, seconds)
    coordinates |= {name: (names, cost) for name, cost in costs.items()}
    columns = {name: (names, column) for name, column in variables.items()}
    return xr.Dataset(columns, coordinates, dict(attributes))
