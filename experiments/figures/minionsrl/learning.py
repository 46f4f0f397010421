"""Trains schedulers on compiled rounds, in several ways, and compares them with the best fixed number and a surface."""

import argparse
import math
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from experiments.figures.minionsrl import ceiling
from experiments.figures.minionsrl.ceiling import Schedule
from experiments.figures.minionsrl.outcomes import Minimise, References, Row, closed, outcome, parts, row_of, taken
from experiments.figures.minionsrl.ways import WAYS, WHOLE, Way, described, drawn, settings
from experiments.tasks import minionsrl
from experiments.toolkit import options, output, provenance, shell
from stellaris.lab import Played, Rounds
from stellaris.lab.rounds import Decider
from stellaris.scheduling import Learned
from stellaris.scheduling.objective import History
from stellaris.scheduling.training import Progress, Training, train_schedulers
from stellaris.types import NDArray

DESCRIPTION = "schedulers trained in several ways, against the best fixed number of actors and a fitted surface"

OBJECTIVES: Sequence[Minimise] = ("cost", "time")
#: Seeds of the runs on which results are reported, and of the runs that choose a version and a setting. Results on the
#: seeds 20 to 59 were known when the penalty was chosen, so that no later result is reported on them.
REPORTED, HELD_OUT = range(60, 80), range(500, 508)
#: The runs of training `i` have the seeds from `TRAINING * (i + 1)` on. The settings of the search have the trainings
#: from `SEARCH` on, so that the chosen one is trained anew on other runs.
TRAINING, SEARCH = 1000, 1000
#: The round after which schedules of the surface change from the first number of actors to the second.
CHANGE = 8


@dataclass(frozen=True)
class Preset:
    """The size of the study."""

    ceiling: ceiling.Preset
    episodes: int
    seeds: int  #: number of trainings.
    searched: int  #: number of settings that the search tries.
    reported: Sequence[int] = REPORTED
    held_out: Sequence[int] = HELD_OUT
    fixed: Sequence[int] = (4, 8, 12, 16, 20, 24, 28)
    objectives: Sequence[Minimise] = OBJECTIVES
    surface: bool = True  #: whether quadratic surfaces are fitted.
    start: Learned | None = None  #: the scheduler that is fine-tuned; without, trainings start from scratch.


_FEW: Any = {"reported": range(20, 22), "held_out": (500,), "fixed": (4,)}
PRESETS: dict[str, Preset] = {
    "smoke": Preset(ceiling.PRESETS["smoke"], episodes=8, seeds=1, searched=2, **_FEW),
    "small": Preset(ceiling.PRESETS["small"], episodes=100, seeds=2, searched=6),
}


@dataclass(frozen=True)
class Bench:
    """A testbed on which many runs are played by one call."""

    task: minionsrl.Task
    of: Rounds  #: with a budget of cost, which schedulers observe; comparisons are without it.
    block: int | None = None  #: most runs at a time.

    def play(self, deciders: Sequence[Decider], seeds: Sequence[int], *, limited: bool = False) -> list[Played]:
        """Plays one run for each seed under each of the schedulers; returns the runs of each."""
        each = [decider for decider in deciders for _ in seeds]
        played = self._play(each, [*seeds] * len(deciders), limited=limited)
        return parts(played, len(deciders))

    def unbound(self, played: Sequence[Played], seeds: Sequence[int]) -> list[Played]:
        """Plays runs, whose first decision holds throughout, again without the budget."""
        each = [
            (int(number), seed) for these in played for number, seed in zip(these.rows.actors[:, 0], seeds, strict=True)
        ]
        runs = [*dict.fromkeys(each)]  # versions of a scheduler often decide alike
        again = self._play([[number] for number, _ in runs], [seed for _, seed in runs])
        place = {run: i for i, run in enumerate(runs)}
        return parts(taken(again, [place[run] for run in each]), len(played))

    def histories(self, schedulers: Sequence[Learned], seeds: Sequence[int]) -> list[History]:
        """Plays one run for each seed, under the scheduler at the same place."""
        began = time.perf_counter()
        played = self._play(schedulers, seeds, limited=True)
        print(f"  {len(seeds)} runs in {time.perf_counter() - began:.1f} s", flush=True)
        return [played.history(run) for run in range(len(seeds))]

    def _play(self, each: Sequence[Decider], seeds: Sequence[int], *, limited: bool = False) -> Played:
        return self.of.play(each, seeds, block=self.block, cost=None if limited else math.inf)


