"""Question 2: whether the effective sample fraction falls before the return does."""

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from experiments.figures.lab.falls import WINDOW
from experiments.figures.lab.outcomes import drawn, short
from stellaris.types import NDArray

#: Signs of a collapse, and the question's criterion: more of the collapsed runs show it, and fewer of the others.
FALL, LEVEL = "falls first", f"below 0.5 in {WINDOW} updates"
_COLLAPSED, _OTHERS = 0.8, 0.2


def answered(task: str, rows: Sequence[dict[str, str]], floor: float, learned: float) -> Iterator[dict[str, Any]]:
    """Yields how often each sign is seen in runs that collapse and in others: over all methods, and by method.

    Args:
      task: the task.
      rows: rows of all parts.
      floor: the mean return of an untrained policy.
      learned: the least best return above the floor of a run that has learned; the others are left out.
    """
    had = [row for row in rows if float(row["best_return"]) - floor >= learned]
    for which, some in (("that had learned", had), ("all", [*rows])):
        for method in ("all", *dict.fromkeys(row["method"] for row in rows)):
            own = [row for row in some if method in ("all", row["method"])]
            for sign in (FALL, LEVEL):
                yield {"task": task, "runs": which, "method": method, "sign": sign, **_signs(own, sign)}


def _signs(rows: Sequence[dict[str, str]], sign: str) -> dict[str, Any]:
    fell, effective, low, seed = (
        np.array([int(row[name]) for row in rows], int)
        for name in ("return_fell", "effective_fell", "effective_low", "seed")
    )
    collapsed = fell > 0
    first = (effective > 0) & (~collapsed | (effective < fell))
    shown = first if sign == FALL else low >= WINDOW
    led = (fell - effective)[collapsed & shown] if sign == FALL else np.zeros(0)
    quartiles = [float(x) for x in np.quantile(led, [0.25, 0.5, 0.75])] if len(led) else ["", "", ""]
    return {
        "collapsed": int(collapsed.sum()),
        **_share("share", shown, collapsed, seed),
        **dict(zip(("updates_low_quartile", "updates_median", "updates_high_quartile"), quartiles, strict=True)),
        "others": int((~collapsed).sum()),
        **_share("others_share", shown, ~collapsed, seed),
        "verdict": verdict(shown, collapsed),
    }


def verdict(shown: NDArray, collapsed: NDArray) -> str:
    """Returns whether a sign foretells a collapse."""
    if not collapsed.any() or collapsed.all():
        return "none collapsed" if not collapsed.any() else "all collapsed"
    foretells = shown[collapsed].mean() > _COLLAPSED and shown[~collapsed].mean() < _OTHERS
    return "foretells" if foretells else "does not foretell"


def _share(name: str, shown: NDArray, among: NDArray, seed: NDArray) -> dict[str, Any]:
    """Returns the share of the runs `among` that show a sign, with its interval over seeds."""
    if not among.any():
        return {name: "", f"{name}_low": "", f"{name}_high": ""}
    _, place = np.unique(seed, return_inverse=True)
    counts = np.stack(
        [np.bincount(place, weights=which, minlength=place.max() + 1) for which in (shown & among, among)]
    )
    signs, runs = drawn(counts.astype(float))
    low, high = np.quantile((signs / np.where(runs > 0, runs, np.nan))[runs > 0], [0.025, 0.975])
    return {
        name: short(float(shown[among].mean())),
        f"{name}_low": short(float(low)),
        f"{name}_high": short(float(high)),
    }
