"""The tables of results on MinionsRL."""

from collections.abc import Mapping, Sequence

from experiments.figures.minionsrl.ceiling import Schedule
from experiments.report.tables.results import estimated, first, middle, rounded, rows, runs
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


#: The learners of trainings, each with the folders of its results, and the ways of training, in the page's words.
_TRAININGS = {
    "authors": ("the authors' learner", "fresh", "shared"),
    "tuned": ("the tuned learner", "penalty-4", "shared"),
}
_WAYS = {
    "held for the run": "numbers by themselves",
    "held for the run, neighbours share": "neighbours share",
}


def trained() -> Table:
    """Returns fixed numbers and trained schedulers by testbed: actors, runs within the budget, time and cost."""
    lines = []
    for testbed, (label, *folders) in _TRAININGS.items():
        paths = [f"minionsrl-learning/{folder}/schedulers_{testbed}.csv" for folder in folders]
        several = {_name(row): row for path in paths for row in rows(path)}
        for name, row in sorted(several.items(), key=lambda item: bool(item[1]["seed"])):  # fixed numbers first
            within = f"{row['within_budget']} of {row['runs']}" if row.get("within_budget") else ""
            ratios = (f"{_ratio(row, column):.2f}" for column in ("time", "cost"))
            lines.append((label, name, f"{float(row['actors']):.1f}", within, *ratios))
            label = ""
    headings = ("seeds 60 to 79", "scheduler", "actors", "within the budget", "time / Max's", "cost / Max's")
    return Table(headings, lines, left=headings[1:2])


def _name(row: Mapping[str, str]) -> str:
    """Returns the name of a scheduler: a fixed number, a surface, or a training by its way and its number."""
    if not row["seed"]:
        return row["way"]
    way, *best = row["way"].split(": ")
    if way not in _WAYS:
        return f"{way} {int(row['seed']) + 1}: {best[0]}"
    return f"{_WAYS[way]}, training {int(row['seed']) + 1}{', by its best run' if best else ''}"


#: Runs of `minionsrl-numbers`, by their place, with the label of each testbed.
_NUMBERS = {
    "minionsrl-numbers": {"authors": "CartPole, the authors' learner", "tuned": "CartPole, the tuned learner"},
    "minionsrl-numbers/hopper": {"authors-0.0003": "Hopper, the authors' learner"},
}


def numbers() -> Table:
    """Returns fixed numbers, trained schedulers and baselines on the event loop, by task and testbed."""
    lines = []
    for place, testbeds in _NUMBERS.items():
        for testbed, label in testbeds.items():
            for row in (row for row in rows(f"{place}/table.csv") if row["testbed"] == testbed):
                spends = (rounded(row[name], digits) for name, digits in (("s", 1), ("USD", 4)))
                azure = f"{first(row['USD, Azure']):.4f}" if row["USD, Azure"] else ""
                ratios = (rounded(row[f"{name} / all"]) for name in ("s", "USD", "USD, Azure"))
                name = f"{row['actors']} actors" if row["actors"].isdigit() else row["actors"]
                lines.append((label, name, row["reached"], row["mean actors"], *spends, azure, *ratios))
                label = ""
    spent = ("virtual s", "USD by Eq. 2", "as Azure bills")
    headings = ("", "scheduler", "reached", "actors", *spent, *(f"{name} / Max's" for name in ("s", "USD", "Azure's")))
    return Table(headings, lines, left=headings[1:2])


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
