"""What several seeds say: an interquartile mean with its interval, or, of few of them, only what they came to."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

#: Fewer seeds support no claim: their median and their range are shown, and no interval.
FEWEST = 5
#: Coverage of intervals, resamples that they are drawn from, and the seed of these.
_COVERAGE, _RESAMPLES, _SEED = 0.95, 2000, 0


class Estimate(NamedTuple):
    """A middle and what lies around it."""

    middle: float  #: the interquartile mean; of few seeds the median.
    low: float  #: of the 95 % bootstrap interval; of few seeds the least,
    high: float  #: and the greatest.
    claim: bool  #: whether there are seeds enough for an interval.

    def __str__(self) -> str:
        around = f" ({self.low:,.4g} to {self.high:,.4g})" if self.low < self.high else ""
        return f"{self.middle:,.4g}{around}"


def ratio(one: float, other: float) -> float:
    """One figure over another; not a number where the other is not positive, as returns may be.

    Example:
      >>> ratio(1.0, 2.0), ratio(1.0, -2.0)
      (0.5, nan)
    """
    return one / other if other > 0 else math.nan


def interquartile_mean(values: Sequence[float]) -> float:
    """The mean of the middle half.

    Example:
      >>> interquartile_mean([0.0, 1.0, 3.0, 100.0])
      2.0
    """
    return float(stats.trim_mean(np.asarray(values, float), 0.25))


def estimate(*tasks: Sequence[float]) -> Estimate:
    """What the runs of one task come to, or of several tasks together.

    With `FEWEST` runs or more a task: their interquartile mean, and a percentile bootstrap interval whose resamples
    keep the number of runs of each task (stratified). With fewer: median, least and greatest.

    Args:
      tasks: results of the runs of each, at least one.

    Raises:
      ValueError: if a task has no runs.

    Source:
      Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice.

    Example:
      >>> print(estimate([3.0, 1.0, 2.0]))
      2 (1 to 3)
    """
    if not tasks or not all(len(task) for task in tasks):
        raise ValueError(f"tasks={tasks} have no runs")
    together = np.concatenate([np.asarray(task, float) for task in tasks])
    if min(len(task) for task in tasks) < FEWEST or not np.isfinite(together).all():
        return Estimate(float(np.median(together)), float(together.min()), float(together.max()), claim=False)

    def statistic(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis))

    interval = stats.bootstrap(
        [np.asarray(task, float) for task in tasks],
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=_COVERAGE,
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return Estimate(interquartile_mean(together.tolist()), float(interval.low), float(interval.high), claim=True)
