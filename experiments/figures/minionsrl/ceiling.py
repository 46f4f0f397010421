"""Computes the gap that a scheduler could close, between the best fixed number of actors and the best of two levels."""

import argparse
import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.study.cells import code_version
from experiments.tasks import minionsrl, testbed
from experiments.toolkit import options, output, plots, provenance
from experiments.toolkit.statistics import Estimate, estimate
from stellaris import PPO, ActorCritic
from stellaris.lab import CartPole, Rounds
from stellaris.runtime import FunctionSpec
from stellaris.systems import Budget, Workload
from stellaris.types import NDArray

DESCRIPTION = "the best fixed number of actors against schedules of two levels, by time and by cost"

#: The most steps of a run; CartPole needs about 60,000. A run that needs more has failed.
STEPS = 400_000
#: The authors' learner: gradients in each round, each on the whole batch. Source: the code of MinionsRL's authors.
GRADIENTS = 30
#: Seconds of such a gradient, and of a step. Assumption: a fragment of 128 steps takes as long as the paper's 2,048
#: steps of a millisecond, because CartPole would need few rounds of 2,048 steps; actors then have three quarters of a
#: round's cost, if all sample.
WHOLE_GRADIENT = 0.013
LONG_STEP = testbed.ENVIRONMENT_STEP * minionsrl.PAPERS_FRAGMENT / minionsrl.FRAGMENT


class Schedule(NamedTuple):
    """`first` actors until a round, `then` others; a fixed number if both are equal."""

    first: int
    then: int
    change: int  #: the number of rounds with `first` actors; 0 for a fixed number.

    @property
    def numbers(self) -> Sequence[int]:
        """The number of actors in each round; the last number also holds later."""
        return [self.first] * self.change + [self.then]


@dataclass(frozen=True)
class Preset:
    """The size of the study."""

    fixed: Sequence[int]
    levels: Sequence[int]
    changes: Sequence[int]
    seeds: int  #: seeds on which schedules are chosen; the best are run on as many others.
    target: float
    hidden: tuple[int, ...] = (64, 64)

    def schedules(self) -> Iterator[Schedule]:
        """Yields every fixed number, and every schedule of two levels."""
        for number in self.fixed:
            yield Schedule(number, number, 0)
        for (first, then), change in itertools.product(itertools.permutations(self.levels, 2), self.changes):
            yield Schedule(first, then, change)


_LEVELS, _CHANGES = (2, 4, 8, 12, 16, 24, 32), (2, 4, 8, 16, 32)
_TARGET = minionsrl.GOALS["CartPole-v1"][0]
PRESETS: Mapping[str, Preset] = {
    "smoke": Preset((2, 4), (2, 4), (2,), seeds=2, target=22.0, hidden=(8,)),
    "small": Preset(tuple(range(1, minionsrl.ACTORS + 1)), _LEVELS, _CHANGES, seeds=20, target=_TARGET),
}


def testbeds() -> Mapping[str, tuple[PPO, Mapping[str, FunctionSpec]]]:
    """Returns the learner and the deployment of each testbed.

    With the tuned settings, the number of gradients grows with the samples. The authors' learner computes equally many
    in every round, here at two learning rates. With four seeds and a learning rate of 0.003, 32 actors needed fewer
    rounds than 16 (10 against 16); at 0.001 they did not (17 each).
    """
    ppo, functions = minionsrl.task("CartPole-v1").ppo, minionsrl.functions()
    whole = replace(ppo, epochs=GRADIENTS, minibatch_size=minionsrl.ACTORS * minionsrl.FRAGMENT)
    long = {
        "actor": replace(functions["actor"], compute=testbed.ASSUMED.varying(LONG_STEP)),
        "learner": replace(functions["learner"], compute=testbed.ASSUMED.varying(WHOLE_GRADIENT)),
    }
    return {
        "tuned": (ppo, functions),
        "authors": (replace(whole, learning_rate=0.001), long),
        "authors-0.003": (replace(whole, learning_rate=0.003), long),
    }


