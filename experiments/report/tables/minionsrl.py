"""The tables of results on MinionsRL."""

from collections.abc import Mapping, Sequence

from experiments.figures.minionsrl.ceiling import Schedule
from experiments.report.tables.results import estimated, first, middle, rows, runs
from experiments.report.tables.table import Table
from experiments.toolkit.statistics import Estimate

_STUDY = "small/minionsrl-training"
#: The headings of `_spent`.
_SPENT = ("reached", "virtual s", "USD by Eq. 2", "USD as Azure bills", "actors")


def on_cartpole() -> Table:
    """Returns time, both costs and the number of actors up to CartPole's target."""
    labels = {
        "MinionsRL": "MinionsRL, for time",
        "Azure ML": "Azure ML: synchronous PPO on reserved machines",
        "IMPACT": "IMPACT on reserved machines",
    }
    lines = [(labels.get(row["system"], row["system"]), *_spent(row)) for row in _table("CartPole-v1")]
    return Table(("", *_SPENT), lines)


def on_mujoco() -> Table:
    """Returns time, both costs and the number of actors up to the targets of two tasks; the paper's time and cost."""
    lines = []
    for environment in ("Hopper-v4", "HalfCheetah-v4"):
        for i, row in enumerate(_table(environment)):
            label = row["system"] if i else f"{environment}: {row['system']}"
            papers = (row[name].split(" ")[0] for name in ("paper's s", "paper's USD"))
            lines.append((label, *_spent(row), *papers))
    return Table(("", *_SPENT, "paper's s", "paper's USD"), lines)


_CEILING = "minionsrl-ceiling"
#: The testbeds of the ceiling, in the page's words.
_TESTBEDS = {"authors": "the authors' learner", "tuned": "the tuned learner"}
_OBJECTIVES = {"time": "least time", "cost": "least cost", "cost at equal time": "least cost at Max's time"}


def ceiling() -> Table:
    """Returns the best fixed number and the best two levels by testbed and objective, relative to all actors."""
    lines = []
    for testbed, label in _TESTBEDS.items():
        for row in rows(f"{_CEILING}/best_{testbed}.csv"):
            numbers = Schedule(*(int(row[column]) for column in ("first", "then", "change")))
            ratios = (f"{_ratio(row, column):.2f}" for column in ("time", "cost"))
            lines.append((label, _OBJECTIVES[row["objective"]], str(numbers), *ratios))
            label = ""
    headings = ("chosen on 20 runs, compared on 20 others", "chosen for", "actors", "time / Max's", "cost / Max's")
    return Table(headings, lines, left=headings[1:3])


def _ratio(row: Mapping[str, str], column: str) -> Estimate:
    middle, low, high = (float(row[f"{column}{end}"]) for end in ("", "_low", "_high"))
    return Estimate(middle, low, high, claim=True)


def _table(environment: str) -> list[Mapping[str, str]]:
    """Returns the rows of the study's table, the only file with the number of actors and whether a run succeeded."""
    return [row for row in rows(f"{_STUDY}/table.csv") if row["environment"] == environment]


def _runs(row: Mapping[str, str]) -> Sequence[Mapping[str, str]]:
    return runs(_STUDY, row["environment"])[row["system"]]


def _spent(row: Mapping[str, str]) -> tuple[str, ...]:
    """Returns how many runs reached the target, seconds, cost by Eq. 2 and by Azure's bill, and the mean of actors.

    On reserved machines, whose actors have no number in the table, runs end with their budget: an interval of the
    seconds would be one of the budget.
    """
    of, reached = _runs(row), row["reached"]
    azure = f"{middle(of, 'cost_azure'):.4f}"
    if row["actors"]:
        spent = f"{estimated(of, 'virtual_seconds'):.1f}", f"{estimated(of, 'cost_pay_per_use'):.4f}"
        return reached, *spent, azure, f"{first(row['actors']):.1f}"
    ends = "then" if reached.startswith("0 ") else "or"
    seconds = f"{middle(of, 'virtual_seconds'):.1f}, {ends} out of budget"
    return reached, seconds, f"{middle(of, 'cost_pay_per_use'):.4f}", azure, ""