def bench(preset: Preset, testbed: str, block: int | None) -> Bench:
    """Returns the compiled rounds of a testbed, with a budget of cost."""
    task = replace(ceiling.task_of(preset.ceiling, testbed), budget=minionsrl.BUDGETS[ceiling.TESTBEDS[testbed]])
    return Bench(task, ceiling.rounds(preset.ceiling, task), block)


# ---- training --------------------------------------------------------------------------------------------------------


@dataclass
class Trained:
    """A training by one of the ways, its versions and its progress."""

    name: str
    way: Way
    minimise: Minimise
    seed: int
    scheduler: Learned = field(init=False)  #: the newest version; at the end the one that training returns.
    best: Learned = field(init=False)  #: the version with the best training run.
    gap: tuple[float, float] = (math.nan, math.nan)  #: sums of rewards on the held-out seeds: of all actors, the most.
    rows: list[Row] = field(default_factory=list)  #: one for each update.
    _most: float = -np.inf

    @property
    def labels(self) -> Row:
        """The first columns of its rows."""
        return {"minimise": self.minimise, "seed": self.seed}

    @property
    def held_out(self) -> float:
        """The greatest mean sum of rewards of its versions on the held-out seeds; the untrained one does not count."""
        return max(float(row["held_out"]) for row in self.rows if row["held_out"] is not None)

    def training(self, on: Bench, preset: Preset, references: Sequence[Sequence[History]] = ()) -> Training:
        """Returns the training; its progress goes into the rows.

        Args:
          on: the testbed.
          preset: the size of the study.
          references: the held-out runs of all actors and of each fixed number; without them no share is logged.
        """
        way = self.way
        objective = on.task.objective(self.minimise, failure=way.failure)
        sums = [float(np.mean([objective.rewards(run).sum() for run in runs])) for runs in references]
        self.gap = (sums[0], max(sums)) if sums else self.gap
        most = on.of.workload.actors
        scratch = Learned.untrained(most=most, seed=self.seed, hold=way.hold, width=way.width)
        self.scheduler = self.best = preset.start or scratch
        return Training(
            self.scheduler,
            objective,
            episodes=preset.episodes,
            together=way.together,
            ppo=way.ppo,
            seed=TRAINING * (self.seed + 1),
            normalise=way.normalise,
            held_out=preset.held_out if way.held_out else (),
            every=way.every(preset.episodes),
            on_progress=self._on_progress,
        )

    def _on_progress(self, progress: Progress, scheduler: Learned) -> None:
        if max(progress.rewards) > self._most:
            self.best, self._most = self.scheduler, max(progress.rewards)
        self.scheduler = scheduler
        self.rows.append(
            {
                **self.labels,
                "way": self.name,
                "episodes": progress.episodes,
                "reward": float(np.mean(progress.rewards)),
                "reached": sum(progress.reached),
                "entropy": progress.metrics["entropy"],
                "held_out": progress.held_out,
                "closed": self._closed(progress.held_out),
            }
        )

    def _closed(self, held_out: float | None) -> float | None:
        """Returns the share of the gap in rewards that a version closes; None if it was not run, or without a gap."""
        everyone, most = self.gap
        return (held_out - everyone) / (most - everyone) if held_out is not None and most > everyone else None


