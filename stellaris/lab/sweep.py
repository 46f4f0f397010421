"""Sweeps: every combination of settings and seeds, many runs at a time, as labelled arrays."""

import dataclasses
import functools
import itertools
import json
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import PartitionSpec

from stellaris._core import checks
from stellaris._core.describe import describe, digest
from stellaris._core.extras import needs
from stellaris.acting.envs import is_jax
from stellaris.acting.policies import Policy
from stellaris.aggregation.protocol import Aggregator
from stellaris.algorithms import Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.lab.plan import Plan, Sizes, plan_of
from stellaris.lab.program import Keys, Outcome, Program
from stellaris.lab.schedule import NONE, Schedule
from stellaris.lab.shapes import shapes_of
from stellaris.runtime.files import atomic_path
from stellaris.systems.session import Keys as SessionKeys
from stellaris.systems.workload import Workload
from stellaris.types import NDArray, Tree

if TYPE_CHECKING:
    import xarray as xr

#: The columns of a plan that must be equal in all runs of a block: vectorised loops of different lengths are slow.
_STRUCTURE = ("waves_until", "batches_until", "gradients_until", "merges_until")
#: A setting of a run: a field of the algorithm or of the aggregator, or `rho`.
_SETTINGS = ("algorithm.", "aggregator.")


class Progress(NamedTuple):
    """How far a sweep is; passed to `on_progress` before every block and at the end."""

    done: int  #: runs.
    total: int  #: runs.
    seconds_left: float  #: estimated from the blocks so far; NaN before the first.
    block: int  #: runs of the next block.
    nbytes: int  #: memory that the next block takes; 0 if its results are read from the disk.


class _Static(NamedTuple):
    """Everything that is compiled into a program. Blocks with equal values of it share one."""

    environment: Any
    policy: Policy
    algorithm: Algorithm
    aggregator: Aggregator | None
    length: int
    pieces: int
    sizes: Sizes


class _Run(NamedTuple):
    """One run of a sweep."""

    place: tuple[int, ...]  #: its index along every axis, the seed's last.
    seed: int
    static: _Static
    numbers: Mapping[str, float]  #: settings that are traced.
    schedule: Schedule
    structure: str  #: hash of the `_STRUCTURE` columns; runs can be vectorised only if it is equal.


#: The schedule of every run, or a function that makes it from the axes that are not settings.
Schedules: TypeAlias = Schedule | Callable[..., Schedule]


