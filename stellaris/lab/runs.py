"""The runs of a sweep: each combination of settings and seeds, and which of them can be vectorised together."""

import dataclasses
import inspect
import itertools
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np

from stellaris._core import checks
from stellaris._core.describe import digest, methods
from stellaris.acting.envs import as_jax
from stellaris.acting.policies import Policy
from stellaris.aggregation.protocol import Aggregator
from stellaris.algorithms import Algorithm
from stellaris.algorithms.algorithm import check_algorithm
from stellaris.corrections.caps import check_rho
from stellaris.lab.plan import Sizes, plan_of
from stellaris.lab.sampling import check_memoryless
from stellaris.lab.schedule import NONE, Schedule
from stellaris.lab.shapes import shapes_of
from stellaris.systems.workload import Evaluation, Workload

#: Names of the result's dimensions and coordinates, besides the axes.
_RESERVED = ("algorithm", "seed", "update", "updates", "seconds")
#: The columns of a plan that must be equal in all runs of a block: vectorised loops of different lengths are slow.
_STRUCTURE = ("waves_until", "batches_until", "gradients_until", "merges_until")
#: Prefixes of axes that are settings: fields of the algorithm or the aggregator. `rho` is a setting too; any other axis
#: is an argument of the function that makes the schedule.
_SETTINGS = ("algorithm.", "aggregator.")


class Static(NamedTuple):
    """The parts of a run that are compiled into its program. Runs share a program only if these parts are equal."""

    environment: Any
    policy: Policy
    algorithm: Algorithm
    aggregator: Aggregator | None
    length: int  #: number of steps of a piece.
    pieces: int  #: number of pieces of a fragment.
    sizes: Sizes
    evaluation: Evaluation | None

    def code(self) -> str:
        """Returns a digest of the code of these parts: of their classes, and of the functions that the classes use."""
        parts = (self.algorithm, self.aggregator, self.environment, self.policy.network)
        return digest([methods(one) for one in parts])


class Run(NamedTuple):
    """One run of a sweep."""

    place: tuple[int, ...]  #: index along every axis; the last index is the seed's.
    seed: int
    static: Static
    numbers: Mapping[str, float]  #: values of the traced settings.
    schedule: Schedule
    structure: str  #: hash of the `_STRUCTURE` columns, which is equal in all runs of a block.


#: The schedule of every run, or a function that makes it from the axes that are not settings.
Schedules: TypeAlias = Schedule | Callable[..., Schedule]

#: The values of an axis; or, for settings that vary together, the settings by the label of each value.
Axes: TypeAlias = Mapping[str, Sequence[Any] | Mapping[str, Mapping[str, Any]]]


