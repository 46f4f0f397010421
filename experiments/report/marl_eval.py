"""The runs of a study in the JSON that marl-eval's tools read (Gorsane et al. 2022)."""

import math
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

#: The first key of the JSON. marl-eval compares it in lower case, as it does the tasks.
ENVIRONMENT = "gymnasium"
#: The columns of `curves.csv` that are read.
COLUMNS = ("environment", "system", "setting", "seed", "steps", "episode_return")

#: The points of a run's curve: numbers of steps, and the returns that are known there.
Curve = tuple[list[float], list[float]]


def exported(rows: Iterable[Mapping[str, str]]) -> dict[str, Any]:
    """Returns the curves of a study as `{environment: {task: {algorithm: {run: {step: metrics}}}}}`.

    marl-eval needs equally many steps in every run, and in all runs of a task the same numbers of environment steps.
    The steps of a task are therefore evenly spaced, from the first at which every run has a return to the last that
    every run reached; there are as many as the run with the fewest points has. The return of a run at a step is the
    last that the run had reported. `absolute_metrics` has each run's last return: the mean over its last training
    episodes, and not an evaluation of its best policy.

    Args:
      rows: the rows of a study's `curves.csv`.

    Raises:
      ValueError: if there is no run, a run has no return, or the runs of a task have no step in common; the error names
        them.

    Source:
      The README of marl-eval (github.com/instadeepai/marl-eval, 2024), "Data structure for raw experiment data".
    """
    curves: dict[str, dict[str, dict[str, Curve]]] = {}
    for row in rows:
        runs = curves.setdefault(row["environment"].lower(), {}).setdefault(_algorithm(row), {})
        steps, returns = runs.setdefault(f"seed_{row['seed']}", ([], []))
        if math.isfinite(value := float(row["episode_return"])):
            steps.append(float(row["steps"]))
            returns.append(value)
    if not curves:
        raise ValueError("there are no runs")
    for task, algorithms in curves.items():
        for algorithm, runs in algorithms.items():
            if silent := [run for run, (steps, _) in runs.items() if not steps]:
                raise ValueError(f"{task}, {algorithm}, {silent[0]} has no return: train it for longer")
    points = min(len(steps) for task in curves for steps, _ in _of_task(curves[task]))
    tasks = {task: _task(task, algorithms, points) for task, algorithms in curves.items()}
    return {ENVIRONMENT: tasks}


def _algorithm(row: Mapping[str, str]) -> str:
    """Returns the name of a run's variant, with its system; marl-eval refuses commas in it."""
    system, setting = row["system"], row["setting"]
    name = setting if setting.startswith(system) else f"{system} {setting}".strip()
    return name.replace(",", ";")


def _of_task(algorithms: Mapping[str, Mapping[str, Curve]]) -> list[Curve]:
    return [curve for runs in algorithms.values() for curve in runs.values()]


def _task(task: str, algorithms: Mapping[str, Mapping[str, Curve]], points: int) -> dict[str, Any]:
    """Returns the runs of a task at `points` common numbers of steps."""
    first = max(steps[0] for steps, _ in _of_task(algorithms))
    last = min(steps[-1] for steps, _ in _of_task(algorithms))
    if first > last:
        raise ValueError(
            f"{task}: one run has its first return after {first:,.0f} steps, and another ended at {last:,.0f}"
        )
    at = np.linspace(first, last, points).astype(int)
    return {name: {run: _run(curve, at) for run, curve in runs.items()} for name, runs in algorithms.items()}


def _run(curve: Curve, at: Any) -> dict[str, Any]:
    """Returns the last known return at each number of steps; the absolute metrics come last, as marl-eval expects."""
    steps, returns = curve
    known = np.searchsorted(steps, at, side="right") - 1
    metrics: dict[str, Any] = {
        f"step_{i}": {"step_count": int(count), "return": [returns[place]]}
        for i, (count, place) in enumerate(zip(at, known, strict=True))
    }
    return metrics | {"absolute_metrics": {"return": [returns[-1]]}}
