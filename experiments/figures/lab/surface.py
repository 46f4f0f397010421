"""The outcomes of all methods on a task, by lag and learning rate: those of `lab-lag` and the new ones."""

import json
from collections.abc import Sequence
from collections.abc import Set as AbstractSet
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.figures.lab import lag, newest
from experiments.figures.lab.outcomes import Cells
from experiments.toolkit import output

#: The committed tables of `lab-lag`: the floors of its tasks, and the runs of its seven methods.
LAB_LAG = Path(__file__).parents[2] / "results" / "lab-lag"
#: The same of `lab-newest`, whose outcome is that of the newest policy.
LAB_NEWEST = LAB_LAG.with_name("lab-newest")
#: The name of the PPO that ran with the new methods, on their device.
AGAIN = "PPO, rerun"


class Surface(NamedTuple):
    """The outcomes of all methods on a task."""

    cells: Cells
    new: AbstractSet[str]  #: the methods that are not of the earlier study, with the PPO that ran with them.
    part: str = "lags"  #: the part whose runs the new methods have.
    study: str = "lab-lag"  #: the earlier study.

    def reference(self, method: str) -> str:
        """Returns the PPO that a method is compared with: its own device's; the PPO of `lab-lag` for the other one."""
        return AGAIN if method in self.new - {AGAIN} and AGAIN in self.new else self.cells.reference


def floor_of(task: str, study: Path = LAB_LAG) -> float:
    """Returns the mean return of an untrained policy, which a study has measured.

    Example:
      >>> floor_of("Acrobot-v1")
      -499.0503125
    """
    return float(json.loads((study / "settings.json").read_text())[task]["floor"])


def read(path: Path) -> list[dict[str, str]]:
    """Reads the rows of a table; none if the file is missing."""
    return output.read_rows(path) if path.exists() else []


def cells_of(rows: Sequence[dict[str, str]], floor: float) -> Cells:
    """Returns the outcomes of rows that have every lag, rate and seed of every method.

    Raises:
      ValueError: if rows are missing, or stand there twice.
    """
    axes: list[list[Any]] = [list(dict.fromkeys(row["method"] for row in rows))]
    axes += [sorted({kind(row[name]) for row in rows}) for name, kind in _AXES]
    place = [{value: i for i, value in enumerate(axis)} for axis in axes]
    shape = tuple(map(len, axes))
    final, mean = np.full(shape, np.nan), np.full(shape, np.nan)
    for row in rows:
        keys = (row["method"], *(kind(row[name]) for name, kind in _AXES))
        at = tuple(of[key] for of, key in zip(place, keys, strict=True))
        final[at], mean[at] = float(row["final_return"]), float(row["mean_return"])
    if len(rows) != final.size or np.isnan(final).any():
        raise ValueError(f"{len(rows)} rows of {axes[0]} at {shape[1:]} lags, rates and seeds: run the part again")
    return Cells(axes[0], axes[1], axes[2], final, mean, floor)


_AXES: Sequence[tuple[str, Any]] = (("lag", int), ("learning_rate", float), ("seed", int))


def surface_of(
    task: str, rows: Sequence[dict[str, str]], size: lag.Preset, part: str = "lags", study: Path = LAB_LAG
) -> Surface:
    """Returns the outcomes of the new methods, from the rows of a part, and of those of an earlier study.

    Those of the earlier study are left out if it has other settings, as for the preset `smoke`.
    """
    new = cells_of(rows, floor_of(task, study))
    if size not in (lag.PRESETS["small"], newest.PRESETS["small"]):
        return Surface(new, frozenset(), part)
    old = lag.read(study, size, task, new.floor)
    if (tuple(old.lags), tuple(old.rates)) != (tuple(new.lags), tuple(new.rates)):
        raise ValueError(
            f"{task}: lags {new.lags} and rates {new.rates} are not those of {study.name}: run the part again"
        )
    names = [AGAIN if name == "PPO" else name for name in new.methods]
    final, mean = (np.concatenate(pair) for pair in ((old.final, new.final), (old.mean, new.mean)))
    cells = Cells([*old.methods, *names], old.lags, old.rates, final, mean, new.floor)
    return Surface(cells, frozenset(names), part, study.name)
