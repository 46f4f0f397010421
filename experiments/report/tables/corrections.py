"""The tables of the study of corrections at imposed lags."""

from collections.abc import Callable, Mapping, Sequence

from experiments.figures.lab.collapse import FALL
from experiments.figures.lab.surface import AGAIN
from experiments.figures.lab.verdicts import BEATS, BELOW
from experiments.report.tables.results import rows
from experiments.report.tables.table import Table

Row = Mapping[str, str]

_STUDY = "lab-corrections"


def half_lost() -> Table:
    """Returns the lag at which each method has lost half of its outcome at its best rate, by task."""
    own = [row for row in rows(f"{_STUDY}/half.csv") if row["rate"] == "best"]
    tasks = values(own, "task")
    cells = {(row["method"], row["task"]): f"{row['half']} ({row['interval']})" for row in own}
    return Table(("method", *tasks), [(one, *(cells[one, task] for task in tasks)) for one in values(own, "method")])


def against_ppo() -> Table:
    """Returns the lags at which each method's interval lies above or below PPO's, by task."""
    own = [row for row in rows(f"{_STUDY}/against_ppo.csv") if row["method"] != AGAIN]
    tasks = values(own, "task")
    lines = [
        (
            method,
            *(
                apart([row for row in own if (row["method"], row["task"]) == (method, task)], verdict)
                for task in tasks
                for verdict in (BEATS, BELOW)
            ),
        )
        for method in values(own, "method")
    ]
    headings = [f"{task}, {where}" for task in tasks for where in ("above PPO at lags", "below")]
    return Table(("method", *headings), lines, left=headings)


def by_the_newest_policy() -> Table:
    """Returns where half of the newest policies' outcome is lost, and where they are apart from PPO's, by task."""
    half = {(row["method"], row["task"]): row for row in rows(f"{_STUDY}/newest_half.csv") if row["rate"] == "best"}
    against = rows(f"{_STUDY}/newest_against_ppo.csv")
    tasks = values([*half.values()], "task")
    lines = []
    for method in values([*half.values()], "method"):
        cells = [method]
        for task in tasks:
            own = [row for row in against if (row["method"], row["task"]) == (method, task)]
            lost = half[method, task]
            cells += [f"{lost['half']} ({lost['interval']})", *(apart(own, verdict) for verdict in (BEATS, BELOW))]
        lines.append(tuple(cells))
    columns = ("half is lost at", "above PPO at lags", "below")
    return Table(("method", *(f"{task}, {column}" for task in tasks for column in columns)), lines)


def apart(of: Sequence[Row], verdict: str) -> str:
    """Returns the lags of the rows with a verdict."""
    return ", ".join(row["lag"] for row in of if row["verdict"] == verdict)


def two_ppos() -> Table:
    """Returns the outcomes of PPO on both devices, by task and lag."""
    own = [row for row in rows(f"{_STUDY}/against_ppo.csv") if row["method"] == AGAIN]
    words = {BEATS: "the GPU's is above", BELOW: "the GPU's is below"}
    lines = [
        (
            row["task"],
            row["lag"],
            interval(row, "ppo_outcome", "ppo_low", "ppo_high"),
            interval(row, "outcome", "low", "high"),
            words.get(row["verdict"], "overlap"),
        )
        for row in own
    ]
    return Table(("task", "lag", "PPO on CPUs", "PPO on the GPU", "intervals"), lines, left=("intervals",))


def recommended() -> Table:
    """Returns the number of lags at which each method is above and below PPO, by task, and the recommendation."""
    own = rows(f"{_STUDY}/recommended.csv")
    tasks = [name.removeprefix(f"{BEATS} on ") for name in own[0] if name.startswith(BEATS)]
    lines = [
        (
            row["method"],
            *(f"{row[f'{BEATS} on {task}']}; {row[f'{BELOW} on {task}']}" for task in tasks),
            row["recommended"],
        )
        for row in own
    ]
    return Table(("number of lags above PPO; number below", *tasks, "recommended"), lines, left=("recommended",))


def slopes(study: str = _STUDY) -> Table:
    """Returns the slopes of the largest stable rate against the lag and the length, and the answer to question 1."""
    own = rows(f"{study}/q1.csv")
    places = list(dict.fromkeys((row["against"], row["at"]) for row in own))
    lines = []
    for task in values(own, "task"):
        for method in values(own, "method"):
            of = {(row["against"], row["at"]): row for row in own if (row["task"], row["method"]) == (task, method)}
            cells = [interval(of[place], "slope", "low", "high") for place in places]
            lines.append((f"{task}, {method}", *cells, of[places[0]]["verdict"]))
    headings = [f"against {against}, {at}" for against, at in places]
    return Table(("slope", *headings, "answer"), lines, left=("answer",))