def held_out_runs(on: Bench, preset: Preset) -> Sequence[Sequence[History]]:
    """Plays all actors and each fixed number on the held-out seeds, with the budget."""
    numbers = [[number] for number in (on.of.workload.actors, *preset.fixed)]
    several = on.play(numbers, preset.held_out, limited=True)
    return [[played.history(run) for run in range(len(preset.held_out))] for played in several]


def train(on: Bench, preset: Preset, several: Sequence[Trained], references: Sequence[Sequence[History]]) -> None:
    """Trains all of them in lockstep; `references` are the held-out runs of all actors and of the fixed numbers."""
    print(f"{len(several)} trainings", flush=True)
    trainings = [one.training(on, preset, references) for one in several]
    for one, last in zip(several, train_schedulers(trainings, on.histories), strict=True):
        one.scheduler = last


def chosen(settings_tried: Sequence[Trained], minimise: Minimise) -> Trained:
    """Returns the training of the search that did best on the held-out seeds."""
    return max((one for one in settings_tried if one.minimise == minimise), key=lambda one: one.held_out)


def search_rows(settings_tried: Sequence[Trained]) -> list[Row]:
    """Returns a row for each setting and objective of the search."""
    return [
        {
            **one.labels,
            **settings(one.way),
            "held_out": one.held_out,
            "held_out_last": one.rows[-1]["held_out"],
            "entropy": one.rows[-1]["entropy"],
            "chosen": one is chosen(settings_tried, one.minimise),
        }
        for one in settings_tried
    ]


# ---- the surface -----------------------------------------------------------------------------------------------------


def surfaces(on: Bench, preset: Preset) -> Iterator[tuple[Minimise, int, Schedule]]:
    """Fits a quadratic surface to runs of random schedules of two levels; yields the schedule at each optimum."""
    most, seeds = on.of.workload.actors, range(preset.seeds)
    numbers = [_numbers(most, preset.episodes, seed) for seed in seeds]
    each = [[first] * CHANGE + [then] for these in numbers for first, then in these.tolist()]
    runs = [TRAINING * (seed + 1) + i for seed in seeds for i in range(preset.episodes)]
    played = parts(on.of.play(each, runs, block=on.block), len(seeds))
    for seed in seeds:
        for minimise in preset.objectives:
            yield minimise, seed, fitted(numbers[seed], outcome(played[seed], minimise), most)


def _numbers(most: int, count: int, seed: int) -> NDArray:
    """Draws the first and the second number of actors of random schedules, `[count, 2]`."""
    return np.rint(np.exp(np.random.default_rng(seed).uniform(0.0, np.log(most), (count, 2)))).astype(int)


def fitted(numbers: NDArray, spent: NDArray, most: int) -> Schedule:
    """Returns the schedule at the optimum of a surface: log(time or cost) over the logarithms of both numbers.

    Runs that miss the target count as three times the worst of the others.

    Raises:
      ValueError: if no run has reached the target.
    """
    finite = np.isfinite(spent)
    if not finite.any():
        raise ValueError(f"none of {len(spent)} random schedules has reached the target: no surface can be fitted")
    spent = np.where(finite, spent, 3 * spent[finite].max())
    weights = np.linalg.lstsq(_terms(np.log(numbers)), np.log(spent), rcond=None)[0]
    grid = np.stack(np.meshgrid(np.arange(1, most + 1), np.arange(1, most + 1), indexing="ij"), axis=-1).reshape(-1, 2)
    first, then = grid[np.argmin(_terms(np.log(grid)) @ weights)].tolist()
    return Schedule(first, then, CHANGE)


def _terms(x: NDArray) -> NDArray:
    """Returns the terms of a quadratic surface in two variables, `[n, 6]`."""
    a, b = x.T
    return np.stack([np.ones_like(a), a, b, a * a, a * b, b * b], axis=1)


