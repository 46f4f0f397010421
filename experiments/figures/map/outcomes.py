"""The outcomes of the map: steps to a return, speed-ups, and their products."""

import functools
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from scipy.interpolate import RegularGridInterpolator

from experiments.figures.map.deployments import DATA_PARALLEL, IN_ROUNDS, ONE_LEARNER, SAMPLING_ON, SYNCHRONOUS
from experiments.tasks import testbed
from stellaris.types import NDArray

#: The part of the way from the untrained to the best mean return at which steps are counted.
PART = 0.8
#: Number of batches over which a curve is averaged, and of batches at the end of a run. The longest episodes take 500
#: steps, 8 batches: of the episodes that begin together, only short ones end within fewer batches.
_WINDOW, _TAIL = 8, 8
#: Number of bootstrap samples of an interval, and the quantiles that bound it.
_RESAMPLES = 500
INTERVAL = (0.025, 0.975)
#: A learning rate below this stands for an untrained policy.
_LEAST_RATE = 1e-9

Row = Mapping[str, str]


# ---- learning --------------------------------------------------------------------------------------------------------


class Curves(NamedTuple):
    """The returns of the runs of one point of the map."""

    rates: Sequence[float]
    returns: NDArray  #: `[rate, seed, batch]`; NaN for a batch in which no episode ended.


def curves_of(rows: Sequence[Row]) -> Curves:
    """Reads the curves of one point from rows of a table."""
    rates = list(dict.fromkeys(float(row["learning_rate"]) for row in rows))
    each = [[float(x or "nan") for x in row["returns"].split(" ")] for row in rows]
    return Curves(rates, np.array(each).reshape(len(rates), -1, len(each[0])))


def target_of(synchronous: Curves) -> float:
    """Returns the return that is to be reached: the part of the way from the untrained to the best mean return."""
    untrained = [rate < _LEAST_RATE for rate in synchronous.rates]
    floor = float(np.nanmean(synchronous.returns[untrained]))
    best = float(np.nanmean(synchronous.returns[..., -_TAIL:], axis=(1, 2)).max())
    return floor + PART * (best - floor)


def batches_to(returns: NDArray, target: float) -> float:
    """Returns the batches until the mean over seeds of `returns`, `[seed, batch]`, reaches a target; infinite if never.

    The mean is averaged over the last eight batches, and interpolated between batches.

    Example:
      >>> rising = 10.0 * np.arange(10)[None]
      >>> batches_to(rising, 40.0), batches_to(rising, 99.0)
      (8.5, inf)
    """
    with np.errstate(invalid="ignore"):
        known = np.isfinite(returns)
        total, count = np.nansum(returns, axis=0), known.sum(axis=0)
    kernel = np.ones(_WINDOW)
    smooth = np.convolve(total, kernel, "valid") / np.maximum(np.convolve(count, kernel, "valid"), 1)
    above = np.flatnonzero(smooth >= target)
    if not len(above):
        return math.inf
    first = int(above[0])
    part = 1.0 if first == 0 else (target - smooth[first - 1]) / (smooth[first] - smooth[first - 1])
    return float(first - 1 + part + _WINDOW)


def needed(curves: Curves, target: float) -> float:
    """Returns the mean of `needed_by_half`; a half that does not reach the target counts with the batches of its curve.

    A curve has fewer batches than its run if no version was learned from the last batch.
    """
    seen = np.flatnonzero(np.isfinite(curves.returns).any(axis=(0, 1)))[-1] + 1
    return float(np.mean([min(batches, float(seen)) for batches in needed_by_half(curves, target)]))


def needed_by_half(curves: Curves, target: float) -> Sequence[float]:
    """Returns the batches that the odd and the even seeds need at a system's best rate; infinite if never.

    The rate is chosen on one half of the seeds and the batches are counted on the other, and reversely.
    """
    trained = [i for i, rate in enumerate(curves.rates) if rate > _LEAST_RATE]
    halves = np.arange(curves.returns.shape[1]) % 2 == 0
    found = []
    for half in (halves, ~halves):
        # Among rates that all miss the target, the one with the highest mean return is chosen.
        order = [
            (batches_to(curves.returns[i, half], target), -float(np.nanmean(curves.returns[i, half]))) for i in trained
        ]
        chosen = trained[min(range(len(trained)), key=lambda place: order[place])]
        found.append(batches_to(curves.returns[chosen, ~half], target))
    return found


