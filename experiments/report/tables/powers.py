"""The table of how many seeds the results have, and how many a difference would need."""

from collections.abc import Sequence

import numpy as np

from experiments.report.tables.results import runs
from experiments.report.tables.table import Table
from experiments.toolkit.statistics import detectable, seeds_needed

#: Studies with two systems or more on the environment, and the names of their results on the page.
_STUDIES: Sequence[tuple[str, str, str]] = (
    ("small/stellaris-why", "Hopper-v4", "`stellaris-why`"),
    ("small/stellaris-motivation", "Hopper-v4", "`stellaris-motivation`"),
    ("small/stellaris-training", "Hopper-v4", "`stellaris-training`"),
    ("small/stellaris-training", "Walker2d-v4", "the same"),
    ("small/stellaris-hpc", "Hopper-v4", "`stellaris-hpc`"),
    ("small/minionsrl-training", "CartPole-v1", "`minionsrl-training`"),
    ("small/minionsrl-training/hopper", "Hopper-v4", "the same"),
)


def needed() -> Table:
    """Returns the seeds of each study, the least ratio that they show, and the seeds for ratios of 1.2 and 1.1."""
    lines = []
    for study, environment, name in _STUDIES:
        column = "seconds_to_target" if "minionsrl" in study else "final_return"
        groups = [[float(row[column]) for row in of if row[column]] for of in runs(study, environment).values()]
        groups = [of for of in groups if len(of) >= 5 and np.mean(of) > 0]
        variation = float(np.median([np.std(of, ddof=1) / np.mean(of) for of in groups]))
        seeds = min(map(len, groups))
        ratio = 1 + detectable(variation, seeds)
        what = "time to the target" if "minionsrl" in study else "final return"
        cells = (f"{variation:.2f}", str(seeds), f"{ratio:.2f}", *(f"{seeds_needed(variation, x)}" for x in (0.2, 0.1)))
        lines.append((name, environment, what, *cells))
    headings = (
        "study",
        "environment",
        "outcome",
        "variation",
        "seeds",
        "ratio shown",
        "seeds for 1.2",
        "seeds for 1.1",
    )
    return Table(headings, lines, left=("environment", "outcome"))