# ---- results ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Report:
    """Runs schedulers on the reported seeds, and compares them with the references."""

    on: Bench
    preset: Preset
    references: References

    @staticmethod
    def of(on: Bench, preset: Preset) -> "Report":
        """Plays the references."""
        everyone, *fixed = on.play([[number] for number in (on.of.workload.actors, *preset.fixed)], preset.reported)
        return Report(on, preset, References(everyone, fixed))

    def first(self) -> list[Row]:
        """Returns the rows of the references."""
        everyone, fixed = self.references
        names = ["all actors", *(f"always {number}" for number in self.preset.fixed)]
        return [
            {"minimise": "", "seed": "", **row_of(name, played, everyone)}
            for name, played in zip(names, (everyone, *fixed), strict=True)
        ]

    def rows(self, several: Sequence[tuple[Row, str, Decider]]) -> list[Row]:
        """Plays schedulers, each given with its labels and its name; returns their rows.

        Learned schedulers have a budget, which ends some runs. A run whose first decision holds throughout is played
        again without the budget, so that no ratio leaves out the dear runs.
        """
        deciders = [decider for *_, decider in several]
        learned = any(isinstance(one, Learned) for one in deciders)
        within = self.on.play(deciders, self.preset.reported, limited=learned)
        whole = learned and all(isinstance(one, Learned) and one.hold >= WHOLE for one in deciders)
        played = self.on.unbound(within, self.preset.reported) if whole else within
        return [
            {
                **labels,
                **row_of(name, runs, self.references.everyone),
                **({"within_budget": int(limited.reached.sum())} if learned else {}),
                **closed(runs, self.references, labels["minimise"]),
            }
            for (labels, name, _), runs, limited in zip(several, played, within, strict=True)
        ]

    def surfaces(self) -> list[Row]:
        """Returns the rows of the surfaces' schedules."""
        return self.rows(
            [
                (
                    {"minimise": minimise, "seed": seed},
                    f"a quadratic surface: {schedule.first}, then {schedule.then}",
                    schedule.numbers,
                )
                for minimise, seed, schedule in surfaces(self.on, self.preset)
            ]
        )

    def trained(self, several: Sequence[Trained]) -> list[Row]:
        """Returns two rows for each training: its scheduler, and the version with the best training run."""
        rows: list[Row] = []
        for whole in (False, True):
            own = [one for one in several if (one.way.hold >= WHOLE) == whole]
            pairs = [((one.name, one.scheduler), (f"{one.name}: of the best training run", one.best)) for one in own]
            versions = [(one.labels, *version) for one, pair in zip(own, pairs, strict=True) for version in pair]
            rows += self.rows(versions) if versions else []
        return rows


