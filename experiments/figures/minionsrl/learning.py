"""Trains schedulers on compiled rounds, in several ways, and compares them with the best fixed number and a surface."""

import argparse
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np

from experiments.figures.minionsrl import ceiling
from experiments.figures.minionsrl.ceiling import Schedule
from experiments.study.cells import code_version
from experiments.toolkit import options, output, provenance
from experiments.toolkit.statistics import estimate
from stellaris import PPO
from stellaris.lab import Played, Rounds
from stellaris.scheduling import Learned
from stellaris.scheduling.training import AUTHORS_PPO, SCHEDULER_PPO, Objective, Progress, train_scheduler
from stellaris.types import NDArray

DESCRIPTION = "schedulers trained in several ways, against the best fixed number of actors and a fitted surface"

Minimise = Literal["time", "cost"]
#: Number of rounds above that of any run: the first decision holds for the whole run.
WHOLE = 2**20
#: Seeds of the runs on which results are reported, of the runs that choose a version, and of the first training run.
REPORTED, HELD_OUT, TRAINING = range(20, 40), range(500, 508), 1000
#: The budget of a run in USD, which seldom ends a run: three times the median cost of runs with all actors on eight
#: seeds.
BUDGETS = {"tuned": 3 * 0.0051, "authors": 3 * 0.0177, "authors-0.003": 3 * 0.0162}
#: The round after which schedules of the surface change from the first number of actors to the second.
CHANGE = 8


@dataclass(frozen=True)
class Way:
    """A way to train a scheduler."""

    ppo: PPO
    hold: int = 1
    together: int = 2
    failure: float | None = 1.0
    normalise: bool = True
    held_out: bool = True


_BEFORE = replace(SCHEDULER_PPO, lambda_=1.0)
WAYS: Mapping[str, Way] = {
    "one run, one epoch, raw states": Way(AUTHORS_PPO, together=1, failure=None, normalise=False, held_out=False),
    "four runs, lambda 1": Way(_BEFORE, together=4, failure=None, held_out=False),
    "two runs, lambda 0.85": Way(SCHEDULER_PPO),
    "held for five rounds": Way(SCHEDULER_PPO, hold=5),
    "held for the run": Way(SCHEDULER_PPO, hold=WHOLE, together=8),
}
_SURFACE, _ALL = "a quadratic surface", "all actors"


@dataclass(frozen=True)
class Preset:
    """The size of the study."""

    ceiling: ceiling.Preset
    episodes: int
    seeds: int  #: number of trainings.
    reported: Sequence[int] = REPORTED
    held_out: Sequence[int] = HELD_OUT
    fixed: Sequence[int] = (4, 8, 12, 16, 20, 24, 28)


PRESETS: Mapping[str, Preset] = {
    "smoke": Preset(ceiling.PRESETS["smoke"], episodes=8, seeds=1, reported=range(20, 22), held_out=(500,), fixed=(4,)),
    "small": Preset(ceiling.PRESETS["small"], episodes=100, seeds=2),
}


def rounds(preset: Preset, testbed: str) -> Rounds:
    """Returns the compiled rounds of a testbed, with its budget of cost."""
    of = ceiling.rounds(preset.ceiling, *ceiling.testbeds()[testbed])
    return replace(of, budget=replace(of.budget, cost=BUDGETS[testbed]))


def objective(of: Rounds, minimise: Minimise, failure: float | None) -> Objective:
    """Returns the objective of a training."""
    sheet, budget = of.prices[0].name, of.budget
    return Objective(budget.target_return, budget.cost, sheet, budget.window, minimise=minimise, failure=failure)


# ---- training --------------------------------------------------------------------------------------------------------