def sweep(
    workload: Workload,
    algorithm: Algorithm | Mapping[str, Algorithm],
    schedule: Schedules,
    axes: Mapping[str, Sequence[Any]] | None = None,
    *,
    seeds: int | Sequence[int] = 1,
    aggregator: Aggregator | None = None,
    rho: float = 1.0,
    block: int | None = None,
    directory: str | os.PathLike[str] | None = None,
    on_progress: Callable[[Progress], None] | None = None,
) -> "xr.Dataset":
    """Runs every combination of the axes with every seed, many runs at a time in one compiled program.

    Runs of a block differ in numbers only: settings that are floats, seeds, and versions of their schedules. They are
    vectorised, and distributed over all devices. A setting that changes shapes, such as `algorithm.epochs`, begins a
    new block for each of its values.

    Args:
      workload: an environment of JAX functions, such as `lab.CartPole()`, the policy, and how it is sampled.
      algorithm: the algorithm that learns, or several by name, which become an axis `algorithm`.
      schedule: the schedule of all runs, or a function of the other axes, such as `lambda lag: imposed(...)`.
      axes: values by name: `"algorithm.learning_rate"` and other fields of the algorithm, `"aggregator.decay"` and
        other fields of the aggregator, `"rho"`, and arguments of `schedule`.
      seeds: their number, or the seeds themselves. A run's parameters, actions, shuffles and environments follow from
        its seed as in `train`.
      aggregator: applies the gradients, if the schedule queues them; None if it learns from whole batches.
      rho: truncation level of the global cap over the policies that other learners hold; `math.inf` for no cap.
      block: runs at a time, at most; by default 8 on each CPU device, because the data of more exceeds the cache, and
        256 on each device of another kind.
      directory: keeps the results of every block, so that an interrupted sweep continues where it stopped.
      on_progress: called before every block and at the end.

    Returns:
      An `xarray.Dataset` with the dimensions of the axes, `seed` and `update`. Its variables are `episode_return`
      (mean of the episodes that ended since the last version), `episodes`, `steps`, and the loss's metrics. The
      coordinate `seconds` says when each version was published, if the schedule has a clock, and `cost_NAME` the USD
      spent until then, if the schedule was billed under a price sheet of that name.

    Raises:
      ModuleNotFoundError: without xarray; names the extra.
      TypeError: if the workload's environment is not of JAX functions, or another argument has the wrong type.
      ValueError: if an axis is empty, or names no field and no argument of `schedule`.

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
        import xarray  # noqa: F401 - if it is missing, this raises before the runs and not after
    axes = dict(axes or {})
    runs, dimensions = _runs(workload, algorithm, schedule, axes, seeds, aggregator, rho)
    block = _default_block() if block is None else block
    checks.whole(at_least=1, block=block)
    folder = None if directory is None else Path(directory)
    outcomes: dict[tuple[int, ...], dict[str, NDArray]] = {}
    programs = _Programs()
    began, computed = time.monotonic(), 0
    for members, size in _blocks(runs, block):
        kept = None if folder is None else folder / f"block-{_name(workload, members, rho)}.npz"
        there = kept is not None and kept.exists()
        call = None if there else programs.prepare(members, rho, size)
        left = (time.monotonic() - began) / computed * (len(runs) - len(outcomes)) if computed else float("nan")
        if on_progress is not None:
            on_progress(Progress(len(outcomes), len(runs), left, len(members), 0 if call is None else call.nbytes))
        if call is None:
            assert kept is not None
            with np.load(kept, allow_pickle=False) as file:
                columns = dict(file)
        else:
            columns = call()
            computed += len(members)
            if kept is not None:
                kept.parent.mkdir(parents=True, exist_ok=True)
                with atomic_path(kept) as draft, open(draft, "wb") as out:
                    np.savez(out, allow_pickle=False, **columns)
        if np.any(columns.pop("overflow", 0)):
            raise ValueError(
                f"aggregator={aggregator!r}: its queue was full and lost gradients, because it keeps them longer than "
                "the schedule does; raise its capacity"
            )
        for i, run in enumerate(members):
            outcomes[run.place] = {name: column[i] for name, column in columns.items()}
    if on_progress is not None:
        on_progress(Progress(len(runs), len(runs), 0.0, 0, 0))
    settings = describe({"workload": workload, "algorithm": algorithm, "aggregator": aggregator, "rho": rho})
    return _dataset(outcomes, dimensions, runs, {"settings": json.dumps(settings), "stellaris": _version()})


def mean_return(result: "xr.Dataset", last: int) -> "xr.DataArray":
    """The mean return of all episodes that ended before the last updates.

    Args:
      result: from `sweep`.
      last: updates to average over.
    """
    tail = result.isel(update=slice(-last, None))
    total = (tail.episode_return.fillna(0.0) * tail.episodes).sum("update")
    mean: xr.DataArray = total / tail.episodes.sum("update")
    return mean


# ---- the runs of a sweep ---------------------------------------------------------------------------------------------


def _runs(
    workload: Workload,
    algorithm: Algorithm | Mapping[str, Algorithm],
    schedule: Schedules,
    axes: dict[str, Sequence[Any]],
    seeds: int | Sequence[int],
    aggregator: Aggregator | None,
    rho: float,
) -> tuple[list[_Run], dict[str, Sequence[Any]]]:
    """Every run, and the values along every dimension."""
    if not is_jax(workload.environment):
        raise TypeError(
            f"environment={workload.environment!r} is not of JAX functions: pass lab.CartPole(), or a JaxEnvironment"
        )
    if workload.restart:
        raise ValueError("restart=True is not supported: the lab's environments continue from fragment to fragment")
    numbers = list(range(seeds)) if isinstance(seeds, int) else list(seeds)
    for seed in numbers:
        checks.seed(seed=seed)
    for name, values in {**axes, "seeds": numbers}.items():
        if not len(values):
            raise ValueError(f"{name} has no values: give at least one")
    algorithms = dict(algorithm) if isinstance(algorithm, Mapping) else {"": algorithm}
    for one in algorithms.values():
        check_algorithm(one)
    dimensions: dict[str, Sequence[Any]] = {**axes, "seed": numbers}
    if isinstance(algorithm, Mapping):
        dimensions = {"algorithm": list(algorithms), **dimensions}
    policy = workload.make_policy(workload.environment.spec)
    made: dict[tuple[Any, ...], tuple[Schedule, Sizes, str]] = {}
    runs = []
    for label, one in algorithms.items():
        for place in itertools.product(*(range(len(values)) for values in axes.values())):
            chosen = {name: values[i] for (name, values), i in zip(axes.items(), place, strict=True)}
            arguments = {name: value for name, value in chosen.items() if not _is_setting(name)}
            key = tuple(arguments.values())
            if key not in made:
                own = _schedule(schedule, arguments)
                sizes, plan = plan_of(own)
                structure = digest([np.asarray(plan._asdict()[name]).tobytes().hex() for name in _STRUCTURE])
                made[key] = own, sizes, structure
            own, sizes, structure = made[key]
            fixed, numeric = _settings(chosen, one, aggregator, axes)
            _check_schedule(own, workload, policy, fixed["algorithm"], aggregator)
            static = _Static(
                workload.environment,
                policy,
                fixed["algorithm"],
                fixed["aggregator"],
                workload.steps_at_once,
                workload.fragment // workload.steps_at_once,
                sizes,
            )
            first = (list(algorithms).index(label),) if isinstance(algorithm, Mapping) else ()
            runs += [_Run((*first, *place, i), seed, static, numeric, own, structure) for i, seed in enumerate(numbers)]
    # Runs with different lags look back over different numbers of versions. All store the largest of these numbers, so
    # that they share a program.
    versions = max(run.static.sizes.versions for run in runs)
    shared = [run.static._replace(sizes=run.static.sizes._replace(versions=versions)) for run in runs]
    return [run._replace(static=static) for run, static in zip(runs, shared, strict=True)], dimensions


def _is_setting(name: str) -> bool:
    return name == "rho" or name.startswith(_SETTINGS)


def _schedule(schedule: Schedules, arguments: Mapping[str, Any]) -> Schedule:
    if isinstance(schedule, Schedule):
        if arguments:
            raise ValueError(f"axes {sorted(arguments)} are not settings: pass schedule as a function of them")
        return schedule
    made = schedule(**arguments)
    if not isinstance(made, Schedule):
        raise TypeError(f"schedule returned {made!r} for {dict(arguments)}: expected a Schedule")
    return made


def _check_schedule(
    schedule: Schedule, workload: Workload, policy: Policy, algorithm: Algorithm, aggregator: Aggregator | None
) -> None:
    """Checks that a schedule can be followed with these settings."""
    whole = bool((schedule.update_batch != NONE).all())
    if whole != (aggregator is None):
        raise ValueError(
            f"aggregator={aggregator!r}: the schedule has no queued gradients; leave the aggregator out"
            if whole
            else "aggregator=None: the schedule applies queued gradients; pass the aggregator that applies them"
        )
    if np.isnan(schedule.seconds).any() and schedule.slots != workload.actors:
        raise ValueError(
            f"actors={workload.actors} of the workload: the schedule was made for {schedule.slots} actors; make a "
            f"schedule for {workload.actors}"
        )
    _, fragments, pieces = schedule.batch_pieces.shape
    if pieces != workload.fragment // workload.steps_at_once:
        raise ValueError(
            f"refresh={workload.refresh} makes {workload.fragment // workload.steps_at_once} pieces of a fragment: the "
            f"schedule has {pieces}; make another schedule"
        )
    gradients = len(shapes_of(algorithm, policy, workload.fragment, fragments).indices)
    if schedule.gradient_row.max(initial=0) >= gradients:
        raise ValueError(
            f"the schedule computes {schedule.gradient_row.max() + 1} gradients per batch: {algorithm!r} has only "
            f"{gradients}"
        )


def _settings(
    chosen: Mapping[str, Any], algorithm: Any, aggregator: Any, axes: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Splits settings into objects to compile, and numbers to trace."""
    fixed = {"algorithm": algorithm, "aggregator": aggregator}
    numeric: dict[str, float] = {}
    for name, value in chosen.items():
        if not _is_setting(name):
            continue
        owner, _, field = name.partition(".")
        if field and not hasattr(fixed[owner], field):
            raise ValueError(f"{name} is not a setting: {fixed[owner]!r} has no field {field!r}")
        if all(isinstance(x, float) for x in axes[name]):
            numeric[name] = value
            if field:  # so that a value out of range is refused here, by the object's own checks
                dataclasses.replace(fixed[owner], **{field: value})
        elif field:
            fixed[owner] = dataclasses.replace(fixed[owner], **{field: value})
        else:
            numeric[name] = float(value)
    return fixed, numeric


