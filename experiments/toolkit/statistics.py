"""Estimates over seeds: interquartile mean and bootstrap interval, or, with fewer than five seeds, median and range."""

import functools
import itertools
import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
from scipy import special, stats

#: The least number of seeds for an interval: fewer seeds support no claim, and get a median and a range.
FEWEST = 5
#: The percentiles that are the ends of an interval.
_ENDS = (0.025, 0.975)
#: The most distinct resamples that are enumerated; ten runs have 92,378.
_MOST = 100_000
#: The number of random resamples where there are more, and their seed.
_RESAMPLES, _SEED = 10_000, 0


class Estimate(NamedTuple):
    """A central value and an interval or range around it."""

    middle: float  #: the interquartile mean; with few seeds the median.
    low: float  #: lower end of the 95 % bootstrap interval; with few seeds the least value.
    high: float  #: upper end of the interval; with few seeds the greatest value.
    claim: bool  #: whether there are enough seeds for an interval.

    def __str__(self) -> str:
        return format(self, ",.4g")

    def __format__(self, spec: str) -> str:
        """Formats all three numbers in the same way, `,.4g` by default; leaves out an interval of one point.

        Example:
          >>> f"{estimate([3.0, 1.0, 2.0]):.1f}"
          '2.0 (1.0 to 3.0)'
        """
        middle, low, high = (format(number, spec or ",.4g") for number in self[:3])
        return f"{middle} ({low} to {high})" if self.low < self.high else middle


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
    keep the number of runs of each task (stratified). All resamples are enumerated, each with its probability, for up
    to ten runs; of more runs there are 10,000 random resamples. With fewer runs than `FEWEST`: the median, the least
    and the greatest value.

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

    low, high = _enumerated(tasks) if _resamples(tasks) <= _MOST else _resampled(tasks)
    return Estimate(interquartile_mean(together.tolist()), low, high, claim=True)


def seeds_needed(variation: float, effect: float, *, power: float = 0.8, level: float = 0.95) -> int:
    """Returns the number of runs per system with which a ratio of returns is probably told apart from 1.

    The logarithms of the returns of either system are taken as normal, with the standard deviation
    `s = sqrt(log(1 + variation^2))`. Then `n = 2 ((z_level + z_power) s / log(1 + effect))^2`, rounded up, with the
    two-sided quantile `z_level` and the one-sided quantile `z_power` of the normal distribution.

    Args:
      variation: coefficient of variation of the returns of runs that differ in their seeds; of systems that vary by
        different coefficients their `pooled_variation`.
      effect: the relative difference to detect, such as 0.2 for a ratio of 1.2.
      power: the probability of detecting it.
      level: the confidence level of the interval that must exclude a ratio of 1.

    Source:
      The power of a two-sample z-test, as in Colas et al. 2018, How Many Random Seeds?

    Example:
      >>> seeds_needed(0.3, 0.2), seeds_needed(0.3, 0.1)
      (41, 149)
    """
    return max(1, math.ceil(2 * (_deviations(variation, power, level) / math.log1p(effect)) ** 2))


def detectable(variation: float, seeds: int, *, power: float = 0.8, level: float = 0.95) -> float:
    """Returns the relative difference that a number of runs per system probably tells apart from none.

    The inverse of `seeds_needed`, with the same assumptions.

    Example:
      >>> round(detectable(0.3, 41), 2)
      0.2
    """
    return math.expm1(_deviations(variation, power, level) * math.sqrt(2 / seeds))


def pooled_variation(one: float, other: float) -> float:
    """Returns the coefficient of variation that both systems of a pair could have, for as precise a ratio of them.

    The standard deviations of the logarithms of both systems' returns are pooled by their root mean square.

    Example:
      >>> round(pooled_variation(0.4, 0.2), 3)
      0.314
    """
    return math.sqrt(math.expm1((math.log1p(one**2) + math.log1p(other**2)) / 2))


def _deviations(variation: float, power: float, level: float) -> float:
    """Returns `(z_level + z_power) s`, the smallest difference of logarithms that two runs in all would show."""
    quantiles = stats.norm.ppf([0.5 + level / 2, power])
    return float(quantiles.sum()) * math.sqrt(math.log1p(variation**2))


def _resamples(tasks: Sequence[Sequence[float]]) -> int:
    """Returns the number of distinct resamples: a resample of n runs is one of `C(2n - 1, n)` multisets."""
    return math.prod(math.comb(2 * len(task) - 1, len(task)) for task in tasks)


def _enumerated(tasks: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns the exact percentiles over all resamples."""
    samples, weights = np.zeros((1, 0)), np.ones(1)
    for task in tasks:
        multisets, probabilities = _multisets(len(task))
        own = np.sort(np.asarray(task, float))[multisets]
        both = np.indices((len(samples), len(own))).reshape(2, -1)
        samples, weights = np.hstack([samples[both[0]], own[both[1]]]), weights[both[0]] * probabilities[both[1]]
    if len(tasks) > 1:  # the rows of one task are sorted, as its values are
        samples = np.sort(samples, axis=1)
    cut = samples.shape[1] // 4
    means = samples[:, cut : samples.shape[1] - cut].mean(axis=1)
    low, high = np.quantile(means, _ENDS, weights=weights, method="inverted_cdf")
    return float(low), float(high)


@functools.cache
def _multisets(n: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns all multisets of n of the numbers 0 to n - 1, in rows, and their probabilities as resamples."""
    rows = np.array([*itertools.combinations_with_replacement(range(n), n)])
    repeats = (rows[:, :, None] == np.arange(n)).sum(axis=1)
    ways = math.factorial(n) / special.factorial(repeats).prod(axis=1)
    return rows, ways / n**n


def _resampled(tasks: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns percentiles over random resamples."""

    def statistic(*samples: np.ndarray, axis: int = -1) -> np.ndarray:
        return np.asarray(stats.trim_mean(np.concatenate(samples, axis=axis), 0.25, axis=axis))

    interval = stats.bootstrap(
        [np.asarray(task, float) for task in tasks],
        statistic,
        n_resamples=_RESAMPLES,
        confidence_level=_ENDS[1] - _ENDS[0],
        method="percentile",
        vectorized=True,
        rng=np.random.default_rng(_SEED),
    ).confidence_interval
    return float(interval.low), float(interval.high)