def resampled(curves: Curves, target: float, random: np.random.Generator) -> NDArray:
    """Returns the batches that a system needs with seeds drawn anew with replacement, within each half, many times."""
    seeds = np.arange(curves.returns.shape[1])
    found = []
    for _ in range(_RESAMPLES):
        drawn = seeds.copy()
        for half in (seeds[::2], seeds[1::2]):
            drawn[half] = random.choice(half, len(half))
        found.append(needed(curves._replace(returns=curves.returns[:, drawn]), target))
    return np.array(found)


@dataclass(frozen=True)
class Efficiency:
    """The steps that the synchronous system needs, divided by the steps of each other system: η, interpolated.

    Args:
      measured: η by system, and by κ, variation and number of learners: a number, or an array of resampled ones.
      missed: the deployments, by system, of which a curve stayed below the target, so that η is an upper bound.
    """

    measured: Mapping[str, Mapping[tuple[float, ...], Any]]
    missed: Mapping[str, AbstractSet[tuple[float, ...]]] = field(default_factory=dict)
    _functions: dict[str, Any] = field(default_factory=dict, compare=False, repr=False)

    def __call__(self, system: str, kappa: float, variation: float, learners: int) -> Any:
        """Returns η of a system on a deployment; beyond the measured deployments that of the nearest."""
        if system in (SYNCHRONOUS, DATA_PARALLEL):
            return 1.0
        known = self.measured[system]
        axes = [sorted({key[i] for key in known}) for i in range(3)]
        if system not in self._functions:
            values = np.array([[[known[k, v, n] for n in axes[2]] for v in axes[1]] for k in axes[0]])
            grid = (np.log2(axes[0]), np.array(axes[1]), np.log2(axes[2]))
            keep = [i for i, axis in enumerate(grid) if len(axis) > 1]
            values = values.squeeze(tuple({*range(3)} - {*keep}))
            own = RegularGridInterpolator([grid[i] for i in keep], values) if keep else None
            self._functions[system] = (keep, own, values)
        keep, own, only = self._functions[system]
        if own is None:
            return only
        place = [np.clip(x, min(axis), max(axis)) for x, axis in zip((kappa, variation, learners), axes, strict=True)]
        place = [math.log2(place[0]), place[1], math.log2(place[2])]
        return own([[place[i] for i in keep]])[0]

    def at_most(self, system: str, kappa: float, variation: float, learners: int) -> bool:
        """Whether η is interpolated from a deployment in `missed`, and so an upper bound."""
        axes = [sorted({key[i] for key in self.measured[system]}) for i in range(3)]
        nearest = (around(x, axis) for x, axis in zip((kappa, variation, learners), axes, strict=True))
        return not self.missed.get(system, frozenset()).isdisjoint(itertools.product(*nearest))


def around(x: float, measured: Sequence[float]) -> AbstractSet[float]:
    """Returns the nearest of the ascending values below and above, which may be the same."""
    below, above = [y for y in measured if y <= x], [y for y in measured if y >= x]
    return {max(below, default=measured[0]), min(above, default=measured[-1])}