def _default_block() -> int:
    devices = jax.devices()
    return len(devices) * (8 if devices[0].platform == "cpu" else 256)


def _blocks(runs: Sequence[_Run], most: int) -> list[tuple[list[_Run], int]]:
    """Groups runs that can be vectorised together into blocks of at most `most` runs; returns their sizes as well.

    The last block of a group has fewer runs, but the size of the others, so that it shares their program.
    """
    groups: dict[Any, list[_Run]] = {}
    for run in runs:
        groups.setdefault((run.static, tuple(run.numbers), run.structure), []).append(run)
    return [
        (group[i : i + most], min(most, len(group))) for group in groups.values() for i in range(0, len(group), most)
    ]


def _name(workload: Workload, members: Sequence[_Run], rho: float) -> str:
    """A name for the results of a block, which differs if the settings of its runs differ."""
    runs = [(run.seed, dict(run.numbers), run.schedule.digest) for run in members]
    static = members[0].static
    return digest([workload, static.algorithm, static.aggregator, rho, runs, _version()])


def _version() -> str:
    import stellaris

    return stellaris.__version__


# ---- how a block is run ----------------------------------------------------------------------------------------------


@dataclass
class _Call:
    """A compiled block, and what it is called with."""

    program: Any
    arguments: tuple[Any, ...]
    runs: int

    @property
    def nbytes(self) -> int:
        """The bytes of its arguments, results and temporary arrays."""
        memory = self.program.memory_analysis()
        return int(memory.argument_size_in_bytes + memory.output_size_in_bytes + memory.temp_size_in_bytes)

    def __call__(self) -> dict[str, NDArray]:
        outcome: Outcome = jax.device_get(self.program(*self.arguments))
        columns = {"steps": outcome.steps, "episodes": outcome.episodes, "episode_return": outcome.episode_return}
        return {name: np.asarray(column)[: self.runs] for name, column in {**columns, **outcome.metrics}.items()}


