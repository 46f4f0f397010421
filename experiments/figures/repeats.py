"""Repeats a few committed runs of the studies that are not made of cells: of the lab, of dry runs, of a log.

A dry run in virtual time gives the committed number again, on any machine. A run that learns does not: another
processor rounds otherwise, and a difference in the last digit grows until the run is another draw. So the mean of a few
seeds is compared with the mean of the committed seeds.
"""

import csv
import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from rich.console import Console
from rich.table import Table
from scipy import stats

from experiments.cluster import what_if
from experiments.figures.lab import lag, language
from experiments.figures.lab.methods import methods
from experiments.figures.map import command as map_command
from experiments.figures.map import learning, speed
from experiments.figures.map.deployments import SAMPLING_ON
from stellaris.lab import CartPole
from stellaris.runtime import WorkLog

#: The committed results.
COMMITTED = Path(__file__).parents[1] / "results"
#: The number of seeds of a repeated run that learns, in the time of one compilation.
_SEEDS = 2
#: The committed numbers of dry runs have five digits.
_ROUNDING = 1e-4
#: If both means are of one distribution, they are nearer than the margin with this probability.
_LEVEL = 0.999


class Repeat(NamedTuple):
    """A committed result and its repetition: a number each, or one per seed."""

    study: str
    run: str  #: words for the run.
    committed: Sequence[float]
    now: Sequence[float]

    @property
    def margin(self) -> float:
        """The largest difference of the means that is not an error.

        Of one number the rounding, of several the prediction interval of the mean of as many seeds as were repeated.
        """
        known = len(self.committed)
        if known == 1:
            return _ROUNDING * abs(self.committed[0])
        quantile = float(stats.t.ppf(0.5 + _LEVEL / 2, known - 1))
        return quantile * float(np.std(self.committed, ddof=1)) * math.sqrt(1 / known + 1 / len(self.now))

    @property
    def agrees(self) -> bool:
        """Whether the means differ by the margin at most."""
        return abs(float(np.mean(self.now)) - float(np.mean(self.committed))) <= self.margin


def check(console: Console, committed: Path = COMMITTED) -> int:
    """Repeats a run of each study, shows the committed results next to the new ones, and counts those that differ."""
    several = [
        *speeds(committed),
        *schedules(committed),
        return_against_lag(committed),
        learned_on_the_map(committed),
        sorted_answers(committed),
    ]
    table = Table("study", "run", "committed", "now", "margin", "")
    for one in several:
        numbers = (float(np.mean(one.committed)), float(np.mean(one.now)), one.margin)
        table.add_row(one.study, one.run, *(f"{x:,.4g}" for x in numbers), "agrees" if one.agrees else "differs")
    console.print(table)
    return sum(not one.agrees for one in several)


# ---- dry runs --------------------------------------------------------------------------------------------------------


def speeds(committed: Path, preset: map_command.Preset = map_command.PRESETS["small"]) -> Iterator[Repeat]:
    """Yields the steps per second of each system on the map's last deployment of it."""
    known = _rows(committed / "stellaris-map" / "speed.csv")
    for point in {point.system: point for point in preset.grid.points()}.values():
        (row,) = _matching(known, dataclasses.asdict(point))
        found = speed.measure((point, preset.grid.batches))
        yield Repeat("stellaris-map", f"speed, {point.system}", [float(row["steps_per_second"])], [found.steps])


def schedules(committed: Path, seconds: float = 60.0) -> Iterator[Repeat]:
    """Yields the largest age of the data under each schedule that `what-if` simulates from the committed log."""
    folder = committed / "what-if"
    known = {row["what"]: row for row in _rows(folder / "table.csv")}
    found = what_if.simulated(what_if.Question(), WorkLog.from_csv(folder / "log.csv"), seconds)
    for name, schedule in found.items():
        now = round(float(np.max(schedule.data_lag)), 1)  # as in the table
        yield Repeat("what-if", f"largest age, {name}", [float(known[name]["largest"])], [now])


# ---- runs that learn -------------------------------------------------------------------------------------------------


def return_against_lag(committed: Path, preset: lag.Preset = lag.PRESETS["small"]) -> Repeat:
    """Repeats PPO on CartPole at the third lag of `lab-lag` and the largest rate; the result is the run's mean."""
    task, rate = preset.tasks["CartPole"], preset.rates[-1]
    one = task.lags[min(2, len(task.lags) - 1)]
    few = replace(preset, rates=(rate,), seeds=2 * _SEEDS)  # short runs
    several = methods(epochs=preset.epochs, minibatch_size=preset.minibatch_size, fragment=preset.fragment)
    result = lag.swept(few, task._replace(lags=(one,)), {"PPO": several["PPO"]})
    wanted = {"task": "CartPole", "method": "PPO", "lag": one, "learning_rate": rate}
    known = _matching(_rows(committed / "lab-lag" / "runs.csv"), wanted)
    now = lag.returns(few, result, 1.0).ravel().tolist()
    return Repeat(
        "lab-lag", f"mean return, PPO, CartPole, lag {one}", [float(row["mean_return"]) for row in known], now
    )


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
    known = _matching(_rows(committed / "stellaris-map" / "learning_CartPole.csv"), wanted)
    then, now = (
        [float(np.mean([float(each) for each in row["returns"].split()])) for row in several]
        for several in (known, learning.rows(of, point, found))
    )
    return Repeat("stellaris-map", f"mean return, CartPole, {point.system}", then, now)


def sorted_answers(committed: Path, preset: language.Preset = language.PRESETS["small"]) -> Repeat:
    """Repeats GRPO at the third lag and the third rate of `lab-language`; the result is the run's mean."""
    part = preset.parts["lags"][0]
    few = replace(part, methods=("GRPO",), ages=part.ages[:3][-1:], rates=part.rates[:3][-1:], seeds=_SEEDS)
    wanted = {"method": "GRPO", "lag": few.ages[0].mean, "learning_rate": few.rates[0]}
    known = _matching(_rows(committed / "lab-language" / "lags.csv"), wanted)
    then, now = ([float(row["mean_exact"]) for row in several] for several in (known, language.run(preset, few)))
    return Repeat("lab-language", f"exact answers, GRPO, lag {few.ages[0].mean}", then, now)


# ---- committed tables ------------------------------------------------------------------------------------------------


def _rows(path: Path) -> Sequence[Mapping[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def _matching(rows: Sequence[Mapping[str, str]], wanted: Mapping[str, Any]) -> Sequence[Mapping[str, str]]:
    """Returns the rows with these values.

    Raises:
      LookupError: if no row has them, because the study has changed since.
    """
    found = [row for row in rows if all(_same(row[name], value) for name, value in wanted.items())]
    if not found:
        raise LookupError(f"no committed run has {wanted}: run the study anew")
    return found


def _same(text: str, value: Any) -> bool:
    return text == value if isinstance(value, str) else float(text) == float(value)
