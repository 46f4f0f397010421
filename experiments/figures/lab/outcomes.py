"""The outcomes of the study of return against lag: scores, the lags at which half of them is lost, and intervals."""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import xarray as xr

from stellaris import lab
from stellaris.lab.comparison import draws, halved_at
from stellaris.types import NDArray


class Cells(NamedTuple):
    """The outcomes of the runs of one environment."""

    methods: Sequence[str]
    lags: Sequence[int]
    rates: Sequence[float]
    final: NDArray  #: `[method, lag, rate, seed]`: mean return of the episodes that ended in the last updates.
    mean: NDArray  #: the same shape: mean return of all episodes of the run.
    floor: float  #: the mean return of untrained policies.
    reference: str = "PPO"  #: the method whose best rate without lag is the shared rate.


def scores(cells: Cells) -> NDArray:
    """Returns the outcomes above the floor, `[method, lag, rate, seed]`; a run in which no episode ended scores 0."""
    return np.nan_to_num(cells.final - cells.floor, nan=0.0)


def best_rates(score: NDArray) -> NDArray:
    """Returns `[method, lag, seed]`: the indices of the learning rates at which the seeds are reported.

    Even seeds have the rate that is best on the odd ones, and the reverse, as `lab.at_best` chooses it.
    """
    known = xr.DataArray(score, {"rate": np.arange(score.shape[2])}, dims=("method", "lag", "rate", "seed"))
    rates: NDArray = lab.at_best(known, "rate")["rate"].values
    return rates


def at_rates(score: NDArray, rates: NDArray) -> NDArray:
    """Returns `[method, lag, seed]`: the scores of the seeds at the rates of `best_rates`."""
    taken: NDArray = np.take_along_axis(score, rates[:, :, None], axis=2)[:, :, 0]
    return taken


def at_best(score: NDArray) -> NDArray:
    """Returns `[method, lag, seed]`: each method at its best learning rate for each lag, as `best_rates` chooses it."""
    return at_rates(score, best_rates(score))


def shared_rate(score: NDArray, names: Sequence[str], reference: str = "PPO") -> int:
    """Returns the index of the learning rate at which the reference without lag has the highest mean."""
    return int(score[[*names].index(reference), 0].mean(axis=-1).argmax())


def half_lag(lags: Sequence[int], score: NDArray) -> float:
    """Returns the lag at which `score`, `[lag]`, first falls to half of its value without lag; infinity if never.

    The lag is interpolated between neighbouring lags, linearly in `log2(lag + 1)`. It is NaN if the score without lag
    is not positive.

    Example:
      >>> half_lag((0, 1, 3), np.array([10.0, 8.0, 2.0])), half_lag((0, 1), np.array([10.0, 9.0]))
      (1.828, inf)
    """
    return round(float(halved_at(lags, score)), 3)


def free_lag(lags: Sequence[int], score: NDArray) -> int:
    """Returns the largest lag at which `score`, `[lag]`, is at least 90 % of its value without lag.

    It is 0 if that value is not positive, as for a method that has not learned.

    Example:
      >>> free_lag((0, 1, 2, 4), np.array([10.0, 8.0, 9.0, 5.0])), free_lag((0, 1), np.array([-2.0, 1.0]))
      (2, 0)
    """
    return max((lag for lag, value in zip(lags, score, strict=True) if value >= 0.9 * score[0] > 0), default=0)


def drawn(score: NDArray) -> NDArray:
    """Returns the means over seeds, the last axis, in each bootstrap resample: `[..., resample]`."""
    seeds = score.shape[-1]
    counts = np.stack([np.bincount(draw, minlength=seeds) for draw in draws(seeds)])
    means: NDArray = score @ (counts.T / seeds)
    return means


def interval(score: NDArray) -> tuple[NDArray, NDArray]:
    """Returns the ends of the 95 % bootstrap intervals of the means over seeds, the last axis."""
    found = lab.interval(xr.DataArray(score, dims=[*map(str, range(score.ndim - 1)), "seed"]))
    return found["low"].values, found["high"].values


def chosen_scores(cells: Cells) -> dict[str, NDArray]:
    """Returns the scores `[method, lag, seed]` at each method's best rate, and at the shared rate."""
    score = scores(cells)
    return {"best": at_best(score), "shared": score[:, :, shared_rate(score, cells.methods, cells.reference)]}


def halves(task: str, cells: Cells) -> Iterator[dict[str, Any]]:
    """Yields the lag at which each method has lost half of its score, at its best and at the shared learning rate."""
    shared = shared_rate(scores(cells), cells.methods, cells.reference)
    for rate, chosen in chosen_scores(cells).items():
        for method, values in zip(cells.methods, chosen, strict=True):
            drawn = [half_lag(cells.lags, values[:, seeds].mean(axis=-1)) for seeds in draws(values.shape[-1])]
            low, high = np.quantile(np.nan_to_num(drawn, nan=0.0, posinf=1e9), [0.025, 0.975])
            yield {
                "task": task,
                "method": method,
                "rate": rate,
                "learning_rate": "" if rate == "best" else cells.rates[shared],
                "score_without_lag": short(float(values[0].mean())),
                "half": _lag(half_lag(cells.lags, values.mean(axis=-1)), cells.lags),
                "interval": f"{_lag(low, cells.lags)} to {_lag(high, cells.lags)}",
                "free": free_lag(cells.lags, values.mean(axis=-1)),
            }


def curves(task: str, cells: Cells) -> Iterator[dict[str, Any]]:
    """Yields the mean score of each method at each lag, at its best and at the shared learning rate, with intervals."""
    for rate, chosen in chosen_scores(cells).items():
        low, high = interval(chosen)
        for method, lag in np.ndindex(chosen.shape[:2]):
            place = method, lag
            yield {
                "task": task,
                "method": cells.methods[method],
                "rate": rate,
                "lag": cells.lags[lag],
                "score": short(float(chosen[place].mean())),
                "low": short(float(low[place])),
                "high": short(float(high[place])),
            }


def _lag(lag: float, lags: Sequence[int]) -> str:
    return f"> {lags[-1]}" if lag > lags[-1] else f"{lag:.3g}"


def short(x: float) -> float:
    return float(f"{x:.5g}")
