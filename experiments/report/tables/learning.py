"""The tables of results on learning from trajectories, and on return against the lag of the data."""

from collections.abc import Mapping
from typing import Any

from experiments.report.tables.results import rows
from experiments.report.tables.table import Table


def trajectories() -> Table:
    """Returns the returns of behaviour cloning and of the transformer, one column per seed."""
    of: dict[tuple[str, str, str], list[Mapping[str, str]]] = {}
    for row in rows("gear/played.csv"):
        of.setdefault((row["model"], row["actions"], row["seed"]), []).append(row)
    seeds = list(dict.fromkeys(seed for *_, seed in of))

    def line(label: str, model: str, actions: str, place: int = 0) -> tuple[str, ...]:
        played = [of[model, actions, seed][place] for seed in seeds]
        return (label, *(f"{float(one['mean_return']):,.0f} ± {float(one['margin_95']):,.0f}" for one in played))

    asked = [float(row["asked"]) for row in of["transformer", "sampled", seeds[0]]]
    *parts, _ = (f"{100 * each / asked[-1]:.0f} %" for each in asked)
    *others, last = (f"{float(of['transformer', 'sampled', seed][-1]['asked']):,.0f}" for seed in seeds)
    parts[0] = f"transformer, asked for {parts[0]} of the best return in the data"
    labels = [*parts, f"100 %: {', '.join(others)} and {last}"]
    lines = [
        line("behaviour cloning", "cloning", "sampled"),
        *(line(label, "transformer", "sampled", place) for place, label in enumerate(labels)),
        line("without noise in the actions: behaviour cloning", "cloning", "mean"),
        line("without noise: transformer, asked for 100 %", "transformer", "mean"),
    ]
    return Table(("actions sampled, as in the data", *(f"seed {seed}" for seed in seeds)), lines)


def half_lost(rate: str, study: str = "lab-lag") -> Table:
    """Returns the lag at which each method has lost half of its outcome, by task, at its best or the shared rate."""
    halves = _halves(rate, study)
    rates = {task: of["learning_rate"] for task, of in halves["PPO"].items()}
    headings = [task if rate == "best" else f"{task}, {rates[task]}" for task in rates]
    lines = [
        (method, *(f"{of[task]['half']} ({of[task]['interval']})" for task in rates)) for method, of in halves.items()
    ]
    return Table(("method", *headings), lines)


def two_scores() -> Table:
    """Returns the outcomes by the newest policy and by the policies that sampled, three methods at their best rates."""
    newest, sampled = (
        {
            (row["task"], row["method"], int(row["lag"])): row["score"]
            for row in rows(f"{study}/curves.csv")
            if row["rate"] == "best"
        }
        for study in ("lab-newest", "lab-lag")
    )
    lags = sorted({lag for *_, lag in newest})
    tasks = dict.fromkeys(task for task, *_ in newest)

    def cell(*place: Any) -> str:
        return "" if place not in newest else f"{float(newest[place]):.3g}; {float(sampled[place]):.3g}"

    lines = [
        (f"{task}, {method}", *(cell(task, method, lag) for lag in lags))
        for task in tasks
        for method in ("no correction", "PPO", "IMPACT")
    ]
    return Table(("newest policy; policies that sampled", *(f"lag {lag}" for lag in lags)), lines)


def free_lag() -> Table:
    """Returns each method's outcome without lag at its best rate, and the largest lag that keeps 90 % of it."""
    halves = _halves("best", "lab-lag")
    lines = [
        (method, *(f"{float(row['score_without_lag']):.3g}; {row['free']}" for row in of.values()))
        for method, of in halves.items()
    ]
    return Table(("method", *halves["PPO"]), lines)


def _halves(rate: str, study: str) -> Mapping[str, Mapping[str, Mapping[str, str]]]:
    """Returns the rows of one choice of the learning rate, by method and task."""
    found: dict[str, dict[str, Mapping[str, str]]] = {}
    for row in rows(f"{study}/half.csv"):
        if row["rate"] == rate:
            found.setdefault(row["method"], {})[row["task"]] = row
    return found


def what_if() -> Table:
    """Returns the table of the worked example of a log from another stack."""
    of = rows("what-if/table.csv")
    return Table([*of[0]], [[*row.values()] for row in of])