def trained(
    of: Rounds, way: Way, minimise: Minimise, *, preset: Preset, seed: int
) -> tuple[Learned, Learned, list[dict[str, Any]]]:
    """Trains a scheduler; returns it, the version with the best training run, and a row for every update."""
    start = Learned.untrained(most=of.workload.actors, seed=seed, hold=way.hold)
    playing, best, most = start, start, -np.inf
    rows: list[dict[str, Any]] = []

    def on_progress(progress: Progress, scheduler: Learned) -> None:
        nonlocal playing, best, most
        if max(progress.rewards) > most:
            best, most = playing, max(progress.rewards)
        playing = scheduler
        rows.append(
            {
                "episodes": progress.episodes,
                "reward": float(np.mean(progress.rewards)),
                "reached": sum(progress.reached),
                "entropy": progress.metrics["entropy"],
                "held_out": progress.held_out,
            }
        )
        print(f"  {rows[-1]}", flush=True)

    last = train_scheduler(
        start,
        of.histories,
        objective(of, minimise, way.failure),
        episodes=preset.episodes,
        together=way.together,
        ppo=way.ppo,
        seed=TRAINING * (seed + 1),
        normalise=way.normalise,
        held_out=preset.held_out if way.held_out else (),
        every=max(1, preset.episodes // (4 * way.together)),
        on_progress=on_progress,
    )
    return last, best, rows


# ---- the surface -----------------------------------------------------------------------------------------------------


def fitted(of: Rounds, minimise: Minimise, *, preset: Preset, seed: int) -> Schedule:
    """Fits a quadratic surface to runs of random schedules of two levels, and returns the schedule at its optimum.

    The surface is the logarithm of a run's time or cost, over the logarithms of both numbers of actors. Runs that miss
    the target count as three times the worst of the others.
    """
    most = of.workload.actors
    draws = np.random.default_rng(seed).uniform(0.0, np.log(most), (preset.episodes, 2))
    numbers = np.rint(np.exp(draws)).astype(int)
    seeds = [TRAINING * (seed + 1) + i for i in range(len(numbers))]
    spent = outcome(of.play([[first] * CHANGE + [then] for first, then in numbers.tolist()], seeds), minimise)
    spent = np.where(np.isfinite(spent), spent, 3 * spent[np.isfinite(spent)].max())
    weights = np.linalg.lstsq(_terms(np.log(numbers)), np.log(spent), rcond=None)[0]
    grid = np.stack(np.meshgrid(np.arange(1, most + 1), np.arange(1, most + 1), indexing="ij"), axis=-1).reshape(-1, 2)
    first, then = grid[np.argmin(_terms(np.log(grid)) @ weights)].tolist()
    return Schedule(first, then, CHANGE)


def _terms(x: NDArray) -> NDArray:
    """Returns the terms of a quadratic surface in two variables, `[n, 6]`."""
    a, b = x.T
    return np.stack([np.ones_like(a), a, b, a * a, a * b, b * b], axis=1)


# ---- results ---------------------------------------------------------------------------------------------------------


def outcome(played: Played, minimise: Minimise) -> NDArray:
    """Returns the seconds or the USD of each run; infinite if it missed the target."""
    spent = played.last("seconds") if minimise == "time" else played.last("costs")[:, 0]
    return np.where(played.reached, spent, np.inf)


def row_of(name: str, played: Played, everyone: Played) -> dict[str, Any]:
    """Returns the outcome of runs, relative to runs with all actors on the same seeds; failed pairs are left out."""
    actors = [float(np.mean(played.rows.actors[i, :n])) for i, n in enumerate(played.rounds)]
    row: dict[str, Any] = {"way": name, "reached": int(played.reached.sum()), "runs": len(actors)}
    row["actors"] = float(np.mean(actors))
    for minimise in ("time", "cost"):
        own, all_ = outcome(played, minimise), outcome(everyone, minimise)
        both = np.isfinite(own) & np.isfinite(all_)
        if both.any():
            found = estimate((own[both] / all_[both]).tolist())
            row |= {minimise: found.middle, f"{minimise}_low": found.low, f"{minimise}_high": found.high}
    return row


def compared(preset: Preset, testbed: str, ways: Sequence[str]) -> Iterator[tuple[dict[str, Any], list[Any]]]:
    """Yields a row for every scheduler, with the rows of its training."""
    of = rounds(preset, testbed)
    everyone = of.play([of.workload.actors] * len(preset.reported), preset.reported)
    yield {"minimise": "", "seed": "", **row_of(_ALL, everyone, everyone)}, []
    for number in preset.fixed:
        played = of.play([number] * len(preset.reported), preset.reported)
        yield {"minimise": "", "seed": "", **row_of(f"always {number}", played, everyone)}, []
    for seed in range(preset.seeds):
        for minimise in ("cost", "time"):
            same = {"minimise": minimise, "seed": seed}
            schedule = fitted(of, minimise, preset=preset, seed=seed)
            played = of.play([schedule.numbers] * len(preset.reported), preset.reported)
            yield {**same, **row_of(f"{_SURFACE}: {schedule.first}, then {schedule.then}", played, everyone)}, []
            for name in ways:
                print(f"{testbed}, {minimise}, {name}, training {seed}", flush=True)
                last, best, rows = trained(of, WAYS[name], minimise, preset=preset, seed=seed)
                training = [{**same, "way": name, **row} for row in rows]
                yield {**same, **row_of(name, of.play(last, preset.reported), everyone)}, training
                played = of.play(best, preset.reported)
                yield {**same, **row_of(f"{name}: of the best training run", played, everyone)}, []


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    add("--testbeds", nargs="+", choices=ceiling.testbeds(), default=["authors", "tuned"], help="the testbeds")
    add("--ways", nargs="+", choices=WAYS, default=[*WAYS], help="the ways to train")
    add("--out", type=options.folder, default=Path("results/minionsrl-learning"), help="folder of the results")


def main(arguments: argparse.Namespace) -> int:
    """Writes a table of the schedulers and one of their training for each testbed, after every scheduler."""
    preset, out = PRESETS[arguments.preset], arguments.out
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    for testbed in arguments.testbeds:
        rows: list[dict[str, Any]] = []
        training: list[dict[str, Any]] = []
        provenance.write(out / f"provenance_{testbed}.json", code_version(), preset=repr(preset))
        for row, updates in compared(preset, testbed, arguments.ways):
            print(row, flush=True)
            rows.append(row)
            training += updates
            output.write_rows(out / f"schedulers_{testbed}.csv", rows)
            if training:
                output.write_rows(out / f"training_{testbed}.csv", training)
    return 0
