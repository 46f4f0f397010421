"""Computes the gap that a scheduler could close, between the best fixed number of actors and the best of two levels."""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import jax
import numpy as np

from experiments.tasks import minionsrl
from experiments.toolkit import options, output, plots, provenance, shell
from experiments.toolkit.statistics import Estimate, estimate
from stellaris import ActorCritic
from stellaris.lab import CartPole, Gymnax, Rounds
from stellaris.scheduling import State
from stellaris.types import NDArray

DESCRIPTION = "the best fixed number of actors against schedules of two levels, by time and by cost"

#: The testbeds, each with its environment and the name that it has there.
TESTBEDS: Mapping[str, tuple[str, str]] = {
    "tuned": ("CartPole-v1", "tuned"),
    "authors": ("CartPole-v1", "authors"),
    "acrobot": ("Acrobot-v1", "authors"),
    "acrobot-tuned": ("Acrobot-v1", "tuned"),
    "acrobot-tuned-0.0012": ("Acrobot-v1", "tuned-0.0012"),
}
# Registered on 2026-12-01, before its runs: on the last testbed, two levels of 2, 4, 8, 16 and 32 actors that change
# after 4 or 8 rounds, because runs of few actors take some 25 rounds; as all fixed numbers, on the seeds 0 to 19, with
# the best again on 20 to 39. Question: does the best of these 40 schedules take less time than the best fixed number,
# 6 actors, whose runs were known then?

#: The testbeds of a run that names none. Acrobot needs gymnax, and the smoke preset's target is CartPole's.
DEFAULT = [name for name, (environment, _) in TESTBEDS.items() if environment == "CartPole-v1"]


@dataclass(frozen=True)
class Schedule:
    """A scheduler: `first` actors until a round, `then` others; a fixed number if both are equal."""

    first: int
    then: int
    change: int  #: the number of rounds with `first` actors; 0 for a fixed number.

    @property
    def numbers(self) -> Sequence[int]:
        """The number of actors in each round; the last number also holds later."""
        return [self.first] * self.change + [self.then]

    def decide(self, states: Sequence[State], *, most: int, key: jax.Array) -> int:
        """Returns the number of actors of the round."""
        del most, key
        return self.numbers[min(len(states), len(self.numbers)) - 1]

    def __str__(self) -> str:
        return f"{self.first}, then {self.then} from round {self.change + 1}" if self.change else f"{self.then}"


@dataclass(frozen=True)
class Preset:
    """The size of the study."""

    fixed: Sequence[int]
    levels: Sequence[int]
    changes: Sequence[int]
    seeds: int  #: seeds on which schedules are chosen; the best are run on as many others.
    target: float | None = None  #: in place of the task's.
    hidden: tuple[int, ...] = (64, 64)

    def schedules(self) -> Iterator[Schedule]:
        """Yields every fixed number, and every schedule of two levels."""
        for number in self.fixed:
            yield Schedule(number, number, 0)
        for (first, then), change in itertools.product(itertools.permutations(self.levels, 2), self.changes):
            yield Schedule(first, then, change)


_LEVELS, _CHANGES = (2, 4, 8, 12, 16, 24, 32), (2, 4, 8, 16, 32)
PRESETS: Mapping[str, Preset] = {
    "smoke": Preset((2, 4), (2, 4), (2,), seeds=2, target=22.0, hidden=(8,)),
    "small": Preset(tuple(range(1, minionsrl.ACTORS + 1)), _LEVELS, _CHANGES, seeds=20),
}


def task_of(preset: Preset, testbed: str) -> minionsrl.Task:
    """Returns the task of a testbed."""
    environment, name = TESTBEDS[testbed]
    task = minionsrl.testbeds_of(environment)[name]
    return task if preset.target is None else replace(task, target=preset.target)