class _Programs:
    """Compiles every program once, and keeps first parameters and plans."""

    def __init__(self) -> None:
        self._compiled: dict[Any, Any] = {}
        self._params: dict[tuple[Policy, int], Tree] = {}
        self._plans: dict[str, Plan] = {}

    def prepare(self, members: Sequence[_Run], rho: float, size: int) -> _Call:
        """Compiles the program of a block of `size` runs or a few more, unless it was compiled before."""
        devices = jax.devices()
        size += -size % len(devices)  # so that every device has as many runs
        padded = [*members, *[members[-1]] * (size - len(members))]
        shared, own = self._plan(padded)
        keys = [SessionKeys.of(run.seed) for run in padded]
        stacked = {
            "numbers": {
                name: jnp.asarray([run.numbers[name] for run in padded], jnp.float32) for name in padded[0].numbers
            },
            "plan": own,
            "params": jax.tree.map(lambda *leaves: jnp.stack(leaves), *[self._first(run) for run in padded]),
            "keys": Keys(
                jnp.stack([key.batches for key in keys]),
                jnp.stack([key.noise for key in keys]),
                jnp.asarray([run.seed for run in padded], jnp.int32),
            ),
        }
        mesh = jax.sharding.Mesh(np.array(devices), ("runs",))
        split = PartitionSpec("runs")  # type: ignore[no-untyped-call]
        stacked = jax.device_put(stacked, jax.NamedSharding(mesh, split))
        shared = jax.device_put(shared, jax.NamedSharding(mesh, PartitionSpec()))  # type: ignore[no-untyped-call]
        static = members[0].static
        key = static, len(padded), tuple(own), tuple(shared), jax.tree.structure(stacked), _shapes((stacked, shared))
        if key not in self._compiled:
            rho_fixed = None if "rho" in padded[0].numbers else rho
            run = functools.partial(_run_block, static, rho_fixed)
            self._compiled[key] = jax.jit(run).lower(shared, stacked).compile()
        return _Call(self._compiled[key], (shared, stacked), len(members))

    def _first(self, run: _Run) -> Tree:
        """The first parameters of a run."""
        # One run at a time, because making the orthogonal matrices of many runs at once hangs on a CPU.
        key = run.static.policy, run.seed
        if key not in self._params:
            params = jax.jit(Policy.init, static_argnums=0)(run.static.policy, SessionKeys.of(run.seed).params)
            self._params[key] = params
        return self._params[key]

    def _plan(self, members: Sequence[_Run]) -> tuple[dict[str, Any], dict[str, Any]]:
        """The columns of the plans that are the same in all runs, and those that differ, stacked."""
        plans = []
        for run in members:
            name = run.schedule.digest
            if name not in self._plans:
                self._plans[name] = plan_of(run.schedule, width=run.static.sizes.width)[1]
            plans.append(self._plans[name])
        shared, own = {}, {}
        for name in Plan._fields:
            columns = [getattr(plan, name) for plan in plans]
            if all(column is columns[0] or np.array_equal(column, columns[0]) for column in columns):
                shared[name] = columns[0]
            else:
                own[name] = np.stack(columns)
        return shared, own