def rounds(preset: Preset, ppo: PPO, functions: Mapping[str, FunctionSpec]) -> Rounds:
    """Returns the compiled rounds of a testbed."""
    policy = ActorCritic(hidden=preset.hidden, scaling_discount=0.99)
    workload = Workload(CartPole(), policy, actors=minionsrl.ACTORS, fragment=minionsrl.FRAGMENT)
    budget = Budget(steps=STEPS, target_return=preset.target, window=minionsrl.ACTORS)
    most = -(-STEPS // minionsrl.FRAGMENT)
    return Rounds(workload, ppo, functions, minionsrl.serverless_prices(), budget=budget, most=most, prewarm=True)


class Runs(NamedTuple):
    """The runs of a schedule, `[seeds]`; infinite where a run failed."""

    seconds: NDArray
    cost: NDArray  #: USD by Eq. 2.
    rounds: NDArray
    steps: NDArray


#: The quantities that the best schedules minimise: columns of `Runs`.
OBJECTIVES = ("seconds", "cost")


def measured(
    of: Rounds, schedules: Sequence[Schedule], seeds: Sequence[int], *, block: int | None = None
) -> Mapping[Schedule, Runs]:
    """Runs each schedule once for each seed; at most `block` runs are computed at a time."""
    each = [schedule.numbers for schedule in schedules for _ in seeds]
    played = of.play(each, [*seeds] * len(schedules), block=block)
    columns = played.last("seconds"), played.last("costs")[:, 0], played.rounds, played.last("steps")
    tables = [np.where(played.reached, column, np.inf).reshape(len(schedules), -1) for column in columns]
    return {schedule: Runs(*(table[i] for table in tables)) for i, schedule in enumerate(schedules)}


def best(runs: Mapping[Schedule, Runs], objective: str, *, fixed: bool) -> Schedule:
    """Returns the schedule with the least median; failed runs count as infinite."""
    own = [schedule for schedule in runs if (schedule.change == 0) == fixed]
    return min(own, key=lambda schedule: float(np.median(getattr(runs[schedule], objective))))


def compared(of: Rounds, runs: Mapping[Schedule, Runs], seeds: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields a row for each objective: the best schedules of both kinds, on seeds on which they were not chosen."""
    for objective in OBJECTIVES:
        number, schedule = (best(runs, objective, fixed=fixed) for fixed in (True, False))
        several = (number, schedule, Schedule(minionsrl.ACTORS, minionsrl.ACTORS, 0))
        fresh = measured(of, several, seeds)
        there = [getattr(fresh[one], objective) for one in several]
        yield {
            "objective": objective,
            "fixed": number.first,
            "first": schedule.first,
            "then": schedule.then,
            "change": schedule.change,
            "fixed_median": float(np.median(there[0])),
            "schedule_median": float(np.median(there[1])),
            "all_median": float(np.median(there[2])),
            **_ratio("schedule_to_fixed", there[1], there[0]),
            **_ratio("fixed_to_all", there[0], there[2]),
        }


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
    add("--testbeds", nargs="+", choices=testbeds(), default=[*testbeds()], help="the testbeds")
    add("--block", type=options.whole(1), help="most runs at a time, on a GPU thousands (default: one schedule's)")
    add("--out", type=options.folder, default=Path("results/minionsrl-ceiling"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Writes a table of all schedules and one of the best for each testbed, and draws cost over time."""
    preset, out = PRESETS[arguments.preset], arguments.out
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    for name in arguments.testbeds:
        of = rounds(preset, *testbeds()[name])
        runs: dict[Schedule, Runs] = {}
        several = [*preset.schedules()]
        # A block has the runs of several schedules; the table is written after each block, so that it can be read.
        together = max(1, (arguments.block or 1) // preset.seeds)
        for start in range(0, len(several), together):
            runs |= measured(of, several[start : start + together], range(preset.seeds), block=arguments.block)
            output.write_rows(out / f"schedules_{name}.csv", [*_table(runs)])
            print(f"{name}: {len(runs)} of {len(several)} schedules", flush=True)
        others = range(preset.seeds, 2 * preset.seeds)
        output.write_rows(out / f"best_{name}.csv", [*compared(of, runs, others)])
        _draw(runs, out / f"ceiling_{name}", name)
        provenance.write(out / f"provenance_{name}.json", code_version(), preset=repr(preset))
    return 0


def _table(runs: Mapping[Schedule, Runs]) -> Iterator[dict[str, Any]]:
    for schedule, these in runs.items():
        medians = {column: float(np.median(getattr(these, column))) for column in Runs._fields}
        reached = int(np.isfinite(these.seconds).sum())
        yield {**schedule._asdict(), "seeds": len(these.seconds), "reached": reached, **medians}


def _draw(runs: Mapping[Schedule, Runs], path: Path, name: str) -> None:
    """Draws median cost over median time: fixed numbers as a line, schedules of two levels as points."""
    points = {schedule: [float(np.median(x)) for x in these[:2]] for schedule, these in runs.items()}
    finite = {schedule: point for schedule, point in points.items() if np.isfinite(point).all()}
    fixed = [(schedule.first, point) for schedule, point in finite.items() if schedule.change == 0]
    others = [point for schedule, point in finite.items() if schedule.change]
    with plots.figure(path, f"{name}: median of seeds", columns=1, suffixes=(".png", ".pdf")) as (axes,):
        if others:
            axes.plot(*np.transpose(others), ".", color="#E69F00", label="two levels")
        if fixed:
            axes.plot(*np.transpose([point for _, point in fixed]), "o-", ms=3, color="#0072B2", label="fixed")
        for number, (seconds, cost) in fixed:
            if number & (number - 1) == 0:
                axes.annotate(f"{number}", (seconds, cost), xytext=(3, 3), textcoords="offset points", fontsize=8)
        axes.set_xlabel("seconds to the target")
        axes.set_ylabel("USD by Eq. 2")
        axes.legend()
