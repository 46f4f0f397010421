"""Repeats a few committed runs of the studies that are not made of cells: of the lab, of dry runs, of a log.

A dry run in virtual time gives the committed number again, on any machine. A run that learns does not: another
processor rounds otherwise, and a difference in the last digit grows until the run is another draw. So the mean of a few
seeds is compared with the mean of the committed seeds.
"""

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

from experiments.cluster import what_if
from experiments.figures.lab import cell
from experiments.figures.lab.cell import Cell
from experiments.figures.map import command as map_command
from experiments.figures.map import learning, speed
from experiments.figures.map.deployments import SAMPLING_ON
from experiments.figures.minionsrl import ceiling
from experiments.toolkit import output
from experiments.toolkit.repeat import COMMITTED, Repeat, matching
from stellaris.lab import CartPole
from stellaris.runtime import WorkLog

#: The number of seeds of a repeated run that learns, in the time of one compilation.
_SEEDS = 2
#: The cells of the lab's studies that are repeated.
CELLS = (
    Cell("lab-lag", "CartPole", "PPO", 2, 1e-2),
    Cell("lab-corrections", "CartPole", "SAPO", 2, 1e-3),
    Cell("lab-language", "Sorting", "GRPO", 4, 2e-3),
    Cell("lab-gradients", "CartPole", "uncorrected", 2, 1e-3),
)


def check(console: Console, committed: Path = COMMITTED) -> int:
    """Repeats a run of each study, shows the committed results next to the new ones, and counts those that differ."""
    several = [
        *speeds(committed),
        *schedules(committed),
        learned_on_the_map(committed),
        in_rounds(committed),
        *(cell.repeat(one, _SEEDS, committed) for one in CELLS),
    ]
    table = Table("study", "run", "committed", "now", "margin", "")
    for one in several:
        table.add_row(*one.row())
    console.print(table)
    return sum(not one.agrees for one in several)


# ---- dry runs --------------------------------------------------------------------------------------------------------


def speeds(committed: Path, preset: map_command.Preset = map_command.PRESETS["small"]) -> Iterator[Repeat]:
    """Yields the steps per second of each system on the map's last deployment of it."""
    known = output.read_rows(committed / "stellaris-map" / "speed.csv")
    for point in {point.system: point for point in preset.grid.points()}.values():
        (row,) = _matching(known, dataclasses.asdict(point))
        found = speed.measure((point, preset.grid.batches))
        yield Repeat("stellaris-map", f"speed, {point.system}", [float(row["steps_per_second"])], [found.steps])


def schedules(committed: Path, seconds: float = 60.0) -> Iterator[Repeat]:
    """Yields the largest age of the data under each schedule that `what-if` simulates from the committed log."""
    folder = committed / "what-if"
    known = {row["what"]: row for row in output.read_rows(folder / "table.csv")}
    found = what_if.simulated(what_if.Question(), WorkLog.from_csv(folder / "log.csv"), seconds)
    for name, schedule in found.items():
        now = round(float(np.max(schedule.data_lag)), 1)  # as in the table
        yield Repeat("what-if", f"largest age, {name}", [float(known[name]["largest"])], [now])


# ---- runs that learn -------------------------------------------------------------------------------------------------


def learned_on_the_map(committed: Path, preset: map_command.Preset = map_command.PRESETS["small"]) -> Repeat:
    """Repeats Stellaris with few learners and actors that sample on, on CartPole; the result is the run's mean."""
    every = preset.learning
    of = replace(
        every,
        kappas=every.kappas[-1:],
        variations=every.variations[-1:],
        learners=every.learners[:2][-1:],
        rates=every.rates[:3][-1:],
        seeds=_SEEDS,
    )
    (point,) = (each for each in of.points() if each.system == SAMPLING_ON)
    found = learning.curves(of, point, CartPole(), None, None)
    wanted = {**dataclasses.asdict(point), "learning_rate": of.rates[0]}
    known = _matching(output.read_rows(committed / "stellaris-map" / "learning_CartPole.csv.gz"), wanted)
    then, now = (
        [float(np.mean([float(each) for each in row["returns"].split()])) for row in several]
        for several in (known, learning.rows(of, point, found))
    )
    return Repeat("stellaris-map", f"mean return, CartPole, {point.system}", then, now)


def in_rounds(committed: Path, preset: ceiling.Preset = ceiling.PRESETS["small"]) -> Repeat:
    """Repeats MinionsRL with half of the actors and the tuned learner on CartPole, in compiled rounds."""
    half = max(preset.fixed) // 2
    schedule = ceiling.Schedule(half, half, 0)
    known = ceiling.read(committed / "minionsrl-ceiling" / "runs_tuned.csv.gz")
    found = ceiling.measured(ceiling.rounds(preset, ceiling.task_of(preset, "tuned")), [schedule], range(_SEEDS))
    then, now = (of[schedule].seconds.tolist() for of in (known, found))
    return Repeat("minionsrl-ceiling", f"seconds, CartPole, {half} actors", then, now)


# ---- committed tables ------------------------------------------------------------------------------------------------


def _matching(rows: Sequence[Mapping[str, str]], wanted: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Returns the rows with these values.

    Raises:
      LookupError: if no row has them, because the study has changed since.
    """
    if not (found := matching(rows, wanted)):
        raise LookupError(f"no committed run has {wanted}: run the study anew")
    return found
