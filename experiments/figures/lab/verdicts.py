"""Outcomes at the best and at the shared rate, methods against PPO, and the recommendation."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from experiments.figures.lab.outcomes import at_best, at_rates, best_rates, interval, scores, shared_rate, short
from experiments.figures.lab.surface import AGAIN, Surface

BEATS, LEVEL, BELOW = "beats", "level", "below"
#: A method is recommended if it beats PPO at so many lags, on so many tasks, and is below it nowhere.
_LAGS, _TASKS = 2, 2


def best(task: str, surface: Surface) -> Iterator[dict[str, Any]]:
    """Yields the outcome of each method at each lag, at the rate that is best by the other half of the seeds."""
    cells, score = surface.cells, scores(surface.cells)
    rates = best_rates(score)
    chosen = at_rates(score, rates)
    low, high = interval(chosen)
    for place in np.ndindex(chosen.shape[:2]):
        yield {
            **_named(task, surface, place),
            "rate_of_even_seeds": cells.rates[rates[place][0]],
            "rate_of_odd_seeds": cells.rates[rates[place][1]],
            **_numbers(chosen[place].mean(), low[place], high[place]),
        }


def shared(task: str, surface: Surface) -> Iterator[dict[str, Any]]:
    """Yields the outcome of each method at each lag, at the rate that is best for PPO without lag."""
    cells, score = surface.cells, scores(surface.cells)
    rate = shared_rate(score, cells.methods, cells.reference)
    chosen = score[:, :, rate]
    low, high = interval(chosen)
    for place in np.ndindex(chosen.shape[:2]):
        numbers = _numbers(chosen[place].mean(), low[place], high[place])
        yield {**_named(task, surface, place), "learning_rate": cells.rates[rate], **numbers}


def _named(task: str, surface: Surface, place: tuple[int, ...]) -> dict[str, Any]:
    method = surface.cells.methods[place[0]]
    runs = surface.part if method in surface.new or not surface.new else surface.study
    return {"task": task, "method": method, "runs": runs, "lag": surface.cells.lags[place[1]]}


def _numbers(outcome: Any, low: Any, high: Any) -> dict[str, Any]:
    return {"outcome": short(float(outcome)), "low": short(float(low)), "high": short(float(high))}


def against_ppo(task: str, surface: Surface) -> Iterator[dict[str, Any]]:
    """Yields whether each method's interval at its best rate lies above or below that of its device's PPO, by lag."""
    names = [*surface.cells.methods]
    chosen = at_best(scores(surface.cells))
    low, high = interval(chosen)
    mean = chosen.mean(axis=-1)
    for i, name in enumerate(names):
        if name == surface.cells.reference:
            continue
        reference = surface.reference(name)
        j = names.index(reference)
        for k, lag in enumerate(surface.cells.lags):
            yield {
                "task": task,
                "lag": lag,
                "method": name,
                **_numbers(mean[i, k], low[i, k], high[i, k]),
                "reference": reference,
                **{f"ppo_{key}": x for key, x in _numbers(mean[j, k], low[j, k], high[j, k]).items()},
                "verdict": compared(low[i, k], high[i, k], low[j, k], high[j, k]),
            }


def compared(low: float, high: float, other_low: float, other_high: float) -> str:
    """Returns whether an interval beats another, is below it, or is level with it, which it is if they overlap.

    Example:
      >>> compared(5, 6, 3, 4), compared(3, 5, 4, 6), compared(1, 2, 3, 4)
      ('beats', 'level', 'below')
    """
    return BEATS if low > other_high else BELOW if high < other_low else LEVEL


def recommended(rows: Sequence[Mapping[str, Any]], tasks: Sequence[str]) -> Iterator[dict[str, Any]]:
    """Yields, by method, on how many lags it beats PPO and is below it, and whether it is recommended.

    A method that is below PPO nowhere yet remains open until all tasks have been run.

    Args:
      rows: the rows of `against_ppo`, of several tasks.
      tasks: the tasks of the study.
    """
    done = {row["task"] for row in rows}
    for method in dict.fromkeys(row["method"] for row in rows if row["method"] != AGAIN):
        own = [row for row in rows if row["method"] == method]
        beats, below = (
            {task: sum(row["task"] == task and row["verdict"] == verdict for row in own) for task in tasks}
            for verdict in (BEATS, BELOW)
        )
        enough = sum(n >= _LAGS for n in beats.values()) >= _TASKS
        verdict = "no" if any(below.values()) else "open" if not done.issuperset(tasks) else "yes" if enough else "no"
        yield {
            "method": method,
            **{f"{BEATS} on {task}": n if task in done else "" for task, n in beats.items()},
            **{f"{BELOW} on {task}": n if task in done else "" for task, n in below.items()},
            "recommended": verdict,
        }
