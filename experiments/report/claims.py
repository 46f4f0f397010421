"""The papers' claims, and what the studies' runs say of them."""

import csv
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from experiments.statistics import Estimate, estimate

#: A claim is judged only where the baseline reaches such a part of what it comes to with a budget that is not short.
ENOUGH = 0.7
#: Runs of a million steps, by which that is known.
_LONG = Path(__file__).parents[1] / "results" / "hopper" / "runs.csv"

#: The points of a study's curves: rows of its `curves.csv`.
Points = Sequence[Mapping[str, str]]


class Claim(NamedTuple):
    """What a paper says."""

    paper: str
    claim: str
    workload: str
    unit: str
    value: float
    source: str


class Finding(NamedTuple):
    """What was measured of a claim."""

    ours: Estimate
    environments: tuple[str, ...]
    seeds: int
    judged: bool  #: whether the baseline has learned enough for the claim to be looked at.
    command: str


def tuned() -> dict[str, float]:
    """What the synchronous baseline comes to with a long budget: the median of its seeds, by environment."""
    finals: dict[str, list[float]] = {}
    with _LONG.open(newline="") as file:
        for row in csv.DictReader(file):
            if row["system"] == "synchronous":
                finals.setdefault(row["environment"], []).append(float(row["final_return"]))
    return {environment: float(np.median(returns)) for environment, returns in finals.items()}


def claims() -> list[Claim]:
    """The papers' claims, from `claims.csv` beside this module."""
    with Path(__file__).with_name("claims.csv").open(newline="") as file:
        return [Claim(**{**row, "value": float(row["value"])}) for row in csv.DictReader(file)]  # type: ignore[arg-type]


def verdict(claim: Claim, finding: Finding | None) -> str:
    """Whether a claim was reproduced: blank where nothing can be said.

    Nothing can be said without enough seeds for an interval, nor where the baseline has not learned. Otherwise a claim
    is reproduced if the interval reaches the paper's value.
    """
    if finding is None or not finding.judged or not finding.ours.claim:
        return ""
    return "yes" if finding.ours.high >= claim.value else "no"


def findings(points: Mapping[str, Points]) -> dict[str, Finding]:
    """By claim, what the studies' curves say of it.

    Args:
      points: of each study that was run, by its name.
    """
    training = points.get("stellaris-training", ())
    if not {"stellaris", "synchronous"} <= {row["system"] for row in training}:
        return {}
    command = "python -m experiments stellaris-training"
    reward = _compared(training, _return_ratio, command)
    cost = _compared(training, _saved, "python -m experiments stellaris-cost")
    return {
        "episodic reward against the baselines at equal wall-clock time": reward,
        "training cost reduction against the baselines": cost,
    }


def _compared(training: Points, compare: Callable[[Any, Any], float], command: str) -> Finding:
    """Seed by seed on every environment, Stellaris beside the synchronous baseline."""
    tasks: dict[str, list[float]] = {}
    learned, long = True, tuned()
    for environment in dict.fromkeys(row["environment"] for row in training):
        runs = {name: _runs(training, environment, name) for name in ("stellaris", "synchronous")}
        both = sorted(runs["stellaris"].keys() & runs["synchronous"].keys())
        if not both:
            continue
        tasks[environment] = [compare(runs["stellaris"][seed], runs["synchronous"][seed]) for seed in both]
        finals = [runs["synchronous"][seed]["episode_return"][-1] for seed in both]
        learned &= float(np.median(finals)) >= ENOUGH * long.get(environment, np.inf)
    seeds = min(len(task) for task in tasks.values())
    return Finding(estimate(*tasks.values()), tuple(tasks), seeds, learned, command)


def _runs(training: Points, environment: str, system: str) -> dict[str, dict[str, Any]]:
    """Columns of each run, by its seed."""
    rows = [row for row in training if (row["environment"], row["system"]) == (environment, system)]
    columns = ("seconds", "episode_return", "cost_pay_per_use")
    return {
        seed: {name: np.array([float(row[name]) for row in rows if row["seed"] == seed]) for name in columns}
        for seed in dict.fromkeys(row["seed"] for row in rows)
    }


def _return_ratio(own: Any, other: Any) -> float:
    """Returns at the last instant that both have seen."""
    end = min(own["seconds"][-1], other["seconds"][-1])
    one, two = (np.interp(end, run["seconds"], run["episode_return"]) for run in (own, other))
    return float(one / two)


def _saved(own: Any, other: Any) -> float:
    """The share of the baseline's cost that was not spent, by use, for the same number of steps."""
    return float(1 - own["cost_pay_per_use"][-1] / other["cost_pay_per_use"][-1])
