"""The committed results in the words of the pages, as the tests of sentences compute them."""

import re

import numpy as np

from experiments.report import claims, pages, recorded
from experiments.toolkit.statistics import estimate
from tests.experiments.csv_rows import rows

RESULTS = pages.ROOT / "experiments" / "results"
SMALL = RESULTS / "small"
HOPPER = "Hopper-v4"
#: Pages of results.
STELLARIS, DEPLOYMENTS, MAP = (f"docs/results/{page}.md" for page in ("stellaris", "deployments", "stellaris-map"))


def missing(page, *sentences):
    """The sentences that are not on the page."""
    text = " ".join((pages.ROOT / page).read_text().split())
    return [sentence for sentence in sentences if sentence not in text]


def table(study, key, environment=HOPPER):
    """The rows of a study's table, by the column that names them."""
    return {row[key]: row for row in rows(SMALL / study / "table.csv") if row["environment"] == environment}


def shown(text, spec=".2f"):
    """An estimate in a study's table with other digits."""
    return re.sub(r"[\d,]+\.?\d*", lambda number: format(float(number[0].replace(",", "")), spec), text)


def middle(text, spec=".2f"):
    return shown(text, spec).split(" ")[0]


def times(text):
    """An estimate in the README's words."""
    return text.replace(" (", " times (")


def percent(of, digits=0):
    low, high = (f"{100 * end:.0f}".replace("-", "\u2212") for end in (of.low, of.high))
    return f"{100 * of.middle:.{digits}f} %", f"{low} to {high}"


def by_variant(folder, environment=HOPPER):
    """The rows of a study's runs, by variant and in the order of the seeds."""
    groups = {}
    for row in rows(folder / "runs.csv"):
        if row["environment"] == environment:
            groups.setdefault(row["setting"] or row["system"], []).append(row)
    return groups


def finals(folder, environment=HOPPER, *, column="final_return"):
    """The final returns of a study's runs, or another column, by variant and in the order of the seeds."""
    groups = by_variant(folder, environment)
    return {name: np.array([float(row[column]) for row in of]) for name, of in groups.items()}


def means(folder, environment=HOPPER):
    """The mean returns over a study's runs."""
    return finals(folder, environment, column="mean_return")


def result(of, column, spec=",.0f"):
    """Estimates a result of runs."""
    return format(estimate([float(row[column]) for row in of]), spec)


def at(folder, variant, seconds):
    """The returns of the runs of a variant on Hopper-v4 after some seconds, in the order of the seeds."""
    points = {}
    for row in rows(folder / "curves.csv"):
        if row["environment"] == HOPPER and (row["setting"] or row["system"]) == variant:
            points.setdefault(row["seed"], []).append((float(row["seconds"]), float(row["episode_return"])))
    return np.array([np.interp(seconds, *zip(*curve, strict=True)) for curve in points.values()])


def tuned_runs(system, environment=HOPPER):
    """The curves of a tuned system's runs, in the order of the seeds."""
    return [*recorded.runs(rows(SMALL / "stellaris-training" / "curves.csv"), environment, system).values()]


def spent_until(target, runs, column="cost_pay_per_use"):
    """The cost at which runs reach a return; not a number for a run that does not."""
    there = [run["episode_return"] >= target for run in runs]
    return np.array([run[column][np.argmax(of)] if of.any() else np.nan for run, of in zip(runs, there, strict=True)])


def reached(spent):
    """An estimate of what runs spent, and the number of those that reached the target."""
    finite = spent[np.isfinite(spent)]
    return estimate(finite), len(finite)


def findings(study):
    """The measurements of claims by claim, settings and environment."""
    found = claims.findings({study: rows(SMALL / study / "curves.csv")})
    return {(claim, one.under, one.environment): one.ours for claim, several in found.items() for one in several}
