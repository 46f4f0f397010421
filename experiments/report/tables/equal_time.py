"""The tables of the comparison at equal time, and of the tuning before it."""

from statistics import fmean

from experiments import tuning
from experiments.report.tables.results import first, middle, rounded, rows, runs
from experiments.report.tables.table import Table

_STUDY = "small/stellaris-equal-time"
_LABELS = {
    "synchronous": "synchronous PPO",
    "asynchronous actors, PPO": "asynchronous actors, one PPO learner",
    "IMPACT": "`CircularReplay`, IMPACT",
    "asynchronous actors": "asynchronous actors, IMPALA",
    "stellaris": "Stellaris, PPO",
    "stellaris, IMPACT": "Stellaris, IMPACT",
}


def tuned() -> Table:
    """Returns the best setting of each system, and the next best, by the mean return over the tuning seeds."""
    groups = runs("small/tuning", "Hopper-v4")
    returns = {setting: [float(row["final_return"]) for row in of] for setting, of in groups.items()}
    lines = []
    for system, label in _LABELS.items():
        own = [f"{system}: {setting}" for setting in tuning.SETTINGS[system]]
        best, other, *_ = sorted(own, key=lambda setting: -fmean(returns[setting]))
        assert best == f"{system}: {tuning.CHOSEN[system]}"
        of = returns[best]
        lines.append(
            (
                label,
                tuning.CHOSEN[system],
                f"{fmean(of):,.0f} ({min(of):,.0f} to {max(of):,.0f})",
                f"{middle(groups[best], 'steps'):,.0f}",
                f"{middle(groups[best], 'gradients'):,.0f}",
                f"{fmean(returns[other]):,.0f} ({other.removeprefix(f'{system}: ')})",
            )
        )
    headings = ("system", "best of eight settings", "return after 60 s", "steps", "gradients", "the next best")
    return Table(headings, lines, left=("best of eight settings", "the next best"))


def compared(environment: str) -> Table:
    """Returns the study's numbers on one environment."""
    lines = []
    for row in rows(f"{_STUDY}/table.csv"):
        if row["environment"] == environment:
            to_target = f"{first(row['USD to target']):.3f}" if row["USD to target"] else ""
            reached = f"{to_target}, {row['reached']}" if to_target else row["reached"]
            lines.append(
                (
                    _LABELS[row["system"]],
                    row["return"],
                    *(rounded(row[column]) for column in ("ratio", "ratio of means")),
                    row["staleness"],
                    f"{float(row['USD demo']):.3f}",
                    f"{float(row['USD use']):.3f}",
                    reached,
                )
            )
    headings = ("return after 60 s", "ratio to synchronous", "of the means until then", "staleness")
    return Table((environment, *headings, "USD, demo's bill", "USD by use", "by use up to the target"), lines)
