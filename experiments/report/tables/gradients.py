"""The tables of the study of gradients of every age."""

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from experiments.figures.lab.verdicts import BEATS, BELOW
from experiments.report.tables.corrections import Row, apart, interval, values
from experiments.report.tables.results import rows
from experiments.report.tables.table import Table

_STUDY = "lab-gradients"
_CONSTANT = "constant"
_REFERENCE = "uncorrected"


def outcomes() -> Table:
    """Returns each method's outcome and mean distance between versions at its best rate, by task and constant lag."""
    own = [row for row in rows(f"{_STUDY}/best.csv") if row["kind"] == _CONSTANT]
    lags, distance = values(own, "lag"), _distances()
    cells = {
        (row["task"], row["method"], row["lag"]): f"{float(row['outcome']):.0f}; {distance(row):.2g}" for row in own
    }
    lines = [
        (f"{task}, {method}", *(cells[task, method, lag] for lag in lags))
        for task in values(own, "task")
        for method in values(own, "method")
    ]
    return Table(("outcome; distance", *(f"lag {lag}" for lag in lags)), lines)


def _distances() -> Callable[[Row], float]:
    """Returns a function of a row of `best.csv`: the mean distance between versions at the rates of both halves."""
    names = ("task", "method", "kind", "lag")
    known = {
        (*(row[name] for name in names), row["learning_rate"]): float(row["step_norm"])
        for row in rows(f"{_STUDY}/steps.csv")
    }

    def of(row: Row) -> float:
        kind = _CONSTANT if row["lag"] == "0" else row["kind"]
        case = (row["task"], row["method"], kind, row["lag"])
        return float(np.mean([known[*case, row[f"rate_of_{half}_seeds"]] for half in ("even", "odd")]))

    return of


def half_lost() -> Table:
    """Returns the lag at which each method has lost half of its outcome, and the largest at which it keeps 90 %."""
    own = rows(f"{_STUDY}/half.csv")
    places = list(dict.fromkeys((row["task"], row["rate"]) for row in own))
    cells = {
        (row["method"], row["task"], row["rate"]): f"{row['half']} ({row['interval']}); {row['free']}" for row in own
    }
    rate = {(row["task"], row["rate"]): row["learning_rate"] or "best rate" for row in own}
    lines = [(method, *(cells[method, *place] for place in places)) for method in values(own, "method")]
    return Table(("half lost at; 90 % kept at", *(f"{place[0]}, {rate[place]}" for place in places)), lines)


def helps() -> Table:
    """Returns the lags at which each method lies above and below uncorrected gradients, by kind of lag and task."""
    against = rows(f"{_STUDY}/against.csv")
    tasks = values(against, "task")
    lines = []
    for answer in rows(f"{_STUDY}/helps.csv"):
        kind, method = answer["kind"], answer["method"]
        own = [row for row in against if (row["kind"], row["method"]) == (kind, method)]
        cells = [
            apart([row for row in own if row["task"] == task], verdict) for task in tasks for verdict in (BEATS, BELOW)
        ]
        lines.append((f"{method}, {kind} lag", *cells, answer["helps"]))
    headings = [f"{task}, {where}" for task in tasks for where in ("above at lags", "below")]
    return Table(("against uncorrected gradients", *headings, "both tasks"), lines, left=(*headings, "both tasks"))


def weights() -> Table:
    """Returns the outcomes at drawn lags of uncorrected gradients and of both weights, by task."""
    own = [row for row in rows(f"{_STUDY}/best.csv") if row["kind"] == "drawn" and row["lag"] != "0"]
    shown = [method for method in values(own, "method") if method == _REFERENCE or method.startswith("weight")]
    lags = values(own, "lag")
    cells = {(row["task"], row["method"], row["lag"]): interval(row, "outcome", "low", "high") for row in own}
    lines = [
        (f"{task}, {method}", *(cells[task, method, lag] for lag in lags))
        for task in values(own, "task")
        for method in shown
    ]
    return Table(("outcome, drawn lags", *(f"mean {lag}" for lag in lags)), lines)


def border() -> Table:
    """Returns the largest stable rate of uncorrected gradients at each lag, its slope, and the answer, by task."""
    own = rows(f"{_STUDY}/border.csv")
    lags = values(own, "lag")
    rates = {(row["task"], row["lag"]): row["largest_stable_rate"] or "none" for row in own}
    slope: Mapping[str, Row] = {row["task"]: row for row in own}
    lines = [
        (task, *(rates[task, lag] for lag in lags), interval(row, "slope", "low", "high"), row["verdict"])
        for task, row in slope.items()
    ]
    return Table(("largest stable rate", *(f"lag {lag}" for lag in lags), "slope", "answer"), lines, left=("answer",))


def cosines() -> Table:
    """Returns the mean cosine of successive gradients of each method at the shared rate, by task and lag."""
    own = rows(f"{_STUDY}/cosine.csv")
    lags: Sequence[str] = values(own, "lag")
    found = {(row["task"], row["method"], row["lag"]): f"{float(row['cosine']):.2f}" for row in own}
    rises = {(row["task"], row["method"]): row["rises"] for row in own}
    lines = [
        (f"{task}, {method}", *(found[task, method, lag] for lag in lags), answer)
        for (task, method), answer in rises.items()
    ]
    return Table(("cosine", *(f"lag {lag}" for lag in lags), "rises"), lines, left=("rises",))


#: The tables by the names in the pages' marks.
TABLES: Mapping[str, Callable[[], Table]] = {
    "gradients-outcomes": outcomes,
    "gradients-half-lost": half_lost,
    "gradients-helps": helps,
    "gradients-weights": weights,
    "gradients-border": border,
    "gradients-cosines": cosines,
}
