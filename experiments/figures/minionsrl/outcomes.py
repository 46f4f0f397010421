"""What runs under a scheduler take, relative to runs of the same seeds with all actors and with fixed numbers."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import jax
import numpy as np

from experiments.toolkit.statistics import estimate, interquartile_mean
from stellaris.lab import Played
from stellaris.types import NDArray

Minimise = Literal["time", "cost"]
Row = dict[str, Any]


class References(NamedTuple):
    """Runs with which others of the same seeds are compared."""

    everyone: Played  #: with all actors.
    fixed: Sequence[Played]  #: with each of the fixed numbers.


def parts(played: Played, count: int) -> list[Played]:
    """Divides runs into `count` equal parts, in their order."""
    size = len(played.rounds) // count
    return [taken(played, range(i * size, (i + 1) * size)) for i in range(count)]


def taken(played: Played, places: Sequence[int]) -> Played:
    """Returns the runs at these places."""
    columns = {name: column for name, column in played._asdict().items() if name != "sheets"}
    return played._replace(**jax.tree.map(lambda x: x[np.asarray(places)], columns))


def outcome(played: Played, minimise: Minimise) -> NDArray:
    """Returns the seconds or the USD of each run; infinite if it missed the target."""
    spent = played.last("seconds") if minimise == "time" else played.last("costs")[:, 0]
    return np.where(played.reached, spent, np.inf)


def row_of(name: str, played: Played, everyone: Played) -> Row:
    """Returns the outcome of runs, relative to runs with all actors on the same seeds; failed pairs are left out."""
    actors = [float(np.mean(played.rows.actors[i, :n])) for i, n in enumerate(played.rounds)]
    row: Row = {"way": name, "reached": int(played.reached.sum()), "runs": len(actors)}
    row["actors"] = float(np.mean(actors))
    for minimise in ("time", "cost"):
        own, all_ = outcome(played, minimise), outcome(everyone, minimise)
        both = np.isfinite(own) & np.isfinite(all_)
        if both.any():
            found = estimate((own[both] / all_[both]).tolist())
            row |= {minimise: found.middle, f"{minimise}_low": found.low, f"{minimise}_high": found.high}
    return row


def closed(played: Played, references: References, minimise: Minimise) -> Row:
    """Returns the share of the gap between all actors and the best fixed number that runs close.

    A pair's share is its saving, `all - own`, divided by the gap: the interquartile mean over the seeds of
    `all - fixed`, for the fixed number with the least median on these very seeds. The interval is that over pairs; the
    gap is taken as known. Failed pairs are left out, and so is the share if no fixed number spares anything.
    """
    own, everyone = outcome(played, minimise), outcome(references.everyone, minimise)
    fixed = min((outcome(one, minimise) for one in references.fixed), key=lambda spent: float(np.median(spent)))
    gap, pairs = _finite(everyone, fixed), _finite(everyone, own)
    whole = interquartile_mean(gap) if gap else 0.0
    if not pairs or not whole > 0:
        return {}
    found = estimate([spared / whole for spared in pairs])
    return {"closed": found.middle, "closed_low": found.low, "closed_high": found.high}


def _finite(everyone: NDArray, other: NDArray) -> list[float]:
    """Returns the differences of the pairs whose runs have both reached the target."""
    both = np.isfinite(everyone) & np.isfinite(other)
    spared: list[float] = (everyone[both] - other[both]).tolist()
    return spared