def runs_of(
    workload: Workload,
    algorithm: Algorithm | Mapping[str, Algorithm],
    schedule: Schedules,
    axes: Axes,
    seeds: int | Sequence[int],
    aggregator: Aggregator | None,
    rho: float,
    evaluation: Evaluation | None = None,
) -> tuple[list[Run], dict[str, Sequence[Any]]]:
    """Returns every run of a sweep, and the values along every dimension."""
    if not isinstance(workload, Workload):
        raise TypeError(f"workload={workload!r} is not a Workload: pass Workload(lab.CartPole()), one for each sweep")
    environment = as_jax(workload.environment)
    if workload.restart:
        raise ValueError("restart=True is not supported: episodes in the lab span fragments; set restart=False")
    if not np.iterable(seeds) and not isinstance(seeds, int | np.integer):
        raise TypeError(f"seeds={seeds!r} is neither a number of seeds nor a list of them: pass an int or a list")
    numbers = list(range(int(seeds))) if isinstance(seeds, int | np.integer) else list(seeds)
    for seed in numbers:
        checks.seed(seed=seed)
    if twice := [seed for seed, count in Counter(numbers).items() if count > 1]:
        raise ValueError(f"seeds={seeds!r} has {twice[0]} twice, whose runs would be equal: give each seed once")
    if not isinstance(schedule, Schedule) and not callable(schedule):
        raise TypeError(f"schedule={schedule!r} is neither a Schedule nor a function that makes one from the axes")
    for name in axes:
        if not isinstance(name, str):
            raise TypeError(f"axes has the name {name!r}, which is not a text: pass {{'lag': [0, 4]}}")
    check_names(axes, _RESERVED)
    axes = {name: _checked_axis(name, values) for name, values in axes.items()}
    algorithms = dict(algorithm) if isinstance(algorithm, Mapping) else {"": algorithm}
    for name, values in {**axes, "seeds": numbers, "algorithm": algorithms}.items():
        if not len(values):
            raise ValueError(f"{name} has no values: give at least one")
    for one in algorithms.values():
        check_algorithm(one)
    check_rho(rho=rho)
    settings, values_of = _settings_of(axes)
    for name, values in axes.items():
        # 1 and True are equal, and two values: a schedule may distinguish them.
        if again := [value for (_, value), count in Counter((type(x), x) for x in values).items() if count > 1]:
            raise ValueError(f"the axis {name!r} has {again[0]!r} twice, whose runs would be equal: give each once")
    dimensions: dict[str, Sequence[Any]] = {**{name: list(values) for name, values in axes.items()}, "seed": numbers}
    if isinstance(algorithm, Mapping):
        dimensions = {"algorithm": list(algorithms), **dimensions}
    policy = workload.make_policy(environment.spec)
    check_memoryless(policy)
    by_seed = not isinstance(schedule, Schedule) and "seed" in inspect.signature(schedule).parameters
    # The places of the seeds whose runs have the same schedule.
    together: list[Sequence[int]] = [[i] for i in range(len(numbers))] if by_seed else [range(len(numbers))]
    made: dict[frozenset[Any], tuple[Schedule, Sizes, str]] = {}
    runs = []
    for label, one in algorithms.items():
        for place in itertools.product(*(range(len(axis)) for axis in settings)):
            chosen = {name: value for axis, i in zip(settings, place, strict=True) for name, value in axis[i].items()}
            arguments = {name: value for name, value in chosen.items() if not _is_setting(name)}
            fixed, numeric = _settings(chosen, one, aggregator, values_of)
            first = (list(algorithms).index(label),) if isinstance(algorithm, Mapping) else ()
            for several in together:
                given = arguments | ({"seed": numbers[several[0]]} if by_seed else {})
                # The names count, because each label of an axis may set them in another order; so do the types, because
                # 1 and True are equal, and may differ.
                key = frozenset((name, type(value), value) for name, value in given.items())
                if key not in made:
                    made[key] = _made(schedule, given)
                    _check_evaluation(evaluation, made[key][0])
                own, sizes, structure = made[key]
                _check_schedule(own, workload, policy, fixed["algorithm"], aggregator)
                static = Static(
                    environment,
                    policy,
                    fixed["algorithm"],
                    fixed["aggregator"],
                    workload.steps_at_once,
                    workload.fragment // workload.steps_at_once,
                    sizes,
                    evaluation,
                )
                runs += [Run((*first, *place, i), numbers[i], static, numeric, own, structure) for i in several]
    check_names(axes, (f"cost_{sheet}" for own, *_ in made.values() for sheet in own.costs))
    # Runs with different lags need different numbers of past versions. All runs keep the largest number, so that they
    # share a program.
    versions = max(run.static.sizes.versions for run in runs)
    shared = [run.static._replace(sizes=run.static.sizes._replace(versions=versions)) for run in runs]
    return [run._replace(static=static) for run, static in zip(runs, shared, strict=True)], dimensions


def check_names(axes: Iterable[str], names: Iterable[str]) -> None:
    """Raises a ValueError if an axis has one of the names that the result needs for its own parts.

    The result is made after all runs, and an error then would lose them.
    """
    for name in sorted({*axes} & {*names}):
        raise ValueError(f"the axis {name!r} has the name of a part of the result: rename it")


def _checked_axis(name: str, values: Any) -> Any:
    """Returns the values of an axis, an array's as numbers; raises if they are not a list."""
    if isinstance(values, Mapping):
        return values
    if isinstance(values, str) or not np.iterable(values):
        raise TypeError(f"the axis {name!r} is {values!r}: pass its values as a list, [{values!r}]")
    return np.asarray(values).tolist() if hasattr(values, "dtype") else list(values)


