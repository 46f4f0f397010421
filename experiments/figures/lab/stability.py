"""Question 1: the largest stable learning rates, and their slopes against the lag S and the length T of a run."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np

from experiments.figures.lab.outcomes import drawn, scores, short
from experiments.figures.lab.surface import cells_of
from stellaris.types import NDArray

#: A slope this steep, or steeper, says that the lag or the length limits the rate.
STEEP = -0.5
#: The share of the resamples that must have a slope.
_ENOUGH = 0.9
OF_LAG, OF_LENGTH, NEITHER = "S·η", "T·η", "neither"


class Border(NamedTuple):
    """The outcomes of a method at several lengths."""

    lengths: Sequence[int]
    lags: Sequence[int]
    rates: Sequence[float]
    score: NDArray  #: `[length, lag, rate, seed]`, above the floor.


def borders(rows: Sequence[dict[str, str]], floor: float) -> dict[str, Border]:
    """Returns the outcomes of every method from the rows of the part `border`."""
    lengths = sorted({int(row["updates"]) for row in rows})
    several = [cells_of([row for row in rows if int(row["updates"]) == length], floor) for length in lengths]
    first = several[0]
    score = np.stack([scores(cells) for cells in several], axis=1)
    return {name: Border(lengths, first.lags, first.rates, score[i]) for i, name in enumerate(first.methods)}


def largest_stable(means: NDArray) -> NDArray:
    """Returns the index of the largest rate whose mean outcome is at least half of the best rate's; -1 if none learns.

    Args:
      means: `[..., rate]`.

    Example:
      >>> largest_stable(np.array([[1.0, 4.0, 2.0, 1.9], [0.0, -1.0, -2.0, 0.0]])).tolist()
      [2, -1]
    """
    best = means.max(axis=-1, keepdims=True)
    stable = (means >= 0.5 * best) & (best > 0)
    last: NDArray = np.where(stable.any(axis=-1), means.shape[-1] - 1 - np.argmax(stable[..., ::-1], axis=-1), -1)
    return last


def slopes(x: Sequence[float] | NDArray, y: NDArray) -> NDArray:
    """Returns the least-squares slopes of `y`, `[..., n]`, against `x`, without entries that are NaN.

    A slope of fewer than two entries is NaN.

    Example:
      >>> slopes([0, 1, 2], np.array([[1.0, 3.0, 5.0], [1.0, np.nan, 2.0], [1.0, np.nan, np.nan]])).tolist()
      [2.0, 0.5, nan]
    """
    known = np.isfinite(y)
    count = np.maximum(known.sum(axis=-1, keepdims=True), 1)
    across = np.where(known, np.asarray(x, float), 0.0)
    up = np.where(known, y, 0.0)
    across = np.where(known, across - across.sum(axis=-1, keepdims=True) / count, 0.0)
    squares = np.square(across).sum(axis=-1)
    slope = np.where(squares > 0, (across * up).sum(axis=-1) / np.where(squares > 0, squares, 1.0), np.nan)
    # A level line has the slope 0: rounding errors would exclude 0 from its interval.
    rounded: NDArray = np.round(slope, 9) + 0.0
    return rounded


def stable(task: str, method: str, border: Border) -> Iterator[dict[str, Any]]:
    """Yields the largest stable rate at each length and lag, with its interval."""
    means = border.score.mean(axis=-1)
    index = largest_stable(means)
    draws = largest_stable(np.moveaxis(drawn(border.score), -1, 0))
    low, high = np.quantile(draws, [0.025, 0.975], axis=0, method="inverted_cdf")
    for place in np.ndindex(index.shape):
        edge = {0: "lowest", len(border.rates) - 1: "highest"}
        yield {
            "task": task,
            "method": method,
            "updates": border.lengths[place[0]],
            "lag": border.lags[place[1]],
            "best_rate": border.rates[int(means[place].argmax())],
            "best_outcome": short(float(means[place].max())),
            "largest_stable_rate": _rate(border, index[place]),
            "low": _rate(border, low[place]),
            "high": _rate(border, high[place]),
            "edge": edge.get(int(index[place]), ""),
        }


def _rate(border: Border, index: Any) -> float | str:
    return border.rates[int(index)] if index >= 0 else ""


def answered(task: str, method: str, border: Border) -> list[dict[str, Any]]:
    """Returns the slopes against S at each T, and against T at each S, with intervals, and the verdict in each row."""
    log_rates = np.array([*np.log10(border.rates), np.nan])  # the last is the place of -1
    of_all = log_rates[largest_stable(border.score.mean(axis=-1))]
    of_draws = log_rates[largest_stable(np.moveaxis(drawn(border.score), -1, 0))]
    rows: list[dict[str, Any]] = []
    for name, over, fixed, other, turn in (
        ("S", border.lags, border.lengths, "T", False),
        ("T", border.lengths, border.lags, "S", True),
    ):
        across = np.log10(over)
        own, draws = (slopes(across, y.swapaxes(-1, -2) if turn else y) for y in (of_all, of_draws))
        rows += [
            {"against": name, "at": f"{other} = {at}", **_slope(own[i], draws[:, i])} for i, at in enumerate(fixed)
        ]
        rows.append({"against": name, "at": "mean", **_slope(_mean(own[None])[0], _mean(draws))})
    verdict = judged(rows)
    return [{"task": task, "method": method, **row, "verdict": verdict} for row in rows]


def _mean(several: NDArray) -> NDArray:
    """Returns the means over the last axis of the slopes that are not NaN."""
    known = np.isfinite(several)
    count = known.sum(axis=-1)
    mean: NDArray = np.where(count > 0, np.where(known, several, 0.0).sum(axis=-1) / np.maximum(count, 1), np.nan)
    return mean


def _slope(slope: float, draws: NDArray) -> dict[str, Any]:
    there = draws[np.isfinite(draws)]
    if not np.isfinite(slope) or len(there) < _ENOUGH * len(draws):
        return {"slope": "", "low": "", "high": "", "says": "no slope"}
    low, high = (float(x) for x in np.quantile(there, [0.025, 0.975]))
    says = "steep" if high < STEEP else "flat" if low <= 0 <= high else "between"
    return {"slope": short(float(slope)), "low": short(low), "high": short(high), "says": says}


def judged(rows: Sequence[dict[str, Any]]) -> str:
    """Returns the answer: S·η if every slope against S is steep and every one against T flat; T·η if reversely."""
    of = {name: {row["says"] for row in rows if row["against"] == name and row["at"] != "mean"} for name in "ST"}
    if of == {"S": {"steep"}, "T": {"flat"}}:
        return OF_LAG
    if of == {"S": {"flat"}, "T": {"steep"}}:
        return OF_LENGTH
    return NEITHER
