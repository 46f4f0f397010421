"""Question 3: whether the order of the methods at their best rates differs from that at a shared rate."""

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.figures.lab.outcomes import at_best, drawn, interval, scores, shared_rate, short
from experiments.figures.lab.surface import AGAIN, Surface
from stellaris.types import NDArray


def answered(task: str, surface: Surface) -> Iterator[dict[str, Any]]:
    """Yields Kendall's τ of both orders at each lag, and the pairs of methods whose order is reversed."""
    cells = surface.cells
    score = scores(cells)
    both = at_best(score), score[:, :, shared_rate(score, cells.methods, cells.reference)]
    kept = [i for i, name in enumerate(cells.methods) if name != AGAIN]
    names = [cells.methods[i] for i in kept]
    for k, lag in enumerate(cells.lags):
        best, shared = (chosen[kept, k] for chosen in both)
        low, high = np.quantile(tau(drawn(best).T, drawn(shared).T), [0.025, 0.975])
        pairs = [f"{one} > {other}" for one, other in reversed_pairs(names, best, shared)]
        yield {
            "task": task,
            "lag": lag,
            "methods": len(names),
            "tau": short(float(tau(best.mean(axis=-1), shared.mean(axis=-1)))),
            "low": short(float(low)),
            "high": short(float(high)),
            "reversed": len(pairs),
            "pairs": "; ".join(pairs),
            "verdict": "misleads" if pairs else "does not mislead",
            "order_at_best": _order(names, best),
            "order_at_shared": _order(names, shared),
        }


def tau(x: NDArray, y: NDArray) -> NDArray:
    """Returns Kendall's τ, with ties (τ-b), between `x` and `y`, `[..., n]`; NaN if all of one are equal.

    Example:
      >>> float(tau(np.array([1.0, 2.0, 3.0]), np.array([1.0, 3.0, 2.0])).round(3))
      0.333
    """
    one, other = (np.sign(z[..., :, None] - z[..., None, :]) for z in (x, y))
    together, own, others = ((a * b).sum(axis=(-1, -2)) for a, b in ((one, other), (one, one), (other, other)))
    untied = np.sqrt(own * others)
    found: NDArray = np.where(untied > 0, together / np.where(untied > 0, untied, 1.0), np.nan)
    return found


def reversed_pairs(names: Sequence[str], best: NDArray, shared: NDArray) -> Iterator[tuple[str, str]]:
    """Yields pairs, the better at the best rate first, that are reversed at the shared rate with no overlap at either.

    Args:
      names: the methods.
      best: `[method, seed]`, at each method's best rate.
      shared: the same at the shared rate.
    """
    (low, high), (shared_low, shared_high) = interval(best), interval(shared)
    for i, j in itertools.permutations(range(len(names)), 2):
        if low[i] > high[j] and shared_high[i] < shared_low[j]:
            yield names[i], names[j]


def _order(names: Sequence[str], score: NDArray) -> str:
    return " > ".join(names[i] for i in np.argsort(-score.mean(axis=-1), kind="stable"))