def _settings_of(axes: Axes) -> tuple[list[list[Mapping[str, Any]]], dict[str, list[Any]]]:
    """Returns the settings at each value of each axis, and all values of each setting.

    Example:
      >>> _settings_of({"lag": [0, 4], "case": {"a": {"rho": 1.0}, "b": {"rho": 2.0}}})
      ([[{'lag': 0}, {'lag': 4}], [{'rho': 1.0}, {'rho': 2.0}]], {'lag': [0, 4], 'rho': [1.0, 2.0]})
    """
    settings: list[list[Mapping[str, Any]]] = []
    values_of: dict[str, list[Any]] = {}
    for name, values in axes.items():
        axis: list[Mapping[str, Any]] = (
            list(values.values()) if isinstance(values, Mapping) else [{name: value} for value in values]
        )
        for label, one in zip(values, axis, strict=True):
            if not isinstance(one, Mapping):
                raise TypeError(f"{name}[{label!r}] is {one!r}: pass its settings by name, {{'rho': {one!r}}}")
            for value in one.values():
                try:
                    hash(value)
                except TypeError:
                    raise TypeError(
                        f"the axis {name!r} has the value {value!r}, which cannot be hashed: pass a tuple instead"
                    ) from None
            if one.keys() != axis[0].keys():
                raise ValueError(f"{name}[{label!r}] sets {sorted(one)}: expected {sorted(axis[0])}, as the first does")
        for setting in axis[0]:
            if setting in values_of:
                raise ValueError(f"{setting} is set by two axes, and {name} is the second: leave one out")
            values_of[setting] = [one[setting] for one in axis]
        settings.append(axis)
    return settings, values_of


def _is_setting(name: str) -> bool:
    return name == "rho" or name.startswith(_SETTINGS)


def _made(schedule: Schedules, arguments: Mapping[str, Any]) -> tuple[Schedule, Sizes, str]:
    """Returns the schedule of some arguments, the sizes of its plan, and the hash of its structure."""
    own = _schedule(schedule, arguments)
    sizes, plan = plan_of(own)
    columns = [np.asarray(plan._asdict()[name]).tobytes().hex() for name in _STRUCTURE]
    return own, sizes, digest([*columns, np.shape(plan.gradient_held)])


def _schedule(schedule: Schedules, arguments: Mapping[str, Any]) -> Schedule:
    if isinstance(schedule, Schedule):
        if arguments:
            raise ValueError(
                f"axes {sorted(arguments)} are not settings, such as 'algorithm.clip': for arguments of the schedule "
                "pass a function that makes it"
            )
        return schedule
    signature = inspect.signature(schedule)
    try:
        signature.bind(**arguments)
    except TypeError as error:
        raise ValueError(
            f"axes {sorted(arguments)} do not fit the schedule's arguments: {error}; name a setting, such as "
            "'algorithm.clip', or an argument of schedule"
        ) from None
    made = schedule(**arguments)
    if not isinstance(made, Schedule):
        raise TypeError(f"schedule returned {made!r} for {dict(arguments)}: expected a Schedule")
    return made


