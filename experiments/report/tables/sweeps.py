"""The tables of sweeps over the testbed's assumptions."""

from collections.abc import Sequence

from experiments.report import recorded
from experiments.report.recorded import Run
from experiments.report.tables.results import rows
from experiments.report.tables.table import Table
from experiments.toolkit.statistics import estimate

_ENVIRONMENT = "Hopper-v4"


def sweep(*studies: str, default: str, baseline: str = "synchronous") -> Table:
    """Returns the ratios of Stellaris to a baseline by assumption, paired by seed, with 95 % intervals.

    Args:
      studies: the study's folders under the results; an assumption's runs are those of the first that has any.
      default: the words for the testbed's own values.
      baseline: the baseline's name in the study.
    """
    lines = []
    for assumed, label in {"variation 0.1": default, **_ASSUMED}.items():
        pairs = next(filter(None, (_pairs(study, assumed, baseline) for study in studies)), ())
        if pairs:
            returns, means = (
                estimate([of(*pair) for pair in pairs]) for of in (recorded.return_ratio, recorded.mean_ratio)
            )
            costs = (
                estimate([own[bill][-1] / other[bill][-1] for own, other in pairs])
                for bill in ("cost_demo", "cost_pay_per_use")
            )
            lines.append((label, f"{returns:.2f}", f"{means:.2f}", *(f"{cost:.3f}" for cost in costs)))
    return Table(("assumed", "return, equal time", "mean until then", "cost, demo's bill", "cost by use"), lines)


def _pairs(study: str, assumed: str, baseline: str) -> Sequence[tuple[Run, Run]]:
    """Returns the runs of Stellaris under an assumption, each with the baseline's run of the same seed."""
    points = rows(f"{study}/curves.csv")
    own, others = (recorded.runs(points, _ENVIRONMENT, f"{name}, {assumed}") for name in ("stellaris", baseline))
    return [(run, others[seed]) for seed, run in own.items()]


#: The swept assumptions that differ from the default, in words.
_ASSUMED = {
    "variation 0": "no variation of durations",
    "variation 0.25": "variation 0.25",
    "variation 0.5": "variation 0.5",
    "variation 1": "variation 1",
    "gradient 0.25": "a gradient takes a quarter as long",
    "gradient 4": "a gradient takes four times as long",
    "sharing 1": "four learners on a GPU do not slow each other down",
    "sharing 4": "four learners on a GPU take turns: each four times as slow",
    "growth 0.5": "a gradient's time grows with the root of its samples",
    "growth 1": "a gradient's time grows in proportion to its samples",
    "update 0": "an update and an invocation take no time",
    "update 0.2": "they take a fifth as long",
    "update 4": "they take four times as long",
    "step 0.25": "an environment's step takes a quarter as long",
    "step 4": "a step takes four times as long",
    "places 16": "the actors' rented machine has 16 places, not 48",
    "idle 1": "idle GPUs are billed by use, too",
    "overhead 0": "no overhead of a round",
    "overhead 1": "1 s of overhead",
    "overhead 10": "10 s of overhead",
}