def rounds(preset: Preset, task: minionsrl.Task) -> Rounds:
    """Returns the compiled rounds of a task, with its environment written in JAX."""
    name = task.workload.environment
    assert isinstance(name, str)
    environment = CartPole() if name == "CartPole-v1" else Gymnax(name)
    policy = ActorCritic(hidden=preset.hidden, scaling_discount=0.99)
    workload = replace(task.workload, environment=environment, policy=policy)
    most = -(-task.steps // workload.fragment)
    return Rounds(
        workload,
        task.ppo,
        task.functions,
        minionsrl.serverless_prices(),
        budget=task.limits,
        most=most,
        prewarm=True,
        evaluation=task.evaluation,
    )


class Runs(NamedTuple):
    """The runs of a schedule, `[seeds]`; infinite where a run failed."""

    seconds: NDArray
    cost: NDArray  #: USD by Eq. 2.
    rounds: NDArray
    steps: NDArray


#: What the best schedules minimise, with the column of `Runs`. At equal time, schedules compete whose median time is at
#: most `LONGER` times that of all actors.
OBJECTIVES = {"time": "seconds", "cost": "cost", "cost at equal time": "cost"}
LONGER = 1.05


def measured(
    of: Rounds, schedules: Sequence[Schedule], seeds: Sequence[int], *, block: int | None = None
) -> Mapping[Schedule, Runs]:
    """Runs each schedule once for each seed; at most `block` runs are computed at a time."""
    each = [schedule.numbers for schedule in schedules for _ in seeds]
    played = of.play(each, [*seeds] * len(schedules), block=block)
    columns = played.last("seconds"), played.last("costs")[:, 0], played.rounds, played.last("steps")
    tables = [np.where(played.reached, column, np.inf).reshape(len(schedules), -1) for column in columns]
    return {schedule: Runs(*(table[i] for table in tables)) for i, schedule in enumerate(schedules)}


def best(runs: Mapping[Schedule, Runs], objective: str, *, fixed: bool) -> Schedule | None:
    """Returns the schedule with the least median, or None if none competes; failed runs count as infinite."""
    medians = {schedule: (float(np.median(of.seconds)), float(np.median(of.cost))) for schedule, of in runs.items()}
    own = [schedule for schedule in runs if (schedule.change == 0) == fixed]
    if objective == "cost at equal time":
        own = [schedule for schedule in own if medians[schedule][0] <= LONGER * medians[everyone(runs)][0]]
    place = Runs._fields.index(OBJECTIVES[objective])
    return min(own, key=lambda schedule: medians[schedule][place], default=None)


def everyone(runs: Mapping[Schedule, Runs]) -> Schedule:
    """Returns the schedule with all actors in every round: the greatest fixed number."""
    return max((schedule for schedule in runs if schedule.change == 0), key=lambda schedule: schedule.then)


def compared(
    of: Rounds, runs: Mapping[Schedule, Runs], seeds: Sequence[int], block: int | None
) -> list[dict[str, Any]]:
    """Returns a row for the best schedule of each kind and objective, on seeds on which it was not chosen.

    Ratios are to all actors, and for two levels also to the best fixed number.
    """
    choices = {(name, fixed): best(runs, name, fixed=fixed) for name in OBJECTIVES for fixed in (True, False)}
    chosen = {of_what: schedule for of_what, schedule in choices.items() if schedule is not None}
    fresh = measured(of, [*dict.fromkeys((everyone(runs), *chosen.values()))], seeds, block=block)
    rows = []
    for (name, fixed), schedule in chosen.items():
        own, all_ = fresh[schedule], fresh[everyone(runs)]
        row = {"objective": name, "kind": "fixed" if fixed else "two levels", **asdict(schedule)}
        row |= {f"median_{column}": float(np.median(getattr(own, column))) for column in ("seconds", "cost")}
        row |= _ratio("time", own.seconds, all_.seconds) | _ratio("cost", own.cost, all_.cost)
        if not fixed and (name, True) in chosen:
            column, number = OBJECTIVES[name], fresh[chosen[name, True]]
            row |= _ratio("to_fixed", getattr(own, column), getattr(number, column))
        rows.append(row)
    return rows


def _ratio(name: str, one: NDArray, other: NDArray) -> dict[str, float]:
    """Returns the ratios of the seeds with which both runs reached the target, and the number of these seeds."""
    both = np.isfinite(one) & np.isfinite(other)
    nothing = Estimate(float("nan"), float("nan"), float("nan"), claim=False)
    found = estimate((one[both] / other[both]).tolist()) if both.any() else nothing
    return {name: found.middle, f"{name}_low": found.low, f"{name}_high": found.high, f"{name}_seeds": int(both.sum())}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    add("--testbeds", nargs="+", choices=TESTBEDS, default=DEFAULT, help="the testbeds (default: CartPole's)")
    add(
        "--fixed",
        nargs="+",
        type=options.whole(1, minionsrl.ACTORS),
        help="only these fixed numbers and all actors, and two levels only with --levels (default: the preset's)",
    )
    levels = "numbers of actors of schedules of two levels (default: the preset's)"
    add("--levels", nargs="+", type=options.whole(1, minionsrl.ACTORS), help=levels)
    changes = "numbers of rounds after which two levels change (default: the preset's)"
    add("--changes", nargs="+", type=options.whole(1), help=changes)
    add(
        "--block",
        type=options.whole(1),
        help="most runs of a program (default: 1 on a CPU, which runs one a core; 256 on another device)",
    )
    add("--resume", action="store_true", help="continue with the schedules that are missing in the results folder")
    add("--out", type=options.folder, default=Path("results/minionsrl-ceiling"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Writes the runs, a table of all schedules and one of the best for each testbed, and draws cost over time."""
    preset, out = PRESETS[arguments.preset], arguments.out
    if arguments.fixed:
        preset = replace(preset, fixed=sorted({*arguments.fixed, minionsrl.ACTORS}), levels=())
    preset = replace(preset, levels=arguments.levels or preset.levels, changes=arguments.changes or preset.changes)
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    for name in arguments.testbeds:
        of, path = rounds(preset, task_of(preset, name)), out / f"runs_{name}.csv.gz"
        runs = read(path) if arguments.resume and path.exists() else {}
        if any(len(them.seconds) != preset.seeds for them in runs.values()):
            raise shell.UsageError(f"--out {out} holds runs of another preset: name another folder")
        several = [schedule for schedule in preset.schedules() if schedule not in runs]
        # The tables are written after every few schedules, so that a run that is ended early loses little.
        together = max(1, 4 * (arguments.block or 0) // preset.seeds)
        for start in range(0, len(several), together):
            runs |= measured(of, several[start : start + together], range(preset.seeds), block=arguments.block)
            output.write_rows(path, [*_rows(runs)])
            output.write_rows(out / f"schedules_{name}.csv", [*_table(runs)])
            print(f"{name}: {max(0, len(several) - start - together)} schedules to go", flush=True)
        others = range(preset.seeds, 2 * preset.seeds)
        output.write_rows(out / f"best_{name}.csv", compared(of, runs, others, arguments.block))
        _draw(runs, out / f"ceiling_{name}", name)
        provenance.write(out / f"provenance_{name}.json", preset=repr(preset))
    return 0


def read(path: Path) -> dict[Schedule, Runs]:
    """Reads the runs that `main` wrote."""
    tables: dict[Schedule, list[list[float]]] = {}
    for row in output.read_rows(path):
        schedule = Schedule(int(row["first"]), int(row["then"]), int(row["change"]))
        tables.setdefault(schedule, []).append([float(row[column]) for column in Runs._fields])
    return {schedule: Runs(*np.array(table).T) for schedule, table in tables.items()}


def _rows(runs: Mapping[Schedule, Runs]) -> Iterator[dict[str, Any]]:
    for schedule, these in runs.items():
        for seed, columns in enumerate(zip(*these, strict=True)):
            yield {**asdict(schedule), "seed": seed, **dict(zip(Runs._fields, columns, strict=True))}


def _table(runs: Mapping[Schedule, Runs]) -> Iterator[dict[str, Any]]:
    for schedule, these in runs.items():
        medians = {column: float(np.median(getattr(these, column))) for column in Runs._fields}
        reached = int(np.isfinite(these.seconds).sum())
        yield {**asdict(schedule), "seeds": len(these.seconds), "reached": reached, **medians}


def _draw(runs: Mapping[Schedule, Runs], path: Path, name: str) -> None:
    """Draws median cost over median time: fixed numbers as a line, schedules of two levels as points."""
    points = {schedule: [float(np.median(x)) for x in these[:2]] for schedule, these in runs.items()}
    finite = {schedule: point for schedule, point in points.items() if np.isfinite(point).all()}
    fixed = sorted((schedule.first, point) for schedule, point in finite.items() if schedule.change == 0)
    others = [point for schedule, point in finite.items() if schedule.change]
    environment, testbed = TESTBEDS[name]
    title = f"{environment}, {minionsrl.label(testbed)}"
    with plots.figure(path, title, columns=1, suffixes=(".png", ".pdf")) as (axes,):
        if others:
            axes.plot(*np.transpose(others), ".", ms=3, color="#E69F00", label="two levels")
        if fixed:
            axes.plot(*np.transpose([point for _, point in fixed]), "o-", ms=4, lw=0.8, color="#0072B2", label="fixed")
        for number, (seconds, cost) in fixed:
            if number & (number - 1) == 0:
                plots.name_point(axes, f"{number}", (seconds, cost))
        axes.set_xlabel("seconds to the target, median")
        axes.set_ylabel("USD by Eq. 2, median")
        axes.legend()