def compared(
    on: Bench, preset: Preset, ways: Sequence[str], save: Callable[[str, Learned], None]
) -> Iterator[tuple[str, list[Row]]]:
    """Yields rows, each time with the name of their table: first the rows that need no training, and then the rest.

    `save` is called with the scheduler of each objective that did best on the held-out seeds.
    """
    report = Report.of(on, preset)
    yield "schedulers", report.first()
    if preset.surface:
        yield "schedulers", report.surfaces()
    if preset.start is not None:
        labels = [{"minimise": minimise, "seed": ""} for minimise in preset.objectives]
        yield "schedulers", report.rows([(one, "before fine-tuning", preset.start) for one in labels])
    both = [(minimise, seed) for seed in range(preset.seeds) for minimise in preset.objectives]
    own = [Trained(name, WAYS[name], *of) for of in both for name in ways]
    tried = [
        Trained("", way, minimise, SEARCH + i)
        for i, way in enumerate(drawn(preset.searched))
        for minimise in preset.objectives
    ]
    references = held_out_runs(on, preset)
    train(on, preset, [*own, *tried], references)
    yield "training", [row for one in own for row in one.rows]
    if tried:
        yield "search", search_rows(tried)
    for minimise in preset.objectives:
        if candidates := [one for one in (*own, *tried) if one.way.held_out]:
            save(minimise, chosen(candidates, minimise).scheduler)
    yield "schedulers", report.trained(own)
    if not tried:
        return
    best = {minimise: chosen(tried, minimise).way for minimise in preset.objectives}
    anew = [
        Trained(f"searched: {described(best[minimise])}", best[minimise], minimise, seed) for minimise, seed in both
    ]
    train(on, preset, anew, references)
    yield "training", [row for one in anew for row in one.rows]
    yield "schedulers", report.trained(anew)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Adds the options."""
    add = parser.add_argument
    add("--preset", choices=PRESETS, default="small", help="the size of the study")
    help_ = "the testbeds (default: CartPole's)"
    add("--testbeds", nargs="+", choices=ceiling.TESTBEDS, default=ceiling.DEFAULT, help=help_)
    add("--ways", nargs="+", choices=WAYS, default=[*WAYS], help="the ways to train")
    add("--minimise", nargs="+", choices=OBJECTIVES, default=[*OBJECTIVES], help="what runs should minimise")
    add(
        "--fixed",
        nargs="+",
        type=options.whole(1, minionsrl.ACTORS),
        help="fixed numbers to compare with (default: the preset's)",
    )
    add("--surface", action=argparse.BooleanOptionalAction, default=True, help="whether to fit quadratic surfaces")
    add("--trainings", type=options.whole(1), help="number of trainings in each way (default: the preset's)")
    add("--episodes", type=options.whole(1), help="runs of a training (default: the preset's)")
    add("--start", type=Path, help="a trained scheduler to fine-tune, without a search")
    add("--searched", type=options.whole(0), help="number of settings of the search (default: the preset's)")
    add(
        "--block",
        type=options.whole(1),
        help="most runs of a program (default: 1 on a CPU, which runs one a core; 256 on another device)",
    )
    add("--out", type=options.folder, default=Path("results/minionsrl-learning"), help="folder of the results")


def started(path: Path | None, ways: Sequence[str], searched: int | None) -> Learned | None:
    """Loads the scheduler to fine-tune, and checks that the ways train such schedulers and that no search is asked."""
    if path is None:
        return None
    start = minionsrl.trained(path)
    other = [name for name in ways if (WAYS[name].hold, WAYS[name].width) != (start.hold, start.width)]
    if other:
        raise shell.UsageError(f"--start {path} is {start}, which {other[0]!r} of --ways does not train")
    if searched:
        raise shell.UsageError(
            f"--searched {searched}: the settings of a search are trained from scratch, without --start"
        )
    return start


def main(arguments: argparse.Namespace) -> int:
    """Writes tables of the schedulers, of their training and of the search for each testbed, as soon as rows exist."""
    preset, out = PRESETS[arguments.preset], arguments.out
    start = started(arguments.start, arguments.ways, arguments.searched)
    searched = preset.searched if start is None else 0
    preset = replace(
        preset,
        seeds=arguments.trainings or preset.seeds,
        searched=searched if arguments.searched is None else arguments.searched,
        fixed=arguments.fixed or preset.fixed,
        objectives=arguments.minimise,
        surface=arguments.surface,
        episodes=arguments.episodes or preset.episodes,
        start=start,
    )
    with output.usable(out):
        out.mkdir(parents=True, exist_ok=True)
    for testbed in arguments.testbeds:
        print(testbed, flush=True)
        tables: dict[str, list[Any]] = {}
        provenance.write(out / f"provenance_{testbed}.json", preset=repr(preset))

        def save(minimise: str, scheduler: Learned, testbed: str = testbed) -> None:
            scheduler.save(out / f"{testbed}-{minimise}.npz")

        for table, rows in compared(bench(preset, testbed, arguments.block), preset, arguments.ways, save):
            tables.setdefault(table, []).extend(rows)
            output.write_rows(out / f"{table}_{testbed}.csv", tables[table])
            if table == "schedulers":
                print(*rows, sep="\n", flush=True)
    return 0
