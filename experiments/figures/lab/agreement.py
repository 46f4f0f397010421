"""Question 4: whether constant, sawtooth and drawn lags of equal mean agree."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.figures.lab.outcomes import at_rates, best_rates, drawn, scores, short
from experiments.figures.lab.surface import cells_of
from stellaris.types import NDArray

#: The bounds within which both intervals of the ratio to the constant lag's outcome must lie.
_BOUNDS = (0.8, 1.25)
_CONSTANT = "constant"


def answered(task: str, rows: Sequence[dict[str, str]], floor: float) -> Iterator[dict[str, Any]]:
    """Yields the ratios of the outcomes to those of the constant lag, by method and mean lag.

    Args:
      task: the task.
      rows: rows of the parts `lags` and `patterns`.
      floor: the mean return of an untrained policy.
    """
    kinds = [kind for kind in dict.fromkeys(row["kind"] for row in rows) if kind != _CONSTANT]
    cells = dict.fromkeys((row["method"], row["lag"]) for row in rows if row["kind"] != _CONSTANT)
    for method, mean in cells:
        of = {
            kind: [row for row in rows if (row["method"], row["lag"], row["kind"]) == (method, mean, kind)]
            for kind in (_CONSTANT, *kinds)
        }
        if not all(of.values()):
            continue
        score = {kind: scores(cells_of(own, floor)) for kind, own in of.items()}
        rates = best_rates(score[_CONSTANT])
        constant, *others = (at_rates(one, rates)[0, 0] for one in score.values())
        found = [ratio(other, constant) for other in others]
        yield {
            "task": task,
            "method": method,
            "mean_lag": int(mean),
            "constant": short(float(constant.mean())),
            **{
                f"{kind}{end}": short(x) for kind, of_one in zip(kinds, found, strict=True) for end, x in of_one.items()
            },
            "verdict": verdict([(of_one["_low"], of_one["_high"]) for of_one in found]),
        }


def ratio(score: NDArray, constant: NDArray) -> dict[str, float]:
    """Returns the ratio of two means over the same seeds, with its interval; NaN if the constant lag learns nothing.

    Args:
      score: `[seed]`, of one pattern.
      constant: `[seed]`, of the constant lag.
    """
    draws, others = drawn(score), drawn(constant)
    if constant.mean() <= 0 or (others <= 0).any():
        return {"": float("nan"), "_low": float("nan"), "_high": float("nan")}
    low, high = np.quantile(draws / others, [0.025, 0.975])
    return {"": float(score.mean() / constant.mean()), "_low": float(low), "_high": float(high)}


def verdict(intervals: Sequence[tuple[float, float]]) -> str:
    """Returns whether patterns agree: all intervals include 1 and lie within the bounds.

    Example:
      >>> verdict([(0.9, 1.1), (0.85, 1.2)]), verdict([(0.9, 1.1), (0.7, 1.2)]), verdict([(0.9, 0.99), (0.9, 1.1)])
      ('agree', 'cannot tell', 'differ')
    """
    if any(np.isnan(low) for low, _ in intervals):
        return "no outcome"
    if any(high < 1 or low > 1 for low, high in intervals):
        return "differ"
    return "agree" if all(_BOUNDS[0] <= low and high <= _BOUNDS[1] for low, high in intervals) else "cannot tell"