def collapses() -> Table:
    """Returns how often each sign is seen before a collapse and without one, over all methods: question 2."""
    own = [row for row in rows(f"{_STUDY}/q2.csv") if (row["runs"], row["method"]) == ("that had learned", "all")]
    lines = [
        (
            f"{row['task']}, {row['sign']}",
            f"{int(row['collapsed']):,}",
            interval(row, "share", "share_low", "share_high"),
            interval(row, "updates_median", "updates_low_quartile", "updates_high_quartile")
            if row["sign"] == FALL
            else "",
            f"{int(row['others']):,}",
            interval(row, "others_share", "others_share_low", "others_share_high"),
            row["verdict"],
        )
        for row in own
    ]
    headings = (
        "collapsed",
        "share with the sign",
        "updates before, median (quartiles)",
        "others",
        "share with the sign, others",
        "answer",
    )
    return Table(("effective sample fraction", *headings), lines, left=("answer",))


def orders() -> Table:
    """Returns Kendall's τ of the orders at the best and the shared rates, and the reversed pairs: question 3."""
    own = rows(f"{_STUDY}/q3.csv")
    tasks = values(own, "task")
    cells = {
        (row["lag"], row["task"]): f"{interval(row, 'tau', 'low', 'high')}; {row['reversed']} reversed" for row in own
    }
    lags = sorted(values(own, "lag"), key=int)
    headings = ("Kendall's τ; reversed pairs, at lag", *tasks)
    return Table(headings, [(lag, *(cells.get((lag, task), "") for task in tasks)) for lag in lags])


def patterns(study: str = _STUDY) -> Table:
    """Returns the ratios of the outcomes under sawtooth and drawn lags to those under constant ones: question 4."""
    lines = [
        (
            row["task"],
            row["method"],
            row["mean_lag"],
            *(interval(row, kind, f"{kind}_low", f"{kind}_high") for kind in ("sawtooth", "maximum")),
            row["verdict"],
        )
        for row in rows(f"{study}/q4.csv")
    ]
    headings = ("task", "method", "mean lag", "sawtooth / constant", "drawn / constant", "answer")
    return Table(headings, lines, left=("method", "answer"))


def mixed() -> Table:
    """Returns the ratios of the newest policies' outcomes under mixed lags to those under constant ones."""
    lines = [
        (
            row["task"],
            row["method"],
            row["mean_lag"],
            _number(row["constant"]),
            interval(row, "mixed", "mixed_low", "mixed_high") if row["mixed"] != "nan" else "none",
            row["verdict"],
        )
        for row in rows(f"{_STUDY}/mixed.csv")
    ]
    headings = ("task", "method", "mean lag", "outcome at the constant lag", "mixed / constant", "answer")
    return Table(headings, lines, left=("method", "answer"))


def dips(study: str = _STUDY, method: str = "PPO") -> Table:
    """Returns the share of a method's seeds with a dip at a lag of 4, and the share expected by chance: question 6."""
    lines = [
        (
            f"{row['task']}, {row['method']}",
            row["seeds"],
            _number(row["share"]),
            _number(row["expected"]),
            interval(row, "difference", "low", "high"),
            row["verdict"],
        )
        for row in rows(f"{study}/q6.csv")
    ]
    headings = ("seeds", "share with a dip", "expected", "difference", "answer")
    return Table((f"{method} at the shared rate", *headings), lines, left=("answer",))


#: The tables by the names in the pages' marks.
TABLES: Mapping[str, Callable[[], Table]] = {
    "corrections-half-lost": half_lost,
    "corrections-against-ppo": against_ppo,
    "corrections-newest": by_the_newest_policy,
    "corrections-two-ppos": two_ppos,
    "corrections-recommended": recommended,
    "corrections-slopes": slopes,
    "corrections-collapses": collapses,
    "corrections-orders": orders,
    "corrections-patterns": patterns,
    "corrections-mixed": mixed,
    "corrections-dips": dips,
}


def values(of: Sequence[Row], column: str) -> Sequence[str]:
    """Returns the different values of a column, in order."""
    return list(dict.fromkeys(row[column] for row in of))


def interval(row: Row, middle: str, low: str, high: str) -> str:
    """Returns a number with its interval; "none" if there is none."""
    return f"{_number(row[middle])} ({_number(row[low])} to {_number(row[high])})" if row[middle] else "none"


def _number(text: str) -> str:
    """Rounds a number to three digits.

    Example:
      >>> _number("451.05"), _number("-0.57754"), _number("")
      ('451', '-0.578', '')
    """
    return f"{float(text):.3g}" if text else ""