def _shapes(tree: Tree) -> tuple[Any, ...]:
    return tuple((leaf.shape, str(leaf.dtype)) for leaf in jax.tree.leaves(tree))


def _run_block(static: _Static, rho: float | None, shared: dict[str, Any], stacked: dict[str, Any]) -> Outcome:
    def one(own: dict[str, Any]) -> Outcome:
        numbers = own["numbers"]
        program = Program(
            static.environment,
            static.policy,
            _with(static.algorithm, "algorithm.", numbers),
            _with(static.aggregator, "aggregator.", numbers),
            numbers.get("rho", rho),
            static.length,
            static.pieces,
            static.sizes,
        )
        return program.run(Plan(**shared, **own["plan"]), own["params"], own["keys"])[1]

    return jax.vmap(one)(stacked)


def _with(settings: Any, prefix: str, numbers: Mapping[str, Any]) -> Any:
    """Replaces fields by traced numbers."""
    own = {name.removeprefix(prefix): value for name, value in numbers.items() if name.startswith(prefix)}
    return dataclasses.replace(settings, **own) if own else settings


# ---- results ---------------------------------------------------------------------------------------------------------


def _dataset(
    outcomes: Mapping[tuple[int, ...], Mapping[str, NDArray]],
    dimensions: Mapping[str, Sequence[Any]],
    runs: Sequence[_Run],
    attributes: Mapping[str, Any],
) -> "xr.Dataset":
    import xarray as xr

    updates = max(run.schedule.updates for run in runs)
    shape = (*(len(values) for values in dimensions.values()), updates)
    variables: dict[str, NDArray] = {}
    seconds, costs = np.full(shape, np.nan), dict[str, NDArray]()
    for run in runs:
        for name, column in outcomes[run.place].items():
            kind = np.float32 if column.dtype.kind == "f" else column.dtype
            blank = np.nan if column.dtype.kind == "f" else 0
            variables.setdefault(name, np.full(shape, blank, kind))[run.place][: len(column)] = column
        seconds[run.place][: run.schedule.updates] = run.schedule.seconds[1:]
        for sheet, cost in run.schedule.costs.items():
            costs.setdefault(f"cost_{sheet}", np.full(shape, np.nan))[run.place][: run.schedule.updates] = cost[1:]
    names = (*dimensions, "update")
    coordinates: dict[str, Any] = {name: list(values) for name, values in dimensions.items()}
    coordinates["update"] = np.arange(1, updates + 1)
    if np.isfinite(seconds).any():
        coordinates["seconds"] = (names, seconds)
    coordinates |= {name: (names, cost) for name, cost in costs.items()}
    columns = {name: (names, column) for name, column in variables.items()}
    return xr.Dataset(columns, coordinates, dict(attributes))
