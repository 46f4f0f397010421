"""The falls of a run: of its return, of its effective sample fraction, and of its parameters to NaN."""

from typing import NamedTuple

import numpy as np

from stellaris.types import NDArray

#: Updates over which a return or an effective sample fraction is averaged, before it is judged.
WINDOW = 16
#: The effective sample fraction below which the samples of an update count as few.
FEW = 0.5


class Falls(NamedTuple):
    """What became of runs, arrays of the runs' shape. Updates are numbered from 1, and 0 means never."""

    best: NDArray  #: the best return, averaged over `WINDOW` updates; NaN if no episode ended.
    fell: NDArray  #: the update after which the return above the floor stays below half of its best.
    effective_fell: NDArray  #: the same of the effective sample fraction, whose floor is 0.
    effective_low: NDArray  #: updates before the return's fall with a fraction below `FEW`; of all if it never falls.
    diverged: NDArray  #: the update from which on the loss is not finite.


def falls(returns: NDArray, fractions: NDArray, loss: NDArray, *, floor: float) -> Falls:
    """Returns the falls of runs.

    Args:
      returns: `[..., update]` mean return of the episodes that ended; NaN if none ended.
      fractions: `[..., update]` effective sample fraction.
      loss: `[..., update]` the loss.
      floor: the mean return of an untrained policy.
    """
    fell = fallen(returns - floor)
    best = np.fmax.reduce(windowed(returns), axis=-1)
    before = np.arange(1, returns.shape[-1] + 1) < np.where(fell > 0, fell, returns.shape[-1] + 1)[..., None]
    low: NDArray = ((fractions < FEW) & before).sum(axis=-1)
    return Falls(best, fell, fallen(fractions), low, since(~np.isfinite(loss)))


def fallen(values: NDArray) -> NDArray:
    """Returns the update after which `values`, `[..., update]`, stay below half of their best until then; 0 if never.

    Values are averaged over `WINDOW` updates. The best must be above 0, so pass returns above the floor of the task:
    half of a negative return would be a better one.

    Example:
      >>> rising, lost = np.arange(60.0), np.where(np.arange(60) < 20, 10.0, 0.0)
      >>> fallen(np.stack([rising, lost])).tolist()  # the mean over updates 14 to 29 is the first below 5
      [0, 29]
    """
    means = windowed(values)
    best = np.fmax.accumulate(means, axis=-1)
    low = since((means < 0.5 * best) & (best > 0))
    fell: NDArray = np.where(low > 0, low + WINDOW - 1, 0)
    return fell


def windowed(values: NDArray) -> NDArray:
    """Returns the means of the last `WINDOW` updates, from the first `WINDOW` on, over the values that are not NaN.

    A window without any such value repeats the mean before it: it neither falls nor recovers. In Acrobot the episodes
    of a policy that fails end together, every 31 updates.
    """
    known = np.isfinite(values)
    sums, counts = (_sums(x) for x in (np.where(known, values, 0.0), known.astype(float)))
    there = counts > 0
    means = np.where(there, sums / np.maximum(counts, 1.0), np.nan)
    last = np.maximum.accumulate(np.where(there, np.arange(there.shape[-1]), 0), axis=-1)
    filled: NDArray = np.take_along_axis(means, last, axis=-1)
    return filled


def _sums(values: NDArray) -> NDArray:
    """Returns the sums of the last `WINDOW` values, from the first `WINDOW` on."""
    total = np.cumsum(values, axis=-1, dtype=float)
    total[..., WINDOW:] -= total[..., :-WINDOW].copy()
    return total[..., WINDOW - 1 :]


def since(holds: NDArray) -> NDArray:
    """Returns the number, from 1, of the first of the last entries of `[..., n]` that all hold; 0 if the last does not.

    Example:
      >>> since(np.array([[True, False, True, True], [True, True, True, False], [True] * 4])).tolist()
      [3, 0, 1]
    """
    length = np.where(holds.all(axis=-1), holds.shape[-1], np.argmax(~holds[..., ::-1], axis=-1))
    first: NDArray = np.where(length > 0, holds.shape[-1] - length + 1, 0)
    return first
