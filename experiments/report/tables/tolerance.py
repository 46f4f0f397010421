"""The table of what papers claim about tolerance to stale data, and what this project's studies found."""

from collections.abc import Mapping, Sequence
from statistics import fmean

from experiments.figures.lab.verdicts import BEATS, BELOW
from experiments.report.tables.corrections import apart, values
from experiments.report.tables.results import rows
from experiments.report.tables.table import Table

#: The mark of claims that were read in a summary of the paper.
_SUMMARY = "†"
_CONTROL = {"CartPole": "CartPole", "Acrobot-v1": "Acrobot", "Breakout-MinAtar": "Breakout"}

Row = Mapping[str, str]


def claimed() -> Table:
    """Returns the claims with their sources, and the results beside them."""
    lines = [
        (
            "Naive PPO has 42, 40, 23 and 36 at a maximum lag of 1, 2, 4 and 8: a dip at 4",
            "AReaL's blog, v0.3",
            f"Language: a dip in {_dips('lab-language')}. Control: {_verdicts('lab-corrections/q6.csv')}",
        ),
        (
            "Decoupled PPO keeps what naive PPO loses: 42, 42, 42 and 41",
            "the same; Hilton et al., arXiv 2110.00641",
            f"Language, AReaL's weights against GRPO: {_lags('AReaL')}. Control, decoupled PPO against PPO: "
            f"{_on_control('decoupled PPO')}",
        ),
        (
            "M2PO is as good at a lag of 256 as without lag",
            "arXiv 2510.01161",
            f"Language: {_outcome('M2PO', '256')} of {_outcome('M2PO', '0')} at 256; half is lost at {_half('M2PO')}",
        ),
        (
            "VESPO is stable up to 64 minibatches a batch; GRPO and SAPO collapse at 4",
            "arXiv 2602.10693",
            f"Language: half is lost at {_half('VESPO')} by VESPO, {_half('GRPO')} by GRPO, {_half('SAPO')} by SAPO",
        ),
        (
            "The effective sample size foretells collapses",
            "arXiv 2602.17616",
            f"Language: it {_same('lab-language/q2.csv')} them. Control: it {_same('lab-corrections/q2.csv')} them",
        ),
        (
            "The bias grows with S·η, lag times learning rate",
            "arXiv 2607.01083",
            "Whether the largest stable rate is at an S·η, or at a T·η for T updates. Language and control: "
            f"{_same('lab-language/q1.csv', 'lab-corrections/q1.csv')}. Old gradients: {_gradients()}",
        ),
        (
            "Successive gradients are nearly orthogonal without lag, and aligned with it",
            "GAC, arXiv 2603.01501",
            "Language: this appears for no method at the shared rate. It nearly does for GRPO at a rate of 0.02, with "
            f"{_cosine('GRPO', '0', '0.02')} without lag and {_cosine('GRPO', '16', '0.02')} at 16",
        ),
        (
            "CISPO and GSPO end above DAPO, 0.595 against 0.52",
            f"ScaleRL, arXiv 2510.13786{_SUMMARY}",
            f"Language, against GRPO: CISPO {_lags('CISPO')}; GSPO {_lags('GSPO')}",
        ),
        (
            "Without clipping all runs collapse",
            f"MiniRL, arXiv 2512.01374{_SUMMARY}",
            f"Language, no correction: half is lost at {_half('no correction')}",
        ),
        (
            "V-trace has 46.9 and no correction 11.2, with replay",
            f"IMPALA, arXiv 1802.01561{_SUMMARY}",
            f"Control, V-trace against no correction: {_vtrace()}",
        ),
    ]
    return Table(("claimed", "by", "found here"), lines, left=("by", "found here"))


def _dips(study: str) -> str:
    (row,) = rows(f"{study}/q6.csv")
    return f"{round(float(row['share']) * int(row['seeds']))} of {row['seeds']} seeds"


def _verdicts(path: str) -> str:
    """Returns in how many rows PPO's seeds have a dip as often as expected, and less often."""
    verdicts = [row["verdict"] for row in rows(path)]
    words = {"equal": "as often as chance gives", "less often": "less often", "more often": "more often"}
    return ", ".join(
        f"{said} in {verdicts.count(one)} of {len(verdicts)}" for one, said in words.items() if one in verdicts
    )


def _lags(method: str) -> str:
    """Returns the lags of the language task at which a method is above and below GRPO."""
    own = [row for row in rows("lab-language/against.csv") if row["method"] == method]
    return _above_and_below(own)


def _on_control(method: str) -> str:
    """Returns the lags at which a method is above and below PPO, by task."""
    own = [row for row in rows("lab-corrections/against_ppo.csv") if row["method"] == method]
    by_task = {task: [row for row in own if row["task"] == task] for task in values(own, "task")}
    return "; ".join(f"{_CONTROL[task]}, {_above_and_below(of)}" for task, of in by_task.items())


def _above_and_below(of: Sequence[Row]) -> str:
    found = {"above": apart(of, BEATS), "below": apart(of, BELOW)}
    return " and ".join(f"{word} at {lags}" for word, lags in found.items() if lags) or "level"


def _outcome(method: str, lag: str) -> str:
    (row,) = (one for one in rows("lab-language/best.csv") if (one["method"], one["lag"]) == (method, lag))
    return f"{float(row['outcome']):.2f}"


def _cosine(method: str, lag: str, rate: str) -> str:
    """Returns the mean cosine of successive gradients on the language task."""
    wanted = (method, lag, rate)
    own = [row for row in rows("lab-language/lags.csv") if (row["method"], row["lag"], row["learning_rate"]) == wanted]
    return f"{fmean(float(row['cosine']) for row in own):.2f}"


def _half(method: str) -> str:
    (row,) = (one for one in rows("lab-language/half.csv") if (one["method"], one["rate"]) == (method, "best"))
    return row["half"]


def _same(*paths: str) -> str:
    """Returns the verdict of all rows, over all methods where a table has a row for these.

    Raises:
      ValueError: if they differ.
    """
    tables = [rows(path) for path in paths]
    all_methods = [[row for row in own if row["method"] == "all"] or own for own in tables]
    (verdict,) = {row["verdict"] for own in all_methods for row in own}
    return verdict


def _gradients() -> str:
    of = {row["task"]: row["verdict"] for row in rows("lab-gradients/border.csv")}
    return ", ".join(f"{verdict} on {_CONTROL[task]}" for task, verdict in of.items())


def _vtrace() -> str:
    """Returns the lags at which V-trace's interval lies above and below that of no correction, by task."""
    own = [row for row in rows("lab-lag/curves.csv") if row["rate"] == "best"]
    said = []
    for task in values(own, "task"):
        of = {
            name: {row["lag"]: row for row in own if (row["task"], row["method"]) == (task, name)}
            for name in ("V-trace", "no correction")
        }
        pairs = [(lag, of["V-trace"][lag], of["no correction"][lag]) for lag in of["V-trace"]]
        above = [lag for lag, one, two in pairs if float(one["low"]) > float(two["high"])]
        below = [lag for lag, one, two in pairs if float(one["high"]) < float(two["low"])]
        both = [f"{word} at {', '.join(lags)}" for word, lags in (("above", above), ("below", below)) if lags]
        said.append(f"{_CONTROL[task]}, {' and '.join(both)}")
    return "; ".join(said)
