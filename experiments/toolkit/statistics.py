"""Estimates over seeds: interquartile mean and bootstrap interval, or, with fewer than five seeds, median and range."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import stats

#: The least number of seeds for an interval: fewer seeds support no claim, and get a median and a range.
FEWEST = 5
#: Coverage of the interval, number of bootstrap resamples, and their seed.
_COVERAGE, _RESAMPLES, _SEED = 0.95, 2000, 0


class Estimate(NamedTuple):
    """A central value and an interval or range around it."""

    middle: float  #: the interquartile mean; with few seeds the median.
    low: float  #: lower end of the 95 % bootstrap interval; with few seeds the least value.
    high: float  #: upper end of the interval; with few seeds the greatest value.
    claim: bool  #: whether there are enough seeds for an interval.

    def __str__(self) -> str:
        around = f" ({self.low:,.4g} to {self.high:,.4g})" if self.low < self.high else ""
        return f"{self.middle:,.4g}{around}"


def ratio(one: float, other: float) -> float:
    """Returns `one / other`, or NaN if `other` is not positive: a return may be negative.

    Example:
      >>> ratio(1.0, 2.0), ratio(1.0, -2.0)
      (0.5, nan)
    """
    return one / other if other > 0 else math.nan


def interquartile_mean(values: Sequence[float]) -> float:
    """Returns the mean of the middle half of the values.

    Example:
      >>> interquartile_mean([0.0, 1.0, 3.0, 100.0])
      2.0
    """
    return float(stats.trim_mean(np.asarray(values, float), 0.25))


def estimate(*tasks: Sequence[float]) -> Estimate:
    """Estimates the result of the runs of one task, or of several tasks pooled.

    With at least `FEWEST` runs per task: the interquartile mean, and a percentile bootstrap interval whose resamples
    keep the number of runs of each task (stratified). With fewer: the median, the least and the greatest value.

    Args:
      tasks: the results of the runs of each task.

    Raises:
      ValueError: if no task is given, or if a task has zero runs.

    Source:
      Agarwal et al. 2021, Deep Reinforcement Learning at the Edge of the Statistical Precipice.

    Example:
      >>> print(estimate([3.0, 1.0, 2.0]))
      2 (1 to 3)
    """
    if not tasks or not all(len(task) for task in tasks):
        raise ValueError(f"tasks={tasks}: give at least one task; every task needs at least one run")
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
