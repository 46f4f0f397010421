"""The tables of the study of corrections on the language task."""

from collections.abc import Callable, Mapping

from experiments.figures.lab.verdicts import BEATS, BELOW
from experiments.report.tables import corrections
from experiments.report.tables.corrections import apart, interval, values
from experiments.report.tables.results import rows
from experiments.report.tables.table import Table

_STUDY = "lab-language"
#: The lags whose outcomes are on the page; all are in `best.csv`.
_SHOWN = ("0", "4", "8", "32", "64", "256")


def methods() -> Table:
    """Returns each method's outcomes at its best rate, its half-lags, and the lags at which GRPO is below or above."""
    best, half, against = (rows(f"{_STUDY}/{name}.csv") for name in ("best", "half", "against"))
    outcome = {(row["method"], row["lag"]): f"{float(row['outcome']):.2f}" for row in best}
    lost = {(row["method"], row["rate"]): f"{row['half']} ({row['interval']})" for row in half}
    lines = []
    for method in values(best, "method"):
        own = [row for row in against if row["method"] == method]
        lines.append(
            (
                method,
                *(outcome[method, lag] for lag in _SHOWN),
                *(lost[method, rate] for rate in ("best", "shared")),
                *(apart(own, verdict) for verdict in (BEATS, BELOW)),
            )
        )
    headings = (*(f"lag {lag}" for lag in _SHOWN), "half lost at", "at the shared rate", "above GRPO at lags", "below")
    return Table(("method", *headings), lines, left=("above GRPO at lags", "below"))


def collapses() -> Table:
    """Returns how often each sign of the effective sample fraction is seen before a collapse, and without one."""
    own = [row for row in rows(f"{_STUDY}/q2.csv") if row["runs"] == "that had learned" and row["method"] == "all"]
    lines = [
        (
            row["sign"],
            row["collapsed"],
            interval(row, "share", "share_low", "share_high"),
            f"{int(row['others']):,}",
            interval(row, "others_share", "others_share_low", "others_share_high"),
            row["verdict"],
        )
        for row in own
    ]
    headings = ("collapsed runs", "share with the sign", "other runs", "share of these", "answer")
    return Table(("effective sample fraction", *headings), lines, left=("answer",))


def cosines() -> Table:
    """Returns the mean cosine of successive gradients of each method, by lag."""
    own = rows(f"{_STUDY}/q5.csv")
    lags = values(own, "lag")
    found = {(row["method"], row["lag"]): f"{float(row['cosine']):.2f}" for row in own}
    lines = [(method, *(found[method, lag] for lag in lags)) for method in values(own, "method")]
    return Table(("method", *(f"lag {lag}" for lag in lags)), lines)


#: The tables by the names in the pages' marks.
TABLES: Mapping[str, Callable[[], Table]] = {
    "language-methods": methods,
    "language-slopes": lambda: corrections.slopes(_STUDY),
    "language-collapses": collapses,
    "language-patterns": lambda: corrections.patterns(_STUDY),
    "language-cosines": cosines,
    "language-dips": lambda: corrections.dips(_STUDY, "GRPO"),
}