def efficiency(rows: Sequence[Row]) -> tuple[Efficiency, Efficiency, list[dict[str, Any]]]:
    """Returns η of the systems of a table, η of resampled seeds, and a row for every deployment with its interval.

    Every resampled η has the same resampled seeds of the synchronous system, so that ratios of two η can be formed.
    """
    groups: dict[tuple[str, float, float, int], list[Row]] = {}
    for row in rows:
        key = row["system"], float(row["kappa"]), float(row["variation"]), int(row["learners"])
        groups.setdefault(key, []).append(row)
    of = {key: curves_of(group) for key, group in groups.items()}
    (synchronous,) = (curves for key, curves in of.items() if key[0] == SYNCHRONOUS)
    target = target_of(synchronous)
    base = needed(synchronous, target)
    random = np.random.default_rng(0)
    bases = resampled(synchronous, target, random)
    measured: dict[str, dict[tuple[float, ...], float]] = {}
    drawn: dict[str, dict[tuple[float, ...], NDArray]] = {}
    below: dict[str, set[tuple[float, ...]]] = {}
    table = []
    for (system, *place), curves in of.items():
        batches = needed(curves, target)
        several = bases / resampled(curves, target, random)
        low, high = np.quantile(several, INTERVAL)
        kappa, variation, learners = place
        measured.setdefault(system, {})[kappa, variation, learners] = base / batches
        drawn.setdefault(system, {})[kappa, variation, learners] = several
        # One half that does not reach the target is enough to make η an upper bound.
        missed = not np.isfinite(needed_by_half(curves, target)).all()
        if missed:
            below.setdefault(system, set()).add((kappa, variation, learners))
        table.append(
            {
                "system": system,
                "kappa": kappa,
                "variation": variation,
                "learners": learners,
                "target": float(f"{target:.4g}"),
                "batches": float(f"{batches:.4g}"),
                "missed": missed,
                "eta": float(f"{base / batches:.4g}"),
                "eta_low": float(f"{low:.4g}"),
                "eta_high": float(f"{high:.4g}"),
            }
        )
    return Efficiency(measured, below), Efficiency(drawn, below), table


# ---- the map ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Speeds:
    """The table of speeds, by point."""

    rows: Mapping[tuple[Any, ...], Row]

    @staticmethod
    def of(rows: Sequence[Row]) -> "Speeds":
        """Indexes the rows of the table."""
        return Speeds({_key(row): row for row in rows})

    def get(
        self,
        system: str,
        kappa: float,
        variation: float,
        learners: int = 1,
        *,
        sharers: int = 1,
        growth: float = 0.0,
        update: float = 0.1,
    ) -> Row:
        """Returns the row of a point."""
        return self.rows[system, kappa, variation, learners, sharers, growth, update]


def _key(row: Row) -> tuple[Any, ...]:
    numbers = [float(row[name]) for name in ("kappa", "variation")]
    counts = [int(row[name]) for name in ("learners", "sharers")]
    return row["system"], *numbers, *counts, float(row["growth"]), float(row["update"])


#: The quantities that are compared: steps per second, or million steps per USD under either bill.
TIME, MACHINES, USE = "time", "machines", "use"


def rate(row: Row, what: str) -> float:
    """Returns the steps of a point per second or per USD."""
    return float(row["steps_per_second"]) if what == TIME else 1.0 / float(row[f"cost_{what}"])


def slowed(kappa: float, sharers: int, learners: int) -> float:
    """Returns the κ at which learners with a GPU each take as long for a gradient as learners that share one."""
    factor: float = min(sharers, learners) ** testbed.GPU_SHARING
    return kappa * factor


def advantages(
    speeds: Speeds, eta: Efficiency, *, what: str = TIME, sharers: int = 1, growth: float = 0.0, update: float = 0.1
) -> Iterator[dict[str, Any]]:
    """Yields S, η, and the ratio of S·η to that of each other system, for every deployment of the map.

    Learners that share a GPU are slower by a factor: their η is that of learners with a GPU each where κ is larger by
    this factor. With resampled η, η and the ratios are arrays.
    """
    keys = [(key, row) for key, row in speeds.rows.items() if key[0] in (IN_ROUNDS, SAMPLING_ON)]
    for (system, kappa, variation, learners, shared, _, cost), row in keys:
        if cost != update or shared != (sharers if learners > 1 else 1):
            continue
        learned = eta(system, slowed(kappa, sharers, learners), variation, learners)
        own = rate(row, what) * learned
        others = {
            SYNCHRONOUS: rate(speeds.get(SYNCHRONOUS, kappa, variation), what),
            ONE_LEARNER: rate(speeds.get(ONE_LEARNER, kappa, variation), what) * eta(ONE_LEARNER, kappa, variation, 1),
        }
        if learners > 1:
            others[DATA_PARALLEL] = rate(speeds.get(DATA_PARALLEL, kappa, variation, learners, growth=growth), what)
        yield {
            "system": system,
            "kappa": kappa,
            "variation": variation,
            "learners": learners,
            "speed": rate(row, what) / others[SYNCHRONOUS],
            "eta": learned,
            **{name: own / other for name, other in others.items()},
            "best": own / functools.reduce(np.maximum, others.values()),
        }