def _check_schedule(
    schedule: Schedule, workload: Workload, policy: Policy, algorithm: Algorithm, aggregator: Aggregator | None
) -> None:
    """Checks that a schedule can be followed with these settings."""
    learned = schedule.update_batch != NONE
    whole = bool(learned.all())
    if learned.any() and not whole:
        raise ValueError(
            f"update {learned.argmax()} of the schedule learns from a whole batch, and update {learned.argmin()} "
            "applies queued gradients, but a run does one or the other: pass a schedule whose updates all do the same"
        )
    if whole != (aggregator is None):
        raise ValueError(
            f"aggregator={aggregator!r}: the schedule has no queued gradients; leave the aggregator out"
            if whole
            else "aggregator=None: the schedule applies queued gradients; pass the aggregator that applies them"
        )
    imposed = np.isnan(schedule.seconds).any()  # not made from a run
    if imposed and schedule.slots != workload.actors:
        raise ValueError(
            f"actors={workload.actors} of the workload: the schedule was made for {schedule.slots} actors; make a "
            f"schedule for {workload.actors}"
        )
    _, fragments, pieces = schedule.batch_pieces.shape
    if pieces != workload.fragment // workload.steps_at_once:
        raise ValueError(
            f"refresh={workload.refresh} makes {workload.fragment // workload.steps_at_once} pieces per fragment: the "
            f"schedule has {pieces} per fragment; make a schedule for this refresh"
        )
    gradients = len(shapes_of(algorithm, policy, workload.fragment, fragments).indices)
    if schedule.gradient_row.max(initial=0) >= gradients:
        raise ValueError(
            f"the schedule computes {schedule.gradient_row.max() + 1} gradients per batch: {algorithm!r} has only "
            f"{gradients}; make a schedule with fewer, or raise the number of epochs"
        )
    if imposed and not whole and schedule.gradient_row.max(initial=0) + 1 < gradients:
        raise ValueError(
            f"the schedule computes {schedule.gradient_row.max(initial=0) + 1} gradients per batch: {algorithm!r} has "
            f"{gradients}, and the others would never be learned from; pass minibatches={gradients} to imposed"
        )


def _check_evaluation(evaluation: Evaluation | None, schedule: Schedule) -> None:
    """Checks that a run with this schedule is evaluated at least once, if runs are evaluated."""
    if not isinstance(evaluation, Evaluation | None):
        raise TypeError(f"evaluation={evaluation!r} is not an Evaluation: pass Evaluation(every=..., episodes=...)")
    if evaluation is not None and evaluation.every > schedule.updates:
        raise ValueError(
            f"evaluation.every={evaluation.every}: a run of {schedule.updates} updates would not be evaluated; set at "
            f"most {schedule.updates}"
        )


def _settings(
    chosen: Mapping[str, Any], algorithm: Any, aggregator: Any, axes: Mapping[str, Sequence[Any]]
) -> tuple[dict[str, Any], dict[str, float]]:
    """Splits the chosen settings into objects that are compiled, and numbers that are traced."""
    fixed = {"algorithm": algorithm, "aggregator": aggregator}
    numeric: dict[str, float] = {}
    static: dict[str, dict[str, Any]] = {owner: {} for owner in fixed}
    for name, value in chosen.items():
        if not _is_setting(name):
            continue
        owner, _, field = name.partition(".")
        if not field:
            check_rho(rho=value)
        if field and fixed[owner] is None:
            raise ValueError(f"{name} is not a setting: the sweep has no {owner}; pass {owner}=")
        if field and field not in (one.name for one in dataclasses.fields(fixed[owner]) if one.init):
            raise ValueError(f"{name} is not a setting: {fixed[owner]!r} has no field {field!r}")
        if all(isinstance(x, float) for x in axes[name]):
            numeric[name] = value
        elif field:
            static[owner][field] = value
        else:
            numeric[name] = float(value)
    for owner, of in fixed.items():
        own = {name.removeprefix(f"{owner}."): x for name, x in numeric.items() if name.startswith(f"{owner}.")}
        if not own and not static[owner]:
            continue
        # The object's checks refuse values out of range, and values that do not fit together, before they are traced.
        whole = dataclasses.replace(of, **static[owner], **own)
        try:
            fixed[owner] = dataclasses.replace(of, **static[owner])
        except ValueError:  # which fits the run's own numbers only; each of them then has a program
            fixed[owner] = whole
    return fixed, numeric


def grouped(runs: Sequence[Run], most: int) -> list[tuple[list[Run], int]]:
    """Groups runs that can be vectorised together into blocks of at most `most` runs; returns each block and its size.

    The last block of a group may have fewer runs. It has the size of the other blocks, so that it shares their program.
    """
    groups: dict[Any, list[Run]] = {}
    for run in runs:
        groups.setdefault((run.static, tuple(run.numbers), run.structure), []).append(run)
    return [
        (group[i : i + most], min(most, len(group))) for group in groups.values() for i in range(0, len(group), most)
    ]
