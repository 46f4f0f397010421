"""The tables of the comparison at equal time, and of the tuning before it."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from experiments import tuning
from experiments.report.tables.results import estimated, first, middle, rounded, rows, runs
from experiments.report.tables.table import Table
from experiments.toolkit.statistics import estimate, ratio

_STUDY = "small/stellaris-equal-time"
#: The folders of `tuning`'s results, by environment.
_TUNING = {"Hopper-v4": "small/tuning", "CartPole-v1": "small/tuning/cartpole"}
#: The system that has asynchronous actors, as Stellaris has, and no asynchronous learners.
_CONTROL = "asynchronous actors, PPO"
_LABELS = {
    "synchronous": "synchronous PPO",
    "asynchronous actors, PPO": "asynchronous actors, one PPO learner",
    "IMPACT": "`CircularReplay`, IMPACT",
    "asynchronous actors": "asynchronous actors, IMPALA",
    "stellaris": "Stellaris, PPO",
    "stellaris, IMPACT": "Stellaris, IMPACT",
}


def tuned(environment: str) -> Table:
    """Returns the best setting of each system, and the next best, by the mean outcome over the tuning seeds."""
    of = tuning.of(environment)
    groups = runs(_TUNING[environment], environment)
    column = "mean_return" if of.over_the_run else "final_return"
    outcomes = {setting: [float(row[column]) for row in group] for setting, group in groups.items()}
    lines = []
    for system, label in _LABELS.items():
        own = [f"{system}: {setting}" for setting in of.settings[system]]
        best, other, *_ = sorted(own, key=lambda setting: -fmean(outcomes[setting]))
        assert best == f"{system}: {of.chosen[system]}"
        found = outcomes[best]
        lines.append(
            (
                label,
                of.chosen[system],
                f"{fmean(found):,.0f} ({min(found):,.0f} to {max(found):,.0f})",
                f"{middle(groups[best], 'steps'):,.0f}",
                f"{middle(groups[best], 'gradients'):,.0f}",
                f"{fmean(outcomes[other]):,.0f} ({other.removeprefix(f'{system}: ')})",
            )
        )
    outcome = f"mean return over {of.seconds:g} s" if of.over_the_run else f"return after {of.seconds:g} s"
    headings = (environment, "best of eight settings", outcome, "steps", "gradients", "the next best")
    return Table(headings, lines, left=("best of eight settings", "the next best"))


def compared(environment: str) -> Table:
    """Returns the study's numbers on one environment."""
    groups = runs(_STUDY, environment)
    lines = []
    for row in rows(f"{_STUDY}/table.csv"):
        if row["environment"] == environment:
            to_target = f"{first(row['USD to target']):.3f}" if row["USD to target"] else ""
            reached = f"{to_target}, {row['reached']}" if to_target else row["reached"]
            lines.append(
                (
                    _LABELS[row["system"]],
                    f"{estimated(groups[row['system']], 'final_return'):,.0f}",
                    *(rounded(row[column]) for column in ("ratio", "ratio of means")),
                    _against(groups[row["system"]], groups[_CONTROL]),
                    row["staleness"],
                    f"{float(row['USD demo']):.3f}",
                    f"{float(row['USD use']):.3f}",
                    reached,
                )
            )
    ratios = ("ratio to synchronous", "of the means until then", "ratio to one PPO learner")
    headings = ("return after 60 s", *ratios, "staleness", "USD, demo's bill", "USD by use", "USD by use up to 600")
    return Table((environment, *headings), lines)


def _against(of: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]]) -> str:
    """Returns the ratio of the final returns of two systems, paired by seed."""
    by_seed = {row["seed"]: float(row["final_return"]) for row in others}
    return f"{estimate([ratio(float(row['final_return']), by_seed[row['seed']]) for row in of]):.2f}"
