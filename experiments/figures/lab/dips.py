"""Question 6: whether a dip at a lag of 4, as AReaL reports, is a seed."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from experiments.figures.lab.outcomes import drawn, scores, shared_rate, short
from experiments.figures.lab.surface import AGAIN, Surface
from stellaris.types import NDArray

#: The lag of the dip between its neighbours, and the share of their outcomes that it stays below.
_LAGS, _DEEP = (2, 4, 8), 0.7


def answered(task: str, surface: Surface) -> Iterator[dict[str, Any]]:
    """Yields the share of PPO's seeds with a dip, and the share if the lags of a seed were exchanged at random."""
    cells, score = surface.cells, scores(surface.cells)
    if not {*_LAGS} <= {*cells.lags}:
        return
    rate = shared_rate(score, cells.methods, cells.reference)
    for name in (cells.reference, AGAIN):
        if name in cells.methods:
            outcomes = score[[*cells.methods].index(name), :, rate][[[*cells.lags].index(lag) for lag in _LAGS]]
            yield {"task": task, "method": name, "learning_rate": cells.rates[rate], **shares(outcomes)}


def shares(outcomes: NDArray) -> dict[str, Any]:
    """Returns the share of seeds with a dip, the expected one, and the interval of their difference.

    Args:
      outcomes: `[3, seed]`, at the lag before the dip, at its lag, and at the lag after it.
    """
    dips = deep(outcomes)
    # Each of the three outcomes is as often between the two others.
    expected = np.mean([deep(np.roll(outcomes, shift, axis=0)) for shift in range(3)], axis=0)
    low, high = (float(x) for x in np.quantile(drawn(dips - expected), [0.025, 0.975]))
    return {
        "seeds": outcomes.shape[1],
        "share": short(float(dips.mean())),
        "expected": short(float(expected.mean())),
        "difference": short(float((dips - expected).mean())),
        "low": short(low),
        "high": short(high),
        "verdict": "equal" if low <= 0 <= high else "more often" if low > 0 else "less often",
    }


def deep(outcomes: NDArray) -> NDArray:
    """Returns 1 for a seed whose middle outcome is below 0.7 of both others, which are above 0; else 0.

    Example:
      >>> deep(np.array([[10.0, 10.0, -1.0], [6.0, 6.0, -9.0], [10.0, 8.0, -1.0]])).tolist()
      [1.0, 0.0, 0.0]
    """
    before, middle, after = outcomes
    least = np.minimum(before, after)
    dip: NDArray = ((middle < _DEEP * least) & (least > 0)).astype(float)
    return dip
