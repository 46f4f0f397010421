"""The curves of committed runs, by seed, and a baseline that is pooled over runs that compute the same."""

from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np

from experiments.toolkit.statistics import ratio

#: The rows of a study's `curves.csv`.
Points: TypeAlias = Sequence[Mapping[str, str]]
#: The columns of a run's curve.
Run: TypeAlias = Mapping[str, Any]


def runs(points: Points, environment: str, variant: str) -> dict[str, Run]:
    """Returns the columns of each run of a variant, by seed."""
    own = [row for row in points if (row["environment"], row["setting"] or row["system"]) == (environment, variant)]
    first = own[0] if own else {}
    columns = [name for name in first if name in ("seconds", "steps", "episode_return") or name.startswith("cost_")]
    columns += ["evaluation_return"] if first.get("evaluation_return") else []  # not every study evaluates
    return {
        seed: {name: np.array([float(row[name]) for row in own if row["seed"] == seed]) for name in columns}
        for seed in dict.fromkeys(row["seed"] for row in own)
    }


def pooled(run: Run, others: Sequence[Run]) -> Run:
    """Returns a run at its own times and costs, with the mean return of itself and of runs that compute the same.

    Synchronous systems that differ in their deployment only compute the same gradients, in rounds of as many steps, but
    fragments arrive in another order, which changes the shuffles. So their returns after as many steps are draws of one
    distribution. Runs whose returns are equal are counted once.

    Args:
      run: a run of the baseline.
      others: runs of the same seed that compute the same.

    Example:
      >>> run, other = ({"steps": np.array([0, 8]), "episode_return": np.array([0.0, top])} for top in (2.0, 4.0))
      >>> pooled(run, [run, other])["episode_return"]
      array([0., 3.])
    """
    returns = [np.interp(run["steps"], one["steps"], one["episode_return"]) for one in (run, *others)]
    distinct = {tuple(each.tolist()): each for each in returns}
    return {**run, "episode_return": np.mean([*distinct.values()], axis=0)}


def return_ratio(own: Run, other: Run) -> float:
    """Returns the ratio of the returns at the end of the shorter run."""
    return _ratio_at(own, other, [_end(own, other)])


def mean_ratio(own: Run, other: Run) -> float:
    """Returns the ratio of the mean returns over time, up to the end of the shorter run.

    Before the first return of a run, that return counts.

    Example:
      >>> run, other = ({"seconds": np.array([0, 8]), "episode_return": np.array([0.0, top])} for top in (2.0, 4.0))
      >>> mean_ratio(run, other), return_ratio(run, other)
      (0.5, 0.5)
    """
    return _ratio_at(own, other, np.linspace(0.0, _end(own, other), 1_000))


def _end(own: Run, other: Run) -> float:
    return float(min(own["seconds"][-1], other["seconds"][-1]))


def _ratio_at(own: Run, other: Run, seconds: Any) -> float:
    """Returns the ratio of the mean returns at these instants, between which curves are interpolated."""
    one, two = (float(np.interp(seconds, run["seconds"], run["episode_return"]).mean()) for run in (own, other))
    return ratio(one, two)
